// Rows of f32 activations to packed x (gr/kernel/matmul.h), by a block of up to
// GR_PACKED_X_THREADS: for gr_matmul_x, and for kernels whose results a product reads next.
//
// The largest number of a chunk (by_step: of the row) fixes a power of two, so that f16 holds
// numbers down to 2^-24 of it with 11 bits and none overflows: each is off by 2^-11 of itself at
// most. Sums are those of the rounded numbers: the minimum of a weight and its product must see the
// same activations to cancel. By lane a warp writes a chunk by itself, so that blocks can share a
// row; tiles (by_step) add up across chunks in tensor cores and need one factor a row. Written by
// groups before that is known, numbers keep 11 bits down to 2^-14 of the largest of their group or
// more.
#pragma once

#include "gr/kernel/packed_x.h"
#include "kernels/ptx.cuh"

enum { PACKED_X_WARPS = GR_PACKED_X_THREADS / 32 };

// 8 neighbouring columns of a row of n from `col` on, 0 beyond its end.
GR_DEV void packed_x_read(const float *x, int n, int col, float (&v)[8])
{
    if ((uintptr_t)x % 16 == 0 && col + 8 <= n) {
        float4 a = *(const float4 *)(x + col), b = *(const float4 *)(x + col + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = col + j < n ? x[col + j] : 0;
    }
}

// The largest of all lanes of a warp.
GR_DEV float packed_x_largest(float v)
{
    for (int o = 16; o; o /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, o));
    return v;
}
GR_DEV float packed_x_largest(const float (&x)[8])
{
    float v = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        v = fmaxf(v, fabsf(x[j]));
    return v;
}

// The power of two that brings numbers of at most `largest` to below 2^11.
GR_DEV int packed_x_up(float largest)
{
    uint32_t exponent = __float_as_uint(largest) >> 23;
    return exponent == 0 || exponent == 255 ? 0 : min(137 - (int)exponent, 126);
}

// The same for a group of struct gr_packed_x_groups.
GR_DEV int packed_x_group_up(float largest)
{
    const float most = (float)(1 << (15 - GR_PACKED_X_UP)), least = 1.0f / (1 << GR_PACKED_X_UP);
    if (largest >= least && largest < most)
        return GR_PACKED_X_UP;
    return __float_as_uint(largest) >> 23 ? packed_x_up(largest) : GR_PACKED_X_ZEROS;
}

GR_DEV float pow2(int e) // -126 .. 127
{
    return __uint_as_float((uint32_t)(e + 127) << 23);
}
GR_DEV float packed_x_group_factor(int up)
{
    return up == GR_PACKED_X_ZEROS ? 0 : pow2(up);
}

// The sum of group i of 16 columns in a chunk, and what its f16 leaves.
GR_DEV void put_sum(uint8_t *chunk, int i, float sum)
{
    uint16_t high = f32_to_f16(sum);
    uint16_t *at = (uint16_t *)(chunk + i % 8 / 2 * 16 + i / 8 * 4) + i % 2;
    at[0] = high;
    at[4] = f32_to_f16(sum - f16_to_f32(high));
}

// Writes this lane's columns v of a chunk of row i, times 2^up.
GR_DEV void packed_x_put(const struct gr_matmul_x_args &a, int64_t i, int chunk, int up,
                         const float (&v)[8])
{
    int lane = threadIdx.x % 32, unit = lane / 4, t = lane % 4, at = 8 * chunk + unit;
    float sum = 0;
    uint32_t word[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float lo = v[r] * pow2(up), hi = v[r + 4] * pow2(up);
        word[r] = a.bf16 ? bf16x2(lo, hi) : f16x2(lo, hi);
        sum += f16_to_f32((uint16_t)word[r]) + f16_to_f32((uint16_t)(word[r] >> 16));
    }
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    if (!a.bf16 && t % 2 == 0)
        put_sum(a.to.sums + (i * gr_packed_x_chunks(a.to.units) + chunk) * 64, unit * 2 + t / 2,
                sum);
    if (!a.by_step) {
        uint8_t *to = a.to.x + (i * gr_packed_x_chunks(a.to.units) * 8 + at) * 64 + t * 16;
        *(uint4 *)to = {word[0], word[1], word[2], word[3]};
    } else if (at < a.to.units) {
        uint32_t *to = (uint32_t *)(a.to.x + (i * a.to.units + at) * 64);
        for (int r = 0; r < 4; r++)
            to[4 * r + t] = word[r];
    }
}

