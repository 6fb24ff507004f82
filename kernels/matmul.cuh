// Shared parts of products of packed matrices: the matrix and the rows of x and y of an item, a
// step of weights times 8 NT rows of packed x, and the store of a result.
#pragma once

#include "gr/kernel/matmul.h"
#include "kernels/decode.cuh"

// KERNEL(type, name) for every type whose products are made of f16 (bf16) and that has planes of
// codes: all but f32 and those of kernels/matmul_any.cu. GR_PLAIN_TYPES: those whose values f16
// holds.
// clang-format off
#define GR_PLAIN_TYPES(KERNEL)                                                                     \
    KERNEL(GR_F16, f16) KERNEL(GR_BF16, bf16)                                                      \
    KERNEL(GR_Q4_0, q4_0) KERNEL(GR_Q4_1, q4_1) KERNEL(GR_Q5_0, q5_0) KERNEL(GR_Q5_1, q5_1)        \
    KERNEL(GR_Q8_0, q8_0)                                                                          \
    KERNEL(GR_Q2_K, q2_K) KERNEL(GR_Q3_K, q3_K) KERNEL(GR_Q4_K, q4_K) KERNEL(GR_Q5_K, q5_K)        \
    KERNEL(GR_Q6_K, q6_K)                                                                          \
    KERNEL(GR_IQ4_NL, iq4_nl) KERNEL(GR_IQ4_XS, iq4_xs)                                            \
    KERNEL(GR_NVFP4, nvfp4)
#define GR_MATMUL_TYPES(KERNEL) GR_PLAIN_TYPES(KERNEL) KERNEL(GR_MXFP4, mxfp4)
// clang-format on

// Work of a block.
struct mm_item {
    int64_t matrix;
    int64_t x_row;        // of packed x, the first
    int n;                // rows
    int64_t y;            // bytes to the row of y of the first
    const int32_t *order; // rows of y, where they are not one after another
};

// Item i as gr_matmul_args has it; its rows of x from tok on, `tile` at most.
GR_DEV struct mm_item mm_item(const struct gr_matmul_args &a, int64_t i, int tok, int tile)
{
    if (!a.ids)
        return {i, i * a.n_tok + tok, min(tile, a.n_tok - tok),
                i * a.y_item_bytes + tok * a.y_row_bytes, nullptr};
    uint32_t pair = (uint32_t)i, row = pair / a.n_used; // 32 bits: 64 are divided by a subroutine
    const int32_t *id = (const int32_t *)(a.ids + row * a.ids_row_bytes);
    return {id[pair - row * a.n_used], pair / a.x_row_div, 1, i * a.y_row_bytes, nullptr};
}
// The tile of 16 rows and the item of a block of a streaming kernel: the grid runs over the tiles
// of all items.
struct mm_block {
    int64_t tile, item;
};
GR_DEV uint32_t mm_tiles(const struct gr_matmul_args &a)
{
    return (uint32_t)((a.w.offset + a.w.rows + GR_PACK_ROWS - 1) / GR_PACK_ROWS);
}
GR_DEV struct mm_block mm_block(const struct gr_matmul_args &a, uint32_t block)
{
    uint32_t n_tile = mm_tiles(a);
    return {block % n_tile, block / n_tile};
}
// Tile i of gr_matmul_x_group; n = 0: there is none.
GR_DEV struct mm_item mm_tile(const struct gr_matmul_args &a, int i)
{
    const int32_t *t = a.tiles + 1 + 3 * i;
    if (i >= a.tiles[0])
        return {0, 0, 0, 0, nullptr};
    return {t[0], t[1], t[2], 0, a.order + t[1]};
}

