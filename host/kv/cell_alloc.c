/* Cell allocation: reserves cells for a batch, places its tokens, commits or aborts. */
#include <assert.h>

#include "base/alloc.h"
#include "gr/status.h"
#include "kv/cells.h"

static const struct gr_kv_range spare_none = {0, 0};

/* The first of n neighbouring free cells, at or after the head or else from cell 0 on; n_cell when
 * there are none. A run does not wrap around. */
static uint32_t find_run(const struct gr_kv *kv, const struct gr_kv_pool *pool, uint32_t head,
                         uint32_t n)
{
    for (uint32_t c = head, again = 0;;) {
        c = gr_kv_find(kv, pool, c, false);
        uint32_t stop = c < kv->p.n_cell ? gr_kv_find(kv, pool, c, true) : c;
        if (stop - c >= n)
            return c;
        c = stop;
        if (c == kv->p.n_cell && again++)
            return c;
        if (c == kv->p.n_cell)
            c = 0;
    }
}

/* The cell from which n free cells of a pool are to be searched; n_cell when there are too few.
 * Cells are evicted only when needed. */
static uint32_t search_from(struct gr_kv *kv, const struct gr_kv_pool *pool, uint32_t n)
{
    uint32_t head = pool->head, at[GR_SEQ_MAX];
    bool started = false;
    if (head > (uint64_t)pool->n_used + 2 * (uint64_t)n)
        head = 0;
    for (;;) {
        uint32_t c = kv->p.contiguous ? find_run(kv, pool, head, n) : head;
        if (c < kv->p.n_cell && gr_kv_free_cells(kv, pool) >= n)
            return c;
        for (uint32_t s = 0; !started && s < kv->p.n_seq_max; s++)
            at[s] = 0;
        started = true;
        if (!gr_kv_evict(kv, pool, -1, spare_none, at))
            return kv->p.n_cell;
    }
}

static void take(struct gr_kv *kv, uint32_t c, const struct gr_ubatch *ub, int32_t i)
{
    const struct gr_full_batch *b = ub->batch;
    struct gr_kv_cell_meta m = gr_kv_tok_meta(kv, ub, i);
    int32_t t = ub->tok[i];
    m.age = kv->clock++;
    gr_kv_cell_use(kv, c, m);
    for (int32_t k = 0; k < b->n_seq[t]; k++)
        gr_kv_cell_put(kv, c, b->seq[b->seq_at[t] + k]);
    kv->placed[kv->n_placed++] = c;
}

/* Places one micro-batch and moves the heads behind it. Returns NULL, or the pool that has too few
 * free cells. cells: NULL or as in gr_kv_place. */
static const struct gr_kv_pool *place(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t *cells)
{
    uint32_t n[GR_SEQ_MAX] = {0}, at[GR_SEQ_MAX];
    for (int32_t i = 0; i < ub->n_tok; i++)
        n[gr_kv_pool(kv, gr_kv_tok_seq(ub, i)) - kv->pool]++;
    for (uint32_t s = 0; s < kv->p.n_kv_pool; s++)
        if (n[s] && (at[s] = search_from(kv, &kv->pool[s], n[s])) == kv->p.n_cell)
            return &kv->pool[s];
    for (int32_t i = 0; i < ub->n_tok; i++) {
        const struct gr_kv_pool *pool = gr_kv_pool(kv, gr_kv_tok_seq(ub, i));
        uint32_t c = gr_kv_find_free(kv, pool, at[pool - kv->pool]);
        take(kv, pool->base + c, ub, i);
        at[pool - kv->pool] = c + 1;
        if (cells)
            cells[i] = (int32_t)(pool->base + c);
    }
    for (uint32_t s = 0; s < kv->p.n_kv_pool; s++)
        if (n[s])
            kv->pool[s].head = at[s] % kv->p.n_cell;
    return NULL;
}

/* Frees the cells placed since gr_kv_reserve and moves the heads back. */
static void rollback(struct gr_kv *kv)
{
    while (kv->n_placed) {
        uint32_t c = kv->placed[--kv->n_placed];
        if (kv->n_seq[c]) /* not evicted since */
            gr_kv_cell_empty(kv, c);
    }
    for (uint32_t s = 0; s < kv->p.n_kv_pool; s++)
        kv->pool[s].head = kv->pool[s].head0;
    kv->clock = kv->clock0;
}

/* ---- reserving ---- */

/* Numbers of tokens in a batch: per pool, and per sequence, where a token counts once for each
 * sequence it is in. */
struct wanted {
    uint64_t total;
    uint32_t pool[GR_SEQ_MAX], seq[GR_SEQ_MAX];
};

static int count(const struct gr_kv *kv, const struct gr_ubatch *ub, struct wanted *w)
{
    const struct gr_full_batch *b = ub->batch;
    for (int32_t i = 0; i < ub->n_tok; i++) {
        int32_t t = ub->tok[i];
        if (kv->p.n_kv_pool > 1 && b->n_seq[t] > 1)
            return gr_fail(GR_E_INVALID,
                           "batch token %d: one sequence expected, since each has cells of its "
                           "own, %d found; let all sequences share one pool (--kv-unified)",
                           t, b->n_seq[t]);
        for (int32_t k = 0; k < b->n_seq[t]; k++)
            w->seq[b->seq[b->seq_at[t] + k]]++;
        w->pool[gr_kv_pool(kv, gr_kv_tok_seq(ub, i)) - kv->pool]++;
    }
    w->total += (uint32_t)ub->n_tok;
    return 0;
}

