// Fields of words, and numbers that storage types keep in few bits (gr/quant_blocks.h).
#pragma once

#include "gr/planes.h"
#include "kernels/ptx.cuh"

// A constant in a register that the compiler knows nothing of (blocks have one dimension): it would
// make the constant again wherever it is used, and see what a multiplication by it comes to.
GR_DEV uint32_t in_register(uint32_t v)
{
    return v ^ threadIdx.y;
}
// v, which a compiler then keeps, too: it would make it again from the thread's number.
template <class T> GR_DEV T kept(T v)
{
    return __shfl_sync(0xffffffff, v, threadIdx.x % 32);
}
// w >> n and w << n as multiplications: they have a pipe of their own (kernels/README.md).
GR_DEV uint32_t shifted_down(uint32_t w, int n)
{
    return n ? __umulhi(w, in_register(1u << (32 - n))) : w;
}
GR_DEV uint32_t shifted_up(uint32_t w, int n)
{
    return n ? w * in_register(1u << n) : w;
}

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

// Every other of eight values, each + 128.
static constexpr __device__ __forceinline__ uint32_t iq4_four(const int8_t *v)
{
    return (uint32_t)(v[0] + 128) | (uint32_t)(v[2] + 128) << 8 | (uint32_t)(v[4] + 128) << 16 |
           (uint32_t)(v[6] + 128) << 24;
}
// Codes of 4 bits with bit 0 above the others: as iq4_values takes them.
GR_DEV uint32_t iq4_turned(uint32_t w)
{
    return (w >> 1 & 0x77777777) | (w & 0x11111111) << 3;
}
// Values of such codes. MULTIPLY: by multiplications, with constants that stay in registers.
template <bool MULTIPLY> struct iq4_values {
    uint32_t upper[2], less[2]; // of neighbours the upper values, and what the lower ones are less
    uint32_t down, minus;       // factors for a shift by 16 and a difference
    uint32_t biased;            // the upper byte of 1024 and more in f16, four times

    __device__ __forceinline__ iq4_values()
    {
        constexpr int8_t v[16] = {GR_IQ4_VALUES};
        constexpr uint32_t up[2] = {iq4_four(v + 1), iq4_four(v + 9)},
                           step[2] = {up[0] - iq4_four(v), up[1] - iq4_four(v + 8)};
        for (int i = 0; i < 2; i++)
            upper[i] = constant(in_register(up[i])), less[i] = constant(in_register(step[i]));
        down = constant(in_register(0x10000)), minus = constant(in_register(0xffffffff));
        biased = MULTIPLY ? constant(in_register(0x64646464)) : 0x64646464;
    }
    static __device__ __forceinline__ uint32_t constant(uint32_t v)
    {
        return MULTIPLY ? kept(v) : v;
    }
    __device__ __forceinline__ uint32_t halved(uint32_t w) const
    {
        return MULTIPLY ? __umulhi(w, down) : w >> 16;
    }
    // The values + 128 of four codes, a byte each: of the upper ones of neighbours, less what the
    // lower ones are less. prmt gives zeros for that where bit 3 is set, as none has its upper bit
    // set.
    __device__ __forceinline__ uint32_t four(uint32_t pair, uint32_t code) const
    {
        const uint32_t v = permute(upper[0], upper[1], pair), n = permute(less[0], less[1], code);
        return MULTIPLY ? n * minus + v : v - n;
    }
    // Values + 128 of eight codes: of the lower four, and of the upper four.
    __device__ __forceinline__ uint2 operator()(uint32_t w) const
    {
        const uint32_t pair = w & 0x77777777;
        return {four(pair, w), four(halved(pair), halved(w))};
    }
};

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
        return d * (float)((int)(iq4_values<false>()(iq4_turned((uint32_t)code)).x & 255) - 128);
    default: // GR_Q4_0
        return d * (float)(code - 8);
    }
}