// The factor of an item's row of packed x, by_step.
GR_DEV float mm_factor(const struct gr_matmul_args &a, const struct mm_item &item, int tok)
{
    return a.x.factor[item.x_row + tok];
}
// True for what is stored: rows outside w are dropped.
GR_DEV bool mm_in(const struct gr_matmul_args &a, const struct mm_item &item, int64_t row, int tok)
{
    return row >= 0 && row < a.w.rows && tok < item.n;
}
// Bytes to the row of y of a token.
GR_DEV int64_t mm_y(const struct gr_matmul_args &a, const struct mm_item &item, int tok)
{
    return item.order ? item.order[tok] * a.y_row_bytes : item.y + tok * a.y_row_bytes;
}
// The residual of y[tok of the item][row of w], where a.res is there.
GR_DEV float mm_res(const struct gr_matmul_args &a, const struct mm_item &item, int64_t row,
                    int tok)
{
    return ((const float *)(a.res + (item.x_row + tok) * a.res_row_bytes))[row];
}
// v scaled, with bias.
GR_DEV float mm_value(const struct gr_matmul_args &a, const struct mm_item &item, int64_t row,
                      float v)
{
    v *= a.scale;
    if (a.s)
        v *= a.s[item.matrix];
    if (a.b)
        v += ((const float *)(a.b + item.matrix * a.b_row_bytes))[row];
    return v;
}
// y[tok of the item][row of w] = v scaled, with bias and residual; what is not mm_in is dropped.
GR_DEV void mm_store(const struct gr_matmul_args &a, const struct mm_item &item, int64_t row,
                     int tok, float v)
{
    if (row < 0 || row >= a.w.rows || tok >= item.n)
        return;
    int64_t y = mm_y(a, item, tok);
    v = mm_value(a, item, row, v);
    if (a.res)
        v += mm_res(a, item, row, tok);
    ((float *)(a.y + y))[row] = v;
}

GR_DEV const uint8_t *mm_tile_at(const struct gr_matmul_args &a, const struct mm_item &item,
                                 int64_t tile, int64_t tile_bytes)
{
    int64_t n_tile = (a.w.offset + a.w.rows + GR_PACK_ROWS - 1) / GR_PACK_ROWS;
    return (const uint8_t *)a.w.data + (item.matrix * n_tile + min(tile, n_tile - 1)) * tile_bytes;
}

template <uint32_t T>
GR_DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    uint32_t b[2] = {b0, b1};
    if constexpr (T == GR_BF16)
        mma_bf16(d, a, b);
    else
        mma_f16(d, a, b);
}

// acc [16 rows, 8 tokens] for each of M tiles and NT groups of tokens, as mma_f16 has it: += the
// step `w` of the tiles, n units, times activations. x.unit(u, i) gives this lane's words of unit u
// and group i of tokens, x.sum(i) those of the chunk's sums; x.enter(u) is called before unit u,
// unless x.over(u, n): a row may end within a step, but not one of whole chunks. Where registers
// suffice, the units of a step are added up before its scale.
template <uint32_t T, int U, int M, int NT, class X, bool KEPT = false>
GR_DEV void product(const pack_step<T, U> (&w)[M], int n, X &&x, float (&acc)[M][NT][4],
                    const iq4_values<KEPT> &iq4 = {})
{
    using S = pack_step<T, U>;
    constexpr bool TOGETHER = (S::K_BLOCK || S::BY_16) && M * NT == 1;
    float step[4] = {};
#pragma unroll
    for (int u = 0; u < S::UNITS; u++) {
        if (x.over(u, n))
            break;
        x.enter(u);
        uint32_t a[M][2][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            w[m].unit(u, a[m], iq4);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            uint4 b = x.unit(u, i);
#pragma unroll
            for (int m = 0; m < M; m++) {
                float unit[4] = {};
                float(&sum)[4] = TOGETHER ? step : acc[m][i];
                float(&to)[4] = S::IS_FLOAT || (TOGETHER && S::BY_16) ? sum : unit;
                mma<T>(to, a[m][0], b.x, b.y);
                mma<T>(to, a[m][1], b.z, b.w);
                if constexpr (!S::IS_FLOAT && !(TOGETHER && S::BY_16))
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        float f = w[m].unit_scale(u, k / 2);
                        sum[k] = fmaf(TOGETHER ? f : f * w[m].step_scale(k / 2), unit[k], sum[k]);
                    }
            }
        }
    }
    if constexpr (TOGETHER)
#pragma unroll
        for (int k = 0; k < 4; k++)
            acc[0][0][k] = fmaf(w[0].step_scale(k / 2), step[k], acc[0][0][k]);
    if constexpr (S::SUMS)
#pragma unroll
        for (int i = 0; i < NT; i++) {
            uint4 b = x.sum(i);
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t a[4];
                float unit[4] = {};
                w[m].mins(a);
                mma<T>(unit, a, b.x, b.y);
                mma<T>(unit, a, b.z, b.w);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    acc[m][i][k] = fmaf(w[m].min_scale(k / 2), unit[k], acc[m][i][k]);
            }
        }
}