static int fail_full(const struct gr_kv *kv, const struct gr_kv_pool *pool, const struct wanted *w)
{
    uint32_t s = (uint32_t)(pool - kv->pool), n = w->pool[s], n_free = gr_kv_free_cells(kv, pool);
    const char *but = n <= n_free        ? ", but not enough of them neighbours"
                      : kv->p.window > 0 ? ", and too few that the window has passed"
                                         : "";
    char whose[40] = "";
    if (kv->p.n_kv_pool > 1)
        snprintf(whose, sizeof whose, " of sequence %u", s);
    return gr_fail(GR_E_KV_FULL,
                   "the KV cache%s is full: %u tokens wanted, %u of %u cells free%s; remove "
                   "sequences or use a larger context",
                   whose, n, n_free, kv->p.n_cell, but);
}

/* Enlarges all arrays that placing appends to. */
static int reserve_arrays(struct gr_kv *kv, const struct wanted *w)
{
    for (uint32_t s = 0; s < kv->p.n_seq_max; s++) {
        struct gr_kv_seq *q = &kv->seq[s];
        uint64_t n = (uint64_t)q->n + w->seq[s];
        if (w->seq[s] && gr_kv_index_reserve(q, (uint32_t)GR_MIN(n, kv->p.n_cell)))
            return GR_E_NOMEM_HOST;
    }
    if (w->total <= kv->cap_placed)
        return 0;
    uint32_t *p = gr_realloc(kv->placed, w->total, sizeof *p);
    if (!p)
        return GR_E_NOMEM_HOST;
    kv->placed = p, kv->cap_placed = (uint32_t)w->total;
    return 0;
}

/* Allocates the log of everything that a dry run may evict. */
static int reserve_evictions(struct gr_kv *kv)
{
    uint64_t n = 0;
    for (uint32_t s = 0; kv->p.window > 0 && s < kv->p.n_seq_max; s++)
        n += kv->seq[s].n;
    if (n <= kv->cap_eviction)
        return 0;
    if (n > UINT32_MAX)
        return gr_fail(GR_E_NOMEM_HOST, "out of host memory: notes about %llu cells",
                       (unsigned long long)n);
    struct gr_kv_eviction *p = gr_realloc(kv->eviction, n, sizeof *p);
    if (!p)
        return GR_E_NOMEM_HOST;
    kv->eviction = p, kv->cap_eviction = (uint32_t)n;
    return 0;
}

/* Undoes a dry run: frees the placed cells and restores the evicted ones. */
static void undo(struct gr_kv *kv)
{
    rollback(kv);
    while (kv->n_eviction) {
        const struct gr_kv_eviction *g = &kv->eviction[--kv->n_eviction];
        if (!kv->n_seq[g->cell])
            gr_kv_cell_use(kv, g->cell, g->meta);
        gr_kv_cell_put(kv, g->cell, g->seq);
    }
    for (uint32_t s = 0; s < kv->p.n_seq_max; s++)
        kv->seq[s].evicted = kv->seq[s].evicted0;
}

/* Places all micro-batches to see whether they fit, then undoes it. */
static int dry_run(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_ub,
                   const struct wanted *w)
{
    const struct gr_kv_pool *full = NULL;
    int rc = reserve_evictions(kv);
    if (rc)
        return rc;
    kv->logging = true;
    for (int32_t u = 0; u < n_ub && !full; u++)
        full = place(kv, &ub[u], NULL);
    kv->logging = false;
    undo(kv);
    return full ? fail_full(kv, full, w) : 0;
}

/* Saves what abort and a dry run restore. */
static void remember(struct gr_kv *kv)
{
    for (uint32_t s = 0; s < kv->p.n_kv_pool; s++)
        kv->pool[s].head0 = kv->pool[s].head;
    for (uint32_t s = 0; s < kv->p.n_seq_max; s++)
        kv->seq[s].evicted0 = kv->seq[s].evicted, kv->seq[s].held = kv->seq[s].n > 0;
    kv->clock0 = kv->clock;
}

int gr_kv_reserve(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_ub)
{
    struct wanted w = {0};
    bool dry = kv->p.contiguous;
    int rc = 0;
    if (kv->busy)
        return gr_fail(GR_E_INTERNAL, "KV cache: a batch is under way already");
    for (int32_t u = 0; !rc && u < n_ub; u++)
        rc = count(kv, &ub[u], &w);
    for (uint32_t s = 0; !rc && s < kv->p.n_kv_pool; s++)
        if (w.pool[s] > gr_kv_free_cells(kv, &kv->pool[s])) {
            dry = true;
            rc = kv->p.window > 0 ? 0 : fail_full(kv, &kv->pool[s], &w);
        }
    if (!rc)
        rc = reserve_arrays(kv, &w);
    if (rc)
        return rc;
    remember(kv);
    rc = dry ? dry_run(kv, ub, n_ub, &w) : 0;
    kv->busy = !rc;
    assert(gr_kv_check(kv) == 0);
    return rc;
}

void gr_kv_place(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t *cells)
{
    const struct gr_kv_pool *full = place(kv, ub, cells);
    assert(!full && gr_kv_check(kv) == 0);
    (void)full;
}

void gr_kv_commit(struct gr_kv *kv)
{
    kv->busy = false;
    kv->n_placed = 0;
    assert(gr_kv_check(kv) == 0);
}

void gr_kv_abort(struct gr_kv *kv)
{
    if (!kv->busy)
        return;
    rollback(kv);
    for (uint32_t s = 0; s < kv->p.n_seq_max; s++)
        if (!kv->seq[s].held)
            kv->seq[s].evicted = kv->seq[s].evicted0;
    kv->busy = false;
    assert(gr_kv_check(kv) == 0);
}
