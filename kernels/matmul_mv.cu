// Up to 8 tokens: kernels/matmul_mv.cuh.
#include "kernels/matmul_mv.cuh"

#define KERNEL(T, name)                                                                            \
    GR_KERNEL_EARLY(gr_matmul_mv_##name, struct gr_matmul_mv_args, 256, 2)                         \
    {                                                                                              \
        constexpr int U = gr_pack_step_units(T);                                                   \
        matmul_mv<T, U, mv_some<T, U, 1>>(a);                                                      \
    }
GR_MATMUL_TYPES(KERNEL)
