/* Units of the types whose elements are points of a grid, 8 or 4 at a time (gr/quant_grids.h). */
#ifndef GR_CPU_FAST_UNPACK_GRIDS_H
#define GR_CPU_FAST_UNPACK_GRIDS_H

#include "cpu/fast/unit.h"
#include "quant/grids.h"

/* The points of a unit, 32 of 8 elements or 64 of 4, and a byte of signs for each 8 elements (IQ1:
 * of the shift). */
struct points {
    uint16_t index[64];
    uint32_t sign[8];
};

/* Stores the indices of 32 points: `low` holds their lower 8 bits, `high` the bits above. */
GR_INLINE void put_index(uint16_t index[32], __m256i low, __m256i high)
{
    __m256i lo =
        _mm256_or_si256(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(low)),
                        _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(high)), 8));
    __m256i hi = _mm256_or_si256(
        _mm256_cvtepu8_epi16(_mm256_extracti128_si256(low, 1)),
        _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(high, 1)), 8));
    _mm256_storeu_si256((__m256i *)(void *)index, lo);
    _mm256_storeu_si256((__m256i *)(void *)(index + 16), hi);
}

/* Sets bit 7 of each byte so that the number of its set bits is even. */
GR_INLINE __m256i even_signs(__m256i x)
{
    __m256i odd = _mm256_xor_si256(x, _mm256_srli_epi16(x, 4));
    odd = _mm256_xor_si256(odd, _mm256_srli_epi16(odd, 2));
    odd = and32(_mm256_xor_si256(odd, _mm256_srli_epi16(odd, 1)), 1);
    return _mm256_or_si256(x, _mm256_slli_epi16(odd, 7));
}

/* Splits eight words, each of four times 7 signs and a scale of 4 bits: stores the signs in `sign`,
 * returns d (2 scale + 1). */
GR_INLINE __m256 signs_and_scales(__m256i words, float d, uint32_t sign[8])
{
    __m256i s = _mm256_and_si256(words, _mm256_set1_epi32(0x7f));
    GR_UNROLL
    for (int i = 1; i < 4; i++)
        s = _mm256_or_si256(
            s, _mm256_and_si256(_mm256_slli_epi32(words, i), _mm256_set1_epi32(0x7f << 8 * i)));
    _mm256_storeu_si256((__m256i *)(void *)sign, even_signs(s));
    __m256i scale = _mm256_slli_epi32(_mm256_srli_epi32(words, 28), 1);
    return _mm256_cvtepi32_ps(_mm256_or_si256(scale, _mm256_set1_epi32(1))) * _mm256_set1_ps(d);
}

/* Returns zero + q, or zero - q where the sign bit is set. */
GR_INLINE __m256i add_signs(__m256i q, uint32_t sign, int zero)
{
    __m256i z = _mm256_set1_epi8((char)zero);
#ifdef GR_LEVEL_avx512
    return _mm256_mask_sub_epi8(_mm256_add_epi8(z, q), sign, z, q);
#else
    __m256i m = bytes_of_bits(sign);
    return _mm256_add_epi8(z, _mm256_sub_epi8(_mm256_xor_si256(q, m), m));
#endif
}

GR_INLINE __m256i four_points(const uint64_t *grid, const uint16_t *i)
{
    return _mm256_setr_epi64x((long long)grid[i[0]], (long long)grid[i[1]], (long long)grid[i[2]],
                              (long long)grid[i[3]]);
}

GR_INLINE __m256i eight_points(const uint32_t *grid, const uint16_t *i)
{
    return _mm256_setr_epi32((int)grid[i[0]], (int)grid[i[1]], (int)grid[i[2]], (int)grid[i[3]],
                             (int)grid[i[4]], (int)grid[i[5]], (int)grid[i[6]], (int)grid[i[7]]);
}

/* ---- IQ2 ---- */

GR_INLINE __m256i piece_iq2_xxs(const struct points *p, int k)
{
    /* cppcheck-suppress ctuuninitvar ; the points are filled before */
    return add_signs(four_points(gr_grid_iq2_xxs, p->index + 4 * k), p->sign[k],
                     unit_kind(GR_IQ2_XXS).zero);
}

