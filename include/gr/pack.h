/* The packed layout: how every matrix (weights of MATMUL, MATMUL_ID, HEAD_MATMUL; tables of EMBED)
 * lies in a GPU's memory, whatever kernel reads it.
 *
 * A matrix [rows, cols] is cut into tiles of 16 rows, one after the other; rows are padded to 16
 * and columns to 64 with codes and scales of 0. A tile is cut along its columns into chunks of 256
 * (the last may be 64, 128 or 192 wide), a chunk into units of 32 columns. A chunk is contiguous:
 * the planes of its codes, then the planes of its scales, each padded to nothing (all are multiples
 * of 16 bytes), so that a few wide loads, or one bulk copy, fetch whole chunks. For shapes that
 * need no padding the bytes are as many as in the file, and the layout can be turned back.
 *
 * Codes. Lane l of a warp owns, in each unit, rows g and g + 8 (g = l / 4) and columns 8t .. 8t + 7
 * (t = l % 4): what the A fragments of mma.m16n8k16, mma.m16n8k32 and of wgmma with A in registers
 * want, but for an order of columns within each 8, which activations are written in as well:
 * GR_PACK_ORDER below. A plane of b bits gives a lane 2 b bytes a unit, as u32 words:
 *   b = 32, 16, 8  row g, then row g + 8; the 8 elements of a row in GR_PACK_ORDER (b = 32: in
 *                  natural order)
 *   b = 4          row g, then row g + 8; column j of the 8 at bit 4 j
 *   b = 2          one word: column j of row g + 8 r at bit 2 (j % 4 / 2) + 4 (j % 2) + 8 r +
 *                  16 (j / 4)
 *   b = 1          one word for two units: column j of row g + 8 r of unit u at bit
 *                  j % 4 / 2 + 4 (j % 2) + 2 r + 8 (u % 2) + 16 (j / 4)
 * so that (word >> s) & mask yields columns j and j + 4 in the two halves of a register, and bits
 * of planes that belong together come to their places by one shift for two such pairs (gr_pack_spot
 * says it for one element). The words of a lane for a whole chunk, n bytes in all,
 * stand 16 bytes at a time: [piece][lane][16 bytes], a last piece of n % 16 bytes likewise
 * (gr_pack_word).
 *
 * The value of a code is a * (code - zero) - m. Planes of scales are [16 rows][bytes]; "of each
 * unit" is [16 rows][units of the chunk][bytes]:
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
 * Units 2j and 2j + 1 of a chunk are elements 64 j .. 64 j + 63 of a block of 256. */
#ifndef GR_PACK_H
#define GR_PACK_H

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

/* What a type's chunk is made of; bits[1] = 0: one plane. Bytes of the scale planes of a row: those
 * that belong to a unit, and those of two planes that belong to a chunk. */
struct gr_pack_type {
    uint8_t bits[2], unit_scale, chunk_scale[2];
    int8_t zero;
};

GR_PACK_FN struct gr_pack_type gr_pack_type(uint32_t dtype)
{
    struct gr_pack_type p = {{0, 0}, 0, {0, 0}, 0};
    switch (dtype) {
    case GR_F32:
        p.bits[0] = 32;
        break;
    case GR_F16:
    case GR_BF16:
        p.bits[0] = 16;
        break;
    case GR_Q8_0:
        p.bits[0] = 8, p.unit_scale = 2;
        break;
    case GR_Q4_0:
        p.bits[0] = 4, p.unit_scale = 2, p.zero = 8;
        break;
    case GR_Q5_0:
        p.bits[0] = 4, p.bits[1] = 1, p.unit_scale = 2, p.zero = 16;
        break;
    case GR_Q4_1:
        p.bits[0] = 4, p.unit_scale = 4;
        break;
    case GR_Q5_1:
        p.bits[0] = 4, p.bits[1] = 1, p.unit_scale = 4;
        break;
    case GR_Q4_K:
        p.bits[0] = 4, p.chunk_scale[0] = 16;
        break;
    case GR_Q5_K:
        p.bits[0] = 4, p.bits[1] = 1, p.chunk_scale[0] = 16;
        break;
    case GR_Q6_K:
        p.bits[0] = 4, p.bits[1] = 2, p.chunk_scale[0] = 16, p.chunk_scale[1] = 2, p.zero = 32;
        break;
    case GR_Q2_K:
        p.bits[0] = 2, p.chunk_scale[0] = 16, p.chunk_scale[1] = 4;
        break;
    case GR_Q3_K:
        p.bits[0] = 2, p.bits[1] = 1, p.chunk_scale[0] = 12, p.chunk_scale[1] = 2, p.zero = 4;
        break;
    default:
        break; /* not a type that is computed with */
    }
    return p;
}

