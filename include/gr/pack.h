/* The packed layout: how every matrix (weights of MATMUL, MATMUL_ID, HEAD_MATMUL; tables of EMBED)
 * lies in a GPU's memory, whatever kernel reads it.
 *
 * A matrix [rows, cols] is cut into tiles of 16 rows, one after the other; rows are padded to 16
 * and columns to 64 with codes and scales of 0. A tile is cut along its columns into chunks of 256
 * (the last may be 64, 128 or 192 wide), a chunk into units of 32 columns. A chunk is contiguous:
 * the planes of its codes, then the planes of its scales, without padding between them (all are
 * multiples of 16 bytes), so that a few wide loads, or one bulk copy, fetch whole chunks. For
 * shapes that need no padding the bytes are as many as in the file, and the layout can be turned
 * back.
 *
 * Codes. Lane l of a warp owns, in each unit, rows g and g + 8 (g = l / 4) and columns 8t .. 8t + 7
 * (t = l % 4): what the A fragments of mma.m16n8k16, mma.m16n8k32 and of wgmma with A in registers
 * want, but for an order of columns within each 8, GR_PACK_ORDER below, in which activations are
 * written too. A plane of b bits gives a lane 2 b bytes a unit, as u32 words:
 *   b = 32, 16, 8  row g, then row g + 8; the 8 elements of a row in GR_PACK_ORDER (b = 32: in
 *                  natural order)
 *   b = 4          row g, then row g + 8; column j of the 8 at bit 4 j. Codes that name values are
 *                  stored in another order of bits (gr_pack_stored), for which a kernel needs fewer
 *                  instructions
 *   b = 2          one word: column j of row g + 8 r at bit 2 (j % 4 / 2) + 4 (j % 2) + 8 r +
 *                  16 (j / 4)
 *   b = 1          one word for two units: column j of row g + 8 r of unit u at bit
 *                  j % 4 / 2 + 4 (j % 2) + 2 r + 8 (u % 2) + 16 (j / 4)
 *   b = 2, 1 of Q2_K and Q3_K: words of four and of all eight units, each of columns j and j + 4 (j
 *                  below 4) alone, both rows: row g + 8 r of unit u at 2 r + 4 (u % 2) +
 *                  8 (u % 4 / 2); and 2 + u / 4 further, modulo 32; column j + 4 is 16 further. So
 *                  all codes of a row and a unit are as far from the lowest bit, and are an f16
 *                  number times a power of two that its scale can undo; and the bits of a plane of
 *                  one bit, or those turned by one, stand above the codes that they belong to
 * so that (word >> s) & mask yields columns j and j + 4 in the two halves of a register, and bits
 * of planes that belong together come to their places by one shift for two such pairs (gr_pack_pos
 * computes this for one element). The words of a lane for a whole chunk, n bytes in all,
 * stand 16 bytes at a time: [piece][lane][16 bytes], a last piece of n % 16 bytes likewise
 * (gr_pack_word).
 *
 * The value of a code is a * (code - zero) - m. Planes of scales are [16 rows][bytes]; "of each
 * unit" is [16 rows][units of the chunk][bytes], and "of each two units" likewise:
 *   type        planes of codes          zero   planes of scales
 *   f32 f16 bf16  32; 16; 16               -    none: the code is the value
 *   q8_0        8 (two's complement)       0    d (f16) of each unit
 *   q4_0        4                          8    d of each unit
 *   q5_0        4, 1 (bit 4)              16    d of each unit
 *   q4_1        4                          0    d, m (two f16; + m) of each unit
 *   q5_1        4, 1                       0    d, m of each unit
 *   q4_K        4                          0    as in the file: d, dmin, 12 bytes
 *   q5_K        4, 1 (bit 4)               0    the same
 *   q6_K        4, 2 (bits 4, 5)          32    16 int8 scales; d
 *   q2_K        2                          0    16 bytes (scale | min << 4); d, dmin
 *   q3_K        2, 1 (bit 2)               4    12 bytes as in the file; d
 *   iq4_nl      4, indices of values       -    d of each unit
 *   iq4_xs      4, the same                -    8 bytes as in the file: d and scales
 *   mxfp4       4, floats                  -    the exponent (a byte) of each unit
 *   nvfp4       4, floats                  -    the scales (two bytes) of each unit; 127, which
 *               stands for 0, as 0
 *   all others  none                       -    a block as in the file without d, which stands in
 *               the second plane, so that the first one has whole words
 * Units 2j and 2j + 1 of a chunk are elements 64 j .. 64 j + 63 of a block of 256. The other
 * types have elements that are points of grids or ternary digits, or are rare: kernels unpack
 * their blocks. */
