/* Random and exhaustive operations on rows of recurrent states. The model knows the tokens of every
 * sequence and after how many of them a state is kept; every row holds a hash of the tokens that
 * its state stands for, computed as a layer would: read the row src, write the row dst. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gr/status.h"
#include "kv/recurrent.h"

#define N_SEQ 5
#define N_TOK 16
#define N_ROW 32
#define N_LEN 96

#ifdef NDEBUG
#define THOROUGH true
#else
#define THOROUGH false /* every operation checks everything by itself, and sanitizers are slow */
#endif

struct model_seq {
    int32_t len;              /* tokens */
    int32_t n;                /* states kept, the newest first */
    int32_t at[4], row[4];    /* the tokens they stand for, where they are */
    int32_t pos[N_LEN];       /* of the tokens */
    uint64_t hash[N_LEN + 1]; /* of the first .. tokens */
};

struct world {
    struct gr_rs *rs;
    int32_t n_seq, n_rollback, n_row;
    struct model_seq seq[N_SEQ];
    bool lost[N_SEQ];
    uint64_t data[N_ROW];
    bool written[N_ROW]; /* since gr_rs_reserve */
    struct gr_full_batch full;
    struct gr_rng rng;
    int n_done, n_refused, n_rolled, n_lost, n_kept;
};

static int32_t below(struct world *w, int32_t n)
{
    return (int32_t)gr_rng_below(&w->rng, (uint32_t)n);
}

