/* Random operations, and every short sequence of a few, against the naive model. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "gr/status.h"
#include "help.h"
#include "model.h"

#define N_TOK 24

#ifdef NDEBUG
#define PART 1
#else
#define PART 16 /* every operation checks the whole cache by itself, and sanitizers are slow */
#endif

/* An assertion without the cost of telling of the many that hold. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            cr_assert_fail(#condition " " __VA_ARGS__);                                            \
    } while (0)

/* Content of a row of K: the token, and the positions that it is rotated to, near and far. */
struct k_row {
    uint64_t id;
    int64_t near, far;
};

struct run {
    struct gr_kv *kv;
    struct model level[6]; /* of the exhaustive walk */
    struct model m, ideal; /* ideal: the same cache without ever giving up cells */
    struct k_row k[M_CELL];
    struct gr_rng r;
    int64_t n_op, n_batch, n_full, n_unsupported, n_moved, n_eviction, n_incomplete, n_seen, n_kept;
};

static int32_t below(struct run *t, int32_t n)
{
    return (int32_t)gr_rng_below(&t->r, (uint32_t)n);
}

static void start(struct run *t, struct gr_kv_params p, uint64_t seed)
{
    t->kv = cache_of(p);
    t->r = gr_rng_new(seed);
    m_new(&t->m, p);
    p.n_cell = M_CELL / p.n_kv_pool, p.contiguous = false;
    m_new(&t->ideal, p);
    t->ideal.ideal = true;
}

/* ---- comparing ---- */

static void expect_cells(const struct run *t)
{
    int32_t end = 0;
    bool shift = false;
    for (int32_t c = 0; c < t->m.n_cell; c++) {
        struct gr_cell got = gr_kv_cell(t->kv, (uint32_t)c);
        const struct m_cell *x = &t->m.cell[c];
        CHECK(got.pos == x->pos && got.delta == x->delta, "cell %d: (%d, %d), model (%d, %d)", c,
              got.pos, got.delta, (int)x->pos, (int)x->delta);
        CHECK(!x->seqs || (got.row == x->row && got.col == x->col), "cell %d", c);
        CHECK(got.n_seq == __builtin_popcountll(x->seqs), "cell %d", c);
        CHECK(got.seq == (x->seqs ? __builtin_ctzll(x->seqs) : -1), "cell %d", c);
        for (int32_t s = 0; got.n_seq > 1 && s < (int32_t)t->m.p.n_seq_max; s++)
            CHECK(gr_kv_cell_has(t->kv, (uint32_t)c, s) == (x->seqs >> s & 1), "cell %d", c);
        end = x->seqs ? c + 1 : end;
        shift |= x->delta != 0;
    }
    int32_t pad = (int32_t)t->m.p.n_pad;
    CHECK(gr_kv_n_kv(t->kv) == GR_MIN(GR_MAX(GR_PAD(end, pad), pad), t->m.n_cell));
    CHECK(gr_kv_has_shift(t->kv) == shift);
    CHECK(gr_kv_n_used(t->kv) == (uint32_t)m_used(&t->m));
    for (uint32_t s = 0; s < t->m.p.n_kv_pool; s++)
        CHECK(gr_kv_head(t->kv, s) == (uint32_t)t->m.head[s], "head %u, model %d",
              gr_kv_head(t->kv, s), t->m.head[s]);
}

/* K is what the cells say, once it is rotated by the deltas. */
static void expect_k(const struct run *t)
{
    int32_t n = gr_kv_n_kv(t->kv), group = GR_MAX(t->m.p.group, 1), near[M_CELL], far[M_CELL];
    gr_kv_deltas(t->kv, n, false, near);
    gr_kv_deltas(t->kv, n, true, far);
    for (int32_t c = 0; c < n; c++) {
        const struct m_cell *x = &t->m.cell[c];
        CHECK(x->seqs || (!near[c] && !far[c]), "cell %d", c);
        CHECK(!x->seqs || (t->k[c].id == x->id && t->k[c].near + near[c] == x->pos &&
                           t->k[c].far + far[c] == x->pos / group),
              "cell %d", c);
    }
}

