// Arithmetic of integers: "Integer Arithmetic Instructions" and "Extended-Precision Integer
// Arithmetic Instructions" of the PTX ISA; and the list of all operations on integers.
#include "integers.hpp"

namespace ptx
{
using namespace integer;

namespace
{
// --- addition, subtraction ---

int32_t saturated(int64_t v)
{
    return (int32_t)(v < INT32_MIN ? INT32_MIN : v > INT32_MAX ? INT32_MAX : v);
}
template <class F> struct Saturated { // F of 32-bit numbers, computed in 64 bits
    int32_t operator()(int32_t a, int32_t b) const
    {
        return saturated(F()((int64_t)a, (int64_t)b));
    }
};
// F of both halves of words, as numbers of type T.
template <class F, class T> struct Halves {
    uint32_t operator()(uint32_t a, uint32_t b) const
    {
        const uint16_t low = (uint16_t)F()((T)a, (T)b),
                       high = (uint16_t)F()((T)(a >> 16), (T)(b >> 16));
        return (uint32_t)high << 16 | low;
    }
};

// CC.CF, the carry or borrow of each lane. A result that comes of an operand, or of a carry, that
// was never written counts as never written.
struct First {
    template <class T> T operator()(T a, T) const
    {
        return a;
    }
};
struct Sum {
    template <class U> static bool run(U a, U b, U carry, U *d)
    {
        const bool over = __builtin_add_overflow(a, b, d);
        return __builtin_add_overflow(*d, carry, d) | over;
    }
};
struct Difference {
    template <class U> static bool run(U a, U b, U carry, U *d)
    {
        const bool under = __builtin_sub_overflow(a, b, d);
        return __builtin_sub_overflow(*d, carry, d) | under;
    }
};
// d = Join(Of(first two sources), last source, carry).
template <class Of, class Join, bool in, bool out> struct Carried {
    template <class T> static Next run(Warp &w, const Inst &i, uint32_t lanes)
    {
        using U = Unsigned<T>;
        Lanes<T> d(w, i.d[0]), a(w, i.s[0]), b(w, i.s[1]), last(w, i.s[i.n_s - 1]);
        uint32_t carry = 0, known = in ? w.carry_defined : all_lanes;
        for (uint32_t k = 0; k < i.n_s; k++)
            known &= w.defined[i.s[k]];
        each(lanes, [&](uint32_t k) {
            U r;
            const U from = in ? w.carry >> k & 1 : 0;
            carry |= (uint32_t)Join::run((U)Of()(a[k], b[k]), (U)last[k], from, &r) << k;
            d.set(k, (T)r);
        });
        w.defined[i.d[0]] = (w.defined[i.d[0]] & ~lanes) | (known & lanes);
        if (out) {
            w.carry = (w.carry & ~lanes) | carry;
            w.carry_defined = (w.carry_defined & ~lanes) | (known & lanes);
        }
        return Next::on;
    }
};
template <class Of, class Join> Run decode_carried(Statement &s, bool in, size_t n)
{
    const bool out = s.take("cc");
    const Type t = s.take_type();
    operands(s, t, n);
    s.inst.own_defined = true;
    const uint64_t allowed = of_32 | of_64;
    return !in   ? by_type<Carried<Of, Join, false, true>>(s, t, allowed)
           : out ? by_type<Carried<Of, Join, true, true>>(s, t, allowed)
                 : by_type<Carried<Of, Join, true, false>>(s, t, allowed);
}
template <class Join> Run decode_with_carry(Statement &s) // addc, subc
{
    return decode_carried<First, Join>(s, true, 2);
}

// add and sub: F, and WithCarry for .cc.
template <class F, class WithCarry, bool packed> Run decode_sum(Statement &s)
{
    if (is_float(s.last_type()))
        return nullptr;
    if (has(s, "cc"))
        return decode_carried<First, WithCarry>(s, false, 2);
    const bool sat = s.take("sat");
    const Type t = s.take_type();
    operands(s, t, 2);
    if (sat && t != Type::s32)
        s.refuse(".sat goes with .s32 only");
    if (sat)
        return Binary<Saturated<F>>::template run<int32_t>;
    if (packed && (t == Type::u16x2 || t == Type::s16x2))
        return Binary<Halves<F, uint16_t>>::template run<uint32_t>;
    return by_type<Binary<F>>(s, t, numbers);
}

// --- products ---

struct Low {
    template <class T> T operator()(T a, T b) const
    {
        using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
        return (T)((U)a * (U)b);
    }
};
struct High {
    template <class T> T operator()(T a, T b) const
    {
        if constexpr (sizeof(T) < 8)
            return (T)((Twice<T>)a * (Twice<T>)b >> width<T>);
        else if constexpr (std::is_signed_v<T>)
            return (T)((__int128)a * b >> 64);
        else
            return (T)((unsigned __int128)a * b >> 64);
    }
};
struct Whole {
    template <class T> Twice<T> operator()(T a, T b) const
    {
        return (Twice<T>)((Twice<T>)a * (Twice<T>)b);
    }
    uint64_t operator()(uint64_t a, uint64_t b) const
    {
        return a * b;
    }
    int64_t operator()(int64_t a, int64_t b) const
    {
        return (int64_t)((uint64_t)a * (uint64_t)b);
    }
};
template <bool high> struct Product24 { // of the low 24 bits: bits 47 to 16 or 31 to 0
    template <class T> T operator()(T a, T b) const
    {
        return (T)((int64_t)low_24(a) * (int64_t)low_24(b) >> (high ? 16 : 0));
    }
    template <class T> static T low_24(T a)
    {
        constexpr uint32_t above = width < T >> 24 ? width<T> - 24 : 0;
        return (T)((T)((Unsigned<T>)a << above) >> above);
    }
};
template <class Of> struct Plus { // Of(a, b) + c
    template <class T, class C> C operator()(T a, T b, C c) const
    {
        return Add()((C)Of()(a, b), c);
    }
};
template <class Of> struct PlusSaturated {
    int32_t operator()(int32_t a, int32_t b, int32_t c) const
    {
        return saturated((int64_t)Of()(a, b) + c);
    }
};

Type twice(Type t)
{
    switch (t) {
    case Type::u16:
        return Type::u32;
    case Type::s16:
        return Type::s32;
    case Type::u32:
        return Type::u64;
    default:
        return Type::s64;
    }
}

Run decode_multiply(Statement &s)
{
    if (is_float(s.last_type()))
        return nullptr;
    const int part = s.must_take_of({"lo", "hi", "wide"});
    const Type t = s.take_type();
    s.target(0, part == 2 ? twice(t) : t);
    s.source(1, t);
    s.source(2, t);
    return part == 0   ? by_type<Binary<Low>>(s, t, numbers)
           : part == 1 ? by_type<Binary<High>>(s, t, numbers)
                       : by_type<Wide<Whole>>(s, t, of_16 | of_32);
}

Run decode_multiply_add(Statement &s)
{
    if (is_float(s.last_type()))
        return nullptr;
    const int part = s.must_take_of({"lo", "hi", "wide"});
    if (part != 2 && has(s, "cc"))
        return part ? decode_carried<High, Sum>(s, false, 3)
                    : decode_carried<Low, Sum>(s, false, 3);
    const bool sat = s.take("sat");
    const Type t = s.take_type(), sum = part == 2 ? twice(t) : t;
    s.target(0, sum);
    s.source(1, t);
    s.source(2, t);
    s.source(3, sum);
    if (sat && (part != 1 || t != Type::s32))
        s.refuse(".sat goes with .hi and .s32 only");
    if (sat)
        return Ternary<PlusSaturated<High>>::run<int32_t>;
    return part == 0   ? by_type<Ternary<Plus<Low>>>(s, t, numbers)
           : part == 1 ? by_type<Ternary<Plus<High>>>(s, t, numbers)
                       : by_type<WideSum<Plus<Whole>>>(s, t, of_16 | of_32);
}

Run decode_multiply_add_with_carry(Statement &s)
{
    return s.must_take_of({"lo", "hi"}) ? decode_carried<High, Sum>(s, true, 3)
                                        : decode_carried<Low, Sum>(s, true, 3);
}

Run decode_multiply_24(Statement &s)
{
    const int part = s.must_take_of({"lo", "hi"});
    const Type t = s.take_type();
    operands(s, t, 2);
    return part ? by_type<Binary<Product24<true>>>(s, t, of_32)
                : by_type<Binary<Product24<false>>>(s, t, of_32);
}

Run decode_multiply_add_24(Statement &s)
{
    const int part = s.must_take_of({"lo", "hi"});
    const bool sat = s.take("sat");
    const Type t = s.take_type();
    operands(s, t, 3);
    if (sat && (!part || t != Type::s32))
        s.refuse(".sat goes with .hi and .s32 only");
    if (sat)
        return Ternary<PlusSaturated<Product24<true>>>::run<int32_t>;
    return part ? by_type<Ternary<Plus<Product24<true>>>>(s, t, of_32)
                : by_type<Ternary<Plus<Product24<false>>>>(s, t, of_32);
}

// dp4a, dp2a: c and the products of n numbers of type A in a and n bytes, of type B, in b.
template <class A, class B, int n, int first_byte> struct Dot {
    uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const
    {
#pragma GCC unroll 4
        for (int k = 0; k < n; k++)
            c += (uint32_t)((int32_t)(A)(a >> (8 * sizeof(A) * k)) *
                            (int32_t)(B)(b >> (8 * (first_byte + k))));
        return c;
    }
};
template <class A, class B, int n, int first_byte = 0> constexpr Run dot()
{
    return Ternary<Dot<A, B, n, first_byte>>::template run<uint32_t>;
}

Run decode_dot(Statement &s)
{
    static const Run runs[3][2][2] = {
        {{dot<uint8_t, uint8_t, 4>(), dot<uint8_t, int8_t, 4>()},
         {dot<int8_t, uint8_t, 4>(), dot<int8_t, int8_t, 4>()}},
        {{dot<uint16_t, uint8_t, 2, 0>(), dot<uint16_t, int8_t, 2, 0>()},
         {dot<int16_t, uint8_t, 2, 0>(), dot<int16_t, int8_t, 2, 0>()}},
        {{dot<uint16_t, uint8_t, 2, 2>(), dot<uint16_t, int8_t, 2, 2>()},
         {dot<int16_t, uint8_t, 2, 2>(), dot<int16_t, int8_t, 2, 2>()}}};
    const int part = s.base == "dp4a" ? 0 : 1 + s.must_take_of({"lo", "hi"});
    const Type a = s.take_type(), b = s.take_type();
    if ((a != Type::u32 && a != Type::s32) || (b != Type::u32 && b != Type::s32))
        s.refuse("the types .%s and .%s do not fit", name_of(a), name_of(b));
    operands(s, is_signed(a) || is_signed(b) ? Type::s32 : Type::u32, 3);
    return runs[part][is_signed(a)][is_signed(b)];
}

// --- quotients, magnitudes, extremes ---

struct Divide { // a quotient by zero is unspecified: all ones
    template <class T> T operator()(T a, T b) const
    {
        if (!b)
            return (T) ~(T)0;
        if (std::is_signed_v<T> && b == (T) ~(T)0)
            return Subtract()((T)0, a); // the smallest one stays itself
        return (T)(a / b);
    }
};
struct Remainder { // likewise
    template <class T> T operator()(T a, T b) const
    {
        if (!b)
            return (T) ~(T)0;
        return std::is_signed_v<T> && b == (T) ~(T)0 ? (T)0 : (T)(a % b);
    }
};
struct Negate {
    template <class T> T operator()(T a) const
    {
        return Subtract()((T)0, a);
    }
};
struct Magnitude {
    template <class T> T operator()(T a) const
    {
        return a < 0 ? Negate()(a) : a;
    }
};
struct SumOfDifferences { // sad
    template <class T> T operator()(T a, T b, T c) const
    {
        return Add()(c, a < b ? Subtract()(b, a) : Subtract()(a, b));
    }
};
template <class F> struct NotNegative { // .relu
    template <class T> T operator()(T a, T b) const
    {
        const T r = F()(a, b);
        return r < 0 ? (T)0 : r;
    }
};
template <class F> Run decode_extreme(Statement &s)
{
    if (is_float(s.last_type()))
        return nullptr;
    const bool relu = s.take("relu");
    const Type t = s.take_type();
    operands(s, t, 2);
    if (relu && t != Type::s32 && t != Type::s16x2)
        s.refuse(".relu goes with .s32 and .s16x2 only");
    if (t == Type::s16x2)
        return relu ? Binary<Halves<NotNegative<F>, int16_t>>::template run<uint32_t>
                    : Binary<Halves<F, int16_t>>::template run<uint32_t>;
    if (t == Type::u16x2)
        return Binary<Halves<F, uint16_t>>::template run<uint32_t>;
    return relu ? Binary<NotNegative<F>>::template run<int32_t> : by_type<Binary<F>>(s, t, numbers);
}
} // namespace

const Operation integers[] = {
    {"mov", decode_mov},
    {"add", decode_sum<Add, Sum, true>},
    {"addc", decode_with_carry<Sum>},
    {"sub", decode_sum<Subtract, Difference, false>},
    {"subc", decode_with_carry<Difference>},
    {"mul", decode_multiply},
    {"mul24", decode_multiply_24},
    {"mad", decode_multiply_add},
    {"mad24", decode_multiply_add_24},
    {"madc", decode_multiply_add_with_carry},
    {"sad", decode_plain<Ternary<SumOfDifferences>, 3, numbers>},
    {"div", decode_plain<Binary<Divide>, 2, numbers>},
    {"rem", decode_plain<Binary<Remainder>, 2, numbers>},
    {"abs", decode_plain<Unary<Magnitude>, 1, with_sign>},
    {"neg", decode_plain<Unary<Negate>, 1, with_sign>},
    {"min", decode_extreme<Min>},
    {"max", decode_extreme<Max>},
    {"dp4a", decode_dot},
    {"dp2a", decode_dot},
    {"popc", decode_popc},
    {"clz", decode_clz},
    {"bfind", decode_bfind},
    {"fns", decode_fns},
    {"brev", decode_brev},
    {"bfe", decode_bfe},
    {"bfi", decode_bfi},
    {"bmsk", decode_bmsk},
    {"szext", decode_szext},
    {"and", decode_and},
    {"or", decode_or},
    {"xor", decode_xor},
    {"not", decode_not},
    {"cnot", decode_cnot},
    {"lop3", decode_lop3},
    {"shl", decode_shl},
    {"shr", decode_shr},
    {"shf", decode_shf},
    {"prmt", decode_prmt},
    {"setp", decode_setp},
    {"set", decode_set},
    {"selp", decode_selp},
    {"slct", decode_slct},
    {nullptr, nullptr},
};
} // namespace ptx
