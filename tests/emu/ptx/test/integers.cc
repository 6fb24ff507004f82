// Integers: arithmetic, carries, bits, logic, comparisons, selections, moves.
#include "test.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <functional>
#include <random>
#include <sstream>

namespace
{
using i128 = __int128;
using u128 = unsigned __int128;

// Values of up to four registers.
struct Values : std::array<uint64_t, 4> {
    Values(uint64_t a = 0, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0) : array{a, b, c, d}
    {
    }
};
using Oracle = std::function<Values(const Values &)>;

std::mt19937_64 numbers(1);

// A number: of any size, small, near a corner of its type or near the number before.
uint64_t number(int bits, uint64_t before)
{
    static const uint32_t floats[] = {0x80000000, 0x80000001, 0x807fffff, 0x80800000,
                                      0x7fc00000, 0xffc00000, 0x00000001, 0xff800000};
    const uint64_t random = numbers(), near = random % 5 - 2;
    const uint64_t all[] = {random,
                            random % 70,
                            random % 70,
                            0 - random % 70,
                            (1ull << (random >> 32) % 64) + near,
                            (1ull << (bits - 1)) + near,
                            before + random % 3 - 1,
                            bits == 32 ? floats[random % 8] : random};
    return all[numbers() % 8];
}

struct Register {
    std::string name;
    int bits;
    uint64_t mask; // of its bits
    explicit Register(const std::string &r)
        : name("%" + r), bits(r[0] == 'p'   ? 1
                              : r[0] == 'h' ? 16
                              : r[0] == 'r' ? 32
                                            : 64),
          mask(~0ull >> (64 - bits))
    {
    }
};
std::vector<Register> registers(const std::string &names)
{
    std::istringstream in(names);
    std::vector<Register> all;
    for (std::string name; in >> name;)
        all.emplace_back(name);
    return all;
}

constexpr uint32_t n_thread = 128, n_block = 3;

// Runs `text` with random sources in the registers `in` (h: 16 bits, r: 32, d: 64, p: predicates)
// and compares what is in the registers `out`, others, then. Each third thread jumps over it: its
// results are what was there before.
void check(const std::string &text, const std::string &out, const std::string &in, Oracle oracle)
{
    const auto results = registers(out), sources = registers(in);
    std::string body = ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .b64 %d<32>;\n"
                       ".reg .b128 %q<4>;\n"
                       "ld.param.u64 %d20, [p0]; ld.param.u64 %d21, [p1];\n"
                       "mov.u32 %r20, %tid.x; mov.u32 %r21, %ctaid.x; mov.u32 %r22, %ntid.x;\n"
                       "mad.lo.u32 %r20, %r21, %r22, %r20;\n"
                       "mad.wide.u32 %d20, %r20, 32, %d20; mad.wide.u32 %d21, %r20, 32, %d21;\n"
                       "rem.u32 %r20, %r20, 3; setp.eq.u32 %p15, %r20, 0;\n";
    const auto at = [](const char *base, size_t k) {
        return "[" + std::string(base) + "+" + std::to_string(8 * k) + "]";
    };
    const auto load = [&](const Register &r, const std::string &from) {
        body += r.bits == 1
                    ? "ld.global.u8 %r23, " + from + "; setp.ne.u32 " + r.name + ", %r23, 0;\n"
                    : "ld.global.u" + std::to_string(r.bits) + " " + r.name + ", " + from + ";\n";
    };
    const auto store = [&](const Register &r, const std::string &to) {
        body += r.bits == 1
                    ? "selp.u32 %r23, 1, 0, " + r.name + "; st.global.u8 " + to + ", %r23;\n"
                    : "st.global.u" + std::to_string(r.bits) + " " + to + ", " + r.name + ";\n";
    };
    for (size_t k = 0; k < results.size(); k++)
        load(results[k], at("%d21", k));
    for (size_t k = 0; k < sources.size(); k++)
        load(sources[k], at("%d20", k));
    body += "@%p15 bra END;\n" + text + "\nEND:\n";
    for (size_t k = 0; k < results.size(); k++)
        store(results[k], at("%d21", k));

    const Kernel kernel(2, body);
    std::vector<Values> x(n_thread * n_block, Values{}), d = x;
    for (Values &v : x) {
        uint64_t before = 0;
        for (size_t k = 0; k < sources.size(); k++)
            before = v[k] = number(sources[k].bits, before) & sources[k].mask;
    }
    for (Values &v : d)
        for (size_t k = 0; k < results.size(); k++)
            v[k] = numbers() & results[k].mask;
    Array<Values> from(x), to(d);
    const std::string report = kernel.run({from.at(), to.at()}, n_thread, n_block);
    EXPECT(report.empty(), "%s: %s", text.c_str(), report.c_str());
    const std::vector<Values> got = to.get();
    for (size_t t = 0; t < d.size(); t++) {
        const Values want = t % 3 ? oracle(x[t]) : d[t];
        for (size_t k = 0; k < results.size(); k++)
            EXPECT(got[t][k] == (want[k] & results[k].mask),
                   "%s thread %zu: result %zu is %llx, not %llx", text.c_str(), t, k,
                   (unsigned long long)got[t][k], (unsigned long long)want[k]);
    }
}

struct Type {
    std::string name;
    int bits;
    bool is_signed;
    char reg;
    i128 value(uint64_t v) const
    {
        const i128 all = (i128)1 << bits, n = (i128)v & (all - 1);
        return is_signed && n >= all / 2 ? n - all : n;
    }
};
const Type types[] = {{"u16", 16, false, 'h'}, {"s16", 16, true, 'h'},  {"u32", 32, false, 'r'},
                      {"s32", 32, true, 'r'},  {"u64", 64, false, 'd'}, {"s64", 64, true, 'd'}};
const Type bit_types[] = {
    {"b16", 16, false, 'h'}, {"b32", 32, false, 'r'}, {"b64", 64, false, 'd'}};

// "OP" with the registers of its result and sources: "rp" is r0, p1.
void check_op(const std::string &op, const std::string &regs, Oracle oracle)
{
    std::string text = op, out, in;
    for (size_t k = 0; k < regs.size(); k++) {
        const std::string r = regs[k] + std::to_string(k);
        text += (k ? ", %" : " %") + r;
        (k ? in : out) += r + " ";
    }
    check(text + ";", out, in, oracle);
}

// op.TYPE with sources of one type, in exact numbers.
void exact(const char *op, const Type &t, size_t n, i128 (*f)(i128, i128, i128))
{
    check_op(op + ("." + t.name), std::string(n + 1, t.reg),
             [&](Values x) { return (uint64_t)f(t.value(x[0]), t.value(x[1]), t.value(x[2])); });
}

// The upper half of a product, by long multiplication with digits of 32 bits where 128 bits might
// not hold it.
uint64_t upper_half(const Type &t, uint64_t a, uint64_t b)
{
    if (t.bits < 64)
        return (uint64_t)(t.value(a) * t.value(b) >> t.bits);
    const uint64_t low = UINT32_MAX, a0 = a & low, a1 = a >> 32, b0 = b & low, b1 = b >> 32;
    const uint64_t middle = (a0 * b0 >> 32) + a1 * b0, other = (middle & low) + a0 * b1;
    const uint64_t upper = a1 * b1 + (middle >> 32) + (other >> 32);
    return upper - (t.is_signed && (int64_t)a < 0 ? b : 0) -
           (t.is_signed && (int64_t)b < 0 ? a : 0);
}
uint64_t saturated(i128 v)
{
    return (uint64_t)std::min<i128>(std::max<i128>(v, INT32_MIN), INT32_MAX);
}
uint64_t bit(uint64_t v, int k)
{
    return v >> k & 1;
}
// The number of n bits whose bit k is f(k).
template <class F> uint64_t of_bits(int n, F f)
{
    uint64_t v = 0;
    for (int k = 0; k < n; k++)
        v |= (uint64_t)f(k) << k;
    return v;
}
} // namespace

