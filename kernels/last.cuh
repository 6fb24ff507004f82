// The last block of several: it goes on with what all of them have written.
#pragma once

#include "kernels/ptx.cuh"

// Whether this block is the last of n that count themselves here, in every thread that comes with
// sync(), a barrier of theirs; `one` of them counts. It sees what they have written, and leaves a
// zero behind. Which one it is must not matter.
template <class Sync> GR_DEV bool last_of(uint32_t *count, uint32_t n, bool one, Sync sync)
{
    __shared__ bool last;
    sync();
    if (one) {
        last = add_acq_rel(count, 1) == n - 1;
        if (last)
            *count = 0;
    }
    sync();
    return last;
}

GR_DEV bool last_of(uint32_t *count, uint32_t n)
{
    return last_of(count, n, threadIdx.x == 0, [] { __syncthreads(); });
}