// The column of a group that the lower half of this lane's word has; the upper half has the fourth
// behind it.
GR_DEV int packed_x_group_col()
{
    const int lane = threadIdx.x % 32;
    return lane / 16 * 32 + lane % 4 * 8 + lane % 16 / 4;
}

// The exponents of row i's groups.
GR_DEV int8_t *packed_x_exponents(const struct gr_packed_x_groups &x, int64_t i)
{
    return x.up + i * (x.to.units / 2);
}

// Writes a group of row i by a warp, each lane its word's two numbers.
GR_DEV void packed_x_put_group(const struct gr_packed_x_groups &x, int64_t i, int group,
                               float lower, float upper)
{
    const int up = x.up ? packed_x_group_up(packed_x_largest(fmaxf(fabsf(lower), fabsf(upper))))
                        : (int)GR_PACKED_X_F16;
    const float f = packed_x_group_factor(up);
    ((uint32_t *)(x.to.x + (i * x.to.units + 2 * group) * 64))[threadIdx.x % 32] =
        f16x2(lower * f, upper * f);
    if (x.up && threadIdx.x % 32 == 0)
        packed_x_exponents(x, i)[group] = (int8_t)up;
}

// Brings the groups of row i, which other launches have written, to one factor, by a block of up to
// GR_PACKED_X_THREADS. A thread keeps the first HELD of its groups' exponents.
GR_DEV void packed_x_level(const struct gr_packed_x_groups &x, int64_t i)
{
    enum { HELD = 4 };
    __shared__ int of_warp[PACKED_X_WARPS];
    const int lane = threadIdx.x % 32, n = x.to.units / 2;
    const int8_t *ups = packed_x_exponents(x, i);
    auto up_of = [&](int group) { return group < n ? ups[group] : (int)GR_PACKED_X_ZEROS; };
    int held[HELD], up = GR_PACKED_X_ZEROS;
#pragma unroll
    for (int k = 0; k < HELD; k++)
        held[k] = up_of(threadIdx.x + k * blockDim.x), up = min(up, held[k]);
    for (int group = threadIdx.x + HELD * blockDim.x; group < n; group += blockDim.x)
        up = min(up, up_of(group));
    for (int o = 16; o; o /= 2)
        up = min(up, __shfl_xor_sync(0xffffffff, up, o));
    if (lane == 0)
        of_warp[threadIdx.x / 32] = up;
    __syncthreads();
    for (int w = 0; w < (int)blockDim.x / 32; w++)
        up = min(up, of_warp[w]);
    if (threadIdx.x == 0)
        x.to.factor[i] = up == GR_PACKED_X_ZEROS ? 1 : pow2(-up);
    auto bring = [&](int first, int mine) { // a warp's 32 groups
        uint32_t differ = __ballot_sync(0xffffffff, mine != up && mine != GR_PACKED_X_ZEROS);
        for (; differ; differ &= differ - 1) {
            const int k = __ffs(differ) - 1, down = up - __shfl_sync(0xffffffff, mine, k);
            uint32_t *at = (uint32_t *)(x.to.x + (i * x.to.units + 2 * (first + k)) * 64) + lane;
            const float f = pow2(max(down, -126));
            *at = f16x2(f16_to_f32((uint16_t)*at) * f, f16_to_f32((uint16_t)(*at >> 16)) * f);
        }
    };
#pragma unroll
    for (int k = 0; k < HELD; k++)
        bring(threadIdx.x - lane + k * blockDim.x, held[k]);
    for (int first = threadIdx.x - lane + HELD * blockDim.x; first < n; first += blockDim.x)
        bring(first, up_of(first + lane));
}

