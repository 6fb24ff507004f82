/* Random and exhaustive operations against a model of the cache that is a list of (pos, delta,
 * sequences). */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gr/status.h"
#include "kv/kv.h"

#define N_CELL 96
#define N_SEQ 40
#define N_TOK 24

#ifdef NDEBUG
#define THOROUGH true
#else
#define THOROUGH                                                                                   \
    false /* every operation checks the whole cache by itself, and sanitizers are slow */
#endif

struct model_cell {
    int64_t pos, delta;
    uint64_t seqs;
};

struct model {
    int32_t n_cell, n_seq;
    bool contiguous;
    int32_t head;
    struct model_cell cell[N_CELL];
};

static void model_clear(struct model *m)
{
    m->head = 0;
    for (int32_t i = 0; i < m->n_cell; i++)
        m->cell[i] = (struct model_cell){-1, 0, 0};
}

static int32_t model_used(const struct model *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_cell; i++)
        n += m->cell[i].seqs != 0;
    return n;
}

static bool model_hit(const struct model_cell *c, int32_t seq, int32_t p0, int32_t p1)
{
    bool mine = seq < 0 ? c->seqs != 0 : c->seqs >> seq & 1;
    return mine && c->pos >= (p0 < 0 ? 0 : p0) && (p1 < 0 || c->pos < p1);
}

static void model_rm(struct model *m, int32_t seq, int32_t p0, int32_t p1)
{
    for (int32_t i = m->n_cell - 1; i >= 0; i--)
        if (model_hit(&m->cell[i], seq, p0, p1)) {
            m->cell[i].seqs &= seq < 0 ? 0 : ~(UINT64_C(1) << seq);
            if (!m->cell[i].seqs) {
                m->cell[i] = (struct model_cell){-1, 0, 0};
                m->head = GR_MIN(m->head, i);
            }
        }
}

static void model_cp(struct model *m, int32_t src, int32_t dst, int32_t p0, int32_t p1)
{
    for (int32_t i = 0; i < m->n_cell; i++)
        if (model_hit(&m->cell[i], src, p0, p1))
            m->cell[i].seqs |= UINT64_C(1) << dst;
}

static void model_keep(struct model *m, int32_t seq)
{
    for (int32_t s = 0; s < m->n_seq; s++)
        if (s != seq)
            model_rm(m, s, -1, -1);
}

static void model_add(struct model *m, int32_t seq, int32_t p0, int32_t p1, int32_t delta)
{
    int32_t freed = -1;
    if (delta == 0 || GR_MAX(p0, 0) >= (p1 < 0 ? INT32_MAX : p1))
        return;
    for (int32_t i = m->n_cell - 1; i >= 0; i--)
        if (model_hit(&m->cell[i], seq, p0, p1)) {
            m->cell[i].pos += delta, m->cell[i].delta += delta;
            if (m->cell[i].pos < 0)
                m->cell[i] = (struct model_cell){-1, 0, 0}, freed = i;
        }
    m->head = freed < 0 ? 0 : freed;
}

static void model_div(struct model *m, int32_t seq, int32_t p0, int32_t p1, int32_t d)
{
    for (int32_t i = 0; i < m->n_cell; i++)
        if (model_hit(&m->cell[i], seq, p0, p1)) {
            int64_t old = m->cell[i].pos;
            m->cell[i].pos /= d;
            m->cell[i].delta += m->cell[i].pos - old;
        }
}

/* The slot search as a walk that counts the cells it has tested. */
static bool model_find(struct model *m, int32_t n, int32_t *cells)
{
    int32_t head = m->head > model_used(m) + 2 * n ? 0 : m->head, tested = 0, k = 0;
    int32_t step = m->contiguous ? n : 1;
    if (n > m->n_cell)
        return false;
    while (k < n) {
        if (tested >= m->n_cell)
            return false;
        if (head + step > m->n_cell) {
            tested += m->n_cell - head, head = 0;
            continue;
        }
        for (int32_t i = 0; i < step; i++) {
            bool free = !m->cell[head].seqs;
            if (free)
                cells[k++] = head;
            head++, tested++;
            if (!free && m->contiguous)
                break;
        }
        if (k < n && m->contiguous)
            k = 0;
    }
    return true;
}

