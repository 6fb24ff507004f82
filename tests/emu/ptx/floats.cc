// Floating-point arithmetic: decoding. The operations themselves are in arithmetic.hpp.
//
// Source: PTX ISA 9, "Floating-Point Instructions", "Half Precision Floating-Point Instructions".
#include "arithmetic.hpp"

namespace ptx
{
namespace
{
// --- the handler of an operation, for a type and modifiers ---

constexpr unsigned modifiers_of(Type t) // that arithmetic on the type has
{
    return t == Type::f32 ? ftz | sat : is_half(t) ? ftz | sat | relu : is_bf16(t) ? +relu : 0;
}
template <class Op, uint32_t n, unsigned allowed, Type t> Run pick(unsigned mods, bool is_directed)
{
    constexpr unsigned a = allowed & modifiers_of(t);
    if constexpr (t == Type::f32 || t == Type::f64) {
        static const Run runs[] = {
            directed<compute<Op, t, 0, n>>, directed<compute<Op, t, 1 & a, n>>,
            directed<compute<Op, t, 2 & a, n>>, directed<compute<Op, t, 3 & a, n>>};
        if (is_directed)
            return runs[mods];
    }
    static const Run runs[] = {compute<Op, t, 0, n>,     compute<Op, t, 1 & a, n>,
                               compute<Op, t, 2 & a, n>, compute<Op, t, 3 & a, n>,
                               compute<Op, t, 4 & a, n>, compute<Op, t, 5 & a, n>};
    return runs[mods];
}
template <class Op, uint32_t n, unsigned allowed> // not of f64
Run pick_narrow(Type t, unsigned mods, bool is_directed = false)
{
    switch (t) {
    case Type::f16:
        return pick<Op, n, allowed, Type::f16>(mods, is_directed);
    case Type::f16x2:
        return pick<Op, n, allowed, Type::f16x2>(mods, is_directed);
    case Type::bf16:
        return pick<Op, n, allowed, Type::bf16>(mods, is_directed);
    case Type::bf16x2:
        return pick<Op, n, allowed, Type::bf16x2>(mods, is_directed);
    default:
        return pick<Op, n, allowed, Type::f32>(mods, is_directed);
    }
}
template <class Op, uint32_t n, unsigned allowed>
Run pick_any(Type t, unsigned mods, bool is_directed = false)
{
    return t == Type::f64 ? pick<Op, n, allowed, Type::f64>(mods, is_directed)
                          : pick_narrow<Op, n, allowed>(t, mods, is_directed);
}
template <class Op, uint32_t n> Run pick_wide(Type t, unsigned mods, bool is_directed)
{
    return t == Type::f32 ? pick<Op, n, ftz, Type::f32>(mods, is_directed)
                          : pick<Op, n, 0, Type::f64>(mods, is_directed);
}

// --- decoding ---

// The type, which is the only one: sums of f32 with f16 or bf16 are of later devices than sm_90.
Type take_only_type(Statement &s)
{
    const Type t = s.take_type();
    if (s.last_type() != Type::none)
        s.refuse("operands of two types are not emulated");
    s.inst.type = t;
    return t;
}
// Takes the modifiers of `allowed` that the type has; others stay and are refused as not known.
unsigned take_modifiers(Statement &s, Type t, unsigned allowed)
{
    allowed &= modifiers_of(t);
    unsigned mods = 0;
    if (allowed & ftz && s.take("ftz"))
        mods |= ftz;
    if (allowed & sat && s.take("sat"))
        mods |= sat;
    if (allowed & relu && s.take("relu"))
        mods |= relu;
    if ((mods & (sat | relu)) == (sat | relu))
        s.refuse(".sat and .relu exclude each other");
    return mods;
}
// Takes a rounding, kept in value[0]. True if it is not to the nearest.
bool take_rounding(Statement &s, Type t, bool needed)
{
    const int k = s.take_of({"rn", "rz", "rm", "rp"});
    if (k > 0 && t != Type::f32 && t != Type::f64)
        s.refuse("%s has no other rounding than .rn", name_of(t));
    if (k < 0 && needed)
        s.refuse("one of .rn, .rz, .rm, .rp is expected");
    s.inst.value[0] = k;
    return k > 0;
}
void take_operands(Statement &s, Type t, size_t sources)
{
    s.target(0, t);
    for (size_t k = 1; k <= sources; k++)
        s.source(k, t);
}

template <class Op> Run decode_two(Statement &s) // add, sub, mul
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    const Type t = take_only_type(s);
    const bool is_directed = take_rounding(s, t, false);
    const unsigned mods = take_modifiers(s, t, ftz | sat);
    take_operands(s, t, 2);
    return pick_any<Op, 2, ftz | sat>(t, mods, is_directed);
}

Run decode_fma(Statement &s)
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    const Type t = take_only_type(s);
    if (s.base == "mad" && t != Type::f32 && t != Type::f64)
        s.refuse("there is no type %s", name_of(t));
    const bool is_directed = take_rounding(s, t, true);
    const unsigned mods = take_modifiers(s, t, ftz | sat | relu);
    if (s.take("oob"))
        s.refuse(".oob is not emulated: which NaN it looks for is not documented");
    take_operands(s, t, 3);
    return pick_any<Fma, 3, ftz | sat | relu>(t, mods, is_directed);
}

