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

/* The format's rule: the largest magnitude becomes 127, halves are rounded away from zero. */
static gr_half rule(const float *src, int8_t q[GR_QK])
{
    float x[GR_QK], max = 0, inv;
    gr_fit_load(src, NULL, GR_QK, x, NULL);
    for (int i = 0; i < GR_QK; i++)
        max = GR_MAX(max, fabsf(x[i]));
    gr_half d = gr_fit_step(max / 127, &inv);
    for (int i = 0; i < GR_QK; i++) {
        float v = GR_MIN(fabsf(x[i] * inv), 127), whole = (float)(int)v;
        int magnitude = (int)whole + (v - whole >= 0.5f);
        q[i] = (int8_t)(x[i] < 0 ? -magnitude : magnitude);
    }
    return d;
}

static gr_half fit(const float *src, const float *importance, int8_t q[GR_QK])
{
    float x[GR_QK], w[GR_QK];
    uint8_t levels[GR_QK];
    gr_fit_load(src, importance, GR_QK, x, w);
    gr_half d = gr_fit_half_up(fabsf(gr_fit_scale(x, w, GR_QK, -127, 127)));
    gr_fit_levels(x, GR_QK, gr_f16_to_f32(d), 0, -127, 127, levels);
    for (int i = 0; i < GR_QK; i++)
        q[i] = (int8_t)(levels[i] - 127);
    return d;
}

void gr_quantize_Q8_0(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q8_0 *b = dst;
    for (size_t at = 0; at < n; at += GR_QK, b++)
        b->d = importance ? fit(src + at, importance + at, b->qs) : rule(src + at, b->qs);
}
