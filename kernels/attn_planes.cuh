// Products with q8_0 and q4_0 rows as they stand in a cache (gr/planes.h): codes go from shared
// memory to operands of mma_f16 without a tile of f16 between.
//
// ldmatrix gives a lane a word of codes; its bytes 0 and 2 become one pair of f16, 1 and 3 the
// other, so neither words nor nibbles are reordered:
//   K  a word is columns 4 t .. 4 t + 3 of a key, of q4_0 and in its high nibbles those of the next
//      16 columns. The pairs stand for columns 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 of the product,
//      and queries are laid out alike (attn_load_q).
//   V  transposed, a word is columns 2 g, 2 g + 1 of keys 2 t and 2 t + 1. The pairs are two
//      columns of a product, and 16 columns of the output two: the even ones, then the odd ones.
// A pair takes 1.5 instructions, a subtraction (exact) and a product with the step, which rounds to
// f16. Quants beyond f16 become NaN in K and infinity in V, and so do outputs that depend on them.
#pragma once

#include "kernels/attn_tile.cuh"

// Both pairs of a word, of its low or high nibbles, times the steps d.
template <int TYPE> GR_DEV void attn_pairs(uint32_t w, bool high, uint32_t d, uint32_t pair[2])
{
    if constexpr (TYPE == GR_Q8_0) {
        w ^= 0x80808080u; // 1024 + 128 + code
        pair[0] = sub_f16x2(__byte_perm(w, 0x64646464, 0x4240), 0x64806480);
        pair[1] = sub_f16x2(__byte_perm(w, 0x64646464, 0x4341), 0x64806480);
    } else if (high) { // 1024 + 16 code: a 16th of it less 72
        pair[0] = fma_f16x2(and_or(w, 0x00f000f0, 0x64006400), 0x2c002c00, 0xd480d480);
        pair[1] = fma_f16x2(and_or(w >> 8, 0x00f000f0, 0x64006400), 0x2c002c00, 0xd480d480);
    } else {
        pair[0] = sub_f16x2(and_or(w, 0x000f000f, 0x64006400), 0x64086408);
        pair[1] = sub_f16x2(and_or(w >> 8, 0x000f000f, 0x64006400), 0x64086408);
    }
    pair[0] = mul_f16x2(pair[0], d), pair[1] = mul_f16x2(pair[1], d);
}

// A step of K twice; NaN where a quant of it may be no f16: from 508 on, where 129 of it are
// infinite.
GR_DEV uint32_t attn_twice_or_nan(uint32_t step)
{
    uint32_t d = step * 0x10001;
    return fma_f16x2(mul_f16x2(d, 0x58085808), 0, d);
}

// Order of the words of KW keys: matrix m of an ldmatrix_x4 is word m % WORDS of octet m / WORDS %
// OCTETS of the keys, of one of BLOCKS blocks.
template <int TYPE, int KW> struct attn_words {
    static constexpr int OCTETS = KW / 8, WORDS = TYPE == GR_Q8_0 ? 2 : 1,
                         BLOCKS = 4 / (OCTETS * WORDS);
};

// x += q K of one block: w its words, d the steps of the octets' keys.
template <int TYPE, int KW>
GR_DEV void attn_multiply_block(float (&x)[KW / 8][4], uint32_t q, int pitch, const uint32_t *w,
                                const unsigned char *step, int step_pitch)
{
    using W = attn_words<TYPE, KW>;
    uint32_t fq[2][4], pair[2];
    attn_frag_a(fq[0], q, pitch, 0);
    attn_frag_a(fq[1], q, pitch, 16);
#pragma unroll
    for (int o = 0; o < W::OCTETS; o++) {
        const uint32_t d = attn_twice_or_nan(*(const uint16_t *)(step + o * step_pitch));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            attn_pairs<TYPE>(w[o * W::WORDS + h % W::WORDS], h == 1, d, pair);
            mma_f16(x[o], fq[h], pair);
        }
    }
}

// Logits of KW keys, the warp's, whose rows begin at k and have their steps `step` bytes on; q: the
// queries' tile.
template <int TYPE, int KW>
GR_DEV void attn_multiply_k(const gr_kernel_attn &a, float (&x)[KW / 8][4], uint32_t q,
                            const unsigned char *k, int step)
{
    using W = attn_words<TYPE, KW>;
    const int lane = threadIdx.x % 32, m = lane / 8, n = a.d_k / GR_QK, pitch = a.k_stage.pitch;
    const int ahead = m / (W::WORDS * W::OCTETS), q_pitch = a.smem.q_pitch;
    uint32_t from =
        smem_u32(k) + (m / W::WORDS % W::OCTETS * 8 + lane % 8) * pitch + m % W::WORDS * 16;
    const unsigned char *steps = k + lane / 4 * pitch + step;
    uint32_t w[4];
    int b = 0;
#pragma unroll 2
    for (; b + W::BLOCKS <= n; b += W::BLOCKS) {
        ldmatrix_x4(w, from + (b + ahead) * W::WORDS * 16);
#pragma unroll
        for (int i = 0; i < W::BLOCKS; i++)
            attn_multiply_block<TYPE, KW>(x, q + (b + i) * GR_QK * 2, q_pitch,
                                          w + i * W::OCTETS * W::WORDS, steps + (b + i) * 2,
                                          8 * pitch);
    }
    if (W::BLOCKS > 1 && b < n) { // fewer at the end
        ldmatrix_x4(w, from + min(b + ahead, n - 1) * W::WORDS * 16);
#pragma unroll
        for (int i = 0; i < W::BLOCKS - 1; i++)
            if (b + i < n)
                attn_multiply_block<TYPE, KW>(x, q + (b + i) * GR_QK * 2, q_pitch,
                                              w + i * W::OCTETS * W::WORDS, steps + (b + i) * 2,
                                              8 * pitch);
    }
}

// o += weights [16, 32] p, 32 keys whose rows begin at v, for TILES = 1 or 2 of the 16-column tiles
// of block b: tile `first` of it and the next.
template <int TYPE, int TILES>
GR_DEV void attn_multiply_v(float (*o)[2][4], const uint32_t (&p)[2][4], const unsigned char *v,
                            int pitch, int step, int b, int first)
{
    const int lane = threadIdx.x % 32, at = step + b * 2;
    const uint32_t row = smem_u32(v) + lane * pitch, from = row + b * (TYPE == GR_Q8_0 ? 32 : 16);
    uint32_t d[4], w[4];
    ldmatrix_x4_trans(d, row + (at & ~15)); // eight steps; lane (g, t) has step g of two keys
#pragma unroll
    for (int m = 0; m < 4; m++)
        d[m] = __shfl_sync(0xffffffffu, d[m], (at & 15) * 2 + lane % 4);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        uint32_t even[4], odd[4];
        if (TYPE == GR_Q8_0 || i == 0)
            ldmatrix_x4_trans(w, TYPE == GR_Q8_0 ? from + (first + i) * 16 : from);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t pair[2];
            attn_pairs<TYPE>(TILES == 1 && TYPE == GR_Q4_0 ? w[m] >> first * 4 : w[m], i == 1, d[m],
                             pair);
            even[m] = pair[0], odd[m] = pair[1];
        }
#pragma unroll
        for (int s = 0; s < 2; s++) {
            mma_f16(o[i][0], p[s], even + 2 * s);
            mma_f16(o[i][1], p[s], odd + 2 * s);
        }
    }
}
