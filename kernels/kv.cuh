// Elements of a cache row, of any type that a cache can have. Rounding is that of host/quant: the
// same bytes come out.
#pragma once

#include "gr/planes.h"
#include "kernels/block.cuh"
#include "kernels/fields.cuh"

// The step of a column in a row of planes.
GR_DEV uint16_t *kv_step_of(const struct gr_ten &t, void *row, uint32_t col)
{
    return (uint16_t *)((char *)row + gr_planes_step(t.dtype, t.cols, col));
}

GR_DEV float kv_get(const struct gr_ten &t, void *row, uint32_t col)
{
    switch (t.dtype) {
    case GR_F32:
        return ((const float *)row)[col];
    case GR_F16:
        return f16_to_f32(((const uint16_t *)row)[col]);
    case GR_BF16:
        return bf16_to_f32(((const uint16_t *)row)[col]);
    case GR_Q8_0:
        return f16_to_f32(*kv_step_of(t, row, col)) * ((const int8_t *)row)[col];
    default:
        return nibble_value(t.dtype, (const uint8_t *)row + col / GR_QK * 16,
                            kv_step_of(t, row, col), col % GR_QK);
    }
}

// --- a block of 32 by a warp: lane i holds element i ---

// A step as f16, and the inverse of the step before rounding.
GR_DEV uint16_t kv_step(float d, float &inverse)
{
    d = fminf(fmaxf(d, -65504.f), 65504.f);
    uint16_t h = f32_to_f16(d);
    inverse = h & 0x7fff ? 1 / d : 0;
    return h;
}

// Input of the quantisers: NaN becomes 0, values are limited to 2^40.
GR_DEV float kv_sane(float x)
{
    x = x == x ? x : 0;
    return x > 0x1p40f ? 0x1p40f : x < -0x1p40f ? -0x1p40f : x;
}

// The largest magnitude; of floats that are not negative bits order as numbers do.
GR_DEV float warp_largest(float x)
{
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(fabsf(x))));
}

// The largest magnitude becomes 127, halves are rounded away from zero.
GR_DEV void put_q8_0(int8_t *codes, uint16_t *step, float x)
{
    uint32_t lane = threadIdx.x % WARP;
    float inverse;
    x = kv_sane(x);
    uint16_t d = kv_step(warp_largest(x) / 127, inverse);
    float v = fminf(fabsf(__fmul_rn(x, inverse)), 127), whole = (float)(int)v;
    int q = (int)whole + (v - whole >= 0.5f);
    codes[lane] = (int8_t)(x < 0 ? -q : q);
    if (lane == 0)
        *step = d;
}

// The first element of largest magnitude becomes the lowest level.
GR_DEV void put_q4_0(uint8_t *codes, uint16_t *step, float x)
{
    uint32_t lane = threadIdx.x % WARP;
    float inverse, largest, top;
    x = kv_sane(x);
    largest = warp_largest(x);
    top = __shfl_sync(~0u, x, __ffs(__ballot_sync(~0u, fabsf(x) == largest)) - 1);
    uint16_t d = kv_step((largest > 0 ? top : 0) / -8, inverse);
    float v = __fadd_rn(__fmul_rn(x, inverse), 8.5f);
    uint32_t q = (uint32_t)fminf(fmaxf(v, 0), 15);
    uint32_t high = __shfl_down_sync(~0u, q, 16);
    if (lane < 16)
        codes[lane] = (uint8_t)(q | high << 4);
    if (lane == 0)
        *step = d;
}

// Writes a block's codes, 4 bits a lane, and the fifth bits to `more`, unless it is NULL.
GR_DEV void put_nibbles(uint8_t *codes, uint16_t *more, uint32_t q)
{
    uint32_t lane = threadIdx.x % WARP, high = __shfl_down_sync(~0u, q, 16),
             fifth = __ballot_sync(~0u, q >> 4 & 1);
    if (lane < 16)
        codes[lane] = (uint8_t)((q & 15) | high << 4);
    if (more && lane < 2)
        more[lane] = (uint16_t)(fifth >> 16 * lane);
}

// The first element of largest magnitude becomes the lowest level.
GR_DEV void put_q5_0(uint8_t *codes, uint16_t *record, float x)
{
    float inverse, largest, top;
    x = kv_sane(x);
    largest = warp_largest(x);
    top = __shfl_sync(~0u, x, __ffs(__ballot_sync(~0u, fabsf(x) == largest)) - 1);
    uint16_t d = kv_step((largest > 0 ? top : 0) / -16, inverse);
    float v = __fadd_rn(__fmul_rn(x, inverse), 16.5f);
    put_nibbles(codes, record + 1, (uint32_t)fminf(fmaxf(v, 0), 31));
    if (threadIdx.x % WARP == 0)
        *record = d;
}