static void expect_evicted(const struct run *t, int32_t seq)
{
    const struct gr_kv_evicted *evicted = &t->kv->seq[seq].evicted;
    for (int64_t p = 0, i = 0; t->m.p.window && p < M_POS; p++) {
        i += i < evicted->n && p >= evicted->r[i].hi;
        CHECK(m_is_evicted(&t->m, seq, p) == (i < evicted->n && p >= evicted->r[i].lo),
              "sequence %d: position %d", seq, (int)p);
    }
}

static void expect_seqs(const struct run *t)
{
    int32_t cells[M_CELL];
    for (int32_t s = 0; s < (int32_t)t->m.p.n_seq_max; s++) {
        int32_t n = m_sorted(&t->m, s, cells), shared = 0;
        for (int32_t i = 0; i < n; i++)
            shared += __builtin_popcountll(t->m.cell[cells[i]].seqs) > 1;
        CHECK(gr_kv_seq_cells(t->kv, s) == (uint32_t)n &&
              gr_kv_seq_shared(t->kv, s) == (uint32_t)shared);
        CHECK(gr_kv_cells_pos_min(t->kv, s) == (n ? t->m.cell[cells[0]].pos : -1));
        CHECK(gr_kv_cells_pos_max(t->kv, s) == m_max(&t->m, s));
        CHECK(gr_kv_incomplete(t->kv, s) == m_incomplete(&t->m, s));
        expect_evicted(t, s);
        CHECK(!t->m.p.window || m_max(&t->m, s) == m_max(&t->ideal, s), "sequence %d", s);
    }
}

static void expect_same(const struct run *t)
{
    CHECK(gr_kv_check(t->kv) == 0, "%s", gr_error());
    expect_cells(t);
    expect_k(t);
    expect_seqs(t);
}

/* ---- what tokens see ---- */

static void place_of(const struct gr_ubatch *ub, int32_t i, int32_t place[3])
{
    const struct gr_full_batch *b = ub->batch;
    place[0] = b->pos[ub->tok[i]], place[1] = b->row[ub->tok[i]], place[2] = b->col[ub->tok[i]];
}

/* The numbers of the dense mask are those of the definition. */
static void expect_dense(struct run *t, const struct gr_ubatch *ub, bool causal)
{
    static float dense[M_CELL * (N_TOK + 31)];
    bool alibi = below(t, 2);
    int32_t n_kv = gr_kv_n_kv(t->kv), pad = below(t, 2) ? 1 : 32, place[3];
    gr_kv_mask_dense(t->kv, ub, n_kv, causal, alibi, pad, dense);
    for (int32_t i = 0; i < GR_PAD(ub->n_tok, pad); i++)
        for (int32_t c = 0; c < n_kv; c++) {
            float want = -INFINITY;
            if (i < ub->n_tok) {
                place_of(ub, i, place);
                if (m_sees(&t->m, &t->m.cell[c], gr_kv_tok_seq(ub, i), place, causal))
                    want = alibi ? -(float)llabs(t->m.cell[c].pos - place[0]) : 0;
            }
            CHECK(dense[i * n_kv + c] == want, "row %d cell %d", i, c);
        }
}

/* Lists as they are written from one micro-batch to the next, and a copy that gets the reported
 * changes alone. */
static struct lists {
    int32_t item[N_TOK * 768], key[N_TOK * 768];
} written, copied;

