// Conversions between types of numbers.
//
// Source: PTX ISA 9, "Type Conversion", "Data Movement and Conversion Instructions: cvt" and
// "cvt.pack". Registers wider than a type: Statement::source() and target().
#include <algorithm>

#include "formats.hpp"
#include "statement.hpp"

namespace ptx
{
namespace
{
// The modifiers of cvt, packed in Inst::value[0].
struct Mode {
    Rounding rounding;
    bool ftz, sat, relu, satfinite;
    int64_t packed() const
    {
        return rounding | ftz << 4 | sat << 5 | relu << 6 | satfinite << 7;
    }
    Mode() : Mode(0)
    {
    }
    explicit Mode(int64_t v)
        : rounding((Rounding)(v & 15)), ftz(v >> 4 & 1), sat(v >> 5 & 1), relu(v >> 6 & 1),
          satfinite(v >> 7 & 1)
    {
    }
};

// --- types ---

// The host's type that holds the bits of values of a type.
template <Type t> struct HostOf {
    using type = uint16_t;
};
#define HOST_OF(name, c)                                                                           \
    template <> struct HostOf<Type::name> {                                                        \
        using type = c;                                                                            \
    };
HOST_OF(u8, uint8_t)
HOST_OF(u16, uint16_t)
HOST_OF(u32, uint32_t)
HOST_OF(u64, uint64_t)
HOST_OF(s8, int8_t)
HOST_OF(s16, int16_t)
HOST_OF(s32, int32_t)
HOST_OF(s64, int64_t)
HOST_OF(f32, uint32_t)
HOST_OF(tf32, uint32_t)
HOST_OF(f64, uint64_t)
#undef HOST_OF
template <Type t> using Host = typename HostOf<t>::type;

constexpr bool is_scalar_float(Type t) // that converts to and from all others
{
    return t == Type::f16 || t == Type::bf16 || t == Type::f32 || t == Type::f64;
}

// A type as an argument: with_integer() and with_float() call f with the one that t is.
template <Type t> struct TypeConstant {
    static constexpr Type type = t;
};
template <class F> Run with_integer(Type t, F f)
{
    switch (t) {
    case Type::u8:
        return f(TypeConstant<Type::u8>());
    case Type::u16:
        return f(TypeConstant<Type::u16>());
    case Type::u32:
        return f(TypeConstant<Type::u32>());
    case Type::u64:
        return f(TypeConstant<Type::u64>());
    case Type::s8:
        return f(TypeConstant<Type::s8>());
    case Type::s16:
        return f(TypeConstant<Type::s16>());
    case Type::s32:
        return f(TypeConstant<Type::s32>());
    default:
        return f(TypeConstant<Type::s64>());
    }
}
template <class F> Run with_float(Type t, F f)
{
    switch (t) {
    case Type::f16:
        return f(TypeConstant<Type::f16>());
    case Type::bf16:
        return f(TypeConstant<Type::bf16>());
    case Type::f32:
        return f(TypeConstant<Type::f32>());
    default:
        return f(TypeConstant<Type::f64>());
    }
}

// --- single values ---

// The value as f64, which holds all values of the other formats.
template <Type t> double double_of(Host<t> bits)
{
    if constexpr (t == Type::f64)
        return bits_to<double>(bits);
    else if constexpr (t == Type::f32)
        return (double)bits_to<float>(bits);
    else if constexpr (t == Type::bf16)
        return (double)bits_to<float>((uint32_t)bits << 16);
    else
        return (double)float_of_half(bits);
}
// "Single-precision subnormal inputs and results are flushed to sign-preserving zero."
inline uint32_t flushed(uint32_t bits)
{
    return bits & 0x7f800000 ? bits : bits & 0x80000000;
}

// A finite value or an infinity, rounded and limited.
template <Type d> uint64_t finish(const Exact &x, const Mode &m)
{
    constexpr Format f = format_of(d);
    constexpr uint64_t sign = 1ull << (f.bits() - 1);
    if ((m.relu || m.sat) && x.negative)
        return 0;
    uint64_t bits;
    if (x.kind == Exact::infinity)
        bits = (m.satfinite ? f.greatest : f.infinity) | (x.negative ? sign : 0);
    else
        bits = rounded(f, x, m.rounding, m.satfinite);
    constexpr uint64_t one = (uint64_t)((1 << (f.exponent - 1)) - 1) << f.mantissa;
    if (m.sat && bits > one)
        return one;
    if (d == Type::f32 && m.ftz)
        bits = flushed((uint32_t)bits);
    return d == Type::tf32 ? bits << 13 : bits;
}
template <Type d> uint64_t nan_for(const Exact &x, const Mode &m)
{
    constexpr Format f = format_of(d);
    if (m.sat)
        return 0;
    if (d == Type::f64) // "NaN payloads are supported for double-precision instructions"
        return f.nan | x.significand >> 12 | (uint64_t)x.negative << 63;
    return d == Type::tf32 ? f.nan << 13 : f.nan;
}
template <Type d, Type s> uint64_t float_to_float(uint64_t bits, const Mode &m)
{
    constexpr Format f = format_of(s);
    if (s == Type::f32 && m.ftz)
        bits = flushed((uint32_t)bits);
    const Exact x = exact_of(f, bits);
    return x.kind == Exact::nan ? nan_for<d>(x, m) : finish<d>(x, m);
}
inline double to_integral(double v, Rounding rounding)
{
    switch (rounding) {
    case to_nearest:
        return nearbyint(v);
    case to_zero:
        return trunc(v);
    case down:
        return floor(v);
    default:
        return ceil(v);
    }
}

// --- handlers: floats ---

template <Type d, Type s> Next floats_to_floats(Warp &w, const Inst &i, uint32_t lanes)
{
    const Mode m(i.value[0]);
    return unary<Host<d>, Host<s>>(
        w, i, lanes, [&](Host<s> bits) { return (Host<d>)float_to_float<d, s>(bits, m); });
}
// "A floating-point value may be rounded to an integral value": of one type, without loss.
template <Type t, Rounding rounding> Next floats_to_integral(Warp &w, const Inst &i, uint32_t lanes)
{
    const Mode m(i.value[0]);
    return unary<Host<t>, Host<t>>(w, i, lanes, [&](Host<t> bits) {
        if (t == Type::f32 && m.ftz)
            bits = (Host<t>)flushed((uint32_t)bits);
        const double v = to_integral(double_of<t>(bits), rounding);
        if (t == Type::f32 && v == v && !m.sat)
            return (Host<t>)bits_to<uint32_t>((float)v);
        return (Host<t>)float_to_float<t, Type::f64>(bits_to<uint64_t>(v), m);
    });
}
// By the host's instructions, to the nearest.
Next f32_of_f64(Warp &w, const Inst &i, uint32_t lanes)
{
    return unary<uint32_t, double>(
        w, i, lanes, [](double v) { return v != v ? nan_f32 : bits_to<uint32_t>((float)v); });
}
Next f64_of_f32(Warp &w, const Inst &i, uint32_t lanes)
{
    return unary<double, float>(w, i, lanes, [](float v) { return (double)v; });
}
// Bits as they are: cvt.f32.f32, and cvt.f32.bf16, whose "NaN input yields unspecified NaN".
template <Type d, Type s> Next floats_as_they_are(Warp &w, const Inst &i, uint32_t lanes)
{
    return unary<Host<d>, Host<s>>(w, i, lanes, [](Host<s> bits) {
        return s == Type::bf16 && d == Type::f32 ? (Host<d>)bits << 16 : (Host<d>)bits;
    });
}

// Eight lanes at a time: f of the words of the sources.
template <uint32_t n, class F> Next by_chunks(Warp &w, const Inst &i, uint32_t lanes, F f)
{
    for (uint32_t at = 0; at < warp_lanes; at += chunk) {
        const U8 a = load_words(w.words(i.s[0]) + at), b = load_words(w.words(i.s[n - 1]) + at);
        store_words(w.words(i.d[0]) + at, f(a, b), lanes >> at);
    }
    return Next::on;
}
inline U8 words_of_f16(F8 v)
{
    const U8 h = words_of_halves(halves_of_floats(v));
    return choose((I8)(v != v), U8{} + nan_half, h);
}
Next f32_of_f16(Warp &w, const Inst &i, uint32_t lanes)
{
    return by_chunks<1>(w, i, lanes, [](U8 a, U8) {
        const F8 v = floats_of_halves(low_halves(a));
        return choose((I8)(v != v), U8{} + nan_f32, bits_to<U8>(v));
    });
}
Next f16_of_f32(Warp &w, const Inst &i, uint32_t lanes)
{
    return by_chunks<1>(w, i, lanes, [](U8 a, U8) { return words_of_f16(bits_to<F8>(a)); });
}
Next bf16_of_f32(Warp &w, const Inst &i, uint32_t lanes)
{
    return by_chunks<1>(w, i, lanes, [](U8 a, U8) { return words_of_bf16(bits_to<F8>(a)); });
}
Next f16x2_of_f32(Warp &w, const Inst &i, uint32_t lanes)
{
    return by_chunks<2>(w, i, lanes, [](U8 high, U8 low) {
        return words_of_f16(bits_to<F8>(high)) << 16 | words_of_f16(bits_to<F8>(low));
    });
}
Next bf16x2_of_f32(Warp &w, const Inst &i, uint32_t lanes)
{
    return by_chunks<2>(w, i, lanes, [](U8 high, U8 low) {
        return words_of_bf16(bits_to<F8>(high)) << 16 | words_of_bf16(bits_to<F8>(low));
    });
}
Next sat_f32(Warp &w, const Inst &i, uint32_t lanes)
{
    return by_chunks<1>(w, i, lanes, [](U8 a, U8) {
        const F8 v = bits_to<F8>(a), one = F8{} + 1;
        return bits_to<U8>(choose(v > 0, choose(v < 1, v, one), F8{}));
    });
}

// --- handlers: packed floats ---

// Two f32, the first one for the upper part, to f16x2, bf16x2, e4m3x2, e5m2x2; d: of a part.
template <Type d> Next pack_floats(Warp &w, const Inst &i, uint32_t lanes)
{
    const Mode m(i.value[0]);
    constexpr int part = format_of(d).bits();
    return binary<uint32_t, uint32_t, uint32_t>(w, i, lanes, [&](uint32_t high, uint32_t low) {
        return (uint32_t)(float_to_float<d, Type::f32>(high, m) << part |
                          float_to_float<d, Type::f32>(low, m));
    });
}
// The parts of one register: f16x2 to and from e4m3x2, e5m2x2.
template <Type d, Type s> Next repack_floats(Warp &w, const Inst &i, uint32_t lanes)
{
    const Mode m(i.value[0]);
    constexpr int to = format_of(d).bits(), from = format_of(s).bits();
    return unary<uint32_t, uint32_t>(w, i, lanes, [&](uint32_t v) {
        const uint32_t mask = (1u << from) - 1;
        return (uint32_t)(float_to_float<d, s>(v >> from & mask, m) << to |
                          float_to_float<d, s>(v & mask, m));
    });
}

// --- handlers: integers ---

template <Type d, Type s> Next integers_to_integers(Warp &w, const Inst &i, uint32_t lanes)
{
    return unary<Host<d>, Host<s>>(w, i, lanes, [](Host<s> v) { return (Host<d>)v; });
}
template <Type d, Type s> Next integers_to_integers_sat(Warp &w, const Inst &i, uint32_t lanes)
{
    constexpr __int128 most = (Host<d>)~(Host<d>)0 > 0
                                  ? (__int128)(Host<d>)~(Host<d>)0
                                  : ((__int128)1 << (8 * sizeof(Host<d>) - 1)) - 1;
    constexpr __int128 least = (Host<d>)~(Host<d>)0 > 0 ? 0 : -most - 1;
    return unary<Host<d>, Host<s>>(w, i, lanes, [](Host<s> v) {
        return (Host<d>)(v < least ? least : v > most ? most : v);
    });
}
// To the nearest, by the host's instructions.
template <class To, Type s> Next integers_to_nearest(Warp &w, const Inst &i, uint32_t lanes)
{
    return unary<To, Host<s>>(w, i, lanes, [](Host<s> v) { return (To)v; });
}
template <Type d, Type s> Next integers_to_floats(Warp &w, const Inst &i, uint32_t lanes)
{
    const Mode m(i.value[0]);
    return unary<Host<d>, Host<s>>(w, i, lanes, [&](Host<s> v) {
        const bool negative = v < 0;
        const uint64_t size = negative ? -(uint64_t)v : (uint64_t)v;
        return (Host<d>)finish<d>({size, 0, negative, Exact::finite}, m);
    });
}
// "The result is clamped to the destination range"; a NaN is 0, or the top bit where the source is
// f64 or the destination has 64 bits.
template <Type d, Type s, Rounding rounding>
Next floats_to_integers(Warp &w, const Inst &i, uint32_t lanes)
{
    using To = Host<d>;
    constexpr bool with_sign = (To) ~(To)0 < 0;
    constexpr int bits = 8 * sizeof(To);
    constexpr To top = (To)((uint64_t)1 << (bits - 1));
    constexpr To nan = s == Type::f64 || bits == 64 ? top : 0;
    constexpr To least = with_sign ? top : 0, most = (To)~least;
    constexpr double end =
        with_sign ? 0x1p0 * ((uint64_t)1 << (bits - 1)) : 0x2p0 * ((uint64_t)1 << (bits - 1));
    const Mode m(i.value[0]);
    return unary<To, Host<s>>(w, i, lanes, [&](Host<s> v) {
        if (s == Type::f32 && m.ftz)
            v = (Host<s>)flushed((uint32_t)v);
        const double x = to_integral(double_of<s>(v), rounding);
        return x != x ? nan : x >= end ? most : x < (double)least ? least : (To)x;
    });
}

// --- cvt.pack ---

// value[0]: bits of a part; value[1]: whether it is signed.
Next pack_integers(Warp &w, const Inst &i, uint32_t lanes)
{
    const int bits = (int)i.value[0];
    const int32_t most = (1 << (i.value[1] ? bits - 1 : bits)) - 1,
                  least = i.value[1] ? -most - 1 : 0;
    const auto part = [=](int32_t v) {
        return (uint32_t)(v < least ? least : v > most ? most : v) & ((1u << bits) - 1);
    };
    Lanes<uint32_t> d(w, i.d[0]);
    const Lanes<int32_t> a(w, i.s[0]), b(w, i.s[1]);
    const Lanes<uint32_t> c(w, i.s[i.n_s - 1]);
    each(lanes, [&](uint32_t k) {
        const uint32_t both = part(a[k]) << bits | part(b[k]);
        d.set(k, bits == 16 ? both : both | c[k] << 2 * bits);
    });
    return Next::on;
}

Run decode_pack(Statement &s)
{
    s.must_take_of({"sat"});
    const int k = s.must_take_of({"u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"});
    const int bits = 16 >> k / 2;
    s.must_take_of({"s32"});
    s.inst.value[0] = bits;
    s.inst.value[1] = k & 1;
    s.target(0, Type::b32);
    s.source(1, Type::s32);
    s.source(2, Type::s32);
    if (bits < 16) {
        s.must_take_of({"b32"});
        s.source(3, Type::b32);
    }
    return pack_integers;
}

// --- decoding ---

// "The modifier .sat is illegal in cases where saturation is not possible."
bool may_saturate(Type d, Type from)
{
    const uint32_t sign_d = is_signed(d), sign_from = is_signed(from);
    return (sign_from && !sign_d) || bits_of(d) - sign_d < bits_of(from) - sign_from;
}
Run decode_integers(Statement &s, Type d, Type from)
{
    const bool sat = may_saturate(d, from) && s.take("sat");
    return with_integer(d, [&](auto to) {
        return with_integer(from, [&](auto of) -> Run {
            return sat ? integers_to_integers_sat<decltype(to)::type, decltype(of)::type>
                       : integers_to_integers<decltype(to)::type, decltype(of)::type>;
        });
    });
}

Run decode_to_integer(Statement &s, Type d, Type from)
{
    Mode m;
    m.rounding = (Rounding)s.must_take_of({"rni", "rzi", "rmi", "rpi"});
    m.ftz = from == Type::f32 && s.take("ftz");
    if (from != Type::bf16)
        s.take("sat"); // "redundant"
    s.inst.value[0] = m.packed();
    return with_integer(d, [&](auto to) {
        return with_float(from, [&](auto of) -> Run {
            constexpr Type t = decltype(to)::type, f = decltype(of)::type;
            static const Run runs[] = {
                floats_to_integers<t, f, to_nearest>, floats_to_integers<t, f, to_zero>,
                floats_to_integers<t, f, down>, floats_to_integers<t, f, up>};
            return runs[m.rounding];
        });
    });
}

Run decode_from_integer(Statement &s, Type d, Type from)
{
    Mode m;
    m.rounding = (Rounding)s.must_take_of({"rn", "rz", "rm", "rp"});
    m.ftz = d == Type::f32 && s.take("ftz"); // no integer makes a subnormal value
    m.sat = d != Type::bf16 && s.take("sat");
    s.inst.value[0] = m.packed();
    const bool plain = m.rounding == to_nearest && !m.sat;
    return with_integer(from, [&](auto of) {
        constexpr Type f = decltype(of)::type;
        if (plain && d == Type::f32)
            return (Run)integers_to_nearest<float, f>;
        if (plain && d == Type::f64)
            return (Run)integers_to_nearest<double, f>;
        return with_float(
            d, [&](auto to) -> Run { return integers_to_floats<decltype(to)::type, f>; });
    });
}

// .relu and .satfinite of conversions from f32 to narrower types
void take_limits(Statement &s, Mode &m)
{
    m.relu = s.take("relu");
    m.satfinite = s.take("satfinite");
    if ((m.relu || m.satfinite) && (m.rounding == down || m.rounding == up))
        s.refuse(".relu and .satfinite go with .rn and .rz");
    if ((m.relu || m.satfinite) && m.sat)
        s.refuse(".sat excludes .relu and .satfinite");
}

// True if `wide` has every value of `narrow`.
bool holds(Type wide, Type narrow)
{
    const Format w = format_of(wide), n = format_of(narrow);
    return w.exponent >= n.exponent && w.mantissa >= n.mantissa;
}

Run decode_same(Statement &s, Type t)
{
    Mode m;
    const int k = s.take_of({"rni", "rzi", "rmi", "rpi"});
    const bool integral = k >= 0;
    m.rounding = integral ? (Rounding)k : to_nearest;
    m.ftz = t == Type::f32 && s.take("ftz");
    m.sat = t != Type::bf16 && s.take("sat");
    s.inst.value[0] = m.packed();
    if (t == Type::f32 && m.sat && !m.ftz && !integral)
        return sat_f32;
    return with_float(t, [&](auto type) -> Run {
        constexpr Type f = decltype(type)::type;
        static const Run runs[] = {floats_to_integral<f, to_nearest>,
                                   floats_to_integral<f, to_zero>, floats_to_integral<f, down>,
                                   floats_to_integral<f, up>};
        if (integral)
            return runs[m.rounding];
        return m.sat || m.ftz ? floats_to_floats<f, f> : floats_as_they_are<f, f>;
    });
}

// The vector handlers of what is frequent; null: it is something else.
Run fast(const Mode &m, Type d, Type from)
{
    if (m.rounding != to_nearest || m.ftz || m.sat || m.relu || m.satfinite)
        return nullptr;
    if (d == Type::f32)
        return from == Type::f16    ? f32_of_f16
               : from == Type::bf16 ? floats_as_they_are<Type::f32, Type::bf16>
                                    : f32_of_f64;
    if (from != Type::f32)
        return nullptr;
    return d == Type::f16      ? f16_of_f32
           : d == Type::bf16   ? bf16_of_f32
           : d == Type::f16x2  ? f16x2_of_f32
           : d == Type::bf16x2 ? bf16x2_of_f32
           : d == Type::f64    ? f64_of_f32
                               : nullptr;
}

Run decode_floats(Statement &s, Type d, Type from)
{
    if (d == from)
        return decode_same(s, d);
    Mode m;
    // Between these two ptxas takes it without a rounding, as .rn.
    if ((d == Type::bf16 && from == Type::f16) || (d == Type::f16 && from == Type::bf16))
        m.rounding = (Rounding)std::max(s.take_of({"rn", "rz", "rm", "rp"}), 0);
    else if (!holds(d, from))
        m.rounding = (Rounding)s.must_take_of({"rn", "rz", "rm", "rp"});
    else if (from == Type::bf16)
        s.take_of({"rn", "rz", "rm", "rp"}); // nothing to round: "cvt.f64.bf16.rp"
    m.ftz = (d == Type::f32 || from == Type::f32) && s.take("ftz");
    m.sat = d != Type::bf16 && from != Type::bf16 && s.take("sat");
    if (from == Type::f32 && d != Type::f64)
        take_limits(s, m);
    s.inst.value[0] = m.packed();
    if (Run run = fast(m, d, from))
        return run;
    return with_float(d, [&](auto to) {
        return with_float(from, [&](auto of) -> Run {
            return floats_to_floats<decltype(to)::type, decltype(of)::type>;
        });
    });
}

Run decode_tf32(Statement &s)
{
    static const Rounding roundings[] = {to_nearest, to_zero, ties_away};
    Mode m;
    m.rounding = roundings[s.must_take_of({"rn", "rz", "rna"})];
    take_limits(s, m);
    if (m.relu && m.rounding == ties_away)
        s.refuse(".relu goes with .rn and .rz");
    s.inst.value[0] = m.packed();
    return floats_to_floats<Type::tf32, Type::f32>;
}

// Two values at once: f16x2, bf16x2, e4m3x2, e5m2x2. Takes the operands.
Run decode_packed(Statement &s, Type d, Type from)
{
    const bool d8 = d == Type::e4m3x2 || d == Type::e5m2x2;
    const bool from8 = from == Type::e4m3x2 || from == Type::e5m2x2;
    Mode m;
    m.rounding = (Rounding)s.must_take_of({"rn", "rz"});
    if ((d8 || from8) && m.rounding != to_nearest)
        s.refuse("types of 8 bits have no other rounding than .rn");
    m.relu = s.take("relu");
    if (d8)
        s.must_take_of({"satfinite"});
    m.satfinite = d8 || (!from8 && s.take("satfinite"));
    s.inst.value[0] = m.packed();
    s.target(0, d);
    s.source(1, from);
    if (from == Type::f32) {
        s.source(2, from);
        if (Run run = fast(m, d, from))
            return run;
        return d == Type::f16x2    ? pack_floats<Type::f16>
               : d == Type::bf16x2 ? pack_floats<Type::bf16>
               : d == Type::e4m3x2 ? pack_floats<Type::e4m3>
                                   : pack_floats<Type::e5m2>;
    }
    if (d8 && from == Type::f16x2)
        return d == Type::e4m3x2 ? repack_floats<Type::e4m3, Type::f16>
                                 : repack_floats<Type::e5m2, Type::f16>;
    if (d == Type::f16x2 && from8)
        return from == Type::e4m3x2 ? repack_floats<Type::f16, Type::e4m3>
                                    : repack_floats<Type::f16, Type::e5m2>;
    s.refuse("from %s to %s is not known", name_of(from), name_of(d));
}

bool is_packed_float(Type t)
{
    return t == Type::f16x2 || t == Type::bf16x2 || t == Type::e4m3x2 || t == Type::e5m2x2;
}
bool is_plain_integer(Type t)
{
    return (t >= Type::u8 && t <= Type::s64);
}

Run decode_cvt(Statement &s)
{
    if (s.take("pack"))
        return decode_pack(s);
    for (const char *absent : {"rs", "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2", "e2m1x4", "e2m3x4",
                               "e3m2x4", "e4m3x4", "e5m2x4"})
        if (s.take(absent))
            s.refuse(".%s is not emulated, since sm_90 does not have it", absent);
    const Type d = s.take_type(), from = s.take_type();
    s.inst.type = d;
    s.inst.from = from;
    if (is_packed_float(d) && (is_packed_float(from) || from == Type::f32))
        return decode_packed(s, d, from);
    const bool tf32 = d == Type::tf32 && from == Type::f32;
    if (!tf32 && ((!is_plain_integer(d) && !is_scalar_float(d)) ||
                  (!is_plain_integer(from) && !is_scalar_float(from))))
        s.refuse("from %s to %s is not known", name_of(from), name_of(d));
    s.target(0, d);
    s.source(1, from);
    if (tf32)
        return decode_tf32(s);
    if (is_plain_integer(d))
        return is_plain_integer(from) ? decode_integers(s, d, from) : decode_to_integer(s, d, from);
    return is_plain_integer(from) ? decode_from_integer(s, d, from) : decode_floats(s, d, from);
}
} // namespace

const Operation conversions[] = {{"cvt", decode_cvt}, {nullptr, nullptr}};
} // namespace ptx
