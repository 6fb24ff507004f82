/* Texts of slots, which are saved and restored. */
#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "scheduler_impl.h"

/* The note of a state; the tokens follow. */
struct note {
    char magic[8];
    uint32_t version, n_token;
    uint64_t owner;
};
static const char magic[8] = "gpurunSL";
#define VERSION 1

/* ---- the list ---- */

/* Returns the place of an owner's slot, or where the list ends. */
static struct gr_slot_text **place_of(struct gr_scheduler *s, uint64_t owner, int32_t slot)
{
    struct gr_slot_text **at = &s->slots;
    while (*at && ((*at)->owner != owner || (*at)->slot != slot))
        at = &(*at)->next;
    return at;
}

static void remove_at(struct gr_slot_text **at)
{
    struct gr_slot_text *x = *at;
    *at = x->next;
    free(x->token);
    free(x);
}

/* Sets the text of a slot, `as` but for the text; without memory it has none. */
static void set(struct gr_scheduler *s, const struct gr_slot_text *as, const int32_t *token,
                int32_t n)
{
    struct gr_slot_text **at = place_of(s, as->owner, as->slot), *x = calloc(1, sizeof *x);
    int32_t *copy = x ? malloc((size_t)n * sizeof *copy) : NULL;
    if (*at)
        remove_at(at);
    if (!copy) {
        free(x);
        return;
    }
    memcpy(copy, token, (size_t)n * sizeof *copy);
    *x = *as;
    x->token = copy, x->n = n, x->next = s->slots;
    s->slots = x;
}

void gr_scheduler_set_slot(struct gr_scheduler *s, const struct gr_text *t)
{
    const struct gr_slot_text as = {
        .owner = t->request.owner, .slot = t->request.slot, .key = t->key};
    int32_t n = t->seq < 0 ? t->n : gr_scheduler_n_done(s, t);
    if (t->request.slot && t->end != GR_FINISH_FAILED)
        set(s, &as, t->token, n);
}

void gr_scheduler_free_slots(struct gr_scheduler *s)
{
    while (s->slots)
        remove_at(&s->slots);
}

/* ---- calls ---- */

/* Makes the note of a text; NULL: no memory. */
static struct note *make_note(uint64_t owner, const int32_t *token, int32_t n, size_t *bytes)
{
    *bytes = sizeof(struct note) + (size_t)n * sizeof *token;
    struct note *note = malloc(*bytes);
    if (!note)
        return NULL;
    *note = (struct note){.version = VERSION, .n_token = (uint32_t)n, .owner = owner};
    memcpy(note->magic, magic, sizeof magic);
    memcpy(note + 1, token, (size_t)n * sizeof *token);
    return note;
}

/* Saves the first n tokens of a sequence, which are a slot's. */
static int save(struct gr_scheduler *s, const struct gr_slot_text *x, int32_t from, int32_t n,
                struct gr_slot_result *r)
{
    size_t bytes;
    int32_t seq = gr_prefixes_take(&s->prefixes, &x->key, from, n);
    const struct gr_prefix *q = seq < 0 ? NULL : &s->prefixes.seq[seq];
    r->message = "no sequence is left";
    if (!q)
        return GR_E_KV_FULL;
    r->message = "the model's cache cannot give the beginning of a text that went on";
    int rc = q->n == n ? 0 : GR_E_UNSUPPORTED;
    struct note *note = rc ? NULL : make_note(x->owner, q->token, n, &bytes);
    if (!rc) {
        rc = note ? gr_prefixes_set_adapters(&s->prefixes, seq) : GR_E_NOMEM_HOST;
        if (!rc)
            rc = gr_state_save(s->p.session, seq, note, bytes, &r->data, &r->n);
        r->message = note ? gr_error_message() : gr_status_text(rc);
    }
    free(note);
    gr_prefixes_leave(&s->prefixes, seq);
    r->n_token = n;
    return rc;
}

