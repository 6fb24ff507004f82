// Helpers of the integer instructions: handlers made of functors, chosen by types.
#pragma once

#include <initializer_list>

#include "machine.hpp"
#include "statement.hpp"

namespace ptx
{
namespace integer
{
// --- types ---

template <class T> using Unsigned = std::make_unsigned_t<T>;
template <class T> constexpr uint32_t width = 8 * sizeof(T);
template <size_t bytes, bool negative> struct Sized {
    using T = std::conditional_t<negative, int64_t, uint64_t>;
};
template <bool negative> struct Sized<4, negative> {
    using T = std::conditional_t<negative, int32_t, uint32_t>;
};
// The integer of twice the width; of 64 bits itself, which no instruction asks for.
template <class T> using Twice = typename Sized<2 * sizeof(T), std::is_signed_v<T>>::T;

constexpr uint64_t types(std::initializer_list<Type> list)
{
    uint64_t all = 0;
    for (Type t : list)
        all |= 1ull << (int)t;
    return all;
}
constexpr uint64_t of_16 = types({Type::u16, Type::s16}), of_32 = types({Type::u32, Type::s32});
constexpr uint64_t of_64 = types({Type::u64, Type::s64}), numbers = of_16 | of_32 | of_64;
constexpr uint64_t with_sign = types({Type::s16, Type::s32, Type::s64});
constexpr uint64_t long_bits = types({Type::b32, Type::b64});
constexpr uint64_t all_bits = types({Type::b16}) | long_bits;

// H::run<T> of the type; refused where it is not one of those allowed.
template <class H>
auto by_type(const Statement &s, Type t, uint64_t allowed) -> decltype(&H::template run<uint32_t>)
{
    if (!(allowed >> (int)t & 1))
        s.refuse("the type .%s does not fit", name_of(t));
    switch (t) {
    case Type::s16:
        return H::template run<int16_t>;
    case Type::s32:
        return H::template run<int32_t>;
    case Type::s64:
        return H::template run<int64_t>;
    default:
        return bits_of(t) == 16   ? H::template run<uint16_t>
               : bits_of(t) == 32 ? H::template run<uint32_t>
                                  : H::template run<uint64_t>;
    }
}

// Types of a handler's result and sources, from the instruction's type T.
template <class T> using OfType = T;
template <class T> using OfWord = uint32_t;

// The handler of a functor F with a result of type D and sources of types S ..
template <class F, template <class> class D, template <class> class... S> struct Handler {
    template <class T> static Next run(Warp &w, const Inst &i, uint32_t lanes)
    {
        if constexpr (sizeof...(S) == 1)
            return unary<D<T>, S<T>...>(w, i, lanes, F());
        else if constexpr (sizeof...(S) == 2)
            return binary<D<T>, S<T>...>(w, i, lanes, F());
        else
            return ternary<D<T>, S<T>...>(w, i, lanes, F());
    }
};
template <class F> using Unary = Handler<F, OfType, OfType>;
template <class F> using Binary = Handler<F, OfType, OfType, OfType>;
template <class F> using Ternary = Handler<F, OfType, OfType, OfType, OfType>;
template <class F> using Count = Handler<F, OfWord, OfType>;
template <class F> using Shift = Handler<F, OfType, OfType, OfWord>;
template <class F> using Extract = Handler<F, OfType, OfType, OfWord, OfWord>;
template <class F> using Wide = Handler<F, Twice, OfType, OfType>;
template <class F> using WideSum = Handler<F, Twice, OfType, OfType, Twice>;

// A result and n sources of one type.
inline void operands(Statement &s, Type t, size_t n)
{
    s.target(0, t);
    for (size_t k = 1; k <= n; k++)
        s.source(k, t);
}

// An instruction with no modifiers but its type.
template <class H, size_t n, uint64_t allowed> Run decode_plain(Statement &s)
{
    if (is_float(s.last_type()))
        return nullptr;
    const Type t = s.take_type();
    operands(s, t, n);
    return by_type<H>(s, t, allowed);
}
// The same with a result of 32 bits, or with sources of 32 bits behind the first.
template <class H, uint64_t allowed> Run decode_count(Statement &s)
{
    const Type t = s.take_type();
    s.target(0, Type::u32);
    s.source(1, t);
    return by_type<H>(s, t, allowed);
}
template <class H, size_t n, uint64_t allowed> Run decode_by_amount(Statement &s)
{
    const Type t = s.take_type();
    operands(s, t, 1);
    for (size_t k = 2; k <= n; k++)
        s.source(k, Type::u32);
    return by_type<H>(s, t, allowed);
}

// Sources that are predicates, which the instruction may negate: inst.value[n] has it.
inline void source_predicate(Statement &s, size_t k, int n)
{
    bool negated;
    s.source_pred(k, &negated);
    s.inst.value[n] = negated ? -1 : 0;
}
inline uint32_t predicate(Warp &w, const Inst &i, uint32_t source, int n)
{
    return w.mask(i.s[source]) ^ (uint32_t)i.value[n];
}
inline void write_predicate(Warp &w, Slot d, uint32_t lanes, uint32_t values)
{
    w.mask(d) = (w.mask(d) & ~lanes) | (values & lanes);
}

// --- functors ---

struct Add {
    template <class T> T operator()(T a, T b) const
    {
        return (T)((Unsigned<T>)a + (Unsigned<T>)b);
    }
};
struct Subtract {
    template <class T> T operator()(T a, T b) const
    {
        return (T)((Unsigned<T>)a - (Unsigned<T>)b);
    }
};
struct Min {
    template <class T> T operator()(T a, T b) const
    {
        return a < b ? a : b;
    }
};
struct Max {
    template <class T> T operator()(T a, T b) const
    {
        return a > b ? a : b;
    }
};

// True if the statement has the modifier, which is not taken.
inline bool has(const Statement &s, const char *word)
{
    for (const std::string &w : s.words)
        if (w == word)
            return true;
    return false;
}

// --- bits.cc ---

Run decode_and(Statement &s);
Run decode_or(Statement &s);
Run decode_xor(Statement &s);
Run decode_not(Statement &s);
Run decode_cnot(Statement &s);
Run decode_lop3(Statement &s);
Run decode_shl(Statement &s);
Run decode_shr(Statement &s);
Run decode_shf(Statement &s);
Run decode_prmt(Statement &s);
Run decode_popc(Statement &s);
Run decode_clz(Statement &s);
Run decode_bfind(Statement &s);
Run decode_fns(Statement &s);
Run decode_brev(Statement &s);
Run decode_bfe(Statement &s);
Run decode_bfi(Statement &s);
Run decode_bmsk(Statement &s);
Run decode_szext(Statement &s);

// --- selections.cc ---

Run decode_setp(Statement &s);
Run decode_set(Statement &s);
Run decode_selp(Statement &s);
Run decode_slct(Statement &s);
Run decode_mov(Statement &s);
} // namespace integer
} // namespace ptx