static bool model_place(struct model *m, const struct gr_ubatch *ub, int32_t n_ub, int32_t *cells)
{
    struct model before = *m;
    for (int32_t u = 0; u < n_ub; cells += ub[u++].n_tok) {
        const struct gr_full_batch *b = ub[u].batch;
        if (!model_find(m, ub[u].n_tok, cells)) {
            *m = before;
            return false;
        }
        for (int32_t i = 0, t = ub[u].first; i < ub[u].n_tok; i++, t++) {
            uint64_t seqs = 0;
            for (int32_t k = 0; k < b->n_seq[t]; k++)
                seqs |= UINT64_C(1) << b->seq[b->seq_at[t] + k];
            m->cell[cells[i]] = (struct model_cell){b->pos[t], 0, seqs};
            m->head = (cells[i] + 1) % m->n_cell;
        }
    }
    return true;
}

static void expect_same(const struct gr_kv *kv, const struct model *m)
{
    int32_t end = 0;
    bool shift = false;
    cr_assert_eq(gr_kv_check(kv), 0, "%s", gr_error());
    cr_assert_eq(gr_kv_head(kv), (uint32_t)m->head, "head %u, model %d", gr_kv_head(kv), m->head);
    cr_assert_eq(gr_kv_n_used(kv), (uint32_t)model_used(m));
    for (int32_t i = 0; i < m->n_cell; i++) {
        struct gr_cell c = gr_kv_cell(kv, (uint32_t)i);
        cr_assert(c.pos == m->cell[i].pos && c.delta == m->cell[i].delta,
                  "cell %d: (%d, %d), model (%d, %d)", i, c.pos, c.delta, (int)m->cell[i].pos,
                  (int)m->cell[i].delta);
        cr_assert_eq(c.n_seq, __builtin_popcountll(m->cell[i].seqs));
        for (int32_t s = 0; c.n_seq && s < m->n_seq; s++)
            cr_assert_eq(gr_kv_cell_has(kv, (uint32_t)i, s), m->cell[i].seqs >> s & 1,
                         "cell %d seq %d", i, s);
        end = c.n_seq ? i + 1 : end;
        shift |= c.delta != 0;
    }
    cr_assert_eq(gr_kv_n_kv(kv), GR_MIN(GR_MAX(GR_PAD(end, 32), 32), m->n_cell));
    cr_assert_eq(gr_kv_has_shift(kv), shift);
}

static void expect_positions(const struct gr_kv *kv, const struct model *m)
{
    for (int32_t s = 0; s < m->n_seq; s++) {
        int64_t lo = -1, hi = -1;
        for (int32_t i = 0; i < m->n_cell; i++)
            if (m->cell[i].seqs >> s & 1) {
                lo = lo < 0 ? m->cell[i].pos : GR_MIN(lo, m->cell[i].pos);
                hi = GR_MAX(hi, m->cell[i].pos);
            }
        cr_assert(gr_kv_cells_pos_min(kv, s) == lo && gr_kv_cells_pos_max(kv, s) == hi,
                  "sequence %d", s);
    }
}

/* A batch of random tokens; positions need not follow the rules of gr_batch_check, the cells do not
 * care. */
struct random_batch {
    struct gr_full_batch b;
    int32_t pos[N_TOK], n_seq[N_TOK], seq_at[N_TOK], seq[N_TOK * 3], token[N_TOK];
    int8_t logits[N_TOK];
    struct gr_ubatch ub[N_TOK];
    int32_t n_ub;
};

