// Lanes, warps and blocks that act together: shuffles, votes, matches, reductions, barriers.
#include "test.hpp"

#include <algorithm>
#include <random>

namespace
{
std::mt19937_64 numbers(1);
constexpr uint32_t all_lanes = ~0u;

uint32_t random_mask()
{
    return numbers() % 3 ? (uint32_t)numbers() | 1u << numbers() % 32 : all_lanes;
}
bool has(uint32_t mask, uint32_t lane)
{
    return mask >> lane & 1;
}

// Inputs of a lane in %r1 to %r4; its results go to %r0 and %p0. %r4 is the member mask, %p1 is
// %r3 != 0, %d1 has %r1 as its low half and %r2 as its high one.
struct Lane {
    uint32_t a, b, c, members;
};
struct Result {
    uint32_t value, truth;
};
// Runs text with a warp; lanes outside of their own `members` return, or wait behind it.
std::vector<Result> run(const std::string &text, const std::vector<Lane> &lanes, bool gone)
{
    const Kernel kernel(
        2, ".reg .b32 %r<20>; .reg .b64 %d<8>; .reg .pred %p<8>;\n"
           "ld.param.u64 %d4, [p0]; ld.param.u64 %d5, [p1]; mov.u32 %r5, %tid.x;\n"
           "mad.wide.u32 %d4, %r5, 16, %d4; mad.wide.u32 %d5, %r5, 8, %d5;\n"
           "ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%d4]; setp.ne.u32 %p1, %r3, 0;\n"
           "mov.b64 %d1, {%r1,%r2}; mov.u32 %r0, 0; mov.pred %p0, 0;\n"
           "mov.u32 %r6, %lanemask_eq; and.b32 %r6, %r6, %r4; setp.eq.u32 %p7, %r6, 0;\n"
           "@%p7 " +
               std::string(gone ? "exit" : "bra END") + ";\n" + text +
               "\nselp.u32 %r6, 1, 0, %p0; st.global.v2.u32 [%d5], {%r0,%r6};\nEND:");
    Array<Lane> from(lanes);
    Array<Result> to(std::vector<Result>(32));
    const std::string report = kernel.run({from.at(), to.at()}, 32);
    EXPECT(report.empty(), "%s: %s", text.c_str(), report.c_str());
    return to.get();
}
// Numbers below `below`, or any with 0, in lanes of one mask.
std::vector<Lane> random_lanes(uint32_t below, uint32_t members)
{
    const auto number = [=] { return below ? (uint32_t)numbers() % below : (uint32_t)numbers(); };
    std::vector<Lane> lanes(32);
    for (Lane &l : lanes)
        l = {number(), number(), number(), members};
    return lanes;
}
// f(lanes, members, gone) with several masks, by each schedule.
template <class F> void each_warp(uint32_t below, int rounds, F f)
{
    each_schedule([&] {
        for (int k = 0; k < rounds; k++) {
            const uint32_t members = random_mask();
            f(random_lanes(below, members), members, numbers() % 2 != 0);
        }
    });
}

// When a thread came to a place and when it went on; zero: it never did.
struct Times {
    uint64_t came, went;
};
bool nobody_early(const std::vector<Times> &times, size_t begin, size_t end)
{
    uint64_t last = 0, first = UINT64_MAX;
    for (size_t k = begin; k < end; k++) {
        last = std::max(last, times[k].came);
        first = std::min(first, times[k].went ? times[k].went : UINT64_MAX);
    }
    return first > last;
}
// Kernel with %r1 = its thread, %r2 = its warp, %p1 = a bit of chance; CAME and WENT take times.
std::string timed(std::string text)
{
    const auto replace = [&](const std::string &from, const std::string &to) {
        for (size_t at; (at = text.find(from)) != std::string::npos;)
            text.replace(at, from.size(), to);
    };
    replace("CAME", "mov.u64 %d0, %clock64; st.global.u64 [%d3], %d0;");
    replace("WENT", "mov.u64 %d1, %clock64; st.global.u64 [%d3+8], %d1;");
    return ".reg .b32 %r<20>; .reg .b64 %d<8>; .reg .pred %p<8>; ld.param.u64 %d2, [p0];\n"
           "mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; mov.u32 %r3, %ctaid.x; mov.u32 %r4, "
           "%ntid.x;\n"
           "mad.lo.u32 %r5, %r3, %r4, %r1; mad.wide.u32 %d3, %r5, 16, %d2;\n"
           "mul.lo.u32 %r6, %r5, 0x9e3779b1; setp.lt.s32 %p1, %r6, 0;\n" +
           text;
}
// Runs it by each schedule; nobody is early among each `together` threads.
void expect_order(const std::string &text, uint32_t threads, size_t together, uint32_t blocks = 1,
                  uint32_t cluster = 0)
{
    const Kernel kernel(1, timed(text));
    EXPECT(kernel.refused().empty(), "%s: %s", text.c_str(), kernel.refused().c_str());
    each_schedule([&] {
        Array<Times> times(std::vector<Times>(threads * blocks));
        const std::string report = kernel.run({times.at()}, threads, blocks, 0, cluster);
        EXPECT(report.empty(), "%s: %s", text.c_str(), report.c_str());
        for (size_t k = 0; k < threads * blocks; k += together)
            EXPECT(nobody_early(times.get(), k, k + together), "%s: early, of threads %zu ..",
                   text.c_str(), k);
    });
}
void expect_report(const std::string &text, const char *what, uint32_t threads = 64)
{
    const Kernel kernel(1, timed(text));
    Array<Times> times((std::vector<Times>(threads)));
    const std::string report = kernel.run({times.at()}, threads);
    EXPECT(report.find(what) != std::string::npos, "%s: \"%s\", not \"%s\"", text.c_str(),
           report.c_str(), what);
}
} // namespace

