/* Q4_0, Q4_1, Q5_0, Q5_1: 32 elements of 4 or 5 bits; one scale and the offset -8 or -16 (_0), or a
 * scale and a minimum (_1). Without importance the rule is the format's own: _0 maps the element of
 * largest magnitude to the lowest level, _1 maps smallest and largest to the ends. */
#include <math.h>

#include "base/checked.h"
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/fit.h"
#include "quant/quant.h"

/* Quantises x = d * (q - offset) by the format's rule; returns d. */
static gr_half rule_0(const float *src, int offset, uint8_t q[GR_QK])
{
    float x[GR_QK], max = 0, inv;
    gr_fit_load(src, NULL, GR_QK, x, NULL);
    for (int i = 0; i < GR_QK; i++)
        max = fabsf(x[i]) > fabsf(max) ? x[i] : max;
    gr_half d = gr_fit_step(max / (float)-offset, &inv);
    for (int i = 0; i < GR_QK; i++) {
        float v = x[i] * inv + ((float)offset + 0.5f);
        q[i] = (uint8_t)GR_MIN(GR_MAX(v, 0), (float)(2 * offset - 1));
    }
    return d;
}

static gr_half fit_0(const float *src, const float *importance, int offset, uint8_t q[GR_QK])
{
    float x[GR_QK], w[GR_QK];
    gr_fit_load(src, importance, GR_QK, x, w);
    gr_half d = gr_fit_half_up(gr_fit_scale(x, w, GR_QK, -offset, offset - 1));
    gr_fit_levels(x, GR_QK, gr_f16_to_f32(d), 0, -offset, offset - 1, q);
    return d;
}

/* Quantises x = d * q + m by the format's rule; returns d. */
static gr_half rule_1(const float *src, int q_max, gr_half *m, uint8_t q[GR_QK])
{
    float x[GR_QK], inv;
    gr_fit_load(src, NULL, GR_QK, x, NULL);
    float lo = x[0], hi = x[0];
    for (int i = 1; i < GR_QK; i++) {
        lo = GR_MIN(lo, x[i]);
        hi = GR_MAX(hi, x[i]);
    }
    lo = GR_MIN(GR_MAX(lo, -GR_FIT_HALF_MAX), GR_FIT_HALF_MAX);
    *m = gr_f32_to_f16(lo);
    gr_half d = gr_fit_step((hi - lo) / (float)q_max, &inv);
    for (int i = 0; i < GR_QK; i++) {
        float v = (x[i] - lo) * inv + 0.5f;
        q[i] = (uint8_t)GR_MIN(GR_MAX(v, 0), (float)q_max);
    }
    return d;
}

static gr_half fit_1(const float *src, const float *importance, int q_max, gr_half *m,
                     uint8_t q[GR_QK])
{
    float x[GR_QK], w[GR_QK];
    gr_fit_load(src, importance, GR_QK, x, w);
    struct gr_affine f = gr_fit_affine(x, w, GR_QK, q_max, 0);
    gr_half d = gr_fit_half_up(f.scale);
    *m = gr_fit_half(f.min);
    gr_fit_levels(x, GR_QK, gr_f16_to_f32(d), gr_f16_to_f32(*m), 0, q_max, q);
    return d;
}

void gr_dequantize_Q4_0(const void *src, float *dst, size_t n)
{
    const struct gr_q4_0 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK) {
        float d = gr_f16_to_f32(b->d);
        uint8_t q[GR_QK] = {0};
        gr_bits_get(q, 0, b->qs, 16, 16, 4);
        for (int i = 0; i < GR_QK; i++)
            dst[i] = d * (q[i] - 8);
    }
}

void gr_quantize_Q4_0(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q4_0 *b = dst;
    for (size_t at = 0; at < n; at += GR_QK, b++) {
        uint8_t q[GR_QK];
        gr_half d = importance ? fit_0(src + at, importance + at, 8, q) : rule_0(src + at, 8, q);
        *b = (struct gr_q4_0){.d = d};
        gr_bits_put(b->qs, 16, 16, 4, q, 0);
    }
}

void gr_dequantize_Q4_1(const void *src, float *dst, size_t n)
{
    const struct gr_q4_1 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK) {
        float d = gr_f16_to_f32(b->d), m = gr_f16_to_f32(b->m);
        uint8_t q[GR_QK] = {0};
        gr_bits_get(q, 0, b->qs, 16, 16, 4);
        for (int i = 0; i < GR_QK; i++)
            dst[i] = d * q[i] + m;
    }
}

void gr_quantize_Q4_1(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q4_1 *b = dst;
    for (size_t at = 0; at < n; at += GR_QK, b++) {
        uint8_t q[GR_QK];
        gr_half m;
        gr_half d =
            importance ? fit_1(src + at, importance + at, 15, &m, q) : rule_1(src + at, 15, &m, q);
        *b = (struct gr_q4_1){.d = d, .m = m};
        gr_bits_put(b->qs, 16, 16, 4, q, 0);
    }
}

void gr_dequantize_Q5_0(const void *src, float *dst, size_t n)
{
    const struct gr_q5_0 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK) {
        float d = gr_f16_to_f32(b->d);
        uint8_t q[GR_QK] = {0};
        gr_bits_get(q, 0, b->qs, 16, 16, 4);
        gr_bits_get(q, 4, b->qh, 4, 1, 1);
        for (int i = 0; i < GR_QK; i++)
            dst[i] = d * (q[i] - 16);
    }
}

void gr_quantize_Q5_0(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q5_0 *b = dst;
    for (size_t at = 0; at < n; at += GR_QK, b++) {
        uint8_t q[GR_QK];
        gr_half d = importance ? fit_0(src + at, importance + at, 16, q) : rule_0(src + at, 16, q);
        *b = (struct gr_q5_0){.d = d};
        gr_bits_put(b->qs, 16, 16, 4, q, 0);
        gr_bits_put(b->qh, 4, 1, 1, q, 4);
    }
}

void gr_dequantize_Q5_1(const void *src, float *dst, size_t n)
{
    const struct gr_q5_1 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK) {
        float d = gr_f16_to_f32(b->d), m = gr_f16_to_f32(b->m);
        uint8_t q[GR_QK] = {0};
        gr_bits_get(q, 0, b->qs, 16, 16, 4);
        gr_bits_get(q, 4, b->qh, 4, 1, 1);
        for (int i = 0; i < GR_QK; i++)
            dst[i] = d * q[i] + m;
    }
}

void gr_quantize_Q5_1(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q5_1 *b = dst;
    for (size_t at = 0; at < n; at += GR_QK, b++) {
        uint8_t q[GR_QK];
        gr_half m;
        gr_half d =
            importance ? fit_1(src + at, importance + at, 31, &m, q) : rule_1(src + at, 31, &m, q);
        *b = (struct gr_q5_1){.d = d, .m = m};
        gr_bits_put(b->qs, 16, 16, 4, q, 0);
        gr_bits_put(b->qh, 4, 1, 1, q, 4);
    }
}
