/* Arguments and constants of the kernels of the recurrent operations (kernels/ssm.cu, delta.cu,
 * linear_attn.cu). */
#ifndef GR_KERNEL_SSM_H
#define GR_KERNEL_SSM_H

#include "gr/op.h"

struct gr_kernel_ssm_conv {
    struct gr_args_ssm_conv c;
    uint32_t chunk; /* tokens of a sequence that a thread does, at least n_kernel - 1 */
};

/* A warp does 32 / lanes columns of a scan, each by `lanes` lanes that share its states. */
enum { GR_SCAN_WARPS = 4, GR_DELTA_WARPS = 4, GR_DELTA_COLS = 32 };

#endif
