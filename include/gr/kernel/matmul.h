/* Arguments of kernels/matmul_*.cu: products of activations with packed matrices.
 *
 * Activations are first written as 16-bit floats, `packed x`, by gr_matmul_x, once for all products
 * that read them; its layout is described here. A product is repeated over items: heads, each
 * with all tokens, a matrix and columns of y of its own; or pairs (token, used expert), whose
 * matrix `ids` names. */
#ifndef GR_KERNEL_MATMUL_H
#define GR_KERNEL_MATMUL_H

#include "gr/kernel/tensor_map.h"
#include "gr/op.h"
#include "gr/pack.h"
#include "gr/quant_grids.h"
#include "gr/tensor.h"

/* Packed x: n rows of `units` units (gr_pack_units), by lane of whole chunks. f16 (bf16 for BF16
 * weights) times a power of two that brings the largest of a chunk, by_step of a row, to 2^10:
 * `factor` undoes it. The 32 columns of a unit stand in 16 words, pair r of lane part t (columns 8
 * t + r, 8 t + r + 4) in word 4 t + r, what a lane of mma.sync loads as 16 bytes; by_step: in word
 * 4 r + t, rows as wgmma has them. sums: of each 16 of these numbers, as f16, and the remainder as
 * another f16; a chunk has for each t four words: sums 2 t, 2 t + 1; 2 t + 8, 2 t + 9; and their
 * remainders. */
struct gr_packed_x {
    uint8_t *x;    /* [n][units * 64 bytes], by lane [n][chunks * 512 bytes]: zeros behind them */
    uint8_t *sums; /* [n][chunks][64 bytes]; zero where a chunk has no columns */
    float *factor; /* [chunks][gr_packed_x_pitch(n)]; by_step [n] */
    int32_t units;
    int32_t n;
};

GR_PACK_FN int64_t gr_packed_x_chunks(int64_t units)
{
    return (units + 7) / 8;
}

/* Factors of a chunk: those of n rows, and room for the rows that a tile of 24 lacks. */
GR_PACK_FN int32_t gr_packed_x_pitch(int32_t n)
{
    return n + 24;
}

/* Packed x by_step whose rows are written before their largest number is known: each group of 64
 * columns times a power of two of its own, 2^GR_PACKED_X_UP where that brings its largest number to
 * 1 or more and below 2^15. gr_matmul_x_level then brings those that differ to the row's one, the
 * least of its groups, and writes the factor. Numbers that f16 is known to hold are all multiplied
 * with 2^GR_PACKED_X_F16. No sums are written: products on wgmma read none. */
struct gr_packed_x_groups {
    struct gr_packed_x to;
    int8_t *up; /* [to.n][group]: the exponent; GR_PACKED_X_ZEROS: all of its numbers are zeros;
                   NULL: f16 holds them */
};
enum {
    GR_PACKED_X_GROUP = 64,
    GR_PACKED_X_UP = 8,
    GR_PACKED_X_F16 = -1, /* room for what rounding adds to the largest of f16 */
    GR_PACKED_X_ZEROS = 127
};

/* gr_matmul_x writes packed x. Its row i is a row of x, or part of one: with `order`, row order[i]
 * / div; otherwise row i % n_row, from its i / n_row * head_bytes on. */
struct gr_matmul_x_args {
    struct gr_packed_x to;
    const uint8_t *x; /* f32 */
    int64_t row_bytes, head_bytes;
    int32_t cols, n_row;
    const int32_t *order; /* [n] or NULL */
    int32_t div;
    uint32_t bf16, by_step;
};

/* gr_matmul_x_group sorts the pairs (token, used expert) by expert, stably, and cuts the pairs of
 * an expert into tiles of `tile` pairs. */
struct gr_matmul_group_args {
    const uint8_t *ids; /* [n / n_used][n_used] i32 */
    int64_t ids_row_bytes;
    int32_t n, n_used, n_expert, tile;
    int32_t *order; /* [n]: pairs */
    int32_t *tiles; /* their number, then for each: expert, first place in order, pairs */
};

