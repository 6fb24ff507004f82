// Asynchronous copies and what waits for them: cp.async, mbarriers, bulk copies, tensor copies,
// reductions, clusters.
#include <math.h>

#include <algorithm>
#include <functional>
#include <random>

#include "test.hpp"
#include "tests/emu/tensor_map.h"

namespace
{
using std::string;
using std::vector;
using Bytes = vector<unsigned char>;

string num(uint64_t v)
{
    return std::to_string(v);
}

string with(string s, const char *word, const string &by)
{
    for (size_t at; (at = s.find(word)) != string::npos;)
        s.replace(at, strlen(word), by);
    return s;
}

// Prologue of all kernels: %p1 in all threads but the first, %r2 and %r5 the shared memory and the
// thread's 16 bytes in it, %rd4 and %rd5 the thread's 16 bytes in p0 and p1.
const char *const start = R"(
.reg .b16 %rs<4>; .reg .b32 %r<64>; .reg .b64 %rd<64>; .reg .pred %p<12>;
.shared .align 1024 .b8 sm[16384];
.shared .align 8 .b8 bar[16];
ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2];
mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0;
mov.u32 %r2, sm; mov.u32 %r3, %cluster_ctarank;
shl.b32 %r4, %r1, 4; add.u32 %r5, %r2, %r4;
cvt.u64.u32 %rd6, %r4; add.u64 %rd4, %rd1, %rd6; add.u64 %rd5, %rd2, %rd6;
)";
const char *const wait = "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p10, "
                         "[bar], 0; @!%p10 bra WAIT;\n";

string init(const string &count)
{
    return "@%p1 bra L0; mbarrier.init.shared::cta.b64 [bar], " + count +
           "; fence.mbarrier_init.release.cluster; L0: bar.sync 0;\n";
}

// The thread's 16 bytes at `at` of shared memory go to `at` of p1.
string show(uint32_t at)
{
    return "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r5+" + num(at) +
           "]; st.global.v4.u32 [%rd5+" + num(at) + "], {%r10, %r11, %r12, %r13};\n";
}

// The thread's 16 bytes at `at` of p0 go to `at` of shared memory, for the asynchronous proxy.
string fill(uint32_t at)
{
    return "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4+" + num(at) +
           "]; st.shared.v4.u32 [%r5+" + num(at) +
           "], {%r10, %r11, %r12, %r13}; fence.proxy.async; bar.sync 0;\n";
}

struct Launch {
    uint32_t threads = 32, blocks = 1, cluster = 0;
};
string report(const string &text, const vector<uint64_t> &p, Launch l = {})
{
    vector<uint64_t> params = p;
    params.resize(3);
    const Kernel k(3, start + text);
    return k.run(params, l.threads, l.blocks, 0, l.cluster);
}
void expect_ok(const string &text, const vector<uint64_t> &p, Launch l = {})
{
    const string r = report(text, p, l);
    EXPECT(r.empty(), "%s\nin %s", r.c_str(), text.c_str());
}
void expect_found(const char *what, const string &text, const vector<uint64_t> &p, Launch l = {})
{
    const string r = report(text, p, l);
    EXPECT(r.find(what) != string::npos, "not '%s': '%s'\nin %s", what, r.c_str(), text.c_str());
}
void expect_refused(const string &text)
{
    const Kernel k(3, start + text);
    EXPECT(!k.refused().empty(), "not refused: %s", text.c_str());
}

Bytes random_bytes(size_t n, unsigned seed)
{
    std::mt19937 g(seed);
    Bytes v(n);
    for (unsigned char &b : v)
        b = (unsigned char)g();
    return v;
}
bool same(const Bytes &a, size_t at, const Bytes &b, size_t from, size_t n)
{
    return !memcmp(a.data() + at, b.data() + from, n);
}
} // namespace

// --- cp.async ---

static string stage(int k)
{
    const string at = num(1024 * (uint64_t)k);
    return "cp.async.cg.shared.global [%r5+" + at + "], [%rd4+" + at + "], 16;\n";
}

