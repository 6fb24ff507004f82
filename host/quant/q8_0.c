/* Q8_0: 32 elements, one scale, x = d * q. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
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
