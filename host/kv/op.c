/* Sequence operations. */
#include <assert.h>
#include <string.h>

#include "gr/status.h"
#include "kv/cells.h"

/* A set of sequences, one bit each. */
struct seqs {
    uint64_t bit[GR_SEQ_MAX / 64];
};

static struct gr_kv_range range_of(const struct gr_kv_op *op)
{
    return (struct gr_kv_range){GR_MAX(op->p0, 0), op->p1 < 0 ? INT32_MAX : op->p1};
}

/* Finds the items [*i, *j) of a sequence whose positions are in a range. */
static void items_in(const struct gr_kv *kv, const struct gr_kv_seq *q, struct gr_kv_range r,
                     uint32_t *i, uint32_t *j)
{
    *i = gr_kv_index_below(kv, q, r.lo);
    *j = GR_MAX(gr_kv_index_below(kv, q, r.hi), *i);
}

static bool does_nothing(const struct gr_kv_op *op)
{
    struct gr_kv_range r = range_of(op);
    switch (op->kind) {
    case GR_KV_KEEP:
        return false;
    case GR_KV_CP:
        return r.lo >= r.hi || op->seq == op->dst;
    case GR_KV_ADD:
        return r.lo >= r.hi || op->by == 0;
    case GR_KV_DIV:
        return r.lo >= r.hi || op->by == 1;
    default:
        return r.lo >= r.hi;
    }
}

static bool copies(const struct gr_kv *kv, const struct gr_kv_op *op)
{
    return op->kind == GR_KV_DUP || (op->kind == GR_KV_CP && kv->p.n_kv_pool > 1);
}

static void add_seqs(const struct gr_kv *kv, uint32_t c, struct seqs *s)
{
    for (uint32_t w = 0; w < kv->n_set; w++)
        s->bit[w] |= kv->set[(size_t)c * kv->n_set + w];
}

/* The sequences that an addition or a division affects: its own, and those of shared cells. */
static struct seqs touched(const struct gr_kv *kv, const struct gr_kv_op *op)
{
    struct seqs s = {{0}};
    const struct gr_kv_seq *q = &kv->seq[op->seq];
    uint32_t i, j;
    s.bit[op->seq / 64] |= UINT64_C(1) << op->seq % 64;
    for (items_in(kv, q, range_of(op), &i, &j); i < j; i++)
        if (kv->n_seq[gr_kv_items(q)[i]] > 1)
            add_seqs(kv, gr_kv_items(q)[i], &s);
    return s;
}

/* ---- whether it can be done ---- */

static int check_seq(const struct gr_kv *kv, int32_t seq)
{
    if (seq < 0 || seq >= (int32_t)kv->p.n_seq_max)
        return gr_fail(GR_E_INVALID, "sequence: 0 to %u expected, %d found", kv->p.n_seq_max - 1,
                       seq);
    return 0;
}

static int check_args(const struct gr_kv *kv, const struct gr_kv_op *op)
{
    if (kv->busy)
        return gr_fail(GR_E_INTERNAL, "KV cache: changed while a batch is under way");
    if ((unsigned)op->kind > GR_KV_DIV)
        return gr_fail(GR_E_INVALID, "KV cache: operation: %d to %d expected, %d found", GR_KV_RM,
                       GR_KV_DIV, (int)op->kind);
    int rc = op->kind == GR_KV_RM && op->seq < 0 ? 0 : check_seq(kv, op->seq);
    if (!rc && (op->kind == GR_KV_CP || op->kind == GR_KV_DUP))
        rc = check_seq(kv, op->dst);
    if (!rc && op->kind == GR_KV_DIV && op->by < 1)
        rc =
            gr_fail(GR_E_INVALID, "sequence %d: divisor of positions: 1 or more expected, %d found",
                    op->seq, op->by);
    return rc;
}

/* Checks that no position, row or column exceeds GR_POS_MAX. */
static int check_growth(const struct gr_kv *kv, const struct gr_kv_op *op)
{
    const struct gr_kv_seq *q = &kv->seq[op->seq];
    uint32_t i, j;
    items_in(kv, q, range_of(op), &i, &j);
    if (op->by < 0 || i == j)
        return 0;
    if (!kv->row) /* the largest position is the last */
        i = j - 1;
    for (; i < j; i++) {
        struct gr_kv_cell_meta m = gr_kv_cell_meta(kv, gr_kv_items(q)[i]);
        int64_t top = (int64_t)m.pos + GR_MAX(0, GR_MAX(m.row, m.col));
        if (top + op->by > GR_POS_MAX)
            return gr_fail(GR_E_INVALID,
                           "sequence %d: position %lld + %d exceeds the largest one, %d", op->seq,
                           (long long)top, op->by, GR_POS_MAX);
    }
    return 0;
}

