// Arithmetic of 16-bit floats with one rounding.
#include <math.h>
#include <string.h>

#include "base/f16.h"
#include "device/kernels/ptx.cuh"

namespace emu
{
float f16_to_f32(uint16_t h)
{
    return gr_f16_to_f32(h);
}
uint16_t f32_to_f16(float f)
{
    return gr_f32_to_f16(f);
}

// The sum of two doubles, rounded to f32 by rounding to odd: whatever is narrower than f32 by two
// bits or more then rounds as the exact sum does (Boldo and Melquiond, "Emulation of FMA and
// correctly rounded sums", 2008).
static float add_to_odd(double p, double c)
{
    double s = p + c, back = s - p, error = (p - (s - back)) + (c - back);
    uint64_t bits;
    memcpy(&bits, &s, 8);
    if (error != 0 && !(bits & 1))
        bits += (error > 0) == (s > 0) ? 1 : -1;
    memcpy(&s, &bits, 8);
    float f = (float)s;
    if (f == s || !isfinite(f))
        return f;
    uint32_t u = gr_f32_bits(f);
    if (fabs((double)f) > fabs(s))
        u--;
    return gr_bits_f32(u | 1);
}

// Only where f32 lies in the middle between two f16 (or f16 is subnormal) can the second rounding
// go wrong.
uint16_t fma_f16(uint16_t a, uint16_t b, uint16_t c)
{
    float x = ::f16_to_f32(a), y = ::f16_to_f32(b), z = ::f16_to_f32(c), r = fmaf(x, y, z);
    if ((gr_f32_bits(r) & 0x1fff) == 0x1000 || fabsf(r) < 0x1p-13f)
        r = add_to_odd((double)x * y, z);
    return ::f32_to_f16(r);
}
uint16_t fma_bf16(uint16_t a, uint16_t b, uint16_t c)
{
    float x = bf16_to_f32(a), y = bf16_to_f32(b), z = bf16_to_f32(c), r = fmaf(x, y, z);
    if ((gr_f32_bits(r) & 0xffff) == 0x8000 || fabsf(r) < 0x1p-125f)
        r = add_to_odd((double)x * y, z);
    return ::f32_to_bf16(r);
}
} // namespace emu
