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

// Selectors of permute(), or shifts, that pick this lane's scales of a row; kept in registers.
template <uint32_t T> struct mv_pick {
    uint32_t from = 0, high = 0, shift = 0;

    GR_METHOD mv_pick()
    {
        const uint32_t t = threadIdx.x % 4;
        if constexpr (pack_step<T, 8>::BY_16) // bytes 2 t and 2 t + 1 at 0 and 16; any between them
            from = kept(0x100 + t * 0x202);
        if constexpr (T == GR_Q3_K)
            high = kept(0x100 + t % 2 * 0x202), shift = kept(t / 2 * 2);
        if constexpr (T == GR_Q4_K || T == GR_Q5_K)
            from = kept(0x400 + t * 0x101);
        if constexpr (T == GR_IQ4_XS)
            high = kept(16 + 2 * t), shift = kept(4 * t);
        if constexpr (T == GR_IQ4_NL)
            from = kept(0x1010 + t * 0x2222);
        if constexpr (T == GR_MXFP4)
            from = kept(0x0444 + t * 0x1000);
    }
};

// Scales of this lane's units t and 4 + t (h = 0, 1) of rows g and g + 8 r, from the planes as they
// are loaded: operands for sums, and factors.
template <uint32_t T> struct mv_scales {
    using S = pack_step<T, 8>;
    static constexpr int EACH = S::BY_16 ? 2 : 1; // groups of a unit
    // Constants that make numbers of all groups' sums, and of the product of mins.
    static constexpr float STEP = T == GR_Q2_K || S::TINY ? 0x1p24f
                                  : T == GR_NVFP4         ? 0x1p15f
                                                          : 1.0f;
    static constexpr float LOW = T == GR_Q2_K   ? -0x1p20f
                                 : S::TINY      ? -0x1p24f
                                 : T == GR_Q3_K ? -(float)S::ZERO
                                                : -1152.0f;
    float scale[2][2][EACH], step[2]; // [r][h]: of a group's sum; of all of them, STEP times
    uint32_t mins[4];                 // as pack_step::mins makes them
    float low[2];                     // of their product, LOW times

    GR_METHOD mv_scales(const S &w, const mv_pick<T> &pick)
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            of_row(w, r, pick);
    }
    // The halves of a register hold the scales of a unit's groups, f16.
    GR_METHOD void set(int r, int h, uint32_t f16x2)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            scale[r][h][i] = f16_to_f32((uint16_t)(f16x2 >> 16 * i));
    }
    GR_METHOD void of_row(const S &w, int r, const mv_pick<T> &pick)
    {
        const uint32_t(&s)[S::WS] = w.s[r];
        step[r] = low[r] = 1;
        if constexpr (T == GR_Q2_K || T == GR_Q3_K) // codes of row g + 8 stand at 2^2
            step[r] = f16_to_f32((uint16_t)w.d[r]) * (r ? 0.25f : 1.0f);
        if constexpr (T == GR_Q2_K) { // scales, and 16 times minima, are 2^-24 of theirs
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t v = permute(s[2 * h], s[2 * h + 1], pick.from);
                set(r, h, v & 0x000f000f);
                mins[2 * h + r] = v & 0x00f000f0;
            }
            low[r] = f16_to_f32((uint16_t)(w.d[r] >> 16));
        } else if constexpr (T == GR_Q3_K) {
            const uint32_t v = permute(s[0], s[1], pick.from),
                           high = permute(s[2], 0, pick.high) >> pick.shift;
            uint32_t two[2] = {and_or(high << 4, 0x00300030, and_or(v, 0x000f000f, 0x64006400)),
                               and_or(high, 0x00300030, and_or(v >> 4, 0x000f000f, 0x64006400))};
#pragma unroll
            for (int h = 0; h < 2; h++)
                set(r, h, mins[2 * h + r] = sub_f16x2(two[h], 0x64206420));
            low[r] = f16_to_f32((uint16_t)w.d[r]);
        } else if constexpr (T == GR_Q6_K) {
#pragma unroll
            for (int h = 0; h < 2; h++) // signed bytes
                set(r, h,
                    sub_f16x2((permute(s[2 * h], s[2 * h + 1], pick.from) & 0x00ff00ff) ^
                                  0x64806480,
                              0x64806480));
            step[r] = f16_to_f32((uint16_t)w.d[r]);
        } else if constexpr (T == GR_Q4_K || T == GR_Q5_K) { // a scale and a minimum: 2^-24 of them
            const uint32_t v = permute(s[1], s[2], pick.from),
                           last = permute(s[3], s[3] >> 4, pick.from);
            const uint32_t two[2] = {v & 0x003f003f, and_or(v >> 2, 0x00300030, last & 0x000f000f)};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                set(r, h, two[h]);
                mins[2 * h + r] = __byte_perm(two[h], 0, 0x3232);
            }
            step[r] = f16_to_f32((uint16_t)s[0]);
            low[r] = f16_to_f32((uint16_t)(s[0] >> 16));
        } else if constexpr (T == GR_IQ4_XS) {
            const uint32_t high = (s[0] >> pick.high & 0x0303) * 0x1010,
                           two = and_or(s[1] >> pick.shift, 0x000f000f, 0x64006400),
                           v = sub_f16x2(and_or(high, 0x00300030, two), 0x64206420);
            set(r, 0, mins[r] = __byte_perm(v, 0, 0x1010));
            set(r, 1, mins[2 + r] = __byte_perm(v, 0, 0x3232));
            step[r] = low[r] = f16_to_f32((uint16_t)s[0]);
        } else if constexpr (T == GR_IQ4_NL) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                set(r, h, mins[2 * h + r] = permute(s[2 * h], s[2 * h + 1], pick.from));
        } else if constexpr (T == GR_MXFP4) { // an exponent; below 2^-126: 0
#pragma unroll
            for (int h = 0; h < 2; h++)
                scale[r][h][0] = __uint_as_float(permute(s[h], 0, pick.from) >> 1 & 0x7f800000);
        } else { // GR_NVFP4: 2^-8 of them
#pragma unroll
            for (int h = 0; h < 2; h++)
                set(r, h, permute(s[2 * h], s[2 * h + 1], pick.from) << 7 & 0x3f803f80);
        }
    }
};

