// Products of a packed matrix with one token: what a warp does with its chunks.
//
// The eight columns of mma.m16n8k16 would be those of eight tokens. Here a pair of them is for
// every fourth unit: lane (g = l / 4, t = l % 4) has the activations of units g / 2 and 4 + g / 2,
// and zeros for the unit beside each. Products of two units beside each other have one sum, of
// which lane t has that of unit t or 4 + t, or one that it drops: a factor of 0. So a scale meets a
// sum of one token. Scales of 16 columns do so too, and not each code: one column of a pair has the
// lower half of a unit's activations, the other one the upper half, and zeros elsewhere. Zeros are
// not loaded: registers keep them.
#pragma once

#include "kernels/matmul.cuh"

// Scales of this lane's units t and 4 + t (h = 0, 1) of rows g and g + 8 r, from the planes as they
// are loaded: operands for sums, and factors.
template <uint32_t T> struct mv_scales {
    using S = pack_step<T, 8>;
    static constexpr int EACH = S::BY_16 ? 2 : 1; // groups of a unit
    float scale[2][2][EACH], step[2];             // [r][h]: of a group's sum; of all of them
    uint32_t mins[4];                             // as pack_step::mins makes them
    float low[2];                                 // of their product

    GR_METHOD mv_scales(const S &w)
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            of_row(w, r, threadIdx.x % 4);
    }
    // Bytes 2 t and 2 t + 1 of b:a at 0 and 16; bits between them are any.
    static GR_METHOD uint32_t two_of(uint32_t a, uint32_t b, uint32_t t)
    {
        return __byte_perm(a, b, 0x100 + t * 0x202);
    }
    // The halves of a register hold the scales of a unit's groups, f16.
    GR_METHOD void set(int r, int h, uint32_t f16x2)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            scale[r][h][i] = f16_to_f32((uint16_t)(f16x2 >> 16 * i));
    }
    GR_METHOD void of_row(const S &w, int r, uint32_t t)
    {
        const uint32_t(&s)[S::WS] = w.s[r];
        step[r] = low[r] = 1;
        if constexpr (T == GR_Q2_K || T == GR_Q3_K) // codes of row g + 8 stand at 2^2
            step[r] = f16_to_f32((uint16_t)w.d[r]) *
                      ((r ? 0.25f : 1.0f) * (T == GR_Q2_K ? 0x1p24f : 1.0f));
        if constexpr (T == GR_Q2_K) { // scales, and 16 times minima, are 2^-24 of theirs
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t v = two_of(s[2 * h], s[2 * h + 1], t);
                set(r, h, v & 0x000f000f);
                mins[2 * h + r] = v & 0x00f000f0;
            }
            low[r] = f16_to_f32((uint16_t)(w.d[r] >> 16)) * -0x1p20f;
        } else if constexpr (T == GR_Q3_K) {
            const uint32_t v = two_of(s[0], s[1], t), high = two_of(s[2], 0, t % 2) >> t / 2 * 2;
            uint32_t two[2] = {and_or(high << 4, 0x00300030, and_or(v, 0x000f000f, 0x64006400)),
                               and_or(high, 0x00300030, and_or(v >> 4, 0x000f000f, 0x64006400))};
#pragma unroll
            for (int h = 0; h < 2; h++)
                set(r, h, mins[2 * h + r] = sub_f16x2(two[h], 0x64206420));
            low[r] = f16_to_f32((uint16_t)w.d[r]) * -(float)S::ZERO;
        } else if constexpr (T == GR_Q6_K) {
#pragma unroll
            for (int h = 0; h < 2; h++) // signed bytes
                set(r, h,
                    sub_f16x2((two_of(s[2 * h], s[2 * h + 1], t) & 0x00ff00ff) ^ 0x64806480,
                              0x64806480));
            step[r] = f16_to_f32((uint16_t)w.d[r]);
        } else if constexpr (T == GR_Q4_K || T == GR_Q5_K) { // a scale and a minimum: 2^-24 of them
            const uint32_t v = __byte_perm(s[1], s[2], 0x400 + t * 0x101),
                           last = __byte_perm(s[3], s[3] >> 4, 0x400 + t * 0x101);
            const uint32_t two[2] = {v & 0x003f003f, and_or(v >> 2, 0x00300030, last & 0x000f000f)};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                set(r, h, two[h]);
                mins[2 * h + r] = __byte_perm(two[h], 0, 0x3232);
            }
            step[r] = f16_to_f32((uint16_t)s[0]) * 0x1p24f;
            low[r] = f16_to_f32((uint16_t)(s[0] >> 16)) * -0x1p24f;
        } else if constexpr (T == GR_IQ4_XS) {
            const uint32_t high = (s[0] >> (16 + 2 * t) & 0x0303) * 0x1010,
                           two = and_or(s[1] >> 4 * t, 0x000f000f, 0x64006400),
                           v = sub_f16x2(and_or(high, 0x00300030, two), 0x64206420);
            set(r, 0, mins[r] = __byte_perm(v, 0, 0x1010));
            set(r, 1, mins[2 + r] = __byte_perm(v, 0, 0x3232));
            step[r] = f16_to_f32((uint16_t)s[0]);
            low[r] = step[r] * -1152;
        } else if constexpr (T == GR_IQ4_NL) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                set(r, h,
                    mins[2 * h + r] = __byte_perm(s[2 * h], s[2 * h + 1], 0x1010 + t * 0x2222));
            low[r] = -1152;
        } else if constexpr (T == GR_MXFP4) { // an exponent; below 2^-126: 0
#pragma unroll
            for (int h = 0; h < 2; h++)
                scale[r][h][0] =
                    __uint_as_float(__byte_perm(s[h], 0, 0x0444 + t * 0x1000) >> 1 & 0x7f800000);
        } else { // GR_NVFP4: 2^-8 of them
#pragma unroll
            for (int h = 0; h < 2; h++)
                set(r, h, two_of(s[2 * h], s[2 * h + 1], t) << 7 & 0x3f803f80);
            step[r] = 0x1p15f;
        }
    }
};

