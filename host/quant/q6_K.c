/* Q6_K: 16 groups of 16 elements of 6 bits (offset -32), a signed scale of 8 bits per group. */
#include <string.h>

#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/fit.h"
#include "quant/quant.h"

void gr_dequantize_Q6_K(const void *src, float *dst, size_t n)
{
    const struct gr_q6_K *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK_K) {
        float d = gr_f16_to_f32(b->d);
        uint8_t q[GR_QK_K] = {0};
        gr_bits_get(q, 0, b->ql, 128, 64, 4);
        gr_bits_get(q, 4, b->qh, 64, 32, 2);
        for (int g = 0; g < 16; g++) {
            float scale = d * b->scales[g];
            for (int i = 16 * g; i < 16 * g + 16; i++)
                dst[i] = scale * (q[i] - 32);
        }
    }
}

void gr_quantize_Q6_K(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q6_K *b = dst;
    for (size_t at = 0; at < n; at += GR_QK_K, b++) {
        float x[GR_QK_K], w[GR_QK_K];
        struct gr_scales_block f;
        gr_fit_load(src + at, importance ? importance + at : NULL, GR_QK_K, x, w);
        gr_fit_scales(x, w, -32, -128, &f);
        *b = (struct gr_q6_K){.d = f.d};
        memcpy(b->scales, f.scale, sizeof b->scales);
        gr_bits_put(b->ql, 128, 64, 4, f.q, 0);
        gr_bits_put(b->qh, 64, 32, 2, f.q, 4);
    }
}
