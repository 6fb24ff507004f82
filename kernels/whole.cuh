// Types whose blocks the packed layout keeps whole (gr/pack.h): eight columns of a row at a time.
//
// The type is known at run time, not at compile time: a branch that all lanes take alike, in
// front of some 10 instructions. The code behind it is the same for all types.
#pragma once

#include "gr/pack.h"
#include "gr/quant_grids.h"
#include "kernels/fields.cuh"

// Codes of a byte, lower columns first; their value is (code - zero) * factor * scale, negated
// where bit j of signs is set. gr_pack_type has zero.
struct whole8 {
    uint32_t lo, hi, signs, factor;
    float scale;
};

// ---- grids ----

// Levels of 2 bits, a nibble each, as __byte_perm takes them.
static constexpr __device__ uint32_t grid_nibbles(uint32_t code)
{
    uint32_t w = 0;
    for (int i = 0; i < 8; i++)
        w |= (code >> 2 * i & 3) << 4 * i;
    return w;
}
#define GRID(code) grid_nibbles(code),
alignas(16) static __device__ const uint32_t grid_iq1[GR_GRID_N_IQ1] = {
#include "gr/grid/iq1.inc"
};
alignas(16) static __device__ const uint32_t grid_iq2_xxs[GR_GRID_N_IQ2_XXS] = {
#include "gr/grid/iq2_xxs.inc"
};
alignas(16) static __device__ const uint32_t grid_iq2_xs[GR_GRID_N_IQ2_XS] = {
#include "gr/grid/iq2_xs.inc"
};
alignas(16) static __device__ const uint32_t grid_iq2_s[GR_GRID_N_IQ2_S] = {
#include "gr/grid/iq2_s.inc"
};
#undef GRID
#define GRID(code) code,
alignas(16) static __device__ const uint16_t grid_iq3_xxs[GR_GRID_N_IQ3_XXS] = {
#include "gr/grid/iq3_xxs.inc"
};
alignas(16) static __device__ const uint16_t grid_iq3_s[GR_GRID_N_IQ3_S] = {
#include "gr/grid/iq3_s.inc"
};
#undef GRID

// The grid of a type, of gr_whole_grid_bytes; NULL: it has none.
GR_DEV const void *whole_grid(uint32_t type)
{
    switch (type) {
    case GR_IQ1_S:
    case GR_IQ1_M:
        return grid_iq1;
    case GR_IQ2_XXS:
        return grid_iq2_xxs;
    case GR_IQ2_XS:
        return grid_iq2_xs;
    case GR_IQ2_S:
        return grid_iq2_s;
    case GR_IQ3_XXS:
        return grid_iq3_xxs;
    case GR_IQ3_S:
        return grid_iq3_s;
    default:
        return nullptr;
    }
}

// A point of 8 elements, `values` being the values of the levels; two points of 4.
GR_DEV void whole_point(struct whole8 &e, const void *grid, uint32_t i, uint32_t values)
{
    uint32_t levels = ((const uint32_t *)grid)[i];
    e.lo = __byte_perm(values, 0, levels);
    e.hi = __byte_perm(values, 0, levels >> 16);
}
GR_DEV void whole_points(struct whole8 &e, const void *grid, uint32_t i, uint32_t j, uint32_t low,
                         uint32_t high)
{
    e.lo = __byte_perm(low, high, ((const uint16_t *)grid)[i]);
    e.hi = __byte_perm(low, high, ((const uint16_t *)grid)[j]);
}

constexpr uint32_t IQ1_PLUS = 0x191109, IQ1_MINUS = 0x170f07, IQ2 = 0x2b1908; // of three levels
constexpr uint32_t IQ3_XXS_LOW = 0x1c140c04, IQ3_XXS_HIGH = 0x3e342c24;       // of eight
constexpr uint32_t IQ3_S_LOW = 0x07050301, IQ3_S_HIGH = 0x0f0d0b09;

// ---- types ----

GR_DEV uint32_t u32_at(const uint8_t *p)
{
    return *(const uint32_t *)p;
}
GR_DEV uint32_t u16_at(const uint8_t *p)
{
    return *(const uint16_t *)p;
}
GR_DEV uint32_t nibble_at(const uint8_t *p, int i)
{
    return (uint32_t)p[i / 2] >> i % 2 * 4 & 15;
}
// Seven signs, and an eighth that makes their number even.
GR_DEV uint32_t even_signs(uint32_t s)
{
    return s | (uint32_t)(__popc(s) & 1) << 7;
}
// Columns 8 t .. of unit u in four words of signs and scales each (IQ2_XXS, IQ3_XXS).
GR_DEV void whole_signs(struct whole8 &e, uint32_t w, int t, float d)
{
    e.signs = even_signs(w >> 7 * t & 127);
    e.scale = d * (float)(w >> 28 << 1 | 1);
}
// Digit k to base 3 of four bytes, which are fractions.
GR_DEV uint32_t whole_digits(uint32_t w, int k)
{
    uint32_t pow = k == 0 ? 1 : k == 1 ? 3 : k == 2 ? 9 : k == 3 ? 27 : 81;
    uint32_t even = ((w & 0x00ff00ff) * pow & 0x00ff00ff) * 3 >> 8 & 0x00ff00ff;
    uint32_t odd = ((w >> 8 & 0x00ff00ff) * pow & 0x00ff00ff) * 3 & 0xff00ff00;
    return even | odd;
}

