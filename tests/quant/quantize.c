/* What the quantisers lose: against the formats' own rules, stated errors and extreme input. */
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/f16.h"
#include "base/rng.h"
#include "gr/dtype.h"
#include "quant/quant.h"

enum { N = 256 * 256 };

struct error {
    uint32_t type;
    float rule, fit; /* relative RMSE on normal data: without importance, with all ones */
};
static const struct error stated[] = {
    {GR_Q8_0, 0.005289f, 0.004891f}, {GR_Q4_0, 0.08533f, 0.08018f}, {GR_Q4_1, 0.07793f, 0.06917f},
    {GR_Q5_0, 0.04216f, 0.03953f},   {GR_Q5_1, 0.03759f, 0.03318f}, {GR_Q2_K, 0.2586f, 0.2586f},
    {GR_Q3_K, 0.1422f, 0.1422f},     {GR_Q4_K, 0.06959f, 0.06959f}, {GR_Q5_K, 0.03418f, 0.03418f},
    {GR_Q6_K, 0.01687f, 0.01687f},
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

/* Without importance the simple types equal gguf's quants.py byte for byte. */
Test(quantize, rule_is_the_formats)
{
    int n_types = 0;
#define BLOCK(NAME, hex, ...)
#define DEQUANT(NAME, seed, n, hash)
#define QUANT_EXACT(NAME, seed, n, hash)                                                           \
    cr_assert_eq(hash_of_quantized_normals(GR_##NAME, seed, n), hash, #NAME);                      \
    n_types++;
#include "golden/quant/quant.inc"
    cr_assert_eq(n_types, 5);
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
        cr_expect_lt(weighed, 0.98 * plain, "%s: %g and %g", gr_dtype_name(stated[i].type), weighed,
                     plain);
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

/* What was dequantised once is kept: exactly by the formats' rules, closely by the K types' fits.
 */
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

/* A constant block is kept to 0.8%, whatever its size inside the range of the scales. */
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
                for (int j = 0; j < 256; j++)
                    cr_assert_leq(fabsf(y[j] - c[k]), 0.008f * fabsf(c[k]), "%s of %g: %g",
                                  gr_dtype_name(stated[i].type), (double)c[k], (double)y[j]);
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

/* Small weights lie where the scale is a subnormal f16: f16 steps of 2^-24 add little. */
Test(quantize, subnormal_scales)
{
    struct gr_rng r = gr_rng_new(14);
    float x[256], y[256], w[256];
    for (size_t i = 0; i < GR_COUNT(stated); i++)
        for (int e = -30; e < -14; e++) {
            for (int j = 0; j < 256; j++)
                x[j] = ldexpf(gr_rng_normal(&r), e), w[j] = 1;
            round_trip(stated[i].type, x, w, y, 256);
            double bound = 1.25 * stated[i].fit * ldexp(1, e) + 0x1p-21;
            double error = relative(x, y, NULL, 256) * ldexp(1, e);
            cr_expect_leq(error, bound, "%s 2^%d: %g over %g", gr_dtype_name(stated[i].type), e,
                          error, bound);
        }
}
