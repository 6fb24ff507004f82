/* IQ2_XXS, IQ2_XS and IQ2_S: every 8 elements are a point of a grid (magnitudes) and signs; 4-bit
 * scales, one for 32 elements (IQ2_XXS) or 16. */
#include <string.h>

#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/fit_grid.h"
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

#define GRID(code) code,
static const uint16_t codes_xxs[] = {
#include "gr/grid/iq2_xxs.inc"
};
static const uint16_t codes_xs[] = {
#include "gr/grid/iq2_xs.inc"
};
static const uint16_t codes_s[] = {
#include "gr/grid/iq2_s.inc"
};
#undef GRID

#define IQ2(...)                                                                                   \
    {                                                                                              \
        .dims = 8, .value = {{8, 25, 43}}, .n_scale = 16, .unit = 0.125f, __VA_ARGS__              \
    }

static void store_iq2_xxs(void *dst, const struct gr_grid_block *f)
{
    struct gr_iq2_xxs *b = dst;
    b->d = f->d;
    for (int g = 0; g < 8; g++) {
        uint32_t signs = (uint32_t)f->scale[g] << 28;
        for (int k = 0; k < 4; k++) {
            b->group[g].index[k] = (uint8_t)f->index[4 * g + k];
            signs |= (f->signs[4 * g + k] & 127u) << 7 * k;
        }
        b->group[g].signs[0] = (uint16_t)signs;
        b->group[g].signs[1] = (uint16_t)(signs >> 16);
    }
}

void gr_quantize_IQ2_XXS(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct gr_grid_kind kind =
        IQ2(.codes = codes_xxs, .n_codes = GR_GRID_N_IQ2_XXS, .signs = GR_SIGNS_EVEN, .group = 32);
    gr_quantize_grid(&kind, store_iq2_xxs, sizeof(struct gr_iq2_xxs), src, dst, n, importance);
}

static void store_iq2_xs(void *dst, const struct gr_grid_block *f)
{
    struct gr_iq2_xs *b = dst;
    b->d = f->d;
    for (int k = 0; k < 32; k++)
        b->qs[k] = (uint16_t)(f->index[k] | (f->signs[k] & 127) << 9);
    gr_bits_put(b->scales, 8, 1, 4, f->scale, 0);
}

void gr_quantize_IQ2_XS(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct gr_grid_kind kind =
        IQ2(.codes = codes_xs, .n_codes = GR_GRID_N_IQ2_XS, .signs = GR_SIGNS_EVEN, .group = 16);
    gr_quantize_grid(&kind, store_iq2_xs, sizeof(struct gr_iq2_xs), src, dst, n, importance);
}

static void store_iq2_s(void *dst, const struct gr_grid_block *f)
{
    struct gr_iq2_s *b = dst;
    b->d = f->d;
    for (int k = 0; k < 32; k++) {
        b->qs[k] = (uint8_t)f->index[k];
        b->qh[k / 4] = (uint8_t)(b->qh[k / 4] | f->index[k] >> 8 << 2 * (k % 4));
    }
    memcpy(b->signs, f->signs, sizeof b->signs);
    gr_bits_put(b->scales, 8, 1, 4, f->scale, 0);
}

void gr_quantize_IQ2_S(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct gr_grid_kind kind =
        IQ2(.codes = codes_s, .n_codes = GR_GRID_N_IQ2_S, .signs = GR_SIGNS_FREE, .group = 16);
    gr_quantize_grid(&kind, store_iq2_s, sizeof(struct gr_iq2_s), src, dst, n, importance);
}
