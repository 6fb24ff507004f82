// Floating-point arithmetic, comparisons and conversions, against exact values: sums in a
// fixed-point accumulator, quotients and roots of integers, rounding by a search over the results'
// bit patterns.
#include <math.h>

#include "test.hpp"

namespace
{
using u128 = unsigned __int128;
using Words = std::vector<uint64_t>; // the bits of values, one each

// --- running an instruction for many values ---

// The results of `op`, in which $0 is the destination and $1, $2, .. are the sources (appended
// where it has none of them); bits: those of $0, $1, ..
Words results(const std::string &op, const std::vector<int> &bits, std::vector<Words> in)
{
    std::string body = ".reg .b16 %h<9>; .reg .b32 %r<9>, %i<3>; .reg .b64 %d<9>, %a<9>;\n"
                       ".reg .pred %p<9>;\n"
                       "mov.u32 %i0, %ctaid.x; mov.u32 %i1, %ntid.x; mov.u32 %i2, %tid.x;\n"
                       "mad.lo.u32 %i0, %i0, %i1, %i2; mul.wide.u32 %a8, %i0, 8;\n";
    std::string text = op, store;
    if (op.find('$') == std::string::npos)
        text += std::string(" $0, $1, $2, $3").substr(0, 4 * bits.size() - 1) + ";";
    for (size_t k = 0; k < bits.size(); k++) {
        const std::string n = std::to_string(k), a = "%a" + n;
        const std::string reg = (bits[k] <= 16 ? "%h" : bits[k] == 32 ? "%r" : "%d") + n;
        const std::string form = ".global.b" + std::to_string(bits[k]) + " ";
        body += "ld.param.u64 " + a + ", [p" + n + "]; add.u64 " + a + ", " + a + ", %a8;\n";
        (k ? body : store) +=
            k ? "ld" + form + reg + ", [" + a + "];\n" : "st" + form + "[%a0], " + reg + ";";
        for (size_t at; (at = text.find("$" + n)) != std::string::npos;)
            text.replace(at, 2, reg);
    }
    const uint32_t n = (uint32_t)in[0].size(); // a multiple of 256
    in.resize(3, Words(1));
    const Kernel kernel(4, body + text + "\n" + store);
    const Array<uint64_t> out(Words(n, 0)), a(in[0]), b(in[1]), c(in[2]);
    const std::string report = kernel.run({out.at(), a.at(), b.at(), c.at()}, 256, n / 256);
    EXPECT(report.empty(), "%s: %s", op.c_str(), report.c_str());
    return out.get();
}

// Compares the results with those of f(k). Any NaN of f64 will do: it may have a payload.
template <class F>
void check(const std::string &op, const std::vector<int> &bits, const std::vector<Words> &in, F f)
{
    const Words got = results(op, bits, in);
    for (size_t k = 0; k < got.size(); k++) {
        const uint64_t want = f(k);
        if (got[k] == want || (want == 0x7ff8ull << 48 && got[k] << 1 > 0xffe0ull << 48))
            continue;
        std::string of;
        for (const Words &v : in)
            of += " " + std::to_string(v[k]);
        EXPECT(false, "%s (%s): %llx, should be %llx", op.c_str(), of.c_str(),
               (unsigned long long)got[k], (unsigned long long)want);
        return;
    }
}

// --- exact values ---

struct Format {
    const char *name;
    int bits, mantissa;
    uint64_t nan;      // canonical
    uint64_t infinity; // the pattern behind the greatest finite value
    uint64_t sign = 1ull << (bits - 1);
    int exponent = bits - 1 - mantissa;
};
const Format f16 = {"f16", 16, 10, 0x7fff, 0x7c00}, bf16 = {"bf16", 16, 7, 0x7fff, 0x7f80},
             f32 = {"f32", 32, 23, 0x7fffffff, 0x7f800000},
             f64 = {"f64", 64, 52, 0x7ff8ull << 48, 0x7ff0ull << 48},
             e4m3 = {"e4m3", 8, 3, 0x7f, 0x7f}, e5m2 = {"e5m2", 8, 2, 0x7f, 0x7c},
             tf32 = {"tf32", 19, 10, 0x3ffff, 0x3fc00};
const Format floats[] = {f16, bf16, f32, f64};

// m * 2^e, and something less than 2^e beyond it if `more`; or none of that.
struct Real {
    bool negative;
    u128 m;
    int e;
    bool more;
    enum { finite, infinity, nan } kind;
};

Real magnitude(int exponent, int mantissa, uint64_t bits)
{
    const int least = 2 - (1 << (exponent - 1)) - mantissa, biased = (int)(bits >> mantissa);
    const uint64_t low = bits & ((1ull << mantissa) - 1);
    return biased ? Real{false, low | 1ull << mantissa, least + biased - 1, false, Real::finite}
                  : Real{false, low, least, false, Real::finite};
}
Real real_of(const Format &f, uint64_t bits)
{
    Real r = magnitude(f.exponent, f.mantissa, bits & (f.sign - 1));
    r.negative = bits & f.sign;
    bits &= f.sign - 1;
    r.kind = bits > f.infinity || bits == f.nan ? Real::nan
             : bits == f.infinity               ? Real::infinity
                                                : Real::finite;
    return r;
}
bool is_nan(const Format &f, uint64_t bits)
{
    return real_of(f, bits).kind == Real::nan;
}
// -1, 0, 1: the magnitude of a is less, equal, greater.
int compare(Real a, Real b)
{
    for (Real *r : {&a, &b}) {
        const uint64_t high = (uint64_t)(r->m >> 64), low = (uint64_t)r->m;
        const int zeros = high ? __builtin_clzll(high) : low ? 64 + __builtin_clzll(low) : 0;
        r->m = r->m ? r->m << zeros : 0;
        r->e = r->m ? r->e - zeros : -100000;
    }
    if (a.e != b.e)
        return a.e < b.e ? -1 : 1;
    if (a.m != b.m)
        return a.m < b.m ? -1 : 1;
    return (int)a.more - (int)b.more;
}

enum Mode { rn, rz, rm, rp, rna };
const std::string mode_names[] = {".rn", ".rz", ".rm", ".rp", ".rna"};

// The bits of x, not a NaN: the patterns of magnitudes are in the order of the values, and what is
// halfway between two of them is a value with one bit more.
uint64_t rounded(const Format &f, const Real &x, Mode mode)
{
    const uint64_t sign = x.negative ? f.sign : 0;
    if (x.kind == Real::infinity)
        return sign | f.infinity;
    uint64_t below = 0, beyond = f.infinity;
    while (beyond - below > 1) {
        const uint64_t mid = below + (beyond - below) / 2;
        (compare(magnitude(f.exponent, f.mantissa, mid), x) <= 0 ? below : beyond) = mid;
    }
    const int half = compare(x, magnitude(f.exponent, f.mantissa + 1, 2 * below + 1));
    const bool exact = compare(x, magnitude(f.exponent, f.mantissa, below)) == 0;
    const bool up = mode == rn    ? half > 0 || (half == 0 && below & 1)
                    : mode == rna ? half >= 0
                    : mode == rm  ? !exact && x.negative
                    : mode == rp  ? !exact && !x.negative
                                  : false;
    return sign | (below + up);
}

// A sum of products, in fixed point: in units of 2^-2200, two's complement.
struct Sum {
    static constexpr int n = 70;
    uint64_t word[n] = {};
    void add(bool negative, u128 m, int e)
    {
        for (; m; m >>= 64, e += 64) {
            const u128 part = (u128)(uint64_t)m << (e + 2200) % 64;
            uint64_t carry = negative;
            for (int k = (e + 2200) / 64, from = k; k < n; k++) {
                const uint64_t w = k == from ? part : k == from + 1 ? part >> 64 : 0;
                const u128 sum = (u128)word[k] + (negative ? ~w : w) + carry;
                word[k] = (uint64_t)sum;
                carry = (uint64_t)(sum >> 64);
            }
        }
    }
    Real value() const
    {
        Sum s = *this;
        const bool negative = word[n - 1] >> 63;
        uint64_t carry = negative;
        for (uint64_t &w : s.word) {
            w = (negative ? ~w : w) + carry;
            carry = carry && !w;
        }
        int top = n - 1;
        while (top > 1 && !s.word[top])
            top--;
        Real r = {negative, (u128)s.word[top] << 64 | s.word[top - 1], (top - 1) * 64 - 2200, false,
                  Real::finite};
        for (int k = 0; k < top - 1; k++)
            r.more |= s.word[k] != 0;
        return r;
    }
};

// a * b + c as IEEE 754 has it; add and mul are without b or c.
uint64_t fma_of(const Format &f, Mode mode, uint64_t a, const uint64_t *b, const uint64_t *c)
{
    const Real one = {false, 1, 0, false, Real::finite};
    const Real x = real_of(f, a), y = b ? real_of(f, *b) : one;
    const bool sign = x.negative != y.negative, zero = !x.m || !y.m;
    const bool infinite = x.kind == Real::infinity || y.kind == Real::infinity;
    const Real z = c ? real_of(f, *c) : Real{sign, 0, 0, false, Real::finite};
    if (x.kind == Real::nan || y.kind == Real::nan || z.kind == Real::nan || (infinite && zero) ||
        (infinite && z.kind == Real::infinity && sign != z.negative))
        return f.nan;
    if (infinite || z.kind == Real::infinity)
        return f.infinity | ((infinite ? sign : z.negative) ? f.sign : 0);
    Sum s;
    s.add(sign, x.m * y.m, x.e + y.e);
    s.add(z.negative, z.m, z.e);
    Real r = s.value();
    if (!r.m && !r.more)
        r.negative = sign == z.negative ? sign : mode == rm;
    return rounded(f, r, mode);
}
uint64_t flushed(const Format &f, uint64_t bits)
{
    return bits & f.infinity ? bits : bits & f.sign;
}

// --- values ---

uint64_t random_word()
{
    static uint64_t x = 88172645463325252;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x * 0x2545f4914f6cdd1d;
}
// All 65536 of 16 bits, or patterns of all sorts: any, near one, near the subnormal ones, few bits,
// corners.
Words values(const Format &f, size_t n)
{
    Words v(n);
    for (size_t k = 0; k < n; k++)
        v[k] = k;
    if (f.bits == 16 && n == 65536)
        return v;
    const uint64_t unit = 1ull << f.mantissa, one = f.infinity / 2 & -unit;
    const uint64_t corners[] = {0, 1, unit - 1, unit, one - 1, one, f.infinity - 1, f.infinity};
    for (uint64_t &x : v) {
        const uint64_t r = random_word(), low = r & (unit - 1), sort = random_word() % 6;
        x = sort == 0   ? r
            : sort <= 2 ? (one + (r >> 60) * unit - 8 * unit) | low
            : sort == 3 ? (r >> 60 & 3) * unit | low
            : sort == 4 ? one + (r >> 61) * unit + (r >> 32 & 3) + (r >> 40 & 3) * unit / 4
            : r >> 59   ? corners[r >> 32 & 7]
                        : f.nan;
        x = (x & (f.sign - 1)) | (r >> 31 & 1 ? f.sign : 0);
    }
    return v;
}
} // namespace

