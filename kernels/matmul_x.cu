// What products of packed matrices need beforehand.
//
// gr_matmul_x: rows of f32 activations to lines of f16 (gr/kernel/matmul.h). Traffic: a row once
//   from memory (again from L1), 2.25 bytes a column back. Grid: lines. A row's largest number
//   fixes a power of two, so that f16 holds numbers down to 2^-24 of it with 11 bits and none
//   overflows: each is off by 2^-11 of itself at most. Sums are those of the rounded numbers: the
//   minimum of a weight and its product must see the same activations to cancel.
// gr_matmul_x_group: pairs (token, expert) in the order of experts. Grid: experts; each block reads
//   all ids. The order is that of the pairs, whatever the schedule.
// gr_matmul_x_pass: columns that HEAD_MATMUL hands on. Grid: (head, token).
#include "gr/kernel/matmul.h"
#include "kernels/ptx.cuh"

#define WARPS 16

GR_DEV int warp_sum(int v)
{
    for (int o = 16; o; o /= 2)
        v += __shfl_xor_sync(0xffffffff, v, o);
    return v;
}

// Largest |x| of the block's row, in every thread.
GR_DEV float largest(const float *x, int n)
{
    __shared__ float of_warp[WARPS];
    float v = 0;
    for (int i = threadIdx.x; i < n; i += 32 * WARPS)
        v = fmaxf(v, fabsf(x[i]));
    for (int o = 16; o; o /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, o));
    of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        v = fmaxf(v, of_warp[i]);
    return v;
}

GR_DEV float pow2(int e) // -126 .. 127
{
    return __uint_as_float((uint32_t)(e + 127) << 23);
}

// The sum of group i of 16 columns in a chunk, and what its f16 leaves.
GR_DEV void put_sum(uint8_t *chunk, int i, float sum)
{
    uint16_t high = f32_to_f16(sum);
    uint16_t *at = (uint16_t *)(chunk + i % 8 / 2 * 16 + i / 8 * 4) + i % 2;
    at[0] = high;
    at[4] = f32_to_f16(sum - f16_to_f32(high));
}

GR_KERNEL(gr_matmul_x, struct gr_matmul_x_args, 32 * WARPS, 1)
{
    int64_t i = blockIdx.x, row = a.order ? a.order[i] / a.div : i % a.n_row;
    const float *x =
        (const float *)(a.x + row * a.row_bytes + (a.order ? 0 : i / a.n_row * a.head_bytes));
    uint32_t exponent = __float_as_uint(largest(x, a.cols)) >> 23;
    int up = exponent == 0 || exponent == 255 ? 0 : min(137 - (int)exponent, 126);
    if (threadIdx.x == 0)
        a.to.factor[i] = pow2(-up);
    uint32_t *to = (uint32_t *)(a.to.x + i * a.to.units * 64);
    int64_t chunks = gr_lines_chunks(a.to.units);
    for (int p = threadIdx.x; p < chunks * 32; p += 32 * WARPS) { // 8 columns each
        float v[8], sum = 0;
        uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = p * 8 + j < a.cols ? x[p * 8 + j] * pow2(up) : 0;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            word[r] = a.bf16 ? bf16x2(v[r], v[r + 4]) : f16x2(v[r], v[r + 4]);
            sum += f16_to_f32((uint16_t)word[r]) + f16_to_f32((uint16_t)(word[r] >> 16));
        }
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        int unit = p / 4, t = p % 4;
        if (!a.bf16 && t % 2 == 0)
            put_sum(a.to.sums + (i * chunks + unit / 8) * 64, unit % 8 * 2 + t / 2, sum);
        for (int r = 0; r < 4 && unit < a.to.units; r++)
            to[unit * 16 + (a.by_step ? 4 * r + t : 4 * t + r)] = word[r];
    }
}

GR_DEV int id_of(const struct gr_matmul_group_args &a, int i)
{
    return ((const int32_t *)(a.ids + i / a.n_used * a.ids_row_bytes))[i % a.n_used];
}

// Sum of v over the block, in every thread; `of_warp` is free before and after a barrier.
GR_DEV int block_sum(int v, int *of_warp)
{
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    int sum = 0;
    for (int w = 0; w < WARPS; w++)
        sum += of_warp[w];
    __syncthreads();
    return sum;
}

GR_KERNEL(gr_matmul_x_group, struct gr_matmul_group_args, 32 * WARPS, 1)
{
    GR_SMEM;
    int *count = (int *)smem; // [n_expert]
    __shared__ int of_warp[WARPS];
    int me = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int e = threadIdx.x; e < a.n_expert; e += 32 * WARPS)
        count[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < a.n; i += 32 * WARPS)
        atomicAdd(&count[id_of(a, i)], 1); // integers: any order
    __syncthreads();
    int pairs = 0, tiles = 0;
    for (int e = threadIdx.x; e < me; e += 32 * WARPS)
        pairs += count[e], tiles += (count[e] + a.tile - 1) / a.tile;
    int first = block_sum(pairs, of_warp), tile = block_sum(tiles, of_warp), mine = count[me];
    for (int j = threadIdx.x; j * a.tile < mine; j += 32 * WARPS) {
        int32_t *to = a.tiles + 1 + 3 * (tile + j);
        to[0] = me, to[1] = first + j * a.tile, to[2] = min(a.tile, mine - j * a.tile);
    }
    if (me == a.n_expert - 1 && threadIdx.x == 0)
        a.tiles[0] = tile + (mine + a.tile - 1) / a.tile;
    for (int base = 0; base < a.n; base += 32 * WARPS) {
        int i = base + threadIdx.x;
        bool is = i < a.n && id_of(a, i) == me;
        uint32_t mask = __ballot_sync(0xffffffff, is);
        if (lane == 0)
            of_warp[warp] = __popc(mask);
        __syncthreads();
        int before = 0, all = 0;
        for (int w = 0; w < WARPS; w++)
            before += w < warp ? of_warp[w] : 0, all += of_warp[w];
        if (is)
            a.order[first + before + __popc(mask & ((1u << lane) - 1))] = i;
        first += all;
        __syncthreads();
    }
}

GR_KERNEL(gr_matmul_x_pass, struct gr_matmul_pass_args, 128, 1)
{
    const float *x =
        (const float *)(a.x + blockIdx.y * a.x_row_bytes + blockIdx.x * a.x_head_bytes);
    float *y = (float *)(a.y + blockIdx.y * a.y_row_bytes + blockIdx.x * a.y_head_bytes);
    for (int i = threadIdx.x; i < a.n; i += 128)
        y[i] = x[i];
}
