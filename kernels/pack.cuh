// The packed layout of matrices (gr/pack.h) on the device: one element of it.
#pragma once

#include "gr/pack.h"
#include "kernels/whole.cuh"

// Bits of plane p of an element of a chunk with n units, whose codes begin at `codes`.
GR_DEV uint32_t pack_code(const uint8_t *codes, const struct gr_pack_type &t, int n, int p, int row,
                          int col)
{
    int b = gr_pack_bits(&t, p);
    struct gr_pack_pos s = gr_pack_pos(&t, b, col / GR_PACK_UNIT, row, col % GR_PACK_UNIT);
    const uint8_t *plane = codes + (p ? n * 64 * t.bits[0] : 0);
    int64_t at = gr_pack_word(2 * n * b, row % 8 * 4 + col % GR_PACK_UNIT / 8, s.word);
    uint32_t word = *(const uint32_t *)(plane + at);
    if (gr_pack_names_values(&t))
        word = gr_pack_plain(t.order, word);
    return b < 32 ? word >> s.shift & ((1u << b) - 1) : word;
}

// Scale and minimum of 16 or 32 elements of a K type: `row` is its planes of scales
// of one row (first, second), group the index of 16 elements in the block.
struct pack_affine {
    float a, m;
};
GR_DEV struct pack_affine pack_affine_k(uint32_t dtype, const uint8_t *s, const uint8_t *s2,
                                        int group)
{
    bool in_first = dtype == GR_Q4_K || dtype == GR_Q5_K || dtype == GR_IQ4_XS;
    const uint16_t *d = (const uint16_t *)(in_first ? s : s2);
    float d0 = f16_to_f32(d[0]);
    int i = group / 2, high = group / 8;
    switch (dtype) {
    case GR_Q2_K:
        return {d0 * (float)(s[group] & 15), f16_to_f32(d[1]) * (float)(s[group] >> 4)};
    case GR_Q3_K:
        return {d0 * (float)(((s[group % 8] >> 4 * high & 15) |
                              (s[8 + group % 4] >> group / 4 * 2 & 3) << 4) -
                             32),
                0};
    case GR_Q6_K:
        return {d0 * (float)(int8_t)s[group], 0};
    case GR_IQ4_XS: {
        int scale = (s[4 + i / 2] >> 4 * (i % 2) & 15) | (d[1] >> 2 * i & 3) << 4;
        return {d0 * (float)(scale - 32), 0};
    }
    default: { // 8 scales and minima of 6 bits: see gr/quant_blocks.h
        s += 4;
        int scale = i < 4 ? s[i] & 63 : (s[4 + i] & 15) | s[i - 4] >> 6 << 4;
        int min = i < 4 ? s[4 + i] & 63 : s[4 + i] >> 4 | s[i] >> 6 << 4;
        return {d0 * (float)scale, f16_to_f32(d[1]) * (float)min};
    }
    }
}

// The number that a code means, without its scale.
GR_DEV int pack_number(uint32_t dtype, const struct gr_pack_type &t, uint32_t code)
{
    switch (dtype) {
    case GR_Q8_0:
        return (int8_t)code;
    case GR_IQ4_NL:
    case GR_IQ4_XS:
        return (int)(iq4_values<false>()(iq4_turned(code)).x & 255) - 128;
    case GR_MXFP4:
    case GR_NVFP4: {
        int v = (int)(__byte_perm(0x03020100, 0x0c080604, code & 7) & 255);
        return code & 8 ? -v : v;
    }
    default:
        return (int)code - t.zero;
    }
}

// The scales of a unit, in a row of n: `s` is the plane of the row.
GR_DEV struct pack_affine pack_affine_unit(uint32_t dtype, const uint8_t *s, int unit, int half)
{
    const uint16_t *d = (const uint16_t *)s;
    switch (dtype) {
    case GR_MXFP4:
        return {exponent_f32(s[unit]), 0};
    case GR_NVFP4:
        return {f16_to_f32((uint16_t)nvfp4_bits(s[2 * unit + half])) * 128, 0};
    case GR_Q4_1:
    case GR_Q5_1:
        return {f16_to_f32(d[2 * unit]), -f16_to_f32(d[2 * unit + 1])};
    default:
        return {f16_to_f32(d[unit]), 0};
    }
}

// Element [m, row, col] of a packed tensor. For picking rows (EMBED) and tests: about a hundred
// instructions; products have decoders of their own.
GR_DEV float pack_value(const struct gr_ten &w, int64_t m, int64_t row, int64_t col)
{
    struct gr_pack_type t = gr_pack_type(w.dtype);
    int64_t n_tile = (w.offset + w.rows + GR_PACK_ROWS - 1) / GR_PACK_ROWS;
    int64_t tile = m * n_tile + (w.offset + row) / GR_PACK_ROWS, chunk = col / GR_PACK_COLS;
    int64_t left = gr_pack_units(w.cols) - 8 * chunk;
    int n = left < 8 ? (int)left : 8, r = (int)((w.offset + row) % GR_PACK_ROWS);
    int c = (int)(col % GR_PACK_COLS);
    const uint8_t *codes = (const uint8_t *)w.data + tile * gr_pack_tile_bytes(w.dtype, w.cols) +
                           chunk * gr_pack_chunk_bytes(w.dtype, 8);
    if (t.bits[0] == 0)
        return whole_value(w.dtype, codes, n, r, c);
    uint32_t code = pack_code(codes, t, n, 0, r, c);
    const uint8_t *scales = codes + n * 64 * (t.bits[0] + t.bits[1]);
    if (t.bits[0] == 32)
        return __uint_as_float(code);
    if (t.bits[0] == 16)
        return w.dtype == GR_F16 ? f16_to_f32((uint16_t)code) : bf16_to_f32((uint16_t)code);
    if (t.bits[1])
        code |= pack_code(codes, t, n, 1, r, c) << t.bits[0];
    const uint8_t *first = scales + r * gr_pack_scale(&t, 0, n);
    const uint8_t *second = scales + 16 * gr_pack_scale(&t, 0, n) + r * gr_pack_scale(&t, 1, n);
    struct pack_affine k = t.span < 8
                               ? pack_affine_unit(w.dtype, first, c / GR_PACK_UNIT, c / 16 % 2)
                               : pack_affine_k(w.dtype, first, second, c / 16);
    return k.a * (float)pack_number(w.dtype, t, code) - k.m;
}
