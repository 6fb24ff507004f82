/* Results do not depend on the places of cells and states: the same batches give the same logits,
 * bit for bit, whatever else the caches hold or held, for every architecture. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_VOCAB 96
#define MOST_ROWS 96

enum fill { AS_IT_IS, ZEROS, NANS };

/* Differences of a session from the first one, which has one empty pool. */
static const struct way {
    const char *name;
    bool pools, contiguous, others, defrag, dup, swa_full;
    enum fill fill;
} ways[] = {
    {.name = "one empty pool"},
    {.name = "other sequences before, holes between them", .others = true},
    {.name = "free cells hold NaN", .fill = NANS},
    {.name = "holes that hold NaN", .others = true, .fill = NANS},
    {.name = "holes that hold zeros", .others = true, .fill = ZEROS},
    {.name = "a pool a sequence", .pools = true},
    {.name = "a pool a sequence, others, NaN", .pools = true, .others = true, .fill = NANS},
    {.name = "contiguous", .contiguous = true},
    {.name = "contiguous behind holes", .contiguous = true, .others = true, .fill = NANS},
    {.name = "packed before each batch", .others = true, .defrag = true, .fill = NANS},
    {.name = "packed pools", .pools = true, .others = true, .defrag = true},
    {.name = "duplicated instead of shared", .dup = true},
    {.name = "duplicated into holes", .others = true, .dup = true, .fill = NANS},
    {.name = "windows keep all", .swa_full = true, .others = true},
};

struct play {
    struct gr_session *s;
    const struct way *way;
    float *out; /* [MOST_ROWS, N_VOCAB] */
    int n;
};

/* ---- free memory ---- */

static bool row_is_free(const struct gr_session *s, int il, size_t which, int64_t row)
{
    if (which >= GR_T_CONV)
        return gr_rs_row(s->cache.rs, (uint32_t)row).pos < 0;
    int kind = s->model->hp.swa.layer[il] ? GR_CACHE_SWA : GR_CACHE_FULL;
    return gr_kv_cell(s->cache.kv[kind], (uint32_t)row).n_seq == 0;
}

/* Every byte of every row that nothing is kept in. All bits set is NaN in F32 and F16. */
static void fill_free(struct gr_session *s, enum fill fill)
{
    size_t n_layer = (size_t)s->model->hp.n_layer;
    for (size_t i = 0; fill && i < n_layer * GR_N_CACHE_TENSOR; i++) {
        struct gr_ten *t = &s->tensors[i];
        for (int64_t r = 0; t->data && r < t->rows; r++)
            if (row_is_free(s, (int)(i % n_layer), i / n_layer, r))
                memset(gr_ten_row(t, 0, r), fill == NANS ? 0xff : 0, (size_t)t->row_bytes);
    }
}

/* ---- the batches ---- */

static int32_t token(int32_t seq, int32_t pos)
{
    return (11 + 37 * pos + 53 * seq) % N_VOCAB;
}

/* n tokens from position `pos` on for each of the n_seq sequences from `seq` on, side by side. */
static void decode(struct play *p, int32_t seq, int n_seq, int32_t pos, int n, bool record)
{
    int32_t tok[64], at[64], of[64];
    int8_t want[64];
    int k = 0;
    for (int i = 0; i < n; i++)
        for (int q = 0; q < n_seq; q++, k++) {
            tok[k] = token(seq + q, pos + i), at[k] = pos + i, of[k] = seq + q;
            want[k] = 1;
        }
    struct gr_batch b = {.n_tok = k, .token = tok, .pos = at, .seq = of, .logits = want};
    if (p->way->defrag)
        cr_assert_eq(gr_kv_defrag(p->s), 0, "%s", gr_error());
    fill_free(p->s, p->way->fill);
    cr_assert_eq(gr_decode(p->s, &b), 0, "%s: %s", p->way->name, gr_error());
    for (int i = 0; record && i < k; i++)
        memcpy(p->out + (size_t)p->n++ * N_VOCAB, tiny_row(p->s, i), N_VOCAB * sizeof(float));
}

