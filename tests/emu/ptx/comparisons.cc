// Comparisons of floating-point values: setp, set, testp.
//
// Source: PTX ISA 9, "Comparison and Selection Instructions", "Half Precision Comparison
// Instructions", "Floating-Point Instructions: testp".
#include "arithmetic.hpp"

namespace ptx
{
namespace
{
// --- comparisons ---

// A comparison is the set of relations between two values for which it is true.
enum Relation : unsigned { less = 1, equal = 2, greater = 4, unordered = 8 };

template <Type t, bool with_ftz> F8 half_of(U8 words, bool upper)
{
    F8 v;
    if constexpr (t == Type::f32)
        v = bits_to<F8>(words);
    else if constexpr (is_half(t))
        v = floats_of_halves(low_halves(upper ? words >> 16 : words));
    else
        v = bits_to<F8>(upper ? words & 0xffff0000 : words << 16);
    return with_ftz ? flush(v, Parts<t>::least_normal) : v;
}

// A bit a lane: whether the sources are in one of the relations; upper: their upper halves.
template <Type t, bool with_ftz>
uint32_t compare(Warp &w, const Inst &i, unsigned relations, bool upper)
{
    const auto wanted = [&](Relation r) { return I8{} - (int32_t)((relations & r) != 0); };
    const I8 l = wanted(less), e = wanted(equal), g = wanted(greater), u = wanted(unordered);
    uint32_t result = 0;
    for (uint32_t at = 0; at < warp_lanes; at += chunk) {
        const F8 a = half_of<t, with_ftz>(load_words(w.words(i.s[0]) + at), upper);
        const F8 b = half_of<t, with_ftz>(load_words(w.words(i.s[1]) + at), upper);
        const I8 nan = (a != a) | (b != b);
        result |= signs_of(((a < b) & l) | ((a == b) & e) | ((a > b) & g) | (nan & u)) << at;
    }
    return result;
}
uint32_t compare_f64(Warp &w, const Inst &i, unsigned relations)
{
    const Lanes<double> a(w, i.s[0]), b(w, i.s[1]);
    uint32_t result = 0;
    for (uint32_t k = 0; k < warp_lanes; k++) {
        const unsigned is = a[k] < b[k]    ? less
                            : a[k] == b[k] ? equal
                            : a[k] > b[k]  ? greater
                                           : unordered;
        result |= (uint32_t)((is & relations) != 0) << k;
    }
    return result;
}

// Comparison and combination of setp and set, kept in Inst::value[0].
struct Combination {
    unsigned relations;
    enum { alone, with_and, with_or, with_xor } how;
    bool negated; // the predicate they are combined with
    int64_t packed() const
    {
        return relations | how << 4 | negated << 6;
    }
    explicit Combination(int64_t value)
        : relations(value & 15), how(decltype(how)(value >> 4 & 3)), negated(value >> 6 & 1)
    {
    }
    uint32_t with(uint32_t truth, uint32_t predicate) const
    {
        predicate = negated ? ~predicate : predicate;
        return how == alone      ? truth
               : how == with_and ? truth & predicate
               : how == with_or  ? truth | predicate
                                 : truth ^ predicate;
    }
};

// The results of the two comparisons of packed values; of others, of the comparison and of its
// complement.
template <Type t, bool with_ftz> void truths(Warp &w, const Inst &i, uint32_t *both)
{
    const Combination c(i.value[0]);
    if constexpr (t == Type::f64)
        both[0] = compare_f64(w, i, c.relations);
    else
        both[0] = compare<t, with_ftz>(w, i, c.relations, false);
    both[1] = ~both[0];
    if constexpr (is_packed(t))
        both[1] = compare<t, with_ftz>(w, i, c.relations, true);
    const uint32_t predicate = c.how == Combination::alone ? 0 : w.mask(i.s[2]);
    for (uint32_t k = 0; k < 2; k++)
        both[k] = c.with(both[k], predicate);
}

struct SetPredicates {
    template <Type t, bool with_ftz> static Next run(Warp &w, const Inst &i, uint32_t lanes)
    {
        uint32_t both[2];
        truths<t, with_ftz>(w, i, both);
        for (uint32_t k = 0; k < 2; k++)
            w.mask(i.d[k]) = (w.mask(i.d[k]) & ~lanes) | (both[k] & lanes);
        return Next::on;
    }
};
// value[1]: what true is; value[2]: what the second truth of packed values adds to it.
struct SetNumbers {
    template <Type t, bool with_ftz> static Next run(Warp &w, const Inst &i, uint32_t lanes)
    {
        uint32_t both[2];
        truths<t, with_ftz>(w, i, both);
        const U8 first = U8{} + (uint32_t)i.value[1], second = U8{} + (uint32_t)i.value[2];
        for (uint32_t at = 0; at < warp_lanes; at += chunk) {
            const U8 v = choose(lane_mask(both[0] >> at), first, U8{}) |
                         choose(lane_mask(both[1] >> at), second, U8{});
            store_words(w.words(i.d[0]) + at, v, lanes >> at);
        }
        return Next::on;
    }
};

// The comparison and how it is combined; the sources are appended by take_compared().
Combination take_combination(Statement &s)
{
    static const unsigned relations[] = {equal,
                                         less | greater,
                                         less,
                                         less | equal,
                                         greater,
                                         greater | equal,
                                         equal | unordered,
                                         less | greater | unordered,
                                         less | unordered,
                                         less | equal | unordered,
                                         greater | unordered,
                                         greater | equal | unordered,
                                         less | equal | greater,
                                         unordered};
    Combination c(0);
    c.relations = relations[s.must_take_of({"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu",
                                            "leu", "gtu", "geu", "num", "nan"})];
    c.how = decltype(c.how)(s.take_of({"and", "or", "xor"}) + 1);
    return c;
}
void take_compared(Statement &s, Combination c, Type t)
{
    s.inst.from = t;
    s.source(1, t);
    s.source(2, t);
    if (c.how != Combination::alone)
        s.source_pred(3, &c.negated);
    s.inst.value[0] = c.packed();
}
bool take_ftz(Statement &s, Type t)
{
    return (t == Type::f32 || is_half(t)) && s.take("ftz");
}

template <class H> Run by_type(Type t, bool with_ftz) // H::run of the type
{
    switch (t) {
    case Type::f16:
        return with_ftz ? H::template run<Type::f16, true> : H::template run<Type::f16, false>;
    case Type::f16x2:
        return with_ftz ? H::template run<Type::f16x2, true> : H::template run<Type::f16x2, false>;
    case Type::bf16:
        return H::template run<Type::bf16, false>;
    case Type::bf16x2:
        return H::template run<Type::bf16x2, false>;
    case Type::f64:
        return H::template run<Type::f64, false>;
    default:
        return with_ftz ? H::template run<Type::f32, true> : H::template run<Type::f32, false>;
    }
}

// --- testp ---

template <class T, int mantissa> Next testp(Warp &w, const Inst &i, uint32_t lanes)
{
    constexpr T top = ~(T)0 >> 1, infinity = top >> mantissa << mantissa;
    const Lanes<T> a(w, i.s[0]);
    uint32_t truth = 0;
    for (uint32_t k = 0; k < warp_lanes; k++) {
        const T v = a[k] & top;
        const bool finite = v <= infinity - 1, subnormal = v && !(v >> mantissa);
        const bool is[] = {finite,       v == infinity,        v <= infinity,
                           v > infinity, finite && !subnormal, subnormal};
        truth |= (uint32_t)is[i.value[0]] << k;
    }
    w.mask(i.d[0]) = (w.mask(i.d[0]) & ~lanes) | (truth & lanes);
    return Next::on;
}
} // namespace

// --- decoding ---

Run decode_setp(Statement &s)
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    const Combination c = take_combination(s);
    const Type t = s.take_type();
    const bool with_ftz = take_ftz(s, t);
    const bool pair = s.targets_pair(0, Type::pred, Type::pred);
    if (t != Type::f32 && t != Type::f64 && pair != is_packed(t))
        s.refuse("%s has %s", name_of(t), pair ? "one result" : "two results, p|q");
    take_compared(s, c, t);
    return by_type<SetPredicates>(t, with_ftz);
}

