/* Products by a library, of weights that are unpacked for it. */
#ifndef CUDA_MATMUL_PLAIN_H
#define CUDA_MATMUL_PLAIN_H

#include "cuda/launch.h"
#include "gr/kernel/matmul.h"

/* Bytes of unpacked weights at a time: tests make it small. */
extern int64_t gr_plain_slab_bytes;

/* Notes a product of many tokens by the library: m has packed x by step, or x32 of F32 weights.
 * *done: false when the session computes it by own kernels, or the library has no way to; the
 * scratch memory that own kernels ask for is then there as well. */
int gr_matmul_plain(struct gr_launcher *l, const struct gr_matmul_args *m, bool *done);

#endif