/* Sequences 2 and 3 take turns; then one of them is removed. */
static void crowd(struct play *p)
{
    for (int32_t i = 0; i < 12; i++) {
        decode(p, 2, 1, 3 * i, 3, false);
        decode(p, 3, 1, 2 * i, 2, false);
    }
    cr_assert_eq(gr_kv_seq_rm(p->s, 2, -1, -1), 0, "%s", gr_error());
}

static void may(int rc)
{
    cr_assert(rc == 0 || rc == GR_E_UNSUPPORTED, "%s", gr_error());
}

/* A prompt, single tokens, a piece that is taken out, a copy, both sequences side by side, one
 * alone, a tail that is rolled back. */
static void play(struct play *p)
{
    struct gr_session *s = p->s;
    bool no_cache = s->model->hp.no_cache;
    if (p->way->others)
        crowd(p);
    decode(p, 0, 1, 0, 9, true);
    decode(p, 0, 1, 9, 1, true);
    decode(p, 0, 1, 10, 7, true);
    int rc = gr_kv_seq_rm(s, 0, 4, 7);
    may(rc);
    if (!rc)
        may(rc = gr_kv_seq_add(s, 0, 7, -1, -3));
    int32_t end = no_cache ? 14 : gr_kv_seq_pos_max(s, 0) + 1;
    decode(p, 0, 1, end, 2, true);
    cr_assert_eq((p->way->dup ? gr_kv_seq_dup : gr_kv_seq_cp)(s, 0, 1, -1, -1), 0, "%s",
                 gr_error());
    decode(p, 0, 2, end + 2, 5, true);
    decode(p, 1, 1, end + 7, 3, true);
    rc = gr_kv_seq_rm(s, 0, end + 4, -1);
    may(rc);
    decode(p, 0, 1, rc ? end + 7 : end + 4, 6, true);
    decode(p, 0, 1, rc ? end + 13 : end + 10, 1, true);
}

/* A model that looks at all tokens at once takes a batch whole. */
static struct gr_session_params params(const struct gr_model *m, const struct way *w,
                                       const char *type)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = w->pools ? 1024 : 256, p.n_seq_max = 4, p.n_threads = 1;
    p.n_ubatch = m->hp.no_cache ? 64 : 8;
    p.kv_unified = !w->pools, p.kv_contiguous = w->contiguous, p.swa_full = w->swa_full;
    p.type_k = p.type_v = type;
    return p;
}

static float want[MOST_ROWS * N_VOCAB], got[MOST_ROWS * N_VOCAB];

static void compare_ways(const struct tiny *t, const char *type)
{
    struct gr_model *m = tiny_open(t);
    int n = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const struct way *w = &ways[i];
        struct gr_session_params params_of_way = params(m, w, type);
        struct play p = {.s = tiny_session(m, &params_of_way), .way = w, .out = i ? got : want};
        play(&p);
        n = i ? n : p.n;
        cr_assert(p.n == n && n <= MOST_ROWS);
        for (int r = 0; r < n; r++)
            cr_assert(!memcmp(want + r * N_VOCAB, p.out + r * N_VOCAB, N_VOCAB * sizeof *want),
                      "%s, %s, cache %s: row %d of the logits is another one, nmse %g",
                      t->arch->name, w->name, type, r,
                      tiny_nmse(want + r * N_VOCAB, p.out + r * N_VOCAB, N_VOCAB));
        cr_assert_eq(gr_cache_check(&p.s->cache), 0, "%s", gr_error());
        gr_session_close(&p.s);
    }
    gr_model_close(&m);
}

Test(placement, does_not_show)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        compare_ways(&t, "f32");
    }
}

Test(placement, does_not_show_in_half_floats)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        compare_ways(&t, "f16");
    }
}