#ifndef GR_PACK_H
#define GR_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "gr/dtype.h"
#include "gr/tensor.h"

#ifdef __cplusplus
#define GR_PACK_FN constexpr GR_FN
#else
#define GR_PACK_FN GR_FN
#endif

#define GR_PACK_ROWS 16
#define GR_PACK_COLS 256
#define GR_PACK_UNIT 32

/* Column j of 8 in the order of activations and wide codes: 0 4 1 5 2 6 3 7 are stored in places 0
 * .. 7. */
#define GR_PACK_ORDER(place) (((place)&1) * 4 + (place) / 2)

/* Planes of a type's chunk. Codes: bits an element; bits[1] = 0: one plane, bits[0] = 0: none.
 * Scales: bytes a row for each `span` units. */
struct gr_pack_type {
    uint8_t bits[2], scale[2], span;
    int8_t zero;
    uint8_t order; /* of codes in words */
};

/* Orders of codes: as for any type; planes of 2 bits and 1 by units, as above; and of a word of 8
 * codes of 4 bits that name values, with columns in GR_PACK_ORDER and bit 0 of each above its
 * others; or floats of 4 bits, where those of code i of each half of the word (columns 0 .. 3, 4 ..
 * 7) are the magnitude at bit 9 - 3 i and the sign at bit 15, 12, 14, 13: where an f16 has them, or
 * together a shift away. */
enum { GR_PACK_BY_COLUMN, GR_PACK_BY_UNIT, GR_PACK_BY_PLACE, GR_PACK_FLOATS };

GR_PACK_FN struct gr_pack_type gr_pack_type(uint32_t dtype)
{
    struct gr_pack_type p = {{0, 0}, {0, 0}, 1, 0, GR_PACK_BY_COLUMN};
    switch (dtype) {
/* NOLINTBEGIN(bugprone-branch-clone) some types lie alike */
#define CASE(type, b0, b1, s0, s1, units, z)                                                       \
    case GR_##type:                                                                                \
        p.bits[0] = b0, p.bits[1] = b1, p.scale[0] = s0, p.scale[1] = s1;                          \
        p.span = units, p.zero = z;                                                                \
        break;
        CASE(F32, 32, 0, 0, 0, 1, 0)
        CASE(F16, 16, 0, 0, 0, 1, 0)
        CASE(BF16, 16, 0, 0, 0, 1, 0)
        CASE(Q8_0, 8, 0, 2, 0, 1, 0)
        CASE(Q4_0, 4, 0, 2, 0, 1, 8)
        CASE(Q5_0, 4, 1, 2, 0, 1, 16)
        CASE(Q4_1, 4, 0, 4, 0, 1, 0)
        CASE(Q5_1, 4, 1, 4, 0, 1, 0)
        CASE(Q4_K, 4, 0, 16, 0, 8, 0)
        CASE(Q5_K, 4, 1, 16, 0, 8, 0)
        CASE(Q6_K, 4, 2, 16, 2, 8, 32)
        CASE(Q2_K, 2, 0, 16, 4, 8, 0)
        CASE(Q3_K, 2, 1, 12, 2, 8, 4)
        CASE(IQ4_NL, 4, 0, 2, 0, 1, 0)
        CASE(IQ4_XS, 4, 0, 8, 0, 8, 0)
        CASE(MXFP4, 4, 0, 1, 0, 1, 0)
        CASE(NVFP4, 4, 0, 4, 0, 2, 0)
        CASE(IQ1_S, 0, 0, 48, 2, 8, 16)
        CASE(IQ1_M, 0, 0, 56, 0, 8, 16)
        CASE(IQ2_XXS, 0, 0, 64, 2, 8, 0)
        CASE(IQ2_XS, 0, 0, 72, 2, 8, 0)
        CASE(IQ2_S, 0, 0, 80, 2, 8, 0)
        CASE(IQ3_XXS, 0, 0, 96, 2, 8, 0)
        CASE(IQ3_S, 0, 0, 108, 2, 8, 0)
        CASE(TQ1_0, 0, 0, 52, 2, 8, 1)
        CASE(TQ2_0, 0, 0, 64, 2, 8, 1)
        CASE(Q1_0, 0, 0, 16, 2, 4, 1)
        CASE(Q2_0, 0, 0, 16, 2, 2, 1)
#undef CASE
        /* NOLINTEND(bugprone-branch-clone) */
    default:
        break; /* no layout: gr_pack_is is false */
    }
    if (dtype == GR_Q2_K || dtype == GR_Q3_K)
        p.order = GR_PACK_BY_UNIT;
    if (dtype == GR_IQ4_NL || dtype == GR_IQ4_XS)
        p.order = GR_PACK_BY_PLACE;
    if (dtype == GR_MXFP4 || dtype == GR_NVFP4)
        p.order = GR_PACK_FLOATS;
    return p;
}

