/* Vectors of an instruction level: VL lanes of f32 or i32. The files of this folder are compiled
 * once for each level; most differences between levels are here. Sums over lanes run in a fixed
 * order. */
#ifndef GR_CPU_FAST_VEC_H
#define GR_CPU_FAST_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "gr/quant_blocks.h"

#define GR_PASTE_(a, b, c) a##b##_##c
#define GR_PASTE(a, b, c) GR_PASTE_(a, b, c)
/* Name of a function shared by the files of a level. */
#define FN(name) GR_PASTE(gr_, GR_LEVEL, name)

#if defined(__clang__)
#define GR_UNROLL _Pragma("unroll")
#else
#define GR_UNROLL _Pragma("GCC unroll 32")
#endif
#define GR_INLINE static inline __attribute__((always_inline))

#ifdef GR_LEVEL_avx512

enum { VL = 16 };
typedef __m512 vf;
typedef __m512i vi;

GR_INLINE vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}
GR_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
GR_INLINE void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
/* Load and store of the first n lanes, 0 < n <= VL; the others are 0, or not written. */
GR_INLINE vf vf_load_n(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)(0xffffu >> (16 - n)), p);
}
GR_INLINE void vf_store_n(float *p, vf x, int64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)(0xffffu >> (16 - n)), x);
}
GR_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
GR_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
GR_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
GR_INLINE vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}
GR_INLINE vf vf_round(vf a) /* to the nearest integer, ties to even */
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for integral n in [-126, 127]; 0 for -127, infinity for 128. */
GR_INLINE vf vf_exp2i(vf n)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
/* x where bit i of `bits` is set, y elsewhere. */
GR_INLINE vf vf_select(uint32_t bits, vf x, vf y)
{
    return _mm512_mask_blend_ps((__mmask16)bits, y, x);
}
/* x where a < b, y elsewhere. */
GR_INLINE vf vf_where_less(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
GR_INLINE vf vf_of_int(vi x)
{
    return _mm512_cvtepi32_ps(x);
}
GR_INLINE vf vf_half(const gr_half *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
GR_INLINE vf vf_bf16(const gr_bf16 *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
/* Loads VL signed bytes as f32. */
GR_INLINE vf vf_s8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
GR_INLINE vf vf_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
/* Swaps lanes 2i and 2i + 1. */
GR_INLINE vf vf_swap(vf x)
{
    return _mm512_permute_ps(x, 0xb1);
}
GR_INLINE void vf_store_half(gr_half *p, vf x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
/* Stores VL bytes, rounded to nearest and clamped to [-128, 127]. */
GR_INLINE void vf_store_s8(int8_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}
GR_INLINE __m256 vf_lo(vf x)
{
    return _mm512_castps512_ps256(x);
}
GR_INLINE __m256 vf_hi(vf x)
{
    return _mm512_extractf32x8_ps(x, 1);
}
GR_INLINE vi vi_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}
GR_INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
GR_INLINE void vi_store(void *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
GR_INLINE vi vi_set8(int x)
{
    return _mm512_set1_epi8((char)x);
}
GR_INLINE vi vi_sub8(vi a, vi b)
{
    return _mm512_sub_epi8(a, b);
}
GR_INLINE vi vi_max(vi a, vi b)
{
    return _mm512_max_epi32(a, b);
}
GR_INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
GR_INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
GR_INLINE vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
/* Shifts lanes left, or right where `by` is negative, with zeros. */
GR_INLINE vi vi_shift(vi x, int by)
{
    return by < 0 ? _mm512_srli_epi32(x, (unsigned)-by) : _mm512_slli_epi32(x, (unsigned)by);
}
/* Byte k of each lane, as s8. */
GR_INLINE vi vi_s8_at(vi x, int k)
{
    return _mm512_srai_epi32(_mm512_slli_epi32(x, (unsigned)(24 - 8 * k)), 24);
}
/* Maps bytes below 16 to entries of a table. */
GR_INLINE vi vi_lookup(__m128i table, vi x)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x);
}
/* Returns the f16 in the low half of each lane. */
GR_INLINE vf vf_low_half(vi x)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
}
/* Each lane + the sum of four products of u8 (u) and s8 (s). */
GR_INLINE vi vi_dot(vi acc, vi u, vi s)
{
    return _mm512_dpbusd_epi32(acc, u, s);
}

#else

enum { VL = 8 };
typedef __m256 vf;
typedef __m256i vi;

GR_INLINE vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}
GR_INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
GR_INLINE void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
GR_INLINE __m256i vi_first(int64_t n) /* mask of the first n lanes */
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
GR_INLINE vf vf_load_n(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, vi_first(n));
}
GR_INLINE void vf_store_n(float *p, vf x, int64_t n)
{
    _mm256_maskstore_ps(p, vi_first(n), x);
}
GR_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
GR_INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
GR_INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
GR_INLINE vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
GR_INLINE vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
GR_INLINE vf vf_exp2i(vf n)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
GR_INLINE vf vf_select(uint32_t bits, vf x, vf y)
{
    __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int32_t)bits), bit), bit);
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(set));
}
GR_INLINE vf vf_where_less(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
GR_INLINE vf vf_of_int(vi x)
{
    return _mm256_cvtepi32_ps(x);
}
GR_INLINE vf vf_half(const gr_half *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
GR_INLINE vf vf_bf16(const gr_bf16 *p)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
GR_INLINE vf vf_s8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
GR_INLINE vf vf_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
GR_INLINE vf vf_swap(vf x)
{
    return _mm256_permute_ps(x, 0xb1);
}
GR_INLINE void vf_store_half(gr_half *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
GR_INLINE void vf_store_s8(int8_t *p, vf x)
{
    __m256i i = _mm256_cvtps_epi32(x);
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(words, words));
}
GR_INLINE vi vi_set(int32_t x)
{
    return _mm256_set1_epi32(x);
}
GR_INLINE vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
GR_INLINE void vi_store(void *p, vi x)
{
    _mm256_storeu_si256(p, x);
}
GR_INLINE vi vi_set8(int x)
{
    return _mm256_set1_epi8((char)x);
}
GR_INLINE vi vi_sub8(vi a, vi b)
{
    return _mm256_sub_epi8(a, b);
}
GR_INLINE vi vi_max(vi a, vi b)
{
    return _mm256_max_epi32(a, b);
}
GR_INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
GR_INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
GR_INLINE vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
GR_INLINE vi vi_shift(vi x, int by)
{
    return by < 0 ? _mm256_srli_epi32(x, -by) : _mm256_slli_epi32(x, by);
}
GR_INLINE vi vi_s8_at(vi x, int k)
{
    return _mm256_srai_epi32(_mm256_slli_epi32(x, 24 - 8 * k), 24);
}
GR_INLINE vi vi_lookup(__m128i table, vi x)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), x);
}
GR_INLINE vf vf_low_half(vi x)
{
    x = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(
        _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
/* Sums of two products, which saturate at 16 bits: u <= 127 is safe (2 * 127 * 127 < 32768). */
GR_INLINE vi vi_pairs(vi u, vi s)
{
    return _mm256_maddubs_epi16(u, s);
}
GR_INLINE vi vi_add16(vi a, vi b)
{
    return _mm256_add_epi16(a, b);
}
/* Each lane + its two sums of 16 bits. */
GR_INLINE vi vi_add_pairs(vi acc, vi pairs)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
GR_INLINE vi vi_dot(vi acc, vi u, vi s)
{
    return vi_add_pairs(acc, vi_pairs(u, s));
}

#endif

/* Keeps x in a register by hiding from the compiler that it comes from memory: it would reload x in
 * each iteration or instruction that uses it, even across two cache lines. */
GR_INLINE vi vi_hold(vi x)
{
    __asm__("" : "+v"(x));
    return x;
}

/* Sums eight lanes pairwise. */
GR_INLINE float sum8(__m256 x)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

GR_INLINE float max8(__m256 x)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

GR_INLINE int32_t vi_max8(__m256i x)
{
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    a = _mm_max_epi32(a, _mm_unpackhi_epi64(a, a));
    return _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0x55)));
}