/* The ways do place cells differently. */
Test(placement, differs)
{
    struct tiny t = tiny_default(gr_arch_at(0));
    struct gr_model *m = tiny_open(&t);
    int32_t first[3], last[3];
    for (int i = 0; i < 3; i++) {
        const struct way *w = &ways[i == 2 ? 8 : i];
        struct gr_session_params params_of_way = params(m, w, "f32");
        struct play p = {.s = tiny_session(m, &params_of_way), .way = w, .out = got};
        if (w->others)
            crowd(&p);
        decode(&p, 0, 1, 0, 8, true);
        const struct gr_kv *kv = p.s->cache.kv[GR_CACHE_FULL];
        first[i] = last[i] = -1;
        for (uint32_t c = 0; c < gr_kv_n_cell(kv); c++)
            if (gr_kv_cell_has(kv, c, 0)) {
                first[i] = first[i] < 0 ? (int32_t)c : first[i];
                last[i] = (int32_t)c;
            }
        gr_session_close(&p.s);
    }
    cr_expect(first[0] == 0 && last[0] == 7);
    cr_expect(last[1] - first[1] > 7, "cells %d to %d", first[1], last[1]);
    cr_expect(first[2] > 7 && last[2] - first[2] == 7, "cells %d to %d", first[2], last[2]);
    gr_model_close(&m);
}

/* ---- batches of several sequences ---- */

/* F32 sums of at most 96 terms, differently ordered: relative error about 1e-6, squared, over two
 * layers; Kimi K3's softmax over kept values of the residual stream makes it ten times that. */
#define SAME 1e-9

/* Tokens that each of three sequences has in two batches. */
static const int32_t n_of[2][3] = {{17, 9, 4}, {5, 5, 6}};

/* The tokens of sequences [lo, hi) of one batch, in turns as long as they last; out has 32 rows for
 * each sequence. */
static void mixed(struct gr_session *s, int piece, int32_t lo, int32_t hi, float *out)
{
    int32_t tok[32], pos[32], seq[32];
    int8_t logits[32];
    int n = 0;
    for (int32_t i = 0; i < 32; i++)
        for (int32_t q = lo; q < hi; q++)
            if (i < n_of[piece][q]) {
                pos[n] = i + (piece ? n_of[0][q] : 0), seq[n] = q, logits[n] = 1;
                tok[n] = token(q, pos[n]), n++;
            }
    struct gr_batch b = {.n_tok = n, .token = tok, .pos = pos, .seq = seq, .logits = logits};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)(32 * seq[i] + pos[i]) * N_VOCAB, tiny_row(s, i),
               N_VOCAB * sizeof *out);
}

/* Sequences of different lengths in one batch give what each gives alone. */
Test(placement, sequences_side_by_side_are_as_alone)
{
    static float alone[96 * N_VOCAB], together[96 * N_VOCAB];
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        struct gr_model *m = tiny_open(&t);
        for (int pools = 0; pools < 2; pools++) {
            struct gr_session_params p = params(m, &(struct way){.pools = pools}, "f32");
            struct gr_session *s = tiny_session(m, &p);
            for (int piece = 0; piece < 2; piece++)
                mixed(s, piece, 0, 3, together);
            gr_session_close(&s);
            for (int32_t q = 0; q < 3; q++) {
                s = tiny_session(m, &p);
                for (int piece = 0; piece < 2; piece++)
                    mixed(s, piece, q, q + 1, alone);
                gr_session_close(&s);
                size_t at = (size_t)(32 * q) * N_VOCAB;
                size_t n = (size_t)(n_of[0][q] + n_of[1][q]) * N_VOCAB;
                double e = tiny_nmse(alone + at, together + at, n);
                cr_expect(e <= SAME, "%s, sequence %d: %g", t.arch->name, q, e);
            }
        }
        gr_model_close(&m);
    }
}

/* ---- windows ---- */

/* Long enough for a pool of a window and a micro-batch to go round twice. */
#define N_LONG 600

static void decode_long(struct gr_session *s, int n, float *out)
{
    for (int32_t i = 0; i < n; i += 8) {
        int32_t tok[8];
        for (int32_t k = 0; k < 8; k++)
            tok[k] = token(0, i + k);
        struct gr_batch b = {.n_tok = 8, .token = tok};
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        memcpy(out + (size_t)i / 8 * N_VOCAB, tiny_row(s, -1), N_VOCAB * sizeof *out);
    }
}

