/* IQ3_XXS and IQ3_S: every 4 elements are a point of a grid (magnitudes); signs for every 8, a
 * 4-bit scale for 32. */
#include <string.h>

#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/fit_grid.h"
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

#define GRID(code) code,
static const uint16_t codes_xxs[] = {
#include "gr/grid/iq3_xxs.inc"
};
static const uint16_t codes_s[] = {
#include "gr/grid/iq3_s.inc"
};
#undef GRID

static void store_iq3_xxs(void *dst, const struct gr_grid_block *f)
{
    struct gr_iq3_xxs *b = dst;
    b->d = f->d;
    for (int k = 0; k < 64; k++)
        b->qs[k] = (uint8_t)f->index[k];
    for (int g = 0; g < 8; g++) {
        uint32_t signs = (uint32_t)f->scale[g] << 28;
        for (int k = 0; k < 4; k++)
            signs |= (f->signs[4 * g + k] & 127u) << 7 * k;
        b->signs[2 * g] = (uint16_t)signs;
        b->signs[2 * g + 1] = (uint16_t)(signs >> 16);
    }
}

void gr_quantize_IQ3_XXS(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct gr_grid_kind kind = {.codes = codes_xxs,
                                             .n_codes = GR_GRID_N_IQ3_XXS,
                                             .dims = 4,
                                             .value = {{4, 12, 20, 28, 36, 44, 52, 62}},
                                             .signs = GR_SIGNS_EVEN,
                                             .group = 32,
                                             .n_scale = 16,
                                             .unit = 0.25f};
    gr_quantize_grid(&kind, store_iq3_xxs, sizeof(struct gr_iq3_xxs), src, dst, n, importance);
}

static void store_iq3_s(void *dst, const struct gr_grid_block *f)
{
    struct gr_iq3_s *b = dst;
    b->d = f->d;
    for (int k = 0; k < 64; k++) {
        b->qs[k] = (uint8_t)f->index[k];
        b->qh[k / 8] = (uint8_t)(b->qh[k / 8] | f->index[k] >> 8 << k % 8);
    }
    memcpy(b->signs, f->signs, sizeof b->signs);
    gr_bits_put(b->scales, 4, 1, 4, f->scale, 0);
}

void gr_quantize_IQ3_S(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct gr_grid_kind kind = {.codes = codes_s,
                                             .n_codes = GR_GRID_N_IQ3_S,
                                             .dims = 4,
                                             .value = {{1, 3, 5, 7, 9, 11, 13, 15}},
                                             .signs = GR_SIGNS_FREE,
                                             .group = 32,
                                             .n_scale = 16,
                                             .unit = 1};
    gr_quantize_grid(&kind, store_iq3_s, sizeof(struct gr_iq3_s), src, dst, n, importance);
}