TEST(integer_arithmetic)
{
    for (const Type &t : types) {
        exact("add", t, 2, [](i128 a, i128 b, i128) { return a + b; });
        exact("sub", t, 2, [](i128 a, i128 b, i128) { return a - b; });
        exact("min", t, 2, [](i128 a, i128 b, i128) { return a < b ? a : b; });
        exact("max", t, 2, [](i128 a, i128 b, i128) { return a < b ? b : a; });
        exact("div", t, 2, [](i128 a, i128 b, i128) { return b ? a / b : -1; });
        exact("rem", t, 2, [](i128 a, i128 b, i128) { return b ? a % b : -1; });
        exact("sad", t, 3, [](i128 a, i128 b, i128 c) { return c + (a < b ? b - a : a - b); });
        if (t.is_signed) {
            exact("abs", t, 1, [](i128 a, i128, i128) { return a < 0 ? -a : a; });
            exact("neg", t, 1, [](i128 a, i128, i128) { return -a; });
        }
    }
}

TEST(integer_products)
{
    const auto low_product = [](i128 a, i128 b, i128 c) {
        return (i128)((u128)a * (u128)b + (u128)c);
    };
    for (const Type &t : types) {
        const std::string r(1, t.reg);
        exact("mul.lo", t, 2, low_product); // plus zero
        exact("mad.lo", t, 3, low_product);
        check_op("mul.hi." + t.name, r + r + r,
                 [&](Values x) { return upper_half(t, x[0], x[1]); });
        check_op("mad.hi." + t.name, r + r + r + r,
                 [&](Values x) { return upper_half(t, x[0], x[1]) + x[2]; });
        if (t.bits == 64)
            continue;
        const std::string wide = t.bits == 16 ? "r" : "d";
        check_op("mul.wide." + t.name, wide + r + r,
                 [&](Values x) { return (uint64_t)(t.value(x[0]) * t.value(x[1])); });
        check_op("mad.wide." + t.name, wide + r + r + wide,
                 [&](Values x) { return (uint64_t)(t.value(x[0]) * t.value(x[1])) + x[2]; });
    }
    for (const bool is_signed : {false, true})
        for (const int shift : {0, 16}) {
            const std::string part = shift ? ".hi" : ".lo";
            check_op("mad24" + part + (is_signed ? ".s32" : ".u32"), "rrrr", [=](Values x) {
                const Type t24 = {"", 24, is_signed, 0};
                return (uint64_t)(t24.value(x[0]) * t24.value(x[1]) >> shift) + x[2];
            });
        }
}

