// Operation: a scaled copy, and sums of rows; a block a row, shuffles within a warp, shared memory
// between warps.
#include "kernels/ptx.cuh"
#include "test/kernels/basic.h"

GR_KERNEL(test_scale, scale_args, 256, 1)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n)
        a.y[i] = a.x[i] * a.factor;
}

GR_KERNEL(test_sum, sum_args, 1024, 1)
{
    __shared__ float part[32];
    const float *x = a.x + (size_t)blockIdx.x * a.n;
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < a.n; i += blockDim.x)
        sum += x[i];
    for (int d = 16; d; d /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, d);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
        for (int d = 16; d; d /= 2)
            sum += __shfl_down_sync(0xffffffff, sum, d);
        if (threadIdx.x == 0)
            a.y[blockIdx.x] = sum;
    }
}
