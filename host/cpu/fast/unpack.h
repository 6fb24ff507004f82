/* Unpacking of each type's blocks to units (unit.h). */
#ifndef GR_CPU_FAST_UNPACK_H
#define GR_CPU_FAST_UNPACK_H

#include "cpu/fast/unit.h"
#include "cpu/fast/unpack_grids.h"
#include "cpu/fast/unpack_values.h"

/* ---- blocks of 32 ---- */

/* Loads four f16 from offset `at` of blocks `size` bytes apart. Combines them by integer
 * operations, whose execution ports are idle otherwise. */
GR_INLINE long long four_halves(const uint8_t *p, size_t size, size_t at)
{
    uint64_t all = 0;
    GR_UNROLL
    for (int k = 0; k < 4; k++) {
        uint16_t h;
        memcpy(&h, p + (size_t)k * size + at, sizeof h);
        all |= (uint64_t)h << 16 * k;
    }
    return (long long)all;
}

GR_INLINE __m256 eight_halves(const uint8_t *p, size_t size, size_t at)
{
    return _mm256_cvtph_ps(
        _mm_set_epi64x(four_halves(p + 4 * size, size, at), four_halves(p, size, at)));
}

/* Moves bit i of 32 bits to bit 4 of byte i. */
GR_INLINE __m256i fifth_bits(const uint8_t *p)
{
    return and32(bytes_of_bits(u32_at(p)), 16);
}

GR_INLINE __m256i piece_q8_0(const struct gr_q8_0 *b, int k)
{
    __m256i q = load32(b[k].qs);
    return unit_kind(GR_Q8_0).sign ? q : _mm256_xor_si256(q, _mm256_set1_epi8(-128));
}

GR_INLINE __m256i piece_q4_0(const struct gr_q4_0 *b, int k)
{
    return nibbles(b[k].qs);
}

GR_INLINE __m256i piece_q4_1(const struct gr_q4_1 *b, int k)
{
    return nibbles(b[k].qs);
}

GR_INLINE __m256i piece_q5_0(const struct gr_q5_0 *b, int k)
{
    return _mm256_or_si256(nibbles(b[k].qs), fifth_bits(b[k].qh));
}

GR_INLINE __m256i piece_q5_1(const struct gr_q5_1 *b, int k)
{
    return _mm256_or_si256(nibbles(b[k].qs), fifth_bits(b[k].qh));
}

/* ---- super-blocks of 256 ---- */

/* Reads eight scales and eight minima of 6 bits (Q4_K, Q5_K): the first four in the low bits of
 * bytes 0..3 and 4..7; of the others, four bits in bytes 8..11 and two in the top of bytes 0..3
 * and 4..7.
 */
GR_INLINE void scales_6(const uint8_t packed[12], uint64_t *scales, uint64_t *mins)
{
    uint32_t a, b, c;
    memcpy(&a, packed, 4), memcpy(&b, packed + 4, 4), memcpy(&c, packed + 8, 4);
    uint32_t s = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030),
             m = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    *scales = (a & 0x3f3f3f3f) | (uint64_t)s << 32;
    *mins = (b & 0x3f3f3f3f) | (uint64_t)m << 32;
}

/* Sets d and m of a unit. halves: d and dmin, the first fields of a block. */
GR_INLINE void factors_6(const void *halves, const uint8_t packed[12], struct unit *u)
{
    uint64_t s, m;
    int32_t both;
    memcpy(&both, halves, sizeof both);
    __m128 f = _mm_cvtph_ps(_mm_cvtsi32_si128(both));
    scales_6(packed, &s, &m);
    factors_32(eight_u8(s) * _mm256_broadcastss_ps(f), u->d);
    factors_32(eight_u8(m) * _mm256_broadcastss_ps(_mm_movehdup_ps(-f)), u->m);
}

GR_INLINE __m256i piece_q4_K(const struct gr_q4_K *b, int k)
{
    return field(load32(b->qs + k / 2 * 32), k % 2 * 4, 4);
}

GR_INLINE void unpack_q4_K(const struct gr_q4_K *b, struct unit *u)
{
    factors_6(b, b->scales, u);
#ifdef GR_LEVEL_avx512
    const vi shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    GR_UNROLL
    for (int k = 0; k < 4; k++) /* the same bytes twice, the second time shifted */
        u->q[k] = _mm512_and_si512(
            _mm512_srlv_epi16(_mm512_broadcast_i64x4(load32(b->qs + 32 * k)), shift),
            _mm512_set1_epi8(15));
#else
    UNIT_FILL(u, q4_K, b);
#endif
}

GR_INLINE __m256i piece_q5_K(const struct gr_q5_K *b, int k)
{
    __m256i bit = _mm256_slli_epi16(field(load32(b->qh), k, 1), 4);
    return _mm256_or_si256(field(load32(b->qs + k / 2 * 32), k % 2 * 4, 4), bit);
}

GR_INLINE void unpack_q5_K(const struct gr_q5_K *b, struct unit *u)
{
    factors_6(b, b->scales, u);
    UNIT_FILL(u, q5_K, b);
}

GR_INLINE __m256i piece_q6_K(const struct gr_q6_K *b, int k)
{
    __m256i low = field(load32(b->ql + k / 4 * 64 + k % 2 * 32), k % 4 / 2 * 4, 4);
    __m256i high = field(load32(b->qh + k / 4 * 32), k % 4 * 2, 2);
    return _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
}

