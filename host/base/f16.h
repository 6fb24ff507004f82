/* Conversions between f32 and the two 16-bit floats: exact to f32, round-to-nearest-even from it.
 * NaN stays NaN. */
#ifndef GR_BASE_F16_H
#define GR_BASE_F16_H

#include <stdint.h>
#include <string.h>

static inline uint32_t gr_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float gr_bits_f32(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* IEEE binary16 to f32, subnormals, infinities and NaN included. */
static inline float gr_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu;
    if (exp == 31)
        return gr_bits_f32(sign | 0x7f800000u | man << 13);
    if (exp)
        return gr_bits_f32(sign | (exp + 112) << 23 | man << 13);
    float v = (float)man * 0x1p-24f;
    return sign ? -v : v;
}

/* f32 to binary16, ties to even, overflow to infinity. */
static inline uint16_t gr_f32_to_f16(float x)
{
    uint32_t u = gr_f32_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a >= 0x7f800000u)
        return (uint16_t)(sign | 0x7c00u | (a > 0x7f800000u ? 0x200u | ((a >> 13) & 0x3ffu) : 0));
    if (a >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* subnormal: adding 2^-1 aligns and rounds the mantissa at 2^-24 */
        uint32_t r = gr_f32_bits(gr_bits_f32(a) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | r);
    }
    uint32_t r = a + 0xfffu + ((a >> 13) & 1u);
    return (uint16_t)(sign | ((r >> 13) - (112u << 10)));
}

static inline float gr_bf16_to_f32(uint16_t h)
{
    return gr_bits_f32((uint32_t)h << 16);
}

/* f32 to bfloat16, ties to even; NaN is made quiet. */
static inline uint16_t gr_f32_to_bf16(float x)
{
    uint32_t u = gr_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 64u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#endif
