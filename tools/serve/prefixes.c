/* Texts in the cache, by sequence. */
#include "prefixes.h"

#include <stdlib.h>
#include <string.h>

#include "disk.h"
#include "gpurun.h"
#include "text.h"

int gr_prefixes_open(struct gr_prefixes *p, struct gr_session *session, int32_t n_seq, bool whole)
{
    *p = (struct gr_prefixes){.session = session, .n_seq = n_seq, .whole = whole, .spare = -1};
    p->seq = calloc((size_t)n_seq, sizeof *p->seq);
    return p->seq ? 0 : GR_E_NOMEM_HOST;
}

void gr_prefixes_set_key(struct gr_prefixes *p, int32_t seq, const struct gr_prefix_key *key)
{
    p->seq[seq].owner = key->id;
    memcpy(p->seq[seq].adapter, key->adapter, sizeof key->adapter);
}

int gr_prefixes_set_adapters(const struct gr_prefixes *p, int32_t seq)
{
    return p->adapters ? gr_session_set_adapters(p->session, p->seq[seq].adapter) : 0;
}

/* Saves a text that is about to be dropped. */
static void save(struct gr_prefixes *p, int32_t seq)
{
    const struct gr_prefix *q = &p->seq[seq];
    if (p->disk && q->n >= p->least && q->plain == q->n && !gr_prefixes_set_adapters(p, seq))
        gr_disk_save(p->disk, seq, q->owner, q->token, q->n);
}

void gr_prefixes_close(struct gr_prefixes *p)
{
    for (int32_t i = 0; i < p->n_seq && p->seq; i++) {
        if (p->disk)
            gr_disk_wait(p->disk); /* all are saved, however slow it is */
        save(p, i);
        free(p->seq[i].token);
        free(p->seq[i].cell);
    }
    free(p->seq);
    *p = (struct gr_prefixes){0};
}