// Columns 8 t .. 8 t + 7 of unit u of the block whose first plane is at p, and whose d follows.
GR_DEV struct whole8 whole_block(uint32_t type, const uint8_t *p, float d, int u, int t,
                                 const void *grid)
{
    struct whole8 e = {0, 0, 0, 1, d};
    switch (type) {
    case GR_IQ1_S: {
        uint32_t h = u16_at(p + 32 + 2 * u);
        whole_point(e, grid, p[4 * u + t] | (h >> 3 * t & 7) << 8, h >> 15 ? IQ1_MINUS : IQ1_PLUS);
        e.scale = d * 0.125f * (float)((h >> 11 & 14) | 1);
        break;
    }
    case GR_IQ1_M: {
        uint32_t h = nibble_at(p + 32, 4 * u + t), a = u32_at(p + 48), b = u32_at(p + 52);
        whole_point(e, grid, p[4 * u + t] | (h & 7) << 8, h & 8 ? IQ1_MINUS : IQ1_PLUS);
        uint32_t half = (a >> 12 & 15) | (a >> 24 & 0xf0) | (b >> 4 & 0xf00) | (b >> 16 & 0xf000);
        e.scale = f16_to_f32((uint16_t)half) * 0.125f;
        e.factor = (u16_at(p + 48 + u / 2 * 2) >> (u % 2 * 6 + t / 2 * 3) & 7) << 1 | 1;
        break;
    }
    case GR_IQ2_XXS:
        whole_point(e, grid, p[8 * u + t], IQ2);
        whole_signs(e, u32_at(p + 8 * u + 4), t, d * 0.125f);
        break;
    case GR_IQ2_XS: {
        uint32_t q = u16_at(p + 8 * u + 2 * t);
        whole_point(e, grid, q & 511, IQ2);
        e.signs = even_signs(q >> 9), e.scale = d * 0.125f;
        e.factor = nibble_at(p + 64, 2 * u + t / 2) << 1 | 1;
        break;
    }
    case GR_IQ2_S:
        whole_point(e, grid, p[4 * u + t] | ((uint32_t)p[64 + u] >> 2 * t & 3) << 8, IQ2);
        e.signs = p[32 + 4 * u + t], e.scale = d * 0.125f;
        e.factor = nibble_at(p + 72, 2 * u + t / 2) << 1 | 1;
        break;
    case GR_IQ3_XXS:
        whole_points(e, grid, p[8 * u + 2 * t], p[8 * u + 2 * t + 1], IQ3_XXS_LOW, IQ3_XXS_HIGH);
        whole_signs(e, u32_at(p + 64 + 4 * u), t, d * 0.25f);
        break;
    case GR_IQ3_S: {
        uint32_t h = (uint32_t)p[64 + u] >> 2 * t;
        whole_points(e, grid, p[8 * u + 2 * t] | (h & 1) << 8, p[8 * u + 2 * t + 1] | (h & 2) << 7,
                     IQ3_S_LOW, IQ3_S_HIGH);
        e.signs = p[72 + 4 * u + t];
        e.scale = d * (float)(nibble_at(p + 104, u) << 1 | 1);
        break;
    }
    case GR_TQ1_0: {
        int k = 4 * (u - 5) + t; // of 8 columns behind the first 160
        bool last = k >= 10;
        const uint8_t *at = p + (u < 5 ? 8 * t : last ? 48 : 32 + k % 2 * 8);
        int digit = u < 5 ? u : last ? 2 * (k - 10) : k / 2;
        e.lo = whole_digits(u32_at(at), digit);
        e.hi = whole_digits(u32_at(at + (last ? 0 : 4)), digit + last);
        break;
    }
    case GR_TQ2_0:
        e.lo = u32_at(p + u / 4 * 32 + 8 * t) >> u % 4 * 2 & 0x03030303;
        e.hi = u32_at(p + u / 4 * 32 + 8 * t + 4) >> u % 4 * 2 & 0x03030303;
        break;
    case GR_Q1_0:
        e.lo = spread_1(p[4 * u + t]) << 1, e.hi = spread_1(p[4 * u + t] >> 4) << 1;
        break;
    default: // Q2_0
        e.lo = spread_2(p[8 * u + 2 * t]), e.hi = spread_2(p[8 * u + 2 * t + 1]);
        break;
    }
    return e;
}

// The same from a chunk of n units.
GR_DEV struct whole8 whole_columns(uint32_t type, const struct gr_pack_type &k,
                                   const uint8_t *chunk, int n, int row, int u, int t,
                                   const void *grid)
{
    int per = n / k.span, block = row * per + u / k.span;
    const uint8_t *d = chunk + 16 * per * k.scale[0] + block * 2;
    return whole_block(type, chunk + block * k.scale[0],
                       k.scale[1] ? f16_to_f32(*(const uint16_t *)d) : 0, u % k.span, t, grid);
}

// Column j of 8.
GR_DEV float whole_number(const struct whole8 &e, const struct gr_pack_type &k, int j)
{
    int q = (int)((j < 4 ? e.lo : e.hi) >> j % 4 * 8 & 255) - k.zero;
    float v = e.scale * (float)(q * (int)e.factor);
    return e.signs >> j & 1 ? -v : v;
}

// Element [row, col] of a chunk of n units.
GR_DEV float whole_value(uint32_t type, const uint8_t *chunk, int n, int row, int col)
{
    struct gr_pack_type k = gr_pack_type(type);
    return whole_number(
        whole_columns(type, k, chunk, n, row, col / 32, col % 32 / 8, whole_grid(type)), k,
        col % 8);
}