static void fill(struct run *t, const struct gr_ubatch *ub, bool causal, int32_t neighbours,
                 int32_t *span)
{
    int64_t n = gr_kv_list(t->kv, ub);
    bool kept = below(t, 8);
    CHECK(n <= (int64_t)GR_COUNT(written.item));
    CHECK(t->m.p.n_kv_pool == 1 || n <= gr_kv_list_capacity(&t->m.p));
    if (!kept) {
        memset(written.item, 0xff, (size_t)n * 4), memset(written.key, 0xff, (size_t)n * 4);
        memset(copied.item, 0xff, (size_t)n * 4), memset(copied.key, 0xff, (size_t)n * 4);
    }
    struct gr_kv_range r =
        gr_kv_fill(t->kv, ub, causal, neighbours, kept, written.item, span, written.key);
    CHECK(r.lo >= 0 && r.lo <= r.hi && r.hi <= n);
    size_t bytes = (size_t)(r.hi - r.lo) * sizeof(int32_t);
    memcpy(copied.item + r.lo, written.item + r.lo, bytes);
    memcpy(copied.key + r.lo, written.key + r.lo, bytes);
    t->n_kept += kept && r.hi - r.lo < n;
}

/* The list has, sequence by sequence, the cells in order; the spans are what tokens see. */
static void expect_list(struct run *t, const struct gr_ubatch *ub, bool causal)
{
    static int32_t sorted[M_CELL], span[N_TOK * 3];
    const int32_t *list = copied.item, *key = copied.key;
    int32_t at[M_SEQ], n = 0, neighbours = below(t, 2) ? 0 : 1 + below(t, 20), place[3];
    fill(t, ub, causal, neighbours, span);
    memset(at, 0xff, sizeof at);
    for (int32_t i = 0; i < ub->n_tok; i++) {
        int32_t s = gr_kv_tok_seq(ub, i), n_sorted = m_sorted(&t->m, s, sorted), seen = 0, near = 0;
        if (at[s] < 0) {
            at[s] = n, n += GR_PAD(GR_MAX(n_sorted, 1), 256);
            CHECK(!memcmp(list + at[s], sorted, (size_t)n_sorted * sizeof *sorted));
        }
        place_of(ub, i, place);
        for (int32_t k = 0; k < n_sorted; k++) {
            bool sees = m_sees(&t->m, &t->m.cell[sorted[k]], s, place, causal);
            int32_t j = at[s] + k;
            CHECK(key[j] == t->m.cell[sorted[k]].pos);
            CHECK(sees == (j >= span[i * 3] && j < span[i * 3 + 2]), "token %d item %d", i, k);
            seen += sees;
            near += sees && neighbours && place[0] - key[j] < neighbours;
        }
        CHECK(span[i * 3 + 2] - span[i * 3] == seen);
        CHECK(span[i * 3 + 2] - span[i * 3 + 1] == (neighbours ? near : seen));
        t->n_seen += seen;
    }
    CHECK(n == gr_kv_list(t->kv, ub));
}

/* With a window, a token sees what it would if nothing had ever been evicted. */
static void expect_ideal(struct run *t, const struct gr_ubatch *ub)
{
    int32_t place[3];
    for (int32_t i = 0; i < ub->n_tok; i++) {
        int32_t s = gr_kv_tok_seq(ub, i), n = 0;
        place_of(ub, i, place);
        for (int32_t c = 0; c < t->m.n_cell; c++)
            n += m_sees(&t->m, &t->m.cell[c], s, place, true);
        for (int32_t d = 0; d < t->ideal.n_cell; d++) {
            const struct m_cell *x = &t->ideal.cell[d];
            bool found = !m_sees(&t->ideal, x, s, place, true);
            n -= !found;
            for (int32_t c = 0; c < t->m.n_cell && !found; c++)
                found = t->m.cell[c].seqs >> s & 1 && t->m.cell[c].id == x->id &&
                        t->m.cell[c].pos == x->pos && t->m.cell[c].row == x->row;
            CHECK(found, "token at %d of sequence %d misses %d", place[0], s, (int)x->pos);
        }
        CHECK(n == 0, "token at %d of sequence %d: %d too many", place[0], s, n);
    }
}

/* ---- batches ---- */

