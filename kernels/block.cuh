// Shared parts of kernels over rows: rows of tensors, vectors of 1 or 4 floats, and sums over a
// warp or a block in a fixed order, the same in every thread.
#pragma once

#include "kernels/ptx.cuh"

enum { WARP = 32 };

template <typename T> GR_DEV T *row_of(const struct gr_ten &t, int64_t r)
{
    return (T *)gr_ten_row(&t, 0, r);
}

// V floats, 1 or 4; V = 4: 16 bytes, aligned.
template <int V> GR_DEV void load(const float *p, float *v)
{
    if (V == 4) {
        float4 f = *(const float4 *)p;
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
        v[0] = *p;
    }
}

template <int V> GR_DEV void store(float *p, const float *v)
{
    if (V == 4)
        *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    else
        *p = v[0];
}

// Thread number of a grid of one dimension, and the place of its V columns in a row-major matrix
// with rows of `cols` columns.
GR_DEV uint32_t thread_id()
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

struct place {
    uint32_t row, col;
};

template <int V> GR_DEV struct place place_of(const struct gr_ten &t)
{
    uint32_t per = (uint32_t)t.cols / V, i = thread_id(), row = i / per;
    return {row, (i - row * per) * V};
}

// A sum of floats with the error of each addition kept: hi + lo, where hi is the rounded sum
// (Knuth's two-sum). The order is fixed, though the result hardly depends on it.
struct exact_sum {
    float hi, lo;
};

GR_DEV void add(struct exact_sum &s, float x)
{
    float t = s.hi + x, z = t - s.hi;
    s.lo += (s.hi - (t - z)) + (x - z);
    s.hi = t;
}

GR_DEV struct exact_sum join(struct exact_sum a, struct exact_sum b) // = join(b, a), bit for bit
{
    struct exact_sum s = {a.hi, 0};
    add(s, b.hi);
    s.lo += a.lo + b.lo;
    return s;
}

GR_DEV struct exact_sum warp_sum(struct exact_sum s)
{
    for (int o = WARP / 2; o > 0; o /= 2)
        s = join(s, {__shfl_xor_sync(~0u, s.hi, o), __shfl_xor_sync(~0u, s.lo, o)});
    return s;
}

GR_DEV float warp_sum(float x)
{
    for (int o = WARP / 2; o > 0; o /= 2)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}

// The sum over a block of T threads, or of n threads, known at run time only (T = 0); slot
// [n / 32] is shared memory that nothing else uses before the next barrier but one. n = 32: over
// each warp, without a barrier.
template <int T>
GR_DEV struct exact_sum block_sum(struct exact_sum s, struct exact_sum *slot, uint32_t n = T)
{
    s = warp_sum(s);
    if (n == WARP)
        return s;
    if (threadIdx.x % WARP == 0)
        slot[threadIdx.x / WARP] = s;
    __syncthreads();
    uint32_t lane = threadIdx.x % WARP;
    s = {0, 0};
    if (lane < n / WARP)
        s = slot[lane];
    return warp_sum(s);
}
