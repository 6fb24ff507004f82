/* IQ4_NL and IQ4_XS: 4 bits for each element choose one of 16 values, denser around 0. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/fit.h"
#include "quant/fit_book.h"
#include "quant/quant.h"

static const int8_t values[16] = {GR_IQ4_VALUES};

void gr_dequantize_IQ4_NL(const void *src, float *dst, size_t n)
{
    const struct gr_iq4_nl *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK) {
        float d = gr_f16_to_f32(b->d);
        uint8_t q[GR_QK] = {0};
        gr_bits_get(q, 0, b->qs, 16, 16, 4);
        for (int i = 0; i < GR_QK; i++)
            dst[i] = d * values[q[i]];
    }
}

void gr_dequantize_IQ4_XS(const void *src, float *dst, size_t n)
{
    const struct gr_iq4_xs *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK_K) {
        uint8_t q[GR_QK_K] = {0}, low[8] = {0};
        gr_bits_get(q, 0, b->qs, 128, 16, 4);
        gr_bits_get(low, 0, b->scales_l, 4, 1, 4);
        for (int g = 0; g < 8; g++) {
            int s = (low[g] | (b->scales_h >> 2 * g & 3) << 4) - 32;
            float scale = gr_f16_to_f32(b->d) * (float)s;
            for (int i = 32 * g; i < 32 * g + 32; i++)
                dst[i] = scale * values[q[i]];
        }
    }
}

static const struct gr_book book = {16, {GR_IQ4_VALUES}, {0.75f, 1.15f}};

void gr_quantize_IQ4_NL(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_iq4_nl *b = dst;
    for (size_t at = 0; at < n; at += GR_QK, b++) {
        float x[GR_QK], w[GR_QK];
        uint8_t q[GR_QK];
        gr_fit_load(src + at, importance ? importance + at : NULL, GR_QK, x, w);
        *b = (struct gr_iq4_nl){.d = gr_fit_half_up(gr_fit_book(&book, x, w, GR_QK))};
        gr_book_levels(&book, x, GR_QK, gr_f16_to_f32(b->d), q);
        gr_bits_put(b->qs, 16, 16, 4, q, 0);
    }
}

void gr_quantize_IQ4_XS(const float *src, void *dst, size_t n, const float *importance)
{
    struct gr_iq4_xs *b = dst;
    for (size_t at = 0; at < n; at += GR_QK_K, b++) {
        float x[GR_QK_K], w[GR_QK_K];
        struct gr_book_block f;
        gr_fit_load(src + at, importance ? importance + at : NULL, GR_QK_K, x, w);
        gr_fit_books(&book, x, w, &f);
        *b = (struct gr_iq4_xs){.d = f.d};
        gr_bits_put(b->qs, 128, 16, 4, f.q, 0);
        for (int g = 0; g < 8; g++) {
            int s = f.scale[g] + 32;
            b->scales_l[g / 2] = (uint8_t)(b->scales_l[g / 2] | (s & 15) << 4 * (g % 2));
            b->scales_h = (uint16_t)(b->scales_h | s >> 4 << 2 * g);
        }
    }
}
