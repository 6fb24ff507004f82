/* Units of codebook types with 4-bit codes, and of types with two, three or four values. */
#ifndef GR_CPU_FAST_UNPACK_VALUES_H
#define GR_CPU_FAST_UNPACK_VALUES_H

#include "cpu/fast/unit.h"

/* Maps 4-bit codes to values + zero. */
GR_INLINE __m256i values_of(__m256i codes, const int8_t values[16], int zero)
{
    __m128i table = _mm_add_epi8(load16(values), _mm_set1_epi8((char)zero));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
}

GR_INLINE __m256i iq4_values(__m256i codes)
{
    const int8_t values[16] = {GR_IQ4_VALUES};
    return values_of(codes, values, unit_kind(GR_IQ4_NL).zero);
}

GR_INLINE __m256i piece_iq4_nl(const struct gr_iq4_nl *b, int k)
{
    return iq4_values(nibbles(b[k].qs));
}

GR_INLINE __m256i piece_iq4_xs(const struct gr_iq4_xs *b, int k)
{
    return iq4_values(nibbles(b->qs + 16 * k));
}

GR_INLINE void unpack_iq4_xs(const struct gr_iq4_xs *b, struct unit *u)
{
    uint64_t low = u32_at(b->scales_l), high = b->scales_h;
    low = (low | low << 16) & 0x0000ffff0000ffff, low = (low | low << 8) & 0x00ff00ff00ff00ff;
    low = (low | low << 4) & 0x0f0f0f0f0f0f0f0f;
    high = (high | high << 24) & 0x000000ff000000ff,
    high = (high | high << 12) & 0x000f000f000f000f;
    high = (high | high << 6) & 0x0303030303030303;
    __m256 scales = eight_u8(low | high << 4) - _mm256_set1_ps(32);
    factors_32(scales * _mm256_set1_ps(half_to_f32(b->d)), u->d);
    UNIT_FILL(u, iq4_xs, b);
}

GR_INLINE __m256i fp4_values(__m256i codes, uint32_t dtype)
{
    const int8_t values[16] = {GR_FP4_VALUES};
    return values_of(codes, values, unit_kind(dtype).zero);
}

GR_INLINE __m256i piece_mxfp4(const struct gr_mxfp4 *b, int k)
{
    return fp4_values(nibbles(b[k].qs), GR_MXFP4);
}

/* The factor is 2^(e - 128), as codes are twice the values; it is normal from e = 2 on. */
GR_INLINE void unpack_mxfp4(const struct gr_mxfp4 *b, struct unit *u)
{
    uint64_t e = 0;
    GR_UNROLL
    for (int k = 0; k < 8; k++)
        e |= (uint64_t)b[k].e << 8 * k;
    __m256i x = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)e)), one = _mm256_set1_epi32(1);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(x, one), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), x);
    x = _mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(x, one));
    factors_32(_mm256_castsi256_ps(x), u->d);
    UNIT_FILL(u, mxfp4, b);
}

GR_INLINE __m256i piece_nvfp4(const struct gr_nvfp4 *b, int k)
{
    const __m128i low = _mm_set1_epi8(15);
    __m128i x = load16(b[k / 2].qs + k % 2 * 16);
    __m128i lo = _mm_and_si128(x, low), hi = _mm_and_si128(_mm_srli_epi16(x, 4), low);
    return fp4_values(_mm256_set_m128i(_mm_unpackhi_epi64(lo, hi), _mm_unpacklo_epi64(lo, hi)),
                      GR_NVFP4);
}

/* A scale has the bits of an f16 with an exponent bias lower by 8; codes are twice the values.
 * 0x7f, no number, counts as 0. */
