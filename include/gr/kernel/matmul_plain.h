/* Arguments of kernels/matmul_plain.cu: what stands around a product of plain matrices by a
 * library. */
#ifndef GR_KERNEL_MATMUL_PLAIN_H
#define GR_KERNEL_MATMUL_PLAIN_H

#include "gr/kernel/matmul.h"

enum {
    GR_PLAIN_WARPS = 8,   /* of a block that unpacks: a step of pack_step, or a unit, each */
    GR_PLAIN_COLS = 1024, /* of y that a block of gr_matmul_plain_y has */
};

/* gr_matmul_plain_<type>: tiles from `tile` on, unpacked: rows of `units` units of 32 columns, 16
 * bits each in the order of packed x by_step (bf16 of BF16 weights, f16 of others), or f32 in their
 * natural order of F32 weights. */
struct gr_matmul_plain_args {
    struct gr_ten w; /* packed */
    uint8_t *to;
    int64_t tile;
    int32_t units;
};

/* gr_matmul_plain_y: columns of y from row `row` of m.w on, of the sums [n_tok][n_col] of a
 * product; those outside m.w are dropped. */
struct gr_matmul_plain_y_args {
    struct gr_matmul_args m;
    const float *sum;
    int64_t row;
    int32_t n_col;
};

#endif
