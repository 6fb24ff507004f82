/* MXFP4 and NVFP4: elements are floats of 4 bits; their scale is a power of two for 32 elements
 * (MXFP4) or a float of 7 bits for 16 (NVFP4). */
#include "base/f16.h"
#include "gr/quant_blocks.h"
#include "quant/bits.h"
#include "quant/quant.h"

static const int8_t values[16] = {GR_FP4_VALUES};

/* Half of 2^(e - 127), subnormal for e below 2. */
static float power_half(uint8_t e)
{
    return gr_bits_f32(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23);
}

/* Half of the unsigned float of 4 and 3 bits. */
static float e4m3_half(uint8_t d)
{
    int exp = d >> 3 & 15, man = d & 7;
    if (d == 127)
        return 0;
    return exp ? (float)(8 + man) * power_half((uint8_t)(exp - 7 - 3 + 127))
               : (float)man * 0x1p-10f;
}

void gr_dequantize_MXFP4(const void *src, float *dst, size_t n)
{
    const struct gr_mxfp4 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += GR_QK) {
        float d = power_half(b->e);
        uint8_t q[GR_QK] = {0};
        gr_bits_get(q, 0, b->qs, 16, 16, 4);
        for (int i = 0; i < GR_QK; i++)
            dst[i] = d * values[q[i]];
    }
}

void gr_dequantize_NVFP4(const void *src, float *dst, size_t n)
{
    const struct gr_nvfp4 *b = src;
    for (const float *end = dst + n; dst != end; b++, dst += 64) {
        uint8_t q[64] = {0};
        gr_bits_get(q, 0, b->qs, 32, 8, 4);
        for (int i = 0; i < 64; i++)
            dst[i] = e4m3_half(b->d[i / 16]) * values[q[i]];
    }
}