#ifdef GR_LEVEL_avx512
GR_INLINE int32_t vi_largest(vi x)
{
    return vi_max8(_mm256_max_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1)));
}
GR_INLINE float vf_sum(vf x)
{
    return sum8(_mm256_add_ps(vf_lo(x), vf_hi(x)));
}
GR_INLINE float vf_largest(vf x)
{
    return max8(_mm256_max_ps(vf_lo(x), vf_hi(x)));
}
#else
GR_INLINE int32_t vi_largest(vi x)
{
    return vi_max8(x);
}
GR_INLINE float vf_sum(vf x)
{
    return sum8(x);
}
GR_INLINE float vf_largest(vf x)
{
    return max8(x);
}
#endif

GR_INLINE float half_to_f32(gr_half h)
{
    return _cvtsh_ss(h);
}

/* vi_dot where u holds u8, or with `sign` s8 (never with VNNI): uses magnitudes of u and moves its
 * signs to s. */
GR_INLINE vi vi_dot_any(vi acc, vi u, vi s, bool sign)
{
#ifndef GR_LEVEL_avx512
    if (sign)
        return vi_dot(acc, _mm256_abs_epi8(u), _mm256_sign_epi8(s, u));
#endif
    (void)sign;
    return vi_dot(acc, u, s);
}