/* The position of a cell after an addition or a division; negative: the cell is freed. */
static int32_t new_pos(const struct gr_kv *kv, const struct gr_kv_op *op, uint32_t c)
{
    struct gr_kv_range r = range_of(op);
    int32_t pos = kv->pos[c];
    if (!gr_kv_has(kv, c, op->seq) || pos < r.lo || pos >= r.hi)
        return pos;
    return op->kind == GR_KV_ADD ? pos + op->by : pos / op->by;
}

/* Evicted positions of a sequence after an addition or a division on op->seq. */
static struct gr_kv_evicted evicted_after_move(const struct gr_kv *kv, const struct gr_kv_op *op,
                                               int32_t seq)
{
    const struct gr_kv_evicted *evicted = &kv->seq[seq].evicted, *other = &kv->seq[op->seq].evicted;
    if (seq == op->seq)
        return gr_kv_evicted_after(op, range_of(op), evicted);
    if (gr_kv_pool(kv, seq) != gr_kv_pool(kv, op->seq))
        return *evicted;
    return gr_kv_evicted_beside(op, range_of(op), evicted, other);
}

static int check_moved_window(const struct gr_kv *kv, const struct gr_kv_op *op)
{
    struct seqs t = touched(kv, op);
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max; s++) {
        const struct gr_kv_seq *q = &kv->seq[s];
        struct gr_kv_evicted evicted = evicted_after_move(kv, op, s);
        int32_t max = -1;
        if (!(t.bit[s / 64] >> s % 64 & 1) && !memcmp(&evicted, &q->evicted, sizeof evicted))
            continue;
        for (uint32_t i = 0; i < q->n; i++)
            max = GR_MAX(max, new_pos(kv, op, gr_kv_items(q)[i]));
        int rc = gr_kv_window_check(kv, s, &evicted, max);
        if (rc)
            return rc;
    }
    return 0;
}

static int check_rm_window(const struct gr_kv *kv, const struct gr_kv_op *op, int32_t seq)
{
    const struct gr_kv_seq *q = &kv->seq[seq];
    uint32_t i, j;
    items_in(kv, q, range_of(op), &i, &j);
    uint32_t last = j < q->n ? q->n : i; /* one past the last item that stays */
    struct gr_kv_evicted evicted = gr_kv_evicted_after(op, range_of(op), &q->evicted);
    return gr_kv_window_check(kv, seq, &evicted, last ? kv->pos[gr_kv_items(q)[last - 1]] : -1);
}

static int can_rm(const struct gr_kv *kv, const struct gr_kv_op *op)
{
    int rc = op->seq < 0 ? 0 : check_rm_window(kv, op, op->seq);
    for (int32_t s = 0; !rc && op->seq < 0 && s < (int32_t)kv->p.n_seq_max; s++)
        rc = check_rm_window(kv, op, s);
    return rc;
}

/* Evicted positions of dst after it shares cells of seq. */
static struct gr_kv_evicted evicted_after_share(const struct gr_kv *kv, const struct gr_kv_op *op)
{
    return gr_kv_evicted_copied(range_of(op), &kv->seq[op->dst].evicted, &kv->seq[op->seq].evicted,
                                (struct gr_kv_range){0, 0});
}

static int can_share(struct gr_kv *kv, const struct gr_kv_op *op)
{
    const struct gr_kv_seq *q = &kv->seq[op->seq];
    uint32_t i, j;
    items_in(kv, q, range_of(op), &i, &j);
    int32_t max = gr_kv_max_pos(kv, op->dst);
    if (i < j)
        max = GR_MAX(max, kv->pos[gr_kv_items(q)[j - 1]]);
    struct gr_kv_evicted evicted = evicted_after_share(kv, op);
    int rc = gr_kv_window_check(kv, op->dst, &evicted, max);
    struct gr_kv_seq *d = &kv->seq[op->dst];
    return rc ? rc
              : gr_kv_index_reserve(d, (uint32_t)GR_MIN((uint64_t)d->n + (j - i), kv->p.n_cell));
}

int gr_kv_can(struct gr_kv *kv, const struct gr_kv_op *op)
{
    int rc = check_args(kv, op);
    if (rc || does_nothing(op))
        return rc;
    if (copies(kv, op))
        return gr_kv_copy_can(kv, op, range_of(op));
    if (op->kind == GR_KV_RM)
        return can_rm(kv, op);
    if (op->kind == GR_KV_CP)
        return can_share(kv, op);
    if (op->kind == GR_KV_ADD)
        rc = check_growth(kv, op);
    return rc || op->kind == GR_KV_KEEP || kv->p.window <= 0 ? rc : check_moved_window(kv, op);
}