TEST(integer_saturation)
{
    const Type s32 = types[3], s24 = {"", 24, true, 0};
    check_op("add.sat.s32", "rrr",
             [=](Values x) { return saturated(s32.value(x[0]) + s32.value(x[1])); });
    check_op("sub.sat.s32", "rrr",
             [=](Values x) { return saturated(s32.value(x[0]) - s32.value(x[1])); });
    check_op("mad.hi.sat.s32", "rrrr", [=](Values x) {
        return saturated((s32.value(x[0]) * s32.value(x[1]) >> 32) + s32.value(x[2]));
    });
    check_op("mad24.hi.sat.s32", "rrrr", [=](Values x) {
        return saturated((s24.value(x[0]) * s24.value(x[1]) >> 16) + s32.value(x[2]));
    });
    for (const std::string op : {"min", "max"})
        check_op(op + ".relu.s32", "rrr", [=](Values x) {
            const i128 a = s32.value(x[0]), b = s32.value(x[1]);
            return (uint64_t)std::max<i128>((a > b) == (op == "max") ? a : b, 0);
        });
}

TEST(integer_carries)
{
    // Numbers of 128 bits by words of 32.
    const std::string split = "mov.b64 {%r0,%r1}, %d0; mov.b64 {%r2,%r3}, %d1;\n"
                              "mov.b64 {%r4,%r5}, %d2; mov.b64 {%r6,%r7}, %d3;\n",
                      join = "mov.b64 %d4, {%r0,%r1}; mov.b64 %d5, {%r2,%r3};";
    const auto both = [](uint64_t low, uint64_t high) { return (u128)high << 64 | low; };
    const auto halves = [](u128 v) { return Values((uint64_t)v, (uint64_t)(v >> 64)); };
    for (const bool add : {true, false}) {
        const std::string op = add ? "add" : "sub";
        const auto oracle = [=](Values x) {
            const u128 a = both(x[0], x[1]), b = both(x[2], x[3]);
            return halves(add ? a + b : a - b);
        };
        check(split + op + ".cc.u32 %r0,%r0,%r4; " + op + "c.cc.s32 %r1,%r1,%r5;\n" + op +
                  "c.cc.u32 %r2,%r2,%r6; " + op + "c.u32 %r3,%r3,%r7;\n" + join,
              "d4 d5", "d0 d1 d2 d3", oracle);
        check(op + ".cc.u64 %d4,%d0,%d2; " + op + "c.s64 %d5,%d1,%d3;", "d4 d5", "d0 d1 d2 d3",
              oracle);
    }
    // addc without .cc leaves the carry as it was.
    check("add.cc.u32 %r2,%r0,%r1; addc.u32 %r3,0,0; addc.u32 %r4,0,0;", "r3 r4", "r0 r1",
          [](Values x) { return Values((x[0] + x[1]) >> 32, (x[0] + x[1]) >> 32); });
    // The ISA's product of two numbers of 64 bits, and a sum of it with one of 128.
    check(split + "mul.lo.u32 %r8,%r0,%r2; mul.hi.u32 %r9,%r0,%r2;\n"
                  "mad.lo.cc.u32 %r9,%r0,%r3,%r9; madc.hi.u32 %r10,%r0,%r3,0;\n"
                  "mad.lo.cc.u32 %r9,%r1,%r2,%r9; madc.hi.cc.u32 %r10,%r1,%r2,%r10;\n"
                  "addc.u32 %r11,0,0;\n"
                  "mad.lo.cc.u32 %r10,%r1,%r3,%r10; madc.hi.u32 %r11,%r1,%r3,%r11;\n"
                  "mov.b64 %d4, {%r8,%r9}; mov.b64 %d5, {%r10,%r11};",
          "d4 d5", "d0 d1 d2 d3", [=](Values x) { return halves((u128)x[0] * x[1]); });
    check("mad.lo.cc.u64 %d4,%d0,%d1,%d2; madc.hi.u64 %d5,%d0,%d1,%d3;", "d4 d5", "d0 d1 d2 d3",
          [=](Values x) { return halves((u128)x[0] * x[1] + both(x[2], x[3])); });
}

