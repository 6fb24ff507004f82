// gr_pack_tiles: rows as they stand in a file, staged on the device, to packed tiles (gr/pack.h);
// gr_pack_rows: tiles to rows.
//
// Traffic: every byte read once and written once. Bound: in practice the transfer that stages the
// rows, twenty times slower than device memory; so the kernels are written for one definition of
// the layout, gr_pack_pos, and gather bit by bit through L1: about 30 instructions an element,
// still far above what a link delivers.
// Grid: gr_pack_tiles (tile, 256 words of it, matrix); gr_pack_rows (row, 256 bytes of it, matrix).
#include "gr/kernel/pack.h"
#include "kernels/pack.cuh"

// Bits of plane p of the element in column `col` of a file's row.
GR_DEV uint32_t file_code(const uint8_t *row, const struct gr_pack_type &t,
                          const struct gr_pack_file &f, int p, int64_t col)
{
    int b = gr_pack_bits(&t, p), stride = p ? f.stride[1] : f.stride[0];
    struct gr_pack_pos s = gr_pack_file_pos(b, stride, (int32_t)(col % f.block));
    const uint8_t *at = row + col / f.block * f.bytes + (p ? f.code_at[1] : f.code_at[0]) + s.word;
    uint32_t v = 0;
    for (int i = 0; i < (b + 7) / 8; i++)
        v |= (uint32_t)at[i] << 8 * i;
    return b < 8 ? v >> s.shift & ((1u << b) - 1) : v;
}

// Byte `at` of the planes of scales of a chunk with n units: its row, and its offset in the row's
// blocks in a file.
struct scale_place {
    int row;
    int64_t at;
};
GR_DEV struct scale_place scale_place(const struct gr_pack_type &t, const struct gr_pack_file &f,
                                      int64_t chunk, int n, int at)
{
    int p = at >= 16 * gr_pack_scale(&t, 0, n);
    at -= p ? 16 * gr_pack_scale(&t, 0, n) : 0;
    int row = gr_pack_scale(&t, p, n), of = p ? t.scale[1] : t.scale[0]; // bytes: of a row, a block
    return {at / row, (8 / t.span * chunk + at % row / of) * f.bytes +
                          (p ? f.scale_at[1] : f.scale_at[0]) + at % of};
}

// Word i of a lane in plane p of a chunk: at most 32 elements have bits in it.
GR_DEV uint32_t gather_word(const struct gr_ten &rows, const struct gr_pack_type &t,
                            const struct gr_pack_file &f, int64_t row0, int64_t col0, int p,
                            int lane, int i)
{
    int b = gr_pack_bits(&t, p), unit = b == 1 ? 2 * i : 2 * i / b;
    bool by_unit = t.order == GR_PACK_BY_UNIT;
    uint32_t word = 0;
    for (int k = 0; k < (b == 1 ? 32 : 16); k++) {
        int u = unit + k / 16, row = lane / 4 + k % 16 / 8 * 8, col = lane % 4 * 8 + k % 8;
        if (by_unit)
            u = (b == 1 ? 0 : i / 4 * 4) + k / 4, row = lane / 4 + k / 2 % 2 * 8,
            col = lane % 4 * 8 + i % 4 + k % 2 * 4;
        struct gr_pack_pos s = gr_pack_pos(&t, b, u, row, col);
        int64_t c = col0 + u * GR_PACK_UNIT + col;
        if (s.word == i && row0 + row < rows.rows && c < rows.cols)
            word |=
                file_code((const uint8_t *)gr_ten_row(&rows, blockIdx.z, row0 + row), t, f, p, c)
                << s.shift;
    }
    return gr_pack_names_values(&t) ? gr_pack_stored(t.order, word) : word;
}