GR_INLINE void unpack_iq2_xxs(const struct gr_iq2_xxs *b, struct unit *u)
{
    struct points p;
    __m256 lo = _mm256_castsi256_ps(load32(&b->group[0])),
           hi = _mm256_castsi256_ps(load32(&b->group[4]));
    __m256i index = _mm256_castps_si256(_mm256_shuffle_ps(lo, hi, 0x88)),
            words = _mm256_castps_si256(_mm256_shuffle_ps(lo, hi, 0xdd));
    put_index(p.index, _mm256_permute4x64_epi64(index, 0xd8), _mm256_setzero_si256());
    factors_32(
        signs_and_scales(_mm256_permute4x64_epi64(words, 0xd8), half_to_f32(b->d) / 8, p.sign),
        u->d);
    UNIT_FILL(u, iq2_xxs, &p);
}

/* Sets the factors of groups of 16, d (2 scale + 1), from scales in nibbles. */
GR_INLINE void odd_factors_16(float d, const uint8_t scales[8], struct unit *u)
{
    __m128i s = nibbles_8(scales);
    factors_16(d, _mm_or_si128(_mm_add_epi8(s, s), _mm_set1_epi8(1)), u->d);
}

GR_INLINE __m256i piece_iq2_xs(const struct points *p, int k)
{
    return add_signs(four_points(gr_grid_iq2_xs, p->index + 4 * k), p->sign[k],
                     unit_kind(GR_IQ2_XS).zero);
}

GR_INLINE void unpack_iq2_xs(const struct gr_iq2_xs *b, struct unit *u)
{
    struct points p;
    __m256i lo = load32(b->qs), hi = load32(b->qs + 16), low = _mm256_set1_epi16(511);
    _mm256_storeu_si256((__m256i *)(void *)p.index, _mm256_and_si256(lo, low));
    _mm256_storeu_si256((__m256i *)(void *)(p.index + 16), _mm256_and_si256(hi, low));
    __m256i signs = _mm256_packus_epi16(_mm256_srli_epi16(lo, 9), _mm256_srli_epi16(hi, 9));
    _mm256_storeu_si256((__m256i *)(void *)p.sign,
                        even_signs(_mm256_permute4x64_epi64(signs, 0xd8)));
    odd_factors_16(half_to_f32(b->d) / 8, b->scales, u);
    UNIT_FILL(u, iq2_xs, &p);
}

GR_INLINE __m256i piece_iq2_s(const struct points *p, int k)
{
    return add_signs(four_points(gr_grid_iq2_s, p->index + 4 * k), p->sign[k],
                     unit_kind(GR_IQ2_S).zero);
}

GR_INLINE void unpack_iq2_s(const struct gr_iq2_s *b, struct unit *u)
{
    struct points p;
    put_index(p.index, load32(b->qs), quarters(b->qh));
    memcpy(p.sign, b->signs, sizeof p.sign);
    odd_factors_16(half_to_f32(b->d) / 8, b->scales, u);
    UNIT_FILL(u, iq2_s, &p);
}

/* ---- IQ3 ---- */

GR_INLINE __m256i piece_iq3_xxs(const struct points *p, int k)
{
    /* cppcheck-suppress ctuuninitvar ; the points are filled before */
    return add_signs(eight_points(gr_grid_iq3_xxs, p->index + 8 * k), p->sign[k],
                     unit_kind(GR_IQ3_XXS).zero);
}

GR_INLINE void unpack_iq3_xxs(const struct gr_iq3_xxs *b, struct unit *u)
{
    struct points p;
    put_index(p.index, load32(b->qs), _mm256_setzero_si256());
    put_index(p.index + 32, load32(b->qs + 32), _mm256_setzero_si256());
    factors_32(signs_and_scales(load32(b->signs), half_to_f32(b->d) / 4, p.sign), u->d);
    UNIT_FILL(u, iq3_xxs, &p);
}

GR_INLINE __m256i piece_iq3_s(const struct points *p, int k)
{
    return add_signs(eight_points(gr_grid_iq3_s, p->index + 8 * k), p->sign[k],
                     unit_kind(GR_IQ3_S).zero);
}

