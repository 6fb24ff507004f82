/* Numbers that are stored with fewer bits: weights beside the same numbers in f32, caches beside
 * f32 caches, and caches that are shifted. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/session.h"
#include "gr/status.h"
#include "quant/planes.h"
#include "quant/quant.h"
#include "support/tiny.h"

#define N_TOK 24
#define N_VOCAB 96

static float want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB];

static struct gr_session *session(struct gr_model *m, const char *type)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.type_k = p.type_v = type, p.n_threads = 1, p.n_seq_max = 2;
    return tiny_session(m, &p);
}

static void decode(struct gr_session *s, int32_t pos, int n, float *out)
{
    int32_t id[N_TOK], at[N_TOK];
    int8_t all[N_TOK];
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * i) % N_VOCAB, at[i] = pos + i, all[i] = 1;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = at, .logits = all};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    for (int i = 0; i < n && out; i++)
        memcpy(out + (size_t)i * N_VOCAB, tiny_row(s, i), N_VOCAB * sizeof *out);
}

static void logits_of(struct gr_model *m, const char *cache, float *out)
{
    struct gr_session *s = session(m, cache);
    decode(s, 0, N_TOK, out);
    gr_session_close(&s);
}

/* Rows of whole super-blocks. */
static struct tiny wide(const char *arch)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    t.n_embd = t.n_ff = 256, t.d_head = 64, t.n_expert = 0;
    return t;
}

/* The product of f16 weights with f32 differs by the order of its sums alone. That of bf16 weights
 * may round the activations to bf16 as well, a relative squared error of 2.6e-6 (below), and that
 * of block types to 8 bits, 32 of them with one scale: a step of max / 127, so a relative squared
 * error of (4.5 / 127^2) / 12 = 2.3e-5 a product. A token passes 4 such products a layer one after
 * the other and one at the end, 9 here; a factor of 5 covers that they meet in products (gates,
 * scores). Without experts: which ones are chosen may flip. */
Test(stored, weights)
{
    static const char *const arch[] = {"llama", "gemma2", "phi3"};
    static const char *const type[] = {"f16", "bf16", "q8_0", "q4_K"};
    static const double most[] = {1e-10, 9 * 2.6e-6 * 5, 9 * 2.3e-5 * 5, 9 * 2.3e-5 * 5};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < (i ? 3 : 4); k++) { /* fitting super-blocks takes its time */
            struct tiny t = wide(arch[i]);
            t.dtype = type[k];
            struct gr_model *few = tiny_open(&t);
            t.as_f32 = true;
            struct gr_model *f32 = tiny_open(&t);
            logits_of(few, "f32", got);
            logits_of(f32, "f32", want);
            double e = tiny_nmse(want, got, N_TOK * N_VOCAB);
            cr_expect(e <= most[k], "%s, %s: %g", arch[i], type[k], e);
            gr_model_close(&few);
            gr_model_close(&f32);
        }
}

/* The mean squared error of a type relative to the mean square, on normal numbers: half a unit in
 * the last of 11 or 8 bits; the quantisers' own (quant/quant.h). */
static const struct {
    const char *name;
    double error;
} caches[] = {{"f32", 1e-15},    {"f16", 4e-8},     {"bf16", 2.6e-6},
              {"q8_0", 2.81e-5}, {"q4_0", 7.3e-3},  {"q4_1", 6.1e-3},
              {"q5_0", 1.8e-3},  {"q5_1", 1.42e-3}, {"iq4_nl", 5.9e-3}};
#define N_CACHE (int)(sizeof caches / sizeof *caches)

/* K and V of both layers are rounded, and what is made of them is not larger than the rest of the
 * residual stream: 4 errors; a factor of 3 for those that meet in scores. At least a hundredth of
 * one, or the type was not used. A selective scan makes a product of five numbers that each carry
 * the error of the layer before. */