// --- arithmetic ---

TEST(floats_flush_and_saturate)
{
    const Words a = values(f32, 4096), b = values(f32, 4096), c = values(f32, 4096);
    for (const bool sat : {false, true})
        check(sat ? "fma.rz.ftz.sat.f32" : "fma.rz.ftz.f32", {32, 32, 32, 32}, {a, b, c},
              [&](size_t k) -> uint64_t {
                  const uint64_t y = flushed(f32, b[k]), z = flushed(f32, c[k]);
                  const uint64_t r = flushed(f32, fma_of(f32, rz, flushed(f32, a[k]), &y, &z));
                  if (!sat)
                      return r;
                  return is_nan(f32, r) || r & f32.sign ? 0 : r > 0x3f800000 ? 0x3f800000 : r;
              });
}

TEST(floats_of_16_bits)
{
    for (const Format &f : {f16, bf16}) {
        const std::string t = f.name;
        const Words a = values(f, 16384), b = values(f, 16384);
        Words c = values(f, 16384), want, pairs[4];
        for (size_t k = 0; k < c.size(); k++) {
            if (k % 4 == 0) // breaks ties of products
                c[k] = (c[k] & f.sign) | random_word() % 40;
            want.push_back(fma_of(f, rn, a[k], &b[k], &c[k]));
            const uint64_t all[] = {a[k], b[k], c[k], want[k]};
            for (int i = 0; i < 4; i++)
                if (k % 2)
                    pairs[i].back() |= all[i] << 16;
                else
                    pairs[i].push_back(all[i]);
        }
        check("add." + t, {16, 16, 16}, {a, b},
              [&](size_t k) { return fma_of(f, rn, a[k], nullptr, &b[k]); });
        check("mul." + t, {16, 16, 16}, {a, b},
              [&](size_t k) { return fma_of(f, rn, a[k], &b[k], nullptr); });
        check("fma.rn." + t, {16, 16, 16, 16}, {a, b, c}, [&](size_t k) { return want[k]; });
        check("fma.rn.relu." + t, {16, 16, 16, 16}, {a, b, c},
              [&](size_t k) { return want[k] & 0x8000 ? 0 : want[k]; });
        check("fma.rn." + t + "x2", {32, 32, 32, 32}, {pairs[0], pairs[1], pairs[2]},
              [&](size_t k) { return pairs[3][k]; });
    }
}

