// Loads, stores, atomic operations, address conversions: "Data Movement and Conversion
// Instructions" ld, st, cvta, isspacep, prefetch; "Parallel Synchronization and Communication
// Instructions" atom, red.
#include <algorithm>
#include <cmath>

#include "formats.hpp"
#include "machine.hpp"
#include "statement.hpp"

namespace ptx
{
// --- modifiers ---

static Space take_space(Statement &s)
{
    static const struct {
        const char *word;
        Space space;
    } spaces[] = {
        {"global", Space::global},      {"shared", Space::shared},
        {"shared::cta", Space::shared}, {"shared::cluster", Space::shared},
        {"local", Space::local},        {"param", Space::param},
        {"param::entry", Space::param}, {"param::func", Space::param},
        {"const", Space::constant},
    };
    for (const auto &known : spaces)
        if (s.take(known.word))
            return known.space;
    return Space::generic;
}

// Order, scope and cache hints: all accesses happen in one order here, so they change nothing.
// Returns whether the access is one that a loop may wait with.
static bool take_order(Statement &s)
{
    const int order =
        s.take_of({"volatile", "relaxed", "acquire", "release", "acq_rel", "weak", "mmio"});
    s.take_of({"cta", "cluster", "gpu", "sys"});
    s.take_of({"ca", "cg", "cs", "lu", "cv", "wb", "wt"});
    s.take_of({"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last",
               "L1::no_allocate"});
    s.take_of({"L2::evict_normal", "L2::evict_first", "L2::evict_last"});
    s.take_of({"L2::64B", "L2::128B", "L2::256B"});
    return order >= 0 && order != 5;
}

static int take_vector(Statement &s)
{
    static const int sizes[] = {2, 4, 8};
    const int k = s.take_of({"v2", "v4", "v8"});
    return k < 0 ? 1 : sizes[k];
}

// The operand of .L2::cache_hint, the last one: a policy, without effect.
static void take_policy(Statement &s, size_t k)
{
    if (s.take("L2::cache_hint"))
        s.source(k, Type::b64);
}

// --- ld ---

// Elements of T to registers of type D; wide: the address has 64 bits.
template <class T, class D, bool wide, bool constant>
static Next load(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint32_t n = i.n_d;
    const uint32_t bytes = n * (uint32_t)sizeof(T);
    each(lanes, [&](uint32_t k) {
        const unsigned char *p = reach(w, i, i.space, address_of(w, i, 0, 0, k, wide), bytes, bytes,
                                       k, constant ? Access::read_constant : Access::read);
        for (uint32_t j = 0; j < n; j++) {
            T v;
            memcpy(&v, p + j * sizeof(T), sizeof(T));
            Lanes<D>(w, i.d[j]).set(k, (D)v);
        }
    });
    return i.value[1] ? Next::poll : Next::on;
}
template <class T, class D, bool wide> static Run load_of(bool constant)
{
    return constant ? load<T, D, wide, true> : load<T, D, wide, false>;
}
template <class T> static Run load_as(uint32_t register_bits, bool wide, bool constant)
{
    using Half = std::conditional_t<std::is_signed_v<T>, int16_t, uint16_t>;
    using Word = std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>;
    using Long = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    if (register_bits == 64)
        return wide ? load_of<T, Long, true>(constant) : load_of<T, Long, false>(constant);
    if constexpr (sizeof(T) <= 4)
        if (register_bits == 32)
            return wide ? load_of<T, Word, true>(constant) : load_of<T, Word, false>(constant);
    if constexpr (sizeof(T) <= 2)
        if (register_bits == 16)
            return wide ? load_of<T, Half, true>(constant) : load_of<T, Half, false>(constant);
    return nullptr;
}

static Run load_of_type(Type t, uint32_t register_bits, bool wide, bool constant)
{
    switch (bits_of(t)) {
    case 8:
        return is_signed(t) ? load_as<int8_t>(register_bits, wide, constant)
                            : load_as<uint8_t>(register_bits, wide, constant);
    case 16:
        return is_signed(t) ? load_as<int16_t>(register_bits, wide, constant)
                            : load_as<uint16_t>(register_bits, wide, constant);
    case 32:
        return is_signed(t) ? load_as<int32_t>(register_bits, wide, constant)
                            : load_as<uint32_t>(register_bits, wide, constant);
    case 64:
        return load_as<uint64_t>(register_bits, wide, constant);
    default:
        return nullptr;
    }
}

static Run decode_load(Statement &s)
{
    s.inst.strict = true;
    s.inst.space = take_space(s);
    s.inst.value[1] = take_order(s);
    const bool constant = s.take("nc");
    const int n = take_vector(s);
    const Type t = s.take_type();
    if ((int)s.n_element(0) != n)
        s.refuse("%d registers are expected", n);
    uint32_t bits = 0;
    s.targets_any(0, &bits);
    const bool wide = s.address(1, 0) == 64;
    take_policy(s, 2);
    s.entry().constant_reads |= constant;
    const Run run = load_of_type(t, bits, wide, constant);
    if (!run)
        s.refuse("a value of %u bits to a register of %u", bits_of(t), bits);
    return run;
}

// --- st ---

template <class T, bool wide> static Next store(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint32_t n = (uint32_t)i.value[1];
    const uint32_t bytes = n * (uint32_t)sizeof(T);
    each(lanes, [&](uint32_t k) {
        unsigned char *p =
            reach(w, i, i.space, address_of(w, i, 0, 0, k, wide), bytes, bytes, k, Access::write);
        for (uint32_t j = 0; j < n; j++) {
            const T v = Lanes<T>(w, i.s[j + 1])[k];
            memcpy(p + j * sizeof(T), &v, sizeof(T));
        }
    });
    happened(*w.block->grid);
    return Next::on;
}

static Run store_of_type(Type t, bool wide)
{
    switch (bits_of(t)) {
    case 8:
        return wide ? store<uint8_t, true> : store<uint8_t, false>;
    case 16:
        return wide ? store<uint16_t, true> : store<uint16_t, false>;
    case 32:
        return wide ? store<uint32_t, true> : store<uint32_t, false>;
    case 64:
        return wide ? store<uint64_t, true> : store<uint64_t, false>;
    default:
        return nullptr;
    }
}

static Run decode_store(Statement &s)
{
    s.inst.strict = true;
    s.inst.space = take_space(s);
    take_order(s);
    const int n = take_vector(s);
    const Type t = s.take_type();
    const bool wide = s.address(0, 0) == 64;
    if ((int)s.sources(1, t) != n)
        s.refuse("%d registers are expected", n);
    s.inst.value[1] = n;
    take_policy(s, 2);
    const Run run = store_of_type(t, wide);
    if (!run)
        s.refuse("stores of %s are not emulated", name_of(t));
    return run;
}

// --- atom, red ---

enum Atomic { ADD, MIN, MAX, AND, OR, XOR, EXCH, INC, DEC, CAS };

template <Atomic op, class T> static T combine(T old, T b, T c)
{
    if constexpr (op == ADD) {
        if constexpr (std::is_integral_v<T>)
            return (T)((std::make_unsigned_t<T>)old + (std::make_unsigned_t<T>)b);
        else
            return old + b;
    } else if constexpr (op == MIN) {
        return b < old ? b : old;
    } else if constexpr (op == MAX) {
        return old < b ? b : old;
    } else if constexpr (op == EXCH) {
        return b;
    } else if constexpr (op == CAS) {
        return old == b ? c : old;
    } else if constexpr (op == INC) {
        return old >= b ? 0 : (T)(old + 1);
    } else if constexpr (op == DEC) {
        return old == 0 || old > b ? b : (T)(old - 1);
    } else if constexpr (op == AND) {
        return (T)(old & b);
    } else if constexpr (op == OR) {
        return (T)(old | b);
    } else {
        return (T)(old ^ b);
    }
}

// Lanes one after another, and the inst.value[1] elements of a vector; results: the values that
// were there, with atom.
template <Atomic op, class T, bool wide> static Next atomic(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint32_t n = (uint32_t)i.value[1], bytes = n * (uint32_t)sizeof(T);
    bool changed = false;
    each(lanes, [&](uint32_t k) {
        unsigned char *p =
            reach(w, i, i.space, address_of(w, i, 0, 0, k, wide), bytes, bytes, k, Access::write);
        for (uint32_t j = 0; j < n; j++, p += sizeof(T)) {
            T old;
            memcpy(&old, p, sizeof(T));
            const T c = op == CAS ? Lanes<T>(w, i.s[2])[k] : T();
            const T fresh = combine<op, T>(old, Lanes<T>(w, i.s[j + 1])[k], c);
            changed |= memcmp(&fresh, &old, sizeof(T)) != 0;
            memcpy(p, &fresh, sizeof(T));
            if (i.n_d)
                Lanes<T>(w, i.d[j]).set(k, old);
        }
    });
    if (changed)
        happened(*w.block->grid);
    return changed || (op != CAS && op != EXCH) ? Next::on : Next::poll;
}
template <Atomic op, class T> static Run atomic_of(bool wide)
{
    return wide ? atomic<op, T, true> : atomic<op, T, false>;
}

// Halves: a sum of two in f32 rounds to the half that the exact sum does.
struct F16 {
    uint16_t bits;
    F16 operator+(F16 b) const
    {
        const float sum = float_of_half(bits) + float_of_half(b.bits);
        return {sum != sum ? nan_half : half_of_float(sum)};
    }
};
struct Bf16 {
    uint16_t bits;
    Bf16 operator+(Bf16 b) const
    {
        const F8 sum =
            F8{} + bits_to<float>((uint32_t)bits << 16) + bits_to<float>((uint32_t)b.bits << 16);
        return {(uint16_t)words_of_bf16(sum)[0]};
    }
};
template <class T> struct Pair {
    T low, high;
    Pair operator+(Pair b) const
    {
        return {low + b.low, high + b.high};
    }
};

static Run atomic_bits(int op, Type t, bool wide)
{
    const bool b64 = bits_of(t) == 64;
    switch (op) {
    case AND:
        return b64 ? atomic_of<AND, uint64_t>(wide) : atomic_of<AND, uint32_t>(wide);
    case OR:
        return b64 ? atomic_of<OR, uint64_t>(wide) : atomic_of<OR, uint32_t>(wide);
    case XOR:
        return b64 ? atomic_of<XOR, uint64_t>(wide) : atomic_of<XOR, uint32_t>(wide);
    case EXCH:
        return b64 ? atomic_of<EXCH, uint64_t>(wide) : atomic_of<EXCH, uint32_t>(wide);
    case CAS:
        return bits_of(t) == 16 ? atomic_of<CAS, uint16_t>(wide)
               : b64            ? atomic_of<CAS, uint64_t>(wide)
                                : atomic_of<CAS, uint32_t>(wide);
    default:
        return nullptr;
    }
}

template <class T> static Run atomic_integer(int op, bool wide)
{
    switch (op) {
    case ADD:
        return atomic_of<ADD, T>(wide);
    case MIN:
        return atomic_of<MIN, T>(wide);
    case MAX:
        return atomic_of<MAX, T>(wide);
    case INC:
        return sizeof(T) == 4 && !std::is_signed_v<T> ? atomic_of<INC, T>(wide) : nullptr;
    case DEC:
        return sizeof(T) == 4 && !std::is_signed_v<T> ? atomic_of<DEC, T>(wide) : nullptr;
    default:
        return nullptr;
    }
}

static Run atomic_float(int op, Type t, bool wide)
{
    if (op != ADD)
        return nullptr;
    switch (t) {
    case Type::f32:
        return atomic_of<ADD, float>(wide);
    case Type::f64:
        return atomic_of<ADD, double>(wide);
    case Type::f16:
        return atomic_of<ADD, F16>(wide);
    case Type::bf16:
        return atomic_of<ADD, Bf16>(wide);
    case Type::f16x2:
        return atomic_of<ADD, Pair<F16>>(wide);
    case Type::bf16x2:
        return atomic_of<ADD, Pair<Bf16>>(wide);
    default:
        return nullptr;
    }
}

static Run atomic_of_type(int op, Type t, bool wide)
{
    if (op == AND || op == OR || op == XOR || op == EXCH || op == CAS)
        return bits_of(t) == 128 ? nullptr : atomic_bits(op, t, wide);
    switch (t) {
    case Type::u32:
        return atomic_integer<uint32_t>(op, wide);
    case Type::s32:
        return atomic_integer<int32_t>(op, wide);
    case Type::u64:
        return atomic_integer<uint64_t>(op, wide);
    case Type::s64:
        return atomic_integer<int64_t>(op, wide);
    default:
        return atomic_float(op, t, wide);
    }
}

static Run decode_atomic(Statement &s)
{
    const bool result = s.base == "atom";
    s.inst.strict = true;
    s.inst.space = take_space(s);
    take_order(s);
    const int op =
        s.must_take_of({"add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas"});
    s.take("noftz");
    const int n = take_vector(s);
    const Type t = s.take_type();
    if (result && (int)s.targets(0, t) != n)
        s.refuse("%d registers are expected", n);
    const bool wide = s.address(result, 0) == 64;
    if ((int)s.sources(result + 1u, t) != n || (n > 1 && (op != ADD || !is_float(t))))
        s.refuse("this vector is not expected");
    s.inst.value[1] = n;
    if (op == CAS)
        s.source(result + 2u, t);
    take_policy(s, result + 2u + (op == CAS));
    const Run run = atomic_of_type(op, t, wide);
    if (!run)
        s.refuse("this operation is not emulated for %s", name_of(t));
    return run;
}

// --- addresses ---

// cvta: between a space's addresses and generic ones, which differ by a constant.
template <int sign, class T> static Next convert_address(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint64_t base = (uint64_t)i.value[0];
    return unary<T, T>(w, i, lanes, [=](T v) { return (T)(sign > 0 ? v + base : v - base); });
}

static uint64_t window_of(Space space)
{
    return space == Space::shared ? shared_window : space == Space::local ? local_window : 0;
}

static Run decode_cvta(Statement &s)
{
    const bool to = s.take("to");
    const Space space = take_space(s);
    const Type t = s.take_type();
    if (bits_of(t) != 64)
        s.refuse("addresses of 64 bits are expected");
    s.target(0, t);
    s.source(1, t);
    s.inst.value[0] = (int64_t)window_of(space);
    return to ? convert_address<-1, uint64_t> : convert_address<1, uint64_t>;
}

static Run decode_isspacep(Statement &s)
{
    const Space space = take_space(s);
    s.target(0, Type::pred);
    s.source(1, Type::u64);
    s.inst.value[0] = (int64_t)space;
    return [](Warp &w, const Inst &i, uint32_t lanes) {
        uint32_t &to = w.mask(i.d[0]);
        const uint64_t *from = w.longs(i.s[0]);
        each(lanes, [&](uint32_t k) {
            const Entry &e = *w.block->grid->entry;
            const bool param = from[k] - (uint64_t)(uintptr_t)e.param_memory < e.param_bytes;
            const Space in = from[k] >> 60 == shared_window >> 60  ? Space::shared
                             : from[k] >> 60 == local_window >> 60 ? Space::local
                             : param                               ? Space::param
                                                                   : Space::global;
            to = (to & ~(1u << k)) | (uint32_t)(in == (Space)i.value[0]) << k;
        });
        return Next::on;
    };
}

static Next nothing(Warp &, const Inst &, uint32_t)
{
    return Next::on;
}

// Hints to caches: their addresses are not looked at, as the ISA lets them be bad.
static Run decode_prefetch(Statement &s)
{
    take_space(s);
    if (s.take("tensormap"))
        s.take("param");
    s.take_of({"L1", "L2", "L2::evict_last", "L2::evict_normal"});
    s.address(0, 0);
    return nothing;
}

// createpolicy: a cache policy, which nothing looks into.
static Run decode_createpolicy(Statement &s)
{
    s.take("fractional");
    s.take_of({"L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"});
    s.take_of({"L2::evict_unchanged", "L2::evict_first"});
    s.take_type();
    s.target(0, Type::b64);
    if (s.n_operand() > 1)
        s.source(1, Type::f32);
    return [](Warp &w, const Inst &i, uint32_t lanes) {
        each(lanes, [&](uint32_t k) { w.longs(i.d[0])[k] = 0; });
        return Next::on;
    };
}

const Operation memories[] = {
    {"ld", decode_load},
    {"ldu", decode_load},
    {"st", decode_store},
    {"atom", decode_atomic},
    {"red", decode_atomic},
    {"cvta", decode_cvta},
    {"isspacep", decode_isspacep},
    {"prefetch", decode_prefetch},
    {"prefetchu", decode_prefetch},
    {"createpolicy", decode_createpolicy},
    {nullptr, nullptr},
};
} // namespace ptx