TEST(cp_async_groups)
{
    const Bytes in = random_bytes(4096, 1);
    const Array<unsigned char> from(in), to(4096);
    for (int left = 0; left <= 4; left++)
        for (int shown = 0; shown < 4; shown++) {
            string text;
            for (int k = 0; k < 4; k++)
                text += stage(k) + "cp.async.commit_group;\n";
            text += "cp.async.wait_group " + num((uint64_t)left) + ";\n" +
                    show(1024 * (uint32_t)shown) + "cp.async.wait_all;\n";
            each_schedule([&] {
                if (shown >= 4 - left) {
                    expect_found("is still writing", text, {from.at(), to.at()}, {64});
                    return;
                }
                expect_ok(text, {from.at(), to.at()}, {64});
                EXPECT(same(to.get(), 1024 * (size_t)shown, in, 1024 * (size_t)shown, 1024),
                       "wait_group %d, group %d", left, shown);
            });
        }
    const vector<uint64_t> p = {from.at(), to.at()};
    expect_ok(stage(0) + "cp.async.wait_all;\n" + show(0), p);
    expect_found("cp.async", stage(0) + "cp.async.wait_group 0;\n" + show(0), p);
    expect_found("is still writing", stage(0) + stage(0), p);
    expect_found("writes 4 bytes", stage(0) + "st.shared.u32 [%r5+4], %r1;", p);
    expect_found("out of bounds", "cp.async.ca.shared.global [%r5], [%rd4+4096], 16;", p);
    expect_found("aligned", "cp.async.ca.shared.global [%r5], [%rd4+4], 8;", p);
    expect_refused("cp.async.cg.shared.global [%r5], [%rd4], 8;");
    expect_refused("cp.async.ca.shared.global [%r5], [%rd4], 12;");
}

TEST(cp_async_zero_fill)
{
    const Bytes in = random_bytes(512, 2);
    const Array<unsigned char> from(in), to(512);
    for (uint32_t size : {4u, 8u, 16u})
        for (uint32_t n = 0; n <= size; n++)
            for (bool by_predicate : {false, true}) {
                // Copies n bytes; or, by a predicate, none in lane n and all in the others.
                const string text =
                    "mov.u32 %r9, -1; st.shared.v4.u32 [%r5], {%r9, %r9, %r9, %r9};\n"
                    "mov.u32 %r8, " +
                    num(n) + "; setp.eq.u32 %p3, %r1, %r8;\n" +
                    "cp.async.ca.shared.global [%r5], [%rd4], " + num(size) +
                    (by_predicate ? ", %p3;\n" : ", %r8;\n") + "cp.async.wait_all;\n" + show(0);
                expect_ok(text, {from.at(), to.at()});
                Bytes want(512, 0xff);
                for (uint32_t k = 0; k < 512; k++) {
                    const uint32_t copied = !by_predicate ? n : k / 16 == n ? 0 : size;
                    if (k % 16 < size)
                        want[k] = k % 16 < copied ? in[k] : 0;
                }
                EXPECT(to.get() == want, "size %u, source %u, predicate %d", size, n, by_predicate);
            }
    const vector<uint64_t> p = {from.at(), to.at()};
    expect_ok("mov.u64 %rd7, 16; mov.u32 %r8, 0;\n"
              "cp.async.cg.shared.global [%r5], [%rd7], 16, %r8; cp.async.wait_all;",
              p); // reads nothing of the source
    expect_found("a source of 17",
                 "mov.u32 %r8, 17; cp.async.cg.shared.global [%r5], [%rd4], 16, %r8;", p);
}

TEST(cp_async_mbarrier)
{
    const Bytes in = random_bytes(1024, 3);
    const Array<unsigned char> from(in), to(1024);
    struct Case {
        const char *count, *arrive, *found;
    };
    const Case cases[] = {
        {"64", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];", ""},
        {"128",
         "cp.async.mbarrier.arrive.noinc.shared.b64 [bar]; mbarrier.arrive.shared.b64 _, [bar];",
         ""},
        {"64", "cp.async.mbarrier.arrive.shared.b64 [bar]; mbarrier.arrive.shared.b64 _, [bar];",
         ""},
        {"64", "mbarrier.arrive.shared.b64 _, [bar];", "is still writing"},
        {"64", "cp.async.mbarrier.arrive.shared.b64 [bar];", "no thread can go on"},
    };
    for (const Case &c : cases)
        each_schedule([&] {
            const string text = init(c.count) + stage(0) + c.arrive + "\n" + wait + show(0);
            const vector<uint64_t> p = {from.at(), to.at()};
            if (*c.found) {
                expect_found(c.found, text, p, {64});
                return;
            }
            expect_ok(text, p, {64});
            EXPECT(to.get() == in, "%s", c.arrive);
        });
}

// --- mbarriers ---