TEST(integer_dots)
{
    for (const bool a_signed : {false, true})
        for (const bool b_signed : {false, true}) {
            const std::string ty =
                std::string(a_signed ? ".s32" : ".u32") + (b_signed ? ".s32" : ".u32");
            const auto dot = [=](const Values &x, int n, int bits, int first) {
                const Type a = {"", bits, a_signed, 0}, b = {"", 8, b_signed, 0};
                i128 d = x[2];
                for (int k = 0; k < n; k++)
                    d += a.value(x[0] >> bits * k) * b.value(x[1] >> 8 * (first + k));
                return (uint64_t)d;
            };
            check_op("dp4a" + ty, "rrrr", [=](Values x) { return dot(x, 4, 8, 0); });
            check_op("dp2a.lo" + ty, "rrrr", [=](Values x) { return dot(x, 2, 16, 0); });
            check_op("dp2a.hi" + ty, "rrrr", [=](Values x) { return dot(x, 2, 16, 2); });
        }
}

TEST(integer_bits)
{
    for (const Type &t : bit_types) {
        const std::string r(1, t.reg);
        const int n = t.bits;
        check_op("shl." + t.name, r + r + "r",
                 [=](Values x) { return x[1] < 64 ? x[0] << x[1] : 0; });
        check_op("cnot." + t.name, r + r, [](Values x) { return x[0] == 0; });
        check_op("not." + t.name, r + r, [](Values x) { return ~x[0]; });
        check_op("and." + t.name, r + r + r, [](Values x) { return x[0] & x[1]; });
        check_op("or." + t.name, r + r + r, [](Values x) { return x[0] | x[1]; });
        check_op("xor." + t.name, r + r + r, [](Values x) { return x[0] ^ x[1]; });
        if (n == 16)
            continue;
        check_op("popc." + t.name, "r" + r, [](Values x) { return std::bitset<64>(x[0]).count(); });
        check_op("clz." + t.name, "r" + r, [=](Values x) {
            int d = 0;
            while (d < n && !bit(x[0], n - 1 - d))
                d++;
            return d;
        });
        check_op("brev." + t.name, r + r,
                 [=](Values x) { return of_bits(n, [&](int k) { return bit(x[0], n - 1 - k); }); });
        check_op("bfi." + t.name, r + r + r + "rr", [=](Values x) {
            const int at = x[2] & 255, end = at + (x[3] & 255);
            return of_bits(
                n, [&](int k) { return k < at || k >= end ? bit(x[1], k) : bit(x[0], k - at); });
        });
    }
    for (const Type &t : types) {
        const std::string r(1, t.reg);
        const int top = t.bits - 1;
        check_op("shr." + t.name, r + r + "r", [=](Values x) {
            return (uint64_t)(t.value(x[0]) >> std::min<uint64_t>(x[1], 100));
        });
        if (t.bits == 16)
            continue;
        check_op("bfe." + t.name, r + r + "rr", [=](Values x) {
            const int at = x[1] & 255, length = x[2] & 255;
            const bool sign = t.is_signed && length && bit(x[0], std::min(at + length - 1, top));
            return of_bits(t.bits, [&](int k) {
                return k < length && at + k <= top ? bit(x[0], at + k) : sign;
            });
        });
        for (const bool shift : {false, true})
            check_op((shift ? "bfind.shiftamt." : "bfind.") + t.name, "r" + r, [=](Values x) {
                const bool other = t.is_signed && bit(x[0], top);
                int d = top;
                while (d >= 0 && bit(x[0], d) == other)
                    d--;
                return (uint64_t)(shift && d >= 0 ? top - d : d);
            });
    }
}

