/* Least-squares fits behind the quantisers: levels, scales and minima that make the weighted
 * squared error sum w (x - x')^2 small. All sums run in a fixed order in f32, so results are the
 * same on every machine. A group has n elements, n 16 or 32. */
#ifndef GR_QUANT_FIT_H
#define GR_QUANT_FIT_H

#include <stdint.h>

#include "gr/quant_blocks.h"

/* Input made safe: in x NaN becomes 0 and values are cut at +-2^40, far beyond what any block type
 * can hold. Weights are the importance scaled to a maximum of 1, where an element that is negative
 * or not finite counts as 0; all are 1 when `importance` is NULL or has no positive element. w may
 * be NULL. */
void gr_fit_load(const float *src, const float *importance, int n, float *x, float *w);

#define GR_FIT_HALF_MAX 65504.f

/* x to the nearest f16 inside the finite range. */
gr_half gr_fit_half(float x);

/* The same, but away from zero where f16 is subnormal: rounded down, a scale there would cut the
 * largest elements or lose all of them. */
gr_half gr_fit_half_up(float x);

/* gr_fit_half of a step, and the inverse of the step before rounding, 0 when it rounds to 0. */
gr_half gr_fit_step(float d, float *inverse);

/* (x - min) / scale to the nearest of the integers lo..hi, stored minus lo; with scale 0 all are
 * the integer 0. */
void gr_fit_levels(const float *x, int n, float scale, float min, int lo, int hi, uint8_t *q);

/* The scale (of either sign) of x = scale * q, q in q_lo..q_hi, q_lo < 0. */
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
