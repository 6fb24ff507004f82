/* Units: 256 columns of a row of quantised weights in one form for all types, w = d q + m.
 *
 * q are the quants in column order, u8 unless stated otherwise. d and m hold a factor for each
 * group of 16 or 32 columns; with groups of 32 the upper half of a 512-bit register is zero, and
 * the second of two 256-bit ones is unused. Types with an offset, w = d (q - zero), keep q; `zero`
 * times the sum of the activations is subtracted from the exact integer sums. */
#ifndef GR_CPU_FAST_UNIT_H
#define GR_CPU_FAST_UNIT_H

#include <string.h>

#include "cpu/fast/vec.h"
#include "gr/dtype.h"

enum { UNIT_Q = 64 / VL, UNIT_D = 16 / VL };

struct unit {
    vi q[UNIT_Q];
    vf d[UNIT_D], m[UNIT_D];
};

/* Expands to TYPE(name) for every type that has units. */
#define UNIT_TYPES(TYPE)                                                                           \
    TYPE(Q4_0)                                                                                     \
    TYPE(Q4_1)                                                                                     \
    TYPE(Q5_0)                                                                                     \
    TYPE(Q5_1)                                                                                     \
    TYPE(Q8_0)                                                                                     \
    TYPE(Q2_K)                                                                                     \
    TYPE(Q3_K)                                                                                     \
    TYPE(Q4_K)                                                                                     \
    TYPE(Q5_K)                                                                                     \
    TYPE(Q6_K)                                                                                     \
    TYPE(IQ4_NL)                                                                                   \
    TYPE(IQ4_XS)                                                                                   \
    TYPE(MXFP4)                                                                                    \
    TYPE(NVFP4)                                                                                    \
    TYPE(IQ1_S)                                                                                    \
    TYPE(IQ1_M)                                                                                    \
    TYPE(IQ2_XXS)                                                                                  \
    TYPE(IQ2_XS)                                                                                   \
    TYPE(IQ2_S)                                                                                    \
    TYPE(IQ3_XXS)                                                                                  \
    TYPE(IQ3_S)                                                                                    \
    TYPE(TQ1_0)                                                                                    \
    TYPE(TQ2_0)                                                                                    \
    TYPE(Q1_0)                                                                                     \
    TYPE(Q2_0)

/* Properties of a type's units. */
struct unit_kind {
    int zero;  /* offset of the quants */
    int most;  /* no quant is larger; not with sign */
    int group; /* columns per d: 16 or 32 */
    bool min;  /* units have m */
    bool sign; /* q is s8 */
};

