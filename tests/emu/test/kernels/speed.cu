// Costs of parts of the emulated device: each kernel does one thing `n` times.
#include "kernels/mma.cuh"
#include "test/kernels/basic.h"

GR_KERNEL(test_barriers, repeat_args, 1024, 1)
{
    for (uint32_t i = 0; i < a.n; i++)
        __syncthreads();
}

GR_KERNEL(test_shuffles, repeat_args, 1024, 1)
{
    float v = (float)threadIdx.x;
    for (uint32_t i = 0; i < a.n; i++)
        v = __shfl_xor_sync(0xffffffff, v, 1);
    a.y[threadIdx.x] = v;
}

GR_KERNEL(test_products, repeat_args, 1024, 1)
{
    float d[4] = {};
    uint32_t fa[4] = {threadIdx.x, 1, 2, 3}, fb[2] = {4, 5};
    for (uint32_t i = 0; i < a.n; i++)
        mma_f16(d, fa, fb);
    a.y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