/* gr_matmul_x_pass: columns of each head of y that are copied from x. */
struct gr_matmul_pass_args {
    const uint8_t *x; /* first head's first such column */
    uint8_t *y;
    int64_t x_row_bytes, x_head_bytes, y_row_bytes, y_head_bytes;
    int32_t n; /* columns of a head */
};

/* Weights whose blocks are kept whole: bytes of the type's grid (a u32 for a point of 8 elements, a
 * u16 for one of 4), which is copied to shared memory, and the number of chunks that a streaming
 * warp has there behind it. */
#define GR_WHOLE_SLOTS 3

GR_PACK_FN int32_t gr_whole_grid_bytes(uint32_t dtype)
{
    switch (dtype) {
    case GR_IQ1_S:
    case GR_IQ1_M:
        return GR_GRID_N_IQ1 * 4;
    case GR_IQ2_XXS:
        return GR_GRID_N_IQ2_XXS * 4;
    case GR_IQ2_XS:
        return GR_GRID_N_IQ2_XS * 4;
    case GR_IQ2_S:
        return GR_GRID_N_IQ2_S * 4;
    case GR_IQ3_XXS:
        return GR_GRID_N_IQ3_XXS * 2;
    case GR_IQ3_S:
        return GR_GRID_N_IQ3_S * 2;
    default:
        return 0;
    }
}

/* Products of the same packed x with matrices of one type that a launch may have: Q, K and V, or
 * gate and up, or these of the same experts. */
#define GR_MATMUL_PARTS 3

/* The products. */
struct gr_matmul_args {
    struct gr_ten w; /* packed */
    struct gr_packed_x x;
    int32_t n_tok; /* rows of packed x of an item */
    float scale;
    uint8_t *y; /* f32 */
    int64_t y_row_bytes, y_item_bytes;
    const uint8_t *b, *res; /* or NULL; b: a row a matrix; res: rows res_row_bytes apart */
    int64_t b_row_bytes, res_row_bytes;
    const float *s; /* or NULL: factor of each matrix */
    /* Experts: item i has matrix ids[i / n_used][i % n_used], n_tok = 1, row i / x_row_div of
     * packed x and row i of y. NULL: item i has matrix i and rows i * n_tok .. of packed x. */
    const uint8_t *ids;
    int64_t ids_row_bytes;
    int32_t n_used, x_row_div;
    /* Experts in tiles of pairs, from gr_matmul_x_group; packed x is in its order. */
    const int32_t *order, *tiles;
    /* F32 weights: rows of x as they are. */
    const uint8_t *x32;
    int64_t x_row_bytes, x_item_bytes;
};

/* The same for wgmma, up to three products of the same packed x, by_step, as a tensor map. Tiles
 * are of GR_SM90_ROWS rows, those of all products one after another and an even number of them, and
 * of GR_SM90_X_ROWS rows of x. A piece of work is a tile of x of an item with two tiles of rows,
 * one for each block of a cluster; the clusters of a launch take turns at them. Pieces run over
 * groups of GR_SM90_GROUP tiles of x, in a group over tiles of rows, for each over the group's
 * tiles of x: so blocks that run at the same time share both. Those from n_whole on, for which a
 * device has more clusters than there are pieces left, are cut: where a tile of x may have more
 * rows than GR_SM90_HALF and two clusters can share it, into halves of its rows, and each into
 * segments of their columns, whose sums the last block of a tile adds.
 *
 * A launch `beside` the one in front of it, which has products of the same packed x, depends on
 * nothing that one writes: its blocks run as soon as those of the other leave them room, and wait
 * for its end with their own. */
enum {
    GR_SM90_ROWS = 128,
    GR_SM90_X_ROWS = 128,
    GR_SM90_HALF = 64,
    GR_SM90_NARROW = 120, /* rows of x at most that a narrow kernel multiplies, in steps of 8 */
    GR_SM90_GROUP = 8,
    GR_SM90_CLUSTER = 2
};
enum gr_sm90_kept { GR_SM90_Y, GR_SM90_K, GR_SM90_V }; /* what a product's results are kept as */