Type take_wide_type(Statement &s)
{
    const Type t = take_only_type(s);
    if (t != Type::f32 && t != Type::f64)
        s.refuse("there is no type %s", name_of(t));
    return t;
}

Run decode_divide(Statement &s)
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    const Type t = take_wide_type(s);
    const int how = t == Type::f32 ? s.take_of({"approx", "full"}) : -1;
    const bool is_directed = how < 0 && take_rounding(s, t, true);
    const unsigned mods = take_modifiers(s, t, ftz);
    take_operands(s, t, 2);
    if (how == 0)
        return pick<DivideApprox, 2, ftz, Type::f32>(mods, false);
    return pick_wide<Divide, 2>(t, mods, is_directed);
}

template <class Op> Run decode_root(Statement &s) // rcp, sqrt
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    const Type t = take_wide_type(s);
    const bool approx = s.take("approx");
    const bool is_directed = !approx && take_rounding(s, t, true);
    unsigned mods = take_modifiers(s, t, ftz);
    take_operands(s, t, 1);
    if (approx && t == Type::f64) {
        if (s.base != "rcp" || !s.take("ftz"))
            s.refuse(".approx of f64 is rcp.approx.ftz.f64 only");
        return compute<Gross<false>, Type::f64, 0, 1>;
    }
    return pick_wide<Op, 1>(t, mods, is_directed);
}

Run decode_rsqrt(Statement &s)
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    const Type t = take_wide_type(s);
    s.must_take_of({"approx"});
    const bool gross = t == Type::f64 && s.take("ftz");
    const unsigned mods = take_modifiers(s, t, ftz);
    take_operands(s, t, 1);
    if (gross)
        return compute<Gross<true>, Type::f64, 0, 1>;
    return pick_wide<ReciprocalRoot, 1>(t, mods, false);
}

template <class Op> Run decode_approx(Statement &s) // sin, cos, lg2: of f32
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    s.must_take_of({"approx"});
    if (take_wide_type(s) != Type::f32)
        s.refuse("there is no type f64");
    const unsigned mods = take_modifiers(s, Type::f32, ftz);
    take_operands(s, Type::f32, 1);
    return pick<Op, 1, ftz, Type::f32>(mods, false);
}

Run decode_ex2(Statement &s)
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    s.must_take_of({"approx"});
    const Type t = take_only_type(s);
    take_operands(s, t, 1);
    if (is_bf16(t)) {
        s.must_take_of({"ftz"});
        return t == Type::bf16 ? compute<Exp2, Type::bf16, ftz, 1>
                               : compute<Exp2, Type::bf16x2, ftz, 1>;
    }
    if (t == Type::f64)
        s.refuse("there is no type f64");
    return pick_narrow<Exp2, 1, ftz>(t, t == Type::f32 ? take_modifiers(s, t, ftz) : 0);
}

