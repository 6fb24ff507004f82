/* Q8_0 and Q8_1: 32 elements, Q8_K: 256, one scale, x = d * q. */
#include <math.h>

#include "base/checked.h"
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/fit.h"
#include "quant/quant.h"

void gr_dequantize_Q8_0(const void *src, float *dst, size_t n)
{
    const struct gr_q8_0 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK) {
        float d = gr_f16_to_f32(b->d);
        for (int i = 0; i < GR_QK; i++)
            dst[i] = d * b->qs[i];
    }
}

void gr_dequantize_Q8_1(const void *src, float *dst, size_t n)
{
    const struct gr_q8_1 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK) {
        float d = gr_f16_to_f32(b->d);
        for (int i = 0; i < GR_QK; i++)
            dst[i] = d * b->qs[i];
    }
}

void gr_dequantize_Q8_K(const void *src, float *dst, size_t n)
{
    const struct gr_q8_K *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK_K)
        for (int i = 0; i < GR_QK_K; i++)
            dst[i] = b->d * b->qs[i];
}

/* Quantises by the format's rule: the largest magnitude becomes 127, ties are rounded away from
 * zero. Returns the unrounded step. */
static float rule(const float *src, int8_t q[GR_QK])
{
    float x[GR_QK], max = 0, inv;
    gr_fit_load(src, NULL, GR_QK, x, NULL);
    for (int i = 0; i < GR_QK; i++)
        max = GR_MAX(max, fabsf(x[i]));
    float d = GR_MIN(max / 127, GR_FIT_HALF_MAX);
    gr_fit_step(d, &inv);
    for (int i = 0; i < GR_QK; i++) {
        float v = GR_MIN(fabsf(x[i] * inv), 127), whole = (float)(int)v;
        int magnitude = (int)whole + (v - whole >= 0.5f);
        q[i] = (int8_t)(x[i] < 0 ? -magnitude : magnitude);
    }
    return d;
}

static float fit(const float *src, const float *importance, int8_t q[GR_QK])
{
    float x[GR_QK], w[GR_QK];
    uint8_t levels[GR_QK];
    gr_fit_load(src, importance, GR_QK, x, w);
    gr_half d = gr_fit_half_up(fabsf(gr_fit_scale(x, w, GR_QK, -127, 127)));
    gr_fit_levels(x, GR_QK, gr_f16_to_f32(d), 0, -127, 127, levels);
    for (int i = 0; i < GR_QK; i++)
        q[i] = (int8_t)(levels[i] - 127);
    return gr_f16_to_f32(d);
}

void gr_quantize_Q8_0(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q8_0 *b = dst;
    for (size_t at = 0; at < n; at += GR_QK, b++)
        b->d =
            gr_fit_half(importance ? fit(src + at, importance + at, b->qs) : rule(src + at, b->qs));
}

void gr_quantize_Q8_1(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q8_1 *b = dst;
    for (size_t at = 0; at < n; at += GR_QK, b++) {
        int sum = 0;
        float d = importance ? fit(src + at, importance + at, b->qs) : rule(src + at, b->qs);
        for (int i = 0; i < GR_QK; i++)
            sum += b->qs[i];
        b->d = gr_fit_half(d);
        b->s = gr_fit_half(d * (float)sum);
    }
}

/* Returns 1 / d of Q8_K: by the format's rule the element of largest magnitude becomes -127. */
static float inverse_of(const float *x, const float *w)
{
    float max = 0;
    if (w)
        max = -127 * gr_fit_scale(x, w, GR_QK_K, -127, 127);
    for (int i = 0; i < GR_QK_K && !w; i++)
        max = fabsf(x[i]) > fabsf(max) ? x[i] : max;
    return fabsf(max) > 0x1p-100f ? -127 / max : 0;
}

void gr_quantize_Q8_K(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q8_K *b = dst;
    for (size_t at = 0; at < n; at += GR_QK_K, b++) {
        float x[GR_QK_K], w[GR_QK_K];
        gr_fit_load(src + at, importance ? importance + at : NULL, GR_QK_K, x, w);
        float inv = inverse_of(x, importance ? w : NULL);
        *b = (struct gr_q8_K){.d = inv != 0 ? 1 / inv : 0};
        for (int i = 0; i < GR_QK_K; i++) {
            b->qs[i] = (int8_t)GR_MIN(GR_MAX(lrintf(x[i] * inv), -127), 127);
            b->sums[i / 16] = (int16_t)(b->sums[i / 16] + b->qs[i]);
        }
    }
}
