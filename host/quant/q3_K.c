/* Q3_K: 16 groups of 16 elements of 3 bits (offset -4), a scale of 6 bits (offset -32) per
 * group. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/fit.h"
#include "quant/quant.h"

void gr_dequantize_Q3_K(const void *src, float *dst, size_t n)
{
    const struct gr_q3_K *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK_K) {
        float d = gr_f16_to_f32(b->d);
        uint8_t q[GR_QK_K] = {0}, scales[16] = {0};
        gr_bits_get(q, 0, b->qs, 64, 32, 2);
        gr_bits_get(q, 2, b->hmask, 32, 32, 1);
        gr_bits_get(scales, 0, b->scales, 8, 8, 4);
        gr_bits_get(scales, 4, b->scales + 8, 4, 4, 2);
        for (int g = 0; g < 16; g++) {
            float scale = d * (scales[g] - 32);
            for (int i = 16 * g; i < 16 * g + 16; i++)
                dst[i] = scale * (q[i] - 4);
        }
    }
}

void gr_quantize_Q3_K(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q3_K *b = dst;
    for (size_t at = 0; at < n; at += GR_QK_K, b++) {
        float x[GR_QK_K], w[GR_QK_K];
        struct gr_scales_block f;
        uint8_t scales[16];
        gr_fit_load(src + at, importance ? importance + at : NULL, GR_QK_K, x, w);
        gr_fit_scales(x, w, -4, -32, &f);
        *b = (struct gr_q3_K){.d = f.d};
        for (int g = 0; g < 16; g++)
            scales[g] = (uint8_t)(f.scale[g] + 32);
        gr_bits_put(b->scales, 8, 8, 4, scales, 0);
        gr_bits_put(b->scales + 8, 4, 4, 2, scales, 4);
        gr_bits_put(b->qs, 64, 32, 2, f.q, 0);
        gr_bits_put(b->hmask, 32, 32, 1, f.q, 2);
    }
}
