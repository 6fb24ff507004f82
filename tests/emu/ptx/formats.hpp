// Floating-point formats: values of eight lanes at a time, and single values with exact rounding.
//
// Source: PTX ISA 9, "Fundamental Types", "Alternate Floating-Point Data Formats".
#pragma once

#include <math.h>
#if defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#include <immintrin.h>
#define PTX_VECTORS 1
#else
#define PTX_VECTORS 0
#endif

#include "machine.hpp"

namespace ptx
{
// --- eight lanes ---

using F8 = float __attribute__((vector_size(32)));
using I8 = int32_t __attribute__((vector_size(32)));
using U8 = uint32_t __attribute__((vector_size(32)));
using H8 = uint16_t __attribute__((vector_size(16)));
using F4 = float __attribute__((vector_size(16))); // half of them, beside f64
using U4 = uint32_t __attribute__((vector_size(16)));
using D4 = double __attribute__((vector_size(32)));
using L4 = uint64_t __attribute__((vector_size(32)));
constexpr uint32_t chunk = 8; // lanes of a vector

template <class To, class From> static inline To bits_to(const From &from)
{
    static_assert(sizeof(To) == sizeof(From), "the same number of bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline U8 load_words(const uint32_t *word)
{
    U8 v;
    memcpy(&v, word, sizeof v);
    return v;
}
// All ones for each of the eight lanes in the low bits of `lanes`.
static inline I8 lane_mask(uint32_t lanes)
{
    const U8 bit = {1, 2, 4, 8, 16, 32, 64, 128};
    return (I8)(bit & lanes) != 0;
}
static inline U8 choose(I8 which, U8 yes, U8 no)
{
    return which ? yes : no;
}
static inline F8 choose(I8 which, F8 yes, F8 no)
{
    return which ? yes : no;
}
static inline double choose(bool which, double yes, double no)
{
    return which ? yes : no;
}
static inline void store_words(uint32_t *word, U8 v, uint32_t lanes)
{
    lanes &= 255;
    if (lanes != 255)
        v = choose(lane_mask(lanes), v, load_words(word));
    memcpy(word, &v, sizeof v);
}
// The sign bits, a bit a lane.
static inline uint32_t signs_of(I8 mask)
{
#if PTX_VECTORS
    return (uint32_t)_mm256_movemask_ps(bits_to<__m256>(mask));
#else
    uint32_t bits = 0;
    for (uint32_t k = 0; k < chunk; k++)
        bits |= ((uint32_t)mask[k] >> 31) << k;
    return bits;
#endif
}
static inline D4 widened(F4 v)
{
#if PTX_VECTORS
    return bits_to<D4>(_mm256_cvtps_pd(bits_to<__m128>(v)));
#else
    return __builtin_convertvector(v, D4);
#endif
}
static inline F4 narrowed(D4 v) // to nearest
{
#if PTX_VECTORS
    return bits_to<F4>(_mm256_cvtpd_ps(bits_to<__m256d>(v)));
#else
    return __builtin_convertvector(v, F4);
#endif
}
// f of each lane.
template <class F> static inline F8 map(F8 v, F f)
{
    float lane[chunk];
    memcpy(lane, &v, sizeof v);
    for (uint32_t k = 0; k < chunk; k++)
        lane[k] = f(lane[k]);
    memcpy(&v, lane, sizeof v);
    return v;
}

// --- what f16 and bf16 are as f32 ---

constexpr uint32_t nan_f32 = 0x7fffffff; // "canonical NaN"
constexpr uint16_t nan_half = 0x7fff;    // of f16 and bf16

static inline float float_of_half(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00) // infinity, NaN
        return bits_to<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    const float scaled = bits_to<float>(magnitude << 13) * 0x1p112f; // subnormals too
    return bits_to<float>(sign | bits_to<uint32_t>(scaled));
}
// To nearest even.
static inline uint16_t half_of_float(float f)
{
    const uint32_t bits = bits_to<uint32_t>(f), magnitude = bits & 0x7fffffff;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000)
        return sign | 0x7e00;
    if (magnitude >= 0x47800000) // 65536
        return sign | 0x7c00;
    if (magnitude < 0x38800000) { // subnormal: in units of 2^-24
        const float units = bits_to<float>(magnitude) * 0x1p24f + 0x1.8p23f;
        return (uint16_t)(sign | (bits_to<uint32_t>(units) & 0x7ff));
    }
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}
static inline F8 floats_of_halves(H8 h)
{
#if PTX_VECTORS
    return bits_to<F8>(_mm256_cvtph_ps(bits_to<__m128i>(h)));
#else
    F8 f;
    for (uint32_t k = 0; k < chunk; k++)
        f[k] = float_of_half(h[k]);
    return f;
#endif
}
static inline H8 halves_of_floats(F8 f) // NaN: any NaN
{
#if PTX_VECTORS
    return bits_to<H8>(_mm256_cvtps_ph(bits_to<__m256>(f), _MM_FROUND_TO_NEAREST_INT));
#else
    H8 h;
    for (uint32_t k = 0; k < chunk; k++)
        h[k] = half_of_float(f[k]);
    return h;
#endif
}
static inline H8 low_halves(U8 words)
{
#if PTX_VECTORS
    const __m256i v = bits_to<__m256i>(words & 0xffff);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0xd8);
    return bits_to<H8>(_mm256_castsi256_si128(packed));
#else
    return __builtin_convertvector(words, H8);
#endif
}
static inline U8 words_of_halves(H8 h)
{
#if PTX_VECTORS
    return bits_to<U8>(_mm256_cvtepu16_epi32(bits_to<__m128i>(h)));
#else
    return __builtin_convertvector(h, U8);
#endif
}
// The bf16 values in the low half of the words, to nearest even.
static inline U8 words_of_bf16(F8 f)
{
    const U8 bits = bits_to<U8>(f);
    const U8 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return choose((I8)(f != f), U8{} + nan_half, rounded);
}