/* Bits of plane i: a run-time index would put the table into a GPU thread's memory. */
GR_PACK_FN int32_t gr_pack_bits(const struct gr_pack_type *t, int32_t i)
{
    return i ? t->bits[1] : t->bits[0];
}

/* Bytes of a chunk of n units (2, 4, 6 or 8). */
GR_PACK_FN int64_t gr_pack_chunk_bytes(uint32_t dtype, int64_t n_unit)
{
    struct gr_pack_type p = gr_pack_type(dtype);
    return n_unit * (64 * (p.bits[0] + p.bits[1]) + 16 * p.unit_scale) +
           16 * (p.chunk_scale[0] + p.chunk_scale[1]);
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

/* Bytes of a matrix: of one expert or head. */
GR_PACK_FN int64_t gr_pack_bytes(uint32_t dtype, int64_t rows, int64_t cols)
{
    return (rows + GR_PACK_ROWS - 1) / GR_PACK_ROWS * gr_pack_tile_bytes(dtype, cols);
}

/* Where word i of a lane is in a plane that gives each lane n bytes. */
GR_PACK_FN int64_t gr_pack_word(int64_t n, int64_t lane, int64_t i)
{
    int64_t full = n / 16 * 16, at = 4 * i;
    return at < full ? at / 16 * 512 + lane * 16 + at % 16
                     : full * 32 + lane * (n - full) + at - full;
}

/* Where an element of a chunk stands in a plane of b bits: in which word of its lane
 * (row % 8 * 4 + col / 8), from which bit on. row below 16, col (of the unit) below 32. */
struct gr_pack_spot {
    int32_t word, shift;
};

GR_PACK_FN struct gr_pack_spot gr_pack_spot(int32_t b, int32_t unit, int32_t row, int32_t col)
{
    int32_t r = row / 8, j = col % 8, place = j % 4 * 2 + j / 4; /* GR_PACK_ORDER(place) = j */
    struct gr_pack_spot s = {unit, 0};
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

/* The same in the blocks of a file (gr/quant_blocks.h): where the planes of codes and of scales
 * begin, and how many elements stand in the same bits of consecutive bytes before the next higher
 * bits come. A plane of 8 bits or more is plain. */
struct gr_pack_file {
    uint16_t block, bytes; /* elements and bytes of a block */
    uint8_t code_at[2], stride[2], scale_at[2];
};

GR_PACK_FN struct gr_pack_file gr_pack_file(uint32_t dtype)
{
    struct gr_pack_file f = {1, 4, {0, 0}, {1, 1}, {0, 0}};
    switch (dtype) {
    case GR_F16:
    case GR_BF16:
        f.bytes = 2;
        break;
    case GR_Q8_0:
        f.block = 32, f.bytes = 34, f.code_at[0] = 2;
        break;
    case GR_Q4_0:
        f.block = 32, f.bytes = 18, f.code_at[0] = 2, f.stride[0] = 16;
        break;
    case GR_Q4_1:
        f.block = 32, f.bytes = 20, f.code_at[0] = 4, f.stride[0] = 16;
        break;
    case GR_Q5_0:
        f.block = 32, f.bytes = 22, f.code_at[0] = 6, f.stride[0] = 16, f.code_at[1] = 2;
        break;
    case GR_Q5_1:
        f.block = 32, f.bytes = 24, f.code_at[0] = 8, f.stride[0] = 16, f.code_at[1] = 4;
        break;
    case GR_Q4_K:
        f.block = 256, f.bytes = 144, f.code_at[0] = 16, f.stride[0] = 32;
        break;
    case GR_Q5_K:
        f.block = 256, f.bytes = 176, f.code_at[0] = 48, f.stride[0] = 32;
        f.code_at[1] = 16, f.stride[1] = 32;
        break;
    case GR_Q6_K:
        f.block = 256, f.bytes = 210, f.stride[0] = 64, f.code_at[1] = 128, f.stride[1] = 32;
        f.scale_at[0] = 192, f.scale_at[1] = 208;
        break;
    case GR_Q2_K:
        f.block = 256, f.bytes = 84, f.code_at[0] = 16, f.stride[0] = 32;
        f.scale_at[1] = 80;
        break;
    case GR_Q3_K:
        f.block = 256, f.bytes = 110, f.code_at[0] = 32, f.stride[0] = 32, f.stride[1] = 32;
        f.scale_at[0] = 96, f.scale_at[1] = 108;
        break;
    default:
        break;
    }
    return f;
}

/* Byte of a plane of b bits that has element e of the block, and the bit it begins at. */
GR_PACK_FN struct gr_pack_spot gr_pack_file_spot(int32_t b, int32_t stride, int32_t e)
{
    int32_t run = b < 8 ? stride * 8 / b : 1; /* elements of `stride` bytes */
    struct gr_pack_spot s = {b < 8 ? e / run * stride + e % stride : e * (b / 8),
                             b < 8 ? e % run / stride * b : 0};
    return s;
}

#endif
