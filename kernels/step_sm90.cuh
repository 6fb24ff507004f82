// A step of weights as f16, which the tiles of products on wgmma multiply (kernels/tile_sm90.cuh),
// and these products.
#pragma once

#include "kernels/decode.cuh"
#include "kernels/wgmma.cuh"

// A step, of floats in fewer registers.
template <uint32_t T>
using sm90_pack = pack_step<T, T == GR_F16 || T == GR_BF16 ? 2 : gr_pack_step_units(T)>;
// The same whose weights are whole f16 numbers, relative to a power of two for each of a lane's
// rows.
template <uint32_t T> struct sm90_step : sm90_pack<T> {
    using S = sm90_pack<T>;
    float power[2];
    uint32_t d16[2], m16[2]; // K types: the block's scale and minimum
    uint32_t largest[2];     // MXFP4: exponent

    // The largest scale or minimum of a block becomes 2^room() or a little more: its product with
    // the largest code is then below 2^15, and scales down to 2^-14 keep all their bits.
    static GR_METHOD constexpr uint32_t room()
    {
        switch (T) {
        case GR_Q4_0:
            return 11; // 8 scales
        case GR_Q4_1:
        case GR_Q5_0:
            return 10; // 16
        case GR_Q5_1:
            return 9; // 32
        case GR_Q2_K:
            return 8; // 15 * 3 + 15
        case GR_Q4_K:
            return 4; // 63 * 15 + 63
        case GR_Q5_K:
            return 3; // 63 * 31 + 63
        case GR_Q6_K:
        case GR_IQ4_XS:
            return 2; // 128 * 32, 32 * 127
        default:
            return 7; // Q8_0, Q3_K, IQ4_NL: 128, 32 * 4, 127
        }
    }
    GR_METHOD void relate()
    {
#pragma unroll
        for (int r = 0; r < 2 && !S::IS_FLOAT; r++) {
            if constexpr (T == GR_NVFP4) { // fits as it is
                power[r] = 128;
                continue;
            }
            if constexpr (T == GR_MXFP4) {
                largest[r] = 0;
#pragma unroll
                for (int i = 0; i < 4 * S::WS; i++)
                    largest[r] = max(largest[r], this->s[r][i / 4] >> i % 4 * 8 & 255);
                power[r] = exponent_f32(largest[r]); // of twice the values
                continue;
            }
            uint32_t most = S::K_BLOCK ? this->d[r] & 0x7fff : 0;
            if constexpr (S::K_BLOCK && S::HAS_MIN)
                most = max(most, this->d[r] >> 16 & 0x7fff);
#pragma unroll
            for (int i = 0; i < S::WS && !S::K_BLOCK; i++)
                most = max(most, max(this->s[r][i] & 0x7fff, this->s[r][i] >> 16 & 0x7fff));
            uint32_t bits = __float_as_uint(f16_to_f32((uint16_t)most)) & 0x7f800000;
            power[r] = bits ? __uint_as_float(bits - (room() << 23)) : 1.0f;
            if constexpr (S::K_BLOCK) {
                d16[r] = related(this->d[r], r);
                m16[r] = S::HAS_MIN ? related(this->d[r] >> 16 ^ 0x8000, r) : 0;
            }
        }
    }
    // An f16 over the row's power of two, twice.
    GR_METHOD uint32_t related(uint32_t f16, int r) const
    {
        float v =
            f16_to_f32((uint16_t)f16) * __uint_as_float(0x7f000000 - __float_as_uint(power[r]));
        return f16x2(v, v);
    }
    GR_METHOD void unit16(int u, uint32_t (&a)[2][4]) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t scale = 0, min = 0;
            if constexpr (T == GR_NVFP4) {
                scale = this->group_scale(u, r);
            } else if constexpr (T == GR_MXFP4) { // 2^(15 - what it is less than the largest)
                int e = (int)(this->s[r][u / 4] >> u % 4 * 8 & 255) - (int)largest[r];
                float v = e < -29 ? 0 : __uint_as_float((uint32_t)(e + 127 + 15) << 23);
                scale = f16x2(v, v);
            } else if constexpr (S::BY_16)
                scale = mul_f16x2(this->group_scale(u, r), d16[r]);
            else if constexpr (T == GR_IQ4_XS)
                scale = mul_f16x2(sub_f16x2(byte_f16x2(this->s[r][u / 4], u % 4), twice(0x5000)),
                                  d16[r]); // - 32
            else if constexpr (S::K_BLOCK)
                scale = mul_f16x2(byte_f16x2(this->s[r][u / 4], u % 4), d16[r]);
            else if constexpr (S::US == 4)
                scale = related(this->s[r][u], r), min = related(this->s[r][u] >> 16, r);
            else if constexpr (S::US == 2)
                scale = related(this->s[r][u / 2] >> u % 2 * 16, r);
            if constexpr (T == GR_Q2_K)
                min = mul_f16x2(byte_f16x2(this->s[r][u / 2] >> 4 & 0x0f0f0f0f,
                                           u % 2 * 2 + threadIdx.x % 4 / 2),
                                m16[r]);
            else if constexpr (S::K_BLOCK && S::HAS_MIN)
                min = mul_f16x2(byte_f16x2(this->s[r][2 + u / 4], u % 4), m16[r]);
#pragma unroll
            for (int s = 0; s < 4; s++) {
                uint32_t v = this->pair(u, r, s);
                a[s / 2][s % 2 * 2 + r] = S::IS_FLOAT  ? v
                                          : S::HAS_MIN ? fma_f16x2(v, scale, min)
                                                       : mul_f16x2(v, scale);
            }
        }
    }
};

// d (+)= a pair of units times 64 columns of N rows of x: a group of products that is begun.
template <uint32_t T, int N, int R>
GR_DEV void sm90_pair(float (&all)[R], const uint32_t (&a)[2][2][4], uint64_t b, bool accumulate)
{
    auto &d = reinterpret_cast<float(&)[N / 2]>(all);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        if constexpr (T == GR_BF16)
            wgmma_bf16_ra<N>(d, a[k / 2][k % 2], wgmma_step(b, 32 * k), accumulate || k > 0);
        else
            wgmma_f16_ra<N>(d, a[k / 2][k % 2], wgmma_step(b, 32 * k), accumulate || k > 0);
    wgmma_commit();
}

// The same of `width` rows: 64, 72, .. 120.
template <uint32_t T, int R>
GR_DEV void sm90_pair_of(int width, float (&d)[R], const uint32_t (&a)[2][2][4], uint64_t b,
                         bool accumulate)
{
    switch (width) {
    case 72:
        return sm90_pair<T, 72>(d, a, b, accumulate);
    case 80:
        return sm90_pair<T, 80>(d, a, b, accumulate);
    case 88:
        return sm90_pair<T, 88>(d, a, b, accumulate);
    case 96:
        return sm90_pair<T, 96>(d, a, b, accumulate);
    case 104:
        return sm90_pair<T, 104>(d, a, b, accumulate);
    case 112:
        return sm90_pair<T, 112>(d, a, b, accumulate);
    case 64:
        return sm90_pair<T, 64>(d, a, b, accumulate);
    default:
        return sm90_pair<T, 120>(d, a, b, accumulate);
    }
}
