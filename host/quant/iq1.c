/* IQ1_S and IQ1_M: a point of a grid of ternary values for every 8 elements, all of them moved up
 * or down by 1/8; scales of 3 bits, one for 32 elements (IQ1_S) or 16 (IQ1_M). */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/grids.h"
#include "quant/quant.h"

/* 8 elements: high are the 3 upper bits of the index and 8 for minus. */
static void expand(float *dst, float scale, unsigned low, unsigned high)
{
    uint64_t point = gr_grid_iq1[low | (high & 7) << 8];
    float shift = high & 8 ? -0.125f : 0.125f;
    for (int i = 0; i < 8; i++)
        dst[i] = scale * ((float)(int8_t)(point >> 8 * i & 255) + shift);
}

void gr_dequantize_IQ1_S(const void *src, float *dst, size_t n)
{
    const struct gr_iq1_s *b = src;
    for (const float *end = dst + n; dst != end; b++)
        for (int g = 0; g < 8; g++) {
            unsigned qh = b->qh[g];
            float scale = gr_f16_to_f32(b->d) * (float)(2 * (qh >> 12 & 7) + 1);
            for (int k = 0; k < 4; k++, dst += 8)
                expand(dst, scale, b->qs[4 * g + k], (qh >> 3 * k & 7) | (qh >> 15) << 3);
        }
}

void gr_dequantize_IQ1_M(const void *src, float *dst, size_t n)
{
    const struct gr_iq1_m *b = src;
    for (const float *end = dst + n; dst != end; b++) {
        unsigned d = 0;
        for (int i = 0; i < 4; i++)
            d |= (unsigned)b->scales[i] >> 12 << 4 * i;
        for (int g = 0; g < 16; g++) {
            unsigned s = b->scales[g / 4] >> 3 * (g % 4) & 7;
            float scale = gr_f16_to_f32((gr_half)d) * (float)(2 * s + 1);
            for (int k = 0; k < 2; k++, dst += 8)
                expand(dst, scale, b->qs[2 * g + k], b->qh[g] >> 4 * k & 15u);
        }
    }
}
