/* Operations that copy cells, and moving cells into holes. */
#include <assert.h>

#include "base/alloc.h"
#include "gr/status.h"
#include "kv/cells.h"

static int reserve_moves(struct gr_kv *kv, uint32_t n)
{
    if (n <= kv->cap_move)
        return 0;
    int32_t *p = gr_realloc(kv->move_src, n, sizeof *p);
    kv->move_src = p ? p : kv->move_src;
    int32_t *q = p ? gr_realloc(kv->move_dst, n, sizeof *q) : NULL;
    kv->move_dst = q ? q : kv->move_dst;
    if (!q)
        return GR_E_NOMEM_HOST;
    kv->cap_move = n;
    return 0;
}

/* Returns whether dst lacks a cell of its own for cell c of seq. */
static bool wanted(const struct gr_kv *kv, const struct gr_kv_op *op, uint32_t c)
{
    if (gr_kv_has(kv, c, op->dst))
        return kv->n_seq[c] > 1;
    return !gr_kv_index_has_copy(kv, &kv->seq[op->dst], c);
}

/* Returns the number of cells to copy; src, unless it is NULL, receives them. */
static uint32_t list_wanted(const struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_range r,
                            int32_t *src)
{
    const struct gr_kv_seq *q = &kv->seq[op->seq];
    uint32_t n = 0, i = gr_kv_index_below(kv, q, r.lo), j = gr_kv_index_below(kv, q, r.hi);
    for (; i < j; i++) {
        uint32_t c = gr_kv_items(q)[i];
        if (!wanted(kv, op, c))
            continue;
        if (src)
            src[n] = (int32_t)c;
        n++;
    }
    return n;
}

/* The largest position of dst after the copy. */
static int32_t max_after(const struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_range r)
{
    const struct gr_kv_seq *q = &kv->seq[op->seq];
    uint32_t j = gr_kv_index_below(kv, q, r.hi);
    int32_t max = j ? kv->pos[gr_kv_items(q)[j - 1]] : -1, own = gr_kv_max_pos(kv, op->dst);
    return max >= r.lo ? GR_MAX(max, own) : own;
}

/* The part of the range that is copied: all of it; with a window, when there is no room for all,
 * what dst's next token sees, and at least the last position. */
static struct gr_kv_range chosen(const struct gr_kv *kv, const struct gr_kv_op *op,
                                 struct gr_kv_range r)
{
    int32_t max = max_after(kv, op, r);
    if (kv->p.window <= 0 ||
        list_wanted(kv, op, r, NULL) <= gr_kv_free_cells(kv, gr_kv_pool(kv, op->dst)))
        return r;
    int64_t lo = GR_MAX(GR_MIN(gr_kv_visible(kv, max), max), r.lo);
    return (struct gr_kv_range){(int32_t)GR_MIN(lo, r.hi), r.hi};
}

/* Evicted positions of dst after the copy: its own, those of seq and those left out. */
static struct gr_kv_evicted evicted_after(const struct gr_kv *kv, const struct gr_kv_op *op,
                                          struct gr_kv_range r, struct gr_kv_range part)
{
    const struct gr_kv_seq *q = &kv->seq[op->seq];
    uint32_t i = gr_kv_index_below(kv, q, r.lo), j = gr_kv_index_below(kv, q, part.lo);
    struct gr_kv_range rest = {0, 0};
    if (i < j)
        rest = (struct gr_kv_range){kv->pos[gr_kv_items(q)[i]], kv->pos[gr_kv_items(q)[j - 1]] + 1};
    return gr_kv_evicted_copied(r, &kv->seq[op->dst].evicted, &q->evicted, rest);
}

int gr_kv_copy_can(struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_range r)
{
    struct gr_kv_pool *pool = gr_kv_pool(kv, op->dst);
    struct gr_kv_seq *d = &kv->seq[op->dst];
    struct gr_kv_range part = chosen(kv, op, r);
    uint32_t n = list_wanted(kv, op, part, NULL), n_free = gr_kv_free_cells(kv, pool);
    struct gr_kv_evicted evicted = evicted_after(kv, op, r, part);
    int rc = gr_kv_window_check(kv, op->dst, &evicted, max_after(kv, op, r));
    if (!rc && n > n_free && n > n_free + gr_kv_n_evictable(kv, pool, op->seq, part, n - n_free))
        rc = gr_fail(GR_E_KV_FULL,
                     "the KV cache is full: %u cells of sequence %d to copy, %u of %u free; remove "
                     "sequences or use a larger context",
                     n, op->seq, n_free, kv->p.n_cell);
    if (!rc)
        rc = reserve_moves(kv, n);
    return rc ? rc : gr_kv_index_reserve(d, (uint32_t)GR_MIN((uint64_t)d->n + n, kv->p.n_cell));
}

/* Removes dst from the cells in the range that it shares with seq. */
static void leave_shared(struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_range r)
{
    struct gr_kv_seq *d = &kv->seq[op->dst];
    uint32_t i = gr_kv_index_below(kv, d, r.lo), j = gr_kv_index_below(kv, d, r.hi);
    for (; i < j; i++) {
        uint32_t c = gr_kv_items(d)[i];
        if (kv->n_seq[c] > 1 && gr_kv_has(kv, c, op->seq))
            gr_kv_cell_leave(kv, c, op->dst);
    }
    gr_kv_index_sort(kv, op->dst);
}

