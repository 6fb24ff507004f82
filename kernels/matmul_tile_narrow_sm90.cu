// Products of 65 to 120 tokens on wgmma, in one tile: kernels/tile_sm90.cuh.
//
// Traffic, bound, grid: as there, but tensor cores take 16 cycles for each of 72, 80, .. 120 tokens
// in place of 128. A switch within the loop names the width; the kernels of 64 and 128 have no
// registers for that, which makes their products wait for each other. Types of fewer bits than 7
// whose time L2 or decoding do not bound anyway, and of these the usual ones.
#include "kernels/tile_sm90.cuh"

#define KERNEL(T, name)                                                                            \
    GR_KERNEL_EARLY(gr_matmul_tile_narrow_sm90_##name, struct gr_matmul_sm90_args, 384, 1)         \
    {                                                                                              \
        matmul_tile_sm90<T, true>(a);                                                              \
    }
KERNEL(GR_Q4_0, q4_0)
KERNEL(GR_Q2_K, q2_K)
KERNEL(GR_Q3_K, q3_K)
KERNEL(GR_Q4_K, q4_K)
KERNEL(GR_Q5_K, q5_K)
KERNEL(GR_Q6_K, q6_K)
KERNEL(GR_IQ4_XS, iq4_xs)
