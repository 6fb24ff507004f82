/* 256 columns of a row of quantised weights in one form for all types: w = d q + m.
 *
 * q are eight registers of 32 bytes in column order, unsigned (u8) but where said; d and m hold a
 * factor for every 16 columns, twice the same where a type's groups have 32. Types with an offset,
 * w = d (q - zero), keep q and leave the offset to the exact integer sums: `zero` is taken from
 * them times the sum of the activations. */
#ifndef GR_CPU_FAST_UNPACK_H
#define GR_CPU_FAST_UNPACK_H

#include <string.h>

#include "cpu/fast/vec.h"
#include "gr/dtype.h"

struct unit {
    __m256i q[8];
    __m256 d[2], m[2];
};

/* What a type's units are like. */
struct unit_kind {
    int zero;  /* offset of the quants */
    int group; /* columns of one d: 16 or 32 */
    bool min;  /* there is an m */
    bool sign; /* q is s8 */
};

GR_INLINE struct unit_kind unit_kind(uint32_t dtype)
{
    switch (dtype) {
    case GR_Q4_0:
        return (struct unit_kind){.zero = 8, .group = 32};
    case GR_Q5_0:
        return (struct unit_kind){.zero = 16, .group = 32};
    case GR_Q8_0: /* without VNNI, products of two u8 >= 128 would saturate: sign and magnitude
                     there */
#ifdef GR_LEVEL_avx512
        return (struct unit_kind){.zero = 128, .group = 32};
#else
        return (struct unit_kind){.group = 32, .sign = true};
#endif
    case GR_Q3_K:
        return (struct unit_kind){.zero = 4, .group = 16};
    case GR_Q6_K:
        return (struct unit_kind){.zero = 32, .group = 16};
    case GR_Q2_K:
        return (struct unit_kind){.group = 16, .min = true};
    default: /* Q4_1, Q5_1, Q4_K, Q5_K */
        return (struct unit_kind){.group = 32, .min = true};
    }
}

GR_INLINE __m256i load32(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

GR_INLINE __m256i and32(__m256i x, int mask)
{
    return _mm256_and_si256(x, _mm256_set1_epi8((char)mask));
}

/* Bits [shift, shift + bits) of every byte. */
GR_INLINE __m256i field(__m256i x, int shift, int bits)
{
    return and32(_mm256_srli_epi16(x, shift), (1 << bits) - 1);
}

/* Eight factors, each twice. */
GR_INLINE void twice(__m256 x, __m256 out[2])
{
    out[0] = _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
    out[1] = _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
}

GR_INLINE __m256 eight_u8(uint64_t x)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)x)));
}

/* ---- blocks of 32 ---- */

/* The f16 at offset `at` of eight blocks `size` bytes apart, as f32. */
GR_INLINE __m256 eight_halves(const uint8_t *p, size_t size, size_t at)
{
    uint16_t h[8];
    GR_UNROLL
    for (int k = 0; k < 8; k++)
        memcpy(&h[k], p + (size_t)k * size + at, 2);
    return _mm256_cvtph_ps(_mm_setr_epi16((short)h[0], (short)h[1], (short)h[2], (short)h[3],
                                          (short)h[4], (short)h[5], (short)h[6], (short)h[7]));
}

/* Sixteen bytes of nibbles: the low ones, then the high ones. */
GR_INLINE __m256i nibbles(const uint8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return and32(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), 15);
}

/* Bit i of 32 bits in bit 4 of byte i. */
GR_INLINE __m256i fifth_bits(const uint8_t *p)
{
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    const __m256i spread =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);
    return and32(_mm256_cmpeq_epi8(_mm256_and_si256(x, bit), bit), 16);
}

GR_INLINE void unpack_32(uint32_t dtype, const uint8_t *p, size_t size, struct unit *u)
{
    bool has_m = dtype == GR_Q4_1 || dtype == GR_Q5_1,
         has_fifth = dtype == GR_Q5_0 || dtype == GR_Q5_1;
    size_t qs = (has_m ? 4 : 2) + (has_fifth ? 4 : 0);
    twice(eight_halves(p, size, 0), u->d);
    if (has_m)
        twice(eight_halves(p, size, 2), u->m);
    GR_UNROLL
    for (int k = 0; k < 8; k++) {
        const uint8_t *b = p + (size_t)k * size;
        if (dtype == GR_Q8_0)
            u->q[k] = unit_kind(GR_Q8_0).sign
                          ? load32(b + 2)
                          : _mm256_xor_si256(load32(b + 2), _mm256_set1_epi8(-128));
        else
            u->q[k] = nibbles(b + qs);
        if (has_fifth)
            u->q[k] = _mm256_or_si256(u->q[k], fifth_bits(b + qs - 4));
    }
}

