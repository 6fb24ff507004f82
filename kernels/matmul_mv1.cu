// One token: kernels/matmul_mv.cuh, for types whose instructions would take longer than their
// bytes.
#include "kernels/matmul_mv.cuh"

#define KERNEL(T, name)                                                                            \
    GR_KERNEL_EARLY(gr_matmul_mv1_##name, struct gr_matmul_mv_args, 256, 2)                        \
    {                                                                                              \
        matmul_mv<T, 8, mv_one<T>>(a);                                                             \
    }
KERNEL(GR_Q2_K, q2_K)
KERNEL(GR_Q3_K, q3_K)
KERNEL(GR_Q4_K, q4_K)
KERNEL(GR_Q5_K, q5_K)
KERNEL(GR_Q6_K, q6_K)
KERNEL(GR_IQ4_NL, iq4_nl)
KERNEL(GR_IQ4_XS, iq4_xs)
KERNEL(GR_MXFP4, mxfp4)
KERNEL(GR_NVFP4, nvfp4)
