/* MXFP4 and NVFP4: 4-bit floats with a scale, a power of two for 32 elements (MXFP4) or a 7-bit
 * float for 16 (NVFP4). Without importance the largest magnitude decides the scale: it is between 4
 * and 8 times the scale in MXFP4, and 6 times the scale in NVFP4. */
#include <math.h>

#include "base/checked.h"
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/fit.h"
#include "quant/fit_book.h"
#include "quant/quant.h"

static const int8_t values[16] = {GR_FP4_VALUES};

/* Returns half of 2^(e - 127), subnormal for e below 2. */
static float power_half(uint8_t e)
{
    return gr_bits_f32(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23);
}

/* Returns half the value of an unsigned float with 4 exponent and 3 mantissa bits. */
static float e4m3_half(uint8_t d)
{
    int exp = d >> 3 & 15, man = d & 7;
    if (d == 127)
        return 0;
    return exp ? (float)(8 + man) * power_half((uint8_t)(exp - 7 - 3 + 127))
               : (float)man * 0x1p-10f;
}

void gr_dequantize_MXFP4(const void *src, float *dst, size_t n)
{
    const struct gr_mxfp4 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK) {
        float d = power_half(b->e);
        uint8_t q[GR_QK] = {0};
        gr_bits_get(q, 0, b->qs, 16, 16, 4);
        for (int i = 0; i < GR_QK; i++)
            dst[i] = d * values[q[i]];
    }
}

void gr_dequantize_NVFP4(const void *src, float *dst, size_t n)
{
    const struct gr_nvfp4 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += 64) {
        uint8_t q[64] = {0};
        gr_bits_get(q, 0, b->qs, 32, 8, 4);
        for (int i = 0; i < 64; i++)
            dst[i] = e4m3_half(b->d[i / 16]) * values[q[i]];
    }
}

/* Magnitudes; the sign is a separate bit. */
static const struct gr_book book = {8, {0, 1, 2, 3, 4, 6, 8, 12}, {0, 0}};

/* Loads |x| (NaN: 0) and the weights; returns the largest |x|. */
static float load(const float *src, const float *importance, int n, float *x, float *w)
{
    float max = 0;
    gr_fit_load(src, importance, n, x, w);
    for (int i = 0; i < n; i++) {
        x[i] = fabsf(x[i]);
        max = GR_MAX(max, x[i]);
    }
    return max;
}

static void levels(const float *src, const float *x, int n, float scale, uint8_t *q)
{
    gr_book_levels(&book, x, n, scale, q);
    for (int i = 0; i < n; i++)
        q[i] = (uint8_t)(q[i] | (src[i] < 0 && q[i]) << 3);
}

/* Returns the scale code in lo..hi with the smallest error. */
static uint8_t choose(float (*scale)(uint8_t), int lo, int hi, const float *x, const float *w,
                      int n)
{
    float best = INFINITY;
    int code = lo;
    for (int c = lo; c <= hi; c++) {
        float error = gr_book_error(&book, x, w, n, scale((uint8_t)c));
        if (error < best) {
            best = error;
            code = c;
        }
    }
    return (uint8_t)code;
}

void gr_quantize_MXFP4(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_mxfp4 *b = dst;
    for (size_t at = 0; at < n; at += GR_QK, b++) {
        float x[GR_QK], w[GR_QK];
        uint8_t q[GR_QK];
        float max = load(src + at, importance ? importance + at : NULL, GR_QK, x, w);
        int e = max > 0 ? GR_MAX((int)(gr_f32_bits(max) >> 23) - 2, 0) : 0;
        *b = (struct gr_mxfp4){.e = (uint8_t)e};
        if (importance)
            b->e = choose(power_half, GR_MAX(e - 2, 0), e + 1, x, w, GR_QK);
        levels(src + at, x, GR_QK, power_half(b->e), q);
        gr_bits_put(b->qs, 16, 16, 4, q, 0);
    }
}

/* Rounds x >= 0 to the unsigned float with 4 exponent and 3 mantissa bits, ties up, at most 448
 * (code 126). */
static uint8_t to_e4m3(float x)
{
    uint32_t bits = gr_f32_bits(x), up = (bits >> 20) + (bits >> 19 & 1);
    if (x < 0x1p-6f)
        return (uint8_t)GR_MIN((int)(x * 512 + 0.5f), 7);
    return (uint8_t)GR_MIN((int)up - (127 - 7) * 8, 126);
}

void gr_quantize_NVFP4(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_nvfp4 *b = dst;
    for (size_t at = 0; at < n; at += 64, b++) {
        uint8_t q[64];
        *b = (struct gr_nvfp4){.d = {0}};
        for (size_t g = 0; g < 4; g++) {
            float x[16], w[16];
            size_t i = at + 16 * g;
            float max = load(src + i, importance ? importance + i : NULL, 16, x, w);
            int c = to_e4m3(max / 6);
            b->d[g] = (uint8_t)c;
            if (importance)
                b->d[g] = choose(e4m3_half, GR_MAX(c - 8, 0), GR_MIN(c + 8, 126), x, w, 16);
            levels(src + i, x, 16, e4m3_half(b->d[g]), q + 16 * g);
        }
        gr_bits_put(b->qs, 32, 8, 4, q, 0);
    }
}