GR_INLINE void unpack_nvfp4(const struct gr_nvfp4 *b, struct unit *u)
{
    __m128i d = _mm_setr_epi32((int)u32_at(b[0].d), (int)u32_at(b[1].d), (int)u32_at(b[2].d),
                               (int)u32_at(b[3].d));
    d = _mm_andnot_si128(_mm_cmpeq_epi8(d, _mm_set1_epi8(0x7f)), d);
    d = _mm_and_si128(d, _mm_set1_epi8(0x7f));
    gr_half half[16];
    _mm256_storeu_si256((__m256i *)(void *)half, _mm256_slli_epi16(_mm256_cvtepu8_epi16(d), 7));
    GR_UNROLL
    for (int k = 0; k < UNIT_D; k++)
        u->d[k] = vf_half(half + k * VL) * vf_set(128);
    UNIT_FILL(u, nvfp4, b);
}

/* Sets one factor for all columns. */
GR_INLINE void one_factor(gr_half d, struct unit *u)
{
    factors_32(_mm256_set1_ps(half_to_f32(d)), u->d);
}

/* Extracts base-3 digits of bytes, which encode fractions: pow holds 3^digit in 16-bit words. */
GR_INLINE __m256i digits(__m256i x, __m256i pow)
{
    const __m256i low = _mm256_set1_epi16(255), three = _mm256_set1_epi16(3);
    __m256i even = _mm256_mullo_epi16(_mm256_and_si256(x, low), pow);
    __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(x, 8), pow);
    even = _mm256_srli_epi16(_mm256_mullo_epi16(_mm256_and_si256(even, low), three), 8);
    odd = _mm256_mullo_epi16(_mm256_and_si256(odd, low), three);
    return _mm256_or_si256(even, _mm256_andnot_si256(low, odd));
}

GR_INLINE __m256i piece_tq1_0(const struct gr_tq1_0 *b, int k)
{
    static const short pow[5] = {1, 3, 9, 27, 81};
    if (k < 5)
        return digits(load32(b->qs), _mm256_set1_epi16(pow[k]));
    __m128i x = load16(b->qs + 32), first = _mm_set1_epi16(pow[2 * k - 10]);
    if (k < 7)
        return digits(_mm256_broadcastsi128_si256(x),
                      _mm256_set_m128i(_mm_set1_epi16(pow[2 * k - 9]), first));
    return digits(_mm256_set_m128i(_mm_set1_epi32((int)u32_at(b->qh)), x),
                  _mm256_set_m128i(_mm_setr_epi16(1, 1, 3, 3, 9, 9, 27, 27), first));
}

GR_INLINE void unpack_tq1_0(const struct gr_tq1_0 *b, struct unit *u)
{
    one_factor(b->d, u);
    UNIT_FILL(u, tq1_0, b);
}

GR_INLINE __m256i piece_tq2_0(const struct gr_tq2_0 *b, int k)
{
    return field(load32(b->qs + k / 4 * 32), k % 4 * 2, 2);
}

GR_INLINE void unpack_tq2_0(const struct gr_tq2_0 *b, struct unit *u)
{
    one_factor(b->d, u);
    UNIT_FILL(u, tq2_0, b);
}

GR_INLINE __m256i piece_q1_0(const struct gr_q1_0 *b, int k)
{
    return and32(bytes_of_bits(u32_at(b[k / 4].qs + k % 4 * 4)), 2);
}

GR_INLINE void unpack_q1_0(const struct gr_q1_0 *b, struct unit *u)
{
    factors_32(_mm256_set_m128(_mm_set1_ps(half_to_f32(b[1].d)), _mm_set1_ps(half_to_f32(b[0].d))),
               u->d);
    UNIT_FILL(u, q1_0, b);
}

GR_INLINE __m256i piece_q2_0(const struct gr_q2_0 *b, int k)
{
    return quarters(b[k / 2].qs + k % 2 * 8);
}

GR_INLINE void unpack_q2_0(const struct gr_q2_0 *b, struct unit *u)
{
    __m128 d = _mm_cvtph_ps(
        _mm_setr_epi16((short)b[0].d, (short)b[1].d, (short)b[2].d, (short)b[3].d, 0, 0, 0, 0));
    factors_32(_mm256_set_m128(_mm_unpackhi_ps(d, d), _mm_unpacklo_ps(d, d)), u->d);
    UNIT_FILL(u, q2_0, b);
}

#endif
