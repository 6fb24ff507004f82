/* Arguments of kernels that write the lines (gr/kernel/matmul.h) of their results beside them, for
 * the product behind them: `lines.x` is the y of the operation. */
#ifndef GR_KERNEL_LINES_H
#define GR_KERNEL_LINES_H

#include "gr/kernel/matmul.h"
#include "gr/op.h"

enum { GR_LINES_THREADS = 512 }; /* of a block that writes lines */

struct gr_norm_lines_args {
    struct gr_args_norm norm;
    struct gr_matmul_x_args lines;
};

struct gr_glu_lines_args {
    struct gr_args_glu glu;
    struct gr_matmul_x_args lines;
};

#endif
