/* Arguments of the kernels of the cache's operations (kernels/kv.cu). */
#ifndef GR_KERNEL_KV_H
#define GR_KERNEL_KV_H

#include "gr/op.h"

enum { GR_KV_WARPS = 8 }; /* of a block */

/* K and V stored and Q turned in one launch: blocks from n_store on are those of ROPE. */
struct gr_kernel_kv_store_rope {
    struct gr_args_kv_store store;
    struct gr_args_rope rope;
    uint32_t n_store;
};

struct gr_kernel_kv_copy {
    struct gr_args_kv_copy c;
    uint32_t n_piece; /* of a row: 16, 4 or 2 bytes each, as the kernel's name says */
};

#endif