static int32_t shared(const struct gr_prefix *a, const struct gr_prefix *b)
{
    int32_t lo = 0, hi = a->n < b->n ? a->n : b->n;
    if (!hi || a->cell[0] != b->cell[0])
        return 0;
    while (lo < hi) {
        int32_t middle = lo + (hi - lo) / 2;
        if (a->cell[middle] == b->cell[middle])
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

int32_t gr_prefixes_shared(const struct gr_prefixes *p, int32_t a, int32_t b)
{
    return shared(&p->seq[a], &p->seq[b]);
}

/* Returns the length of the common beginning of token [n] and a sequence, given that of another one
 * (NULL: none): cells that both share are not compared again. */
static int32_t common(const struct gr_prefix *q, const int32_t *token, int32_t n, bool moved,
                      const struct gr_prefix *other, int32_t length)
{
    int32_t i = other ? shared(q, other) : 0, end = moved ? q->usable : q->plain;
    if (i > length)
        return length;
    while (i < n && i < end && q->token[i] == token[i])
        i++;
    return i;
}

int32_t gr_prefixes_find(const struct gr_prefixes *p, uint64_t owner, const int32_t *token,
                         int32_t n, bool moved, int32_t *seq)
{
    int32_t best = 0;
    *seq = -1;
    for (int32_t i = 0; i < p->n_seq; i++) {
        const struct gr_prefix *q = &p->seq[i], *other = *seq < 0 ? NULL : &p->seq[*seq];
        int32_t length = q->n && q->owner == owner ? common(q, token, n, moved, other, best) : 0;
        if (length < q->n && (p->whole || length < gr_kv_seq_cut_min(p->session, i)))
            length = 0;
        if (length > best || (length && length == best && other->busy && !q->busy))
            best = length, *seq = i;
    }
    return best;
}

/* Returns how many of the first n cells of a sequence no busy one below `end` shares. */
static int32_t n_own(const struct gr_prefixes *p, int32_t seq, int32_t n, int32_t end)
{
    int32_t most = 0;
    for (int32_t i = 0; i < end; i++) {
        int32_t same = p->seq[i].busy && i != seq ? shared(&p->seq[i], &p->seq[seq]) : 0;
        most = same > most ? same : most;
    }
    return n > most ? n - most : 0;
}

int32_t gr_prefixes_held(const struct gr_prefixes *p, int32_t seq, int32_t n)
{
    int32_t held = seq < 0 || p->seq[seq].busy ? 0 : n_own(p, seq, n, p->n_seq);
    for (int32_t i = 0; i < p->n_seq; i++)
        held += p->seq[i].busy ? n_own(p, i, p->seq[i].n, i) : 0;
    return held;
}

/* The sequence without a text that was used longest ago, empty ones first, but not `except`;
 * -1: there is none. */
static int32_t oldest(const struct gr_prefixes *p, int32_t except, bool empty)
{
    int32_t best = -1;
    for (int32_t i = 0; i < p->n_seq; i++) {
        const struct gr_prefix *q = &p->seq[i];
        if (q->busy || i == except || (!empty && !q->n))
            continue;
        if (!q->n)
            return i;
        if (best < 0 || q->used < p->seq[best].used)
            best = i;
    }
    return best;
}

void gr_prefixes_drop(struct gr_prefixes *p, int32_t seq)
{
    gr_kv_seq_rm(p->session, seq, -1, -1);
    p->seq[seq].n = p->seq[seq].plain = p->seq[seq].usable = 0;
    p->seq[seq].busy = false;
}

static void retire(struct gr_prefixes *p, int32_t seq)
{
    save(p, seq);
    gr_prefixes_drop(p, seq);
}

bool gr_prefixes_evict(struct gr_prefixes *p, int32_t except)
{
    int32_t seq = oldest(p, except, false);
    if (seq >= 0)
        retire(p, seq);
    return seq >= 0;
}

int gr_prefixes_reserve(struct gr_prefixes *p, int32_t seq, int32_t n)
{
    struct gr_prefix *q = &p->seq[seq];
    if (n <= q->capacity - q->n)
        return 0;
    size_t capacity = 2 * (size_t)q->capacity + (size_t)n;
    int32_t *token = capacity <= INT32_MAX ? realloc(q->token, capacity * sizeof *token) : NULL;
    q->token = token ? token : q->token;
    uint64_t *cell = token ? realloc(q->cell, capacity * sizeof *cell) : NULL;
    if (!cell)
        return GR_E_NOMEM_HOST;
    q->cell = cell, q->capacity = (int32_t)capacity;
    return 0;
}

void gr_prefixes_hide(struct gr_prefixes *p, int32_t seq)
{
    p->seq[seq].plain = p->seq[seq].usable = -1;
}

void gr_prefixes_add(struct gr_prefixes *p, int32_t seq, const int32_t *token, int32_t n)
{
    struct gr_prefix *q = &p->seq[seq];
    memcpy(q->token + q->n, token, (size_t)n * sizeof *token);
    for (int32_t i = 0; i < n; i++)
        q->cell[q->n + i] = ++p->last_cell;
    q->plain += q->plain == q->n ? n : 0;
    q->usable += q->usable == q->n ? n : 0;
    q->n += n;
    q->used = ++p->clock;
}

/* Notes that tokens from n on are no longer what the text makes them. */
static void limit(struct gr_prefix *q, int32_t n)
{
    q->plain = q->plain < n ? q->plain : n;
    q->usable = q->usable < n ? q->usable : n;
}

/* Removes all tokens of a sequence from n on. */
static int truncate_at(struct gr_prefixes *p, int32_t seq, int32_t n)
{
    struct gr_prefix *q = &p->seq[seq];
    int rc = n < q->n ? gr_kv_seq_rm(p->session, seq, n, -1) : 0;
    if (!rc && n < q->n) {
        q->n = n;
        limit(q, n);
    }
    return rc;
}

void gr_prefixes_leave(struct gr_prefixes *p, int32_t seq)
{
    struct gr_prefix *q = &p->seq[seq];
    q->busy = false;
    q->used = ++p->clock;
    if (truncate_at(p, seq, q->usable > 0 ? q->usable : 0) || !q->n)
        gr_prefixes_drop(p, seq);
}

/* Gives a sequence cells of its own for the tokens from lo on, where it shares them. */
static int own(struct gr_prefixes *p, int32_t seq, int32_t lo)
{
    struct gr_prefix *q = &p->seq[seq];
    bool any = false;
    for (int32_t i = 0; i < p->n_seq && !any; i++)
        any = i != seq && shared(&p->seq[i], q) > lo;
    if (!any)
        return 0;
    int rc = gr_kv_seq_dup(p->session, seq, seq, lo, -1);
    while (rc == GR_E_KV_FULL && gr_prefixes_evict(p, -1))
        rc = gr_kv_seq_dup(p->session, seq, seq, lo, -1);
    for (int32_t i = lo; i < q->n && !rc; i++)
        q->cell[i] = ++p->last_cell;
    return rc;
}

/* The same, where n tokens follow those that go. */
static int shift(struct gr_prefixes *p, int32_t seq, int32_t lo, int32_t hi, int32_t n)
{
    struct gr_prefix *q = &p->seq[seq];
    int rc = gr_kv_seq_add(p->session, seq, q->n, q->n, 1); /* refused for learned positions */
    if (!rc && !p->whole)
        rc = own(p, seq, hi);
    if (!rc)
        rc = gr_context_shift(p->session, seq, lo, hi - lo, NULL);
    if (rc)
        return rc;
    memmove(q->token + lo, q->token + hi, (size_t)n * sizeof *q->token);
    for (int32_t i = lo; i < lo + n; i++)
        q->cell[i] = ++p->last_cell;
    q->n = lo + n;
    limit(q, lo);
    return 0;
}

int gr_prefixes_move(struct gr_prefixes *p, int32_t source, int32_t from, int32_t n, int32_t to)
{
    struct gr_prefix *q = &p->seq[to];
    int32_t plain = q->plain;
    if (p->spare < 0)
        return GR_E_UNSUPPORTED;
    int rc = gr_prefixes_reserve(p, to, n);
    if (!rc)
        rc = gr_kv_seq_dup(p->session, source, p->spare, from, from + n);
    while (rc == GR_E_KV_FULL && gr_prefixes_evict(p, source))
        rc = gr_kv_seq_dup(p->session, source, p->spare, from, from + n);
    if (!rc)
        rc = gr_kv_seq_add(p->session, p->spare, from, from + n, q->n - from);
    if (!rc)
        rc = gr_kv_seq_cp(p->session, p->spare, to, -1, -1);
    gr_kv_seq_rm(p->session, p->spare, -1, -1);
    if (rc)
        return rc;
    gr_prefixes_add(p, to, p->seq[source].token + from, n);
    q->plain = plain;
    return 0;
}

int gr_prefixes_cut(struct gr_prefixes *p, int32_t seq, int32_t lo, int32_t hi, const char **why)
{
    int32_t n = p->seq[seq].n - hi;
    *why = "nothing is cut so near to the end of the context";
    if (n > 0 && lo > (int32_t)gr_session_n_ctx_seq(p->session) - 4) /* as gr_context_shift */
        return GR_E_UNSUPPORTED;
    int rc = n > 0 ? shift(p, seq, lo, hi, n) : truncate_at(p, seq, lo);
    *why = rc ? gr_failure_text(rc) : NULL;
    return rc;
}

/* Makes `to`, which is empty, or `from` itself hold the first n tokens of `from`. */
static bool share(struct gr_prefixes *p, int32_t from, int32_t to, int32_t n)
{
    struct gr_prefix *q = &p->seq[to];
    const struct gr_prefix *source = &p->seq[from];
    if (to == from)
        return !truncate_at(p, to, n);
    if (gr_prefixes_reserve(p, to, n) || gr_kv_seq_cp(p->session, from, to, 0, n))
        return false;
    memcpy(q->token, source->token, (size_t)n * sizeof *q->token);
    memcpy(q->cell, source->cell, (size_t)n * sizeof *q->cell);
    q->n = n, q->plain = source->plain, q->usable = source->usable;
    limit(q, n);
    q->used = ++p->clock;
    return true;
}

int32_t gr_prefixes_take(struct gr_prefixes *p, const struct gr_prefix_key *key, int32_t from,
                         int32_t n)
{
    int32_t to = -1;
    bool idle = from >= 0 && !p->seq[from].busy;
    if (idle && n == p->seq[from].n)
        to = from; /* the text goes on where this one ended */
    if (to < 0)
        to = oldest(p, from, true);
    if (to < 0 && idle)
        to = from;
    if (to < 0)
        return -1;
    if (to != from)
        retire(p, to);
    else if (n < p->seq[to].n)
        save(p, to);
    if (from >= 0 && !share(p, from, to, n))
        gr_prefixes_drop(p, to);
    p->seq[to].busy = true;
    gr_prefixes_set_key(p, to, key);
    p->seq[to].used = ++p->clock;
    return to;
}

void gr_prefixes_keep(struct gr_prefixes *p, int32_t seq)
{
    int32_t to = p->whole ? oldest(p, seq, true) : -1;
    if (to < 0)
        return;
    retire(p, to);
    if (!share(p, seq, to, p->seq[seq].n))
        gr_prefixes_drop(p, to);
    p->seq[to].owner = p->seq[seq].owner;
    memcpy(p->seq[to].adapter, p->seq[seq].adapter, sizeof p->seq[to].adapter);
}

void gr_prefixes_restore(struct gr_prefixes *p, int32_t seq, struct gr_disk_job **read,
                         const int32_t *token, int32_t n, int32_t all)
{
    if (gr_prefixes_reserve(p, seq, n) || gr_prefixes_set_adapters(p, seq))
        gr_disk_unread(p->disk, read);
    else if (gr_disk_load(p->disk, read, seq))
        return;
    else if (n < all && gr_kv_seq_rm(p->session, seq, n, -1))
        gr_kv_seq_rm(p->session, seq, -1, -1);
    else
        gr_prefixes_add(p, seq, token, n);
}
