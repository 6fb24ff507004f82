// The last block of several, which continues with the results of all of them.
#pragma once

#include "kernels/ptx.cuh"

// True when this block, with `mine` of the n pieces of work counted here, is the last one, in
// every thread that calls sync(), their barrier; the thread with `one` counts. It sees the others'
// writes and leaves the counter at zero. Results must not depend on which block is the last.
template <class Sync>
GR_DEV bool last_of(uint32_t *count, uint32_t n, bool one, Sync sync, uint32_t mine = 1)
{
    __shared__ bool last;
    sync();
    if (one) {
        last = add_acq_rel(count, mine) == n - mine;
        if (last)
            *count = 0;
    }
    sync();
    return last;
}

GR_DEV bool last_of(uint32_t *count, uint32_t n, uint32_t mine = 1)
{
    return last_of(
        count, n, threadIdx.x == 0, [] { __syncthreads(); }, mine);
}
