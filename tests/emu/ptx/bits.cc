// Bits of integers: "Integer Arithmetic Instructions" (popc, clz, bfind, fns, brev, bfe, bfi, bmsk,
// szext), "Logic and Shift Instructions" and "Data Movement and Conversion Instructions: prmt" of
// the PTX ISA.
#include "integers.hpp"

namespace ptx
{
namespace integer
{
namespace
{
// --- bits ---

struct CountOnes {
    template <class T> uint32_t operator()(T a) const
    {
        return (uint32_t)__builtin_popcountll((Unsigned<T>)a);
    }
};
struct CountZeros { // in front of the highest one
    template <class T> uint32_t operator()(T a) const
    {
        return a ? (uint32_t)__builtin_clzll((Unsigned<T>)a) - (64 - width<T>) : width<T>;
    }
};
template <bool shift_amount> struct Find { // bfind
    template <class T> uint32_t operator()(T a) const
    {
        const T bits = a < 0 ? (T)~a : a;
        if (!bits)
            return ~0u;
        const uint32_t zeros = CountZeros()(bits);
        return shift_amount ? zeros : width<T> - 1 - zeros;
    }
};

struct Reverse {
    template <class T> T operator()(T a) const
    {
        constexpr T fives = (T)0x5555555555555555, threes = (T)0x3333333333333333,
                    nibbles = (T)0x0f0f0f0f0f0f0f0f;
        a = (T)((a >> 1 & fives) | (a & fives) << 1);
        a = (T)((a >> 2 & threes) | (a & threes) << 2);
        a = (T)((a >> 4 & nibbles) | (a & nibbles) << 4);
        return (T)(__builtin_bswap64((uint64_t)a) >> (64 - width<T>));
    }
};
// n ones; n up to the width.
template <class U> U ones(uint32_t n)
{
    return (U)(n >= width<U> ? ~(U)0 : ((U)1 << n) - 1);
}
// Bits of a field at `at` that lie inside a value of type T.
template <class T> uint32_t inside(uint32_t at, uint32_t length)
{
    return at >= width<T> ? 0 : Min()(length, width<T> - at);
}
struct ExtractField { // bfe
    template <class T> T operator()(T a, uint32_t at, uint32_t length) const
    {
        using U = Unsigned<T>;
        at &= 0xff;
        length &= 0xff;
        if (!length)
            return 0;
        const U field = ones<U>(inside<T>(at, length));
        const uint32_t last = Min()(at + length - 1, width<T> - 1);
        const bool negative = std::is_signed_v<T> && ((U)a >> last & 1);
        const U value = at >= width<T> ? 0 : (U)a >> at;
        return (T)((value & field) | (negative ? (U)~field : (U)0));
    }
};
struct InsertField { // bfi
    template <class T> static Next run(Warp &w, const Inst &i, uint32_t lanes)
    {
        Lanes<T> d(w, i.d[0]), a(w, i.s[0]), b(w, i.s[1]);
        Lanes<uint32_t> c(w, i.s[2]), length(w, i.s[3]);
        each_apart(lanes, [&](uint32_t k) {
            const uint32_t at = c[k] & 0xff, n = inside<T>(at, length[k] & 0xff);
            const T field = n ? (T)(ones<T>(n) << at) : (T)0;
            d.set(k, (T)((b[k] & ~field) | (n ? a[k] << at & field : 0)));
        });
        return Next::on;
    }
};

template <bool clamp> struct MakeMask { // bmsk
    uint32_t operator()(uint32_t a, uint32_t b) const
    {
        if (clamp)
            return a >= 32 ? 0 : ones<uint32_t>(b) << a;
        return ones<uint32_t>(b & 31) << (a & 31);
    }
};
template <bool clamp> struct ExtendBits { // szext
    template <class T> T operator()(T a, uint32_t n) const
    {
        if (clamp && n >= 32)
            return a;
        n &= 31;
        return n ? (T)((T)((Unsigned<T>)a << (width<T> - n)) >> (width<T> - n)) : (T)0;
    }
};

// fns: the position of the |n|-th one of the mask, from the bit `at` on, upwards or, where n is
// negative, downwards; with n = 0 `at` itself, where it is a one.
uint32_t nth_one(uint32_t mask, uint32_t at, int32_t n)
{
    if (!n)
        return mask >> at & 1 ? at : ~0u;
    uint32_t left = n < 0 ? ~(uint32_t)n : (uint32_t)n - 1; // ones in front of it
    for (; at < 32; at += n < 0 ? ~0u : 1u)
        if (mask >> at & 1 && !left--)
            return at;
    return ~0u;
}
Next find_nth(Warp &w, const Inst &i, uint32_t lanes)
{
    Lanes<uint32_t> d(w, i.d[0]), mask(w, i.s[0]), base(w, i.s[1]);
    Lanes<int32_t> offset(w, i.s[2]);
    each(lanes, [&](uint32_t k) {
        if (base[k] > 31)
            fault(w, i, 1u << k, "base %u is beyond bit 31", base[k]);
        d.set(k, nth_one(mask[k], base[k], offset[k]));
    });
    return Next::on;
}

// --- logic ---

struct And {
    template <class T> T operator()(T a, T b) const
    {
        return a & b;
    }
};
struct Or {
    template <class T> T operator()(T a, T b) const
    {
        return a | b;
    }
};
struct Xor {
    template <class T> T operator()(T a, T b) const
    {
        return a ^ b;
    }
};
struct Not {
    template <class T> T operator()(T a) const
    {
        return (T)~a;
    }
};
struct IsZero { // cnot
    template <class T> T operator()(T a) const
    {
        return !a;
    }
};

template <class F> Next logic_of_predicates(Warp &w, const Inst &i, uint32_t lanes)
{
    write_predicate(w, i.d[0], lanes, F()(predicate(w, i, 0, 0), predicate(w, i, 1, 1)));
    return Next::on;
}
template <bool negate> Next move_predicate(Warp &w, const Inst &i, uint32_t lanes)
{
    write_predicate(w, i.d[0], lanes, predicate(w, i, 0, 0) ^ (negate ? all_lanes : 0));
    return Next::on;
}
template <class F> Run decode_logic(Statement &s)
{
    if (s.last_type() != Type::pred)
        return decode_plain<Binary<F>, 2, all_bits>(s);
    s.take_type();
    s.target(0, Type::pred);
    source_predicate(s, 1, 0);
    source_predicate(s, 2, 1);
    return logic_of_predicates<F>;
}

// lop3: bit n of the table is the result where the bits of a, b and c are those of n, c's the last.
class Table
{
  public:
    explicit Table(int64_t table)
    {
        const auto mask = [table](int n) { return table >> n & 1 ? ~0u : 0; };
        zero_00 = mask(0), zero_01 = mask(2), zero_10 = mask(4), zero_11 = mask(6);
        change_00 = zero_00 ^ mask(1), change_01 = zero_01 ^ mask(3);
        change_10 = zero_10 ^ mask(5), change_11 = zero_11 ^ mask(7);
    }
    uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const
    {
        const uint32_t of_00 = zero_00 ^ (c & change_00), of_01 = zero_01 ^ (c & change_01);
        const uint32_t of_10 = zero_10 ^ (c & change_10), of_11 = zero_11 ^ (c & change_11);
        const uint32_t of_0 = of_00 ^ (b & (of_00 ^ of_01)), of_1 = of_10 ^ (b & (of_10 ^ of_11));
        return of_0 ^ (a & (of_0 ^ of_1));
    }