// x of row i of packed x, from row `row` of the activations.
GR_DEV const float *packed_x_row(const struct gr_matmul_x_args &a, int64_t i, int64_t row)
{
    return (const float *)(a.x + row * a.row_bytes + (a.order ? 0 : i / a.n_row * a.head_bytes));
}

// Chunks [lo, hi) of the n rows from row i on by lane, from the activations' rows from `row` on. A
// warp has several in registers at once, so that their loads are under way together.
template <int HELD>
GR_DEV void packed_x_chunks(const struct gr_matmul_x_args &a, int64_t i, int64_t row, int n, int lo,
                            int hi)
{
    const int n_warp = blockDim.x / 32, lane = threadIdx.x % 32, per_row = hi - lo;
    for (int first = threadIdx.x / 32; first < n * per_row; first += HELD * n_warp) {
        float v[HELD][8];
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            int item = first + k * n_warp, r = item / per_row, chunk = lo + item - r * per_row;
            if (item < n * per_row)
                packed_x_read(packed_x_row(a, i + r, row + r), a.cols,
                              chunk * GR_PACK_COLS + lane * 8, v[k]);
        }
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            int item = first + k * n_warp, r = item / per_row, chunk = lo + item - r * per_row;
            if (item >= n * per_row)
                break;
            int up = packed_x_up(packed_x_largest(packed_x_largest(v[k])));
            if (lane == 0 || (i + r == a.to.n - 1 && lane <= gr_packed_x_pitch(0))) // room as well
                a.to.factor[chunk * gr_packed_x_pitch(a.to.n) + i + r + lane] = pow2(-up);
            packed_x_put(a, i + r, chunk, up, v[k]);
        }
    }
}

// Row i by_step.
template <int HELD>
GR_DEV void packed_x_steps(const struct gr_matmul_x_args &a, int64_t i, int64_t row)
{
    __shared__ float of_warp[PACKED_X_WARPS];
    const float *x = packed_x_row(a, i, row);
    const int n_warp = blockDim.x / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int n = (int)gr_packed_x_chunks(a.to.units);
    float v[HELD][8], top = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (warp + k * n_warp < n)
            packed_x_read(x, a.cols, (warp + k * n_warp) * GR_PACK_COLS + lane * 8, v[k]);
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (warp + k * n_warp < n)
            top = fmaxf(top, packed_x_largest(v[k]));
    for (int chunk = warp + HELD * n_warp; chunk < n; chunk += n_warp) {
        float more[8];
        packed_x_read(x, a.cols, chunk * GR_PACK_COLS + lane * 8, more);
        top = fmaxf(top, packed_x_largest(more));
    }
    top = packed_x_largest(top);
    if (lane == 0)
        of_warp[warp] = top;
    __syncthreads();
    for (int w = 0; w < n_warp; w++)
        top = fmaxf(top, of_warp[w]);
    int up = packed_x_up(top);
    if (threadIdx.x == 0)
        a.to.factor[i] = pow2(-up);
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (warp + k * n_warp < n)
            packed_x_put(a, i, warp + k * n_warp, up, v[k]);
    for (int chunk = warp + HELD * n_warp; chunk < n; chunk += n_warp) {
        float more[8];
        packed_x_read(x, a.cols, chunk * GR_PACK_COLS + lane * 8, more);
        packed_x_put(a, i, chunk, up, more);
    }
    __syncthreads(); // of_warp is free for the next row
}

// Row i of the packed x of a, from row `row` of its x, by the whole block.
template <int HELD>
GR_DEV void write_packed_row(const struct gr_matmul_x_args &a, int64_t i, int64_t row)
{
    if (a.by_step)
        packed_x_steps<HELD>(a, i, row);
    else
        packed_x_chunks<HELD>(a, i, row, 1, 0, (int)gr_packed_x_chunks(a.to.units));
}
