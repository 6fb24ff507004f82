// MATMUL by a library's product of plain matrices, what stands around it: weights unpacked to rows
// of 16-bit floats (f32 of F32 weights), and sums turned into y.
//
// Traffic: gr_matmul_plain_<type> reads packed weights once and writes 2 bytes a weight (F32: 4);
// gr_matmul_plain_y reads and writes 4 bytes an element of y. Bound: memory, or L2 where the rows
// are read at once by the product behind; about 4 instructions a weight.
// Grid: (tile of 16 rows, steps of GR_PLAIN_WARPS warps); (token, GR_PLAIN_COLS columns of y).
// Reasons: columns stay in the order of packed x by_step, as a sum does not depend on it, so the
// product reads the packed x that other kernels read and nothing is reordered but the four words
// that the four lanes of a row have, by shuffles: each lane then writes 16 bytes, a row 64.
#include "gr/kernel/matmul_plain.h"
#include "kernels/matmul.cuh"
#include "kernels/whole.cuh"

// v[j] of the lane becomes v[lane % 4] of lane j of its four.
GR_DEV void transpose_4(uint32_t (&v)[4])
{
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit)
                continue;
            bool high = threadIdx.x & (uint32_t)bit;
            uint32_t got = __shfl_xor_sync(0xffffffff, high ? v[i] : v[i | bit], bit);
            v[i] = high ? got : v[i];
            v[i | bit] = high ? v[i | bit] : got;
        }
}

// The tile of a block, the step of a warp.
GR_DEV const uint8_t *plain_tile(const struct gr_matmul_plain_args &a, uint32_t type)
{
    return (const uint8_t *)a.w.data + (a.tile + blockIdx.x) * gr_pack_tile_bytes(type, a.w.cols);
}
GR_DEV int plain_step()
{
    return (int)(blockIdx.y * GR_PLAIN_WARPS + threadIdx.x / 32);
}
// The lane's 16 bytes of unit u of row r of the tile.
GR_DEV uint4 *plain_at(const struct gr_matmul_plain_args &a, int r, int u)
{
    int64_t row = (int64_t)blockIdx.x * GR_PACK_ROWS + r;
    return (uint4 *)(a.to + (row * a.units + u) * 64) + threadIdx.x % 4;
}

template <uint32_t T> GR_DEV void matmul_plain(const struct gr_matmul_plain_args &a)
{
    using S = pack_step<T>;
    int first = plain_step() * S::UNITS, n = a.units - first;
    if (n <= 0)
        return;
    S w;
    w.load(plain_tile(a, T), plain_step(), a.units);
    w.arrived();
#pragma unroll
    for (int u = 0; u < S::UNITS; u++) {
        if (u >= n)
            break;
        uint32_t code[2][4];
        w.unit(u, code);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t v[4];
            float scale = S::IS_FLOAT ? 1 : w.unit_scale(u, r) * w.step_scale(r) * S::AFTER;
            float add = w.offset(u, r);
#pragma unroll
            for (int s = 0; s < 4; s++) {
                uint32_t pair = code[s / 2][s % 2 * 2 + r];
                v[s] = S::IS_FLOAT ? pair
                                   : f16x2(fmaf(scale, f16_to_f32((uint16_t)pair), add),
                                           fmaf(scale, f16_to_f32((uint16_t)(pair >> 16)), add));
            }
            transpose_4(v);
            *plain_at(a, (int)threadIdx.x % 32 / 4 + 8 * r, first + u) = {v[0], v[1], v[2], v[3]};
        }
    }
}

#define KERNEL(T, name)                                                                            \
    GR_KERNEL(gr_matmul_plain_##name, struct gr_matmul_plain_args, 32 * GR_PLAIN_WARPS, 2)         \
    {                                                                                              \
        matmul_plain<T>(a);                                                                        \
    }
GR_PLAIN_TYPES(KERNEL)

// Types whose blocks are kept whole: a unit a warp.
GR_KERNEL(gr_matmul_plain_any, struct gr_matmul_plain_args, 32 * GR_PLAIN_WARPS, 2)
{
    uint32_t type = a.w.dtype;
    struct gr_pack_type k = gr_pack_type(type);
    int unit = plain_step(), n = min(8, a.units - unit / 8 * 8), lane = threadIdx.x % 32;
    if (unit >= a.units)
        return;
    const uint8_t *chunk = plain_tile(a, type) + unit / 8 * gr_pack_chunk_bytes(type, 8);
    for (int r = lane / 4; r < GR_PACK_ROWS; r += 8) {
        struct whole8 e = whole_columns(type, k, chunk, n, r, unit % 8, lane % 4, whole_grid(type));
        uint32_t v[4];
#pragma unroll
        for (int s = 0; s < 4; s++)
            v[s] = f16x2(whole_number(e, k, s), whole_number(e, k, s + 4));
        transpose_4(v);
        *plain_at(a, r, unit) = {v[0], v[1], v[2], v[3]};
    }
}

// F32: a unit a warp; a lane has 8 columns of two rows, 16 bytes of which stand together.
GR_KERNEL(gr_matmul_plain_f32, struct gr_matmul_plain_args, 32 * GR_PLAIN_WARPS, 2)
{
    int unit = plain_step(), lane = threadIdx.x % 32;
    if (unit >= a.units)
        return;
    const uint8_t *chunk = plain_tile(a, GR_F32) + unit / 8 * gr_pack_chunk_bytes(GR_F32, 8);
#pragma unroll
    for (int i = 0; i < 4; i++) { // of row lane / 4, then of the one 8 below
        uint4 v = load_once(chunk + (unit % 8 * 4 + i) * 512 + lane * 16);
        int64_t row = (int64_t)blockIdx.x * GR_PACK_ROWS + lane / 4 + i / 2 * 8;
        *((uint4 *)(a.to + (row * a.units + unit) * 128) + lane % 4 * 2 + i % 2) = v;
    }
}

GR_KERNEL(gr_matmul_plain_y, struct gr_matmul_plain_y_args, 256, 1)
{
    struct mm_item item = mm_item(a.m, 0, 0, a.m.n_tok);
    const float *sum = a.sum + (int64_t)blockIdx.x * a.n_col;
    float factor = a.m.x.factor ? mm_factor(a.m, item, blockIdx.x) : 1;
    int end = min(a.n_col, (int)(blockIdx.y + 1) * GR_PLAIN_COLS);
    for (int i = blockIdx.y * GR_PLAIN_COLS + threadIdx.x; i < end; i += 256)
        mm_store(a.m, item, a.row + i, blockIdx.x, sum[i] * factor);
}