Run decode_set(Statement &s)
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    const Combination c = take_combination(s);
    const Type d = s.take_type(), t = s.take_type();
    const bool integer = d == Type::u32 || d == Type::s32, wide = t == Type::f32 || t == Type::f64;
    const bool narrow = (d == Type::u16 || d == Type::s16) && !wide && !is_packed(t);
    const bool number = is_packed(t)     ? d == t
                        : d == Type::f16 ? t != Type::bf16
                        : d == Type::f32 ? wide
                                         : d == Type::bf16;
    if (!integer && !narrow && !number)
        s.refuse("%s of a comparison of %s is not known", name_of(d), name_of(t));
    const uint32_t one = is_half(d)       ? 0x3c00
                         : is_bf16(d)     ? 0x3f80
                         : d == Type::f32 ? 0x3f800000
                         : narrow         ? 0xffff
                         : is_packed(t)   ? 0xffff
                                          : 0xffffffff;
    const bool with_ftz = d != Type::bf16 && take_ftz(s, t);
    s.inst.type = d;
    s.inst.value[1] = one;
    s.inst.value[2] = is_packed(t) ? one << 16 : 0;
    s.target(0, d);
    take_compared(s, c, t);
    return by_type<SetNumbers>(t, with_ftz);
}

Run decode_testp(Statement &s)
{
    const Type t = s.take_type();
    if (t != Type::f32 && t != Type::f64)
        s.refuse("there is no type %s", name_of(t));
    s.inst.value[0] =
        s.must_take_of({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
    s.inst.type = t;
    s.target(0, Type::pred);
    s.source(1, t);
    return t == Type::f32 ? testp<uint32_t, 23> : testp<uint64_t, 52>;
}
} // namespace ptx