GR_KERNEL(gr_pack_tiles, struct gr_pack_args, 256, 1)
{
    struct gr_pack_type t = gr_pack_type(a.rows.dtype);
    struct gr_pack_file f = gr_pack_file(a.rows.dtype);
    int64_t tile_bytes = gr_pack_tile_bytes(a.rows.dtype, a.rows.cols);
    int64_t at = ((int64_t)blockIdx.y * 256 + threadIdx.x) * 4;
    if (at >= tile_bytes)
        return;
    int64_t full = gr_pack_chunk_bytes(a.rows.dtype, 8), chunk = at / full;
    int64_t units = gr_pack_units(a.rows.cols), row0 = (int64_t)blockIdx.x * GR_PACK_ROWS;
    int n = units - 8 * chunk < 8 ? (int)(units - 8 * chunk) : 8, o = (int)(at - chunk * full);
    uint32_t word = 0;
    int p = o >= n * 64 * t.bits[0];
    o -= p ? n * 64 * t.bits[0] : 0;
    if (p && o >= n * 64 * t.bits[1]) { // scales
        o -= n * 64 * t.bits[1];
        for (int i = 0; i < 4; i++) {
            struct scale_place s = scale_place(t, f, chunk, n, o + i);
            if (row0 + s.row >= a.rows.rows || s.at / f.bytes * f.block >= a.rows.cols)
                continue;
            uint32_t v = ((const uint8_t *)gr_ten_row(&a.rows, blockIdx.z, row0 + s.row))[s.at];
            word |= (a.rows.dtype == GR_NVFP4 && v == 127 ? 0 : v) << 8 * i;
        }
    } else { // codes: gr_pack_word turned back
        int lane_bytes = 2 * n * gr_pack_bits(&t, p), pieces = lane_bytes / 16 * 16,
            rest = lane_bytes % 16;
        bool in_piece = o < 32 * pieces;
        int lane = in_piece ? o % 512 / 16 : (o - 32 * pieces) / rest;
        int i = in_piece ? o / 512 * 4 + o % 16 / 4 : (pieces + (o - 32 * pieces) % rest) / 4;
        word = gather_word(a.rows, t, f, row0, chunk * GR_PACK_COLS, p, lane, i);
    }
    uint8_t *tile =
        (uint8_t *)a.packed.data + ((int64_t)blockIdx.z * gridDim.x + blockIdx.x) * tile_bytes;
    *(uint32_t *)(tile + at) = word;
}

// Byte `at` of row `row` in a file, from its tile.
GR_DEV uint8_t gather_byte(const uint8_t *tile, const struct gr_pack_type &t,
                           const struct gr_pack_file &f, uint32_t dtype, int64_t units, int row,
                           int64_t at)
{
    int64_t block = at / f.bytes, col0 = block * f.block, chunk = col0 / GR_PACK_COLS;
    int n = units - 8 * chunk < 8 ? (int)(units - 8 * chunk) : 8, o = (int)(at % f.bytes);
    const uint8_t *codes = tile + chunk * gr_pack_chunk_bytes(dtype, 8);
    const uint8_t *scales = codes + n * 64 * (t.bits[0] + t.bits[1]);
#pragma unroll
    for (int p = 0; p < 2; p++) {
        int of = p ? t.scale[1] : t.scale[0], i = o - (p ? f.scale_at[1] : f.scale_at[0]);
        if (i >= 0 && i < of)
            return scales[(p ? 16 * gr_pack_scale(&t, 0, n) : 0) + row * gr_pack_scale(&t, p, n) +
                          (int)(col0 % GR_PACK_COLS) / f.block * of + i];
    }
    int p = t.bits[1] && o >= f.code_at[1] && (o < f.code_at[0] || f.code_at[1] > f.code_at[0]);
    int b = gr_pack_bits(&t, p), stride = p ? f.stride[1] : f.stride[0];
    int i = o - (p ? f.code_at[1] : f.code_at[0]), in = (int)(col0 % GR_PACK_COLS);
    if (b >= 8)
        return (uint8_t)(pack_code(codes, t, n, p, row, in + i / (b / 8)) >> i % (b / 8) * 8);
    uint32_t v = 0;
    for (int k = 0; k < 8 / b; k++) {
        int e = i / stride * (stride * 8 / b) + k * stride + i % stride;
        v |= pack_code(codes, t, n, p, row, in + e) << k * b;
    }
    return (uint8_t)v;
}

GR_KERNEL(gr_pack_rows, struct gr_pack_args, 256, 1)
{
    struct gr_pack_type t = gr_pack_type(a.packed.dtype);
    struct gr_pack_file f = gr_pack_file(a.packed.dtype);
    int64_t at = (int64_t)blockIdx.y * 256 + threadIdx.x;
    if (at >= a.packed.cols / f.block * f.bytes)
        return;
    int64_t n_tile = (a.packed.offset + a.packed.rows + GR_PACK_ROWS - 1) / GR_PACK_ROWS;
    int64_t row = a.packed.offset + blockIdx.x;
    const uint8_t *tile =
        (const uint8_t *)a.packed.data + (blockIdx.z * n_tile + row / GR_PACK_ROWS) *
                                             gr_pack_tile_bytes(a.packed.dtype, a.packed.cols);
    uint8_t *out = (uint8_t *)gr_ten_row(&a.rows, blockIdx.z, blockIdx.x);
    out[at] = gather_byte(tile, t, f, a.packed.dtype, gr_pack_units(a.packed.cols),
                          (int)(row % GR_PACK_ROWS), at);
}