void gr_kv_copy_do(struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_range r,
                   struct gr_kv_moves *moves)
{
    struct gr_kv_pool *pool = gr_kv_pool(kv, op->dst);
    struct gr_kv_range part = chosen(kv, op, r);
    uint32_t n = list_wanted(kv, op, part, kv->move_src), c = pool->head, at[GR_SEQ_MAX] = {0};
    kv->seq[op->dst].evicted = evicted_after(kv, op, r, part);
    while (gr_kv_free_cells(kv, pool) < n)
        gr_kv_evict(kv, pool, op->seq, part, at);
    leave_shared(kv, op, r);
    for (uint32_t i = 0; i < n; i++) {
        c = gr_kv_find_free(kv, pool, c);
        kv->move_dst[i] = (int32_t)(pool->base + c);
        gr_kv_cell_use(kv, pool->base + c, gr_kv_cell_meta(kv, (uint32_t)kv->move_src[i]));
        gr_kv_cell_put(kv, pool->base + c, op->dst);
    }
    if (n)
        pool->head = c + 1 < kv->p.n_cell ? c + 1 : 0;
    *moves = (struct gr_kv_moves){n, kv->move_src, kv->move_dst};
}

/* ---- packing ---- */

/* Pairs the cells of a pool behind its first n_used ones with the holes before; returns their
 * number. src and dst may be NULL. */
static uint32_t pair_holes(const struct gr_kv *kv, const struct gr_kv_pool *pool, int32_t *src,
                           int32_t *dst)
{
    uint32_t n = 0, hole = 0;
    for (uint32_t c = gr_kv_find(kv, pool, pool->n_used, true); c < kv->p.n_cell;
         c = c + 1 < kv->p.n_cell ? gr_kv_find(kv, pool, c + 1, true) : kv->p.n_cell) {
        hole = gr_kv_find(kv, pool, hole, false);
        if (src)
            src[n] = (int32_t)(pool->base + c), dst[n] = (int32_t)(pool->base + hole);
        n++, hole++;
    }
    return n;
}

/* Moves the metadata of a cell; the indexes of its sequences still name the old one. */
static void move_cell(struct gr_kv *kv, uint32_t src, uint32_t dst)
{
    gr_kv_cell_use(kv, dst, gr_kv_cell_meta(kv, src));
    for (uint32_t w = 0; w < kv->n_set; w++)
        for (uint64_t m = kv->set[(size_t)src * kv->n_set + w]; m; m &= m - 1) {
            int32_t s = (int32_t)w * 64 + __builtin_ctzll(m);
            gr_kv_cell_join(kv, dst, s);
            gr_kv_cell_leave(kv, src, s);
        }
}

/* Replaces moved cells in the index of a sequence; scratch[old cell - base] is the new cell. */
static void rename_items(struct gr_kv *kv, int32_t seq, uint32_t base)
{
    const struct gr_kv_seq *q = &kv->seq[seq];
    for (uint32_t i = 0; i < q->n; i++) {
        uint32_t *c = &gr_kv_items(q)[i];
        *c = gr_kv_has(kv, *c, seq) ? *c : kv->scratch[*c - base];
    }
}

/* Fills the holes of pool k with its last cells and updates the indexes. */
static uint32_t pack(struct gr_kv *kv, uint32_t k, int32_t *src, int32_t *dst)
{
    struct gr_kv_pool *pool = &kv->pool[k];
    uint32_t n = pair_holes(kv, pool, src, dst);
    for (uint32_t i = 0; i < n; i++) {
        move_cell(kv, (uint32_t)src[i], (uint32_t)dst[i]);
        kv->scratch[(uint32_t)src[i] - pool->base] = (uint32_t)dst[i];
    }
    for (int32_t s = 0; n && s < (int32_t)kv->p.n_seq_max; s++)
        if (gr_kv_pool(kv, s) == pool)
            rename_items(kv, s, pool->base);
    for (int32_t s = 0; n && s < (int32_t)kv->p.n_seq_max; s++)
        if (gr_kv_pool(kv, s) == pool)
            gr_kv_index_sort(kv, s);
    pool->head = pool->n_used % kv->p.n_cell;
    return n;
}

int gr_kv_can_pack(struct gr_kv *kv)
{
    uint32_t n = 0;
    if (kv->busy)
        return gr_fail(GR_E_INTERNAL, "KV cache: packed while a batch is under way");
    for (uint32_t s = 0; s < kv->p.n_kv_pool; s++)
        n += pair_holes(kv, &kv->pool[s], NULL, NULL);
    return reserve_moves(kv, n);
}

int gr_kv_pack(struct gr_kv *kv, struct gr_kv_moves *moves)
{
    uint32_t n = 0;
    *moves = (struct gr_kv_moves){0, NULL, NULL};
    int rc = gr_kv_can_pack(kv);
    if (rc)
        return rc;
    for (uint32_t s = 0; s < kv->p.n_kv_pool; s++)
        n += pack(kv, s, kv->move_src + n, kv->move_dst + n);
    *moves = (struct gr_kv_moves){n, kv->move_src, kv->move_dst};
    assert(gr_kv_check(kv) == 0);
    return 0;
}
