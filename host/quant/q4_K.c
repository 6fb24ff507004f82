/* Q4_K and Q5_K: 8 groups of 32 elements of 4 or 5 bits, a scale and a minimum of 6 bits per
 * group. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/fit.h"
#include "quant/quant.h"

/* Scales and minima 0..3 are the low six bits of bytes 0..3 and 4..7; those of 4..7 have four bits
 * in bytes 8..11 (scale low, minimum high) and two in the top of bytes 0..3 and 4..7. */
static void scales_get(const uint8_t packed[12], uint8_t scale[8], uint8_t min[8])
{
    for (int i = 0; i < 4; i++) {
        scale[i] = packed[i] & 63;
        min[i] = packed[4 + i] & 63;
        scale[4 + i] = (uint8_t)((packed[8 + i] & 15) | packed[i] >> 6 << 4);
        min[4 + i] = (uint8_t)(packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4);
    }
}

static void expand(gr_half d, gr_half dmin, const uint8_t packed[12], const uint8_t *q, float *dst)
{
    uint8_t scales[8], mins[8];
    scales_get(packed, scales, mins);
    for (int g = 0; g < 8; g++) {
        float scale = gr_f16_to_f32(d) * scales[g], min = gr_f16_to_f32(dmin) * mins[g];
        for (int i = 32 * g; i < 32 * g + 32; i++)
            dst[i] = scale * q[i] - min;
    }
}

void gr_dequantize_Q4_K(const void *src, float *dst, size_t n)
{
    const struct gr_q4_K *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK_K) {
        uint8_t q[GR_QK_K] = {0};
        gr_bits_get(q, 0, b->qs, 128, 32, 4);
        expand(b->d, b->dmin, b->scales, q, dst);
    }
}

void gr_dequantize_Q5_K(const void *src, float *dst, size_t n)
{
    const struct gr_q5_K *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK_K) {
        uint8_t q[GR_QK_K] = {0};
        gr_bits_get(q, 0, b->qs, 128, 32, 4);
        gr_bits_get(q, 4, b->qh, 32, 32, 1);
        expand(b->d, b->dmin, b->scales, q, dst);
    }
}

static void scales_put(uint8_t packed[12], const uint8_t scale[8], const uint8_t min[8])
{
    for (int i = 0; i < 4; i++) {
        packed[i] = (uint8_t)(scale[i] | scale[4 + i] >> 4 << 6);
        packed[4 + i] = (uint8_t)(min[i] | min[4 + i] >> 4 << 6);
        packed[8 + i] = (uint8_t)((scale[4 + i] & 15) | min[4 + i] << 4);
    }
}

static void fit(const float *src, const float *importance, int q_max, struct gr_mins_block *f)
{
    float x[GR_QK_K], w[GR_QK_K];
    gr_fit_load(src, importance, GR_QK_K, x, w);
    gr_fit_mins(x, w, 32, q_max, 63, f);
}

void gr_quantize_Q4_K(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q4_K *b = dst;
    for (size_t at = 0; at < n; at += GR_QK_K, b++) {
        struct gr_mins_block f;
        fit(src + at, importance ? importance + at : NULL, 15, &f);
        *b = (struct gr_q4_K){.d = f.d, .dmin = f.dmin};
        scales_put(b->scales, f.scale, f.min);
        gr_bits_put(b->qs, 128, 32, 4, f.q, 0);
    }
}

void gr_quantize_Q5_K(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q5_K *b = dst;
    for (size_t at = 0; at < n; at += GR_QK_K, b++) {
        struct gr_mins_block f;
        fit(src + at, importance ? importance + at : NULL, 31, &f);
        *b = (struct gr_q5_K){.d = f.d, .dmin = f.dmin};
        scales_put(b->scales, f.scale, f.min);
        gr_bits_put(b->qs, 128, 32, 4, f.q, 0);
        gr_bits_put(b->qh, 32, 32, 1, f.q, 4);
    }
}