struct gr_matmul_sm90_args {
    struct gr_tensor_map map; /* boxes of GR_SM90_BOX rows */
    struct gr_matmul_args part[GR_MATMUL_PARTS];
    int32_t n;   /* products */
    int32_t glu; /* 0: none; otherwise y of part 0 is GLU of the products, the gate first, of
                    kind glu - 1 (enum gr_act_kind), in tiles of half as many rows of each */
    struct gr_packed_x_groups glu_x; /* what GLU is written as in place of y; to.n = 0: nothing. Not
                                        of F16 and BF16 weights: their kernels lack registers */
    /* Where products are K or V, or both, and used nowhere else: the cache of f16 that takes them
     * in place of y (KV_STORE), K by whole heads. Not of F16 and BF16 weights either. */
    struct gr_args_kv_store kv;
    int8_t kept[GR_MATMUL_PARTS]; /* of each product: enum gr_sm90_kept */
    int32_t res_ahead;  /* 1: residuals of a tile go through the ring of weights behind the last of
                           these, GR_SM90_PIECE tokens a slot, unless it is in segments */
    int32_t beside;     /* 1: the launch in front */
    int32_t n_block;    /* of a cluster: 1, or GR_SM90_CLUSTER */
    int32_t n_x, n_row; /* tiles of x, of rows of weights */
    int32_t n_half, n_segment;  /* of a piece that is cut, of its rows of x and of each's columns */
    int32_t half;               /* rows of x of the first half, the boxes of GR_SM90_BOX nearest to
                                   a half; neither has more than GR_SM90_HALF */
    uint32_t n_whole;           /* pieces that are not cut */
    uint32_t n_cluster, n_work; /* of the grid; what its clusters take turns at */
    float *sums;     /* [tile that is cut][segment][gr_sm90_width(n_tok) * GR_SM90_ROWS], as threads
                        have them */
    uint32_t *count; /* [tile that is cut]: zeros before and after */
};

/* Width of the products of a tile of n rows of x: 64, whose products take as long as decoding the
 * weights for them, or 128. */
GR_PACK_FN int32_t gr_sm90_width(int32_t n)
{
    return n <= GR_SM90_HALF ? GR_SM90_HALF : 128;
}

/* A block's shared memory, bytes: a ring of stages, each 64 columns of its x; sums on their way to
 * y, of two warpgroups; a ring of slots, each 256 columns of its rows of weights; barriers. The
 * memory that the others leave holds weights under way, the first of which are requested before the
 * preceding launch is over. */
struct gr_sm90_smem {
    int32_t n_stage, stage_bytes, n_slot, slot_bytes;
    int32_t sums, slots, bars; /* their offsets */
    int32_t bytes;
};

enum {
    GR_SM90_BOX = 16,
    GR_SM90_STAGES = 5,
    GR_SM90_PIECE = 32, /* tokens of `sums` */
    GR_SM90_PITCH = 68, /* from one of them to the next, of 64 rows: no bank conflicts */
    GR_SM90_SLOTS = 8,  /* at most */
    GR_SM90_BYTES = 226 << 10
};

GR_PACK_FN struct gr_sm90_smem gr_sm90_smem(uint32_t dtype)
{
    struct gr_sm90_smem m = {GR_SM90_STAGES, GR_SM90_X_ROWS * 128, 0, 0, 0, 0, 0, 0};
    m.slot_bytes = GR_SM90_ROWS / GR_PACK_ROWS * (int32_t)gr_pack_chunk_bytes(dtype, 8);
    m.sums = m.n_stage * m.stage_bytes;
    m.slots = m.sums + 2 * GR_SM90_PIECE * GR_SM90_PITCH * 4;
    m.n_slot = (GR_SM90_BYTES - m.slots - 16 * m.n_stage) / (m.slot_bytes + 16);
    m.n_slot = m.n_slot < GR_SM90_SLOTS ? m.n_slot : GR_SM90_SLOTS;
    m.bars = m.slots + m.n_slot * m.slot_bytes;
    m.bytes = m.bars + 16 * (m.n_stage + m.n_slot); /* full and empty, 8 each */
    return m;
}

#endif
