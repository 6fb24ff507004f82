#include "quant/planes.h"

#include <math.h>
#include <string.h>

#include "base/f16.h"
#include "quant/bits.h"
#include "quant/fit.h"
#include "quant/quant.h"

enum { BLOCK_MOST = sizeof(struct gr_q8_0) };

/* Gathers a block: its record, then its codes. */
static void get_block(uint32_t dtype, int64_t n, const char *row, int64_t col, char *block)
{
    size_t record = (size_t)gr_planes_record(dtype);
    memcpy(block, row + gr_planes_step(dtype, n, col), record);
    memcpy(block + record, row + gr_planes_codes(dtype, col),
           (size_t)gr_planes_codes(dtype, GR_QK));
}

static void put_block(uint32_t dtype, int64_t n, const char *block, int64_t col, char *row)
{
    size_t record = (size_t)gr_planes_record(dtype);
    memcpy(row + gr_planes_step(dtype, n, col), block, record);
    memcpy(row + gr_planes_codes(dtype, col), block + record,
           (size_t)gr_planes_codes(dtype, GR_QK));
}

/* The sum of 32 numbers, halves added to halves: the order of a warp (kernels/kv.cuh). */
static float sum_of(const float x[GR_QK])
{
    float a[GR_QK];
    memcpy(a, x, sizeof a);
    for (int n = GR_QK / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            a[i] = a[i] + a[i + n];
    return a[0];
}

/* IQ4_NL in two steps, since the fit of files takes too long for a token, and a GPU does the same:
 * the first element of largest magnitude becomes the lowest level, then the scale is the one with
 * the least squared error, weighted by the squares. */
static void store_iq4_nl(const float *src, struct gr_iq4_nl *b)
{
    static const float value[16] = {GR_IQ4_VALUES};
    float x[GR_QK], over[GR_QK], under[GR_QK], top = 0, inv;
    uint8_t q[GR_QK];
    gr_fit_load(src, NULL, GR_QK, x, NULL);
    for (int i = 0; i < GR_QK; i++)
        top = fabsf(x[i]) > fabsf(top) ? x[i] : top;
    float d = top / value[0];
    (void)gr_fit_step(d, &inv);
    for (int i = 0; i < GR_QK; i++) {
        float y = x[i] * inv;
        q[i] = 0;
        for (int k = 0; k < 15; k++)
            q[i] = (uint8_t)(q[i] + (y > (value[k] + value[k + 1]) / 2));
        float v = value[q[i]], w = y * y;
        over[i] = w * (v * y), under[i] = w * (v * v);
    }
    float n = sum_of(under);
    *b = (struct gr_iq4_nl){.d = gr_fit_half(n > 0 ? d * (sum_of(over) / n) : 0)};
    gr_bits_put(b->qs, 16, 16, 4, q, 0);
}

void gr_planes_to_blocks(uint32_t dtype, int64_t n, const void *row, void *blocks)
{
    size_t bytes = gr_row_bytes(dtype, GR_QK);
    for (int64_t col = 0; col < n; col += GR_QK)
        get_block(dtype, n, row, col, (char *)blocks + (size_t)(col / GR_QK) * bytes);
}

void gr_planes_from_blocks(uint32_t dtype, int64_t n, const void *blocks, void *row)
{
    size_t bytes = gr_row_bytes(dtype, GR_QK);
    for (int64_t col = 0; col < n; col += GR_QK)
        put_block(dtype, n, (const char *)blocks + (size_t)(col / GR_QK) * bytes, col, row);
}

void gr_planes_load(uint32_t dtype, int64_t n, const void *row, int64_t first, int64_t count,
                    float *dst)
{
    _Alignas(gr_half) char block[BLOCK_MOST];
    for (int64_t i = 0; i < count; i += GR_QK) {
        get_block(dtype, n, row, first + i, block);
        gr_quant_find(dtype)->dequantize(block, dst + i, GR_QK);
    }
}

void gr_planes_store(uint32_t dtype, int64_t n, const float *src, void *row)
{
    _Alignas(gr_half) char block[BLOCK_MOST];
    for (int64_t col = 0; col < n; col += GR_QK) {
        if (dtype == GR_IQ4_NL)
            store_iq4_nl(src + col, (void *)block);
        else
            gr_quant_find(dtype)->quantize(src + col, block, GR_QK, NULL);
        put_block(dtype, n, block, col, row);
    }
}
