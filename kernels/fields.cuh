// Fields of words, and numbers that storage types keep in few bits (gr/quant_blocks.h).
#pragma once

#include "gr/planes.h"
#include "kernels/ptx.cuh"

// The low four fields of 4, 2 or 1 bits of w, a byte each.
GR_DEV uint32_t spread_4(uint32_t w)
{
    w = ((w & 0xffff) | w << 8) & 0x00ff00ff;
    return (w | w << 4) & 0x0f0f0f0f;
}
GR_DEV uint32_t spread_2(uint32_t w)
{
    w = ((w & 0xff) | w << 12) & 0x000f000f;
    return (w | w << 6) & 0x03030303;
}
GR_DEV uint32_t spread_1(uint32_t w)
{
    return (w & 15) * 0x00204081 & 0x01010101;
}

// 2^(e - 128), MXFP4's scale of doubled values. e may differ between lanes.
GR_DEV float exponent_f32(uint32_t e)
{
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}
// NVFP4's scale in the bits of an f16 whose exponent counts 8 less.
GR_DEV uint32_t nvfp4_bits(uint32_t byte)
{
    return (byte & 127) << 7;
}

static constexpr __device__ __forceinline__ uint32_t iq4_four(const int8_t *v)
{
    return (uint32_t)(v[0] + 128) | (uint32_t)(v[1] + 128) << 8 | (uint32_t)(v[2] + 128) << 16 |
           (uint32_t)(v[3] + 128) << 24;
}
// The values + 128 of the four codes whose lower three bits are nibbles of `eighth` and whose upper
// bit is that of `half`, where nibble i is 4 more or i: a byte each.
GR_DEV uint32_t iq4_pick(uint32_t eighth, uint32_t half)
{
    constexpr int8_t v[16] = {GR_IQ4_VALUES};
    return permute(permute(iq4_four(v), iq4_four(v + 4), eighth),
                   permute(iq4_four(v + 8), iq4_four(v + 12), eighth), half);
}
// The values + 128 of eight codes: of the lower four, and of the upper four.
GR_DEV uint2 iq4_values(uint32_t w)
{
    uint32_t eighth = w & 0x77777777, half = and_or(w >> 1, 0x44444444, 0x32103210);
    return {iq4_pick(eighth, half), iq4_pick(eighth >> 16, half >> 16)};
}

// Element i of a block of planes with nibbles, by its codes and its record.
GR_DEV float nibble_value(uint32_t dtype, const uint8_t *codes, const uint16_t *record, uint32_t i)
{
    int code = codes[i % 16] >> i / 16 * 4 & 15;
    const float d = f16_to_f32(record[0]);
    switch (dtype) {
    case GR_Q4_1:
        return __fadd_rn(__fmul_rn(d, (float)code), f16_to_f32(record[1]));
    case GR_Q5_0:
        code |= (record[1 + i / 16] >> i % 16 & 1) << 4;
        return d * (float)(code - 16);
    case GR_Q5_1:
        code |= (record[2 + i / 16] >> i % 16 & 1) << 4;
        return __fadd_rn(__fmul_rn(d, (float)code), f16_to_f32(record[1]));
    case GR_IQ4_NL:
        return d * (float)((int)(iq4_values((uint32_t)code).x & 255) - 128);
    default: // GR_Q4_0
        return d * (float)(code - 8);
    }
}