Run decode_tanh(Statement &s)
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    s.must_take_of({"approx"});
    const Type t = take_only_type(s);
    if (t == Type::f64)
        s.refuse("there is no type f64");
    take_operands(s, t, 1);
    return pick_narrow<Tanh, 1, 0>(t, 0);
}

template <class Op> Run decode_sign(Statement &s) // abs, neg
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    const Type t = take_only_type(s);
    const unsigned mods = take_modifiers(s, t, ftz);
    take_operands(s, t, 1);
    return pick_any<Op, 1, ftz>(t, mods);
}

// A value with the sign of another one; NaNs keep their bits.
template <class T> Next copy_sign(Warp &w, const Inst &i, uint32_t lanes)
{
    constexpr T sign = (T)1 << (8 * sizeof(T) - 1);
    return binary<T, T, T>(w, i, lanes, [](T a, T b) { return (a & sign) | (b & ~sign); });
}
Run decode_copysign(Statement &s)
{
    const Type t = take_wide_type(s);
    take_operands(s, t, 2);
    return t == Type::f32 ? copy_sign<uint32_t> : copy_sign<uint64_t>;
}

template <bool greater, bool nan> Run pick_of(Statement &s, Type t, unsigned mods, Signs signs)
{
    if (s.n_operand() == 4) { // d, a, b, c
        take_operands(s, t, 3);
        return signs ? pick<Pick<greater, nan, only_abs>, 3, ftz, Type::f32>(mods, false)
                     : pick<Pick<greater, nan, as_they_are>, 3, ftz, Type::f32>(mods, false);
    }
    take_operands(s, t, 2);
    return signs ? pick_any<Pick<greater, nan, xorsign_abs>, 2, ftz>(t, mods)
                 : pick_any<Pick<greater, nan, as_they_are>, 2, ftz>(t, mods);
}
template <bool greater> Run decode_pick(Statement &s) // min, max
{
    if (!is_arithmetic(s.last_type()))
        return nullptr;
    const Type t = take_only_type(s);
    const bool three = s.n_operand() == 4;
    if (three && t != Type::f32)
        s.refuse("three values are of f32 only");
    const unsigned mods = take_modifiers(s, t, ftz);
    const bool nan = t != Type::f64 && s.take("NaN");
    Signs signs = as_they_are;
    if (t != Type::f64 && s.take("abs"))
        signs = three ? only_abs : xorsign_abs;
    if (signs == xorsign_abs)
        s.must_take_of({"xorsign"});
    return nan ? pick_of<greater, true>(s, t, mods, signs)
               : pick_of<greater, false>(s, t, mods, signs);
}
} // namespace

const Operation floats[] = {{"add", decode_two<Add>},
                            {"sub", decode_two<Sub>},
                            {"mul", decode_two<Mul>},
                            {"fma", decode_fma},
                            {"mad", decode_fma},
                            {"div", decode_divide},
                            {"rcp", decode_root<Reciprocal>},
                            {"sqrt", decode_root<SquareRoot>},
                            {"rsqrt", decode_rsqrt},
                            {"sin", decode_approx<Sine>},
                            {"cos", decode_approx<Cosine>},
                            {"lg2", decode_approx<Log2>},
                            {"ex2", decode_ex2},
                            {"tanh", decode_tanh},
                            {"abs", decode_sign<Absolute>},
                            {"neg", decode_sign<Negate>},
                            {"copysign", decode_copysign},
                            {"min", decode_pick<false>},
                            {"max", decode_pick<true>},
                            {"testp", decode_testp},
                            {"setp", decode_setp},
                            {"set", decode_set},
                            {nullptr, nullptr}};
} // namespace ptx
