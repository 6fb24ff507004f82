// Arithmetic of floating-point types: how registers hold their values, and the operations.
//
// Source: PTX ISA 9, "Floating-Point Instructions", "Half Precision Floating-Point Instructions".
//
// A result that is a NaN is the canonical one, but of f64, where payloads are kept. Approximations
// are the value rounded to the nearest, but for div.approx, which is a product with a reciprocal.
#pragma once

#include <fenv.h>

#include "formats.hpp"
#include "statement.hpp"

namespace ptx
{
// comparisons.cc
Run decode_setp(Statement &s);
Run decode_set(Statement &s);
Run decode_testp(Statement &s);

namespace
{
enum Modifier : unsigned { ftz = 1, sat = 2, relu = 4 };

constexpr bool is_half(Type t)
{
    return t == Type::f16 || t == Type::f16x2;
}
constexpr bool is_bf16(Type t)
{
    return t == Type::bf16 || t == Type::bf16x2;
}
constexpr bool is_packed(Type t)
{
    return t == Type::f16x2 || t == Type::bf16x2;
}
constexpr bool is_arithmetic(Type t)
{
    return is_half(t) || is_bf16(t) || t == Type::f32 || t == Type::f64;
}

// --- values: eight of f32, f16 and bf16 as F8, one of f64 as double ---

template <class V> struct BitsOf;
template <> struct BitsOf<F8> {
    using type = U8;
    static constexpr uint32_t sign = 0x80000000;
};
template <> struct BitsOf<double> {
    using type = uint64_t;
    static constexpr uint64_t sign = 1ull << 63;
};
template <class V> typename BitsOf<V>::type bits(V v)
{
    return bits_to<typename BitsOf<V>::type>(v);
}
template <class V> V magnitude(V v)
{
    return bits_to<V>(bits(v) & ~BitsOf<V>::sign);
}
template <class V> V all(float value)
{
    return V{} + value;
}
inline F8 flush(F8 v, float least_normal)
{
    return choose(magnitude(v) < least_normal, bits_to<F8>(bits(v) & BitsOf<F8>::sign), v);
}

// Layout of values in registers: Parts::n vectors for Parts::lanes lanes.
template <Type t> struct Parts {
    using V = F8;
    static constexpr uint32_t n = is_packed(t) ? 2 : 1, lanes = chunk;
    static constexpr float least_normal = is_half(t) ? 0x1p-14f : 0x1p-126f;

    static void load(Warp &w, Slot s, uint32_t at, V *v)
    {
        const U8 words = load_words(w.words(s) + at);
        if constexpr (t == Type::f32) {
            v[0] = bits_to<F8>(words);
        } else if constexpr (t == Type::f16) {
            v[0] = floats_of_halves(low_halves(words));
        } else if constexpr (t == Type::f16x2) { // the order of the halves is that of memory
            H8 half[2];
            memcpy(half, &words, sizeof half);
            v[0] = floats_of_halves(half[0]);
            v[1] = floats_of_halves(half[1]);
        } else {
            v[0] = bits_to<F8>(words << 16);
            if constexpr (t == Type::bf16x2)
                v[1] = bits_to<F8>(words & 0xffff0000);
        }
    }
    template <unsigned mods> static H8 halves(F8 v)
    {
        H8 h = halves_of_floats(v);
        h = (h & 0x7fff) > 0x7c00 ? H8{} + nan_half : h;
        if constexpr (mods & ftz)
            h = (h & 0x7c00) == 0 ? h & 0x8000 : h;
        return h;
    }
    template <unsigned mods>
    static void store(Warp &w, Slot d, uint32_t at, const V *v, uint32_t lanes_here)
    {
        U8 words;
        if constexpr (t == Type::f32) {
            words = choose(v[0] != v[0], U8{} + nan_f32,
                           bits(mods & ftz ? flush(v[0], least_normal) : v[0]));
        } else if constexpr (t == Type::f16) {
            words = words_of_halves(halves<mods>(v[0]));
        } else if constexpr (t == Type::f16x2) {
            const H8 half[2] = {halves<mods>(v[0]), halves<mods>(v[1])};
            memcpy(&words, half, sizeof words);
        } else {
            words = words_of_bf16(mods & ftz ? flush(v[0], least_normal) : v[0]);
            if constexpr (t == Type::bf16x2)
                words |= words_of_bf16(mods & ftz ? flush(v[1], least_normal) : v[1]) << 16;
        }
        store_words(w.words(d) + at, words, lanes_here);
    }
    template <unsigned mods> static F8 prepared(F8 v)
    {
        return mods & ftz ? flush(v, least_normal) : v;
    }
    template <unsigned mods> static F8 limited(F8 v)
    {
        if constexpr (mods & sat)
            v = choose(v > 0, choose(v < 1, v, all<F8>(1)), F8{});
        if constexpr (mods & relu)
            v = choose(v > 0, v, choose(v != v, v, F8{}));
        return v;
    }
};
template <> struct Parts<Type::f64> {
    using V = double;
    static constexpr uint32_t n = 1, lanes = 1;
    static void load(Warp &w, Slot s, uint32_t at, V *v)
    {
        v[0] = bits_to<double>(w.longs(s)[at]);
    }
    template <unsigned> static void store(Warp &w, Slot d, uint32_t at, const V *v, uint32_t)
    {
        w.longs(d)[at] = bits(v[0]);
    }
    template <unsigned> static V prepared(V v)
    {
        return v;
    }
    template <unsigned> static V limited(V v)
    {
        return v;
    }
};

// d = Op(sources) of one type.
template <class Op, Type t, unsigned mods, uint32_t n>
Next compute(Warp &w, const Inst &i, uint32_t lanes)
{
    using P = Parts<t>;
    constexpr uint32_t one = (uint32_t)((1ull << P::lanes) - 1);
    for (uint32_t at = 0; at < warp_lanes; at += P::lanes) {
        if (!(lanes >> at & one))
            continue;
        typename P::V in[n][P::n], out[P::n];
        for (uint32_t k = 0; k < n; k++)
            P::load(w, i.s[k], at, in[k]);
        for (uint32_t p = 0; p < P::n; p++) {
            for (uint32_t k = 0; k < n; k++)
                in[k][p] = P::template prepared<mods>(in[k][p]);
            if constexpr (n == 1)
                out[p] = Op::template of<t>(in[0][p]);
            else if constexpr (n == 2)
                out[p] = Op::template of<t>(in[0][p], in[1][p]);
            else
                out[p] = Op::template of<t>(in[0][p], in[1][p], in[2][p]);
            out[p] = P::template limited<mods>(out[p]);
        }
        P::template store<mods>(w, i.d[0], at, out, lanes >> at);
    }
    return Next::on;
}

// --- directed roundings, of f32 and f64 ---

// Sets the rounding of the host's instructions. What is computed meanwhile comes from memory and
// goes to memory, so that the compiler moves none of it over the barriers.
class Directed
{
  public:
    explicit Directed(int64_t rounding)
    {
        static const int host[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
        fesetround(host[rounding]);
        asm volatile("" ::: "memory");
    }
    ~Directed()
    {
        asm volatile("" ::: "memory");
        fesetround(FE_TONEAREST);
    }
};
template <Run run> Next directed(Warp &w, const Inst &i, uint32_t lanes)
{
    const Directed rounding(i.value[0]);
    return run(w, i, lanes);
}

// --- operations ---

struct Add {
    template <Type, class V> static V of(V a, V b)
    {
        return a + b; // of f16 and bf16: f32 has 2 p + 2 bits, two roundings are as one
    }
};
struct Sub {
    template <Type, class V> static V of(V a, V b)
    {
        return a - b;
    }
};
struct Mul {
    template <Type, class V> static V of(V a, V b)
    {
        return a * b;
    }
};

inline F8 fused(F8 a, F8 b, F8 c)
{
#if PTX_VECTORS
    return bits_to<F8>(_mm256_fmadd_ps(bits_to<__m256>(a), bits_to<__m256>(b), bits_to<__m256>(c)));
#else
    for (uint32_t k = 0; k < chunk; k++)
        a[k] = fmaf(a[k], b[k], c[k]);
    return a;
#endif
}
// The sum whose nearest value is `sum`, with what is `error` beside it, rounded to odd: of the two
// neighbours of a sum that is not exact, the one whose last bit is set. Rounding that to a format
// with at least two bits less is rounding the sum itself once (Boldo, Melquiond, "Emulation of a
// FMA and correctly rounded sums"). U: the bits of F.
template <class U, class F> F to_odd(F sum, F error)
{
    const U is = bits_to<U>(sum);
    const auto inexact = (error > 0) | (error < 0); // not of infinities and NaNs
    const auto negative = is >> (8 * sizeof is[0] - 1) != 0;
    const U other = is + ((error < 0) == negative ? U{} + 1 : U{} - 1);
    return bits_to<F>(inexact & ((is & 1) == 0) ? other : is);
}
// p + c to odd. Products of f16 are exact in f32, those of f32 and bf16 in f64, and so is the error
// of the sum (Knuth's TwoSum): nothing overflows or underflows.
template <class U, class F> F odd_sum(F p, F c)
{
    const F sum = p + c, of_c = sum - p;
    return to_odd<U>(sum, (p - (sum - of_c)) + (c - of_c));
}
// Fused multiply-add of bf16 in f32, which has bits to spare for bf16 also where both are subnormal
// or beyond the greatest value.
inline F4 odd_fma(F4 a, F4 b, F4 c)
{
    const D4 sum = odd_sum<L4>(widened(a) * widened(b), widened(c));
    const F4 near = narrowed(sum);
    const D4 error = sum - widened(near), one = D4{} + 1;
    return to_odd<U4>(near, narrowed(error > 0 ? one : error < 0 ? -one : D4{}));
}
struct Halves {
    F4 low, high;
};
// f of the halves of vectors.
template <class F, class... V> F8 by_halves(F f, V... v)
{
    F4 low = f(bits_to<Halves>(v).low...), high = f(bits_to<Halves>(v).high...);
    return bits_to<F8>(Halves{low, high});
}
struct Fma {
    template <Type t, class V> static V of(V a, V b, V c)
    {
        if constexpr (t == Type::f64) {
            return fma(a, b, c);
        } else if constexpr (t == Type::f32) {
            return fused(a, b, c);
        } else if constexpr (is_half(t)) {
            return odd_sum<U8>(a * b, c);
        } else {
            return by_halves(odd_fma, a, b, c);
        }
    }
};

struct Divide {
    template <Type, class V> static V of(V a, V b)
    {
        return a / b;
    }
};
// "d = a * (1/b)", with reciprocals below the normal ones flushed; divisors below the normal ones
// are brought up first.
struct DivideApprox {
    template <Type> static F8 of(F8 a, F8 b)
    {
        const I8 small = magnitude(b) < 0x1p-126f;
        a = choose(small, a * 0x1p24f, a);
        b = choose(small, b * 0x1p24f, b);
        return a * flush(1.0f / b, 0x1p-126f);
    }
};
struct Reciprocal {
    template <Type, class V> static V of(V a)
    {
        return all<V>(1) / a;
    }
};
struct SquareRoot {
    template <Type> static F8 of(F8 a)
    {
#if PTX_VECTORS
        return bits_to<F8>(_mm256_sqrt_ps(bits_to<__m256>(a)));
#else
        return map(a, [](float v) { return sqrtf(v); });
#endif
    }
    template <Type> static double of(double a)
    {
        return sqrt(a);
    }
};
struct ReciprocalRoot {
    template <Type> static F8 of(F8 a)
    {
        return map(a, [](float v) { return (float)(1 / sqrt((double)v)); });
    }
    template <Type> static double of(double a)
    {
        return (double)(1 / sqrtl(a));
    }
};
// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64: of the upper words only, "1.11.20 format".
template <bool root> struct Gross {
    template <Type> static double of(double a)
    {
        constexpr uint64_t sign = 1ull << 63, nan = 0x7fffffff00000000;
        a = bits_to<double>(bits(a) & ~0xffffffffull);
        if (a != a)
            return bits_to<double>(nan);
        if (magnitude(a) < 0x1p-1022)
            return bits_to<double>((bits(a) & sign) | 0x7ff0000000000000);
        const double r = root ? 1 / sqrt(a) : 1 / a;
        if (r != r)
            return bits_to<double>(nan);
        if (magnitude(r) < 0x1p-1022)
            return bits_to<double>(bits(r) & sign);
        return bits_to<double>((bits(r) + 0x7fffffff + (bits(r) >> 32 & 1)) & ~0xffffffffull);
    }
};

struct Sine {
    template <Type> static F8 of(F8 a)
    {
        return map(a, [](float v) { return (float)sin((double)v); });
    }
};
struct Cosine {
    template <Type> static F8 of(F8 a)
    {
        return map(a, [](float v) { return (float)cos((double)v); });
    }
};
struct Log2 {
    template <Type> static F8 of(F8 a)
    {
        return map(a, [](float v) { return (float)log2((double)v); });
    }
};
struct Tanh {
    template <Type> static F8 of(F8 a)
    {
        return map(a, [](float v) { return (float)tanh((double)v); });
    }
};
// 2^x: 2^n by the exponent's bits, and the series of 2^f, |f| <= 1/2, to 1e-13.
inline D4 exp2_of(D4 x)
{
    constexpr double to_integer = 0x1.8p52, least = -200, most = 200;
    x = x < least ? D4{} + least : x;
    x = x > most ? D4{} + most : x;
    const D4 shifted = x + to_integer; // n in the low bits
    const D4 f = (x - (shifted - to_integer)) * 0.693147180559945309417;
    D4 r = f * (1.0 / 3628800) + 1.0 / 362880;
    r = r * f + 1.0 / 40320;
    r = r * f + 1.0 / 5040;
    r = r * f + 1.0 / 720;
    r = r * f + 1.0 / 120;
    r = r * f + 1.0 / 24;
    r = r * f + 1.0 / 6;
    r = r * f + 0.5;
    r = (r * f + 1) * f + 1;
    return r * bits_to<D4>((bits_to<L4>(shifted) + 1023) << 52);
}
struct Exp2 {
    template <Type> static F8 of(F8 a)
    {
        return by_halves([](F4 v) { return narrowed(exp2_of(widened(v))); }, a);
    }
};

struct Absolute {
    template <Type> static F8 of(F8 a)
    {
        return magnitude(a);
    }
    template <Type> static double of(double a)
    {
        return a != a ? a : magnitude(a); // "NaN input is passed through unchanged"
    }
};
struct Negate {
    template <Type, class V> static V of(V a)
    {
        return bits_to<V>(bits(a) ^ BitsOf<V>::sign);
    }
};
struct CopySign { // of a to b
    template <Type, class V> static V of(V a, V b)
    {
        return bits_to<V>((bits(a) & BitsOf<V>::sign) | bits(magnitude(b)));
    }
};

// min and max. A NaN is the other operand, or with `nan` the result; -0 < +0.
enum Signs { as_they_are, xorsign_abs, only_abs };
template <bool greater, bool nan, Signs signs> struct Pick {
    template <class V> static V two(V a, V b)
    {
        V r = greater ? choose(a > b, a, b) : choose(a < b, a, b);
        const auto both = greater ? bits(a) & bits(b) : bits(a) | bits(b);
        r = choose(a == b, bits_to<V>(both), r);
        if (nan)
            return choose((a != a) | (b != b), all<V>(NAN), r);
        r = choose(a != a, b, r);
        return choose(b != b, choose(a != a, all<V>(NAN), a), r);
    }
    template <Type, class V> static V of(V a, V b)
    {
        if (signs == as_they_are)
            return two(a, b);
        const V r = two(magnitude(a), magnitude(b));
        if (signs == only_abs)
            return r;
        return choose(r != r, r, bits_to<V>(bits(r) | ((bits(a) ^ bits(b)) & BitsOf<V>::sign)));
    }
    template <Type t, class V> static V of(V a, V b, V c)
    {
        return of<t>(of<t>(a, b), c);
    }
};
} // namespace
} // namespace ptx