TEST(mbarrier_phases)
{
    // In each of 5 phases a thread writes a word, and reads that of the thread opposite.
    const string loop = init("64") + R"(
mov.u32 %r20, 0;
LOOP:
shl.b32 %r21, %r20, 8; add.u32 %r21, %r21, %r2;
shl.b32 %r22, %r1, 2; add.u32 %r23, %r21, %r22;
mad.lo.u32 %r24, %r20, 1000, %r1;
st.shared.u32 [%r23], %r24;
ARRIVE
and.b32 %r9, %r20, 1;
AGAIN:
POLL
@!%p10 bra AGAIN;
xor.b32 %r25, %r22, 252; add.u32 %r25, %r25, %r21;
ld.shared.u32 %r26, [%r25];
shl.b32 %r27, %r20, 6; add.u32 %r27, %r27, %r1;
mul.wide.u32 %rd10, %r27, 4; add.u64 %rd10, %rd1, %rd10;
st.global.u32 [%rd10], %r26;
add.u32 %r20, %r20, 1; setp.lt.u32 %p2, %r20, 5; @%p2 bra LOOP;
)";
    const string arrives[] = {
        "mbarrier.arrive.shared::cta.b64 %rd20, [bar];",
        "mbarrier.arrive.release.cta.shared::cta.b64 %rd20, [bar], 1;",
        "cvta.shared.u64 %rd9, bar; mbarrier.arrive.b64 %rd20, [%rd9];",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 16; "
        "mbarrier.complete_tx.shared::cta.b64 [bar], 16; mbarrier.arrive.shared.b64 %rd20, [bar];",
    };
    const string polls[] = {
        "mbarrier.try_wait.parity.shared::cta.b64 %p10, [bar], %r9;",
        "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p10, [bar], %r9;",
        "mbarrier.try_wait.shared::cta.b64 %p10, [bar], %rd20, 1000;",
        "mbarrier.test_wait.shared.b64 %p10, [bar], %rd20;",
    };
    vector<uint32_t> want(320);
    for (uint32_t k = 0; k < 320; k++)
        want[k] = k / 64 * 1000 + (63 - k % 64);
    for (const string &arrive : arrives)
        for (const string &poll : polls)
            each_schedule([&] {
                const Array<uint32_t> out(320);
                expect_ok(with(with(loop, "ARRIVE", arrive), "POLL", poll), {out.at()}, {64});
                EXPECT(out.get() == want, "%s %s", arrive.c_str(), poll.c_str());
            });
}

TEST(mbarrier_counts)
{
    // A phase is over when no arrival and no byte is missing: what test_wait says after each step.
    const string steps[] = {"mbarrier.arrive.shared.b64 _, [bar], 2;",
                            "mbarrier.arrive.expect_tx.shared.b64 _, [bar], 48;",
                            "mbarrier.complete_tx.shared.b64 [bar], 32;",
                            "mbarrier.complete_tx.shared.b64 [bar], 16;", // phase 0 is over
                            "mbarrier.complete_tx.shared.b64 [bar], 64;",
                            "mbarrier.arrive_drop.shared.b64 _, [bar];",
                            "mbarrier.arrive.expect_tx.shared.b64 _, [bar], 64;",
                            "mbarrier.arrive.shared.b64 _, [bar];", // phase 1 is over
                            "mbarrier.arrive.shared.b64 _, [bar], 2;"};
    const uint32_t phase[] = {0, 0, 0, 1, 1, 1, 1, 2, 3};
    string text = "@%p1 bra END; mbarrier.init.shared.b64 [bar], 3;\n";
    for (uint32_t k = 0; k < 9; k++)
        for (uint32_t parity = 0; parity < 2; parity++)
            text += (parity ? "" : steps[k]) +
                    "mbarrier.test_wait.parity.shared.b64 %p10, [bar], " + num(parity) +
                    "; selp.u32 %r9, 1, 0, %p10; st.global.u32 [%rd1+" + num(8 * k + 4 * parity) +
                    "], %r9;\n";
    const Array<uint32_t> out(18);
    expect_ok(text + "END:", {out.at()});
    const vector<uint32_t> got = out.get();
    for (uint32_t k = 0; k < 18; k++)
        EXPECT(got[k] == (phase[k / 2] % 2 != k % 2), "step %u, parity %u: %u", k / 2, k % 2,
               got[k]);

    const Array<uint32_t> pending(3);
    expect_ok(R"(@%p1 bra END; mbarrier.init.shared.b64 [bar], 10;
mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd20, [bar], 3;
mbarrier.pending_count.b64 %r9, %rd20; st.global.u32 [%rd1], %r9;
mbarrier.arrive_drop.noComplete.shared.b64 %rd20, [bar], 2;
mbarrier.pending_count.b64 %r9, %rd20; st.global.u32 [%rd1+4], %r9;
mbarrier.arrive.shared.b64 _, [bar], 5;
mbarrier.arrive.noComplete.shared.b64 %rd20, [bar], 1;
mbarrier.pending_count.b64 %r9, %rd20; st.global.u32 [%rd1+8], %r9;
END:)",
              {pending.at()});
    EXPECT((pending.get() == vector<uint32_t>{10, 7, 8}), "pending counts");
}

