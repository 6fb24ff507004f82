// A step of a packed tile in the registers of a warp, as operands of mma_f16 (mma_bf16 for BF16).
//
// A step is 8 units of 32 columns, a chunk, or 4 (2 for 16-bit types) where codes are wide or
// registers are short, as of Q5_1, which has two planes, scales and minima of each unit. Lane l (g
// = l / 4, t = l % 4) has rows g and g + 8 and columns 8 t .. 8 t + 7 of each unit: pair s of these
// is columns s and s + 4. The value of a weight is scale * (code - zero) - min:
//   code - zero  exact in f16: below 2^8
//   scale        unit_scale, in f32, for the sum of the unit's two products, and step_scale. Types
//                with scales of 16 elements (Q2_K, Q3_K, Q6_K, NVFP4) have a small number besides
//                that the codes are multiplied by in f16. All exact but Q6_K: products between 2^11
//                and 2^12 that are odd are off by 1, less than 2^-11. Those of Q2_K and Q3_K are
//                2^-20 of the product of code and scale: codes are taken as they stand in a word.
// Codes that name values (IQ4_NL, IQ4_XS, MXFP4, NVFP4) stand for code - zero; floats are 2^-14 of
// their values, as their bits are in f16, and results are multiplied by AFTER.
//   min          mins() are a third operand that meets the sums of activations of 16 columns, a
//                product like the others, times min_scale. IQ4 has its zero there: unit() gives
//                values + 1152, in f32 a dozen times the rounding of values, 2^-19; Q3_K too.
#pragma once

#include "gr/pack.h"
#include "kernels/fields.cuh"
#include "kernels/mma.cuh"

#define GR_METHOD __device__ __forceinline__ // GR_DEV in a class

GR_DEV uint32_t twice(uint32_t f16)
{
    return f16 * 0x10001u;
}
// Byte i of w in both halves, as integers in f16. i may be a lane's own.
GR_DEV uint32_t byte_f16x2(uint32_t w, int i)
{
    return sub_f16x2(__byte_perm(w, 0x64646464, 0x4040 + i * 0x101), 0x64006400);
}
// Byte i of w, less n: by way of 2^23 + byte.
GR_DEV float byte_less(uint32_t w, int i, int n)
{
    return __uint_as_float(__byte_perm(w, 0x4b000000, 0x7440 + i)) - (float)(0x800000 + n);
}

// Sources of a step: global and shared memory.
struct from_global {
    static GR_METHOD uint4 get(const void *p)
    {
        return load_once(p);
    }
};
struct from_shared {
    static GR_METHOD uint4 get(const void *p)
    {
        return *(const uint4 *)p;
    }
};