static uint64_t mix(uint64_t h, int32_t token)
{
    h = (h ^ (uint64_t)(token + 1)) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static void open_world(struct world *w, int32_t n_seq, int32_t n_rollback)
{
    *w = (struct world){.n_seq = n_seq, .n_rollback = n_rollback};
    struct gr_rs_params p = {(uint32_t)n_seq, (uint32_t)n_rollback};
    w->n_row = (int32_t)gr_rs_n_row(&p);
    w->rng = gr_rng_new((uint64_t)(n_seq * 10 + n_rollback));
    cr_assert_leq(w->n_row, N_ROW);
    cr_assert_leq(n_rollback, 3);
    cr_assert_eq(gr_rs_new(&w->rs, &p), 0);
}

static void close_world(struct world *w)
{
    gr_batch_fini(&w->full);
    gr_rs_free(&w->rs);
}

/* ---- what must be the same ---- */

static void expect_rows(const struct world *w)
{
    uint32_t used = 0;
    for (int32_t r = 0; r < w->n_row; r++) {
        struct gr_rs_row got = gr_rs_row(w->rs, (uint32_t)r);
        int32_t n = 0, seq = -1, old = -1;
        for (int32_t s = w->n_seq - 1; s >= 0; s--)
            for (int32_t i = 0; i < w->seq[s].n; i++)
                if (w->seq[s].row[i] == r && i == 0)
                    n++, seq = s;
                else if (w->seq[s].row[i] == r)
                    old = s;
        cr_assert(got.n_seq == n && got.snapshot == (old >= 0), "row %d", r);
        cr_assert_eq(got.seq, n ? seq : old, "row %d", r);
        cr_assert_eq(got.pos >= 0, n || old >= 0, "row %d", r);
        used += got.pos >= 0;
    }
    cr_assert_eq(gr_rs_n_used(w->rs), used);
}

static void expect_same(const struct world *w)
{
    cr_assert_eq(gr_rs_check(w->rs), 0, "%s", gr_error());
    for (int32_t s = 0; s < w->n_seq; s++) {
        const struct model_seq *m = &w->seq[s];
        cr_assert_eq(gr_rs_tail(w->rs, s), m->n ? m->row[0] : -1, "sequence %d", s);
        cr_assert_eq(gr_rs_pos_max(w->rs, s), m->len ? m->pos[m->len - 1] : -1);
        cr_assert_eq(gr_rs_pos_min(w->rs, s), m->n ? m->pos[m->at[m->n - 1] - 1] : -1);
        cr_assert_eq(gr_rs_incomplete(w->rs, s), w->lost[s], "sequence %d", s);
        for (int32_t i = 0; i < m->n; i++) {
            cr_assert_eq(w->data[m->row[i]], m->hash[m->at[i]], "sequence %d, state %d", s, i);
            cr_assert_eq(gr_rs_row(w->rs, (uint32_t)m->row[i]).pos, m->pos[m->at[i] - 1]);
        }
        for (int32_t t = 0; t < s; t++)
            cr_assert_eq(gr_rs_seq_same(w->rs, s, t),
                         m->n && w->seq[t].n ? m->row[0] == w->seq[t].row[0] : m->n == w->seq[t].n);
    }
    expect_rows(w);
}

/* ---- operations ---- */

/* Tokens of a sequence with positions before `end`. */
static int32_t tokens_before(const struct model_seq *m, int32_t end)
{
    int32_t n = 0;
    while (n < m->len && m->pos[n] < end)
        n++;
    return n;
}

/* Index of the state that stands for the first n tokens of a sequence; -1 = none kept. */
static int32_t state_of(const struct model_seq *m, int32_t n)
{
    for (int32_t i = 0; i < m->n; i++)
        if (m->at[i] == n)
            return i;
    return -1;
}

static void drop(struct world *w, int32_t s)
{
    w->seq[s].n = w->seq[s].len = 0;
    w->lost[s] = false;
}

/* Makes dst what src was at its state i. */
static void turn_back(struct world *w, int32_t dst, int32_t src, int32_t i)
{
    struct model_seq *m = &w->seq[dst];
    *m = w->seq[src];
    w->lost[dst] = false;
    m->len = m->at[i], m->n -= i;
    memmove(m->at, m->at + i, (size_t)m->n * sizeof *m->at);
    memmove(m->row, m->row + i, (size_t)m->n * sizeof *m->row);
}

/* Removes positions [lo, hi); false when that cannot be done. The positions before the first token
 * are unknown: a sequence counts from 0 on. */
static bool model_rm(struct world *w, int32_t s, int32_t lo, int32_t hi, bool change)
{
    struct model_seq *m = &w->seq[s];
    int32_t a = tokens_before(m, lo), b = tokens_before(m, hi), i = state_of(m, a);
    if (lo == 0 && hi > 0 && b == m->len) {
        if (change)
            drop(w, s);
        return true;
    }
    if (lo >= hi || a == m->len)
        return true;
    if (b < m->len || i < 0)
        return false;
    if (change)
        turn_back(w, s, s, i);
    w->n_rolled += change;
    return true;
}

static bool model_cp(struct world *w, int32_t src, int32_t dst, int32_t lo, int32_t hi)
{
    struct model_seq *m = &w->seq[src], *d = &w->seq[dst];
    int32_t n = tokens_before(m, hi), i = state_of(m, n);
    if (src == dst || tokens_before(m, lo) == m->len || lo >= hi)
        return true;
    if (lo > 0 || i < 0 || (d->n && d->row[0] != m->row[i]))
        return false;
    if (!d->n)
        turn_back(w, dst, src, i);
    return true;
}

static bool model_op(struct world *w, const struct gr_kv_op *o)
{
    int32_t lo = GR_MAX(o->p0, 0), hi = o->p1 < 0 ? INT32_MAX : o->p1;
    bool ok = true;
    switch (o->kind) {
    case GR_KV_RM:
        for (int pass = 0; pass < 2 && ok; pass++)
            for (int32_t s = 0; s < w->n_seq; s++)
                if (o->seq < 0 || o->seq == s)
                    ok = model_rm(w, s, lo, hi, pass == 1) && ok;
        return ok;
    case GR_KV_CP:
    case GR_KV_DUP:
        return model_cp(w, o->seq, o->dst, lo, hi);
    case GR_KV_KEEP:
        for (int32_t s = 0; s < w->n_seq; s++)
            if (s != o->seq)
                drop(w, s);
        return true;
    case GR_KV_ADD:
    case GR_KV_DIV:
        return o->by == (o->kind == GR_KV_DIV) || lo >= hi ||
               tokens_before(&w->seq[o->seq], lo) == w->seq[o->seq].len;
    }
    return ok;
}

static void do_op(struct world *w, const struct gr_kv_op *o)
{
    bool ok = model_op(w, o);
    int rc = gr_rs_can(w->rs, o);
    cr_assert_eq(rc, ok ? 0 : GR_E_UNSUPPORTED, "%s", gr_error());
    if (ok)
        gr_rs_do(w->rs, o);
    w->n_done += ok, w->n_refused += !ok;
}

static void random_op(struct world *w)
{
    static const enum gr_kv_op_kind kinds[] = {GR_KV_RM, GR_KV_RM,  GR_KV_RM,  GR_KV_CP, GR_KV_CP,
                                               GR_KV_CP, GR_KV_DUP, GR_KV_ADD, GR_KV_DIV};
    struct gr_kv_op o = {kinds[below(w, 9)], below(w, w->n_seq), below(w, w->n_seq), -1, -1, 0};
    int32_t end = gr_rs_pos_max(w->rs, o.seq);
    if (!below(w, 30))
        o.kind = GR_KV_KEEP;
    if (o.kind == GR_KV_RM && !below(w, 20))
        o.seq = -1;
    if (below(w, 2))
        o.p0 = below(w, 3) ? end + 2 - below(w, 6) : below(w, 10) - 2;
    if (!below(w, 3))
        o.p1 = below(w, 3) ? end + 3 - below(w, 6) : below(w, 10) - 2;
    o.by = o.kind == GR_KV_DIV ? 1 + below(w, 3) : below(w, 5) - 2;
    do_op(w, &o);
}

/* ---- batches ---- */

static int32_t limit_pos_max(const void *rs, int32_t seq)
{
    return gr_rs_pos_max(rs, seq);
}

static int32_t limit_pos_end(const void *rs, int32_t seq)
{
    return gr_rs_pos_max(rs, seq) + 1;
}

static bool limit_same(const void *rs, int32_t a, int32_t b)
{
    return gr_rs_seq_same(rs, a, b);
}

static void check_batch(struct world *w, const struct gr_batch *b)
{
    struct gr_batch_limits l = {1000, N_TOK,         w->n_seq, limit_pos_max, limit_same, w->rs,
                                true, limit_pos_end, 0};
    cr_assert_eq(gr_batch_check(&w->full, b, &l), 0, "%s", gr_error());
}

/* Tokens of random sequences, some of several that have the same past; some share a position. */
static void random_batch(struct world *w)
{
    int32_t token[N_TOK], pos[N_TOK], n_seq[N_TOK], seq[N_TOK * N_SEQ], yx[2 * N_TOK];
    int32_t past[N_SEQ], end[N_SEQ], n = 1 + below(w, below(w, 3) ? 3 : N_TOK), at = 0, s = 0;
    for (int32_t i = 0; i < w->n_seq; i++) {
        past[i] = gr_rs_tail(w->rs, i);
        end[i] = gr_rs_pos_max(w->rs, i);
    }
    for (int32_t t = 0; t < n; t++) {
        s = below(w, 2) ? s : below(w, w->n_seq);
        int32_t was = past[s], together = below(w, 3);
        token[t] = below(w, 1000);
        pos[t] = yx[t] = yx[n + t] = end[s] < 0 ? below(w, 3) : end[s] + !!below(w, 8);
        n_seq[t] = 0;
        for (int32_t k = 0; k < w->n_seq; k++)
            if (k == s || (past[k] == was && end[k] == end[s] && !together && below(w, 4)))
                seq[at++] = k, n_seq[t]++;
        for (int32_t k = at - n_seq[t]; k < at; k++)
            past[seq[k]] = 1000 + t, end[seq[k]] = pos[t];
    }
    check_batch(w, &(struct gr_batch){n, token, pos, n_seq, seq, NULL, yx, NULL});
}

/* A layer: every sequence from the row it reads to the row it writes, in any order. */
static void run_layer(struct world *w, const struct gr_ubatch *ub, const int32_t *src,
                      const int32_t *dst)
{
    int32_t each = ub->n_tok / ub->n_seq, first = below(w, ub->n_seq);
    for (int32_t i = 0; i < ub->n_seq; i++) {
        int32_t k = (first + i) % ub->n_seq;
        uint64_t h = src[k] < 0 ? 0 : w->data[src[k]];
        for (int32_t j = 0; j < each; j++)
            h = mix(h, ub->batch->token[ub->tok[k * each + j]]);
        w->data[dst[k]] = h;
        w->written[dst[k]] = true;
        for (int32_t other = 0; other < ub->n_seq; other++)
            cr_assert(other == k || (dst[k] != src[other] && dst[k] != dst[other]));
    }
}

static void model_step(struct world *w, const struct gr_ubatch *ub, const int32_t *dst)
{
    const struct gr_full_batch *b = ub->batch;
    int32_t each = ub->n_tok / ub->n_seq;
    for (int32_t k = 0; k < ub->n_seq; k++)
        for (int32_t i = 0, t0 = ub->tok[k * each]; i < b->n_seq[t0]; i++) {
            struct model_seq *m = &w->seq[b->seq[b->seq_at[t0] + i]];
            m->n = each == 1 ? GR_MIN(m->n, w->n_rollback) : 0;
            memmove(m->at + 1, m->at, (size_t)m->n * sizeof *m->at);
            memmove(m->row + 1, m->row, (size_t)m->n * sizeof *m->row);
            for (int32_t j = 0; j < each; j++, m->len++) {
                int32_t t = ub->tok[k * each + j];
                m->pos[m->len] = b->pos[t];
                m->hash[m->len + 1] = mix(m->hash[m->len], b->token[t]);
            }
            m->at[0] = m->len, m->row[0] = dst[k], m->n++;
            w->lost[b->seq[b->seq_at[t0] + i]] = false;
        }
}

/* State of the sequences `was` after the rows in w->written were written. */
static void model_abort(struct world *w, const struct model_seq *was, const bool *lost)
{
    for (int32_t s = 0; s < w->n_seq; s++) {
        bool went_on = w->seq[s].len != was[s].len;
        int32_t i = 0;
        while (i < was[s].n && !w->written[was[s].row[i]])
            i++;
        cr_assert(went_on || i == was[s].n, "sequence %d was not in the batch", s);
        w->seq[s] = was[s];
        w->seq[s].n = i;
        w->lost[s] = lost[s];
        if (was[s].n && !i) {
            w->seq[s].len = 0;
            w->lost[s] = true;
        }
        w->n_lost += was[s].n && !i, w->n_kept += went_on && i;
    }
}

/* Runs the batch that was checked; it fails after n_good micro-batches. */
static void run_batch(struct world *w, enum gr_split how, int32_t n_ubatch, int32_t n_good)
{
    static struct model_seq was[N_SEQ];
    bool lost[N_SEQ];
    int32_t tok[N_TOK], src[N_SEQ], dst[N_SEQ];
    struct gr_ubatch ub[N_TOK];
    for (int32_t s = 0; s < w->n_seq; s++)
        if (w->seq[s].len + N_TOK > N_LEN)
            return;
    int32_t n_ub = gr_batch_split(&w->full, how, n_ubatch, w->n_rollback, tok, ub);
    memcpy(was, w->seq, sizeof was);
    memcpy(lost, w->lost, sizeof lost);
    memset(w->written, 0, sizeof w->written);
    cr_assert_eq(gr_rs_reserve(w->rs, ub, n_ub), 0, "%s", gr_error());
    for (int32_t u = 0; u < n_ub && u < n_good; u++) {
        gr_rs_place(w->rs, &ub[u], src, dst);
        run_layer(w, &ub[u], src, dst);
        model_step(w, &ub[u], dst);
    }
    if (n_ub <= n_good) {
        gr_rs_commit(w->rs);
    } else {
        gr_rs_abort(w->rs);
        model_abort(w, was, lost);
    }
    w->n_done++;
}

static void run_random(int32_t n_seq, int32_t n_rollback, int n_ops)
{
    static struct world w;
    open_world(&w, n_seq, n_rollback);
    for (int i = 0; i < (THOROUGH ? n_ops : n_ops / 4); i++) {
        if (below(&w, 2)) {
            random_op(&w);
        } else {
            random_batch(&w);
            run_batch(&w, below(&w, 4) ? GR_SPLIT_EQUAL : GR_SPLIT_SEQ, 1 + below(&w, N_TOK),
                      below(&w, 4) ? N_TOK : below(&w, 7));
        }
        expect_same(&w);
        for (int32_t s = 0; s < n_seq; s++)
            if (w.seq[s].len + N_TOK > N_LEN)
                do_op(&w, &(struct gr_kv_op){.kind = GR_KV_RM, .seq = s, .p0 = -1, .p1 = -1});
        if (!below(&w, 500)) {
            gr_rs_clear(w.rs);
            for (int32_t s = 0; s < n_seq; s++)
                drop(&w, s);
        }
    }
    bool spare = n_seq > 1 || n_rollback > 0; /* there is a row that need not be overwritten */
    cr_assert(w.n_refused > 100 && w.n_lost > 5, "%d refused, %d lost", w.n_refused, w.n_lost);
    cr_assert(spare ? w.n_kept > 100 : w.n_kept == 0, "%d", w.n_kept);
    cr_assert(n_rollback ? w.n_rolled > 20 : w.n_rolled == 0, "%d", w.n_rolled);
    close_world(&w);
}

Test(recurrent_random, one_row_a_sequence)
{
    run_random(N_SEQ, 0, 80000);
    run_random(2, 0, 40000);
    run_random(1, 0, 20000);
}

Test(recurrent_random, with_snapshots)
{
    run_random(3, 1, 40000);
    run_random(4, 2, 60000);
    run_random(N_SEQ, 3, 40000);
    run_random(1, 3, 20000);
}

/* ---- every sequence of a few operations on two sequences ---- */

#define N_SMALL 17

static void small_batch(struct world *w, uint32_t seqs, int32_t n, int32_t n_good)
{
    int32_t token[4] = {1, 2, 3, 4}, n_seq[4], seq[8], at = 0;
    if (seqs == 3 && !gr_rs_seq_same(w->rs, 0, 1))
        return;
    for (int32_t t = 0; t < n; t++) {
        n_seq[t] = seqs == 3 ? 2 : 1;
        for (int32_t s = 0; s < 2; s++)
            if (seqs >> s & 1)
                seq[at++] = s;
    }
    check_batch(w, &(struct gr_batch){n, token, NULL, n_seq, seq, NULL, NULL, NULL});
    run_batch(w, GR_SPLIT_EQUAL, 4, n_good);
}

/* One token of each of the two, in one micro-batch. */
static void small_both(struct world *w)
{
    static const int32_t token[2] = {5, 6}, seq[2] = {0, 1};
    check_batch(w, &(struct gr_batch){2, token, NULL, NULL, seq, NULL, NULL, NULL});
    run_batch(w, GR_SPLIT_EQUAL, 4, N_TOK);
}

static void small_op(struct world *w, uint32_t op)
{
    static const struct gr_kv_op ops[] = {
        {GR_KV_RM, 0, 0, -1, -1, 0},  {GR_KV_RM, 1, 0, 1, -1, 0}, {GR_KV_RM, 0, 0, 2, -1, 0},
        {GR_KV_RM, 0, 0, 0, 2, 0},    {GR_KV_RM, -1, 0, 2, 3, 0}, {GR_KV_CP, 0, 1, -1, -1, 0},
        {GR_KV_CP, 1, 0, 0, 2, 0},    {GR_KV_DUP, 1, 0, 0, 9, 0}, {GR_KV_KEEP, 1, 0, 0, 0, 0},
        {GR_KV_ADD, 0, 0, 2, -1, -1},
    };
    static const uint32_t batch[][3] = {{1, 1, 9}, {1, 2, 9}, {2, 1, 9},
                                        {3, 1, 9}, {1, 3, 1}, {2, 1, 1}};
    uint32_t n_op = sizeof ops / sizeof *ops;
    if (op < n_op)
        do_op(w, &ops[op]);
    else if (op < N_SMALL - 1)
        small_batch(w, batch[op - n_op][0], (int32_t)batch[op - n_op][1],
                    (int32_t)batch[op - n_op][2] - (op == N_SMALL - 2));
    else
        small_both(w);
}

static void run_exhaustive(int32_t n_rollback, uint32_t depth)
{
    static struct world w;
    uint32_t n = 1;
    open_world(&w, 2, n_rollback);
    for (uint32_t i = 0; i < depth; i++)
        n *= N_SMALL;
    for (uint32_t k = 0; k < n; k++) { /* the digits of k are the operations */
        gr_rs_clear(w.rs);
        drop(&w, 0), drop(&w, 1);
        for (uint32_t i = 0, x = k; i < depth; i++, x /= N_SMALL)
            small_op(&w, x % N_SMALL);
        expect_same(&w);
    }
    close_world(&w);
}

Test(recurrent_exhaustive, one_row_a_sequence)
{
    run_exhaustive(0, THOROUGH ? 5 : 4);
}

Test(recurrent_exhaustive, with_snapshots)
{
    run_exhaustive(1, THOROUGH ? 5 : 4);
    run_exhaustive(2, 4);
}