// The work of a warp for one token: mv_some (kernels/matmul_mv.cuh) is that for more.
template <uint32_t T> struct mv_one {
    using S = pack_step<T, 8>;
    static constexpr bool EPILOGUE = true;
    static constexpr int TOKENS = 1, UNITS = 8, SUMS = GR_PACK_ROWS; // of a warp, in shared memory
    static constexpr int APART = 2; // units whose activations are in columns apart
    const struct gr_packed_x &packed_x;
    uint32_t x, sums, factor; // of the row's first chunk: indices of this lane's uint4, of a float
    uint4 words[2][APART], words_of_sums;
    mv_pick<T> pick;
    iq4_values<S::IQ4> iq4;
    float acc[2], part[2]; // of rows g and g + 8, of the lane's groups; of a chunk
    float mine[4 / APART]; // factors of products of APART units: 0, or what makes codes of them
    float once;            // LOW in one lane of a row, for what all of them have; 0 in others
    int has;               // which of APART units' activations this lane has, or APART

    GR_METHOD mv_one(const struct gr_matmul_args &a, const struct mm_item &item)
        : packed_x(a.x), words(), words_of_sums(), acc()
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const float codes = !S::TWO && !S::TINY ? 1.0f : S::TWO && t % 2 ? 0x1p20f : 0x1p24f;
#pragma unroll
        for (int i = 0; i < 4 / APART; i++)
            mine[i] = kept(t / APART == i ? codes * mv_scales<T>::STEP : 0.0f);
        once = kept(t ? 0.0f : mv_scales<T>::LOW);
        has = kept(S::BY_16 && g % 2 != t / 2 ? APART : g / 2 % APART);
        go(a, item);
    }
    GR_METHOD void go(const struct gr_matmul_args &a, const struct mm_item &item)
    {
        const uint32_t row = (uint32_t)item.x_row * ((a.x.units + 7) / 8);
        x = row * 32 + threadIdx.x % 32 / 8 * 4 + threadIdx.x % 4;
        sums = row * 4 + threadIdx.x % 4;
        factor = (uint32_t)item.x_row;
    }
    // Loads activations of a chunk: packed x has zeros behind a row's units.
    GR_METHOD void ask(int chunk)
    {
        const uint4 *at = (const uint4 *)packed_x.x + (x + chunk * 32u);
#pragma unroll
        for (int i = 0; i < APART; i++)
            if (has == i)
                words[0][i] = at[0], words[1][i] = at[16];
        if (S::SUMS)
            words_of_sums = ((const uint4 *)packed_x.sums)[sums + chunk * 4u];
    }
    GR_METHOD void begin()
    {
    }
    // The chunk's products, with its scales.
    GR_METHOD void add(const S (&step)[1], int)
    {
        const S &w = step[0];
        const mv_scales<T> m(w, pick);
        // Sums of a row: where a unit has two scales, these meet them first and `mine` last, which
        // takes fewer instructions; a scale of MXFP4, up to 2^127, meets no sum that is dropped.
        float sum[2][2] = {}, low[4] = {};
#pragma unroll
        for (int first = 0; first < UNITS; first += APART) {
            float both[4] = {};
            const int h = first / 4;
#pragma unroll
            for (int i = 0; i < APART; i++) {
                uint32_t a[2][4];
                const uint4 b = words[h][i];
                w.template codes<true>(first + i, a, iq4);
                mma<T>(both, a[0], b.x, b.y);
                mma<T>(both, a[1], b.z, b.w);
            }
#pragma unroll
            for (int i = 0; i < 2 * m.EACH; i++) {
                const int r = i / m.EACH, k = i % m.EACH, pair = first % 4 / APART;
                float &to = sum[r][S::BY_16 ? pair : h];
                to = fmaf(S::BY_16 ? m.scale[r][h][k] : mine[pair], both[2 * r + k], to);
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
            for (int i = 0; i < 2; i++)
                v = fmaf(S::BY_16 ? mine[i] : m.scale[r][i][0], sum[r][i], v);
            v *= m.step[r];
            if constexpr (S::SUMS)
                v = fmaf(m.low[r] * once, low[2 * r], v);
            part[r] = v;
        }
    }
    GR_METHOD void end(const struct gr_matmul_args &, const struct mm_item &, int chunk)
    {
        const float f =
            packed_x.factor[factor + (uint32_t)(chunk * gr_packed_x_pitch(packed_x.n))] * S::AFTER;
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