static bool has_window(const struct gr_model *m)
{
    bool any = false;
    for (int il = 0; il < m->hp.n_layer; il++)
        any |= m->hp.swa.layer[il] && m->hp.attn.n_head_kv[il] > 0;
    return any && !m->hp.no_cache && m->hp.swa.n_swa > 0 &&
           m->hp.swa.n_swa < N_LONG; /* some are wide whatever the file says */
}

/* The same numbers in the same order, whether a window's cells lie among all others or were
 * evicted. A tail that a pruned cache no longer has is not rolled back, and nothing changes. */
Test(placement, windows_forget_what_no_token_sees)
{
    static float full[N_LONG / 8 * N_VOCAB], pruned[N_LONG / 8 * N_VOCAB];
    int n_window = 0;
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        t.n_ctx = 1024;
        struct gr_model *m = tiny_open(&t);
        for (int all = 1; all >= 0 && has_window(m); all--) {
            struct gr_session_params p = params(m, &ways[0], "f32");
            p.n_ctx = 1024, p.n_seq_max = 1, p.swa_full = all;
            struct gr_session *s = tiny_session(m, &p);
            uint32_t n_cell = gr_kv_n_cell(s->cache.kv[GR_CACHE_SWA]);
            cr_assert_eq(n_cell, all ? 1024 : 256, "%s: %u cells", t.arch->name, n_cell);
            decode_long(s, N_LONG, all ? full : pruned);
            int rc = gr_kv_seq_rm(s, 0, 300, -1);
            bool taken = all && !s->cache.rs;
            cr_expect_eq(gr_kv_seq_pos_max(s, 0), taken ? 299 : N_LONG - 1);
            cr_expect_eq(rc, taken ? 0 : GR_E_UNSUPPORTED, "%s: %d", t.arch->name, rc);
            gr_session_close(&s);
            n_window++;
        }
        if (has_window(m))
            cr_expect_eq(memcmp(full, pruned, sizeof full), 0, "%s: nmse %g", t.arch->name,
                         tiny_nmse(full, pruned, N_LONG / 8 * N_VOCAB));
        gr_model_close(&m);
    }
    cr_assert(n_window > 0, "no architecture has a window");
}

/* ---- failures ---- */

struct stop {
    struct gr_session *s;
    int n, after;
};

static void cancel(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                   void *user)
{
    struct stop *c = user;
    (void)name, (void)layer, (void)data, (void)rows, (void)cols;
    if (++c->n == c->after)
        gr_session_cancel(c->s);
}

/* 20 tokens, then a batch of 30 that is stopped on the way, then 10 more. */
static void stopped(const struct tiny *t, struct gr_model *m, int after)
{
    struct gr_session_params params_of_way = params(m, &ways[0], "f32");
    struct play p = {.s = tiny_session(m, &params_of_way), .way = &ways[0], .out = got};
    struct stop c = {p.s, 0, after};
    int32_t tok[30], n_past = 20;
    for (int32_t i = 0; i < 30; i++)
        tok[i] = token(0, 50 + i);
    decode(&p, 0, 1, 0, 10, true);
    decode(&p, 0, 1, 10, 10, true);
    decode(&p, 1, 1, 0, 5, true);
    cr_assert_eq(gr_session_tap(p.s, "layer", cancel, &c), 0);
    int rc = gr_decode(p.s, &(struct gr_batch){.n_tok = 30, .token = tok});
    cr_assert_eq(rc, GR_E_CANCELLED, "%s, after %d: %d", t->arch->name, after, rc);
    cr_assert_eq(gr_session_tap(p.s, NULL, NULL, NULL), 0);
    bool empty = gr_kv_seq_pos_max(p.s, 0) < 0;
    cr_expect_eq(empty, strstr(gr_error(), "they are empty now: 0") != NULL, "%s", gr_error());
    cr_expect(!empty || p.s->cache.rs, "%s: sequence 0 is empty", t->arch->name);
    cr_expect_eq(gr_kv_seq_pos_max(p.s, 1), 4, "%s: sequence 1", t->arch->name);
    cr_assert_eq(gr_cache_check(&p.s->cache), 0, "%s", gr_error());
    if (empty) { /* it begins again; its first logits are the first ones */
        p.n = 0, n_past = 0;
        decode(&p, 0, 1, 0, 10, true);
        decode(&p, 0, 1, 10, 10, true);
        n_past = 20;
        p.n += 5;
    }
    decode(&p, 0, 1, n_past, 10, true);
    decode(&p, 1, 1, 5, 4, true);
    gr_session_close(&p.s);
}