static void make_batch(struct random_batch *x, struct gr_rng *r, int32_t n_seq_max)
{
    memset(x, 0, sizeof *x);
    int32_t n_tok = 1 + (int32_t)gr_rng_below(r, N_TOK), at = 0, pos = (int32_t)gr_rng_below(r, 40);
    int32_t seq = (int32_t)gr_rng_below(r, (uint32_t)n_seq_max);
    for (int32_t i = 0; i < n_tok; i++) {
        if (!gr_rng_below(r, 4))
            seq = (int32_t)gr_rng_below(r, (uint32_t)n_seq_max), pos = (int32_t)gr_rng_below(r, 40);
        x->pos[i] = pos++;
        x->seq_at[i] = at;
        x->n_seq[i] = 1 + (int32_t)gr_rng_below(r, (uint32_t)GR_MIN(3, n_seq_max));
        for (int32_t k = 0; k < x->n_seq[i]; k++)
            x->seq[at++] = (seq + k) % n_seq_max;
    }
    x->b =
        (struct gr_full_batch){.n_tok = n_tok, .token = x->token, .pos = x->pos, .n_seq = x->n_seq};
    x->b.seq = x->seq, x->b.seq_at = x->seq_at, x->b.logits = x->logits;
    x->n_ub = gr_batch_split(&x->b, 1 + (int32_t)gr_rng_below(r, N_TOK), x->ub);
}

static float naive(const struct model *m, int32_t c, int32_t seq, int32_t pos, bool causal,
                   int32_t window, bool alibi)
{
    const struct model_cell *k = &m->cell[c];
    if (!(k->seqs >> seq & 1) || (causal && k->pos > pos) || (window > 0 && pos - k->pos >= window))
        return -INFINITY;
    return alibi ? -(float)llabs(k->pos - pos) : 0.0f;
}

/* Bits, dense numbers and the definition agree for every micro-batch; cells[] are those of the
 * whole batch. */
static void expect_masks(const struct gr_kv *kv, const struct model *m,
                         const struct random_batch *x, const int32_t *cells, struct gr_rng *r)
{
    uint32_t bits[N_TOK * 3];
    static float dense[N_CELL * (N_TOK + 31)];
    bool causal = gr_rng_below(r, 3) != 0, alibi = gr_rng_below(r, 2);
    int32_t window = gr_rng_below(r, 2) ? 0 : 1 + (int32_t)gr_rng_below(r, 30);
    int32_t n_kv = gr_kv_n_kv(kv), n_word = (n_kv + 31) / 32, pad = gr_rng_below(r, 2) ? 1 : 32;
    for (int32_t u = 0; u < x->n_ub; u++) {
        const struct gr_ubatch *ub = &x->ub[u];
        gr_kv_mask(kv, ub, n_kv, causal, window, bits);
        gr_kv_mask_dense(kv, ub, n_kv, causal, window, alibi, pad, dense);
        for (int32_t i = 0; i < GR_PAD(ub->n_tok, pad); i++)
            for (int32_t c = 0; c < n_kv; c++) {
                int32_t t = ub->first + i;
                float want = -INFINITY, got = dense[i * n_kv + c];
                if (i < ub->n_tok)
                    want =
                        naive(m, c, x->b.seq[x->b.seq_at[t]], x->b.pos[t], causal, window, alibi);
                for (int32_t k = ub->first + ub->n_tok; k < x->b.n_tok && !causal; k++)
                    if (cells[k] == c)
                        want = -INFINITY;
                cr_assert(want == got, "row %d cell %d: %g expected, %g found", i, c, (double)want,
                          (double)got);
                if (i < ub->n_tok)
                    cr_assert_eq(bits[i * n_word + c / 32] >> c % 32 & 1, want > -INFINITY,
                                 "row %d cell %d", i, c);
            }
        for (int32_t i = 0; i < ub->n_tok && n_kv % 32; i++)
            cr_assert_eq(bits[(i + 1) * n_word - 1] >> n_kv % 32, 0);
    }
}

