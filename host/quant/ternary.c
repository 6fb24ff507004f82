/* TQ1_0, TQ2_0, Q1_0, Q2_0: two to four values around 0, one scale a block. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
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

/* The runs of bytes of TQ1_0 that have their digits in common planes. */
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