TEST(mbarrier_faults)
{
    const struct {
        const char *text, *found;
    } cases[] = {
        {"mbarrier.arrive.shared.b64 _, [bar+8];", "not initialised"},
        {"mbarrier.arrive.shared.b64 _, [bar], 5;", "waits for 4 of 4"},
        {"mbarrier.arrive.shared.b64 _, [bar], 0;", "a count of 0"},
        {"mbarrier.init.shared.b64 [bar+8], 1048576;", "a count of 1048576"},
        {"mbarrier.init.shared.b64 [bar+4], 1;", "aligned"},
        {"mbarrier.init.shared.b64 [bar], 4;", "invalidated first"},
        {"mbarrier.inval.shared.b64 [bar]; mbarrier.arrive.shared.b64 _, [bar];",
         "not initialised"},
        {"st.shared.u32 [bar+4], 7; mbarrier.arrive.shared.b64 _, [bar];", "written over"},
        {"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1048575; "
         "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1;",
         "tx-count"},
        {"mbarrier.arrive.noComplete.shared.b64 %rd20, [bar], 4;", ".noComplete"},
    };
    for (const auto &c : cases)
        expect_found(
            c.found,
            string("@%p1 bra END; mbarrier.init.shared.b64 [bar], 4;\n") + c.text + "\nEND:\n", {});
    expect_refused("mbarrier.arrive.shared::cluster.b64 %rd20, [%r2];");
    expect_refused("mbarrier.try_wait.parity.shared::cluster.b64 %p4, [%r2], 0;");
}

// --- bulk copies ---

static string load(const string &copy, const char *expected = "512")
{
    return init("1") + "@%p1 bra L1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], " +
           expected + ";\n" + copy + "\nL1:\n";
}
static const char *const load512 =
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 512, [bar];";

TEST(bulk_loads)
{
    const Bytes in = random_bytes(512, 4);
    const Array<unsigned char> from(in), to(512);
    const vector<uint64_t> p = {from.at(), to.at()};
    for (const string copy :
         {load512,
          "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [sm], [%rd1], 512, [bar];",
          "mov.u32 %r9, 496; mov.b64 %rd9, 0x14F0000000000000;\n"
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
          "[%r2], [%rd1], %r9, [bar], %rd9;\n"
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+496], "
          "[%rd1+496], 16, [bar];"})
        each_schedule([&] {
            expect_ok(load(copy) + wait + show(0), p);
            EXPECT(to.get() == in, "%s", copy.c_str());
        });
    expect_found("is still writing", load(load512) + show(0), p);
    expect_found("is still writing", load(load512, "0") + wait + show(0), p);
    expect_found("no thread can go on", load(load512, "528") + wait + show(0), p);
    expect_found("have all returned", load(load512), p);
    expect_found("is still writing", load(string(load512) + load512) + wait, p);
    expect_found("out of bounds", load(with(load512, "[%rd1]", "[%rd1+16]")) + wait, p);
    expect_found("aligned", load(with(load512, "[%r2]", "[%r2+8]")) + wait, p);
    expect_found("multiple of 16", load(with(load512, "512", "264")) + wait, p);
    const string store = "st.shared.u32 [%r5], %r1;\n", fence = "fence.proxy.async;\n";
    expect_found("no fence.proxy.async", store + load(load512) + wait, p);
    expect_found("no fence.proxy.async", fence + store + load(load512) + wait, p);
    expect_ok(store + fence + load(load512) + wait, p);
}

static const char *const commit = "cp.async.bulk.commit_group;\n";
static const char *const done = "cp.async.bulk.wait_group 0;\n";
static const char *const has_read = "cp.async.bulk.wait_group.read 0;\n";

// 512 bytes of p0 go to shared memory, where the first thread works with them.
static string store(const string &work)
{
    return fill(0) + "@%p1 bra L1;\n" + work + "L1: bar.sync 0;\n";
}
static const char *const store512 =
    "cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 512;\n";

