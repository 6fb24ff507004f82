/* Least-squares fits for the quantisers: levels, scales and minima that make the weighted squared
 * error sum w (x - x')^2 small. All sums run in a fixed order in f32, so results are the same on
 * every machine. A group has n elements, 16 or 32. */
#ifndef GR_QUANT_FIT_H
#define GR_QUANT_FIT_H

#include <stdint.h>

#include "gr/quant_blocks.h"

/* Loads n elements with safe values: NaN becomes 0 and x is clamped to +-2^40, far beyond what any
 * block type can hold. w is the importance scaled to a maximum of 1, with negative and non-finite
 * elements 0; all 1 when `importance` is NULL or has no positive element. w may be NULL. */
void gr_fit_load(const float *src, const float *importance, int n, float *x, float *w);

#define GR_FIT_HALF_MAX 65504.f

/* Rounds x to the nearest f16 and clamps it to the finite range. */
gr_half gr_fit_half(float x);

/* The same, but rounds away from zero in the subnormal range of f16, where a scale rounded down
 * would clip the largest elements or lose all of them. */
gr_half gr_fit_half_up(float x);

/* Returns gr_fit_half of a step; *inverse receives 1 / d of the unrounded step, 0 when it rounds to
 * 0. */
gr_half gr_fit_step(float d, float *inverse);

/* q[i] = (x[i] - min) / scale rounded to the nearest integer in lo..hi, minus lo; with scale 0 the
 * integer is 0. */
void gr_fit_levels(const float *x, int n, float scale, float min, int lo, int hi, uint8_t *q);

/* Returns the scale (of either sign) for x = scale * q, q in q_lo..q_hi, q_lo < 0. */
float gr_fit_scale(const float *x, const float *w, int n, int q_lo, int q_hi);

/* x = scale * q + min, q in 0..q_max, scale >= 0; with `min_below_0` min <= 0. */
struct gr_affine {
    float scale, min;
};
struct gr_affine gr_fit_affine(const float *x, const float *w, int n, int q_max, int min_below_0);

/* A super-block of 256 / group groups: x = d * scale * q - dmin * min, q in 0..q_max, scale and min
 * in 0..s_max. */
struct gr_mins_block {
    gr_half d, dmin;
    uint8_t scale[16], min[16];
    uint8_t q[GR_QK_K];
};
void gr_fit_mins(const float *x, const float *w, int group, int q_max, int s_max,
                 struct gr_mins_block *out);

/* A super-block of 16 groups of 16: x = d * scale * (q + q_lo), q from 0 and below -2 * q_lo, scale
 * in s_lo .. -s_lo - 1. */
struct gr_scales_block {
    gr_half d;
    int8_t scale[16];
    uint8_t q[GR_QK_K];
};
void gr_fit_scales(const float *x, const float *w, int q_lo, int s_lo, struct gr_scales_block *out);

#endif