GR_INLINE void unpack_iq3_s(const struct gr_iq3_s *b, struct unit *u)
{
    struct points p;
    uint32_t nibble = u32_at(b->scales);
    uint64_t scale = nibble;
    put_index(p.index, load32(b->qs), and32(bytes_of_bits(u32_at(b->qh)), 1));
    put_index(p.index + 32, load32(b->qs + 32), and32(bytes_of_bits(u32_at(b->qh + 4)), 1));
    memcpy(p.sign, b->signs, sizeof p.sign);
    scale = (scale | scale << 16) & 0x0000ffff0000ffff;
    scale = (scale | scale << 8) & 0x00ff00ff00ff00ff;
    scale = (scale | scale << 4) & 0x0f0f0f0f0f0f0f0f;
    factors_32(eight_u8(scale << 1 | 0x0101010101010101) * _mm256_set1_ps(half_to_f32(b->d)), u->d);
    UNIT_FILL(u, iq3_s, &p);
}

/* ---- IQ1: d (8 grid +- 1) / 8 ---- */

/* Expands four 3-bit fields to 16-bit words. */
GR_INLINE uint64_t threes(uint16_t x)
{
    return (x & 0xfffu) * 0x8004002001u & 0x0007000700070007u;
}

/* Returns 8 point + 1, or 8 point - 1 where bit 1 of a byte of `minus` is set, plus the type's
 * zero. */
GR_INLINE __m256i shifted(__m256i point, __m256i minus)
{
    __m256i level = _mm256_add_epi8(point, _mm256_set1_epi8(1)); /* 0 to 2 */
    int up = unit_kind(GR_IQ1_S).zero - 8 + 1;
    return _mm256_add_epi8(_mm256_slli_epi16(level, 3),
                           _mm256_sub_epi8(_mm256_set1_epi8((char)up), and32(minus, 2)));
}

GR_INLINE __m256i piece_iq1_s(const struct points *p, int k)
{
    return shifted(four_points(gr_grid_iq1, p->index + 4 * k), _mm256_set1_epi32((int)p->sign[k]));
}

GR_INLINE void unpack_iq1_s(const struct gr_iq1_s *b, struct unit *u)
{
    struct points p;
    uint64_t high[8];
    __m256i q = _mm256_cvtepu16_epi32(load16(b->qh));
    GR_UNROLL
    for (int k = 0; k < 8; k++)
        high[k] = threes(b->qh[k]);
    GR_UNROLL
    for (int k = 0; k < 2; k++)
        _mm256_storeu_si256((__m256i *)(void *)(p.index + 16 * k),
                            _mm256_or_si256(_mm256_cvtepu8_epi16(load16(b->qs + 16 * k)),
                                            _mm256_slli_epi16(load32(high + 4 * k), 8)));
    __m256i minus = _mm256_srai_epi32(_mm256_slli_epi32(q, 16), 31);
    _mm256_storeu_si256((__m256i *)(void *)p.sign, minus);
    __m256i scale = _mm256_and_si256(_mm256_srli_epi32(q, 11), _mm256_set1_epi32(14));
    factors_32(_mm256_cvtepi32_ps(_mm256_or_si256(scale, _mm256_set1_epi32(1))) *
                   _mm256_set1_ps(half_to_f32(b->d) / 8),
               u->d);
    UNIT_FILL(u, iq1_s, &p);
}

/* p->sign: a byte for each point, whose bit 3 is the sign of the shift. */
GR_INLINE __m256i piece_iq1_m(const struct points *p, int k)
{
    const __m256i spread =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    __m256i minus = _mm256_shuffle_epi8(_mm256_set1_epi32((int)p->sign[k]), spread);
    return shifted(four_points(gr_grid_iq1, p->index + 4 * k), _mm256_srli_epi16(minus, 2));
}

GR_INLINE void unpack_iq1_m(const struct gr_iq1_m *b, struct unit *u)
{
    struct points p;
    uint64_t s[4];
    unsigned d = 0;
    __m256i high = _mm256_set_m128i(nibbles_8(b->qh + 8), nibbles_8(b->qh));
    put_index(p.index, load32(b->qs), and32(high, 7));
    _mm256_storeu_si256((__m256i *)(void *)p.sign, and32(high, 8));
    GR_UNROLL
    for (int i = 0; i < 4; i++) {
        s[i] = threes(b->scales[i]);
        d |= (unsigned)b->scales[i] >> 12 << 4 * i;
    }
    __m128i scale = _mm_packus_epi16(load16(s), load16(s + 2));
    factors_16(half_to_f32((gr_half)d) / 8,
               _mm_or_si128(_mm_add_epi8(scale, scale), _mm_set1_epi8(1)), u->d);
    UNIT_FILL(u, iq1_m, &p);
}

#endif