// Smallest and largest become the ends of 0 .. LAST.
template <int LAST> GR_DEV void put_min(uint8_t *codes, uint16_t *record, float x)
{
    float inverse, lo, hi;
    x = kv_sane(x);
    lo = hi = x;
    for (int i = 16; i > 0; i /= 2) {
        lo = fminf(lo, __shfl_xor_sync(~0u, lo, i));
        hi = fmaxf(hi, __shfl_xor_sync(~0u, hi, i));
    }
    lo = fminf(fmaxf(lo, -65504.f), 65504.f);
    uint16_t d = kv_step(__fadd_rn(hi, -lo) / LAST, inverse);
    float v = __fadd_rn(__fmul_rn(__fadd_rn(x, -lo), inverse), 0.5f);
    put_nibbles(codes, LAST > 15 ? record + 2 : nullptr, (uint32_t)fminf(fmaxf(v, 0), LAST));
    if (threadIdx.x % WARP == 0)
        record[0] = d, record[1] = f32_to_f16(lo);
}

// As store_iq4_nl of host/quant/planes.c: the first element of largest magnitude becomes the lowest
// level, then the scale is the one with the least squared error, weighted by the squares.
GR_DEV void put_iq4_nl(uint8_t *codes, uint16_t *step, float x)
{
    constexpr float value[16] = {GR_IQ4_VALUES};
    float inverse, largest, top, v = value[0];
    uint32_t q = 0;
    x = kv_sane(x);
    largest = warp_largest(x);
    top = __shfl_sync(~0u, x, __ffs(__ballot_sync(~0u, fabsf(x) == largest)) - 1);
    float d = (largest > 0 ? top : 0) / value[0];
    (void)kv_step(d, inverse);
    float y = __fmul_rn(x, inverse), w = __fmul_rn(y, y);
#pragma unroll
    for (int k = 0; k < 15; k++) {
        bool above = y > (value[k] + value[k + 1]) / 2;
        q += above, v = above ? value[k + 1] : v;
    }
    float over = warp_sum(__fmul_rn(w, __fmul_rn(v, y))),
          under = warp_sum(__fmul_rn(w, __fmul_rn(v, v)));
    d = under > 0 ? __fmul_rn(d, over / under) : 0;
    put_nibbles(codes, nullptr, q);
    if (threadIdx.x % WARP == 0)
        *step = f32_to_f16(fminf(fmaxf(d, -65504.f), 65504.f));
}

// The types that few caches have, out of line.
GR_ONCE void put_record(uint32_t dtype, uint8_t *codes, uint16_t *record, float x)
{
    switch (dtype) {
    case GR_Q4_1:
        put_min<15>(codes, record, x);
        break;
    case GR_Q5_0:
        put_q5_0(codes, record, x);
        break;
    case GR_Q5_1:
        put_min<31>(codes, record, x);
        break;
    case GR_IQ4_NL:
        put_iq4_nl(codes, record, x);
        break;
    }
}

// Writes column `col` of a row where `in` says that there is one; a warp's lanes are 32 neighbours
// from a multiple of 32, and all call.
GR_DEV void kv_put(const struct gr_ten &t, void *row, uint32_t col, float x, bool in)
{
    switch (t.dtype) {
    case GR_F32:
        if (in)
            ((float *)row)[col] = x;
        break;
    case GR_F16:
        if (in)
            ((uint16_t *)row)[col] = f32_to_f16(x);
        break;
    case GR_BF16:
        if (in)
            ((uint16_t *)row)[col] = f32_to_bf16(x);
        break;
    case GR_Q8_0:
        put_q8_0((int8_t *)row + col / GR_QK * 32, kv_step_of(t, row, col), x);
        break;
    case GR_Q4_0:
        put_q4_0((uint8_t *)row + col / GR_QK * 16, kv_step_of(t, row, col), x);
        break;
    default:
        put_record(t.dtype, (uint8_t *)row + col / GR_QK * 16, kv_step_of(t, row, col), x);
    }
}

// --- V neighbouring columns of a type without blocks; V = 4: a row is aligned to 4 elements ---

template <int V> GR_DEV void kv_load(const struct gr_ten &t, void *row, uint32_t col, float *v)
{
    if (t.dtype == GR_F32) {
        load<V>((const float *)row + col, v);
    } else if (V == 4) {
        uint2 u = *(const uint2 *)((const uint16_t *)row + col);
        uint32_t word[2] = {u.x, u.y};
        for (int i = 0; i < V; i++) {
            uint16_t h = (uint16_t)(word[i / 2] >> i % 2 * 16);
            v[i] = t.dtype == GR_F16 ? f16_to_f32(h) : bf16_to_f32(h);
        }
    } else {
        v[0] = kv_get(t, row, col);
    }
}

template <int V> GR_DEV void kv_save(uint32_t dtype, void *row, uint32_t col, const float *v)
{
    if (dtype == GR_F32)
        store<V>((float *)row + col, v);
    else if (V == 4 && dtype == GR_F16)
        *(uint2 *)((uint16_t *)row + col) = make_uint2(f16x2(v[0], v[1]), f16x2(v[2], v[3]));
    else if (V == 4)
        *(uint2 *)((uint16_t *)row + col) = make_uint2(bf16x2(v[0], v[1]), bf16x2(v[2], v[3]));
    else
        ((uint16_t *)row)[col] = dtype == GR_F16 ? f32_to_f16(v[0]) : f32_to_bf16(v[0]);
}
