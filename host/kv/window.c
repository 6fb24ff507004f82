/* Sliding windows: cells that no later token can see, their eviction, sets of evicted positions. */
#include "gr/status.h"
#include "kv/cells.h"

int64_t gr_kv_first_seen(const struct gr_kv *kv, int64_t pos)
{
    return kv->p.chunked ? pos - pos % kv->p.window : pos - kv->p.window + 1;
}

/* The next token is behind the largest position or, with rows and columns, possibly at it. */
int64_t gr_kv_visible(const struct gr_kv *kv, int32_t max)
{
    return gr_kv_first_seen(kv, kv->p.pos_2d ? GR_MAX(max, 0) : (int64_t)max + 1);
}

/* The position below which a sequence needs none of its cells any more. Its last one stays, so that
 * its largest position is known. */
static int64_t evictable_below(const struct gr_kv *kv, int32_t seq)
{
    int32_t max = gr_kv_max_pos(kv, seq);
    return GR_MIN(gr_kv_visible(kv, max), max);
}

/* Returns whether none of a cell's sequences needs it and it is not to be spared. */
static bool evictable(const struct gr_kv *kv, uint32_t c, int32_t spare_seq,
                      struct gr_kv_range spare)
{
    if (spare_seq >= 0 && gr_kv_has(kv, c, spare_seq) && kv->pos[c] >= spare.lo &&
        kv->pos[c] < spare.hi)
        return false;
    for (uint32_t w = 0; w < kv->n_set; w++)
        for (uint64_t m = kv->set[(size_t)c * kv->n_set + w]; m; m &= m - 1)
            if (kv->pos[c] >= evictable_below(kv, (int32_t)w * 64 + __builtin_ctzll(m)))
                return false;
    return true;
}

/* The first cell of a sequence, from item *at on, that can be evicted; -1 when there is none. */
static int64_t first_evictable(const struct gr_kv *kv, int32_t seq, int32_t spare_seq,
                               struct gr_kv_range spare, uint32_t *at)
{
    const struct gr_kv_seq *q = &kv->seq[seq];
    int64_t limit = q->n ? evictable_below(kv, seq) : 0;
    for (; *at < q->n; ++*at) {
        uint32_t c = gr_kv_items(q)[*at];
        if (kv->pos[c] >= limit)
            return -1;
        if (evictable(kv, c, spare_seq, spare))
            return c;
    }
    return -1;
}

/* The sequences [lo, hi) of a pool. */
static struct gr_kv_range seqs_of(const struct gr_kv *kv, const struct gr_kv_pool *pool)
{
    int32_t s = (int32_t)(pool - kv->pool);
    return kv->p.n_kv_pool > 1 ? (struct gr_kv_range){s, s + 1}
                               : (struct gr_kv_range){0, (int32_t)kv->p.n_seq_max};
}

/* Evicts a cell. In a dry run its sequences are logged, unless the run itself placed the cell. */
static void evict(struct gr_kv *kv, uint32_t c)
{
    int32_t pos = kv->pos[c];
    bool log = kv->logging && kv->age[c] < kv->clock0;
    for (uint32_t w = 0; w < kv->n_set; w++)
        for (uint64_t m = kv->set[(size_t)c * kv->n_set + w]; m; m &= m - 1) {
            int32_t s = (int32_t)w * 64 + __builtin_ctzll(m);
            struct gr_kv_seq *q = &kv->seq[s];
            q->evicted = gr_kv_evicted_with(&q->evicted, (struct gr_kv_range){pos, pos + 1});
            if (log)
                kv->eviction[kv->n_eviction++] =
                    (struct gr_kv_eviction){c, s, gr_kv_cell_meta(kv, c)};
        }
    gr_kv_cell_empty(kv, c);
}

