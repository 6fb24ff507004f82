// Tiles of up to 128 tokens on wgmma: kernels/tile_sm90.cuh.
#include "kernels/tile_sm90.cuh"

#define KERNEL(T, name)                                                                            \
    GR_KERNEL_EARLY(gr_matmul_tile_sm90_##name, struct gr_matmul_sm90_args, 384, 1)                \
    {                                                                                              \
        matmul_tile_sm90<T, false>(a);                                                             \
    }
GR_MATMUL_TYPES(KERNEL)