template <uint32_t T, int U = gr_pack_step_units(T)> struct pack_step {
    static constexpr struct gr_pack_type P = gr_pack_type(T);
    static constexpr int B0 = P.bits[0], B1 = P.bits[1], ZERO = P.zero;
    static constexpr int US = P.span < 8 ? P.scale[0] / P.span : 0; // bytes of scales of a unit,
    static constexpr int C0 = US ? 0 : P.scale[0], C1 = P.scale[1]; // of a chunk
    static constexpr bool IS_FLOAT = B0 == 16, K_BLOCK = C0 != 0;
    static constexpr bool BY_16 = T == GR_Q2_K || T == GR_Q3_K || T == GR_Q6_K || T == GR_NVFP4;
    static constexpr bool IQ4 = T == GR_IQ4_NL || T == GR_IQ4_XS;
    static constexpr bool FP4 = T == GR_MXFP4 || T == GR_NVFP4;
    static constexpr bool HAS_MIN = US == 4 || T == GR_Q2_K || T == GR_Q4_K || T == GR_Q5_K;
    static constexpr bool TWO = P.order == GR_PACK_BY_UNIT;
    static constexpr bool SUMS = HAS_MIN || IQ4 || T == GR_Q3_K; // mins() are used
    static constexpr float AFTER = T == GR_MXFP4 ? 16384.0f : T == GR_NVFP4 ? 128.0f : 1.0f;
    static constexpr bool TINY = B0 == 4 && HAS_MIN; // no zero to take off: unit() has 2^-24 codes
    static constexpr int UNITS = U, STEPS = 8 / U;   // of a step; steps of a chunk
    static constexpr bool HALF = U == 4 && B0 < 8;   // a chunk's scales are there twice
    static constexpr float WHOLE = TINY  ? 16777216.0f // factor that makes them codes
                                   : TWO ? 1048576.0f
                                         : 1.0f;
    static constexpr int W0 = UNITS * B0 / 2, W1 = TWO ? 4 * B1 : UNITS * B1 / 2;
    static constexpr int WS = US ? UNITS * US / 4 : 4; // words of a row's scales

    uint32_t w0[W0], w1[W1 ? W1 : 1], s[2][WS], d[2];
    int half; // the half of the chunk, with HALF

    // Loads step i of the tile at `tile`, of a row with `units` units in all.
    GR_METHOD void load(const uint8_t *tile, int i, int units)
    {
        int chunk = i / STEPS, first = i % STEPS * UNITS, n = units - 8 * chunk;
        const uint8_t *codes = tile + chunk * gr_pack_chunk_bytes(T, 8);
        load_chunk<from_global>(codes, first, n, threadIdx.x % 32);
    }
    // The same from the chunk that begins at `codes`, of a row with n more units.
    template <class From>
    GR_METHOD void load_chunk(const uint8_t *codes, int first, int n, int lane)
    {
        if (K_BLOCK || n >= 8)
            load_units<From, true>(codes, first, 8, lane);
        else
            load_units<From, false>(codes, first, n, lane);
    }

    // Called before the first use of the loaded step, by all lanes of a warp.
    GR_METHOD void arrived()
    {
        if constexpr (T == GR_IQ4_XS)
            share_scales();
#pragma unroll
        for (int i = 0; i < W1 / 2 && TWO && HALF; i++) { // the half's bits of two words in one
            const uint32_t even = w1[2 * i], odd = w1[2 * i + 1], mine = 0x55555555;
            w1[i] = (__funnelshift_r(even, even, half) & mine) |
                    (__funnelshift_l(odd, odd, 1 - half) & ~mine);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if constexpr (K_BLOCK && T != GR_IQ4_XS)
                decode(s[r], d[r]);
            if constexpr (T == GR_NVFP4)
#pragma unroll
                for (int i = 0; i < WS; i++) // this lane's of two units, f16: times 2^7
                    s[r][i] = mul_f16x2(
                        __byte_perm(s[r][i], 0, 0x4240 + threadIdx.x % 4 / 2 * 0x101) << 7 &
                            0x3f803f80,
                        twice(0x7800));
        }
    }

    // The codes' pairs as f16 (or bf16): what mma_f16 takes for unit u, in two products. MULTIPLY:
    // shifts are multiplications, which costs registers.
    template <bool MULTIPLY, bool KEPT = false>
    GR_METHOD void codes(int u, uint32_t (&a)[2][4], const iq4_values<KEPT> &iq4 = {}) const
    {
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                a[s / 2][s % 2 * 2 + r] = TINY  ? bits<MULTIPLY>(u, r, s)
                                          : IQ4 ? biased(iq4, u, r, s)
                                          : FP4 ? floats<MULTIPLY>(u, r, s)
                                          : TWO ? two<MULTIPLY>(u, r, s, 0)
                                                : pair(u, r, s);
    }
    // The same times scales of 16 columns.
    template <bool KEPT = false>
    GR_METHOD void unit(int u, uint32_t (&a)[2][4], const iq4_values<KEPT> &iq4 = {}) const
    {
        codes<false>(u, a, iq4);
        if constexpr (BY_16) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t scale = TWO ? group_scale(u, r, 4 - two_at(u, r)) : group_scale(u, r);
#pragma unroll
                for (int s = 0; s < 4; s++)
                    a[s / 2][s % 2 * 2 + r] = mul_f16x2(a[s / 2][s % 2 * 2 + r], scale);
            }
        }
    }

    // Codes of columns s and s + 4 of row g + 8 r as they are, which is 2^-24 times them in f16.
    template <bool MULTIPLY> GR_METHOD uint32_t bits(int u, int r, int s) const
    {
        const uint32_t w = w0[u * 2 + r];
        uint32_t x = (MULTIPLY ? shifted_down(w, 4 * s) : w >> 4 * s) & 0x000f000f;
        if constexpr (B1 == 1) {
            const uint32_t more = w1[u / 2];
            const int at = s / 2 + s % 2 * 4 + 2 * r + 8 * (u % 2);
            // shifts down by 4 and 8 share factors with those of w0, two up have their own: there
            // are no registers for more
            const uint32_t v = MULTIPLY && at % 2 == 0 && at < B0 ? shifted_up(more, B0 - at)
                               : MULTIPLY && at % B0 == 0         ? shifted_down(more, at - B0)
                                                                  : moved(more, at, B0);
            x = and_or(v, 0x00100010, x);
        }
        return x;
    }
    // The same of GR_PACK_BY_UNIT, with the bits of `more`: 2^two_at times that. Codes of three
    // bits are first put together, those of four units at once: a word for each row.
    template <bool MULTIPLY> GR_METHOD uint32_t two(int u, int r, int s, uint32_t more) const
    {
        uint32_t x = w0[u / 4 * 4 + s];
        if constexpr (B1 == 1) {
            const uint32_t w = w1[HALF ? s / 2 : s], low = r ? 0xcccccccc : 0x33333333;
            x = select_bits(x, (HALF ? s % 2 : u / 4) ? __funnelshift_r(w, w, 1) : w, low);
        }
        if (u / 2 % 2)
            x = B1 == 1 && r ? __funnelshift_r(x, x, 8) // the last bit is the first then
                : MULTIPLY   ? shifted_down(x, 8)
                             : x >> 8;
        return and_or(x, (B1 == 1 ? 0x00070007 : 0x00030003) << two_at(u, r), more);
    }

    // Columns s and s + 4 of row g + 8 r, code - zero.
    GR_METHOD uint32_t pair(int u, int r, int s) const
    {
        if constexpr (IS_FLOAT)
            return w0[u * 8 + r * 4 + s];
        if constexpr (B0 == 8) // 1024 + 128 + code
            return sub_f16x2(__byte_perm(w0[u * 4 + r * 2 + s / 2] ^ 0x80808080, 0x64646464,
                                         s % 2 ? 0x4342 : 0x4140),
                             0x64806480);
        if constexpr (IQ4)
            return sub_f16x2(biased(iq4_values<false>(), u, r, s), 0x64806480);
        if constexpr (FP4)
            return floats<false>(u, r, s);
        // 1024 + code 2^p in the bits of an f16: p spares shifts of words
        constexpr uint32_t BITS = 0x10001;
        const int p = TWO ? two_at(u, r) : 4 * (s % 2);
        uint32_t x;
        if constexpr (TWO)
            x = two<false>(u, r, s, 0x64006400);
        else
            x = and_or(w0[u * 2 + r] >> s / 2 * 8, (15 * BITS) << p, 0x64006400);
        if constexpr (B1 == 1 && !TWO)
            x = and_or(moved(w1[u / 2], s / 2 + s % 2 * 4 + 2 * r + 8 * (u % 2), B0 + p),
                       BITS << (B0 + p), x);
        if constexpr (B1 == 2)
            x = and_or(moved(w1[u], at_2(s, r), 4 + p), (3 * BITS) << (4 + p), x);
        // times 2^-p, less the excess: all exact
        const uint32_t down = twice((uint32_t)(15 - p) << 10);
        return fma_f16x2(x, down, twice(0x8000 | integer_f16((1024 >> p) + ZERO)));
    }

    // Columns s and s + 4 of row g + 8 r of floats of 4 bits (GR_PACK_FLOATS).
    template <bool MULTIPLY> GR_METHOD uint32_t floats(int u, int r, int s) const
    {
        const uint32_t w = w0[u * 2 + r], v = MULTIPLY ? shifted_up(w, 3 * s) : w << 3 * s;
        if (s < 2)
            return v & 0x8e008e00;
        return and_or(v, 0x0e000e00, (MULTIPLY ? shifted_up(w, s - 1) : w << (s - 1)) & 0x80008000);
    }
    // Columns s and s + 4 of row g + 8 r of IQ4: 1024 + 128 + value.
    template <bool MULTIPLY>
    GR_METHOD uint32_t biased(const iq4_values<MULTIPLY> &iq4, int u, int r, int s) const
    {
        const uint2 v = iq4(w0[u * 2 + r]);
        return __byte_perm(s < 2 ? v.x : v.y, iq4.biased, s % 2 ? 0x4342 : 0x4140);
    }

    // Factor of the products of unit u, row g + 8 r; of K types without that of the step.
    GR_METHOD float unit_scale(int u, int r) const
    {
        if constexpr (T == GR_MXFP4) // below 2^-126: 0
            return __uint_as_float(moved(s[r][u / 4], u % 4 * 8, 23) & 0x7f800000);
        else if constexpr (BY_16)
            return 1;
        else if constexpr (K_BLOCK)
            return byte_less(word(r, u / 4, 1), u % 4, T == GR_IQ4_XS ? 32 : 0);
        else if constexpr (US == 4)
            return f16_to_f32((uint16_t)s[r][u]) * WHOLE;
        else
            return f16_to_f32((uint16_t)(s[r][u / 2] >> u % 2 * 16));
    }
    // Factor of the step's products, row g + 8 r.
    GR_METHOD float step_scale(int r) const
    {
        return K_BLOCK ? f16_to_f32((uint16_t)d[r]) * WHOLE : 1.0f;
    }
    // Word i of a block's decoded scales, of which half a chunk has n.
    GR_METHOD uint32_t word(int r, int i, int n) const
    {
        uint32_t first = s[r][i],
                 second = HALF ? s[r][(i + n) % WS] : 0; // no index of a lane's own
        return HALF && half ? second : first;
    }
    // Scale of types with groups of 16: an integer for this lane's 8 columns, times 2^p.
    GR_METHOD uint32_t group_scale(int u, int r, int p = 0) const
    {
        if constexpr (T == GR_NVFP4)
            return __byte_perm(s[r][u / 2], 0, u % 2 ? 0x3232 : 0x1010);
        constexpr uint32_t off = integer_f16(1024 + (T == GR_Q6_K ? 128 : T == GR_Q3_K ? 32 : 0));
        uint32_t w = word(r, u / 2, 2);
        if constexpr (T == GR_Q2_K)
            w &= 0x0f0f0f0f;
        w = __byte_perm(w, 0x64646464, 0x4040 + (u % 2 * 2 + threadIdx.x % 4 / 2) * 0x101);
        if (p == 0)
            return sub_f16x2(w, twice(off));
        return fma_f16x2(w, twice((uint32_t)(15 + p) << 10),
                         twice(0x8000 | (off + ((uint32_t)p << 10))));
    }

    // Operand of the minima [16 rows, 16 groups of 16 columns], whose products are multiplied by
    // min_scale.
    GR_METHOD void mins(uint32_t (&a)[4]) const
    {
        int t = threadIdx.x % 4;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) // groups 2 t, 2 t + 1, and those + 8
                a[2 * h + r] = min_pair(r, h, t) & (HALF && half != h ? 0 : 0xffffffff);
    }
    GR_METHOD uint32_t min_pair(int r, int h, int t) const
    {
        if constexpr (T == GR_Q3_K) { // scales
            return sub_f16x2(__byte_perm(t < 2 ? s[r][2 * h] : s[r][2 * h + 1], 0x64646464,
                                         0x4140 + t % 2 * 0x202),
                             0x64206420);
        } else if constexpr (T == GR_Q2_K) {
            uint32_t w = (t < 2 ? s[r][2 * h] : s[r][2 * h + 1]) >> 4 & 0x0f0f0f0f;
            return sub_f16x2(__byte_perm(w, 0x64646464, 0x4140 + t % 2 * 0x202), 0x64006400);
        } else if constexpr (T == GR_IQ4_XS) { // scales - 32
            return sub_f16x2(__byte_perm(s[r][h], 0x64646464, 0x4040 + t * 0x101), 0x64206420);
        } else if constexpr (IQ4) {
            int i = HALF ? 0 : 2 * h;
            return __byte_perm(t < 2 ? s[r][i] : s[r][i + 1], 0, t % 2 ? 0x3232 : 0x1010);
        } else if constexpr (K_BLOCK) { // a minimum of 32: twice
            return byte_f16x2(s[r][2 + h], t);
        } else {
            int i = HALF ? 0 : 4 * h;
            uint32_t lo = t % 2 ? s[r][i + 1] : s[r][i], hi = t % 2 ? s[r][i + 3] : s[r][i + 2];
            return __byte_perm(t < 2 ? lo : hi, 0, 0x3232);
        }
    }
    GR_METHOD float min_scale(int r) const
    {
        if constexpr (IQ4)
            return T == GR_IQ4_XS ? -1152 * f16_to_f32((uint16_t)d[r]) : -1152.0f;
        if constexpr (T == GR_Q3_K)
            return -ZERO * f16_to_f32((uint16_t)d[r]);
        return K_BLOCK ? -f16_to_f32((uint16_t)(d[r] >> 16)) : 1.0f;
    }
    // Term to add to each product of code and scale in this lane's 8 columns of unit u, row g +
    // 8 r: their number of mins() times min_scale.
    GR_METHOD float offset(int u, int r) const
    {
        if constexpr (!SUMS)
            return 0;
        else if constexpr (IQ4)
            return -1152 * unit_scale(u, r) * step_scale(r);
        else if constexpr (TWO)
            return byte_less(T == GR_Q2_K ? word(r, u / 2, 2) >> 4 & 0x0f0f0f0f : word(r, u / 2, 2),
                             u % 2 * 2 + threadIdx.x % 4 / 2, T == GR_Q3_K ? 32 : 0) *
                   min_scale(r);
        else if constexpr (K_BLOCK)
            return byte_less(word(r, 2 + u / 4, 1), u % 4, 0) * min_scale(r);
        else
            return f16_to_f32((uint16_t)(s[r][u] >> 16));
    }

    // --- parts ---

    static GR_METHOD constexpr int at_2(int s, int r) // of a pair in a plane of two bits
    {
        return s / 2 * 2 + s % 2 * 4 + 8 * r;
    }
    static GR_METHOD constexpr int two_at(int u, int r) // the lowest bit of codes of a row
    {
        return 2 * r + u % 2 * 4;
    }
    static GR_METHOD uint32_t moved(uint32_t w, int from, int to)
    {
        return from > to ? w >> (from - to) : w << (to - from);
    }
    static constexpr __device__ uint32_t integer_f16(uint32_t v) // 0 < v < 2048
    {
        uint32_t e = 0;
        while (v >> (e + 1))
            e++;
        return (15 + e) << 10 | ((v << (10 - e)) & 0x3ff);
    }

    // Units from `first` on of a chunk of n: a whole one, or the last of a row.
    template <class From, bool WHOLE>
    GR_METHOD void load_units(const uint8_t *codes, int first, int n, int lane)
    {
#pragma unroll
        for (int p = 0; p < W0 / 4; p++) {
            uint4 v = {0, 0, 0, 0};
            if (WHOLE || first + p * 8 / B0 < n)
                v = From::get(codes + (first * B0 / 8 + p) * 512 + lane * 16);
            w0[4 * p] = v.x, w0[4 * p + 1] = v.y, w0[4 * p + 2] = v.z, w0[4 * p + 3] = v.w;
        }
        half = first / 4;
        const uint8_t *second = codes + n * 64 * B0; // plane
        if constexpr (TWO && B1 == 1)
            load_words<From, true, W1>(w1, second + lane * 16, 0, W1);
        else if constexpr (B1 == 1) // 16 bytes of a lane, or less where n < 8
            load_words<From, WHOLE, W1>(w1, second + lane * (WHOLE ? 16 : n * 2) + first * 2, 0,
                                        (n - first) / 2);
        if constexpr (B1 == 2)
            load_words<From, true, W1>(w1, second + first / 4 * 512 + lane * 16, 512, W1);
        const uint8_t *scales = codes + n * 64 * (B0 + B1);
#pragma unroll
        for (int r = 0; r < 2 && !IS_FLOAT; r++) {
            int row = lane / 4 + 8 * r;
            if constexpr (US == 1) {
                load_bytes<From, WHOLE, WS>(s[r], scales + row * n + first, n - first);
                continue;
            }
            if constexpr (US != 0) {
                load_words<From, WHOLE, WS>(s[r], scales + (row * n + first) * US, 16,
                                            (n - first) * US / 4);
                continue;
            }
            load_words<From, C0 == 16, WS>(s[r], scales + row * C0, 16, C0 / 4);
            const uint8_t *last = scales + 16 * C0 + row * C1;
            if constexpr (C1 == 4)
                d[r] = *(const uint32_t *)last;
            if constexpr (C1 == 2)
                d[r] = *(const uint16_t *)last;
        }
    }
    // N words, `pitch` bytes from 16 bytes to the next; or the n there are, one after another.
    template <class From, bool WHOLE, int N>
    static GR_METHOD void load_words(uint32_t *w, const uint8_t *at, int pitch, int n)
    {
        if constexpr (WHOLE && N % 4 == 0) {
#pragma unroll
            for (int p = 0; p < N / 4; p++) {
                uint4 v = From::get(at + p * pitch);
                w[4 * p] = v.x, w[4 * p + 1] = v.y, w[4 * p + 2] = v.z, w[4 * p + 3] = v.w;
            }
        } else if constexpr (WHOLE && N == 2) {
            uint2 v = *(const uint2 *)at;
            w[0] = v.x, w[1] = v.y;
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                w[i] = i < n ? ((const uint32_t *)at)[i] : 0;
        }
    }
    // N words of bytes, of which there are n.
    template <class From, bool WHOLE, int N>
    static GR_METHOD void load_bytes(uint32_t *w, const uint8_t *at, int n)
    {
        if constexpr (WHOLE) {
            load_words<From, true, N>(w, at, 16, N);
        } else {
#pragma unroll
            for (int i = 0; i < 4 * N; i++)
                w[i / 4] = (i % 4 ? w[i / 4] : 0) | (i < n ? (uint32_t)at[i] << i % 4 * 8 : 0);
        }
    }
    // IQ4_XS: to 8 scales + 32, a byte each. A lane makes four of one of its two rows, which the
    // four lanes with the same rows exchange.
    GR_METHOD void share_scales()
    {
        uint32_t t = threadIdx.x % 4, first = t < 2 ? s[0][0] : s[1][0],
                 second = t < 2 ? s[0][1] : s[1][1];
        uint32_t mine = spread_4(second >> t % 2 * 16) | spread_2(first >> (16 + t % 2 * 8)) << 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            d[r] = s[r][0];
            s[r][0] = __shfl_sync(0xffffffff, mine, 2 * r, 4);
            s[r][1] = __shfl_sync(0xffffffff, mine, 2 * r + 1, 4);
        }
    }
    // Q4_K, Q5_K: to 8 scales, then 8 minima, a byte each; Q3_K: to 16 scales + 32; Q6_K: + 128.
    static GR_METHOD void decode(uint32_t (&w)[WS], uint32_t &d)
    {
        if constexpr (T == GR_Q4_K || T == GR_Q5_K) {
            uint32_t a = w[1], b = w[2], c = w[3];
            d = w[0];
            w[0] = a & 0x3f3f3f3f, w[1] = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
            w[2] = b & 0x3f3f3f3f, w[3] = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
        } else if constexpr (T == GR_Q3_K) {
            uint32_t a = w[0], b = w[1], c = w[2];
            w[0] = (a & 0x0f0f0f0f) | (c << 4 & 0x30303030);
            w[1] = (b & 0x0f0f0f0f) | (c << 2 & 0x30303030);
            w[2] = (a >> 4 & 0x0f0f0f0f) | (c & 0x30303030);
            w[3] = (b >> 4 & 0x0f0f0f0f) | (c >> 2 & 0x30303030);
        } else if constexpr (T == GR_Q6_K) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[i] ^= 0x80808080;
        }
    }
};