/* True when words of codes of 4 bits are stored in another order of bits. */
GR_PACK_FN bool gr_pack_names_values(const struct gr_pack_type *t)
{
    return t->order == GR_PACK_BY_PLACE || t->order == GR_PACK_FLOATS;
}

/* Bit of a word in an order for bit `bit` of column j's code. */
GR_PACK_FN int32_t gr_pack_bit(int32_t order, int32_t j, int32_t bit)
{
    int32_t i = j % 4, half = j / 4 * 16;
    if (order == GR_PACK_BY_PLACE)
        return 4 * (i * 2 + j / 4) + (bit + 3) % 4;
    if (order == GR_PACK_FLOATS)
        return half + (bit < 3 ? 9 - 3 * i + bit : i == 0 ? 15 : i == 1 ? 12 : 16 - i);
    return 4 * j + bit;
}

/* A word of 8 codes of 4 bits as it is stored, from one with column j at bit 4 j; and back. */
GR_PACK_FN uint32_t gr_pack_stored(int32_t order, uint32_t word)
{
    uint32_t to = 0;
    for (int32_t k = 0; k < 32; k++)
        to |= (word >> k & 1) << gr_pack_bit(order, k / 4, k % 4);
    return to;
}
GR_PACK_FN uint32_t gr_pack_plain(int32_t order, uint32_t stored)
{
    uint32_t to = 0;
    for (int32_t k = 0; k < 32; k++)
        to |= (stored >> gr_pack_bit(order, k / 4, k % 4) & 1) << k;
    return to;
}

/* True when kernels can multiply matrices of a type. */
GR_PACK_FN bool gr_pack_is(uint32_t dtype)
{
    struct gr_pack_type p = gr_pack_type(dtype);
    return p.bits[0] + p.scale[0] > 0;
}

/* True when blocks are kept whole: there are no planes of codes. */
GR_PACK_FN bool gr_pack_is_whole(uint32_t dtype)
{
    return gr_pack_is(dtype) && gr_pack_type(dtype).bits[0] == 0;
}

/* Bits of plane i. A run-time index into the table would put it into local memory on a GPU. */
GR_PACK_FN int32_t gr_pack_bits(const struct gr_pack_type *t, int32_t i)
{
    return i ? t->bits[1] : t->bits[0];
}

/* Bytes of plane i of scales of a row of n units. */
GR_PACK_FN int32_t gr_pack_scale(const struct gr_pack_type *t, int32_t i, int32_t n)
{
    return n / t->span * (i ? t->scale[1] : t->scale[0]);
}

