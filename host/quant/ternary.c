/* TQ1_0, TQ2_0, Q1_0, Q2_0: two to four values around 0, one scale per block. Without importance
 * the scale is the largest magnitude (for weights that are ternary already); for Q1_0 the mean
 * magnitude. */
#include <math.h>

#include "base/checked.h"
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/fit.h"
#include "quant/fit_book.h"
#include "quant/quant.h"

void gr_dequantize_Q1_0(const void *src, float *dst, size_t n)
{
    const struct gr_q1_0 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += 128) {
        float d = gr_f16_to_f32(b->d);
        uint8_t q[128] = {0};
        gr_bits_get(q, 0, b->qs, 16, 1, 1);
        for (int i = 0; i < 128; i++)
            dst[i] = q[i] ? d : -d;
    }
}

void gr_dequantize_Q2_0(const void *src, float *dst, size_t n)
{
    const struct gr_q2_0 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += 64) {
        float d = gr_f16_to_f32(b->d);
        uint8_t q[64] = {0};
        gr_bits_get(q, 0, b->qs, 16, 1, 2);
        for (int i = 0; i < 64; i++)
            dst[i] = d * (q[i] - 1);
    }
}

void gr_dequantize_TQ2_0(const void *src, float *dst, size_t n)
{
    const struct gr_tq2_0 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK_K) {
        float d = gr_f16_to_f32(b->d);
        uint8_t q[GR_QK_K] = {0};
        gr_bits_get(q, 0, b->qs, 64, 32, 2);
        for (int i = 0; i < GR_QK_K; i++)
            dst[i] = d * (q[i] - 1);
    }
}

/* Runs of bytes of TQ1_0 whose digits form planes. */
static const struct run {
    int n_bytes, n_digits;
} runs[] = {{32, 5}, {16, 5}, {4, 4}};

void gr_dequantize_TQ1_0(const void *src, float *dst, size_t n)
{
    const struct gr_tq1_0 *b = src;
    for (const float *end = dst + n; dst != end; b++) {
        const uint8_t *bytes = (const void *)b; /* qs, then qh */
        float d = gr_f16_to_f32(b->d);
        for (const struct run *r = runs; r < runs + 3; bytes += r->n_bytes, r++)
            for (unsigned k = 0, power = 1; k < (unsigned)r->n_digits; k++, power *= 3)
                for (int i = 0; i < r->n_bytes; i++)
                    *dst++ = d * (float)((int)((bytes[i] * power & 255) * 3 >> 8) - 1);
    }
}

static const struct gr_book ternary = {3, {-1, 0, 1}, {1, 8}},
                            quaternary = {4, {-1, 0, 1, 2}, {1, 6}};

/* Quantises n elements as d * value; q are indices into the book. Returns d. */
static gr_half quantize(const struct gr_book *book, const float *src, const float *importance,
                        int n, uint8_t *q)
{
    float x[GR_QK_K], w[GR_QK_K], d = 0, inv;
    int top = book->n - 2;
    gr_fit_load(src, importance, n, x, w);
    if (importance) {
        gr_half h = gr_fit_half_up(gr_fit_book(book, x, w, n));
        gr_book_levels(book, x, n, gr_f16_to_f32(h), q);
        return h;
    }
    for (int i = 0; i < n; i++)
        d = GR_MAX(d, fabsf(x[i]));
    gr_half h = gr_fit_step(d, &inv);
    for (int i = 0; i < n; i++)
        q[i] = (uint8_t)(GR_MIN(GR_MAX((int)roundf(x[i] * inv), -1), top) + 1);
    return h;
}

/* The same for two values, where only the scale has to be chosen. */
static gr_half quantize_signs(const float *src, const float *importance, int n, uint8_t *q)
{
    float x[GR_QK_K], w[GR_QK_K], sx = 0, sw = 0;
    gr_fit_load(src, importance, n, x, w);
    for (int i = 0; i < n; i++) {
        sx += w[i] * fabsf(x[i]);
        sw += w[i];
        q[i] = x[i] >= 0;
    }
    return gr_fit_half(sx / sw);
}

void gr_quantize_Q1_0(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q1_0 *b = dst;
    for (size_t at = 0; at < n; at += 128, b++) {
        uint8_t q[128];
        *b = (struct gr_q1_0){
            .d = quantize_signs(src + at, importance ? importance + at : NULL, 128, q)};
        gr_bits_put(b->qs, 16, 1, 1, q, 0);
    }
}

void gr_quantize_Q2_0(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q2_0 *b = dst;
    for (size_t at = 0; at < n; at += 64, b++) {
        uint8_t q[64];
        *b = (struct gr_q2_0){
            .d = quantize(&quaternary, src + at, importance ? importance + at : NULL, 64, q)};
        gr_bits_put(b->qs, 16, 1, 2, q, 0);
    }
}

void gr_quantize_TQ2_0(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_tq2_0 *b = dst;
    for (size_t at = 0; at < n; at += GR_QK_K, b++) {
        uint8_t q[GR_QK_K];
        *b = (struct gr_tq2_0){
            .d = quantize(&ternary, src + at, importance ? importance + at : NULL, GR_QK_K, q)};
        gr_bits_put(b->qs, 64, 32, 2, q, 0);
    }
}

void gr_quantize_TQ1_0(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_tq1_0 *b = dst;
    for (size_t at = 0; at < n; at += GR_QK_K, b++) {
        uint8_t digits[GR_QK_K], *q = digits, *bytes = (void *)b;
        b->d = quantize(&ternary, src + at, importance ? importance + at : NULL, GR_QK_K, q);
        for (const struct run *r = runs; r < runs + 3; bytes += r->n_bytes, r++) {
            for (int i = 0; i < r->n_bytes; i++) {
                int value = 0;
                for (int k = 0; k < 5; k++)
                    value = 3 * value + (k < r->n_digits ? q[k * r->n_bytes + i] : 0);
                bytes[i] = (uint8_t)((value * 256 + 242) / 243);
            }
            q += r->n_bytes * r->n_digits;
        }
    }
}
