// The last block of several: it goes on with what all of them have written.
#pragma once

#include "kernels/ptx.cuh"

// Whether this block is the last of n that count themselves here, in every thread; it sees what
// they have written, and leaves a zero behind. Which one it is must not matter.
GR_DEV bool last_of(uint32_t *count, uint32_t n)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = add_acq_rel(count, 1) == n - 1;
        if (last)
            *count = 0;
    }
    __syncthreads();
    return last;
}