TEST(integer_funnels_and_masks)
{
    for (const bool wrap : {false, true}) {
        const std::string how = wrap ? ".wrap" : ".clamp";
        for (const bool right : {false, true})
            check_op((right ? "shf.r" : "shf.l") + how + ".b32", "rrrr", [=](Values x) {
                const uint64_t n = wrap ? x[2] % 32 : std::min<uint64_t>(x[2], 32);
                const u128 both = (u128)x[1] << 32 | x[0];
                return (uint64_t)(right ? both >> n : both << n >> 32);
            });
        check_op("bmsk" + how + ".b32", "rrr", [=](Values x) {
            const uint64_t at = wrap ? x[0] % 32 : x[0], n = wrap ? x[1] % 32 : x[1];
            return of_bits(32, [&](uint64_t k) { return k >= at && k - at < n; });
        });
        check_op("szext" + how + ".s32", "rrr", [=](Values x) {
            const int n = wrap ? x[1] % 32 : std::min<uint64_t>(x[1], 32);
            return n ? (uint64_t)Type{"", n, true, 0}.value(x[0]) : 0;
        });
    }
}

TEST(integer_lop3)
{
    const auto f = [](uint64_t table, const Values &x) {
        return of_bits(32, [&](int k) {
            return bit(table, (int)(4 * bit(x[0], k) + 2 * bit(x[1], k) + bit(x[2], k)));
        });
    };
    for (int table = 0; table < 256; table++)
        check("lop3.b32 %r0,%r1,%r2,%r3," + std::to_string(table) + ";", "r0", "r1 r2 r3",
              [=](Values x) { return f(table, x); });
    for (const uint64_t table : {0x00, 0x80, 0x1a, 0xff})
        for (const bool negated : {false, true}) {
            check("lop3.or.b32 %r0|%p1,%r1,%r2,%r3," + std::to_string(table) +
                      (negated ? ",!%p2;" : ",%p2;"),
                  "r0 p1", "r1 r2 r3 p2",
                  [=](Values x) { return Values(f(table, x), f(table, x) || x[3] != negated); });
        }
}

