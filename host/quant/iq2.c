/* IQ2_XXS, IQ2_XS and IQ2_S: for every 8 elements a point of a grid (their magnitudes) and signs;
 * scales of 4 bits, one for 32 elements (IQ2_XXS) or 16. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/grids.h"
#include "quant/quant.h"

static float scale_of(gr_half d, unsigned s)
{
    return gr_f16_to_f32(d) * (0.5f + (float)s) * 0.25f;
}

void gr_dequantize_IQ2_XXS(const void *src, float *dst, size_t n)
{
    const struct gr_iq2_xxs *b = src;
    for (const float *end = dst + n; dst != end; b++)
        for (int g = 0; g < 8; g++) {
            uint32_t signs = b->group[g].signs[0] | (uint32_t)b->group[g].signs[1] << 16;
            float scale = scale_of(b->d, signs >> 28);
            for (int k = 0; k < 4; k++, dst += 8)
                gr_grid_expand(dst, 8, scale, gr_grid_iq2_xxs[b->group[g].index[k]],
                               gr_grid_signs(signs >> 7 * k & 127));
        }
}

void gr_dequantize_IQ2_XS(const void *src, float *dst, size_t n)
{
    const struct gr_iq2_xs *b = src;
    for (const float *end = dst + n; dst != end; b++)
        for (int k = 0; k < 32; k++, dst += 8) {
            float scale = scale_of(b->d, b->scales[k / 4] >> 4 * (k / 2 % 2) & 15u);
            gr_grid_expand(dst, 8, scale, gr_grid_iq2_xs[b->qs[k] & 511],
                           gr_grid_signs(b->qs[k] >> 9));
        }
}

void gr_dequantize_IQ2_S(const void *src, float *dst, size_t n)
{
    const struct gr_iq2_s *b = src;
    for (const float *end = dst + n; dst != end; b++)
        for (int k = 0; k < 32; k++, dst += 8) {
            float scale = scale_of(b->d, b->scales[k / 4] >> 4 * (k / 2 % 2) & 15u);
            unsigned high = b->qh[k / 4] >> 2 * (k % 4) & 3u;
            gr_grid_expand(dst, 8, scale, gr_grid_iq2_s[b->qs[k] | high << 8], b->signs[k]);
        }
}