/* ---- doing it ---- */

/* Removes positions of a sequence. The next search begins at the first cell that was emptied, if
 * that is before the head. */
static void rm(struct gr_kv *kv, const struct gr_kv_op *op, int32_t seq)
{
    struct gr_kv_seq *q = &kv->seq[seq];
    struct gr_kv_pool *pool = gr_kv_pool(kv, seq);
    uint32_t i, j;
    items_in(kv, q, range_of(op), &i, &j);
    for (uint32_t k = i; k < j; k++) {
        uint32_t c = gr_kv_items(q)[k];
        gr_kv_cell_leave(kv, c, seq);
        if (!kv->n_seq[c])
            pool->head = GR_MIN(pool->head, c - pool->base);
    }
    if (i < j)
        gr_kv_index_cut(q, i, j);
    q->evicted = gr_kv_evicted_after(op, range_of(op), &q->evicted);
}

static void do_rm(struct gr_kv *kv, const struct gr_kv_op *op)
{
    for (int32_t s = 0; op->seq < 0 && s < (int32_t)kv->p.n_seq_max; s++)
        rm(kv, op, s);
    if (op->seq >= 0)
        rm(kv, op, op->seq);
}

static void do_keep(struct gr_kv *kv, const struct gr_kv_op *op)
{
    static const struct gr_kv_op all = {GR_KV_RM, 0, 0, -1, -1, 0};
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max; s++)
        if (s != op->seq)
            rm(kv, &all, s);
}

static void do_share(struct gr_kv *kv, const struct gr_kv_op *op)
{
    const struct gr_kv_seq *q = &kv->seq[op->seq];
    struct gr_kv_seq *d = &kv->seq[op->dst];
    uint32_t i, j;
    d->evicted = evicted_after_share(kv, op);
    for (items_in(kv, q, range_of(op), &i, &j); i < j; i++) {
        uint32_t c = gr_kv_items(q)[i];
        if (gr_kv_has(kv, c, op->dst))
            continue;
        gr_kv_cell_join(kv, c, op->dst);
        gr_kv_index_push(d, c);
    }
    gr_kv_index_sort(kv, op->dst);
}

/* Removes a cell from all its sequences; their indexes still name it. */
static void leave_all(struct gr_kv *kv, uint32_t c)
{
    for (uint32_t w = 0; w < kv->n_set; w++)
        for (uint64_t m = kv->set[(size_t)c * kv->n_set + w]; m; m &= m - 1)
            gr_kv_cell_leave(kv, c, (int32_t)w * 64 + __builtin_ctzll(m));
}

/* Performs an addition or a division. After an addition the next search begins at the first cell
 * that it freed, or at 0. */
static void do_move(struct gr_kv *kv, const struct gr_kv_op *op)
{
    const struct gr_kv_seq *q = &kv->seq[op->seq];
    struct gr_kv_pool *pool = gr_kv_pool(kv, op->seq);
    struct seqs t = touched(kv, op);
    uint32_t i, j, freed = UINT32_MAX;
    for (items_in(kv, q, range_of(op), &i, &j); i < j; i++) {
        uint32_t c = gr_kv_items(q)[i];
        int32_t pos = new_pos(kv, op, c);
        if (pos < 0) {
            leave_all(kv, c);
            freed = GR_MIN(freed, c - pool->base);
        } else {
            gr_kv_set_delta(kv, c, kv->delta[c] + (pos - kv->pos[c]));
            kv->pos[c] = pos;
        }
    }
    if (op->kind == GR_KV_ADD)
        pool->head = freed < kv->p.n_cell ? freed : 0;
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max; s++) {
        if (s != op->seq)
            kv->seq[s].evicted = evicted_after_move(kv, op, s);
        if (t.bit[s / 64] >> s % 64 & 1)
            gr_kv_index_sort(kv, s);
    }
    kv->seq[op->seq].evicted = evicted_after_move(kv, op, op->seq); /* last: others depend on it */
}

void gr_kv_do(struct gr_kv *kv, const struct gr_kv_op *op, struct gr_kv_moves *moves)
{
    *moves = (struct gr_kv_moves){0, NULL, NULL};
    if (does_nothing(op))
        return;
    if (copies(kv, op))
        gr_kv_copy_do(kv, op, range_of(op), moves);
    else if (op->kind == GR_KV_RM)
        do_rm(kv, op);
    else if (op->kind == GR_KV_KEEP)
        do_keep(kv, op);
    else if (op->kind == GR_KV_CP)
        do_share(kv, op);
    else
        do_move(kv, op);
    assert(gr_kv_check(kv) == 0);
}