Test(stored, caches)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = wide(gr_arch_at(i)->name);
        if (t.arch->no_cache)
            continue;
        t.n_expert = tiny_needs_experts(t.arch) ? 2 : 0; /* both are used: no choice flips */
        struct gr_model *m = tiny_open(&t);
        int n_cache = tiny_has(t.arch, GR_W_ATTN_OUT) ? N_CACHE : 0;
        double most = tiny_keeps_states(m) ? 4 * 3 * 5 : 4 * 3;
        logits_of(m, "f32", want);
        for (int k = 1; k < n_cache; k++) {
            logits_of(m, caches[k].name, got);
            double e = tiny_nmse(want, got, N_TOK * N_VOCAB), one = caches[k].error;
            cr_expect(e <= most * one && e >= one / 100, "%s, %s: %g", t.arch->name, caches[k].name,
                      e);
        }
        gr_model_close(&m);
    }
}

/* Heads of any number of blocks, values of another width, rotated in part. */
Test(stored, head_sizes)
{
    static const int size[][3] = {{32, 32, 0},  {64, 32, 0},   {96, 64, 32},
                                  {160, 96, 0}, {32, 160, 10}, {256, 128, 0}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        struct tiny t = wide("qwen2");
        t.n_embd = 64, t.n_ff = 64;
        t.d_head = size[i][0], t.d_v = size[i][1], t.n_rot = size[i][2];
        struct gr_model *m = tiny_open(&t);
        logits_of(m, "f32", want);
        for (int k = 1; k < N_CACHE; k++) {
            logits_of(m, caches[k].name, got);
            double e = tiny_nmse(want, got, N_TOK * N_VOCAB), one = caches[k].error;
            cr_expect(e <= 4 * 3 * one && e >= one / 100, "heads of %d and %d, %s: %g", size[i][0],
                      size[i][1], caches[k].name, e);
        }
        gr_model_close(&m);
    }
}

Test(stored, heads_that_hold_no_whole_blocks)
{
    for (int v = 0; v < 2; v++) {
        struct tiny t = wide("qwen2");
        struct gr_session_params p = gr_session_params_default();
        struct gr_session *s;
        t.n_embd = 64, t.d_head = v ? 64 : 48, t.d_v = v ? 48 : 64;
        struct gr_model *m = tiny_open(&t);
        p.n_ctx = 256, p.type_k = p.type_v = "q8_0";
        cr_expect_eq(gr_session_open(&s, m, &p), GR_E_INVALID);
        cr_expect_null(s);
        cr_expect(strstr(gr_error(), "heads of 48; use f16"), "%s", gr_error());
        gr_model_close(&m);
    }
}

/* Values that are part of K's rows begin at a whole block too. */
Test(stored, latents_that_hold_no_whole_blocks)
{
    struct tiny t = wide("deepseek2");
    struct gr_session_params p = gr_session_params_default();
    struct gr_session *s;
    t.d_head = 22; /* and 10 roped columns: rows of 32 */
    struct gr_model *m = tiny_open(&t);
    p.n_ctx = 256, p.type_k = "q8_0", p.type_v = "f16";
    cr_expect_eq(gr_session_open(&s, m, &p), GR_E_INVALID);
    cr_expect_null(s);
    cr_expect(strstr(gr_error(), "heads of 22; use f16"), "%s", gr_error());
    gr_model_close(&m);
}

/* The n_row rows of a cache as f32. */
static void rows_of(const struct gr_ten *cache, int n_row, float *out)
{
    for (int r = 0; r < n_row; r++)
        if (cache->planes)
            gr_planes_load(cache->dtype, cache->cols, gr_ten_row(cache, 0, r), 0, cache->cols,
                           out + r * cache->cols);
        else
            gr_quant_find(cache->dtype)
                ->dequantize(gr_ten_row(cache, 0, r), out + r * cache->cols, (size_t)cache->cols);
}

/* Every shift loads K, turns it and rounds it again: n shifts leave n + 1 errors of rounding, and
 * as a small turn may be rounded away each time, they add like lengths: (n + 1)^2 times the squared
 * one. V does not change at all. */
