/* Panels of the bf16 engine, and products with them. */
#ifndef GR_CPU_FAST_BF16_H
#define GR_CPU_FAST_BF16_H

#include "cpu/fast/matmul.h"

/* Rows of weights per panel. */
enum { BF16_PANEL = 64 };

/* sum [n, BF16_PANEL] += product of n rows of k pairs of bf16, ld pairs apart, and a panel [k,
 * BF16_PANEL] of pairs. Both are padded with zeros to a multiple of 16 pairs. */
typedef void bf16_blocks_fn(const int32_t *x, int64_t ld, int64_t n, const int32_t *panel,
                            int64_t k, float *sum);

/* The engine's `multiply`, with products of many rows of x computed by `blocks`. Requires
 * FN(mm_has_bf16)(). */
void FN(bf16_multiply)(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                       const void *shared, void *local, bf16_blocks_fn *blocks);

#endif
