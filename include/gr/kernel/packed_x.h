/* Arguments of kernels that also write their results as packed x (gr/kernel/matmul.h) for the next
 * product: `packed_x.x` is the y of the operation. */
#ifndef GR_KERNEL_PACKED_X_H
#define GR_KERNEL_PACKED_X_H

#include "gr/kernel/matmul.h"
#include "gr/op.h"

enum {
    GR_PACKED_X_THREADS = 512, /* of a block that writes a row of packed x */
    GR_LEVEL_THREADS = 128     /* of one that levels a row's groups */
};

struct gr_norm_packed_x_args {
    struct gr_args_norm norm;
    struct gr_matmul_x_args packed_x;
    int32_t alone; /* 1: packed x is all that is read of y, whose row stands in shared memory */
};

struct gr_glu_packed_x_args {
    struct gr_args_glu glu;
    struct gr_matmul_x_args packed_x;
};

#endif
