#include "quant/planes.h"

#include <string.h>

#include "quant/quant.h"

enum { BLOCK_MOST = sizeof(struct gr_q8_0), STEP = sizeof(gr_half) };

/* Gathers a block: its step, then its codes. */
static void get_block(uint32_t dtype, int64_t n, const char *row, int64_t col, char *block)
{
    memcpy(block, row + gr_planes_step(dtype, n, col), STEP);
    memcpy(block + STEP, row + gr_planes_codes(dtype, col), (size_t)gr_planes_codes(dtype, GR_QK));
}

static void put_block(uint32_t dtype, int64_t n, const char *block, int64_t col, char *row)
{
    memcpy(row + gr_planes_step(dtype, n, col), block, STEP);
    memcpy(row + gr_planes_codes(dtype, col), block + STEP, (size_t)gr_planes_codes(dtype, GR_QK));
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
        gr_quant_find(dtype)->quantize(src + col, block, GR_QK, NULL);
        put_block(dtype, n, block, col, row);
    }
}
