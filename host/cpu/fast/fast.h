/* Functions shared by the files of a level. */
#ifndef GR_CPU_FAST_FAST_H
#define GR_CPU_FAST_FAST_H

#include "cpu/fast/vec.h"
#include "cpu/impl/impl.h"

/* The level's implementations, by operation; table.c collects them. */
#define OP(NAME, args, operands, meaning) extern const struct gr_cpu_impl FN(args);
#define BETWEEN(NAME, args, operands, meaning)
#include "gr/op.def"
#undef OP

/* Converts n elements of a row of f32, f16 or bf16 to f32. Writes whole vectors: dst has room for n
 * rounded up to VL, padded with 0. */
void FN(load_row)(uint32_t dtype, const void *src, int64_t n, float *dst);

/* C [m, n] += A [m, k] B [k, n] in f32; each element sums over k in ascending order. a[i] is row i
 * of A; n is a multiple of VL; ldb and ldc count floats. */
void FN(gemm)(const float *const *a, int64_t m, const float *b, int64_t ldb, int64_t k, int64_t n,
              float *c, int64_t ldc);

/* dst [n_cols, VL] = the transpose of src [n_rows, n_cols], n_rows <= VL (missing rows give 0), in
 * words of 32 bits; ld and ld_dst count words. Reads and writes n_cols rounded up to VL. */
void FN(transpose)(const void *src, int64_t ld, int64_t n_rows, int64_t n_cols, void *dst,
                   int64_t ld_dst);

/* y[0 .. n) = act(x[0 .. n)), enum gr_act_kind. */
void FN(act_row)(int kind, const float *x, int64_t n, float a, float b, float *y);

#endif