TEST(bulk_stores)
{
    const Bytes in = random_bytes(512, 5);
    const Array<unsigned char> from(in);
    for (const char *until : {done, has_read})
        each_schedule([&] {
            const Array<unsigned char> to(512);
            expect_ok(store(string(store512) + commit + until), {from.at(), to.at()});
            EXPECT(to.get() == in, "%s", until);
        });
    const Array<unsigned char> to(Bytes(512, 0x55));
    const vector<uint64_t> p = {from.at(), to.at()};
    const string late = store512 + string(commit);
    expect_found("have all returned", store(late), p);
    expect_found("have all returned", store(string(store512) + done), p);
    expect_found("have all returned", store(late + "cp.async.bulk.wait_group 1;\n"), p);
    expect_found("is still reading", store(late + "st.shared.u32 [%r2], %r1;\n"), p);
    expect_ok(store(late + has_read + "st.shared.u32 [%r2], %r1;\n"), p);
    expect_found("no fence.proxy.async",
                 "st.shared.u32 [%r5], %r1; bar.sync 0; @%p1 bra L1;\n" + late + done + "L1:", p);
    expect_found("out of bounds", store(with(store512, "[%rd2]", "[%rd2+16]")), p);

    // In order, a store happens as late as it may: `.read` does not wait for it.
    for (bool all : {false, true}) {
        const Array<unsigned char> target(Bytes(512, 0x55));
        const Array<uint32_t> seen(1);
        expect_ok(store(late + (all ? done : has_read) +
                        "ld.global.u32 %r20, [%rd2]; st.global.u32 [%rd3], %r20;\n"),
                  {from.at(), target.at(), seen.at()});
        uint32_t first;
        memcpy(&first, in.data(), 4);
        EXPECT(seen.get()[0] == (all ? first : 0x55555555), "%08x", seen.get()[0]);
    }
}

// --- reductions ---

static double value_of_half(uint32_t h)
{
    const int e = h >> 10 & 31, m = h & 1023;
    const double v = ldexp(e ? 1024 + m : m, (e ? e : 1) - 25);
    return h & 0x8000 ? -v : v;
}
// The finite half next to v; of two the even one.
static uint32_t nearest_half(double v)
{
    uint32_t low = 0, high = 0x7bff; // magnitudes grow with their patterns
    while (low + 1 < high) {
        const uint32_t mid = (low + high) / 2;
        (value_of_half(mid) <= fabs(v) ? low : high) = mid;
    }
    const double down = fabs(v) - value_of_half(low), up = value_of_half(high) - fabs(v);
    const uint32_t h = down < up || (down == up && low % 2 == 0) ? low : high;
    return h | (signbit(v) ? 0x8000u : 0);
}

template <class T, class F>
static void expect_reduction(const char *form, const vector<T> &from, const vector<T> &to, F f)
{
    vector<T> want;
    for (size_t k = 0; k < to.size(); k++)
        want.push_back(f(to[k], from[k]));
    each_schedule([&] {
        const Array<T> source(from), target(to);
        expect_ok(store(string("cp.reduce.async.bulk.global.shared::cta.bulk_group.") + form +
                        " [%rd2], [%r2], 512;\n" + commit + done),
                  {source.at(), target.at()});
        const vector<T> got = target.get();
        EXPECT(!memcmp(got.data(), want.data(), 512), "%s", form);
    });
}
template <class T> static vector<T> random_numbers(unsigned seed)
{
    vector<T> v(512 / sizeof(T));
    memcpy(v.data(), random_bytes(512, seed).data(), 512);
    return v;
}
template <class T> static void expect_orders(const char *type)
{
    const auto a = random_numbers<T>(6), b = random_numbers<T>(7);
    expect_reduction((string("min.") + type).c_str(), a, b, [](T x, T y) { return y < x ? y : x; });
    expect_reduction((string("max.") + type).c_str(), a, b, [](T x, T y) { return x < y ? y : x; });
}
template <class T> static void expect_bits(const char *type)
{
    const auto a = random_numbers<T>(8), b = random_numbers<T>(9);
    expect_reduction((string("and.b") + type).c_str(), a, b, [](T x, T y) { return (T)(x & y); });
    expect_reduction((string("or.b") + type).c_str(), a, b, [](T x, T y) { return (T)(x | y); });
    expect_reduction((string("xor.b") + type).c_str(), a, b, [](T x, T y) { return (T)(x ^ y); });
    expect_reduction((string("add.u") + type).c_str(), a, b, [](T x, T y) { return (T)(x + y); });
}