// --- single values, exactly ---

// Roundings, as decoders keep them in Inst::value.
enum Rounding : int64_t { to_nearest, to_zero, down, up, ties_away };

struct Format {
    int exponent, mantissa; // bits
    uint64_t greatest;      // bits of the greatest finite value
    uint64_t infinity;
    uint64_t nan; // canonical
    constexpr int bits() const
    {
        return 1 + exponent + mantissa;
    }
    constexpr int least() const // exponent of 2 of the least subnormal value
    {
        return 2 - (1 << (exponent - 1)) - mantissa;
    }
};
constexpr Format ieee(int exponent, int mantissa, uint64_t nan)
{
    return {exponent, mantissa, (((1ull << exponent) - 1) << mantissa) - 1,
            ((1ull << exponent) - 1) << mantissa, nan};
}
constexpr Format format_of(Type t)
{
    return t == Type::f16    ? ieee(5, 10, nan_half)
           : t == Type::bf16 ? ieee(8, 7, nan_half)
           : t == Type::tf32 ? ieee(8, 10, 0x3ffff) // without the 13 low bits
           : t == Type::e5m2 ? ieee(5, 2, 0x7f)
           : t == Type::e4m3 ? Format{4, 3, 0x7e, 0x7f, 0x7f} // it has no infinity
           : t == Type::f64  ? ieee(11, 52, 0x7ff8000000000000)
                             : ieee(8, 23, nan_f32);
}

// significand * 2^exponent, an infinity or a NaN (significand: its payload from the top bit on).
struct Exact {
    uint64_t significand;
    int exponent;
    bool negative;
    enum { finite, infinity, nan } kind;
};

static inline Exact exact_of(const Format &f, uint64_t bits)
{
    const bool negative = bits >> (f.bits() - 1) & 1;
    bits &= (1ull << (f.bits() - 1)) - 1;
    const uint64_t mantissa = bits & ((1ull << f.mantissa) - 1);
    const int biased = (int)(bits >> f.mantissa);
    if (bits > f.greatest) {
        const bool infinite = bits == f.infinity && f.infinity != f.nan;
        return {mantissa << (64 - f.mantissa), 0, negative,
                infinite ? Exact::infinity : Exact::nan};
    }
    if (!biased)
        return {mantissa, f.least(), negative, Exact::finite};
    return {mantissa | 1ull << f.mantissa, f.least() + biased - 1, negative, Exact::finite};
}

// True if rounding adds one to the magnitude `kept`, behind which `rest`, of `shift` bits, is cut
// off.
static inline bool rounds_up(uint64_t kept, uint64_t rest, int shift, Rounding rounding,
                             bool negative)
{
    const uint64_t half = shift > 64 ? 0 : 1ull << (shift - 1);
    switch (rounding) {
    case to_nearest:
        return shift <= 64 && (rest > half || (rest == half && kept & 1));
    case ties_away:
        return shift <= 64 && rest >= half;
    case down:
        return rest && negative;
    case up:
        return rest && !negative;
    default:
        return false;
    }
}

// The finite value x in a format; satfinite: what is beyond it is the greatest finite value.
static inline uint64_t rounded(const Format &f, const Exact &x, Rounding rounding, bool satfinite)
{
    const uint64_t sign = (uint64_t)x.negative << (f.bits() - 1);
    if (!x.significand)
        return sign;
    const int top = 63 - __builtin_clzll(x.significand) + x.exponent;
    const int last = top - f.mantissa > f.least() ? top - f.mantissa : f.least();
    const int shift = last - x.exponent;
    uint64_t kept;
    if (shift <= 0) {
        kept = x.significand << -shift;
    } else {
        kept = shift > 63 ? 0 : x.significand >> shift;
        const uint64_t rest = shift > 63 ? x.significand : x.significand & ((1ull << shift) - 1);
        kept += rounds_up(kept, rest, shift, rounding, x.negative);
    }
    kept += (uint64_t)(last - f.least()) << f.mantissa;
    if (kept <= f.greatest)
        return sign | kept;
    const bool inwards = rounding == to_zero || rounding == (x.negative ? up : down);
    return sign | (satfinite || inwards ? f.greatest : f.infinity);
}
} // namespace ptx