GR_INLINE void unpack_q6_K(const struct gr_q6_K *b, struct unit *u)
{
    factors_16(half_to_f32(b->d), _mm_loadu_si128((const __m128i *)(const void *)b->scales), u->d);
    UNIT_FILL(u, q6_K, b);
}

/* Reads sixteen scales of 6 bits, offset 32: four bits in bytes 0..7 (low nibbles, then high ones),
 * two in bytes 8..11. */
GR_INLINE __m128i scales_q3_K(const uint8_t packed[12])
{
    uint64_t low;
    uint32_t high;
    memcpy(&low, packed, 8), memcpy(&high, packed + 8, 4);
    uint64_t h01 = (high & 0x03030303) | (uint64_t)(high >> 2 & 0x03030303) << 32;
    uint64_t h23 = (high >> 4 & 0x03030303) | (uint64_t)(high >> 6 & 0x03030303) << 32;
    uint64_t a = (low & 0x0f0f0f0f0f0f0f0f) | h01 << 4,
             b = (low >> 4 & 0x0f0f0f0f0f0f0f0f) | h23 << 4;
    return _mm_sub_epi8(_mm_set_epi64x((long long)b, (long long)a), _mm_set1_epi8(32));
}

GR_INLINE __m256i piece_q3_K(const struct gr_q3_K *b, int k)
{
    __m256i low = field(load32(b->qs + k / 4 * 32), k % 4 * 2, 2);
    return _mm256_or_si256(low, _mm256_slli_epi16(field(load32(b->hmask), k, 1), 2));
}

GR_INLINE void unpack_q3_K(const struct gr_q3_K *b, struct unit *u)
{
    factors_16(half_to_f32(b->d), scales_q3_K(b->scales), u->d);
    UNIT_FILL(u, q3_K, b);
}

GR_INLINE __m256i piece_q2_K(const struct gr_q2_K *b, int k)
{
    return field(load32(b->qs + k / 4 * 32), k % 4 * 2, 2);
}

GR_INLINE void unpack_q2_K(const struct gr_q2_K *b, struct unit *u)
{
    __m128i s = _mm_loadu_si128((const __m128i *)(const void *)b->scales), low = _mm_set1_epi8(15);
    factors_16(half_to_f32(b->d), _mm_and_si128(s, low), u->d);
    factors_16(-half_to_f32(b->dmin), _mm_and_si128(_mm_srli_epi16(s, 4), low), u->m);
    UNIT_FILL(u, q2_K, b);
}

enum { UNIT_BYTES = 8 * 36 }; /* no unit has more bytes */

/* Returns the bytes of 256 columns. */
GR_INLINE size_t unit_bytes(uint32_t dtype)
{
    switch (dtype) {
#define QUANT(NAME, name, id, n, bytes, codec)                                                     \
    case GR_##NAME:                                                                                \
        return 256 / n * bytes;
#include "gr/quant.def"
#undef QUANT
    default:
        return 0;
    }
}

/* Unpacks the 256 columns whose blocks begin at p. */
GR_INLINE void unpack(uint32_t dtype, const void *p, struct unit *u)
{
#define SIMPLE(NAME, name)                                                                         \
    case GR_##NAME:                                                                                \
        factors_32(eight_halves(p, sizeof(struct gr_##name), 0), u->d);                            \
        UNIT_FILL(u, name, (const struct gr_##name *)p);                                           \
        break;
#define SIMPLE_MIN(NAME, name)                                                                     \
    case GR_##NAME:                                                                                \
        factors_32(eight_halves(p, sizeof(struct gr_##name), 2), u->m);                            \
        factors_32(eight_halves(p, sizeof(struct gr_##name), 0), u->d);                            \
        UNIT_FILL(u, name, (const struct gr_##name *)p);                                           \
        break;
#define SUPER(NAME, name)                                                                          \
    case GR_##NAME:                                                                                \
        unpack_##name(p, u);                                                                       \
        break;
    switch (dtype) {
        SIMPLE(Q8_0, q8_0)
        SIMPLE(Q4_0, q4_0)
        SIMPLE(Q5_0, q5_0)
        SIMPLE_MIN(Q4_1, q4_1)
        SIMPLE_MIN(Q5_1, q5_1)
        SUPER(Q2_K, q2_K)
        SUPER(Q3_K, q3_K)
        SUPER(Q4_K, q4_K)
        SUPER(Q5_K, q5_K)
        SUPER(Q6_K, q6_K)
        SIMPLE(IQ4_NL, iq4_nl)
        SUPER(IQ4_XS, iq4_xs)
        SUPER(MXFP4, mxfp4)
        SUPER(NVFP4, nvfp4)
        SUPER(IQ1_S, iq1_s)
        SUPER(IQ1_M, iq1_m)
        SUPER(IQ2_XXS, iq2_xxs)
        SUPER(IQ2_XS, iq2_xs)
        SUPER(IQ2_S, iq2_s)
        SUPER(IQ3_XXS, iq3_xxs)
        SUPER(IQ3_S, iq3_s)
        SUPER(TQ1_0, tq1_0)
        SUPER(TQ2_0, tq2_0)
        SUPER(Q1_0, q1_0)
        SUPER(Q2_0, q2_0)
    default:
        break;
    }
#undef SIMPLE
#undef SIMPLE_MIN
#undef SUPER
}

/* Returns the number of registers of d and m that a type uses. */
GR_INLINE int unit_factors(struct unit_kind kind)
{
    return kind.group == 16 ? UNIT_D : 1;
}

#endif