/* Bytes of a chunk of n units (2, 4, 6 or 8, a multiple of the span). */
GR_PACK_FN int64_t gr_pack_chunk_bytes(uint32_t dtype, int64_t n_unit)
{
    struct gr_pack_type p = gr_pack_type(dtype);
    return n_unit * 64 * (p.bits[0] + p.bits[1]) +
           16 * (n_unit / p.span) * (p.scale[0] + p.scale[1]);
}

/* Units of a row of n columns, padded. */
GR_PACK_FN int64_t gr_pack_units(int64_t cols)
{
    return (cols + 63) / 64 * 2;
}

/* Bytes of a tile of 16 rows. Chunk i of it begins at i * gr_pack_chunk_bytes(dtype, 8). */
GR_PACK_FN int64_t gr_pack_tile_bytes(uint32_t dtype, int64_t cols)
{
    int64_t n = gr_pack_units(cols);
    return n / 8 * gr_pack_chunk_bytes(dtype, 8) + (n % 8 ? gr_pack_chunk_bytes(dtype, n % 8) : 0);
}

/* Units of a step, which a warp has in registers at once, unless other things need more of them. */
GR_PACK_FN int32_t gr_pack_step_units(uint32_t dtype)
{
    return gr_pack_type(dtype).bits[0] >= 8 || dtype == GR_Q5_1 ? 4 : 8;
}

/* Bytes of a matrix: of one expert or head. */
GR_PACK_FN int64_t gr_pack_bytes(uint32_t dtype, int64_t rows, int64_t cols)
{
    return (rows + GR_PACK_ROWS - 1) / GR_PACK_ROWS * gr_pack_tile_bytes(dtype, cols);
}

/* Byte offset of word i of a lane in a plane of n bytes a lane. */
GR_PACK_FN int64_t gr_pack_word(int64_t n, int64_t lane, int64_t i)
{
    int64_t full = n / 16 * 16, at = 4 * i;
    return at < full ? at / 16 * 512 + lane * 16 + at % 16
                     : full * 32 + lane * (n - full) + at - full;
}

/* Place of an element of a chunk in a plane of b bits of a type: the word of its lane (row % 8 * 4
 * + col / 8) and the lowest bit. row below 16, col (of the unit) below 32. */
struct gr_pack_pos {
    int32_t word, shift;
};

GR_PACK_FN struct gr_pack_pos gr_pack_pos(const struct gr_pack_type *t, int32_t b, int32_t unit,
                                          int32_t row, int32_t col)
{
    int32_t r = row / 8, j = col % 8, place = j % 4 * 2 + j / 4; /* GR_PACK_ORDER(place) = j */
    struct gr_pack_pos s = {unit, 0};
    if (t->order == GR_PACK_BY_UNIT) {
        int32_t at = 2 * r + unit % 2 * 4 + unit % 4 / 2 * 8 + j / 4 * 16;
        s.word = b == 2 ? unit / 4 * 4 + j % 4 : j % 4;
        s.shift = b == 2 ? at : (2 + at + unit / 4) % 32;
        return s;
    }
    switch (b) {
    case 32:
        s.word = unit * 16 + r * 8 + j;
        break;
    case 16:
    case 8:
        s.word = (unit * 16 + r * 8 + place) * b / 32, s.shift = place * b % 32;
        break;
    case 4:
        s.word = unit * 2 + r, s.shift = 4 * j;
        break;
    case 2:
        s.shift = j % 4 / 2 * 2 + j % 2 * 4 + 8 * r + 16 * (j / 4);
        break;
    case 1:
        s.word = unit / 2;
        s.shift = j % 4 / 2 + j % 2 * 4 + 2 * r + 8 * (unit % 2) + 16 * (j / 4);
        break;
    default:
        break;
    }
    return s;
}

/* Layout of the blocks of a file (gr/quant_blocks.h): byte offsets of the planes of codes and of
 * scales, and the stride: elements in the same bits of consecutive bytes before the next higher
 * bits begin. A plane of 8 bits or more is plain. */
