/* Rows by planes are blocks in another order. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "quant/planes.h"
#include "quant/quant.h"

enum { MAX_N = 576, MAX_BYTES = MAX_N / GR_QK * (int)sizeof(struct gr_q8_0) + GR_PLANES_ALIGN };

static const uint32_t types[] = {GR_Q8_0, GR_Q4_0};

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
    for (int k = 0; k < 2; k++)
        for (int64_t n = GR_QK; n <= MAX_N; n += GR_QK) {
            size_t bytes = gr_row_bytes(types[k], (uint64_t)n);
            draw(&r, n, x);
            gr_quant_find(types[k])->quantize(x, blocks, (size_t)n, NULL);
            gr_quant_find(types[k])->dequantize(blocks, want, (size_t)n);
            memset(row, 0xff, sizeof row), memset(own, 0xff, sizeof own);
            gr_planes_from_blocks(types[k], n, blocks, row);
            gr_planes_store(types[k], n, x, own);
            cr_assert_eq(memcmp(row, own, sizeof row), 0, "%lld columns", (long long)n);
            cr_assert(row[bytes] == (char)0xff && row[bytes - 1] != (char)0xff);
            gr_planes_to_blocks(types[k], n, row, back);
            cr_assert_eq(memcmp(back, blocks, bytes), 0, "%lld columns", (long long)n);
            int64_t first = n / GR_QK / 3 * GR_QK;
            gr_planes_load(types[k], n, row, first, n - first, got);
            cr_assert_eq(memcmp(got, want + first, (size_t)(n - first) * sizeof *got), 0);
        }
}

/* As many bytes as blocks, but for what makes rows begin aligned; codes of heads are whole pieces.
 */
Test(planes, places)
{
    cr_expect_eq(gr_planes_row(GR_Q8_0, 1024), 1024 / 32 * 34);
    cr_expect_eq(gr_planes_row(GR_Q4_0, 1024), 1024 / 32 * 18);
    cr_expect_eq(gr_planes_row(GR_Q8_0, 576), 612 + 12);
    for (int k = 0; k < 2; k++)
        for (int64_t n = GR_QK; n <= MAX_N; n += GR_QK) {
            int64_t bytes = (int64_t)gr_row_bytes(types[k], (uint64_t)n);
            cr_expect(gr_planes_row(types[k], n) >= bytes &&
                      gr_planes_row(types[k], n) < bytes + GR_PLANES_ALIGN);
            cr_expect_eq(gr_planes_row(types[k], n) % GR_PLANES_ALIGN, 0);
            cr_expect_eq(gr_planes_codes(types[k], n) % GR_PLANES_ALIGN, 0);
            cr_expect_eq(gr_planes_step(types[k], n, n), bytes);
        }
}
