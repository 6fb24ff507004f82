// Rows of f32 activations to packed x (gr/kernel/matmul.h), a block of up to GR_PACKED_X_THREADS a
// row: for gr_matmul_x, and for kernels whose results a product reads next.
//
// A row's largest number fixes a power of two, so that f16 holds numbers down to 2^-24 of it with
// 11 bits and none overflows: each is off by 2^-11 of itself at most. Sums are those of the rounded
// numbers: the minimum of a weight and its product must see the same activations to cancel.
#pragma once

#include "gr/kernel/packed_x.h"
#include "kernels/ptx.cuh"

#define PACKED_X_WARPS (GR_PACKED_X_THREADS / 32)

// Largest |x| of the block's row, in every thread.
GR_DEV float largest(const float *x, int n)
{
    __shared__ float of_warp[PACKED_X_WARPS];
    float v = 0;
    int n4 = (uintptr_t)x % 16 ? 0 : n / 4;
#pragma unroll 4
    for (int i = threadIdx.x; i < n4; i += blockDim.x) {
        float4 f = ((const float4 *)x)[i];
        v = fmaxf(fmaxf(fmaxf(v, fabsf(f.x)), fmaxf(fabsf(f.y), fabsf(f.z))), fabsf(f.w));
    }
    for (int i = 4 * n4 + threadIdx.x; i < n; i += blockDim.x)
        v = fmaxf(v, fabsf(x[i]));
    for (int o = 16; o; o /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, o));
    of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    for (uint32_t i = 0; i < blockDim.x / 32; i++)
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

// Row i of the packed x of a, from row `row` of its x.
GR_DEV void write_packed_row(const struct gr_matmul_x_args &a, int64_t i, int64_t row)
{
    const float *x =
        (const float *)(a.x + row * a.row_bytes + (a.order ? 0 : i / a.n_row * a.head_bytes));
    uint32_t exponent = __float_as_uint(largest(x, a.cols)) >> 23;
    int up = exponent == 0 || exponent == 255 ? 0 : min(137 - (int)exponent, 126);
    if (threadIdx.x == 0)
        a.to.factor[i] = pow2(-up);
    uint32_t *to = (uint32_t *)(a.to.x + i * a.to.units * 64);
    int64_t chunks = gr_packed_x_chunks(a.to.units);
    for (int p = threadIdx.x; p < chunks * 32; p += blockDim.x) { // 8 columns each
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
