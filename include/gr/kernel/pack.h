/* Arguments of kernels/pack.cu. */
#ifndef GR_KERNEL_PACK_H
#define GR_KERNEL_PACK_H

#include "gr/tensor.h"

struct gr_pack_args {
    struct gr_ten rows;   /* [batch, rows, cols] as in a file, device memory */
    struct gr_ten packed; /* the same matrices in tiles */
};

#endif
