/* IQ4_NL and IQ4_XS: 4 bits for each element choose one of 16 values, denser around 0. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/quant.h"

static const int8_t values[16] = {GR_IQ4_VALUES};

void gr_dequantize_IQ4_NL(const void *src, float *dst, size_t n)
{
    const struct gr_iq4_nl *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK) {
        float d = gr_f16_to_f32(b->d);
        uint8_t q[GR_QK] = {0};
        gr_bits_get(q, 0, b->qs, 16, 16, 4);
        for (int i = 0; i < GR_QK; i++)
            dst[i] = d * values[q[i]];
    }
}

void gr_dequantize_IQ4_XS(const void *src, float *dst, size_t n)
{
    const struct gr_iq4_xs *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK_K) {
        uint8_t q[GR_QK_K] = {0}, low[8] = {0};
        gr_bits_get(q, 0, b->qs, 128, 16, 4);
        gr_bits_get(low, 0, b->scales_l, 4, 1, 4);
        for (int g = 0; g < 8; g++) {
            int s = (low[g] | (b->scales_h >> 2 * g & 3) << 4) - 32;
            float scale = gr_f16_to_f32(b->d) * (float)s;
            for (int i = 32 * g; i < 32 * g + 32; i++)
                dst[i] = scale * values[q[i]];
        }
    }
}
