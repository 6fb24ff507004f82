// Kernels of ceilings.c. Bound: memory, but for ceilings_step, which does nothing. Grid: as many
// blocks as are resident, each thread in strides of all of them, four loads of 16 bytes in flight.
#include "kernels/ptx.cuh"
#include "tests/gpu/ceilings.h"

GR_KERNEL(ceilings_fill, ceilings_args, 256, 8)
{
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n_vec; i += step) {
        const uint32_t w = (uint32_t)i * 4;
        const uint4 v = {ceilings_word(w), ceilings_word(w + 1), ceilings_word(w + 2),
                         ceilings_word(w + 3)};
        ((uint4 *)a.data)[i] = v;
    }
}

GR_DEV uint32_t folded(uint4 v)
{
    return v.x ^ v.y ^ v.z ^ v.w;
}

// out[thread]: the exclusive or of all words that the thread has read.
GR_KERNEL(ceilings_read, ceilings_args, 256, 8)
{
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    const uint64_t thread = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 *data = (const uint4 *)a.data;
    uint32_t x = 0;
    uint64_t i = thread;
    for (; i + 3 * step < a.n_vec; i += 4 * step) {
        const uint4 p = data[i], q = data[i + step], r = data[i + 2 * step], s = data[i + 3 * step];
        x ^= folded(p) ^ folded(q) ^ folded(r) ^ folded(s);
    }
    for (; i < a.n_vec; i += step)
        x ^= folded(data[i]);
    a.out[thread] = x;
}

GR_KERNEL(ceilings_step, ceilings_args, 256, 8)
{
    if (a.n_vec == ~(uint64_t)0)
        a.out[threadIdx.x] = 0;
}
