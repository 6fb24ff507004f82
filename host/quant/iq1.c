/* IQ1_S and IQ1_M: every 8 elements are a point of a ternary grid, shifted up or down by 1/8; 3-bit
 * scales, one for 32 elements (IQ1_S) or 16 (IQ1_M). */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/fit_grid.h"
#include "quant/grids.h"
#include "quant/quant.h"

/* Expands 8 elements: `high` holds the 3 upper bits of the index, and bit 3 for a shift down. */
static void expand(float *dst, float scale, unsigned low, unsigned high)
{
    uint64_t point = gr_grid_iq1[low | (high & 7) << 8];
    float shift = high & 8 ? -0.125f : 0.125f;
    for (int i = 0; i < 8; i++)
        dst[i] = scale * ((float)(int8_t)(point >> 8 * i & 255) + shift);
}

void gr_dequantize_IQ1_S(const void *src, float *dst, size_t n)
{
    const struct gr_iq1_s *b = src;
    for (const float *end = dst + n; dst != end; b++)
        for (int g = 0; g < 8; g++) {
            unsigned qh = b->qh[g];
            float scale = gr_f16_to_f32(b->d) * (float)(2 * (qh >> 12 & 7) + 1);
            for (int k = 0; k < 4; k++, dst += 8)
                expand(dst, scale, b->qs[4 * g + k], (qh >> 3 * k & 7) | (qh >> 15) << 3);
        }
}

void gr_dequantize_IQ1_M(const void *src, float *dst, size_t n)
{
    const struct gr_iq1_m *b = src;
    for (const float *end = dst + n; dst != end; b++) {
        unsigned d = 0;
        for (int i = 0; i < 4; i++)
            d |= (unsigned)b->scales[i] >> 12 << 4 * i;
        for (int g = 0; g < 16; g++) {
            unsigned s = b->scales[g / 4] >> 3 * (g % 4) & 7;
            float scale = gr_f16_to_f32((gr_half)d) * (float)(2 * s + 1);
            for (int k = 0; k < 2; k++, dst += 8)
                expand(dst, scale, b->qs[2 * g + k], b->qh[g] >> 4 * k & 15u);
        }
    }
}

#define GRID(code) code,
static const uint16_t codes[] = {
#include "gr/grid/iq1.inc"
};
#undef GRID

#define IQ1(...)                                                                                   \
    {                                                                                              \
        .codes = codes, .n_codes = GR_GRID_N_IQ1, .dims = 8,                                       \
        .value = {{-0.875f, 0.125f, 1.125f}, {-1.125f, -0.125f, 0.875f}}, .n_scale = 8, .unit = 1, \
        __VA_ARGS__                                                                                \
    }

static void store_iq1_s(void *dst, const struct gr_grid_block *f)
{
    struct gr_iq1_s *b = dst;
    b->d = f->d;
    for (int k = 0; k < 32; k++) {
        b->qs[k] = (uint8_t)f->index[k];
        b->qh[k / 4] = (uint16_t)(b->qh[k / 4] | f->index[k] >> 8 << 3 * (k % 4));
    }
    for (int g = 0; g < 8; g++)
        b->qh[g] = (uint16_t)(b->qh[g] | f->scale[g] << 12 | f->shift[4 * g] << 15);
}

void gr_quantize_IQ1_S(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct gr_grid_kind kind = IQ1(.span = 4, .group = 32);
    gr_quantize_grid(&kind, store_iq1_s, sizeof(struct gr_iq1_s), src, dst, n, importance);
}

static void store_iq1_m(void *dst, const struct gr_grid_block *f)
{
    struct gr_iq1_m *b = dst;
    for (int k = 0; k < 32; k++) {
        b->qs[k] = (uint8_t)f->index[k];
        b->qh[k / 2] =
            (uint8_t)(b->qh[k / 2] | (f->index[k] >> 8 | f->shift[k] << 3) << 4 * (k % 2));
    }
    for (int g = 0; g < 16; g++)
        b->scales[g / 4] = (uint16_t)(b->scales[g / 4] | f->scale[g] << 3 * (g % 4));
    for (int i = 0; i < 4; i++)
        b->scales[i] = (uint16_t)(b->scales[i] | (f->d >> 4 * i & 15) << 12);
}

void gr_quantize_IQ1_M(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct gr_grid_kind kind = IQ1(.span = 1, .group = 16);
    gr_quantize_grid(&kind, store_iq1_m, sizeof(struct gr_iq1_m), src, dst, n, importance);
}