GR_INLINE struct unit_kind unit_kind(uint32_t dtype)
{
    switch (dtype) {
    case GR_Q4_0:
        return (struct unit_kind){.zero = 8, .most = 15, .group = 32};
    case GR_Q5_0:
    case GR_IQ1_S:
    case GR_IQ3_S:
        return (struct unit_kind){.zero = 16, .most = 31, .group = 32};
    case GR_IQ1_M:
        return (struct unit_kind){.zero = 16, .most = 31, .group = 16};
    case GR_Q8_0: /* without VNNI, products of two u8 >= 128 would saturate: sign and magnitude
                     there */
    case GR_IQ4_NL:
    case GR_IQ4_XS:
#ifdef GR_LEVEL_avx512
        return (struct unit_kind){.zero = 128, .most = 255, .group = 32};
#else
        return (struct unit_kind){.group = 32, .sign = true};
#endif
    case GR_MXFP4:
        return (struct unit_kind){.zero = 12, .most = 24, .group = 32};
    case GR_NVFP4:
        return (struct unit_kind){.zero = 12, .most = 24, .group = 16};
    case GR_IQ2_XXS:
    case GR_IQ3_XXS:
        return (struct unit_kind){.zero = 64, .most = 127, .group = 32};
    case GR_IQ2_XS:
    case GR_IQ2_S:
        return (struct unit_kind){.zero = 64, .most = 127, .group = 16};
    case GR_Q1_0:
    case GR_Q2_0:
    case GR_TQ1_0:
    case GR_TQ2_0:
        return (struct unit_kind){.zero = 1, .most = 3, .group = 32};
    case GR_Q3_K:
        return (struct unit_kind){.zero = 4, .most = 7, .group = 16};
    case GR_Q6_K:
        return (struct unit_kind){.zero = 32, .most = 63, .group = 16};
    case GR_Q2_K:
        return (struct unit_kind){.most = 3, .group = 16, .min = true};
    case GR_Q5_1:
    case GR_Q5_K:
        return (struct unit_kind){.most = 31, .group = 32, .min = true};
    default: /* Q4_1, Q4_K */
        return (struct unit_kind){.most = 15, .group = 32, .min = true};
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

/* Extracts bits [shift, shift + bits) of every byte. */
GR_INLINE __m256i field(__m256i x, int shift, int bits)
{
    return and32(_mm256_srli_epi16(x, shift), (1 << bits) - 1);
}

/* Fills the quants of a unit from its eight pieces of 32 columns, piece_TYPE(b, k). */
#ifdef GR_LEVEL_avx512
GR_INLINE vi join(__m256i a, __m256i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}
#define UNIT_FILL(u, type, b)                                                                      \
    GR_UNROLL                                                                                      \
    for (int k = 0; k < 4; k++)                                                                    \
    (u)->q[k] = join(piece_##type(b, 2 * k), piece_##type(b, 2 * k + 1))
#else
#define UNIT_FILL(u, type, b)                                                                      \
    GR_UNROLL                                                                                      \
    for (int k = 0; k < 8; k++)                                                                    \
    (u)->q[k] = piece_##type(b, k)
#endif

/* Stores eight factors, of groups of 32. */
GR_INLINE void factors_32(__m256 x, vf out[UNIT_D])
{
#ifdef GR_LEVEL_avx512
    out[0] = _mm512_zextps256_ps512(x);
#else
    out[0] = x;
#endif
}

GR_INLINE __m256 eight_u8(uint64_t x)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)x)));
}

/* Unpacks sixteen bytes: the low nibbles, then the high ones. */
GR_INLINE __m256i nibbles(const uint8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return and32(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), 15);
}

/* Expands bits to bytes: byte i is 255 where bit i is set. */
GR_INLINE __m256i bytes_of_bits(uint32_t bits)
{
    const __m256i spread =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);
    return _mm256_cmpeq_epi8(_mm256_and_si256(x, bit), bit);
}

GR_INLINE uint32_t u32_at(const void *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

GR_INLINE uint16_t u16_at(const void *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

GR_INLINE __m128i load16(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

GR_INLINE __m128i load8(const void *p)
{
    return _mm_loadl_epi64((const __m128i *)p);
}

/* Unpacks the 2-bit fields of eight bytes, in order. */
GR_INLINE __m256i quarters(const uint8_t *p)
{
    const __m128i low = _mm_set1_epi8(3);
    __m128i x = load8(p);
    __m128i a = _mm_unpacklo_epi8(_mm_and_si128(x, low), _mm_and_si128(_mm_srli_epi16(x, 2), low));
    __m128i b = _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(x, 4), low),
                                  _mm_and_si128(_mm_srli_epi16(x, 6), low));
    return _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
}

/* Unpacks the nibbles of eight bytes, in order. */
GR_INLINE __m128i nibbles_8(const uint8_t *p)
{
    const __m128i low = _mm_set1_epi8(15);
    __m128i x = load8(p);
    return _mm_unpacklo_epi8(_mm_and_si128(x, low), _mm_and_si128(_mm_srli_epi16(x, 4), low));
}

/* Stores sixteen signed scales times d, of groups of 16. */
GR_INLINE void factors_16(float d, __m128i scales, vf out[UNIT_D])
{
#ifdef GR_LEVEL_avx512
    out[0] = vf_of_int(_mm512_cvtepi8_epi32(scales)) * vf_set(d);
#else
    int8_t s[16];
    _mm_storeu_si128((__m128i *)(void *)s, scales);
    GR_UNROLL
    for (int k = 0; k < UNIT_D; k++)
        out[k] = vf_s8(s + k * VL) * vf_set(d);
#endif
}

#endif