TEST(reductions)
{
    expect_orders<uint32_t>("u32");
    expect_orders<int32_t>("s32");
    expect_orders<uint64_t>("u64");
    expect_orders<int64_t>("s64");
    expect_bits<uint32_t>("32");
    expect_bits<uint64_t>("64");
    vector<uint32_t> a = random_numbers<uint32_t>(10), b = random_numbers<uint32_t>(11);
    for (size_t k = 0; k < a.size(); k++)
        a[k] &= 7, b[k] &= 7;
    expect_reduction("inc.u32", a, b, [](uint32_t x, uint32_t y) { return x >= y ? 0 : x + 1; });
    expect_reduction("dec.u32", a, b,
                     [](uint32_t x, uint32_t y) { return !x || x > y ? y : x - 1; });
    vector<float> x, y;
    for (uint32_t k = 0; k < 128; k++) {
        x.push_back((float)(int32_t)random_numbers<uint32_t>(12)[k] / 65536);
        y.push_back((float)(int32_t)random_numbers<uint32_t>(13)[k] / 4096);
    }
    expect_reduction("add.f32", x, y, [](float s, float t) { return (float)((double)s + t); });
    vector<uint16_t> g, h; // finite, and so are their sums
    for (uint16_t v : random_numbers<uint16_t>(14))
        g.push_back((v & 0x4000) ? v & ~0x2000 : v);
    for (uint16_t v : random_numbers<uint16_t>(15))
        h.push_back((v & 0x4000) ? v & ~0x2000 : v);
    expect_reduction("add.noftz.f16", g, h, [](uint16_t s, uint16_t t) {
        return (uint16_t)nearest_half(value_of_half(s) + value_of_half(t));
    });
    for (const char *bad : {"add.f16", "min.f32", "inc.s32", "and.u32", "mul.u32"})
        expect_refused(string("cp.reduce.async.bulk.global.shared::cta.bulk_group.") + bad +
                       " [%rd2], [%r2], 512;");
}

// --- tensor copies ---

namespace
{
// A tensor of 2-byte or 4-byte unsigned integers, a box of it and where the box begins.
struct Tensor {
    uint32_t rank, element, swizzle;
    uint32_t size[3], box[3], pitch[3]; // in elements
    int32_t corner[3];
    uint32_t elements() const // in memory
    {
        return size[2] * pitch[2];
    }
    uint32_t bytes() const // of the box
    {
        return box[0] * box[1] * box[2] * element;
    }
    emu_tensor_map map(uint64_t base) const
    {
        emu_tensor_map m = {};
        m.magic = EMU_TENSOR_MAP_MAGIC;
        m.base = base;
        for (uint32_t d = 0; d < rank; d++) {
            m.last[d] = size[d] - 1;
            m.box[d] = (uint16_t)box[d];
            m.element_stride[d] = 1;
            if (d)
                m.stride[d - 1] = pitch[d] * element;
        }
        m.rank = (uint8_t)rank;
        m.element_bytes = (uint8_t)element;
        m.type = element == 2 ? 1 : 2; // CU_TENSOR_MAP_DATA_TYPE_UINT16, .._UINT32
        m.swizzle = (uint8_t)swizzle;
        return m;
    }
    // Calls f(offset in shared memory, offset in the tensor or -1: outside) for all elements of the
    // box. Swizzling exchanges pieces of 16 bytes within a row, by the number of the row of 128.
    template <class F> void each(F f) const
    {
        const uint32_t row_bytes = box[0] * element;
        for (uint32_t z = 0, row = 0; z < box[2]; z++)
            for (uint32_t y = 0; y < box[1]; y++, row++)
                for (uint32_t x = 0; x < box[0]; x++) {
                    const uint32_t at = x * element, line = row * row_bytes / 128,
                                   piece = at / 16 ^ line % (1u << swizzle);
                    const int64_t c[3] = {corner[0] + (int64_t)x, corner[1] + (int64_t)y,
                                          corner[2] + (int64_t)z};
                    int64_t from = 0;
                    for (int d = 0; d < 3; d++)
                        from = from < 0 || c[d] < 0 || c[d] >= (int64_t)size[d]
                                   ? -1
                                   : from + c[d] * pitch[d] * element;
                    f(row * row_bytes + piece * 16 + at % 16, from);
                }
    }
};
Tensor random_tensor(std::mt19937 &g)
{
    Tensor t = {};
    t.rank = 2 + g() % 2;
    t.element = g() % 2 ? 2 : 4;
    t.swizzle = g() % 4;
    const uint32_t row = t.swizzle ? 16u << t.swizzle : 16 * (1 + g() % 16);
    for (uint32_t d = 0; d < 3; d++) {
        const bool is = d < t.rank;
        t.size[d] = is ? 1 + g() % 40 : 1;
        t.box[d] = !d ? row / t.element : is ? 1 + g() % (d == 1 ? 11 : 5) : 1;
        t.corner[d] = is ? (int32_t)(g() % (t.size[d] + t.box[d])) - (int32_t)t.box[d] : 0;
    }
    t.pitch[0] = 1;
    t.pitch[1] = (t.size[0] + 7) / 8 * 8 + 8 * (g() % 2);
    t.pitch[2] = t.pitch[1] * t.size[1];
    return t;
}
// p0: the map; p1: the bytes of shared memory; p2: the corner, and the size of the box.
const char *const corner = "ld.global.u32 %r20, [%rd3]; ld.global.u32 %r21, [%rd3+4];\n"
                           "ld.global.u32 %r22, [%rd3+8]; ld.global.u32 %r23, [%rd3+12];\n";
string coordinates(const Tensor &t)
{
    return t.rank == 2 ? "[%rd1, {%r20, %r21}]" : "[%rd1, {%r20, %r21, %r22}]";
}
vector<uint32_t> corner_of(const Tensor &t)
{
    return {(uint32_t)t.corner[0], (uint32_t)t.corner[1], (uint32_t)t.corner[2], t.bytes()};
}
const uint32_t room = 14080; // bytes of the greatest box: 256 * 11 * 5
} // namespace

