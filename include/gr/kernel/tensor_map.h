/* A tensor map: what the copy engine of compute capability 9.0 must know of a tensor in global
 * memory to fetch boxes of it. Opaque; the driver encodes it (cuda/launch.h:
 * gr_launch_tensor_map). It is a member of a kernel's argument struct, and the kernel passes its
 * address to tma_load_2d and the like. */
#ifndef GR_KERNEL_TENSOR_MAP_H
#define GR_KERNEL_TENSOR_MAP_H

#include <stdalign.h>
#include <stdint.h>

struct gr_tensor_map {
    alignas(64) uint64_t opaque[16];
};

#endif