static uint64_t quotient(const Format &f, Mode mode, uint64_t a, uint64_t b)
{
    Real x = real_of(f, a), y = real_of(f, b);
    const uint64_t sign = (a ^ b) & f.sign;
    const bool zero = !x.m, by_zero = !y.m;
    if (x.kind == Real::nan || y.kind == Real::nan || (zero && by_zero) ||
        (x.kind == Real::infinity && y.kind == Real::infinity))
        return f.nan;
    if (x.kind == Real::infinity || by_zero)
        return sign | f.infinity;
    if (y.kind == Real::infinity || zero)
        return sign;
    for (; !(x.m >> 127); x.e--)
        x.m <<= 1;
    return rounded(f, {sign != 0, x.m / y.m, x.e - y.e, x.m % y.m != 0, Real::finite}, mode);
}
static uint64_t root(const Format &f, Mode mode, uint64_t a)
{
    Real x = real_of(f, a);
    if (x.kind == Real::nan || (x.negative && x.m))
        return f.nan;
    if (x.kind == Real::infinity || !x.m)
        return a;
    for (; x.m >> 125 == 0 || x.e % 2; x.e--)
        x.m <<= 1;
    u128 r = 0; // the greatest integer whose square is not above
    for (int bit = 63; bit >= 0; bit--)
        if ((r | (u128)1 << bit) * (r | (u128)1 << bit) <= x.m)
            r |= (u128)1 << bit;
    return rounded(f, {false, r, x.e / 2, r * r != x.m, Real::finite}, mode);
}

