/* Helpers of the references: rows of any storage type as f32, and elementwise functions. */
#ifndef GR_CPU_REF_REF_H
#define GR_CPU_REF_REF_H

#include "cpu/impl/impl.h"

/* Converts columns [first, first + n) of row r of matrix m to f32; first and n are multiples of the
 * storage block. */
void gr_ref_load(const struct gr_ten *t, int64_t m, int64_t r, int64_t first, int64_t n,
                 float *dst);

/* Stores row r from f32, rounding as the storage type's quantiser does. */
void gr_ref_store(const struct gr_ten *t, int64_t r, const float *src);

/* sum_i x[i] * w[i] */
double gr_ref_dot(const float *x, const float *w, int64_t n);

/* enum gr_act_kind; a and b as in struct gr_args_act. */
double gr_ref_act_of(int kind, double x, double a, double b);

/* log(1 + exp(x)) */
double gr_ref_softplus(double x);

/* Rotates a head of d columns: x by the cos and sin pairs cs [n_rot] into y, which may be x. */
void gr_ref_rotate(const float *x, const float *cs, int64_t n_rot, int64_t d, int kind, float *y);

#endif
