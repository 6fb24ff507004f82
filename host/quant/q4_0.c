/* Q4_0 and Q4_1: 32 elements of 4 bits; one scale and the offset -8, or a scale and a minimum. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/quant.h"

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
