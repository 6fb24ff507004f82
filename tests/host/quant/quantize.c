/* Loss of the quantisers: against the formats' own rules, stated errors and extreme input. */
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/f16.h"
#include "base/rng.h"
#include "gguf/gguf.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/quant.h"

enum { N = 256 * 256 };
#define NVFP4_MAX 2688.f /* 448 * 6 */

/* The table of quant/quant.h. */
struct error {
    uint32_t type;
    float rule, fit;    /* relative RMSE on normal data: without importance, with all ones */
    float normal, real; /* relative RMSE with other importances, in units of llama.cpp's */
};
static const struct error stated[] = {
    {GR_Q8_0, 0.005289f, 0.004891f, 0.849f, 0.8634f},
    {GR_Q5_1, 0.03759f, 0.03318f, 0.9764f, 0.9814f},
    {GR_Q5_0, 0.04216f, 0.03953f, 0.9726f, 0.9777f},
    {GR_Q4_1, 0.07793f, 0.06917f, 0.9822f, 0.988f},
    {GR_Q4_0, 0.08533f, 0.08018f, 0.9746f, 0.9842f},
    {GR_Q6_K, 0.01687f, 0.01687f, 0.9624f, 0.9689f},
    {GR_Q5_K, 0.03418f, 0.03418f, 0.95f, 0.9549f},
    {GR_Q4_K, 0.06959f, 0.06959f, 0.9763f, 0.9788f},
    {GR_Q3_K, 0.1422f, 0.1422f, 0.9822f, 0.9873f},
    {GR_Q2_K, 0.2586f, 0.2586f, 0.9536f, 0.9636f},
    {GR_Q8_1, 0.005289f, 0.004891f, 0, 0},
    {GR_Q8_K, 0.006809f, 0.006629f, 0, 0},
    {GR_IQ4_NL, 0.0729f, 0.0729f, 0.9474f, 0.9642f},
    {GR_IQ4_XS, 0.07347f, 0.07347f, 0.9463f, 0.961f},
    {GR_IQ3_S, 0.1294f, 0.1294f, 0.8675f, 0.8836f},
    {GR_IQ3_XXS, 0.1775f, 0.1775f, 0.8836f, 0.9109f},
    {GR_IQ2_S, 0.2381f, 0.2381f, 0.8876f, 0.8944f},
    {GR_IQ2_XS, 0.2854f, 0.2854f, 0.8684f, 0.88f},
    {GR_IQ2_XXS, 0.327f, 0.327f, 0.7907f, 0.8913f},
    {GR_IQ1_M, 0.4102f, 0.4102f, 0.9088f, 0.8741f},
    {GR_IQ1_S, 0.4411f, 0.4411f, 0.9061f, 0.8847f},
    {GR_NVFP4, 0.09512f, 0.08112f, 0.7126f, 0.748f},
    {GR_MXFP4, 0.1149f, 0.1114f, 0.966f, 0.7917f},
    {GR_Q2_0, 0.7154f, 0.3494f, 0.4498f, 0.472f},
    {GR_TQ2_0, 0.802f, 0.4306f, 0.5301f, 0.6283f},
    {GR_TQ1_0, 0.802f, 0.4306f, 0.5301f, 0.6283f},
    {GR_Q1_0, 0.5973f, 0.5973f, 0.9916f, 0.857f},
};

static float *normal(size_t n, uint64_t seed)
{
    struct gr_rng r = gr_rng_new(seed);
    float *x = gr_calloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = gr_rng_normal(&r);
    return x;
}