// The work of a warp for one token: mv_some (kernels/matmul_mv.cuh) is that for more.
template <uint32_t T> struct mv_one {
    using S = pack_step<T, 8>;
    static constexpr bool EPILOGUE = true, KEEP = true;
    static constexpr int TOKENS = 1, UNITS = 8, SUMS = GR_PACK_ROWS; // of a warp, in shared memory
    static constexpr int APART = 2; // units whose activations are in columns apart
    const uint8_t *x, *sums;        // of the row, this lane's
    const float *factor;
    uint4 words[2][APART], words_of_sums;
    float acc[2], part[2]; // of rows g and g + 8, of the lane's groups; of a chunk
    float mine[4 / APART]; // factors of products of APART units: 0, or what makes codes of them
    float once;            // 1 in one lane of a row, for what all of them have; 0 in others
    int pitch, has;        // has: which of APART units' activations this lane has, or APART

    GR_METHOD mv_one(const struct gr_matmul_args &a, const struct mm_item &item)
        : words(), words_of_sums(), acc()
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const float codes = !S::TWO && !S::TINY ? 1.0f : S::TWO && t % 2 ? 0x1p20f : 0x1p24f;
#pragma unroll
        for (int i = 0; i < 4 / APART; i++)
            mine[i] = kept(t / APART == i ? codes : 0.0f);
        once = kept(t ? 0.0f : 1.0f);
        has = kept(S::BY_16 && g % 2 != t / 2 ? APART : g / 2 % APART);
        go(a, item);
    }
    GR_METHOD void go(const struct gr_matmul_args &a, const struct mm_item &item)
    {
        const int64_t chunks = (a.x.units + 7) / 8;
        x = a.x.x + item.x_row * chunks * 512 + threadIdx.x % 32 / 8 * 64 + threadIdx.x % 4 * 16;
        sums = a.x.sums + item.x_row * chunks * 64 + threadIdx.x % 4 * 16;
        factor = a.x.factor + item.x_row;
        pitch = (int)gr_packed_x_pitch(a.x.n);
    }
    // Loads activations of a chunk: packed x has zeros behind a row's units.
    GR_METHOD void ask(int chunk)
    {
        const uint8_t *at = x + (uint32_t)chunk * 512;
#pragma unroll
        for (int i = 0; i < APART; i++)
            if (has == i)
                words[0][i] = *(const uint4 *)at, words[1][i] = *(const uint4 *)(at + 256);
        if (S::SUMS)
            words_of_sums = *(const uint4 *)(sums + (uint32_t)chunk * 64);
    }
    GR_METHOD void begin()
    {
    }
    // The chunk's products, with its scales.
    GR_METHOD void add(const S (&step)[1], int)
    {
        const S &w = step[0];
        const mv_scales<T> m(w);
        float sum[2][2][m.EACH] = {}, low[4] = {};
#pragma unroll
        for (int first = 0; first < UNITS; first += APART) {
            float both[4] = {};
            const int h = first / 4;
#pragma unroll
            for (int i = 0; i < APART; i++) {
                uint32_t a[2][4];
                const uint4 b = words[h][i];
                w.template codes<true>(first + i, a);
                mma<T>(both, a[0], b.x, b.y);
                mma<T>(both, a[1], b.z, b.w);
            }
#pragma unroll
            for (int i = 0; i < 2 * m.EACH; i++) {
                float &to = sum[h][i / m.EACH][i % m.EACH];
                to = fmaf(mine[first % 4 / APART], both[i / m.EACH * 2 + i % m.EACH], to);
            }
        }
        if constexpr (S::SUMS) {
            mma<T>(low, m.mins, words_of_sums.x, words_of_sums.y);
            mma<T>(low, m.mins, words_of_sums.z, words_of_sums.w);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float v = 0;
#pragma unroll
            for (int i = 0; i < 2 * m.EACH; i++)
                v = fmaf(m.scale[r][i / m.EACH][i % m.EACH], sum[i / m.EACH][r][i % m.EACH], v);
            v *= m.step[r];
            if constexpr (S::SUMS)
                v = fmaf(m.low[r] * once, low[2 * r], v);
            part[r] = v;
        }
    }
    GR_METHOD void end(const struct gr_matmul_args &, const struct mm_item &, int chunk)
    {
        const float f = factor[chunk * pitch] * S::AFTER;
#pragma unroll
        for (int r = 0; r < 2; r++)
            acc[r] = fmaf(f, part[r], acc[r]);
    }
    // The sums of the lanes, then of the warps, in their order, to y; `odd` as in mv_store.
    GR_METHOD void store(const struct gr_matmul_args &a, int64_t row0, const struct mm_item &item,
                         uint32_t odd)
    {
        GR_SMEM;
        const int n_warp = blockDim.x / 32, lane = threadIdx.x % 32;
        float *sum = (float *)smem + odd * n_warp * GR_PACK_ROWS; // [warp][16 rows]
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float v = acc[r];
            v += __shfl_xor_sync(0xffffffff, v, 1);
            v += __shfl_xor_sync(0xffffffff, v, 2);
            if (lane % 4 == 0)
                sum[threadIdx.x / 32 * GR_PACK_ROWS + 8 * r + lane / 4] = v;
            acc[r] = 0;
        }
        __syncthreads();
        const int row = odd ? blockDim.x - 1 - threadIdx.x : threadIdx.x;
        if (row >= GR_PACK_ROWS)
            return;
        float v = 0;
        for (int i = 0; i < n_warp; i++)
            v += sum[i * GR_PACK_ROWS + row];
        mm_store(a, item, row0 + row - a.w.offset, 0, v);
    }
};
