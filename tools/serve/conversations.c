/* Conversations: texts whose cells stay. */
#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "scheduler_impl.h"

/* ---- the list ---- */

/* Returns the place of an owner's conversation, or where the list ends. */
static struct gr_conversation **place_of(struct gr_scheduler *s, uint64_t owner, uint64_t id)
{
    struct gr_conversation **at = &s->conversations;
    while (*at && ((*at)->id != id || (*at)->owner != owner))
        at = &(*at)->next;
    return at;
}

/* Adds a conversation with a copy of the tokens. */
static int add(struct gr_scheduler *s, uint64_t owner, const int32_t *token, int32_t n,
               struct gr_conversation **out)
{
    struct gr_conversation *c = calloc(1, sizeof *c);
    int32_t *copy = c ? malloc((size_t)(n + 1) * sizeof *copy) : NULL;
    *out = NULL;
    if (!copy) {
        free(c);
        return GR_E_NOMEM_HOST;
    }
    if (n)
        memcpy(copy, token, (size_t)n * sizeof *copy);
    *c = (struct gr_conversation){.id = ++s->last_conversation,
                                  .owner = owner,
                                  .token = copy,
                                  .n = n,
                                  .seq = -1,
                                  .next = s->conversations};
    s->conversations = *out = c;
    s->n_conversation++;
    return 0;
}

/* Removes a conversation; its cells can be used by others. */
static void close_at(struct gr_scheduler *s, struct gr_conversation **at)
{
    struct gr_conversation *c = *at;
    if (c->seq >= 0)
        gr_prefixes_leave(&s->prefixes, c->seq);
    *at = c->next;
    s->n_conversation--;
    free(c->token);
    free(c);
}

void gr_scheduler_close_all(struct gr_scheduler *s)
{
    while (s->conversations)
        close_at(s, &s->conversations);
}

/* ---- cells ---- */

static int32_t seq_of(const struct gr_conversation *c)
{
    return c->text && c->text->seq >= 0 ? c->text->seq : c->seq;
}

/* Returns the most cells that a conversation shares with one further on in the list. */
static int32_t shared_behind(const struct gr_scheduler *s, const struct gr_conversation *c)
{
    int32_t most = 0, seq = seq_of(c);
    for (const struct gr_conversation *d = c->next; d && seq >= 0; d = d->next) {
        int32_t same = seq_of(d) >= 0 ? gr_prefixes_shared(&s->prefixes, seq, seq_of(d)) : 0;
        most = same > most ? same : most;
    }
    return most;
}

bool gr_scheduler_may_keep(const struct gr_scheduler *s, uint64_t owner, int32_t n,
                           const char **why)
{
    int64_t all = n, of_owner = n, most = s->p.n_kept;
    for (const struct gr_conversation *c = s->conversations; c; c = c->next) {
        int32_t own = (c->text ? c->text->n : c->n) - shared_behind(s, c);
        all += own;
        of_owner += c->owner == owner ? own : 0;
    }
    *why = all > most ? "the sessions would leave too few cells to other requests: close one, cut "
                        "its text, or start the server with a larger --kv-pool"
                      : "the sessions of one key may hold half of the cells of all: close one, or "
                        "cut its text";
    return !most || (all <= most && (!s->p.owners || of_owner <= most / 2));
}

/* ---- calls ---- */

static int32_t n_of_owner(const struct gr_scheduler *s, uint64_t owner)
{
    int32_t n = 0;
    for (const struct gr_conversation *c = s->conversations; c; c = c->next)
        n += c->owner == owner;
    return n;
}

static int open_new(struct gr_scheduler *s, uint64_t owner, const struct gr_conversation *from,
                    struct gr_conversation **out, const char **why)
{
    int32_t most = s->p.n_seq - s->p.n_active;
    *why = "there are as many sessions as may be: close one";
    *out = NULL;
    if (s->n_conversation >= most)
        return GR_E_KV_FULL;
    *why = "one key may have half of the sessions of all: close one";
    if (s->p.owners && n_of_owner(s, owner) >= (most + 1) / 2)
        return GR_E_KV_FULL;
    *why = gr_status_text(GR_E_NOMEM_HOST);
    return add(s, owner, from ? from->token : NULL, from ? from->n : 0, out);
}

/* Makes a conversation with the text of another one, whose cells both share. */
static int fork_of(struct gr_scheduler *s, struct gr_conversation *c, struct gr_conversation **out,
                   const char **why)
{
    struct gr_prefixes *p = &s->prefixes;
    int rc = open_new(s, c->owner, c, out, why);
    int32_t n = c->seq < 0 ? 0 : p->seq[c->seq].n;
    if (!rc)
        (*out)->key = c->key;
    if (rc || !n)
        return rc;
    (*out)->seq = gr_prefixes_take(p, &c->key, c->seq, n);
    if ((*out)->seq >= 0 && p->seq[(*out)->seq].n == n)
        return 0;
    *why = (*out)->seq < 0 ? "no sequence is left" : gr_failure_text(GR_E_UNSUPPORTED);
    rc = (*out)->seq < 0 ? GR_E_KV_FULL : GR_E_UNSUPPORTED;
    close_at(s, place_of(s, c->owner, (*out)->id));
    *out = NULL;
    return rc;
}