TEST(shuffles)
{
    const std::string modes[] = {"up", "down", "bfly", "idx"};
    each_warp(0, 10, [&](std::vector<Lane> lanes, uint32_t, bool) {
        for (int mode = 0; mode < 4; mode++) {
            const uint32_t width = 1u << numbers() % 6, c = (32 - width) << 8 | (mode ? 31 : 0);
            const bool by_width = numbers() % 2;
            for (Lane &l : lanes) {
                l.members = all_lanes;
                l.c = by_width ? c : l.c;
            }
            const auto got =
                run("shfl.sync." + modes[mode] + ".b32 %r0|%p0, %r1, %r2, %r3, %r4;", lanes, false);
            for (int k = 0; k < 32; k++) {
                const int by = lanes[k].b & 31, segment = lanes[k].c >> 8 & 31;
                const int last = (k & segment) | (lanes[k].c & 31 & ~segment);
                const int from = mode == 0   ? k - by
                                 : mode == 1 ? k + by
                                 : mode == 2 ? k ^ by
                                             : (k & segment) | (by & ~segment);
                const bool within = mode ? from <= last : from >= last;
                EXPECT(got[k].truth == within && got[k].value == lanes[within ? from : k].a,
                       "%s lane %d", modes[mode].c_str(), k);
            }
        }
    });
    // From lanes that take part, where not all do.
    each_warp(0, 10, [&](std::vector<Lane> lanes, uint32_t members, bool gone) {
        for (Lane &l : lanes)
            while (!has(members, l.b & 31))
                l.b++;
        const auto got = run("shfl.sync.idx.b32 %r0|%p0, %r1, %r2, 31, %r4;", lanes, gone);
        for (uint32_t k = 0; k < 32; k++)
            EXPECT(!has(members, k) || got[k].value == lanes[lanes[k].b & 31].a, "lane %u", k);
    });
    expect_report("setp.eq.u32 %p2, %r1, 3; @%p2 exit;\n"
                  "shfl.sync.idx.b32 %r7, %r1, 3, 31, -1; st.global.u32 [%d3], %r7;",
                  "never written", 32);
    expect_report("shfl.sync.idx.b32 %r7, %r1, 3, 31, 1;", "not in their member mask", 32);
}

