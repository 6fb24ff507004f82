// Formats of matrix elements, and sums of their products.
#include "products.hpp"

#include "formats.hpp"

namespace ptx
{
using D4 = double __attribute__((vector_size(32)));
using F4 = float __attribute__((vector_size(16)));
using I4 = int32_t __attribute__((vector_size(16)));
using U4 = uint32_t __attribute__((vector_size(16)));

template <class Vector> static Vector load(const void *from)
{
    Vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline D4 doubles_of(F4 f)
{
#if PTX_VECTORS
    return (D4)_mm256_cvtps_pd((__m128)f);
#else
    return __builtin_convertvector(f, D4);
#endif
}
// a * b + c; the product of two elements is exact, so that both ways round alike.
static inline D4 add_product(double a, D4 b, D4 c)
{
#if PTX_VECTORS
    return (D4)_mm256_fmadd_pd(_mm256_set1_pd(a), (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

// --- elements of 16 bits ---

static void transpose(const unsigned char *const *rows, H8 *to)
{
#if PTX_VECTORS
    __m128i a[8], b[8];
    for (uint32_t k = 0; k < 8; k++)
        a[k] = load<__m128i>(rows[k]);
    for (uint32_t k = 0; k < 4;
         k++) { // each step puts elements of rows k and k + 4 next to each other
        b[2 * k] = _mm_unpacklo_epi16(a[k], a[k + 4]);
        b[2 * k + 1] = _mm_unpackhi_epi16(a[k], a[k + 4]);
    }
    for (uint32_t k = 0; k < 4; k++) {
        a[2 * k] = _mm_unpacklo_epi16(b[k], b[k + 4]);
        a[2 * k + 1] = _mm_unpackhi_epi16(b[k], b[k + 4]);
    }
    for (uint32_t k = 0; k < 4; k++) {
        to[2 * k] = bits_to<H8>(_mm_unpacklo_epi16(a[k], a[k + 4]));
        to[2 * k + 1] = bits_to<H8>(_mm_unpackhi_epi16(a[k], a[k + 4]));
    }
#else
    for (uint32_t k = 0; k < 8; k++)
        for (uint32_t line = 0; line < 8; line++)
            to[k][line] = load<uint16_t>(rows[line] + 2 * k);
#endif
}

void transpose_core(const unsigned char *const *rows, uint16_t *to)
{
    H8 turned[8];
    transpose(rows, turned);
    memcpy(to, turned, sizeof turned);
}

static H8 split(H8 v) // into the order of split_lines
{
#if PTX_VECTORS
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return bits_to<H8>(_mm_shuffle_epi8(bits_to<__m128i>(v), order));
#else
    return H8{v[0], v[2], v[4], v[6], v[1], v[3], v[5], v[7]};
#endif
}

static inline F8 floats_of_f16(H8 v)
{
    return floats_of_halves(v);
}
static inline F8 floats_of_bf16(H8 v)
{
    return bits_to<F8>(words_of_halves(v) << 16);
}

template <F8 floats_of(H8)> static void widen(H8 v, double *to)
{
    const F8 f = floats_of(v);
    F4 half[2];
    memcpy(half, &f, sizeof half);
    for (uint32_t k = 0; k < 2; k++) {
        const D4 wide = doubles_of(half[k]);
        memcpy(to + 4 * k, &wide, sizeof wide);
    }
}

template <F8 floats_of(H8)>
static void from_lines_of_16(const unsigned char *const *rows, double *panel)
{
    H8 turned[8];
    transpose(rows, turned);
    for (uint32_t k = 0; k < 8; k++)
        widen<floats_of>(turned[k], panel + k * panel_lines);
}

template <F8 floats_of(H8), bool splits>
static void from_k_of_16(const unsigned char *const *rows, double *panel)
{
    for (uint32_t k = 0; k < 8; k++) {
        const H8 v = load<H8>(rows[k]);
        widen<floats_of>(splits ? split(v) : v, panel + k * panel_lines);
    }
}

// --- elements of 32 and 8 bits ---

// The lower 13 bits are not part of a tf32 ("wgmma.mma_async will truncate lower 13 bits").
static void from_lines_of_tf32(const unsigned char *const *rows, double *panel)
{
    for (uint32_t line = 0; line < panel_lines; line++)
        for (uint32_t k = 0; k < 4; k++)
            panel[k * panel_lines + line] =
                bits_to<float>(load<uint32_t>(rows[line] + 4 * k) & ~0x1fffu);
}

// The values of the 256 patterns of each type of 8 bits.
static double values_of_e4m3[256], values_of_e5m2[256], values_of_s8[256], values_of_u8[256];

// "Alternate Floating-Point Data Formats": e4m3 has no infinities; 0x7f and 0xff are its NaN.
static double value_of_e4m3(uint32_t bits)
{
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return (bits & 0x7f) == 0x7f ? (double)NAN : bits & 0x80 ? -size : size;
}

static bool fill_values()
{
    for (uint32_t bits = 0; bits < 256; bits++) {
        values_of_e4m3[bits] = value_of_e4m3(bits);
        values_of_e5m2[bits] = float_of_half((uint16_t)(bits << 8));
        values_of_s8[bits] = (int8_t)bits;
        values_of_u8[bits] = bits;
    }
    return true;
}
static const bool filled = fill_values();

template <double *values>
static void from_lines_of_8(const unsigned char *const *rows, double *panel)
{
    for (uint32_t line = 0; line < panel_lines; line++)
        for (uint32_t k = 0; k < 16; k++)
            panel[k * panel_lines + line] = values[rows[line][k]];
}

const Element *element_of(Type t)
{
    static const Element elements[] = {
        {Type::f16, 2, from_lines_of_16<floats_of_f16>, from_k_of_16<floats_of_f16, false>,
         from_k_of_16<floats_of_f16, true>},
        {Type::bf16, 2, from_lines_of_16<floats_of_bf16>, from_k_of_16<floats_of_bf16, false>,
         from_k_of_16<floats_of_bf16, true>},
        {Type::tf32, 4, from_lines_of_tf32, nullptr, nullptr},
        {Type::e4m3, 1, from_lines_of_8<values_of_e4m3>, nullptr, nullptr},
        {Type::e5m2, 1, from_lines_of_8<values_of_e5m2>, nullptr, nullptr},
        {Type::s8, 1, from_lines_of_8<values_of_s8>, nullptr, nullptr},
        {Type::u8, 1, from_lines_of_8<values_of_u8>, nullptr, nullptr},
    };
    for (const Element &e : elements)
        if (e.type == t)
            return &e;
    return nullptr;
}

// --- sums ---

// Writes the sums of a row for 4 lanes, even columns and odd ones, to the registers of a panel, at
// the lanes' offset.
struct SumF32 {
    static constexpr uint32_t n_register = 2;
    static void put_one(uint32_t *d, const uint32_t *c, D4 sum)
    {
        if (c)
            sum += doubles_of(load<F4>(c));
        const F4 f = __builtin_convertvector(sum, F4);
        const I4 bits = f == f ? bits_to<I4>(f) : I4{} + (int32_t)nan_f32;
        memcpy(d, &bits, sizeof bits);
    }
    static void put(uint32_t *const *d, const uint32_t *const *c, uint32_t at, D4 even, D4 odd)
    {
        put_one(d[0] + at, c ? c[0] + at : nullptr, even);
        put_one(d[1] + at, c ? c[1] + at : nullptr, odd);
    }
};

template <bool saturates> struct SumS32 {
    static constexpr uint32_t n_register = 2;
    static void put_one(uint32_t *d, const uint32_t *c, D4 sum) // of fewer than 32 bits
    {
        const I4 to = c ? load<I4>(c) : I4{};
        I4 v;
        if (saturates) {
            const D4 low = D4{} + INT32_MIN, high = D4{} + INT32_MAX;
            sum += __builtin_convertvector(to, D4);
            sum = sum < low ? low : sum;
            v = __builtin_convertvector(sum > high ? high : sum, I4);
        } else {
            v = (I4)((U4) __builtin_convertvector(sum, I4) + (U4)to);
        }
        memcpy(d, &v, sizeof v);
    }
    static void put(uint32_t *const *d, const uint32_t *const *c, uint32_t at, D4 even, D4 odd)
    {
        put_one(d[0] + at, c ? c[0] + at : nullptr, even);
        put_one(d[1] + at, c ? c[1] + at : nullptr, odd);
    }
};

struct SumF16 {
    static constexpr uint32_t n_register = 1;
    // Floats rounded to odd, which have bits enough that rounding them again, to f16, is one
    // rounding.
    static I4 to_odd(D4 v)
    {
        using L4 = int64_t __attribute__((vector_size(32)));
        const F4 nearest = __builtin_convertvector(v, F4);
        const D4 back = doubles_of(nearest);
        const D4 excess = v < 0 ? v - back : back - v; // of the magnitude
        const I4 inexact = __builtin_convertvector((L4)(back != v), I4);
        const I4 greater = __builtin_convertvector((L4)(excess > 0), I4);
        return (bits_to<I4>(nearest) + greater) | (inexact & 1);
    }
    static void put(uint32_t *const *d, const uint32_t *const *c, uint32_t at, D4 even, D4 odd)
    {
        if (c) {
            const I4 to = load<I4>(c[0] + at);
            const I4 parts[2] = {to & 0xffff, to >> 16 & 0xffff};
            const F8 f = floats_of_halves(__builtin_convertvector(bits_to<U8>(parts), H8));
            F4 half[2];
            memcpy(half, &f, sizeof half);
            even += doubles_of(half[0]);
            odd += doubles_of(half[1]);
        }
        const I4 parts[2] = {to_odd(even), to_odd(odd)};
        const F8 f = bits_to<F8>(parts);
        U8 words = words_of_halves(halves_of_floats(f));
        words = choose((I8)(f != f), U8{} + nan_half, words);
        U4 half[2];
        memcpy(half, &words, sizeof half);
        const U4 both = half[0] | half[1] << 16;
        memcpy(d[0] + at, &both, sizeof both);
    }
};

// 4 rows at a time: 8 sums of 4 columns, which is what the registers of the host hold.
template <class Sum>
static void multiply(const double *a, const double *b, uint32_t n_panel, uint32_t depth,
                     uint32_t *const *d, const uint32_t *const *c)
{
    for (uint32_t p = 0; p < n_panel; p++)
        for (uint32_t first = 0; first < core_rows; first += 4) {
            const double *rows = a + (size_t)p * depth * panel_lines + first;
            D4 even[4] = {}, odd[4] = {};
            for (size_t k = 0; k < (size_t)depth * panel_lines; k += panel_lines) {
                const D4 b_even = load<D4>(b + k), b_odd = load<D4>(b + k + 4);
#pragma GCC unroll 4
                for (uint32_t r = 0; r < 4; r++) {
                    even[r] = add_product(rows[k + r], b_even, even[r]);
                    odd[r] = add_product(rows[k + r], b_odd, odd[r]);
                }
            }
#pragma GCC unroll 4
            for (uint32_t r = 0; r < 4; r++)
                Sum::put(d + p * Sum::n_register, c ? c + p * Sum::n_register : nullptr,
                         4 * (first + r), even[r], odd[r]);
        }
}

Multiply multiply_of(Type sum, bool saturates)
{
    if (sum == Type::f32)
        return multiply<SumF32>;
    if (sum == Type::f16)
        return multiply<SumF16>;
    return saturates ? multiply<SumS32<true>> : multiply<SumS32<false>>;
}

// --- what is common to all instructions on matrices ---

void take_aligned(Statement &s)
{
    if (!s.take("sync") || !s.take("aligned"))
        s.refuse(".sync.aligned is expected");
    s.inst.collective = true;
    s.inst.aligned = true;
}

bool whole_warp(Warp &w, const Inst &i, uint32_t lanes)
{
    if (w.exited)
        fault(w, i, w.exited,
              "lanes that have returned, or never were, cannot execute it, and it needs all 32");
    return w.all_present(lanes);
}
} // namespace ptx
