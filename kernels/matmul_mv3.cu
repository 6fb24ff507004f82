// 9 to 24 tokens: kernels/matmul_mv.cuh.
#include "kernels/matmul_mv.cuh"

#define KERNEL(T, name)                                                                            \
    GR_KERNEL(gr_matmul_mv3_##name, struct gr_matmul_args, 256, 2)                                 \
    {                                                                                              \
        matmul_mv<T, 4, 3>(a);                                                                     \
    }
GR_MATMUL_TYPES(KERNEL)