Test(stored, repeated_shifts)
{
    enum { N_SHIFT = 7, N = 20, COLS = 128 };
    static float k_want[N * COLS], k_got[N * COLS];
    static char v_before[N * COLS * 4];
    static const char *const arch[] = {"llama", "gemma3", "phi3"};
    for (int i = 0; i < 3; i++) {
        struct tiny t = wide(arch[i]);
        struct gr_model *m = tiny_open(&t);
        for (int k = 0; k < N_CACHE; k++) {
            struct gr_session *a = session(m, caches[k].name), *b = session(m, "f32");
            decode(a, 0, N, NULL);
            decode(b, 3 * N_SHIFT, N, NULL);
            memcpy(v_before, a->env.v_cache[0].data, (size_t)(N * a->env.v_cache[0].row_bytes));
            for (int n = 0; n < N_SHIFT; n++) { /* the token of the other sequence starts it */
                cr_assert_eq(gr_kv_seq_add(a, 0, 0, -1, 3), 0);
                struct gr_batch one = {.n_tok = 1, .token = &(int32_t){1}, .seq = &(int32_t){1}};
                cr_assert_eq(gr_decode(a, &one), 0, "%s", gr_error());
            }
            rows_of(&a->env.k_cache[0], N, k_got);
            rows_of(&b->env.k_cache[0], N, k_want);
            double e = tiny_nmse(k_want, k_got, N * COLS);
            cr_expect(e <= (N_SHIFT + 1) * (N_SHIFT + 1) * caches[k].error, "%s, %s: %g", arch[i],
                      caches[k].name, e);
            cr_expect_eq(
                memcmp(v_before, a->env.v_cache[0].data, (size_t)(N * a->env.v_cache[0].row_bytes)),
                0);
            gr_session_close(&a);
            gr_session_close(&b);
        }
        gr_model_close(&m);
    }
}

/* Fills the rows of free cells with bytes that are NaN in every type, or zeros. */
static void fill_free_cells(struct gr_session *s, int byte)
{
    int32_t n_layer = s->model->hp.n_layer;
    for (int32_t i = 0; i < n_layer * GR_T_CONV; i++) {
        const struct gr_kv *kv = s->cache.kv[s->model->hp.swa.layer[i % n_layer]];
        const struct gr_ten *t = &s->tensors[i];
        for (uint32_t c = 0; gr_ten_is(t) && c < gr_kv_n_cell(kv); c++)
            if (gr_kv_cell(kv, c).pos < 0)
                memset(gr_ten_row(t, 0, c), byte, (size_t)t->row_bytes);
    }
}

/* Content of free cells never reaches a result, wherever they lie between the used ones. */
Test(stored, free_cells_are_never_read)
{
    static const char *const arch[] = {"llama", "gemma2", "bloom"};
    for (int i = 0; i < 3; i++) {
        struct tiny t = wide(arch[i]);
        t.n_embd = t.n_ff = 64;
        struct gr_model *m = tiny_open(&t);
        for (int k = 0; k < N_CACHE; k++) {
            for (int poison = 0; poison < 2; poison++) {
                float *out = poison ? got : want;
                struct gr_session *s = session(m, caches[k].name);
                fill_free_cells(s, poison ? 0xff : 0);
                decode(s, 0, 20, NULL);
                cr_assert_eq(gr_kv_seq_rm(s, 0, 3, 9), 0);
                cr_assert_eq(gr_kv_seq_rm(s, 0, 11, 12), 0);
                cr_assert_eq(gr_kv_seq_add(s, 0, 12, -1, -1), 0, "%s", gr_error());
                fill_free_cells(s, poison ? 0xff : 0);
                decode(s, 19, 5, out);
                decode(s, 24, 1, out + 5 * N_VOCAB);
                gr_session_close(&s);
            }
            cr_expect_eq(memcmp(want, got, 6 * N_VOCAB * sizeof *want), 0, "%s, %s", arch[i],
                         caches[k].name);
        }
        gr_model_close(&m);
    }
}