struct random_batch {
    struct gr_full_batch b;
    int32_t pos[N_TOK], row[N_TOK], col[N_TOK], n_seq[N_TOK], seq_at[N_TOK], seq[N_TOK * 3];
    int32_t tok[N_TOK];
    struct gr_ubatch ub[N_TOK];
    int32_t n_ub;
};

/* With a window every sequence goes on where it ends, otherwise anywhere. */
static void make_batch(struct run *t, struct random_batch *x)
{
    int32_t n_seq = (int32_t)t->m.p.n_seq_max, at = 0, next[M_SEQ], seq = below(t, n_seq);
    int32_t n_tok = 1 + below(t, below(t, 4) ? 4 : N_TOK);
    memset(x, 0, sizeof *x);
    for (int32_t s = 0; s < n_seq; s++) {
        int64_t max = m_max(&t->m, s);
        next[s] = t->m.p.window ? (int32_t)(max < 0 ? below(t, 6) : max + 1) : below(t, 40);
    }
    for (int32_t i = 0; i < n_tok; i++) {
        seq = below(t, 4) ? seq : below(t, n_seq);
        x->seq_at[i] = at, x->tok[i] = i;
        x->n_seq[i] = t->m.p.n_kv_pool > 1 || below(t, 4) ? 1 : 1 + below(t, GR_MIN(3, n_seq));
        for (int32_t k = 0; k < x->n_seq[i]; k++, at++) {
            x->seq[at] = (seq + k) % n_seq;
            next[seq] = GR_MAX(next[seq], next[x->seq[at]]);
        }
        if (t->m.p.pos_2d && next[seq] && below(t, 2) && (i || m_max(&t->m, seq) >= 0))
            next[seq]--; /* another one of an image */
        x->pos[i] = next[seq];
        x->row[i] = x->pos[i] + below(t, 3), x->col[i] = x->pos[i] + below(t, 3);
        for (int32_t k = 0; k < x->n_seq[i]; k++)
            next[(seq + k) % n_seq] = x->pos[i] + 1;
    }
    x->b = (struct gr_full_batch){.n_tok = n_tok, .pos = x->pos, .row = x->row, .col = x->col};
    x->b.n_seq = x->n_seq, x->b.seq = x->seq, x->b.seq_at = x->seq_at;
    struct gr_ubatch all = {&x->b, x->tok, n_tok, 0, 0};
    x->n_ub = cut(&all, 1 + below(t, N_TOK), x->ub);
}

/* Places a micro-batch in the cache and in both models. */
static void place(struct run *t, const struct gr_ubatch *ub)
{
    int32_t cells[N_TOK], want[N_TOK], far[N_TOK], group = GR_MAX(t->m.p.group, 1);
    CHECK(m_place(&t->m, ub, want));
    gr_kv_place(t->kv, ub, cells);
    for (int32_t i = 0; i < ub->n_tok; i++) {
        int32_t pos = ub->batch->pos[ub->tok[i]];
        CHECK(cells[i] == want[i], "token %d: cell %d, model %d", i, cells[i], want[i]);
        t->k[cells[i]] = (struct k_row){t->m.cell[cells[i]].id, pos, pos / group};
    }
    if (t->m.p.window) {
        CHECK(m_place(&t->ideal, ub, far));
        expect_ideal(t, ub);
    }
    if (below(t, 4))
        return;
    bool causal = below(t, 3);
    expect_dense(t, ub, causal);
    expect_list(t, ub, causal);
}

/* Takes the batch back; what a window has let go meanwhile is missing, so the sequence goes. */
static void rollback(struct run *t, const struct model *before, const struct model *ideal)
{
    struct m_moves mv;
    gr_kv_abort(t->kv);
    m_abort(&t->m, before);
    m_copy(&t->ideal, ideal);
    for (int32_t s = 0; s < (int32_t)t->m.p.n_seq_max; s++) {
        struct gr_kv_op all = {GR_KV_RM, s, 0, -1, -1, 0};
        CHECK(gr_kv_incomplete(t->kv, s) == m_incomplete(&t->m, s), "sequence %d", s);
        if (!gr_kv_incomplete(t->kv, s))
            continue;
        CHECK(rm(t->kv, s, -1, -1) == 0 && m_op(&t->m, &all, &mv) == 0 &&
              m_op(&t->ideal, &all, &mv) == 0 && !gr_kv_incomplete(t->kv, s));
        t->n_incomplete++;
    }
}