TEST(tensor_loads)
{
    std::mt19937 g(20);
    for (int n = 0; n < 60; n++) {
        const Tensor t = random_tensor(g);
        const Bytes in = random_bytes(t.elements() * t.element, (unsigned)n);
        const Array<unsigned char> tensor(in), to(room);
        const Array<emu_tensor_map> map(vector<emu_tensor_map>{t.map(tensor.at())});
        const Array<uint32_t> where(corner_of(t));
        const string text =
            corner +
            load("cp.async.bulk.tensor." + num(t.rank) +
                     "d.shared::cluster.global.tile.mbarrier::complete_tx"
                     "::bytes [%r2], " +
                     coordinates(t) + ", [bar];",
                 "%r23") +
            wait + "setp.ge.u32 %p3, %r4, %r23; @%p3 ret; MORE:\n" + show(0) +
            "add.u32 %r4, %r4, 2048; add.u32 %r5, %r5, 2048;\n"
            "add.u64 %rd5, %rd5, 2048; setp.lt.u32 %p3, %r4, %r23; @%p3 bra MORE;\n";
        each_schedule([&] {
            expect_ok(text, {map.at(), to.at(), where.at()}, {128});
            const Bytes got = to.get();
            const Bytes zeros(4);
            uint32_t wrong = 0;
            t.each([&](uint32_t at, int64_t from) {
                wrong += from < 0 ? !same(got, at, zeros, 0, t.element)
                                  : !same(got, at, in, (size_t)from, t.element);
            });
            EXPECT(!wrong, "tensor %d, swizzle %u: %u elements", n, t.swizzle, wrong);
        });
    }
}

TEST(tensor_stores)
{
    std::mt19937 g(21);
    for (int n = 0; n < 60; n++) {
        const bool add = n % 2;
        Tensor t = random_tensor(g);
        while (add && t.element != 4)
            t = random_tensor(g);
        const Bytes was = random_bytes(t.elements() * t.element, (unsigned)n);
        const Bytes box = random_bytes(room, (unsigned)n + 100);
        Bytes want = was;
        t.each([&](uint32_t at, int64_t from) {
            uint32_t carry = 0; // adds byte by byte
            for (uint32_t k = 0; from >= 0 && k < t.element; k++) {
                unsigned char &b = want[(size_t)from + k];
                carry += box[at + k] + (add ? b : 0);
                b = (unsigned char)carry;
                carry >>= 8;
            }
        });
        const Array<unsigned char> in(box);
        const Array<uint32_t> where(corner_of(t));
        const string form = add ? "cp.reduce.async.bulk.tensor.RANKd.global.shared::cta.add.tile"
                                : "cp.async.bulk.tensor.RANKd.global.shared::cta.tile";
        const string text =
            corner +
            string("setp.ge.u32 %p3, %r4, %r23; @%p3 bra FILLED; MORE:\n"
                   "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd5];\n"
                   "st.shared.v4.u32 [%r5], {%r10, %r11, %r12, %r13};\n"
                   "add.u32 %r4, %r4, 2048; add.u32 %r5, %r5, 2048;\n"
                   "add.u64 %rd5, %rd5, 2048; setp.lt.u32 %p3, %r4, %r23; @%p3 bra MORE;\n"
                   "FILLED: fence.proxy.async; bar.sync 0; @%p1 bra L1;\n") +
            with(form, "RANK", num(t.rank)) + ".bulk_group " + coordinates(t) + ", [%r2];\n" +
            commit + done + "L1:\n";
        each_schedule([&] {
            const Array<unsigned char> tensor(was);
            const Array<emu_tensor_map> map(vector<emu_tensor_map>{t.map(tensor.at())});
            expect_ok(text, {map.at(), in.at(), where.at()}, {128});
            EXPECT(tensor.get() == want, "tensor %d, swizzle %u, add %d", n, t.swizzle, add);
        });
    }
}

// --- clusters ---

