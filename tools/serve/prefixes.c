/* Texts in the cache, by sequence. */
#include "prefixes.h"

#include <stdlib.h>
#include <string.h>

#include "gpurun.h"

int gr_prefixes_open(struct gr_prefixes *p, struct gr_session *session, int32_t n_seq, bool whole)
{
    *p = (struct gr_prefixes){.session = session, .n_seq = n_seq, .whole = whole};
    p->seq = calloc((size_t)n_seq, sizeof *p->seq);
    return p->seq ? 0 : GR_E_NOMEM_HOST;
}

void gr_prefixes_close(struct gr_prefixes *p)
{
    for (int32_t i = 0; i < p->n_seq && p->seq; i++)
        free(p->seq[i].token);
    free(p->seq);
    *p = (struct gr_prefixes){0};
}

static int32_t common(const struct gr_prefix *q, const int32_t *token, int32_t n)
{
    int32_t i = 0;
    while (i < n && i < q->n && q->token[i] == token[i])
        i++;
    return i;
}

int32_t gr_prefixes_find(const struct gr_prefixes *p, uint64_t owner, const int32_t *token,
                         int32_t n, int32_t *seq)
{
    int32_t best = 0;
    *seq = -1;
    for (int32_t i = 0; i < p->n_seq; i++) {
        const struct gr_prefix *q = &p->seq[i];
        int32_t length = q->n && q->owner == owner ? common(q, token, n - 1) : 0;
        if (p->whole && length < q->n)
            length = 0;
        if (length > best || (length && length == best && p->seq[*seq].busy && !q->busy))
            best = length, *seq = i;
    }
    return best;
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
    p->seq[seq].n = 0;
    p->seq[seq].busy = false;
}

bool gr_prefixes_evict(struct gr_prefixes *p, int32_t except)
{
    int32_t seq = oldest(p, except, false);
    if (seq >= 0)
        gr_prefixes_drop(p, seq);
    return seq >= 0;
}

int gr_prefixes_reserve(struct gr_prefixes *p, int32_t seq, int32_t n)
{
    struct gr_prefix *q = &p->seq[seq];
    if (n <= q->capacity - q->n)
        return 0;
    size_t capacity = 2 * (size_t)q->capacity + (size_t)n;
    int32_t *token = capacity <= INT32_MAX ? realloc(q->token, capacity * sizeof *token) : NULL;
    if (!token)
        return GR_E_NOMEM_HOST;
    q->token = token, q->capacity = (int32_t)capacity;
    return 0;
}

void gr_prefixes_add(struct gr_prefixes *p, int32_t seq, const int32_t *token, int32_t n)
{
    struct gr_prefix *q = &p->seq[seq];
    memcpy(q->token + q->n, token, (size_t)n * sizeof *token);
    q->n += n;
    q->used = ++p->clock;
}

void gr_prefixes_leave(struct gr_prefixes *p, int32_t seq)
{
    p->seq[seq].busy = false;
    p->seq[seq].used = ++p->clock;
    if (!p->seq[seq].n)
        gr_prefixes_drop(p, seq);
}

/* Makes `to`, which is empty, or `from` itself hold the first n tokens of `from`. */
static bool share(struct gr_prefixes *p, int32_t from, int32_t to, int32_t n)
{
    struct gr_prefix *q = &p->seq[to];
    if (to != from && gr_prefixes_reserve(p, to, n))
        return false;
    if (to != from && gr_kv_seq_cp(p->session, from, to, 0, n))
        return false;
    if (to == from && n < q->n && gr_kv_seq_rm(p->session, to, n, -1))
        return false;
    if (to != from)
        gr_prefixes_add(p, to, p->seq[from].token, n);
    q->n = n;
    return true;
}

int32_t gr_prefixes_take(struct gr_prefixes *p, uint64_t owner, const int32_t *token, int32_t n)
{
    int32_t from, to = -1;
    int32_t length = gr_prefixes_find(p, owner, token, n, &from);
    bool idle = length && !p->seq[from].busy;
    if (idle && length == p->seq[from].n)
        to = from; /* the text goes on where this one ended */
    if (to < 0)
        to = oldest(p, length ? from : -1, true);
    if (to < 0 && idle)
        to = from;
    if (to < 0)
        return -1;
    if (to != from)
        gr_prefixes_drop(p, to);
    if (length && !share(p, from, to, length))
        gr_prefixes_drop(p, to);
    p->seq[to].busy = true;
    p->seq[to].owner = owner;
    p->seq[to].used = ++p->clock;
    return to;
}

void gr_prefixes_keep(struct gr_prefixes *p, int32_t seq)
{
    int32_t to = p->whole ? oldest(p, seq, true) : -1;
    if (to < 0)
        return;
    gr_prefixes_drop(p, to);
    if (!share(p, seq, to, p->seq[seq].n))
        gr_prefixes_drop(p, to);
    p->seq[to].owner = p->seq[seq].owner;
}