/* Returns how many cells of its own a conversation needs to move what is behind `hi`: those that it
 * shares now. */
static int32_t n_to_copy(const struct gr_scheduler *s, const struct gr_conversation *c, int32_t hi)
{
    int32_t most = 0;
    for (const struct gr_conversation *d = s->conversations; d; d = d->next) {
        int32_t same = d != c && d->seq >= 0 ? gr_prefixes_shared(&s->prefixes, c->seq, d->seq) : 0;
        most = same > most ? same : most;
    }
    return most > hi && hi < s->prefixes.seq[c->seq].n ? most - hi : 0;
}

/* Removes tokens [lo, hi) of a conversation's text. */
static int cut(struct gr_scheduler *s, struct gr_conversation *c, int32_t lo, int32_t hi,
               const char **why)
{
    *why = "positions beyond the text of the conversation";
    if (lo < 0 || lo > hi || hi > c->n)
        return GR_E_INVALID;
    int rc = 0;
    bool cuts = lo < hi && c->seq >= 0 && lo < s->prefixes.seq[c->seq].n;
    int32_t n = cuts ? n_to_copy(s, c, hi) : 0;
    if (n && !gr_scheduler_may_keep(s, c->owner, n, why))
        return GR_E_KV_FULL;
    if (cuts)
        rc = gr_prefixes_cut(&s->prefixes, c->seq, lo, hi, why);
    if (rc)
        return rc;
    memmove(c->token + lo, c->token + hi, (size_t)(c->n - hi) * sizeof *c->token);
    c->n -= hi - lo;
    return 0;
}

/* Carries a call out. */
static void carry_out(struct gr_scheduler *s, const struct gr_conversation_call *call,
                      struct gr_conversation_result *r)
{
    struct gr_conversation **at = place_of(s, call->owner, call->id), *c = *at, *other = NULL;
    if (call->op == GR_CONVERSATION_OPEN) {
        r->status = open_new(s, call->owner, NULL, &other, &r->message);
    } else if (!c || c->busy) {
        r->status = GR_E_INVALID;
        r->message = c ? "the conversation has a request" : "there is no such conversation";
    } else if (call->op == GR_CONVERSATION_FORK) {
        r->status = fork_of(s, c, &other, &r->message);
    } else if (call->op == GR_CONVERSATION_CLOSE) {
        close_at(s, at);
        return;
    } else {
        int32_t hi = call->op == GR_CONVERSATION_BACK ? c->n : call->hi;
        r->status = cut(s, c, call->lo, hi, &r->message);
    }
    c = other ? other : c;
    r->id = other ? other->id : r->id;
    r->n_token = c ? c->n : 0;
}

void gr_scheduler_do_calls(struct gr_scheduler *s, struct gr_scheduler_call *calls, int status)
{
    while (calls) {
        struct gr_scheduler_call *c = calls;
        if (c->is_slot) {
            calls = c->next;
            gr_scheduler_do_slot(s, &c->slot, status);
            free(c);
            continue;
        }
        struct gr_conversation_result r = {.id = c->call.id, .status = status};
        calls = c->next;
        r.message = gr_status_text(status);
        if (!status)
            carry_out(s, &c->call, &r);
        if (!r.status)
            r.message = NULL;
        if (c->call.done)
            c->call.done(&r, c->call.user);
        free(c);
    }
}

/* ---- requests ---- */

void gr_scheduler_join(struct gr_scheduler *s, struct gr_text *t)
{
    struct gr_conversation *c = *place_of(s, t->request.owner, t->request.conversation);
    const char *why;
    if (!c || c->busy) {
        gr_text_end(t, GR_FINISH_FAILED, GR_E_INVALID,
                    c ? "the conversation has a request" : "there is no such conversation");
    } else if (t->n > s->p.n_ctx - c->n) {
        gr_text_end(t, GR_FINISH_FAILED, GR_E_TOO_LARGE,
                    "the prompt does not fit the context behind the conversation's text");
    } else if (c->n && c->key.id != t->key.id) {
        gr_text_end(t, GR_FINISH_FAILED, GR_E_INVALID,
                    "the conversation's text was computed with other adapters");
    } else if (!gr_scheduler_may_keep(s, c->owner, t->n, &why)) {
        gr_text_end(t, GR_FINISH_FAILED, GR_E_KV_FULL, why);
    } else if (gr_text_follow(t, c->token, c->n)) {
        gr_text_end(t, GR_FINISH_FAILED, GR_E_NOMEM_HOST, gr_status_text(GR_E_NOMEM_HOST));
    } else {
        c->busy = true;
        c->key = t->key;
        c->text = t;
        t->conversation = c;
    }
}

void gr_scheduler_part(struct gr_text *t)
{
    struct gr_conversation *c = t->conversation;
    c->busy = false;
    c->text = NULL;
    if (t->seq < 0)
        return;
    free(c->token);
    c->token = t->token, c->n = t->n, c->seq = t->seq;
    t->token = NULL;
}