TEST(votes)
{
    for (const std::string mode : {"all", "any", "uni", "ballot"})
        for (const bool negated : {false, true}) {
            const bool ballot = mode == "ballot";
            const std::string text = "vote.sync." + mode + (ballot ? ".b32 %r0, " : ".pred %p0, ") +
                                     (negated ? "!" : "") + "%p1, %r4;";
            uint32_t round = 0;
            each_warp(2, 8, [&](std::vector<Lane> lanes, uint32_t members, bool gone) {
                const uint32_t same = round++ % 3; // none, all, some
                uint32_t truths = 0;
                for (uint32_t k = 0; k < 32; k++) {
                    lanes[k].c = same < 2 ? same : lanes[k].c;
                    truths |= (uint32_t)((lanes[k].c != 0) != negated && has(members, k)) << k;
                }
                const bool is = mode == "all"   ? truths == members
                                : mode == "any" ? truths != 0
                                                : truths == members || !truths;
                const auto got = run(text, lanes, gone);
                for (uint32_t k = 0; k < 32; k++)
                    EXPECT(!has(members, k) ||
                               (ballot ? got[k].value == truths : got[k].truth == is),
                           "%s lane %u", text.c_str(), k);
            });
        }
}

TEST(matches)
{
    for (const bool wide : {false, true})
        each_warp(2, 12, [&](std::vector<Lane> lanes, uint32_t members, bool gone) {
            const bool one = numbers() % 2;
            for (Lane &l : lanes)
                l = one ? Lane{7, 1, 0, members} : l;
            const std::string from = wide ? ".b64 %r0, %d1, %r4;" : ".b32 %r0, %r1, %r4;";
            const std::string from_all =
                wide ? ".b64 %r0|%p0, %d1, %r4;" : ".b32 %r0|%p0, %r1, %r4;";
            const auto any = run("match.any.sync" + from, lanes, gone);
            const auto all = run("match.all.sync" + from_all, lanes, gone);
            uint32_t same[32] = {};
            bool every = true;
            for (uint32_t k = 0; k < 32; k++)
                for (uint32_t n = 0; n < 32; n++)
                    if (has(members, k) && has(members, n)) {
                        const bool is =
                            lanes[k].a == lanes[n].a && (!wide || lanes[k].b == lanes[n].b);
                        same[k] |= (uint32_t)is << n;
                        every &= is;
                    }
            for (uint32_t k = 0; k < 32; k++)
                if (has(members, k)) {
                    EXPECT(any[k].value == same[k], "match.any lane %u", k);
                    EXPECT(all[k].value == (every ? members : 0) && all[k].truth == every,
                           "match.all lane %u", k);
                }
        });
}

TEST(reductions)
{
    const std::string ops[] = {"add.u32", "add.s32", "min.u32", "min.s32", "max.u32",
                               "max.s32", "and.b32", "or.b32",  "xor.b32"};
    for (const std::string &op : ops)
        each_warp(0, 8, [&](std::vector<Lane> lanes, uint32_t members, bool gone) {
            const bool is_signed = op[4] == 's';
            std::vector<int64_t> v;
            for (uint32_t k = 0; k < 32; k++)
                if (has(members, k))
                    v.push_back(is_signed ? (int32_t)lanes[k].a : (int64_t)lanes[k].a);
            int64_t want = v[0];
            for (size_t k = 1; k < v.size(); k++)
                want = op[1] == 'd'   ? want + v[k]
                       : op[1] == 'i' ? std::min(want, v[k])
                       : op[1] == 'a' ? std::max(want, v[k])
                       : op[0] == 'a' ? want & v[k]
                       : op[0] == 'o' ? want | v[k]
                                      : want ^ v[k];
            const auto got = run("redux.sync." + op + " %r0, %r1, %r4;", lanes, gone);
            for (uint32_t k = 0; k < 32; k++)
                EXPECT(!has(members, k) || got[k].value == (uint32_t)want, "%s lane %u", op.c_str(),
                       k);
        });
}