  private:
    // For each pair of a and b, as masks: the result where c is 0, and whether c changes it.
    uint32_t zero_00, zero_01, zero_10, zero_11, change_00, change_01, change_10, change_11;
};
Next logic_of_three(Warp &w, const Inst &i, uint32_t lanes)
{
    return ternary<uint32_t, uint32_t, uint32_t, uint32_t>(w, i, lanes, Table(i.value[0]));
}
template <class F> Next logic_of_three_and_predicate(Warp &w, const Inst &i, uint32_t lanes)
{
    logic_of_three(w, i, lanes);
    uint32_t some = 0;
    each(lanes, [&](uint32_t k) { some |= (uint32_t) !!w.words(i.d[0])[k] << k; });
    write_predicate(w, i.d[1], lanes, F()(some, predicate(w, i, 3, 1)));
    return Next::on;
}

// --- shifts, bytes ---

struct Left {
    template <class T> T operator()(T a, uint32_t n) const
    {
        return n < width<T> ? (T)((Unsigned<T>)a << n) : (T)0;
    }
};
struct Right {
    template <class T> T operator()(T a, uint32_t n) const
    {
        if (std::is_signed_v<T>)
            return (T)(a >> Min()(n, width<T> - 1));
        return n < width<T> ? (T)(a >> n) : (T)0;
    }
};
template <bool left, bool wrap> struct Funnel { // shf: b above a
    uint32_t operator()(uint32_t a, uint32_t b, uint32_t n) const
    {
        n = wrap ? n & 31 : Min()(n, 32u);
        const uint64_t both = (uint64_t)b << 32 | a;
        return left ? (uint32_t)(both << n >> 32) : (uint32_t)(both >> n);
    }
};

// prmt: each nibble of the selector takes one of the bytes {b, a}; its highest bit copies the
// byte's sign to all its bits.
struct Permute {
    uint32_t operator()(uint32_t a, uint32_t b, uint32_t selector) const
    {
        const uint64_t both = (uint64_t)b << 32 | a;
        uint32_t d = 0;
#pragma GCC unroll 4
        for (uint32_t n = 0; n < 4; n++) {
            const uint32_t pick = selector >> (4 * n);
            const int32_t byte = (int8_t)(both >> (8 * (pick & 7)));
            d |= (uint32_t)(uint8_t)(pick & 8 ? byte >> 7 : byte) << (8 * n);
        }
        return d;
    }
};
// One nibble of a selector that is the same in all lanes, as masks and amounts.
struct Pick {
    uint32_t from_b, shift, sign, to;
    Pick(uint32_t selector, uint32_t n)
        : from_b(selector >> (4 * n) & 4 ? ~0u : 0), shift(8 * (selector >> (4 * n) & 3)),
          sign(selector >> (4 * n) & 8 ? ~0u : 0), to(8 * n)
    {
    }
    uint32_t operator()(uint32_t a, uint32_t b) const
    {
        const uint32_t byte = (a ^ ((a ^ b) & from_b)) >> shift & 0xff;
        const uint32_t copies = (byte >> 7) * 0xff;
        return (byte ^ ((byte ^ copies) & sign)) << to;
    }
};
Next permute_constant(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint32_t selector = (uint32_t)i.value[0];
    const Pick p0(selector, 0), p1(selector, 1), p2(selector, 2), p3(selector, 3);
    return binary<uint32_t, uint32_t, uint32_t>(w, i, lanes, [=](uint32_t a, uint32_t b) {
        return p0(a, b) | p1(a, b) | p2(a, b) | p3(a, b);
    });
}
// .f4e and the like: the selectors, as of prmt without a mode, that two bits of c choose from.
template <int mode> struct PermuteMode {
    uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const
    {
        constexpr uint16_t selectors[6][4] = {
            {0x3210, 0x4321, 0x5432, 0x6543}, // f4e
            {0x5670, 0x6701, 0x7012, 0x0123}, // b4e
            {0x0000, 0x1111, 0x2222, 0x3333}, // rc8
            {0x3210, 0x3211, 0x3222, 0x3333}, // ecl
            {0x0000, 0x1110, 0x2210, 0x3210}, // ecr
            {0x1010, 0x3232, 0x1010, 0x3232}, // rc16
        };
        return Permute()(a, b, selectors[mode][c & 3]);
    }
};
} // namespace

// --- decoders ---

Run decode_popc(Statement &s)
{
    return decode_count<Count<CountOnes>, long_bits>(s);
}
Run decode_clz(Statement &s)
{
    return decode_count<Count<CountZeros>, long_bits>(s);
}
Run decode_brev(Statement &s)
{
    return decode_plain<Unary<Reverse>, 1, long_bits>(s);
}
Run decode_bfe(Statement &s)
{
    return decode_by_amount<Extract<ExtractField>, 3, of_32 | of_64>(s);
}
Run decode_and(Statement &s)
{
    return decode_logic<And>(s);
}
Run decode_or(Statement &s)
{
    return decode_logic<Or>(s);
}
Run decode_xor(Statement &s)
{
    return decode_logic<Xor>(s);
}
Run decode_cnot(Statement &s)
{
    return decode_plain<Unary<IsZero>, 1, all_bits>(s);
}
Run decode_shl(Statement &s)
{
    return decode_by_amount<Shift<Left>, 2, all_bits>(s);
}
Run decode_shr(Statement &s)
{
    return decode_by_amount<Shift<Right>, 2, all_bits | numbers>(s);
}
Run decode_bfind(Statement &s)
{
    return s.take("shiftamt") ? decode_count<Count<Find<true>>, of_32 | of_64>(s)
                              : decode_count<Count<Find<false>>, of_32 | of_64>(s);
}
Run decode_bfi(Statement &s)
{
    const Type t = s.take_type();
    operands(s, t, 2);
    s.source(3, Type::u32);
    s.source(4, Type::u32);
    return by_type<InsertField>(s, t, long_bits);
}
Run decode_bmsk(Statement &s)
{
    const int wrap = s.must_take_of({"clamp", "wrap"});
    const Type t = s.take_type();
    operands(s, t, 2);
    return wrap ? by_type<Binary<MakeMask<false>>>(s, t, types({Type::b32}))
                : by_type<Binary<MakeMask<true>>>(s, t, types({Type::b32}));
}
Run decode_szext(Statement &s)
{
    return s.must_take_of({"clamp", "wrap"})
               ? decode_by_amount<Shift<ExtendBits<false>>, 2, of_32>(s)
               : decode_by_amount<Shift<ExtendBits<true>>, 2, of_32>(s);
}
Run decode_fns(Statement &s)
{
    if (s.take_type() != Type::b32)
        s.refuse(".b32 is expected");
    operands(s, Type::b32, 3);
    return find_nth;
}
Run decode_not(Statement &s)
{
    if (s.last_type() != Type::pred)
        return decode_plain<Unary<Not>, 1, all_bits>(s);
    s.take_type();
    s.target(0, Type::pred);
    source_predicate(s, 1, 0);
    return move_predicate<true>;
}
Run decode_lop3(Statement &s)
{
    const int join = s.take_of({"or", "and"});
    if (s.take_type() != Type::b32)
        s.refuse(".b32 is expected");
    if (join < 0)
        s.target(0, Type::b32);
    else if (!s.targets_pair(0, Type::b32, Type::pred))
        s.refuse("a predicate as the second result is expected");
    for (size_t k = 1; k <= 3; k++)
        s.source(k, Type::b32);
    s.inst.value[0] = s.immediate(4);
    if (s.inst.value[0] < 0 || s.inst.value[0] > 255)
        s.refuse("the table %lld has more than 8 bits", (long long)s.inst.value[0]);
    if (join < 0)
        return logic_of_three;
    source_predicate(s, 5, 1);
    return join ? logic_of_three_and_predicate<And> : logic_of_three_and_predicate<Or>;
}
Run decode_shf(Statement &s)
{
    static const Run runs[2][2] = {
        {Ternary<Funnel<true, true>>::run<uint32_t>, Ternary<Funnel<true, false>>::run<uint32_t>},
        {Ternary<Funnel<false, true>>::run<uint32_t>,
         Ternary<Funnel<false, false>>::run<uint32_t>}};
    const int right = s.must_take_of({"l", "r"}), clamp = s.must_take_of({"wrap", "clamp"});
    if (s.take_type() != Type::b32)
        s.refuse(".b32 is expected");
    operands(s, Type::b32, 3);
    return runs[right][clamp];
}
Run decode_prmt(Statement &s)
{
    static const Run runs[] = {
        Ternary<PermuteMode<0>>::run<uint32_t>, Ternary<PermuteMode<1>>::run<uint32_t>,
        Ternary<PermuteMode<2>>::run<uint32_t>, Ternary<PermuteMode<3>>::run<uint32_t>,
        Ternary<PermuteMode<4>>::run<uint32_t>, Ternary<PermuteMode<5>>::run<uint32_t>};
    const int mode = s.take_of({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
    if (s.take_type() != Type::b32)
        s.refuse(".b32 is expected");
    operands(s, Type::b32, 2);
    if (mode < 0 && s.is_immediate(3)) {
        s.inst.value[0] = s.immediate(3);
        return permute_constant;
    }
    s.source(3, Type::b32);
    return mode < 0 ? Ternary<Permute>::run<uint32_t> : runs[mode];
}
} // namespace integer
} // namespace ptx