static void do_batch(struct run *t)
{
    static struct random_batch x;
    static struct model before, ideal, dry;
    int32_t cells[N_TOK];
    bool fits = true;
    make_batch(t, &x);
    m_copy(&before, &t->m), m_copy(&dry, &t->m), m_copy(&ideal, &t->ideal);
    dry.n_eviction = 0;
    for (int32_t u = 0; u < x.n_ub && fits; u++)
        fits = m_place(&dry, &x.ub[u], cells);
    CHECK(gr_kv_reserve(t->kv, x.ub, x.n_ub) == (fits ? 0 : GR_E_KV_FULL), "%s", gr_error());
    expect_cells(t);
    t->n_batch++, t->n_full += !fits;
    if (!fits)
        return;
    bool commit = below(t, 4);
    int32_t n = commit ? x.n_ub : below(t, x.n_ub + 1);
    t->m.n_eviction = 0;
    for (int32_t u = 0; u < n; u++)
        place(t, &x.ub[u]);
    t->n_eviction += t->m.n_eviction;
    if (commit)
        gr_kv_commit(t->kv);
    else
        rollback(t, &before, &ideal);
}

/* ---- operations ---- */

static void expect_moves(struct run *t, const struct gr_kv_moves *got, const struct m_moves *want)
{
    CHECK(got->n == (uint32_t)want->n, "%u moves, model %d", got->n, want->n);
    for (uint32_t i = 0; i < got->n; i++) {
        CHECK(got->src[i] == want->src[i] && got->dst[i] == want->dst[i],
              "%d to %d, model %d to %d", got->src[i], got->dst[i], want->src[i], want->dst[i]);
        t->k[got->dst[i]] = t->k[got->src[i]];
    }
    for (uint32_t i = 0; i < got->n; i++)
        for (uint32_t j = 0; j < got->n; j++)
            CHECK(got->src[i] != got->dst[j]);
    t->n_moved += got->n;
}

static void operate(struct run *t, const struct gr_kv_op *op)
{
    struct m_moves want, none;
    int rc = m_op(&t->m, op, &want), got = gr_kv_can(t->kv, op);
    CHECK(got == rc, "operation %d of %d on %d, %d: %d expected, %d found: %s", op->kind,
          (int)t->n_op, op->seq, op->dst, rc, got, gr_error());
    t->n_unsupported += rc == GR_E_UNSUPPORTED;
    t->n_full += rc == GR_E_KV_FULL;
    if (rc)
        return;
    gr_kv_do(t->kv, op, &moves);
    expect_moves(t, &moves, &want);
    if (t->m.p.window)
        CHECK(m_op(&t->ideal, op, &none) == 0);
}

static void random_op(struct run *t)
{
    int32_t n_seq = (int32_t)t->m.p.n_seq_max, p0 = below(t, 50) - 5, kind = below(t, 21);
    struct gr_kv_op op = {GR_KV_RM, below(t, n_seq), below(t, n_seq), p0, -1, 0};
    if (below(t, 3))
        op.p1 = p0 + below(t, 30) - 3;
    if (!below(t, 4))
        op.p0 = -1;
    if (kind < 4) {
        op.seq = kind == 3 && !below(t, 4) ? -1 : op.seq;
    } else if (kind < 10) {
        op.kind = kind < 7 ? GR_KV_CP : GR_KV_DUP;
    } else if (kind < 17) {
        op.kind = GR_KV_ADD, op.by = below(t, 41) - 22;
        if (t->m.p.window ? m_max(&t->m, op.seq) > 200 : !below(t, 16))
            op.by = t->m.p.window ? -150 : below(t, 2) ? INT32_MIN + below(t, 9) : 1 << 30;
    } else if (kind < 19) {
        op.kind = GR_KV_DIV, op.by = 1 + below(t, 4);
    } else if (kind < 20) {
        op.kind = below(t, 4) ? GR_KV_RM : GR_KV_KEEP;
        op.p0 = op.p1 = -1;
    } else {
        op.p0 = op.p1 = -1;
    }
    operate(t, &op);
}