static void do_batch(struct gr_kv *kv, struct model *m, struct gr_rng *r)
{
    struct random_batch x;
    int32_t cells[N_TOK], want[N_TOK];
    struct model before = *m;
    make_batch(&x, r, m->n_seq);
    int rc = gr_kv_reserve(kv, x.ub, x.n_ub, cells);
    bool fits = model_place(m, x.ub, x.n_ub, want);
    cr_assert_eq(rc, fits ? 0 : GR_E_KV_FULL, "%s", gr_error());
    if (!fits)
        return;
    cr_assert_arr_eq(cells, want, (size_t)x.b.n_tok * sizeof *cells);
    cr_assert_eq(gr_kv_head(kv), (uint32_t)before.head, "the head stays until commit");
    if (!gr_rng_below(r, 4))
        expect_masks(kv, m, &x, cells, r);
    if (gr_rng_below(r, 4)) {
        gr_kv_commit(kv);
    } else {
        gr_kv_abort(kv);
        *m = before;
    }
}

static void do_op(struct gr_kv *kv, struct model *m, struct gr_rng *r)
{
    int32_t a = (int32_t)gr_rng_below(r, (uint32_t)m->n_seq),
            b = (int32_t)gr_rng_below(r, (uint32_t)m->n_seq);
    int32_t p0 = (int32_t)gr_rng_below(r, 50) - 5,
            p1 = gr_rng_below(r, 3) ? p0 + (int32_t)gr_rng_below(r, 30) - 3 : -1;
    int32_t d = (int32_t)gr_rng_below(r, 41) - 20;
    switch (gr_rng_below(r, 16)) {
    case 0:
    case 1:
        a = gr_rng_below(r, 8) ? a : -1;
        cr_assert_eq(gr_kv_cells_rm(kv, a, p0, p1), 0);
        model_rm(m, a, p0, p1);
        break;
    case 2:
    case 3:
        cr_assert_eq(gr_kv_cells_cp(kv, a, b, p0, p1), 0);
        model_cp(m, a, b, p0, p1);
        break;
    case 4:
    case 5:
        cr_assert_eq(gr_kv_cells_add(kv, a, p0, p1, d), 0);
        model_add(m, a, p0, p1, d);
        break;
    case 6:
        cr_assert_eq(gr_kv_cells_div(kv, a, p0, p1, 1 + abs(d) / 4), 0);
        model_div(m, a, p0, p1, 1 + abs(d) / 4);
        break;
    case 7:
        if (gr_rng_below(r, 16))
            return;
        cr_assert_eq(gr_kv_cells_keep(kv, a), 0);
        model_keep(m, a);
        break;
    case 8:
        if (gr_rng_below(r, 64))
            return;
        gr_kv_cells_clear(kv);
        model_clear(m);
        break;
    case 9:
        gr_kv_shifted(kv);
        for (int32_t i = 0; i < m->n_cell; i++)
            m->cell[i].delta = 0;
        break;
    default:
        do_batch(kv, m, r);
    }
}

static void run_random(int32_t n_cell, int32_t n_seq, bool contiguous, int32_t n_ops)
{
    struct gr_rng r = gr_rng_new((uint64_t)(n_cell * 1000 + n_seq * 2 + contiguous));
    struct model m = {.n_cell = n_cell, .n_seq = n_seq, .contiguous = contiguous};
    struct gr_kv *kv;
    cr_assert_eq(
        gr_kv_new(&kv, &(struct gr_kv_params){(uint32_t)n_cell, (uint32_t)n_seq, 32, contiguous}),
        0);
    model_clear(&m);
    for (int32_t i = 0; i < (THOROUGH ? n_ops : n_ops / 4); i++) {
        do_op(kv, &m, &r);
        expect_same(kv, &m);
        if (i % 8 == 0)
            expect_positions(kv, &m);
    }
    gr_kv_free(&kv);
}

Test(kv_random, scattered)
{
    run_random(64, 4, false, 60000);
    run_random(50, 2, false, 40000);
    run_random(N_CELL, N_SEQ, false, 20000);
}

Test(kv_random, contiguous)
{
    run_random(64, 3, true, 60000);
    run_random(71, 1, true, 20000);
}

/* ---- every sequence of a few operations on 4 cells and 2 sequences ---- */

#define N_SMALL 16