/* ---- super-blocks of 256 ---- */

/* Eight scales and eight minima of 6 bits (Q4_K, Q5_K): the first four in the low bits of bytes
 * 0..3 and 4..7; of the others, four bits in bytes 8..11 and two in the top of bytes 0..3 and 4..7.
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

GR_INLINE void factors_6(gr_half d, gr_half dmin, const uint8_t packed[12], struct unit *u)
{
    uint64_t s, m;
    scales_6(packed, &s, &m);
    twice(eight_u8(s) * _mm256_set1_ps(half_to_f32(d)), u->d);
    twice(eight_u8(m) * _mm256_set1_ps(-half_to_f32(dmin)), u->m);
}

GR_INLINE void unpack_q4_K(const struct gr_q4_K *b, struct unit *u)
{
    factors_6(b->d, b->dmin, b->scales, u);
    GR_UNROLL
    for (int k = 0; k < 8; k++)
        u->q[k] = field(load32(b->qs + k / 2 * 32), k % 2 * 4, 4);
}

GR_INLINE void unpack_q5_K(const struct gr_q5_K *b, struct unit *u)
{
    __m256i high = load32(b->qh);
    factors_6(b->d, b->dmin, b->scales, u);
    GR_UNROLL
    for (int k = 0; k < 8; k++) {
        __m256i bit = _mm256_slli_epi16(field(high, k, 1), 4);
        u->q[k] = _mm256_or_si256(field(load32(b->qs + k / 2 * 32), k % 2 * 4, 4), bit);
    }
}

/* Sixteen scales with a sign times d. */
GR_INLINE void factors_16(gr_half d, __m128i scales, __m256 out[2])
{
    __m256 f = _mm256_set1_ps(half_to_f32(d));
    out[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales)) * f;
    out[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(scales, 8))) * f;
}

GR_INLINE void unpack_q6_K(const struct gr_q6_K *b, struct unit *u)
{
    factors_16(b->d, _mm_loadu_si128((const __m128i *)(const void *)b->scales), u->d);
    GR_UNROLL
    for (int k = 0; k < 8; k++) {
        __m256i low = field(load32(b->ql + k / 4 * 64 + k % 2 * 32), k % 4 / 2 * 4, 4);
        __m256i high = field(load32(b->qh + k / 4 * 32), k % 4 * 2, 2);
        u->q[k] = _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
    }
}

/* Sixteen scales of 6 bits, offset 32: four bits in bytes 0..7 (low nibbles, then high ones), two
 * in bytes 8..11. */
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

GR_INLINE void unpack_q3_K(const struct gr_q3_K *b, struct unit *u)
{
    __m256i mask = load32(b->hmask);
    factors_16(b->d, scales_q3_K(b->scales), u->d);
    GR_UNROLL
    for (int k = 0; k < 8; k++) {
        __m256i low = field(load32(b->qs + k / 4 * 32), k % 4 * 2, 2);
        u->q[k] = _mm256_or_si256(low, _mm256_slli_epi16(field(mask, k, 1), 2));
    }
}

GR_INLINE void unpack_q2_K(const struct gr_q2_K *b, struct unit *u)
{
    __m128i s = _mm_loadu_si128((const __m128i *)(const void *)b->scales), low = _mm_set1_epi8(15);
    factors_16(b->d, _mm_and_si128(s, low), u->d);
    factors_16(b->dmin ^ 0x8000, _mm_and_si128(_mm_srli_epi16(s, 4), low), u->m);
    GR_UNROLL
    for (int k = 0; k < 8; k++)
        u->q[k] = field(load32(b->qs + k / 4 * 32), k % 4 * 2, 2);
}

/* Bytes of 256 columns. */
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

GR_INLINE void unpack(uint32_t dtype, const void *p, struct unit *u)
{
    switch (dtype) {
    case GR_Q4_K:
        unpack_q4_K(p, u);
        break;
    case GR_Q5_K:
        unpack_q5_K(p, u);
        break;
    case GR_Q6_K:
        unpack_q6_K(p, u);
        break;
    case GR_Q3_K:
        unpack_q3_K(p, u);
        break;
    case GR_Q2_K:
        unpack_q2_K(p, u);
        break;
    default:
        unpack_32(dtype, p, unit_bytes(dtype) / 8, u);
    }
}

/* The last n_bytes of a row, fewer than a unit: what is missing has d = m = 0. */
GR_INLINE void unpack_tail(uint32_t dtype, const void *p, size_t n_bytes, struct unit *u)
{
    uint8_t whole[8 * 36] = {0};
    memcpy(whole, p, n_bytes);
    unpack(dtype, whole, u);
}

#endif
