/* F32, F16, BF16: plain conversions, round to nearest even. */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/quant.h"

void gr_dequantize_F32(const void *src, float *dst, size_t n)
{
    memcpy(dst, src, n * sizeof(float));
}

void gr_dequantize_F16(const void *src, float *dst, size_t n)
{
    const gr_half *x = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = gr_f16_to_f32(x[i]);
}

void gr_dequantize_BF16(const void *src, float *dst, size_t n)
{
    const gr_bf16 *x = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = gr_bf16_to_f32(x[i]);
}

void gr_quantize_F32(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    memcpy(dst, src, n * sizeof(float));
}

void gr_quantize_F16(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    for (size_t i = 0; i < n; i++)
        ((gr_half *)dst)[i] = gr_f32_to_f16(src[i]);
}

void gr_quantize_BF16(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    for (size_t i = 0; i < n; i++)
        ((gr_bf16 *)dst)[i] = gr_f32_to_bf16(src[i]);
}
