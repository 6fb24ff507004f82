/* Arguments of the kernels of NORM (kernels/norm.cu). */
#ifndef GR_KERNEL_NORM_H
#define GR_KERNEL_NORM_H

#include "gr/op.h"

/* One or two operations on short groups (the heads of Q and of K): blocks from n_first on are those
 * of the second. */
struct gr_norm_warp_args {
    struct gr_args_norm part[2];
    uint32_t n_first;
};

#endif
