// 9 to 24 tokens: kernels/matmul_mv.cuh.
#include "kernels/matmul_mv.cuh"

#define KERNEL(T, name)                                                                            \
    GR_KERNEL_EARLY(gr_matmul_mv3_##name, struct gr_matmul_mv_args, 256, 2)                        \
    {                                                                                              \
        constexpr int U = gr_pack_type(T).bits[0] == 16 ? 2 : 4;                                   \
        matmul_mv<T, U, mv_some<T, U, 3>>(a);                                                      \
    }
GR_MATMUL_TYPES(KERNEL)
