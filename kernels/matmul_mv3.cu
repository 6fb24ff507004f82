// 9 to 24 tokens: kernels/matmul_mv.cuh.
#include "kernels/matmul_mv.cuh"

#define KERNEL(T, name)                                                                            \
    GR_KERNEL(gr_matmul_mv3_##name, struct gr_matmul_args, 256, 2)                                 \
    {                                                                                              \
        matmul_mv<T, 4, 3>(a);                                                                     \
    }
KERNEL(GR_F16, f16)
KERNEL(GR_BF16, bf16)
KERNEL(GR_Q4_0, q4_0)
KERNEL(GR_Q4_1, q4_1)
KERNEL(GR_Q5_0, q5_0)
KERNEL(GR_Q5_1, q5_1)
KERNEL(GR_Q8_0, q8_0)
KERNEL(GR_Q2_K, q2_K)
KERNEL(GR_Q3_K, q3_K)
KERNEL(GR_Q4_K, q4_K)
KERNEL(GR_Q5_K, q5_K)
KERNEL(GR_Q6_K, q6_K)