static float *filled(size_t n, float value)
{
    float *x = gr_calloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

/* x through the type and back. */
static void round_trip(uint32_t type, const float *x, const float *importance, float *y, size_t n)
{
    const struct gr_quant *q = gr_quant_find(type);
    void *raw = gr_calloc(1, gr_row_bytes(type, n));
    q->quantize(x, raw, n, importance);
    q->dequantize(raw, y, n);
    gr_free(raw);
}

/* sqrt(sum w (x - y)^2 / sum w x^2) */
static double relative(const float *x, const float *y, const float *w, size_t n)
{
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        double wi = w ? w[i] : 1, d = (double)x[i] - y[i];
        e += wi * d * d;
        s += wi * x[i] * x[i];
    }
    return sqrt(e / s);
}

static uint64_t hash_of_quantized_normals(uint32_t type, uint64_t seed, size_t n_blocks)
{
    size_t n = n_blocks * gr_dtype_find(type)->block, bytes = gr_row_bytes(type, n);
    float *x = normal(n, seed);
    uint32_t *raw = gr_calloc(1, bytes);
    gr_quant_find(type)->quantize(x, raw, n, NULL);
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes / 4; i++) {
        h = (h ^ raw[i]) * 0x100000001b3u;
        h ^= h >> 32;
    }
    gr_free(raw);
    gr_free(x);
    return h;
}