TEST(floats_wide)
{
    for (const Format &f : {f32, f64}) {
        const int n = f.bits;
        const uint64_t one = f.infinity / 2 & ~0ull << f.mantissa;
        const Words a = values(f, 2048), b = values(f, 2048);
        Words c = values(f, 2048);
        for (size_t k = 0; k < c.size(); k += 3) // almost cancels a * b
            c[k] = (fma_of(f, rn, a[k], &b[k], nullptr) ^ f.sign) + k % 2;
        for (Mode mode : {rn, rz, rm, rp}) {
            const auto test = [&](const char *op, const std::vector<Words> &in, auto want) {
                check(op + mode_names[mode] + "." + f.name, std::vector<int>(in.size() + 1, n), in,
                      want);
            };
            test("add", {a, c}, [&](int k) { return fma_of(f, mode, a[k], nullptr, &c[k]); });
            test("mul", {a, b}, [&](int k) { return fma_of(f, mode, a[k], &b[k], nullptr); });
            test("fma", {a, b, c}, [&](int k) { return fma_of(f, mode, a[k], &b[k], &c[k]); });
            test("div", {a, b}, [&](int k) { return quotient(f, mode, a[k], b[k]); });
            test("rcp", {a}, [&](int k) { return quotient(f, mode, one, a[k]); });
            test("sqrt", {a}, [&](int k) { return root(f, mode, a[k]); });
        }
    }
}

