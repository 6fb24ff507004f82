/* Q2_K: 16 groups of 16 elements of 2 bits, a scale and a minimum of 4 bits a group. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/quant.h"

void gr_dequantize_Q2_K(const void *src, float *dst, size_t n)
{
    const struct gr_q2_K *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK_K) {
        float d = gr_f16_to_f32(b->d), dmin = gr_f16_to_f32(b->dmin);
        uint8_t q[GR_QK_K] = {0};
        gr_bits_get(q, 0, b->qs, 64, 32, 2);
        for (int g = 0; g < 16; g++) {
            float scale = d * (b->scales[g] & 15), min = dmin * (b->scales[g] >> 4);
            for (int i = 16 * g; i < 16 * g + 16; i++)
                dst[i] = scale * q[i] - min;
        }
    }
}