TEST(integer_prmt)
{
    const auto permuted = [](const Values &x, uint64_t selector) {
        uint64_t d = 0;
        for (int n = 0; n < 4; n++) {
            const int pick = selector >> 4 * n & 15;
            const uint64_t byte = x[pick >> 2 & 1] >> 8 * (pick & 3) & 255;
            d |= (pick < 8 ? byte : byte / 128 * 255) << 8 * n;
        }
        return d;
    };
    check_op("prmt.b32", "rrrr", [=](Values x) { return permuted(x, x[2]); });
    for (const uint64_t s : {0x3210, 0x5410, 0x7632, 0x0123, 0xba98, 0xfedc, 0x8888, 0x1c4d})
        check("prmt.b32 %r0,%r1,%r2," + std::to_string(s) + ";", "r0", "r1 r2",
              [=](Values x) { return permuted(x, s); });
    using Pick = int (*)(int c, int k); // which of the eight bytes byte k is
    const std::pair<const char *, Pick> modes[] = {
        {"f4e", [](int c, int k) { return c + k; }},
        {"b4e", [](int c, int k) { return (c - k) & 7; }},
        {"rc8", [](int c, int) { return c; }},
        {"ecl", [](int c, int k) { return std::max(c, k); }},
        {"ecr", [](int c, int k) { return std::min(c, k); }},
        {"rc16", [](int c, int k) { return 2 * (c & 1) + (k & 1); }}};
    for (const auto &mode : modes)
        check_op(std::string("prmt.b32.") + mode.first, "rrrr", [=](Values x) {
            uint64_t d = 0;
            for (int k = 0; k < 4; k++)
                d |= ((x[1] << 32 | x[0]) >> 8 * mode.second(x[2] & 3, k) & 255) << 8 * k;
            return d;
        });
}

TEST(integer_comparisons)
{
    const char *relations[] = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"};
    for (const Type &t : types)
        for (int c = 0; c < (t.is_signed ? 6 : 10); c++) {
            const std::string r(1, t.reg), op = relations[c], ab = "%" + r + "1,%" + r + "2",
                                           in = r + "1 " + r + "2";
            const auto holds = [=](Values x) -> uint64_t {
                const i128 d = t.value(x[0]) - t.value(x[1]);
                const bool is[] = {d == 0, d != 0, !(d >= 0), d <= 0, !(d <= 0), d >= 0};
                return is[c < 6 ? c : c - 4];
            };
            check("setp." + op + "." + t.name + " %p0|%p1," + ab + ";", "p0 p1", in,
                  [=](Values x) { return Values(holds(x), !holds(x)); });
            for (const std::string join : {"and", "or", "xor"}) {
                const auto joined = [=](uint64_t a, uint64_t b) {
                    return join == "and" ? a & b : join == "or" ? a | b : a ^ b;
                };
                check("setp." + op + "." + join + "." + t.name + " %p0|%p1," + ab + ",!%p3;",
                      "p0 p1", in + " p3", [=](Values x) {
                          return Values(joined(holds(x), !x[2]), joined(!holds(x), !x[2]));
                      });
                check("set." + op + "." + join + ".f32." + t.name + " %r0," + ab + ",%p3;", "r0",
                      in + " p3", [=](Values x) { return joined(holds(x), x[2]) * 0x3f800000; });
            }
        }
}