/* Without importance the simple types equal gguf's quants.py (or llama.cpp) byte for byte. */
Test(quantize, rule_is_the_formats)
{
    int n_types = 0;
#define BLOCK(NAME, hex, ...)
#define DEQUANT(NAME, seed, n, hash)
#define PEER(NAME, normal, real)
#define QUANT_EXACT(NAME, seed, n, hash)                                                           \
    cr_assert_eq(hash_of_quantized_normals(GR_##NAME, seed, n), hash, #NAME);                      \
    n_types++;
#include "golden/quant/quant.inc"
    cr_assert_eq(n_types, 13);
#undef PEER
#undef QUANT_EXACT
}

Test(quantize, stated_error)
{
    float *x = normal(N, 7), *y = filled(N, 0), *ones = filled(N, 1);
    for (size_t i = 0; i < GR_COUNT(stated); i++) {
        const char *name = gr_dtype_name(stated[i].type);
        round_trip(stated[i].type, x, NULL, y, N);
        double rule = relative(x, y, NULL, N);
        round_trip(stated[i].type, x, ones, y, N);
        double fit = relative(x, y, NULL, N);
        cr_log_info("%-5s relative RMSE %.6f, with weights %.6f", name, rule, fit);
        cr_expect_float_eq(rule, stated[i].rule, 0.005 * stated[i].rule, "%s: %g", name, rule);
        cr_expect_float_eq(fit, stated[i].fit, 0.005 * stated[i].fit, "%s: %g", name, fit);
    }
    gr_free(ones);
    gr_free(y);
    gr_free(x);
}

static void check_peer(const struct error *stated_error, const char *data, const float *x,
                       const float *w_row, double peer, double ratio)
{
    const char *name = gr_dtype_name(stated_error->type);
    float *y = filled(N, 0), *w = filled(N, 0);
    for (size_t i = 0; i < N; i++)
        w[i] = w_row[i % 256];
    round_trip(stated_error->type, x, w, y, N);
    double e = relative(x, y, w, N);
    cr_log_info("%-7s %s data: %.4f of llama.cpp's error", name, data, e / peer);
    cr_expect_float_eq(e / peer, ratio, 0.005 * ratio, "%s, %s data: %g", name, data, e / peer);
    gr_free(w);
    gr_free(y);
}

static const struct error *stated_of(uint32_t type)
{
    for (size_t i = 0; i < GR_COUNT(stated); i++)
        if (stated[i].type == type)
            return &stated[i];
    cr_assert_fail("%s has no stated error", gr_dtype_name(type));
    return NULL;
}

/* Data and importances as tests/golden/quant/make.py gives them to llama.cpp's quantisers: x
 * [N / 256, 256] and w [256] from a generator .. */
static void normal_data(float *x, float *w)
{
    float *both = normal(N + 256, 21);
    for (size_t i = 0; i < 256; i++)
        w[i] = both[i] * both[i];
    memcpy(x, both + 256, N * sizeof *x);
    gr_free(both);
}

static void read_f32(const struct gr_gguf *g, const char *name, float *x, size_t n)
{
    const struct gr_gguf_tensor *t = gr_gguf_find_tensor(g, name);
    cr_assert_not_null(t, "%s", name);
    void *raw = gr_calloc(1, t->bytes);
    cr_assert_eq(gr_gguf_read_tensor(g, t, raw), 0);
    cr_assert_eq(t->bytes, gr_row_bytes(t->dtype, n));
    gr_quant_find(t->dtype)->dequantize(raw, x, n);
    gr_free(raw);
}

/* .. and a matrix of the default model with the mean squares of what it is multiplied with. */
static void real_data(float *x, float *w)
{
    enum { N_TOKEN = 768 };
    struct gr_gguf *g;
    float norm[256], *embd = filled(N_TOKEN * 256, 0);
    cr_assert_eq(gr_gguf_open(&g, GR_SOURCE_DIR "/tools/default-model.gguf", true), 0, "%s",
                 gr_error());
    read_f32(g, "blk.0.attn_q.weight", x, N);
    read_f32(g, "blk.0.attn_norm.weight", norm, 256);
    read_f32(g, "token_embd.weight", embd, N_TOKEN * 256);
    memset(w, 0, 256 * sizeof *w);
    for (size_t t = 0; t < N_TOKEN; t++) {
        double sum = 0;
        for (size_t i = 0; i < 256; i++)
            sum += pow(embd[256 * t + i], 2);
        for (size_t i = 0; i < 256; i++)
            w[i] += (float)(pow(embd[256 * t + i] * norm[i], 2) / (sum / 256 + 1e-5) / N_TOKEN);
    }
    gr_free(embd);
    gr_gguf_close(&g);
}

Test(quantize, error_beside_the_peers)
{
    float *x = filled(N, 0), *real = filled(N, 0), w[256], w_real[256];
    int n_types = 0;
    normal_data(x, w);
    real_data(real, w_real);
#define QUANT_EXACT(NAME, seed, n, hash)
#define PEER(NAME, normal_error, real_error)                                                       \
    check_peer(stated_of(GR_##NAME), "normal", x, w, normal_error, stated_of(GR_##NAME)->normal);  \
    check_peer(stated_of(GR_##NAME), "real", real, w_real, real_error,                             \
               stated_of(GR_##NAME)->real);                                                        \
    n_types++;
#include "golden/quant/quant.inc"
    cr_assert_eq(n_types, (int)GR_COUNT(stated) - 2, "all but Q8_1 and Q8_K");
    gr_free(real);
    gr_free(x);
}

/* Weights must lower the error that they weigh, on data with outliers. */
Test(quantize, importance_is_heeded)
{
    float *x = normal(N, 8), *w = normal(N, 9), *ones = filled(N, 1), *y = filled(N, 0);
    for (size_t i = 0; i < N; i++) {
        x[i] = x[i] * x[i] * x[i];
        w[i] = w[i] * w[i];
    }
    for (size_t i = 0; i < GR_COUNT(stated); i++) {
        round_trip(stated[i].type, x, ones, y, N);
        double plain = relative(x, y, w, N);
        round_trip(stated[i].type, x, w, y, N);
        double weighed = relative(x, y, w, N);
        /* two types have but one number for 128 or 256 elements to follow the weights with */
        bool stiff = stated[i].type == GR_Q1_0 || stated[i].type == GR_Q8_K;
        cr_expect_lt(weighed, (stiff ? 0.995 : 0.98) * plain, "%s: %g and %g",
                     gr_dtype_name(stated[i].type), weighed, plain);
    }
    gr_free(y);
    gr_free(ones);
    gr_free(w);
    gr_free(x);
}

/* Each element of a simple type is off by at most half a step (a whole one where the range ends
 * at +7 or +15), plus the rounding of the scale and of the minimum to f16. */
Test(quantize, rule_bounds_each_element)
{
    static const struct {
        uint32_t type;
        float steps, per_element; /* levels, largest error in steps */
        bool min;
    } t[] = {{GR_Q8_0, 127, 0.5f, false},
             {GR_Q4_0, 8, 1, false},
             {GR_Q5_0, 16, 1, false},
             {GR_Q4_1, 15, 0.5f, true},
             {GR_Q5_1, 31, 0.5f, true}};
    float *x = normal(N, 10), *y = filled(N, 0);
    for (size_t k = 0; k < GR_COUNT(t); k++) {
        round_trip(t[k].type, x, NULL, y, N);
        for (size_t b = 0; b < N; b += 32) {
            float lo = 0, hi = 0, top;
            for (size_t i = b; i < b + 32; i++) {
                lo = i == b ? x[i] : fminf(lo, x[i]);
                hi = i == b ? x[i] : fmaxf(hi, x[i]);
            }
            top = fmaxf(fabsf(lo), fabsf(hi));
            float step = (t[k].min ? hi - lo : top) / t[k].steps;
            for (size_t i = b; i < b + 32; i++)
                cr_assert_leq(fabsf(x[i] - y[i]), step * t[k].per_element + 3 * top * 0x1p-11f,
                              "%s", gr_dtype_name(t[k].type));
        }
    }
    gr_free(y);
    gr_free(x);
}

/* Values that were dequantised once are kept: exactly by the formats' rules, closely by the K
 * types' fits. */
Test(quantize, twice_is_once)
{
    float *x = normal(N, 11), *y = filled(N, 0), *z = filled(N, 0);
    for (size_t i = 0; i < GR_COUNT(stated); i++) {
        uint32_t type = stated[i].type;
        round_trip(type, x, NULL, y, N);
        round_trip(type, y, NULL, z, N);
        double e = relative(y, z, NULL, N);
        cr_log_info("%-5s twice %.3g", gr_dtype_name(type), e);
        if (gr_dtype_find(type)->block == 32)
            cr_expect_eq(e, 0, "%s: %g", gr_dtype_name(type), e);
        else
            cr_expect_lt(e, 0.35 * stated[i].rule, "%s: %g", gr_dtype_name(type), e);
    }
    gr_free(z);
    gr_free(y);
    gr_free(x);
}

/* Blocks do not see each other, and the same input gives the same bytes. */
Test(quantize, by_block_is_the_same)
{
    uint8_t whole[256 * 4 * 4], part[256 * 4 * 4];
    float *x = normal(1024, 12), *w = filled(1024, 0.25f);
    for (size_t i = 0; i < GR_COUNT(stated); i++) {
        const struct gr_dtype_info *t = gr_dtype_find(stated[i].type);
        const struct gr_quant *q = gr_quant_find(t->id);
        for (int weighed = 0; weighed < 2; weighed++) {
            q->quantize(x, whole, 1024, weighed ? w : NULL);
            for (size_t at = 0; at < 1024; at += t->block)
                q->quantize(x + at, part + at / t->block * t->block_bytes, t->block,
                            weighed ? w + at : NULL);
            cr_expect_arr_eq(whole, part, gr_row_bytes(t->id, 1024), "%s", t->name);
        }
    }
    gr_free(w);
    gr_free(x);
}

/* Largest error of a constant: the scale of MXFP4 is a power of two, by whose rule 8 becomes 6,
 * that of NVFP4 has 3 bits behind the point; IQ4_XS multiplies a scale of few bits (a small f16) by
 * 32 at most. */
static float constant_error(uint32_t type)
{
    switch (type) {
    case GR_MXFP4:
        return 0.25f;
    case GR_NVFP4:
        return 0x1p-4f;
    case GR_IQ4_XS:
        return 0x1p-6f;
    default:
        return 0.008f;
    }
}

/* A constant block is kept closely, whatever its size inside the range of the scales. */
Test(quantize, constants)
{
    static const float c[] = {0, 1, -1, 0.02f, -0.3f, 1000, -60000, 1e-3f, -1e-3f};
    float x[256], y[256], w[256];
    for (size_t i = 0; i < GR_COUNT(stated); i++)
        for (size_t k = 0; k < GR_COUNT(c); k++)
            for (int weighed = 0; weighed < 2; weighed++) {
                for (int j = 0; j < 256; j++)
                    x[j] = c[k], w[j] = 2;
                round_trip(stated[i].type, x, weighed ? w : NULL, y, 256);
                if (stated[i].type == GR_NVFP4 && fabsf(c[k]) < 0.1f && c[k] != 0)
                    continue; /* scales without a leading bit */
                float want = stated[i].type == GR_NVFP4 ? fmaxf(c[k], -NVFP4_MAX) : c[k];
                for (int j = 0; j < 256; j++)
                    cr_assert_leq(fabsf(y[j] - want), constant_error(stated[i].type) * fabsf(want),
                                  "%s of %g: %g", gr_dtype_name(stated[i].type), (double)c[k],
                                  (double)y[j]);
            }
}

static void fill_extreme(float *x, int n, int kind, struct gr_rng *r)
{
    static const float special[] = {NAN,    INFINITY, -INFINITY, 3e38f, -3e38f, 65504,
                                    1e-45f, -1e-40f,  0,         -0.0f, 1,      6e-8f};
    for (int i = 0; i < n; i++) {
        if (kind == 0)
            x[i] = gr_bits_f32(gr_rng_u32(r));
        else if (kind == 1)
            x[i] = special[gr_rng_below(r, GR_COUNT(special))];
        else
            x[i] = ldexpf(gr_rng_normal(r), kind - 140);
    }
}

/* Any input, and any weights, quantise to finite values of the right size. */
Test(quantize, extremes_stay_finite)
{
    struct gr_rng r = gr_rng_new(13);
    float x[256], w[256], y[256];
    for (size_t i = 0; i < GR_COUNT(stated); i++)
        for (int kind = 0; kind < 260; kind++) {
            fill_extreme(x, 256, kind, &r);
            fill_extreme(w, 256, (int)gr_rng_below(&r, 260), &r);
            round_trip(stated[i].type, x, kind & 1 ? w : NULL, y, 256);
            float largest = 0;
            for (int j = 0; j < 256; j++)
                largest = fmaxf(largest, isnan(x[j]) ? 0 : fabsf(x[j]));
            for (int j = 0; j < 256; j++) {
                cr_assert(isfinite(y[j]), "%s kind %d", gr_dtype_name(stated[i].type), kind);
                cr_assert_leq(fabsf(y[j]), 2 * largest + 0x1p-20f, "%s kind %d",
                              gr_dtype_name(stated[i].type), kind);
            }
        }
}

/* Small weights lie where the scale is a subnormal f16: f16 steps of 2^-24 add little. (NVFP4 has
 * nothing there: what is below 2^-10 needs the scale of its tensor.) */
Test(quantize, subnormal_scales)
{
    struct gr_rng r = gr_rng_new(14);
    float x[256], y[256], w[256];
    for (size_t i = 0; i < GR_COUNT(stated); i++)
        for (int e = -30; e < -14 && stated[i].type != GR_NVFP4; e++) {
            for (int j = 0; j < 256; j++)
                x[j] = ldexpf(gr_rng_normal(&r), e), w[j] = 1;
            round_trip(stated[i].type, x, w, y, 256);
            double bound = 1.25 * stated[i].fit * ldexp(1, e) + 0x1p-21;
            double error = relative(x, y, NULL, 256) * ldexp(1, e);
            cr_expect_leq(error, bound, "%s 2^%d: %g over %g", gr_dtype_name(stated[i].type), e,
                          error, bound);
        }
}