bool gr_kv_evict(struct gr_kv *kv, const struct gr_kv_pool *pool, int32_t spare_seq,
                 struct gr_kv_range spare, uint32_t *at)
{
    struct gr_kv_range r = seqs_of(kv, pool);
    int64_t oldest = -1;
    for (int32_t s = r.lo; kv->p.window > 0 && s < r.hi; s++) {
        int64_t c = first_evictable(kv, s, spare_seq, spare, &at[s]);
        if (c >= 0 && (oldest < 0 || kv->age[c] < kv->age[oldest]))
            oldest = c;
    }
    if (oldest >= 0)
        evict(kv, (uint32_t)oldest);
    return oldest >= 0;
}

uint32_t gr_kv_n_evictable(const struct gr_kv *kv, const struct gr_kv_pool *pool, int32_t spare_seq,
                           struct gr_kv_range spare, uint32_t most)
{
    struct gr_kv_range r = seqs_of(kv, pool);
    uint32_t n = 0;
    for (int32_t s = r.lo; kv->p.window > 0 && s < r.hi; s++) {
        uint32_t at = 0;
        for (int64_t c; n < most && (c = first_evictable(kv, s, spare_seq, spare, &at)) >= 0; at++)
            n += gr_kv_cell(kv, (uint32_t)c).seq == s; /* a shared cell counts once */
    }
    return n;
}

/* Returns whether the next token after position `max` would see positions that are evicted. */
static bool misses(const struct gr_kv *kv, const struct gr_kv_evicted *evicted, int32_t max)
{
    return kv->p.window > 0 && evicted->n && evicted->r[evicted->n - 1].hi > gr_kv_visible(kv, max);
}

int gr_kv_window_check(const struct gr_kv *kv, int32_t seq, const struct gr_kv_evicted *evicted,
                       int32_t max)
{
    if (!misses(kv, evicted, max))
        return 0;
    const struct gr_kv_range *last = &evicted->r[evicted->n - 1];
    return gr_fail(
        GR_E_UNSUPPORTED,
        "sequence %d: the next token would see positions from %lld on, but with a window "
        "of %d those from %d to %d may have been evicted; use a full-size window cache "
        "(--swa-full)",
        seq, (long long)GR_MAX(gr_kv_visible(kv, max), 0), kv->p.window, last->lo, last->hi - 1);
}

