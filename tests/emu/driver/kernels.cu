// Operation: adds a number to a row of numbers; a thread an element. For tests of the emulated
// driver.
#include "kernels/ptx.cuh"
#include "tests/emu/driver/kernels.h"

GR_KERNEL(test_add, test_add_args, 128, 1)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n)
        a.dst[i] = a.src[i] + a.add;
}