struct gr_pack_file {
    uint16_t block, bytes; /* elements and bytes of a block */
    uint8_t code_at[2], stride[2], scale_at[2];
};

GR_PACK_FN struct gr_pack_file gr_pack_file(uint32_t dtype)
{
    struct gr_pack_file f = {1, 4, {0, 0}, {1, 1}, {0, 0}};
    switch (dtype) {
/* NOLINTBEGIN(bugprone-branch-clone) some types lie alike */
#define CASE(type, n, size, c0, c1, st0, st1, s0, s1)                                              \
    case GR_##type:                                                                                \
        f.block = n, f.bytes = size, f.code_at[0] = c0, f.code_at[1] = c1;                         \
        f.stride[0] = st0, f.stride[1] = st1, f.scale_at[0] = s0, f.scale_at[1] = s1;              \
        break;
        CASE(F16, 1, 2, 0, 0, 1, 1, 0, 0)
        CASE(BF16, 1, 2, 0, 0, 1, 1, 0, 0)
        CASE(Q8_0, 32, 34, 2, 0, 1, 1, 0, 0)
        CASE(Q4_0, 32, 18, 2, 0, 16, 1, 0, 0)
        CASE(Q4_1, 32, 20, 4, 0, 16, 1, 0, 0)
        CASE(Q5_0, 32, 22, 6, 2, 16, 1, 0, 0)
        CASE(Q5_1, 32, 24, 8, 4, 16, 1, 0, 0)
        CASE(Q4_K, 256, 144, 16, 0, 32, 1, 0, 0)
        CASE(Q5_K, 256, 176, 48, 16, 32, 32, 0, 0)
        CASE(Q6_K, 256, 210, 0, 128, 64, 32, 192, 208)
        CASE(Q2_K, 256, 84, 16, 0, 32, 1, 0, 80)
        CASE(Q3_K, 256, 110, 32, 0, 32, 32, 96, 108)
        CASE(IQ4_NL, 32, 18, 2, 0, 16, 1, 0, 0)
        CASE(IQ4_XS, 256, 136, 8, 0, 16, 1, 0, 0)
        CASE(MXFP4, 32, 17, 1, 0, 16, 1, 0, 0)
        CASE(NVFP4, 64, 36, 4, 0, 8, 1, 0, 0)
        CASE(IQ1_S, 256, 50, 0, 0, 1, 1, 2, 0)
        CASE(IQ1_M, 256, 56, 0, 0, 1, 1, 0, 0)
        CASE(IQ2_XXS, 256, 66, 0, 0, 1, 1, 2, 0)
        CASE(IQ2_XS, 256, 74, 0, 0, 1, 1, 2, 0)
        CASE(IQ2_S, 256, 82, 0, 0, 1, 1, 2, 0)
        CASE(IQ3_XXS, 256, 98, 0, 0, 1, 1, 2, 0)
        CASE(IQ3_S, 256, 110, 0, 0, 1, 1, 2, 0)
        CASE(TQ1_0, 256, 54, 0, 0, 1, 1, 0, 52)
        CASE(TQ2_0, 256, 66, 0, 0, 1, 1, 0, 64)
        CASE(Q1_0, 128, 18, 0, 0, 1, 1, 2, 0)
        CASE(Q2_0, 64, 18, 0, 0, 1, 1, 2, 0)
#undef CASE
        /* NOLINTEND(bugprone-branch-clone) */
    default:
        break;
    }
    return f;
}

/* Byte and lowest bit of element e of a block in a plane of b bits. */
GR_PACK_FN struct gr_pack_pos gr_pack_file_pos(int32_t b, int32_t stride, int32_t e)
{
    int32_t run = b < 8 ? stride * 8 / b : 1; /* elements of `stride` bytes */
    struct gr_pack_pos s = {b < 8 ? e / run * stride + e % stride : e * (b / 8),
                            b < 8 ? e % run / stride * b : 0};
    return s;
}

#endif
