/* Q2_K: 16 groups of 16 elements of 2 bits, a scale and a minimum of 4 bits per group. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/fit.h"
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

void gr_quantize_Q2_K(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_q2_K *b = dst;
    for (size_t at = 0; at < n; at += GR_QK_K, b++) {
        float x[GR_QK_K], w[GR_QK_K];
        struct gr_mins_block f;
        gr_fit_load(src + at, importance ? importance + at : NULL, GR_QK_K, x, w);
        gr_fit_mins(x, w, 16, 3, 15, &f);
        *b = (struct gr_q2_K){.d = f.d, .dmin = f.dmin};
        for (int g = 0; g < 16; g++)
            b->scales[g] = (uint8_t)(f.scale[g] | f.min[g] << 4);
        gr_bits_put(b->qs, 64, 32, 2, f.q, 0);
    }
}
