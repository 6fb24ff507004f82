/* IQ3_XXS and IQ3_S: for every 4 elements a point of a grid (their magnitudes), signs for every 8,
 * a scale of 4 bits for 32. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/grids.h"
#include "quant/quant.h"

void gr_dequantize_IQ3_XXS(const void *src, float *dst, size_t n)
{
    const struct gr_iq3_xxs *b = src;
    for (const float *end = dst + n; dst != end; b++)
        for (int g = 0; g < 8; g++) {
            uint32_t signs = b->signs[2 * g] | (uint32_t)b->signs[2 * g + 1] << 16;
            float scale = gr_f16_to_f32(b->d) * (0.5f + (float)(signs >> 28)) * 0.5f;
            for (int k = 0; k < 8; k++, dst += 4)
                gr_grid_expand(dst, 4, scale, gr_grid_iq3_xxs[b->qs[8 * g + k]],
                               gr_grid_signs(signs >> 7 * (k / 2) & 127) >> 4 * (k % 2));
        }
}

void gr_dequantize_IQ3_S(const void *src, float *dst, size_t n)
{
    const struct gr_iq3_s *b = src;
    for (const float *end = dst + n; dst != end; b++)
        for (int g = 0; g < 8; g++) {
            unsigned s = b->scales[g / 2] >> 4 * (g % 2) & 15u;
            float scale = gr_f16_to_f32(b->d) * (float)(1 + 2 * s);
            for (int k = 0; k < 8; k++, dst += 4)
                gr_grid_expand(dst, 4, scale,
                               gr_grid_iq3_s[b->qs[8 * g + k] | (b->qh[g] >> k & 1u) << 8],
                               b->signs[4 * g + k / 2] >> 4 * (k % 2));
        }
}