TEST(integer_selections)
{
    for (const Type &t : types) {
        const std::string r(1, t.reg);
        check_op("selp." + t.name, r + r + r + "p", [](Values x) { return x[2] ? x[0] : x[1]; });
        check_op("slct." + t.name + ".s32", r + r + r + "r",
                 [](Values x) { return x[2] >> 31 ? x[1] : x[0]; });
        for (const uint64_t least : {1, 0x800000}) // what is below counts as zero
            check_op((least > 1 ? "slct.ftz." : "slct.") + t.name + ".f32", r + r + r + "r",
                     [=](Values x) {
                         const uint64_t size = x[2] & INT32_MAX;
                         return size > 0x7f800000 || (x[2] >> 31 && size >= least) ? x[1] : x[0];
                     });
    }
    check("and.pred %p0,!%p1,%p2; xor.pred %p3,%p1,%p2; not.pred %p4,%p1;", "p0 p3 p4", "p1 p2",
          [](Values x) { return Values(!x[0] && x[1], x[0] != x[1], !x[0]); });
}

TEST(integer_moves)
{
    check("mov.b32 %r0,{%h1,%h2};", "r0", "h1 h2", [](Values x) { return x[0] | x[1] << 16; });
    check("mov.b32 {%h1,%h2},%r0;", "h1 h2", "r0",
          [](Values x) { return Values(x[0] & 0xffff, x[0] >> 16); });
    check("mov.b32 {_,%h2},%r0;", "h2", "r0", [](Values x) { return x[0] >> 16; });
    check("mov.b64 {%r1,%r2},%d0; mov.b64 %d1,{%r2,%r1};", "r1 d1", "d0",
          [](Values x) { return Values(x[0], x[0] << 32 | x[0] >> 32); });
    check("mov.b64 %d0,{%h1,%h2,%h3,%h4};", "d0", "h1 h2 h3 h4",
          [](Values x) { return x[0] + (x[1] << 16) + (x[2] << 32) + (x[3] << 48); });
    check("mov.b64 {%h1,%h2,%h3,%h4},%d0;", "h1 h2 h3 h4", "d0",
          [](Values x) { return Values(x[0], x[0] >> 16, x[0] >> 32, x[0] >> 48); });
    check("mov.b128 %q0,{%d1,%d2}; mov.b128 %q1,%q0; mov.b128 {%d4,%d3},%q1;", "d3 d4", "d1 d2",
          [](Values x) { return Values(x[1], x[0]); });
    check("mov.pred %p0,!%p1; mov.f32 %r0,0f40490FDB; mov.s32 %r1,-5;", "p0 r0 r1", "p1",
          [](Values x) { return Values(!x[0], 0x40490fdb, UINT32_MAX - 4); });
    check("mov.f32 %r1,-1.5; mov.f32 %r2,-0f3FC00000; mov.f64 %d1,-1.5; mov.f64 "
          "%d2,-0d3FF8000000000000;",
          "r1 r2 d1 d2", "r0", [](Values) {
              return Values(0xbfc00000, 0xbfc00000, 0xbff8000000000000, 0xbff8000000000000);
          });
    check("mov.u32 %r1,%gridid; mov.u64 %d1,%gridid; cvt.u32.u64 %r2,%d1; sub.u32 %r1,%r1,%r2;",
          "r1", "r0", [](Values) { return 0; });
}
