/* Whole models at every instruction level beside the scalar references, with sizes that are no
 * multiples of any vector. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "cpu/cpu.h"
#include "engine/session.h"
#include "gr/dtype.h"
#include "gr/pack.h"
#include "gr/status.h"
#include "support/tiny.h"

#define N_TOK 21

/* A prompt, a shift, single tokens; all rows of s->n_row numbers go to out [N_TOK]. */
static void decode_rows(struct gr_session *s, float *out)
{
    const struct gr_model *m = s->model;
    size_t n = (size_t)s->n_row;
    int32_t id[N_TOK];
    int8_t all[N_TOK];
    for (int i = 0; i < N_TOK; i++)
        id[i] = (5 + 37 * i) % m->hp.n_vocab, all[i] = 1;
    for (int at = 0, k; at < N_TOK; at += k) {
        k = at ? 1 : N_TOK - 5;
        struct gr_batch b = {.n_tok = k, .token = id + at, .logits = all};
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        for (int j = 0; j < k; j++)
            memcpy(out + (size_t)(at + j) * n, tiny_row(s, j), n * sizeof *out);
        if (m->arch->no_cache || tiny_keeps_states(m))
            continue;
        cr_assert_eq(gr_kv_seq_rm(s, 0, 2, 3), 0);
        if (!tiny_learned_positions(m))
            cr_assert_eq(gr_kv_seq_add(s, 0, 3, -1, -1), 0, "%s", gr_error());
    }
}

/* The same of a session at one level. Returns how many numbers a row has. */
static size_t rows_at(struct gr_model *m, enum gr_cpu_level level, const char *cache, float *out)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.type_k = p.type_v = cache, p.n_threads = 1;
    struct gr_session *s = tiny_session_at(m, level, &p);
    size_t n = (size_t)s->n_row;
    decode_rows(s, out);
    gr_session_close(&s);
    return n;
}

/* Sums of at most some hundred f32 products, in another order, through two layers. In a cache of
 * f16 such a difference may fall on a boundary of rounding. */
Test(levels, agree_with_the_references)
{
    static const struct {
        int n_embd, n_ff, n_head, n_head_kv, d_head, d_v, n_rot, n_vocab;
    } size[] = {{30, 50, 3, 3, 10, 10, 10, 35},
                {33, 17, 5, 1, 6, 3, 2, 97},
                {64, 96, 6, 2, 34, 16, 18, 65},
                {1, 2, 1, 1, 2, 1, 2, 3}};
    static float want[N_TOK * 100], got[N_TOK * 100];
    for (int i = 0; gr_arch_at(i); i++)
        for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
            struct tiny t = tiny_default(gr_arch_at(i));
            bool whole = t.n_head_kv == t.n_head; /* needs norms over all of Q and K */
            if (whole && (k == 1 || k == 2))
                continue;
            t.n_embd = size[k].n_embd, t.n_ff = size[k].n_ff, t.n_head = size[k].n_head;
            t.n_head_kv = size[k].n_head_kv, t.d_head = size[k].d_head, t.d_v = size[k].d_v;
            t.n_rot = size[k].n_rot, t.n_vocab = size[k].n_vocab;
            if (strcmp(t.arch->name, "step35") == 0) /* some layers turn half of n_rot */
                t.n_rot = (int)GR_PAD(t.n_rot, 4), t.d_head = GR_MAX(t.d_head, t.n_rot);
            if (tiny_has(t.arch, GR_W_ATTN_GATE)) /* gates as wide as queries, for values */
                t.d_v = t.d_head;
            if (whole)
                t.n_embd = t.n_head * t.d_head;
            struct gr_model *m = tiny_open(&t);
            for (int c = 0; c < 2; c++) {
                const char *cache = c ? "f16" : "f32";
                size_t n = rows_at(m, GR_CPU_REF, cache, want);
                for (enum gr_cpu_level l = GR_CPU_REF + 1; l < GR_CPU_N_LEVEL; l++) {
                    if (!gr_cpu_has(l))
                        continue;
                    rows_at(m, l, cache, got);
                    double e = tiny_nmse(want, got, N_TOK * n);
                    cr_expect(e < (c ? 1e-6 : 1e-9), "%s, size %zu, %s, cache %s: %g", t.arch->name,
                              k, gr_cpu_level_name(l), cache, e);
                }
            }
            gr_model_close(&m);
        }
}

/* Quantised matrices of a llama 256 wide beside the same numbers as f32. The references multiply
 * what is dequantised: the same bits. The fast levels round the columns that meet a matrix to 8
 * bits, 32 with a step of largest / 127; a rounding's mean square is step^2 / 12, and largest^2 at
 * most 32 times the mean square of such a group, so that a product's result has a relative square
 * of 32 / (12 * 127^2) more. A row goes through 5 products: one is that of Q, K and V, one that of
 * gate and up. One element of 256 that is wrong is 16 times as much. No experts: where two are
 * nearly as good, a rounding may choose the other. */
Test(levels, storage_types)
{
    const double bound = 5 * 32 / (12.0 * 127 * 127);
    static float want[N_TOK * 100], got[N_TOK * 100];
    for (uint32_t id = 0; id < 64; id++) {
        if (!gr_pack_is(id) || gr_dtype_find(id)->block == 1)
            continue;
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
        t.n_layer = 1, t.n_expert = 0, t.n_embd = t.n_ff = 256, t.d_head = 64;
        t.dtype = gr_dtype_name(id);
        struct gr_model *typed = tiny_open(&t);
        t.as_f32 = true;
        struct gr_model *exact = tiny_open(&t);
        size_t n = rows_at(exact, GR_CPU_REF, "f32", want);
        for (enum gr_cpu_level l = GR_CPU_REF; l < GR_CPU_N_LEVEL; l++) {
            if (!gr_cpu_has(l))
                continue;
            rows_at(typed, l, "f32", got);
            double e = tiny_nmse(want, got, N_TOK * n);
            cr_expect(l == GR_CPU_REF ? e == 0 : e < bound, "%s, %s: %g", t.dtype,
                      gr_cpu_level_name(l), e);
        }
        gr_model_close(&typed);
        gr_model_close(&exact);
    }
}

/* The level of the model parameters is the one that runs, to the last bit; a level that does not
 * exist is refused. */
Test(levels, of_a_model)
{
    static float want[N_TOK * 100], got[N_TOK * 100];
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.n_layer = 1, t.n_expert = 0, t.n_embd = t.n_ff = 256, t.d_head = 64, t.dtype = "q8_0";
    struct gr_model *any = tiny_open(&t), *m;
    for (enum gr_cpu_level l = GR_CPU_REF; l < GR_CPU_N_LEVEL; l++) {
        struct gr_model_params mp = gr_model_params_default();
        struct gr_session_params sp = gr_session_params_default();
        const char *path = tiny_write(&t, NULL);
        mp.cpu_level = gr_cpu_level_name(l), mp.device = "cpu";
        sp.n_ctx = 256, sp.n_threads = 1;
        cr_assert_eq(gr_model_open(&m, path, &mp), gr_cpu_has(l) ? 0 : GR_E_INVALID);
        unlink(path);
        if (!m)
            continue;
        size_t n = rows_at(any, l, "f16", want);
        struct gr_session *s = tiny_session(m, &sp);
        decode_rows(s, got);
        cr_expect_eq(memcmp(want, got, N_TOK * n * sizeof *got), 0, "%s", mp.cpu_level);
        gr_session_close(&s);
        gr_model_close(&m);
    }
    gr_model_close(&any);
}