TEST(elections)
{
    each_warp(0, 20, [](std::vector<Lane> lanes, uint32_t members, bool gone) {
        const auto got = run("elect.sync %r0|%p0, %r4;", lanes, gone);
        uint32_t leaders = 0;
        for (uint32_t k = 0; k < 32; k++)
            leaders |= has(members, k) ? got[k].truth << k : 0;
        EXPECT(__builtin_popcount(leaders) == 1, "leaders %08x of %08x", leaders, members);
        for (uint32_t k = 0; k < 32; k++)
            EXPECT(!has(members, k) || 1u << got[k].value == leaders, "lane %u", k);
    });
}

// Lanes of several masks execute one instruction, to which they come by different branches.
TEST(masks_in_branches)
{
    const std::string branches = "@%p1 bra A; add.u32 %r10, %r1, 1; add.u32 %r10, %r10, 1;\n"
                                 "bar.warp.sync %r4; bra B;\nA: bar.warp.sync %r4;\nB:\n";
    each_warp(2, 12, [&](std::vector<Lane> lanes, uint32_t, bool) {
        const uint32_t n = 1 + numbers() % 4;
        uint32_t set[32], members[4] = {};
        for (uint32_t k = 0; k < 32; k++)
            members[set[k] = numbers() % n] |= 1u << k;
        for (uint32_t k = 0; k < 32; k++)
            lanes[k].members = members[set[k]];
        const auto sums = run(branches + "redux.sync.add.u32 %r0, %r1, %r4;", lanes, false);
        const auto ballots = run(branches + "vote.sync.ballot.b32 %r0, %p1, %r4;", lanes, false);
        for (uint32_t k = 0; k < 32; k++) {
            uint32_t sum = 0, ballot = 0;
            for (uint32_t m = 0; m < 32; m++)
                if (set[m] == set[k]) {
                    sum += lanes[m].a;
                    ballot |= (uint32_t)(lanes[m].c != 0) << m;
                }
            EXPECT(sums[k].value == sum && ballots[k].value == ballot, "lane %u", k);
        }
    });
}

TEST(warp_barriers)
{
    expect_order("@%p1 bra A; CAME bar.warp.sync -1; WENT bra E;\n"
                 "A: add.u32 %r7, %r1, 1; setp.gt.u32 %p2, %r1, 40; @%p2 bra B;\n"
                 "CAME bar.warp.sync -1; WENT bra E;\nB: CAME bar.warp.sync -1; WENT\nE:",
                 96, 32);
    expect_order("@%p1 bra A; add.u32 %r7, %r1, 1; exit;\nA: CAME bar.warp.sync -1; WENT", 64, 32);
    expect_report("bar.warp.sync 1;", "not in their member mask");
}

TEST(block_barriers)
{
    for (const std::string f :
         {"bar.sync 3;", "bar.cta.sync 3;", "barrier.sync 3;", "barrier.cta.sync.aligned 3;",
          "mov.u32 %r7, 3; bar.sync %r7;", "mov.u32 %r7, 96; barrier.sync 3, %r7;"})
        for (const uint32_t threads : {96, 70})
            expect_order(f + " CAME " + f + " WENT " + f, threads, threads);
    // Pairs of warps, several turns.
    expect_order("shr.u32 %r7, %r2, 1; add.u32 %r7, %r7, 1; mov.u32 %r8, 0;\n"
                 "L: CAME bar.sync %r7, 64; WENT add.u32 %r8, %r8, 1;\n"
                 "setp.lt.u32 %p2, %r8, 7; @%p2 bra L;",
                 192, 64);
    // Lanes that come by different branches, and threads that return.
    expect_order("@%p1 bra A; CAME barrier.sync 2; WENT bra E;\n"
                 "A: CAME barrier.sync 2; WENT\nE: barrier.sync 2; bar.sync 2;",
                 96, 96);
    expect_order("@%p1 bra A; CAME barrier.sync 0; WENT bra E;\nA: add.u32 %r7, %r1, 1; exit;\nE:",
                 130, 130);
    // Warps 0 and 1 arrive, at 4; warps 2 and 3 wait there, and arrive at 5.
    expect_order("setp.ge.u32 %p2, %r2, 2; @%p2 bra C; CAME bar.arrive 4, 128; bar.sync 5, 128;\n"
                 "bra E;\nC: bar.sync 4, 128; WENT bar.arrive 5, 128;\nE:",
                 128, 128);
    expect_report("bar.sync 0, 33;", "33 threads");
    expect_report("bar.sync %r1, 64;", "lanes name different barriers");
    expect_report("mov.u32 %r7, 16; bar.sync %r7;", "there is no barrier 16");
    expect_report("setp.eq.u32 %p2, %r2, 0; @%p2 bar.sync 0, 96; @!%p2 bar.sync 0, 64;",
                  "others have come for");
    expect_report("setp.eq.u32 %p2, %r2, 0; @%p2 bar.sync 0; @!%p2 bar.red.popc.u32 %r7, 0, %p1;",
                  "meet at barrier 0");
    expect_report("bar.sync 0, 96;", "no thread can go on");
}