static void small_batch(struct gr_kv *kv, struct model *m, uint32_t seqs, int32_t n_tok,
                        bool commit)
{
    struct random_batch x;
    int32_t cells[N_TOK], want[N_TOK], seq = seqs == 2, pos = gr_kv_cells_pos_max(kv, seq) + 1;
    struct model before = *m;
    for (int32_t i = 0; i < n_tok; i++) {
        x.pos[i] = pos + i, x.n_seq[i] = seqs == 3 ? 2 : 1, x.seq_at[i] = i * x.n_seq[i];
        x.seq[x.seq_at[i]] = seq, x.seq[x.seq_at[i] + x.n_seq[i] - 1] = seqs == 1 ? 0 : 1;
    }
    x.b = (struct gr_full_batch){.n_tok = n_tok, .pos = x.pos, .n_seq = x.n_seq, .seq = x.seq};
    x.b.seq_at = x.seq_at;
    struct gr_ubatch ub = {&x.b, 0, n_tok, 0};
    bool fits = model_place(m, &ub, 1, want);
    cr_assert_eq(gr_kv_reserve(kv, &ub, 1, cells), fits ? 0 : GR_E_KV_FULL);
    if (fits && commit)
        gr_kv_commit(kv);
    else if (fits)
        gr_kv_abort(kv), *m = before;
}

static void small_op(struct gr_kv *kv, struct model *m, uint32_t op)
{
    static const int32_t rm[4][3] = {{0, -1, -1}, {1, 1, 2}, {-1, 0, 1}, {0, 1, -1}};
    static const int32_t add[3][4] = {{0, 1, -1, -1}, {1, 0, -1, 1}, {0, -1, -1, -2}};
    if (op < 4) {
        cr_assert_eq(gr_kv_cells_rm(kv, rm[op][0], rm[op][1], rm[op][2]), 0);
        model_rm(m, rm[op][0], rm[op][1], rm[op][2]);
    } else if (op < 7) {
        const int32_t *a = add[op - 4];
        cr_assert_eq(gr_kv_cells_add(kv, a[0], a[1], a[2], a[3]), 0);
        model_add(m, a[0], a[1], a[2], a[3]);
    } else if (op < 9) {
        cr_assert_eq(gr_kv_cells_cp(kv, op == 7, op != 7, op - 7, -1), 0);
        model_cp(m, op == 7, op != 7, (int32_t)op - 7, -1);
    } else if (op == 9) {
        cr_assert_eq(gr_kv_cells_keep(kv, 1), 0);
        model_keep(m, 1);
    } else if (op == 10) {
        cr_assert_eq(gr_kv_cells_div(kv, 0, -1, -1, 2), 0);
        model_div(m, 0, -1, -1, 2);
    } else {
        static const uint32_t batch[5][3] = {{1, 1, 1}, {1, 2, 1}, {2, 2, 1}, {3, 1, 1}, {2, 1, 0}};
        small_batch(kv, m, batch[op - 11][0], (int32_t)batch[op - 11][1], batch[op - 11][2]);
    }
}

static void run_exhaustive(bool contiguous, uint32_t depth)
{
    struct model m = {.n_cell = 4, .n_seq = 2, .contiguous = contiguous};
    struct gr_kv *kv;
    cr_assert_eq(gr_kv_new(&kv, &(struct gr_kv_params){4, 2, 32, contiguous}), 0);
    uint32_t n = 1;
    for (uint32_t i = 0; i < depth; i++)
        n *= N_SMALL;
    for (uint32_t k = 0; k < n; k++) { /* the digits of k are the operations */
        gr_kv_cells_clear(kv);
        model_clear(&m);
        for (uint32_t i = 0, x = k; i < depth; i++, x /= N_SMALL)
            small_op(kv, &m, x % N_SMALL);
        expect_same(kv, &m);
        expect_positions(kv, &m);
    }
    gr_kv_free(&kv);
}

Test(kv_exhaustive, scattered)
{
    run_exhaustive(false, THOROUGH ? 5 : 4);
}

Test(kv_exhaustive, contiguous)
{
    run_exhaustive(true, 4);
}