/* Returns why a note [n] is none of the owner's; NULL: it is. */
static const char *check_note(const struct gr_scheduler *s, uint64_t owner, int32_t seq,
                              const struct note *note, size_t n)
{
    if (!note || n < sizeof *note || memcmp(note->magic, magic, sizeof magic) != 0 ||
        note->version != VERSION || n != sizeof *note + note->n_token * sizeof(int32_t) ||
        !note->n_token || note->n_token > s->n_cell ||
        gr_kv_seq_pos_max(s->p.session, seq) != (int32_t)note->n_token - 1)
        return "it is a saved state, but of no slot";
    const int32_t *token = (const int32_t *)(note + 1);
    for (uint32_t i = 0; i < note->n_token; i++) {
        if (token[i] < 0 || token[i] >= s->n_vocab)
            return "its text has tokens that the model has not";
    }
    return note->owner == owner ? NULL : "it belongs to another key";
}

/* Loads a state into an empty sequence, for which idle ones are dropped. */
static int load(struct gr_scheduler *s, const struct gr_slot_call *call, int32_t seq,
                struct gr_slot_result *r)
{
    void *note = NULL;
    size_t n = 0;
    int rc;
    do {
        rc = gr_prefixes_set_adapters(&s->prefixes, seq); /* to drop one may change them */
        if (!rc)
            rc = gr_state_load(s->p.session, seq, call->data, call->n, &note, &n);
    } while (rc == GR_E_KV_FULL && gr_prefixes_evict(&s->prefixes, -1));
    r->message = gr_error_message();
    if (!rc && (r->message = check_note(s, call->owner, seq, note, n)))
        rc = GR_E_INVALID;
    int32_t n_token = rc ? 0 : (int32_t)((const struct note *)note)->n_token;
    if (!rc && (rc = gr_prefixes_reserve(&s->prefixes, seq, n_token)))
        r->message = gr_status_text(rc);
    if (!rc) {
        const int32_t *token = (const int32_t *)((const struct note *)note + 1);
        gr_prefixes_add(&s->prefixes, seq, token, n_token);
        const struct gr_slot_text as = {.owner = call->owner,
                                        .slot = call->slot,
                                        .key = gr_scheduler_key(s, call->owner, call->adapters)};
        set(s, &as, token, n_token);
    }
    gr_state_free(note);
    r->n_token = n_token;
    return rc;
}

static int restore(struct gr_scheduler *s, const struct gr_slot_call *call,
                   struct gr_slot_result *r)
{
    const struct gr_prefix_key key = gr_scheduler_key(s, call->owner, call->adapters);
    int32_t seq = gr_prefixes_take(&s->prefixes, &key, -1, 0);
    r->message = "no sequence is left";
    if (seq < 0)
        return GR_E_KV_FULL;
    int rc = load(s, call, seq, r);
    if (rc)
        gr_prefixes_drop(&s->prefixes, seq);
    else
        gr_prefixes_leave(&s->prefixes, seq);
    return rc;
}

static void carry_out(struct gr_scheduler *s, const struct gr_slot_call *call,
                      struct gr_slot_result *r)
{
    struct gr_slot_text **at = place_of(s, call->owner, call->slot), *x = *at;
    int32_t seq = -1, n = 0;
    if (call->op == GR_SLOT_RESTORE) {
        r->status = restore(s, call, r);
        return;
    }
    if (x)
        n = gr_prefixes_find(&s->prefixes, x->key.id, x->token, x->n, call->op == GR_SLOT_ERASE,
                             &seq);
    if (call->op == GR_SLOT_SAVE) {
        r->message = x ? "the text of the slot has left the cache" : "the slot has no text";
        r->status = n && n == x->n ? save(s, x, seq, n, r) : GR_E_INVALID;
        return;
    }
    if (n && !s->prefixes.seq[seq].busy && s->prefixes.seq[seq].n == n) {
        gr_prefixes_drop(&s->prefixes, seq);
        r->n_token = n;
    }
    if (x)
        remove_at(at);
}

void gr_scheduler_do_slot(struct gr_scheduler *s, const struct gr_slot_call *call, int status)
{
    struct gr_slot_result r = {.status = status};
    r.message = gr_status_text(status);
    if (!status)
        carry_out(s, call, &r);
    if (!r.status)
        r.message = NULL;
    call->done(&r, call->user);
}