static void pack(struct run *t)
{
    struct m_moves want;
    m_pack(&t->m, &want);
    CHECK(gr_kv_pack(t->kv, &moves) == 0);
    expect_moves(t, &moves, &want);
}

static void shift(struct run *t)
{
    int32_t n = gr_kv_n_kv(t->kv), near[M_CELL], far[M_CELL];
    gr_kv_deltas(t->kv, n, false, near);
    gr_kv_deltas(t->kv, n, true, far);
    gr_kv_shifted(t->kv);
    for (int32_t c = 0; c < n; c++)
        t->k[c].near += near[c], t->k[c].far += far[c], t->m.cell[c].delta = 0;
}

static void clear(struct run *t)
{
    uint64_t clock = t->m.clock;
    gr_kv_cells_clear(t->kv);
    m_new(&t->m, t->m.p);
    m_new(&t->ideal, t->ideal.p);
    t->ideal.ideal = true;
    t->m.clock = t->ideal.clock = clock;
}

static void random_step(struct run *t)
{
    int32_t what = below(t, 100);
    for (int32_t s = 0; t->m.p.window && s < (int32_t)t->m.p.n_seq_max; s++)
        if (m_max(&t->m, s) > M_POS / 2)
            operate(t, &(struct gr_kv_op){GR_KV_RM, s, 0, -1, -1, 0});
    if (t->m.p.window && m_used(&t->ideal) > t->ideal.n_cell / (int32_t)t->m.p.n_kv_pool / 2)
        clear(t);
    if (what < 45)
        do_batch(t);
    else if (what < 92)
        random_op(t);
    else if (what < 97)
        shift(t);
    else if (what < 99 || below(t, 4))
        pack(t);
    else
        clear(t);
    t->n_op++;
    expect_same(t);
}

static const struct config {
    struct gr_kv_params p;
    int32_t n_op;
} configs[] = {
    {{.n_cell = 24, .n_kv_pool = 1, .n_seq_max = 3, .n_pad = 32}, 250000},
    {{.n_cell = 50, .n_kv_pool = 1, .n_seq_max = 4, .n_pad = 32, .group = 3}, 100000},
    {{.n_cell = 96, .n_kv_pool = 1, .n_seq_max = 40, .n_pad = 64}, 20000},
    {{.n_cell = 33, .n_kv_pool = 1, .n_seq_max = 3, .n_pad = 32, .contiguous = true}, 110000},
    {{.n_cell = 21, .n_kv_pool = 3, .n_seq_max = 3, .n_pad = 32, .group = 2}, 100000},
    {{.n_cell = 40, .n_kv_pool = 2, .n_seq_max = 2, .n_pad = 32, .contiguous = true}, 60000},
    {{.n_cell = 30, .n_kv_pool = 1, .n_seq_max = 2, .n_pad = 32, .pos_2d = true}, 80000},
    {{.n_cell = 24, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 32, .window = 8}, 50000},
    {{.n_cell = 40, .n_kv_pool = 1, .n_seq_max = 3, .n_pad = 32, .window = 8}, 70000},
    {{.n_cell = 20, .n_kv_pool = 2, .n_seq_max = 2, .n_pad = 32, .window = 6}, 60000},
    {{.n_cell = 20, .n_kv_pool = 1, .n_seq_max = 3, .n_pad = 32, .window = 8, .chunked = true},
     60000},
    {{.n_cell = 30, .n_kv_pool = 1, .n_seq_max = 2, .n_pad = 32, .window = 5, .contiguous = true},
     40000},
    {{.n_cell = 30,
      .n_kv_pool = 1,
      .n_seq_max = 2,
      .n_pad = 32,
      .window = 6,
      .group = 2,
      .pos_2d = true},
     40000},
    {{.n_cell = 16, .n_kv_pool = 1, .n_seq_max = 2, .n_pad = 32, .window = 1}, 20000}};

