// ATTN, any head size, any cache type, in f32 FMA: for the cases that the other attention kernels
// do not take (f32 rows, head sizes that are no multiple of 16, biases by distance), and as their
// reference.
//
// Traffic: every visible row of K and V once a head and token, mostly from L1 and L2. Bound: the
// latency of dot products that each thread runs over a row of its own.
// Grid: a block a (head, token), heads first, so that the heads of a group read the same rows
// while the caches hold them. 128 items at a time: a thread has the logit of one item, then a
// column of V. Products and sums are f32 and run in the order of the list.
#include "kernels/attn.cuh"

enum { THREADS = 128 };

GR_KERNEL(gr_attn_any, gr_kernel_attn, THREADS, 8)
{
    GR_SMEM;
    attn_exact<THREADS, 0, true>(a, blockIdx.y, blockIdx.x, (float *)smem);
}