static const char *const all_blocks = "barrier.cluster.arrive; barrier.cluster.wait;\n";
// 8 blocks in clusters of 4; each shows its first 512 bytes of shared memory.
static void each_cluster(const string &text, const Bytes &in, const Bytes &want)
{
    const string block = "mov.u32 %r6, %ctaid.x; shl.b32 %r6, %r6, 9; cvt.u64.u32 %rd7, %r6;\n"
                         "add.u64 %rd4, %rd4, %rd7; add.u64 %rd5, %rd5, %rd7;\n";
    each_schedule([&] {
        const Array<unsigned char> from(in), to(4096);
        expect_ok(block + text + all_blocks + show(0), {from.at(), to.at()}, {32, 8, 4});
        EXPECT(to.get() == want, "%s", text.c_str());
    });
}

TEST(cluster_multicast)
{
    // A block reads a quarter of its cluster's 512 bytes and sends it to all four.
    const Bytes in = random_bytes(4096, 30);
    Bytes want;
    for (int block = 0; block < 8; block++)
        want.insert(want.end(), in.begin() + block / 4 * 512, in.begin() + (block / 4 + 1) * 512);
    const string text = init("1") + all_blocks + R"(@%p1 bra L1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 512;
shl.b32 %r20, %r3, 7; add.u32 %r21, %r2, %r20;
shr.u32 %r22, %r6, 11; shl.b32 %r22, %r22, 9; add.u32 %r22, %r22, %r20;
cvt.u64.u32 %rd8, %r22; add.u64 %rd8, %rd1, %rd8; mov.u16 %rs1, MASK;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r21], [%rd8], 128, [bar], %rs1;
L1:
)" + wait;
    each_cluster(with(text, "MASK", "15"), in, want);
    const Array<unsigned char> from(in);
    expect_found("not there", "mov.u32 %r6, 0;" + with(text, "MASK", "31"), {from.at()},
                 {32, 8, 4});
}

TEST(cluster_shared_memory)
{
    // To the next block: ordinary stores and remote arrivals, a bulk copy, a reduction.
    const Bytes in = random_bytes(4096, 31);
    Bytes next(4096);
    for (size_t block = 0; block < 8; block++)
        memcpy(&next[(block ^ block % 4 ^ (block + 1) % 4) * 512], &in[block * 512], 512);
    const string to_next = "add.u32 %r20, %r3, 1; and.b32 %r20, %r20, 3; mov.u32 %r21, bar;\n"
                           "mapa.shared::cluster.u32 %r22, %r2, %r20;\n"
                           "mapa.shared::cluster.u32 %r23, %r21, %r20;\n"
                           "getctarank.shared::cluster.u32 %r24, %r23;\n"
                           "setp.ne.u32 %p4, %r24, %r20; @%p4 trap;\n";
    const string stores = to_next + "add.u32 %r22, %r22, %r4;\n"
                                    "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4];\n"
                                    "st.shared::cluster.v4.u32 [%r22], {%r10, %r11, %r12, %r13};\n";
    for (const char *arrive :
         {"mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r23];",
          "cvta.shared.u64 %rd9, bar; mapa.u64 %rd9, %rd9, %r20; "
          "mbarrier.arrive.release.cluster.b64 _, [%rd9];",
          "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r23], 16; "
          "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r23], 16;"})
        each_cluster(init("32") + all_blocks + stores + arrive + "\n" + wait, in, next);

    // A block's arrival comes with its own copy: it expects the bytes at the mbarrier that it
    // copies to.
    const string copy =
        init("COUNT") + all_blocks + to_next + with(fill(0), "[%r5+0]", "[%r5+1024]") +
        "@%p1 bra L1; mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r23], "
        "512;\n"
        "FORM [%r22], [%r2+1024], 512, [%r23];\nL1:\n";
    each_cluster(with(with(copy, "COUNT", "1"), "FORM",
                      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes") +
                     wait,
                 in, next);

    // All four blocks add their bits to zeros of the first one, which waits for them.
    Bytes any(4096);
    for (size_t k = 0; k < 4096; k++)
        for (size_t other = 0; k % 2048 < 512 && other < 4; other++)
            any[k] |= in[k + other * 512];
    const string zero = "mov.u32 %r9, 0; st.shared.v4.u32 [%r5], {%r9, %r9, %r9, %r9};\n"
                        "fence.proxy.async;\n";
    each_cluster(
        zero +
            with(with(with(copy, "COUNT", "4"), "and.b32 %r20, %r20, 3", "mov.u32 %r20, 0"), "FORM",
                 "cp.reduce.async.bulk.shared::cluster.shared::cta"
                 ".mbarrier::complete_tx::bytes.or.b32") +
            "setp.ne.u32 %p5, %r3, 0; @%p5 bra L2;\n" + wait + "L2:\n",
        in, any);
}