Test(kv_random, a_million_operations, .timeout = 600)
{
    static struct run t;
    int64_t n = 0;
    for (size_t i = 0; i < GR_COUNT(configs); i++) {
        memset(&t, 0, sizeof t);
        start(&t, configs[i].p, 4 + i);
        while (t.n_op < configs[i].n_op / PART)
            random_step(&t);
        cr_log_info("%zu: %lld operations, %lld batches, %lld full, %lld unsupported, %lld moved, "
                    "%lld evicted, %lld incomplete, %lld seen\n",
                    i, (long long)t.n_op, (long long)t.n_batch, (long long)t.n_full,
                    (long long)t.n_unsupported, (long long)t.n_moved, (long long)t.n_eviction,
                    (long long)t.n_incomplete, (long long)t.n_seen);
        cr_assert(t.n_full && t.n_moved && t.n_seen && t.n_kept);
        cr_assert(!configs[i].p.window || (t.n_unsupported && t.n_eviction && t.n_incomplete));
        gr_kv_free(&t.kv);
        n += t.n_op;
    }
    cr_assert_geq(n, 1000000 / PART - (int64_t)GR_COUNT(configs));
}

/* ---- every sequence of up to six operations on 4 cells and 2 sequences ---- */

static const struct gr_kv_op small_ops[] = {
    {GR_KV_RM, 0, 0, 1, 2, 0},    {GR_KV_RM, -1, 0, 0, 1, 0},    {GR_KV_CP, 0, 1, -1, -1, 0},
    {GR_KV_DUP, 1, 0, 1, -1, 0},  {GR_KV_ADD, 0, 0, -1, -1, -1}, {GR_KV_ADD, 1, 0, 1, -1, 1},
    {GR_KV_DIV, 0, 0, -1, -1, 2}, {GR_KV_KEEP, 1, 0, -1, -1, 0}};
/* Tokens of each sequence, in micro-batches of one; whether they are kept. */
static const struct small_batch {
    int32_t n[2];
    bool commit;
} small_batches[] = {{{1, 0}, true}, {{0, 2}, true}, {{1, 1}, false}};

#define N_OP (int32_t) GR_COUNT(small_ops)
#define N_SMALL (N_OP + (int32_t)GR_COUNT(small_batches) + 1)

static void make_small(const struct run *t, const struct small_batch *what, struct random_batch *x)
{
    struct gr_ubatch all = {&x->b, x->tok, 0, 0, 0};
    for (int32_t s = 0; s < 2; s++)
        for (int32_t k = 0; k < what->n[s]; k++) {
            int32_t i = all.n_tok++;
            x->tok[i] = x->seq_at[i] = i, x->seq[i] = s, x->n_seq[i] = 1;
            x->pos[i] = x->row[i] = x->col[i] = gr_kv_cells_pos_max(t->kv, s) + 1 + k;
        }
    x->b = (struct gr_full_batch){.n_tok = all.n_tok, .pos = x->pos, .row = x->row, .col = x->col};
    x->b.n_seq = x->n_seq, x->b.seq = x->seq, x->b.seq_at = x->seq_at;
    x->n_ub = cut(&all, 1, x->ub);
}

