#include "base/f16.h"

#include <criterion/criterion.h>
#include <math.h>

#include "base/rng.h"

/* Every binary16 value survives the round trip; NaN stays NaN. */
Test(f16, round_trip)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float x = gr_f16_to_f32((uint16_t)h);
        if (isnan(x))
            cr_assert(isnan(gr_f16_to_f32(gr_f32_to_f16(x))), "%#x", h);
        else
            cr_assert_eq(gr_f32_to_f16(x), h, "%#x", h);
    }
}

#ifndef __clang__ /* clang 14 has no _Float16 on x86-64 */
/* Against the compiler's own conversion, over random bit patterns. */
Test(f16, matches_compiler)
{
    struct gr_rng r = gr_rng_new(1);
    for (int i = 0; i < 3000000; i++) {
        float x = gr_bits_f32(gr_rng_u32(&r));
        if (isnan(x))
            continue;
        _Float16 y = (_Float16)x;
        uint16_t bits;
        memcpy(&bits, &y, 2);
        cr_assert_eq(gr_f32_to_f16(x), bits, "%a", (double)x);
    }
}
#endif

Test(bf16, ties_to_even)
{
    cr_assert_eq(gr_f32_to_bf16(gr_bits_f32(0x3f808000)), 0x3f80);
    cr_assert_eq(gr_f32_to_bf16(gr_bits_f32(0x3f818000)), 0x3f82);
    cr_assert_eq(gr_f32_to_bf16(gr_bits_f32(0x3f808001)), 0x3f81);
    cr_assert_eq(gr_f32_to_bf16(INFINITY), 0x7f80);
    cr_assert(isnan(gr_bf16_to_f32(gr_f32_to_bf16(NAN))));
}