/* Transposes the 4 x 4 words that four registers have in each 128 bits. */
GR_INLINE void vi_transpose_4(const vi r[4], vi out[4])
{
#ifdef GR_LEVEL_avx512
    vi a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    vi c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    out[0] = _mm512_unpacklo_epi64(a, c), out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d), out[3] = _mm512_unpackhi_epi64(b, d);
#else
    vi a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    vi c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    out[0] = _mm256_unpacklo_epi64(a, c), out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d), out[3] = _mm256_unpackhi_epi64(b, d);
#endif
}

/* Transposes VL x VL 32-bit words: swaps element j of r[i] and element i of r[j]. */
GR_INLINE void vi_transpose(vi r[VL])
{
    vi t[VL];
    GR_UNROLL
    for (int i = 0; i < VL; i += 4)
        vi_transpose_4(r + i, t + i);
    GR_UNROLL
    for (int i = 0; i < 4; i++) { /* then the blocks of 128 bits */
#ifdef GR_LEVEL_avx512
        vi a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88),
           b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
        vi c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88),
           d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
        r[i] = _mm512_shuffle_i32x4(a, c, 0x88), r[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88), r[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
#else
        r[i] = _mm256_permute2x128_si256(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(t[i], t[i + 4], 0x31);
#endif
    }
}

/* Loads four words at p of each of VL rows, `stride` bytes apart: lane i of out[j] is word j of row
 * i. */
GR_INLINE void vi_load_rows(const char *p, int64_t stride, vi out[4])
{
    vi r[4];
    GR_UNROLL
    for (int i = 0; i < 4; i++, p += stride) {
#define ROW(n) _mm_loadu_si128((const __m128i *)(const void *)(p + (n)*stride))
        __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(ROW(0)), ROW(4), 1);
#ifdef GR_LEVEL_avx512
        r[i] = _mm512_inserti32x4(_mm512_castsi256_si512(low), ROW(8), 2);
        r[i] = _mm512_inserti32x4(r[i], ROW(12), 3);
#else
        r[i] = low;
#endif
#undef ROW
    }
    vi_transpose_4(r, out);
}

/* Lane i of the result is the sum of the lanes of r[i]. */
GR_INLINE vf vf_sum_rows(const vf r[VL])
{
    vi t[VL];
    vf x[VL];
    memcpy(t, r, sizeof t);
    vi_transpose(t);
    memcpy(x, t, sizeof x);
    GR_UNROLL
    for (int k = VL / 2; k > 0; k /= 2)
        GR_UNROLL
    for (int i = 0; i < k; i++)
        x[i] = x[i] + x[i + k];
    return x[0];
}

/* exp, within 2 units in the last place; 0 below -87.7, infinity above 88.4 (NaN stays). The
 * argument is n ln 2 + r, |r| <= ln 2 / 2, and exp(r) a polynomial of degree 7. */
GR_INLINE vf vf_exp(vf x)
{
    const float ln2_hi = 0.693359375f, ln2_lo = -2.12194440e-4f, log2e = 1.44269504f;
    vf lo = vf_set(-88), hi = vf_set(89);
    vf in = vf_min(hi, vf_max(lo, x)); /* min and max return the second when one is NaN */
    vf n = vf_round(in * vf_set(log2e));
    vf r = vf_fma(n, vf_set(-ln2_hi), in);
    r = vf_fma(n, vf_set(-ln2_lo), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(p, r * r, r) + vf_set(1);
    return p * vf_exp2i(n);
}

GR_INLINE vf vf_sigmoid(vf x)
{
    return vf_set(1) / (vf_set(1) + vf_exp(vf_set(0) - x));
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + u), u = exp(-|x|) <= 1; log(1 + u) = 2 artanh(w), w = u /
 * (2 + u) <= 1/3: the ninth term of the series is below 2^-26 of the first. */
GR_INLINE vf vf_softplus(vf x)
{
    vf u = vf_exp(vf_set(0) - vf_abs(x)), w = u / (vf_set(2) + u), w2 = w * w;
    vf p = vf_set(1.0f / 15);
    GR_UNROLL
    for (int k = 13; k > 0; k -= 2)
        p = vf_fma(p, w2, vf_set(1.0f / (float)k));
    return vf_fma(w + w, p, vf_max(vf_set(0), x));
}

#endif