/* A stopped batch leaves nothing behind that changes results. */
Test(placement, a_stopped_batch_leaves_nothing)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        struct gr_model *m = tiny_open(&t);
        struct gr_session_params params_of_way = params(m, &ways[0], "f32");
        struct play p = {.s = tiny_session(m, &params_of_way), .way = &ways[0], .out = want};
        decode(&p, 0, 1, 0, 10, true);
        decode(&p, 0, 1, 10, 10, true);
        decode(&p, 1, 1, 0, 5, true);
        decode(&p, 0, 1, 20, 10, true);
        decode(&p, 1, 1, 5, 4, true);
        gr_session_close(&p.s);
        for (int after = 1; after < 6 && !m->hp.no_cache; after++) {
            stopped(&t, m, after);
            cr_expect_eq(memcmp(want, got, (size_t)p.n * N_VOCAB * sizeof *want), 0,
                         "%s, stopped after %d: nmse %g", t.arch->name, after,
                         tiny_nmse(want, got, (size_t)p.n * N_VOCAB));
        }
        gr_model_close(&m);
    }
}

/* The logits of the token after N_LONG + 7 others, nothing stopped. */
static void decode_long_again(struct gr_model *m, float *last)
{
    static float out[(N_LONG + 8) / 8 * N_VOCAB];
    struct gr_session_params p = params(m, &ways[0], "f32");
    p.n_ctx = 1024, p.n_seq_max = 1;
    struct gr_session *s = tiny_session(m, &p);
    decode_long(s, N_LONG + 8, out);
    memcpy(last, out + (size_t)N_LONG / 8 * N_VOCAB, N_VOCAB * sizeof *last);
    gr_session_close(&s);
}

/* In a full pool of a window a stopped batch has taken cells that earlier tokens need: then the
 * sequence is empty, which is reported, and begins again as if new; otherwise it continues. */
Test(placement, a_stopped_batch_in_a_full_window)
{
    static float first[N_VOCAB], next[N_VOCAB];
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        t.n_ctx = 1024;
        struct gr_model *m = tiny_open(&t);
        for (int after = 1; after < 6 && has_window(m); after++) {
            struct gr_session_params p = params(m, &ways[0], "f32");
            static float out[N_LONG / 8 * N_VOCAB];
            int32_t tok[32];
            p.n_ctx = 1024, p.n_seq_max = 1;
            struct gr_session *s = tiny_session(m, &p);
            struct stop c = {s, 0, after};
            for (int32_t k = 0; k < 32; k++)
                tok[k] = token(0, N_LONG + k);
            decode_long(s, N_LONG, out);
            memcpy(first, out, sizeof first);
            cr_assert_eq(gr_session_tap(s, "layer", cancel, &c), 0);
            cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 32, .token = tok}),
                         GR_E_CANCELLED);
            bool empty = gr_kv_seq_pos_max(s, 0) < 0;
            cr_expect_eq(empty, strstr(gr_error(), "they are empty now: 0") != NULL);
            cr_expect(empty || gr_kv_seq_pos_max(s, 0) == N_LONG - 1);
            cr_assert_eq(gr_session_tap(s, NULL, NULL, NULL), 0);
            cr_assert_eq(gr_cache_check(&s->cache), 0, "%s", gr_error());
            if (empty) {
                decode_long(s, 8, out);
                cr_expect_eq(memcmp(first, out, sizeof first), 0, "%s", t.arch->name);
            } else {
                cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 8, .token = tok}), 0, "%s",
                             gr_error());
                memcpy(next, tiny_row(s, -1), sizeof next);
                decode_long_again(m, out);
                cr_expect_eq(memcmp(next, out, sizeof next), 0, "%s", t.arch->name);
            }
            gr_session_close(&s);
        }
        gr_model_close(&m);
    }
}
