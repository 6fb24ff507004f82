// Up to 8 tokens: kernels/matmul_mv.cuh.
#include "kernels/matmul_mv.cuh"

#define KERNEL(T, name)                                                                            \
    GR_KERNEL_EARLY(gr_matmul_mv_##name, struct gr_matmul_mv_args, 256, 2)                         \
    {                                                                                              \
        matmul_mv<T, gr_pack_step_units(T), 1>(a);                                                 \
    }
GR_MATMUL_TYPES(KERNEL)