TEST(block_reductions)
{
    const Kernel kernel(
        1, timed("bar.red.popc.u32 %r7, 9, %p1; barrier.red.popc.u32 %r8, 9, !%p1;\n"
                 "bar.red.and.pred %p2, 9, %p1; bar.red.or.pred %p3, 9, %p1;\n"
                 "bar.red.and.pred %p4, 9, 1; barrier.red.aligned.or.pred %p5, 9, 0;\n"
                 "selp.u32 %r9, 1, 0, %p1; selp.u32 %r10, 2, 0, %p2; selp.u32 %r11, 4, 0, %p3;\n"
                 "selp.u32 %r12, 8, 0, %p4; selp.u32 %r13, 16, 0, %p5;\n"
                 "or.b32 %r9, %r9, %r10; or.b32 %r9, %r9, %r11; or.b32 %r9, %r9, %r12;\n"
                 "or.b32 %r9, %r9, %r13; st.global.v4.u32 [%d3], {%r7, %r8, %r9, %r1};"));
    EXPECT(kernel.refused().empty(), "%s", kernel.refused().c_str());
    for (const uint32_t threads : {1, 2, 32, 70, 192})
        each_schedule([&] {
            Array<Lane> to((std::vector<Lane>(threads)));
            const std::string report = kernel.run({to.at()}, threads);
            EXPECT(report.empty(), "%s", report.c_str());
            uint32_t n = 0;
            for (const Lane &l : to.get())
                n += l.c & 1;
            const uint32_t truths = (n == threads ? 2 : 0) | (n ? 4 : 0) | 8;
            for (const Lane &l : to.get())
                EXPECT(l.a == n && l.b == threads - n && (l.c & ~1u) == truths,
                       "thread %u of %u: %u %u %x", l.members, threads, l.a, l.b, l.c);
        });
}

TEST(cluster_barriers)
{
    for (const std::string aligned : {"", ".aligned"}) {
        const std::string wait = "barrier.cluster.wait" + aligned + ";";
        for (const std::string arrive : {"", ".release", ".relaxed"})
            expect_order("barrier.cluster.arrive" + aligned + "; " + wait +
                             " CAME barrier.cluster.arrive" + arrive + aligned + "; " + wait +
                             " WENT",
                         70, 70 * 3, 6, 3);
    }
    // By different branches; threads that return in front of it and behind their arrival.
    expect_order("@%p1 bra A; CAME barrier.cluster.arrive; barrier.cluster.wait; WENT bra E;\n"
                 "A: CAME barrier.cluster.arrive; setp.gt.u32 %p2, %r1, 50; @%p2 exit;\n"
                 "barrier.cluster.wait; WENT\nE:",
                 64, 64 * 2, 4, 2);
    expect_order(
        "@%p1 exit; CAME barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; WENT", 64,
        64 * 2, 4, 2);
    // A warp that arrives and goes elsewhere: without clusters the others wait for it.
    const std::string apart = "CAME barrier.cluster.arrive; setp.lt.u32 %p2, %r1, 32;\n"
                              "@%p2 barrier.cluster.wait; bar.sync 1, 64; WENT";
    expect_order(apart, 64, 64 * 2, 4, 2);
    expect_report(apart, "barrier.cluster.wait");
    expect_report("barrier.cluster.arrive; barrier.cluster.arrive;", "second arrival");
    expect_report("barrier.cluster.wait;", "has not arrived");
}
