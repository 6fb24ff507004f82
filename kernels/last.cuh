// The last block of several: it goes on with what all of them have written.
#pragma once

#include "kernels/ptx.cuh"

// Whether this block, with `mine` of the n pieces of work that are counted here, is the last one,
// in every thread that comes with sync(), a barrier of theirs; `one` of them counts. It sees what
// the others have written, and leaves a zero behind. Which one it is must not matter.
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