/* The last operation of a sequence: with the model, which gives the results that are expected. */
static void small_batch(struct run *t, const struct small_batch *what, bool last)
{
    static struct random_batch x;
    static struct model before;
    int32_t cell, want;
    bool fits = true;
    make_small(t, what, &x);
    m_copy(&before, &t->m);
    t->m.n_eviction = 0;
    for (int32_t u = 0; last && u < x.n_ub && fits; u++)
        fits = m_place(&t->m, &x.ub[u], &want);
    int rc = gr_kv_reserve(t->kv, x.ub, x.n_ub);
    CHECK(!last || rc == (fits ? 0 : GR_E_KV_FULL));
    for (int32_t u = 0; !rc && u < x.n_ub; u++)
        gr_kv_place(t->kv, &x.ub[u], &cell);
    CHECK(!last || rc || cell == want);
    if (what->commit)
        gr_kv_commit(t->kv);
    else
        gr_kv_abort(t->kv);
    if (last && rc)
        m_copy(&t->m, &before);
    else if (last && !what->commit)
        m_abort(&t->m, &before);
}

static void small_op(struct run *t, int32_t k, bool last)
{
    struct m_moves want = {0};
    if (k < N_OP) {
        int rc = last ? m_op(&t->m, &small_ops[k], &want) : 0,
            got = gr_kv_can(t->kv, &small_ops[k]);
        CHECK(!last || got == rc);
        if (!got)
            gr_kv_do(t->kv, &small_ops[k], &moves);
        CHECK(!last || got || moves.n == (uint32_t)want.n);
    } else if (k < N_SMALL - 1) {
        small_batch(t, &small_batches[k - N_OP], last);
    } else {
        CHECK(gr_kv_pack(t->kv, &moves) == 0);
        if (last)
            m_pack(&t->m, &want);
    }
}

/* The last operation of path[0 .. depth]: the cache repeats the others, the model goes on from
 * where they had led. */
static void try_path(struct run *t, const int32_t *path, int32_t depth)
{
    m_copy(&t->m, &t->level[depth]);
    gr_kv_cells_clear(t->kv);
    for (int32_t i = 0; i <= depth; i++)
        small_op(t, path[i], i == depth);
    CHECK(gr_kv_check(t->kv) == 0, "%s", gr_error());
    expect_cells(t);
    expect_seqs(t);
    t->n_op++;
}

/* All paths of up to `most` operations, depth first. */
static void explore(struct run *t, int32_t most)
{
    int32_t path[6] = {0}, depth = 0;
    m_copy(&t->level[0], &t->m);
    while (depth >= 0) {
        try_path(t, path, depth);
        if (depth + 1 < most) {
            path[++depth] = 0;
            m_copy(&t->level[depth], &t->m);
            continue;
        }
        while (depth >= 0 && ++path[depth] == N_SMALL)
            depth--;
    }
}

static void run_exhaustive(struct gr_kv_params p, int32_t most)
{
    static struct run t;
    int64_t n = 0;
    memset(&t, 0, sizeof t);
    start(&t, p, 1);
    explore(&t, most);
    for (int32_t i = 0; i < most; i++)
        n = (n + 1) * N_SMALL;
    cr_assert_eq(t.n_op, n);
    cr_log_info("%lld sequences of up to %d of %d operations\n", (long long)n, most, N_SMALL);
    gr_kv_free(&t.kv);
}

#define DEPTH (PART == 1 ? 6 : 4)

Test(kv_exhaustive, pool)
{
    run_exhaustive((struct gr_kv_params){.n_cell = 4, .n_kv_pool = 1, .n_seq_max = 2, .n_pad = 32},
                   DEPTH);
}

Test(kv_exhaustive, pools)
{
    run_exhaustive((struct gr_kv_params){.n_cell = 4, .n_kv_pool = 2, .n_seq_max = 2, .n_pad = 32},
                   DEPTH);
}

Test(kv_exhaustive, contiguous)
{
    run_exhaustive(
        (struct gr_kv_params){
            .n_cell = 4, .n_kv_pool = 1, .n_seq_max = 2, .n_pad = 32, .contiguous = true},
        DEPTH - 1);
}
