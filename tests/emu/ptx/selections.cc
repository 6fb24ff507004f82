// Comparisons and selections of integers, and moves: "Comparison and Selection Instructions" and
// "Data Movement and Conversion Instructions: mov" of the PTX ISA.
#include "integers.hpp"

namespace ptx
{
namespace integer
{
namespace
{
// --- comparisons ---

enum { eq, ne, lt, le, gt, ge };
template <int relation, class T> bool holds(T a, T b)
{
    return relation == eq   ? a == b
           : relation == ne ? a != b
           : relation == lt ? a < b
           : relation == le ? a <= b
           : relation == gt ? a > b
                            : a >= b;
}
using Compare = uint32_t (*)(Warp &, const Inst &); // a bit a lane, of all lanes
template <int relation> struct Comparison {
    template <class T> static uint32_t run(Warp &w, const Inst &i)
    {
        Lanes<T> a(w, i.s[0]), b(w, i.s[1]);
        uint32_t result = 0;
        for (uint32_t k = 0; k < warp_lanes; k++)
            result |= (uint32_t)holds<relation>(a[k], b[k]) << k;
        return result;
    }
};

// Joins the comparison's result with the predicate behind the values, where there is one.
enum Join { alone, with_and, with_or, with_xor };
uint32_t joined(Warp &w, const Inst &i, Join how, uint32_t t)
{
    switch (how) {
    case with_and:
        return t & predicate(w, i, 2, 0);
    case with_or:
        return t | predicate(w, i, 2, 0);
    case with_xor:
        return t ^ predicate(w, i, 2, 0);
    default:
        return t;
    }
}

template <class C> struct SetPredicate {
    template <class T> static Next run(Warp &w, const Inst &i, uint32_t lanes)
    {
        const Join how = (Join)i.value[1];
        const uint32_t t = C::template run<T>(w, i);
        const uint32_t p = joined(w, i, how, t), q = joined(w, i, how, ~t);
        write_predicate(w, i.d[0], lanes, p);
        write_predicate(w, i.d[1], lanes, q);
        return Next::on;
    }
};
struct SetNumber { // 16 or 32 bits of the value that stands for true, or zero
    Compare compare;
    uint32_t is_true;
    Join how;
};
Next set_number(Warp &w, const Inst &i, uint32_t lanes)
{
    const SetNumber &n = *reinterpret_cast<const SetNumber *>(i.value[1]);
    const uint32_t t = joined(w, i, n.how, n.compare(w, i));
    Lanes<uint32_t> d(w, i.d[0]);
    each_apart(lanes, [&](uint32_t k) { d.set(k, t >> k & 1 ? n.is_true : 0); });
    return Next::on;
}

// The relation of a type, of which .b have equality only, and .lo and the like are for those
// without a sign.
int take_relation(Statement &s, Type t)
{
    const int n = s.must_take_of({"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"});
    const bool bits = t >= Type::b8 && t <= Type::b128;
    if (n > ne && (bits || (n > ge && is_signed(t))))
        s.refuse("the comparison does not go with .%s", name_of(t));
    return n <= ge ? n : n - 4;
}
Join take_join(Statement &s)
{
    return (Join)(1 + s.take_of({"and", "or", "xor"}));
}
void take_compared(Statement &s, Type t, Join how)
{
    s.source(1, t);
    s.source(2, t);
    if (how != alone)
        source_predicate(s, 3, 0);
}
// H<Comparison of the relation>::run of the type.
template <template <class> class H>
auto of_relation(const Statement &s, int relation, Type t)
    -> decltype(&H<Comparison<eq>>::template run<uint32_t>)
{
    constexpr uint64_t allowed = numbers | all_bits;
    switch (relation) {
    case eq:
        return by_type<H<Comparison<eq>>>(s, t, allowed);
    case ne:
        return by_type<H<Comparison<ne>>>(s, t, allowed);
    case lt:
        return by_type<H<Comparison<lt>>>(s, t, allowed);
    case le:
        return by_type<H<Comparison<le>>>(s, t, allowed);
    case gt:
        return by_type<H<Comparison<gt>>>(s, t, allowed);
    default:
        return by_type<H<Comparison<ge>>>(s, t, allowed);
    }
}
template <class C> using Itself = C;

// --- selections ---

// d = a where `chosen` has the lane's bit, else b; written where the choice and what is chosen are.
template <class T> Next choose(Warp &w, const Inst &i, uint32_t lanes, uint32_t chosen)
{
    const uint32_t *defined = w.defined;
    const uint32_t written =
        defined[i.s[2]] & ((chosen & defined[i.s[0]]) | (~chosen & defined[i.s[1]]));
    Lanes<T> d(w, i.d[0]), a(w, i.s[0]), b(w, i.s[1]);
    each_apart(lanes, [&](uint32_t k) {
        const T x = a[k], y = b[k];
        d.set(k, chosen >> k & 1 ? x : y);
    });
    w.defined[i.d[0]] = (w.defined[i.d[0]] & ~lanes) | (written & lanes);
    return Next::on;
}
struct SelectByPredicate { // selp
    template <class T> static Next run(Warp &w, const Inst &i, uint32_t lanes)
    {
        return choose<T>(w, i, lanes, predicate(w, i, 2, 0));
    }
};
template <class C, bool ftz> struct SelectBySign { // slct: a where c >= 0
    template <class T> static Next run(Warp &w, const Inst &i, uint32_t lanes)
    {
        Lanes<C> c(w, i.s[2]);
        uint32_t chosen = 0;
        for (uint32_t k = 0; k < warp_lanes; k++)
            chosen |= (uint32_t)(c[k] >= 0 || (ftz && c[k] > -0x1p-126f)) << k;
        return choose<T>(w, i, lanes, chosen);
    }
};
constexpr uint64_t selected = numbers | all_bits | types({Type::f32, Type::f64});

// --- moves ---

struct Same {
    template <class T> T operator()(T a) const
    {
        return a;
    }
};
Next move_predicate(Warp &w, const Inst &i, uint32_t lanes)
{
    write_predicate(w, i.d[0], lanes, predicate(w, i, 0, 0));
    return Next::on;
}
Next move_128(Warp &w, const Inst &i, uint32_t lanes)
{
    for (uint32_t half = 0; half < 2; half++) {
        Lanes<uint64_t> d(w, i.d[0] + 2 * half), a(w, i.s[0] + 2 * half);
        each_apart(lanes, [&](uint32_t k) { d.set(k, a[k]); });
    }
    return Next::on;
}

// A value of type T, or two of 64 bits, and its elements, the lowest bits first.
template <class T, class Element> Next unpack(Warp &w, const Inst &i, uint32_t lanes)
{
    constexpr uint32_t n = sizeof(T) / sizeof(Element); // in each T
    for (uint32_t e = 0; e < i.n_d; e++) {
        Lanes<Element> d(w, i.d[e]);
        Lanes<T> a(w, i.s[0] + 2 * (e / n));
        const uint32_t shift = width<Element> * (e % n);
        each_apart(lanes, [&](uint32_t k) { d.set(k, (Element)(a[k] >> shift)); });
    }
    return Next::on;
}
template <class T, class Element> Next pack(Warp &w, const Inst &i, uint32_t lanes)
{
    constexpr uint32_t n = sizeof(T) / sizeof(Element);
    for (uint32_t e = 0; e < i.n_s; e++) {
        Lanes<T> d(w, i.d[0] + 2 * (e / n));
        Lanes<Element> a(w, i.s[e]);
        const uint32_t shift = width<Element> * (e % n);
        each_apart(lanes, [&](uint32_t k) {
            const T below = e % n ? d[k] : (T)0;
            d.set(k, (T)(below | (T)((T)a[k] << shift)));
        });
    }
    return Next::on;
}
struct Packing {
    uint32_t bits, element;
    Run pack, unpack;
};
const Packing packings[] = {
    {16, 8, pack<uint16_t, uint8_t>, unpack<uint16_t, uint8_t>},
    {32, 8, pack<uint32_t, uint8_t>, unpack<uint32_t, uint8_t>},
    {32, 16, pack<uint32_t, uint16_t>, unpack<uint32_t, uint16_t>},
    {64, 16, pack<uint64_t, uint16_t>, unpack<uint64_t, uint16_t>},
    {64, 32, pack<uint64_t, uint32_t>, unpack<uint64_t, uint32_t>},
    {128, 32, pack<uint64_t, uint32_t>, unpack<uint64_t, uint32_t>},
    {128, 64, pack<uint64_t, uint64_t>, unpack<uint64_t, uint64_t>},
};
// mov with "{..}" as its operand k.
Run decode_packing(Statement &s, Type t, size_t k)
{
    static const Type elements[] = {Type::b8, Type::b16, Type::b32, Type::b64};
    const bool bits = t >= Type::b8 && t <= Type::b128;
    for (const Packing &p : packings) {
        if (!bits || bits_of(t) != p.bits || p.element * s.n_element(k) != p.bits)
            continue;
        const Type element = elements[__builtin_ctz(p.element / 8)];
        if (k) {
            s.target(0, t);
            s.sources(1, element);
            return p.pack;
        }
        s.targets(0, element);
        s.source(1, t);
        return p.unpack;
    }
    s.refuse("%zu elements of a .%s are not known", s.n_element(k), name_of(t));
}

// %clock and the like: times that grow with the instructions executed and with each read.
struct Clock {
    const char *name;
    uint32_t bits, shift;
    uint64_t begin, factor; // of an instruction: cycles, or nanoseconds
};
constexpr uint64_t clock_begin = 1ull << 32, timer_begin = 1ull << 50;
const Clock clocks[] = {
    {"%clock", 32, 0, clock_begin, 4},          {"%clock_hi", 32, 32, clock_begin, 4},
    {"%clock64", 64, 0, clock_begin, 4},        {"%globaltimer", 64, 0, timer_begin, 2},
    {"%globaltimer_lo", 32, 0, timer_begin, 2}, {"%globaltimer_hi", 32, 32, timer_begin, 2},
};
template <class T> Next read_clock(Warp &w, const Inst &i, uint32_t lanes)
{
    const Clock &c = *reinterpret_cast<const Clock *>(i.value[0]);
    Grid &g = *w.block->grid;
    const uint64_t time = c.begin + c.factor * (g.step + ++g.n_clock);
    Lanes<T> d(w, i.d[0]);
    each_apart(lanes, [&](uint32_t k) { d.set(k, (T)(time >> c.shift)); });
    return Next::on;
}
Run decode_clock(Statement &s, const Clock &c, Type t)
{
    if (bits_of(t) != c.bits)
        s.refuse("%s has %u bits", c.name, c.bits);
    s.target(0, t);
    s.take_name(1);
    s.inst.value[0] = (int64_t)(intptr_t)&c;
    return c.bits == 64 ? read_clock<uint64_t> : read_clock<uint32_t>;
}
} // namespace

// --- decoders ---

Run decode_setp(Statement &s)
{
    const Type t = s.last_type();
    if (is_float(t))
        return nullptr;
    const int relation = take_relation(s, t);
    const Join how = take_join(s);
    s.take_type();
    s.targets_pair(0, Type::pred, Type::pred);
    take_compared(s, t, how);
    s.inst.value[1] = how;
    return of_relation<SetPredicate>(s, relation, t);
}

Run decode_set(Statement &s)
{
    const Type t = s.last_type();
    if (is_float(t))
        return nullptr;
    const int relation = take_relation(s, t);
    const Join how = take_join(s);
    const Type result = s.take_type();
    uint32_t is_true = ~0u;
    switch (result) {
    case Type::u32:
    case Type::s32:
        break;
    case Type::f32:
        is_true = 0x3f800000;
        break;
    case Type::f16:
        is_true = 0x3c00;
        break;
    case Type::bf16:
        is_true = 0x3f80;
        break;
    default:
        s.refuse("a result of .%s is not known", name_of(result));
    }
    s.take_type();
    s.target(0, result);
    take_compared(s, t, how);
    const Compare compare = of_relation<Itself>(s, relation, t);
    s.inst.value[1] = (int64_t)(intptr_t)s.keep(SetNumber{compare, is_true, how});
    return set_number;
}

Run decode_selp(Statement &s)
{
    const Type t = s.take_type();
    operands(s, t, 2);
    source_predicate(s, 3, 0);
    s.inst.own_defined = true;
    return by_type<SelectByPredicate>(s, t, selected);
}

Run decode_slct(Statement &s)
{
    const bool ftz = s.take("ftz");
    const Type t = s.take_type(), c = s.take_type();
    if ((c != Type::s32 && c != Type::f32) || (ftz && c == Type::s32))
        s.refuse("a choice by %s.%s is not known", ftz ? ".ftz" : "", name_of(c));
    operands(s, t, 2);
    s.source(3, c);
    s.inst.own_defined = true;
    return c == Type::s32 ? by_type<SelectBySign<int32_t, false>>(s, t, selected)
           : ftz          ? by_type<SelectBySign<float, true>>(s, t, selected)
                          : by_type<SelectBySign<float, false>>(s, t, selected);
}

Run decode_mov(Statement &s)
{
    const Type t = s.take_type();
    if (t == Type::pred) {
        s.target(0, t);
        source_predicate(s, 1, 0);
        return move_predicate;
    }
    if (s.name(0) == "{" || s.name(1) == "{")
        return decode_packing(s, t, s.name(1) == "{");
    for (const Clock &c : clocks)
        if (s.name(1) == c.name)
            return decode_clock(s, c, t);
    s.target(0, t);
    s.source(1, t);
    if (t == Type::b128)
        return move_128;
    return by_type<Unary<Same>>(s, t, selected);
}
} // namespace integer
} // namespace ptx
