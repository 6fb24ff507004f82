/* Rows by planes are blocks in another order. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "quant/planes.h"
#include "quant/quant.h"

enum { MAX_N = 576, MAX_BYTES = MAX_N / GR_QK * (int)sizeof(struct gr_q8_0) + GR_PLANES_ALIGN };

static const uint32_t types[] = {GR_Q8_0, GR_Q4_0, GR_Q4_1, GR_Q5_0, GR_Q5_1, GR_IQ4_NL};
#define N_TYPE (int)(sizeof types / sizeof *types)

static void draw(struct gr_rng *r, int64_t n, float *x)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = gr_rng_normal(r);
}

Test(planes, there_and_back)
{
    struct gr_rng r = gr_rng_new(5);
    _Alignas(gr_half) char blocks[MAX_BYTES], back[MAX_BYTES], row[MAX_BYTES], own[MAX_BYTES];
    float x[MAX_N], want[MAX_N], got[MAX_N];
    for (int k = 0; k < N_TYPE; k++)
        for (int64_t n = GR_QK; n <= MAX_N; n += GR_QK) {
            size_t bytes = gr_row_bytes(types[k], (uint64_t)n);
            draw(&r, n, x);
            gr_quant_find(types[k])->quantize(x, blocks, (size_t)n, NULL);
            gr_quant_find(types[k])->dequantize(blocks, want, (size_t)n);
            memset(row, 0xff, sizeof row), memset(own, 0xff, sizeof own);
            gr_planes_from_blocks(types[k], n, blocks, row);
            gr_planes_store(types[k], n, x, own);
            if (types[k] != GR_IQ4_NL) /* which has a rule of its own */
                cr_assert_eq(memcmp(row, own, sizeof row), 0, "%lld columns", (long long)n);
            cr_assert(own[bytes] == (char)0xff && row[bytes] == (char)0xff);
            gr_planes_to_blocks(types[k], n, row, back);
            cr_assert_eq(memcmp(back, blocks, bytes), 0, "%lld columns", (long long)n);
            int64_t first = n / GR_QK / 3 * GR_QK;
            gr_planes_load(types[k], n, row, first, n - first, got);
            cr_assert_eq(memcmp(got, want + first, (size_t)(n - first) * sizeof *got), 0);
        }
}

/* IQ4_NL's rule on normal numbers is within a fifth of the mean squared error of the fit for
 * files, and blocks of its own values come back as they are. */
Test(planes, iq4_nl_by_a_rule)
{
    enum { N = 512, ROUNDS = 40 };
    struct gr_rng r = gr_rng_new(6);
    _Alignas(gr_half) char blocks[MAX_BYTES], row[MAX_BYTES], again[MAX_BYTES];
    float x[N], by_fit[N], by_rule[N];
    double fit = 0, rule = 0;
    for (int k = 0; k < ROUNDS; k++) {
        draw(&r, N, x);
        gr_quant_find(GR_IQ4_NL)->quantize(x, blocks, N, NULL);
        gr_quant_find(GR_IQ4_NL)->dequantize(blocks, by_fit, N);
        gr_planes_store(GR_IQ4_NL, N, x, row);
        gr_planes_load(GR_IQ4_NL, N, row, 0, N, by_rule);
        for (int i = 0; i < N; i++) {
            fit += (double)(x[i] - by_fit[i]) * (double)(x[i] - by_fit[i]);
            rule += (double)(x[i] - by_rule[i]) * (double)(x[i] - by_rule[i]);
        }
        gr_planes_store(GR_IQ4_NL, N, by_rule, again);
        gr_planes_load(GR_IQ4_NL, N, again, 0, N, by_fit);
        for (int i = 0; i < N; i++)
            cr_assert_float_eq(by_fit[i], by_rule[i], 0x1p-9f * 4, "%d: %g, %g", i,
                               (double)by_fit[i], (double)by_rule[i]);
    }
    cr_expect(rule < 1.2 * fit, "%g, fit %g", rule / N / ROUNDS, fit / N / ROUNDS);
}

/* What is no number, or beyond every number that blocks hold, does no harm. */
Test(planes, iq4_nl_of_anything)
{
    static const float odd[] = {0, -0.f, NAN, INFINITY, -INFINITY, 1e-45f, 3e38f, -3e38f, 1e-30f};
    struct gr_rng r = gr_rng_new(7);
    _Alignas(gr_half) char row[MAX_BYTES];
    float x[GR_QK], got[GR_QK];
    for (int k = 0; k < 1000; k++) {
        for (int i = 0; i < GR_QK; i++)
            x[i] = odd[gr_rng_below(&r, sizeof odd / sizeof *odd)];
        gr_planes_store(GR_IQ4_NL, GR_QK, x, row);
        gr_planes_load(GR_IQ4_NL, GR_QK, row, 0, GR_QK, got);
        for (int i = 0; i < GR_QK; i++)
            cr_assert(isfinite(got[i]), "%g", (double)got[i]);
    }
}

/* As many bytes as blocks, but for what makes rows begin aligned; codes of heads are whole pieces.
 */
Test(planes, places)
{
    cr_expect_eq(gr_planes_row(GR_Q8_0, 1024), 1024 / 32 * 34);
    cr_expect_eq(gr_planes_row(GR_Q4_0, 1024), 1024 / 32 * 18);
    cr_expect_eq(gr_planes_row(GR_Q8_0, 576), 612 + 12);
    cr_expect_eq(gr_planes_row(GR_Q4_1, 1024), 1024 / 32 * 20);
    cr_expect_eq(gr_planes_row(GR_Q5_0, 1024), 1024 / 32 * 22);
    cr_expect_eq(gr_planes_row(GR_Q5_1, 1024), 1024 / 32 * 24);
    cr_expect_eq(gr_planes_row(GR_IQ4_NL, 1024), 1024 / 32 * 18);
    for (int k = 0; k < N_TYPE; k++)
        for (int64_t n = GR_QK; n <= MAX_N; n += GR_QK) {
            int64_t bytes = (int64_t)gr_row_bytes(types[k], (uint64_t)n);
            cr_expect(gr_planes_row(types[k], n) >= bytes &&
                      gr_planes_row(types[k], n) < bytes + GR_PLANES_ALIGN);
            cr_expect_eq(gr_planes_row(types[k], n) % GR_PLANES_ALIGN, 0);
            cr_expect_eq(gr_planes_codes(types[k], n) % GR_PLANES_ALIGN, 0);
            cr_expect_eq(gr_planes_step(types[k], n, n), bytes);
        }
}