int32_t gr_kv_cut_min(const struct gr_kv *kv, int32_t seq)
{
    const struct gr_kv_evicted *evicted = &kv->seq[seq].evicted;
    int32_t lo = 0, hi = gr_kv_max_pos(kv, seq) + 1;
    while (lo < hi) { /* the last position that is left is lo - 1 */
        int32_t middle = lo + (hi - lo) / 2;
        if (misses(kv, evicted, middle - 1))
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

bool gr_kv_incomplete(const struct gr_kv *kv, int32_t seq)
{
    return misses(kv, &kv->seq[seq].evicted, gr_kv_max_pos(kv, seq));
}

/* ---- sets of positions ---- */

/* Ranges in ascending order of `lo` while a set is computed: each of n makes at most three, and
 * those of two sets meet in at most 2 n - 1 ranges. */
struct pieces {
    uint32_t n;
    struct gr_kv_range r[8 * GR_KV_N_EVICTED];
};

static void put(struct pieces *p, struct gr_kv_range r)
{
    uint32_t k = p->n;
    if (r.lo >= r.hi)
        return;
    for (; k && p->r[k - 1].lo > r.lo; k--)
        p->r[k] = p->r[k - 1];
    p->r[k] = r;
    p->n++;
}

static void put_all(struct pieces *p, const struct gr_kv_evicted *evicted)
{
    for (uint32_t i = 0; i < evicted->n; i++)
        put(p, evicted->r[i]);
}

/* Merges ranges that are less than `gap` apart. */
static void join_near(struct pieces *p, int32_t gap)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        if (n && p->r[i].lo - (int64_t)p->r[n - 1].hi < gap)
            p->r[n - 1].hi = GR_MAX(p->r[n - 1].hi, p->r[i].hi);
        else
            p->r[n++] = p->r[i];
    p->n = n;
}

static struct gr_kv_evicted set_of(struct pieces *p)
{
    struct gr_kv_evicted evicted = {0};
    join_near(p, 1);
    while (p->n > GR_KV_N_EVICTED) {
        int32_t gap = INT32_MAX;
        for (uint32_t i = 1; i < p->n; i++)
            gap = GR_MIN(gap, p->r[i].lo - p->r[i - 1].hi);
        join_near(p, gap + 1);
    }
    for (; evicted.n < p->n; evicted.n++)
        evicted.r[evicted.n] = p->r[evicted.n];
    return evicted;
}

struct gr_kv_evicted gr_kv_evicted_with(const struct gr_kv_evicted *evicted,
                                        struct gr_kv_range more)
{
    struct pieces p = {0};
    put_all(&p, evicted);
    put(&p, more);
    return set_of(&p);
}

/* The positions `part` after an addition or a division; none after a removal. */
static struct gr_kv_range moved(const struct gr_kv_op *op, struct gr_kv_range part)
{
    int64_t lo = (int64_t)part.lo + op->by, hi = (int64_t)part.hi + op->by;
    if (op->kind == GR_KV_RM || part.lo >= part.hi)
        return (struct gr_kv_range){0, 0};
    if (op->kind == GR_KV_DIV)
        lo = part.lo / op->by, hi = (part.hi - 1) / op->by + 1;
    return (struct gr_kv_range){(int32_t)GR_MIN(GR_MAX(lo, 0), INT32_MAX),
                                (int32_t)GR_MIN(GR_MAX(hi, 0), INT32_MAX)};
}

struct gr_kv_evicted gr_kv_evicted_after(const struct gr_kv_op *op, struct gr_kv_range r,
                                         const struct gr_kv_evicted *evicted)
{
    struct pieces p = {0};
    for (uint32_t i = 0; i < evicted->n; i++) {
        put(&p, gr_kv_intersect(evicted->r[i], (struct gr_kv_range){0, r.lo}));
        put(&p, gr_kv_intersect(evicted->r[i], (struct gr_kv_range){r.hi, INT32_MAX}));
        put(&p, moved(op, gr_kv_intersect(evicted->r[i], r)));
    }
    return set_of(&p);
}

struct gr_kv_evicted gr_kv_evicted_beside(const struct gr_kv_op *op, struct gr_kv_range r,
                                          const struct gr_kv_evicted *evicted,
                                          const struct gr_kv_evicted *other)
{
    struct pieces p = {0};
    put_all(&p, evicted);
    for (uint32_t i = 0; i < evicted->n; i++)
        for (uint32_t k = 0; k < other->n; k++)
            put(&p, moved(op, gr_kv_intersect(gr_kv_intersect(evicted->r[i], other->r[k]), r)));
    return set_of(&p);
}

struct gr_kv_evicted gr_kv_evicted_copied(struct gr_kv_range r, const struct gr_kv_evicted *dst,
                                          const struct gr_kv_evicted *src, struct gr_kv_range rest)
{
    struct pieces p = {0};
    put_all(&p, dst);
    for (uint32_t i = 0; i < src->n; i++)
        put(&p, gr_kv_intersect(src->r[i], r));
    put(&p, rest);
    return set_of(&p);
}

struct gr_kv_range gr_kv_evicted_hull(const struct gr_kv_evicted *evicted)
{
    return evicted->n ? (struct gr_kv_range){evicted->r[0].lo, evicted->r[evicted->n - 1].hi}
                      : (struct gr_kv_range){0, 0};
}

int gr_kv_can_shift(const struct gr_kv *kv, int32_t seq, int32_t keep, int32_t n, int32_t end)
{
    const struct gr_kv_op add = {GR_KV_ADD, seq, 0, keep, end, -n};
    int32_t passed = GR_MAX(end - (int32_t)kv->p.n_cell, 0);
    struct gr_kv_evicted evicted =
        gr_kv_evicted_with(&kv->seq[seq].evicted, (struct gr_kv_range){0, passed});
    evicted = gr_kv_evicted_after(&add, (struct gr_kv_range){keep, end}, &evicted);
    return gr_kv_window_check(kv, seq, &evicted, end - n - 1);
}