// --- comparisons ---

// Patterns as integers in the order of the values, -0 below +0.
static int64_t order(const Format &f, uint64_t bits)
{
    const int64_t size = (int64_t)(bits & (f.sign - 1));
    return bits & f.sign ? -size - 1 : size;
}

TEST(floats_min_max)
{
    for (const Format &f : floats) {
        const Words a = values(f, 4096);
        Words b = values(f, 4096);
        for (size_t k = 0; k < b.size(); k += 4)
            b[k] = a[k] ^ f.sign;
        for (const std::string op : {"min.", "max.", "min.NaN.", "max.NaN."})
            if (op.size() == 4 || f.bits < 64)
                check(op + f.name, {f.bits, f.bits, f.bits}, {a, b}, [&](size_t k) {
                    const bool a_is = is_nan(f, a[k]), b_is = is_nan(f, b[k]);
                    if (a_is || b_is)
                        return op.size() > 4 || (a_is && b_is) ? f.nan : a_is ? b[k] : a[k];
                    return (order(f, a[k]) > order(f, b[k])) == (op[1] == 'a') ? a[k] : b[k];
                });
    }
}

TEST(floats_relations)
{
    const char *const names[] = {"eq", "ne", "lt", "le", "gt", "ge", "num"};
    const char *const unordered_names[] = {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"};
    for (const Format &f : floats) {
        const Words a = values(f, 2048);
        Words b = values(f, 2048);
        for (size_t k = 0; k < b.size(); k += 3)
            b[k] = k % 2 ? a[k] : a[k] ^ f.sign;
        for (int r = 0; r < 14; r++) {
            const bool unordered = r >= 7;
            const std::string name = unordered ? unordered_names[r - 7] : names[r];
            check("setp." + name + "." + f.name + " %p0, $1, $2; selp.b32 $0, 1, 0, %p0;",
                  {32, f.bits, f.bits}, {a, b}, [&](size_t k) -> uint64_t {
                      const int64_t x = a[k] == f.sign ? 0 : order(f, a[k]);
                      const int64_t y = b[k] == f.sign ? 0 : order(f, b[k]);
                      const bool is[] = {x == y, x != y, x<y, x <= y, x> y, x >= y, !unordered};
                      return is_nan(f, a[k]) || is_nan(f, b[k]) ? unordered : is[r % 7];
                  });
        }
    }
}

// --- approximations: the bounds of the ISA ---

TEST(floats_approximations)
{
    const uint64_t nan = f32.nan, inf = f32.infinity, minus = f32.sign, one = 0x3f800000;
    struct Case {
        const char *op;
        long double (*f)(long double);
        long double least, most, absolute, relative; // a range, the error there
        uint64_t corners[4];                         // results for -inf, -0, 0, inf
    };
    const auto inverse = [](long double x) { return 1 / x; };
    const auto inverse_root = [](long double x) { return 1 / sqrtl(x); };
    const Case cases[] = {
        {"ex2", exp2l, -126, 127, 0, 0x1p-22L, {0, one, one, inf}},
        {"lg2", log2l, 0.5, 2, 0x1p-22L, 0, {nan, minus | inf, minus | inf, inf}},
        {"lg2", log2l, 2, 0x1p127L, 0, 0x1p-22L, {nan, minus | inf, minus | inf, inf}},
        {"sin", sinl, -6.28L, 6.28L, 0x1p-20L, 0, {nan, minus, 0, nan}},
        {"cos", cosl, -6.28L, 6.28L, 0x1p-20L, 0, {nan, one, one, nan}},
        {"tanh", tanhl, -9, 9, 0, 0x1p-11L, {minus | one, minus, 0, one}},
        {"rcp", inverse, 1, 1000, 0, 0x1p-23L, {minus, minus | inf, inf, 0}},
        {"sqrt", sqrtl, 0, 0x1p127L, 0, 0x1p-23L, {nan, minus, 0, inf}},
        {"rsqrt", inverse_root, 0x1p-120L, 10, 0, 0x1p-22L, {nan, minus | inf, inf, 0}}};
    for (const Case &c : cases) {
        Words in = {minus | inf, minus, 0, inf};
        std::vector<float> x(4096), y(x.size());
        for (size_t k = 4; k < x.size(); k++) {
            x[k] = (float)(c.least + (c.most - c.least) * (random_word() >> 11) * 0x1p-53L);
            in.push_back(0);
            memcpy(&in[k], &x[k], 4);
        }
        const Words out = results(std::string(c.op) + ".approx.f32", {32, 32}, {in});
        for (size_t k = 0; k < x.size(); k++) {
            memcpy(&y[k], &out[k], 4);
            const long double want = c.f(x[k]), error = fabsl(y[k] - want);
            const bool is =
                k < 4 ? out[k] == c.corners[k] : error <= c.absolute + c.relative * fabsl(want);
            EXPECT(is, "%s of %llx: %llx", c.op, (unsigned long long)in[k],
                   (unsigned long long)out[k]);
        }
    }
}

// --- conversions ---

static uint64_t converted(const Format &to, const Format &from, uint64_t bits, Mode mode,
                          bool relu = false, bool satfinite = false)
{
    const Real x = real_of(from, bits);
    if (x.kind == Real::nan)
        return to.nan;
    if (relu && x.negative)
        return 0;
    const uint64_t r = rounded(to, x, mode);
    return satfinite && (r & (to.sign - 1)) == to.infinity ? r - 1 : r;
}

TEST(floats_to_floats)
{
    for (const Format &to : floats)
        for (const Format &from : floats) {
            if (to.name == from.name)
                continue;
            const bool wider = to.mantissa >= from.mantissa && to.exponent >= from.exponent;
            Words in = values(from, from.bits == 16 ? 65536 : 8192);
            for (uint64_t &v : in) // of bf16 to f32: "unspecified NaN"
                v = from.mantissa == 7 && to.bits == 32 && is_nan(from, v) ? 0 : v;
            for (Mode mode : {rn, rz, rm, rp}) {
                if (wider && mode != rn)
                    continue;
                check("cvt" + (wider ? "" : mode_names[mode]) + "." + to.name + "." + from.name,
                      {to.bits, from.bits}, {in},
                      [&](size_t k) { return converted(to, from, in[k], mode); });
            }
        }
    const Words in = values(f32, 8192);
    for (Mode mode : {rn, rz, rna})
        check("cvt" + mode_names[mode] + ".tf32.f32", {32, 32}, {in},
              [&](size_t k) { return converted(tf32, f32, in[k], mode) << 13; });
    check("cvt.rn.ftz.f16.f32", {16, 32}, {in},
          [&](size_t k) { return converted(f16, f32, flushed(f32, in[k]), rn); });
}

TEST(floats_packed)
{
    const Words a = values(f32, 8192), b = values(f32, 8192), bytes = values(f16, 65536);
    Words halves = bytes;
    for (uint64_t &v : halves)
        v |= (v * 40503 & 0xffff) << 16;
    for (const Format &to : {f16, bf16, e4m3, e5m2})
        for (const std::string relu : {"", ".relu"}) {
            const bool narrow = to.bits == 8, is = relu != "";
            const auto both = [&](const Format &from, uint64_t high, uint64_t low, Mode mode) {
                return converted(to, from, high, mode, is, narrow) << to.bits |
                       converted(to, from, low, mode, is, narrow);
            };
            const std::string tail = relu + (narrow ? ".satfinite." : ".") + to.name + "x2";
            for (Mode mode : {rn, rz})
                if (mode == rn || !narrow)
                    check("cvt" + mode_names[mode] + tail + ".f32", {2 * to.bits, 32, 32}, {a, b},
                          [&](size_t k) { return both(f32, a[k], b[k], mode); });
            if (!narrow)
                continue;
            check("cvt.rn" + tail + ".f16x2", {16, 32}, {halves},
                  [&](size_t k) { return both(f16, halves[k] >> 16, halves[k] & 0xffff, rn); });
            check("cvt.rn" + relu + ".f16x2." + to.name + "x2", {32, 16}, {bytes}, [&](size_t k) {
                return converted(f16, to, bytes[k] >> 8, rn, is) << 16 |
                       converted(f16, to, bytes[k] & 255, rn, is);
            });
        }
}

struct Integer {
    std::string name;
    int bits;
    bool is_signed;
    uint64_t mask = ~0ull >> (64 - bits);
};
static const Integer integers[] = {{"u8", 8, false},   {"s8", 8, true},    {"u16", 16, false},
                                   {"s16", 16, true},  {"u32", 32, false}, {"s32", 32, true},
                                   {"u64", 64, false}, {"s64", 64, true}};

// Rounded to an integer and clamped.
static uint64_t integer_of(const Integer &to, const Format &from, uint64_t bits, Mode mode)
{
    const Real x = real_of(from, bits);
    if (x.kind == Real::nan)
        return to.bits == 64 || from.bits == 64 ? 1ull << (to.bits - 1) : 0;
    __int128 v = (__int128)1 << 100;
    if (x.kind == Real::finite && compare(x, {false, 2, 64, false, Real::finite}) < 0) {
        const u128 m = x.e >= -60 ? x.m << (x.e + 60) : 0; // in units of 2^-60
        const u128 low = m & (((u128)1 << 60) - 1), half = (u128)1 << 59;
        const bool rest = low || (x.e < -60 && x.m);
        v = (__int128)(m >> 60);
        v += mode == rn   ? low > half || (low == half && v & 1)
             : mode == rm ? rest && x.negative
             : mode == rp ? rest && !x.negative
                          : false;
    }
    v = x.negative ? -v : v;
    const __int128 most = to.mask >> to.is_signed, least = to.is_signed ? -most - 1 : 0;
    return (uint64_t)(v < least ? least : v > most ? most : v) & to.mask;
}

TEST(floats_and_integers)
{
    for (const Format &f : floats)
        for (const Integer &i : integers) {
            Words in = values(f, f.bits == 16 && i.bits == 32 ? 65536 : 2048), from(2048);
            for (size_t k = 0; f.bits >= 32 && k < in.size(); k += 2) { // about the limits
                const Real x = {(k & 2) != 0, (u128)1 << 64 | random_word() % 7,
                                (int)(random_word() % 66) - 65, false, Real::finite};
                in[k] = rounded(f, x, k & 4 ? rz : rp) - (k & 8 ? 1 : 0);
            }
            for (uint64_t &v : from) { // few bits: ties
                v = (1ull << random_word() % 64) + (1ull << random_word() % 64);
                v = (v + random_word() % 3 - 1) * (random_word() & 1 ? 1 : ~0ull) & i.mask;
            }
            for (Mode mode : {rn, rz, rm, rp}) {
                check("cvt" + mode_names[mode] + "i." + i.name + "." + f.name, {i.bits, f.bits},
                      {in}, [&](size_t k) { return integer_of(i, f, in[k], mode); });
                check("cvt" + mode_names[mode] + "." + f.name + "." + i.name, {f.bits, i.bits},
                      {from}, [&](size_t k) {
                          const bool negative = i.is_signed && from[k] >> (i.bits - 1);
                          const u128 size = negative ? (u128)i.mask + 1 - from[k] : from[k];
                          return rounded(f, {negative, size, 0, false, Real::finite}, mode);
                      });
            }
        }
}
