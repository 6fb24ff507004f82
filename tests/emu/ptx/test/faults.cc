// Faults of kernels: each has to be reported, and its correct twin has to pass without a report and
// with the right results.
#include "test.hpp"

namespace
{
// p0 is `out`, p1 is `in`. %r1: the thread; %rd3, %rd4, %r5: addresses of its element of `out`,
// `in` and `sm`.
const char prologue[] = R"(
.reg .b32 %r<60>; .reg .b64 %rd<30>; .reg .pred %p<8>; .reg .f32 %f<20>; .reg .b16 %h<4>;
.shared .align 1024 .b8 sm[4096];
.shared .align 8 .b64 bar;
.local .align 16 .b8 stack[16];
ld.param.u64 %rd1, [p0];
ld.param.u64 %rd2, [p1];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd5, %r1, 4;
add.u64 %rd3, %rd1, %rd5;
add.u64 %rd4, %rd2, %rd5;
shl.b32 %r4, %r1, 2;
mov.u32 %r6, sm;
add.u32 %r5, %r6, %r4;
)";

uint32_t in_of(uint32_t t)
{
    return 1000 + 7 * t;
}
uint32_t next_of(uint32_t t)
{
    return in_of(t + 1);
}
template <uint32_t value> uint32_t always(uint32_t)
{
    return value;
}

// A '$' in the body stands for `faulty` or `correct`.
struct Case {
    const char *name;
    uint32_t threads;
    std::string body;
    const char *faulty, *correct;
    const char *words; // of the report; nullptr: there is none, and the results are wrong
    uint32_t (*want)(uint32_t thread);
};

std::string with(const std::string &body, const char *text)
{
    const size_t at = body.find('$');
    return body.substr(0, at) + text + body.substr(at + 1);
}

void check(const Case &c)
{
    const Kernel wrong(2, prologue + with(c.body, c.faulty));
    const Kernel right(2, prologue + with(c.body, c.correct));
    EXPECT(wrong.refused().empty(), "%s: %s", c.name, wrong.refused().c_str());
    EXPECT(right.refused().empty(), "%s, correct: %s", c.name, right.refused().c_str());
    if (!wrong.refused().empty() || !right.refused().empty())
        return;
    // One element more of `in` than threads: for those that read the next one.
    std::vector<uint32_t> values(c.threads + 1), want(c.threads);
    for (uint32_t t = 0; t <= c.threads; t++)
        values[t] = in_of(t);
    for (uint32_t t = 0; t < c.threads; t++)
        want[t] = c.want(t);
    bool found = false;
    std::string last;
    each_schedule([&] {
        const Array<uint32_t> in(values);
        {
            const Array<uint32_t> out(std::vector<uint32_t>(c.threads, 0));
            const std::string report = right.run({out.at(), in.at()}, c.threads);
            EXPECT(report.empty(), "%s, correct: %s", c.name, report.c_str());
            EXPECT(out.get() == want, "%s, correct: other results", c.name);
        }
        const Array<uint32_t> out(std::vector<uint32_t>(c.threads, 0));
        last = wrong.run({out.at(), in.at()}, c.threads);
        found |=
            c.words ? last.find(c.words) != std::string::npos : last.empty() && out.get() != want;
    });
    EXPECT(found, "%s: not found, but '%s'", c.name, last.c_str());
}

void check(const std::vector<Case> &cases)
{
    for (const Case &c : cases)
        check(c);
}

const char store[] = "st.global.u32 [%rd3], %r2;\n";
} // namespace

TEST(faults_registers)
{
    check({
        {"stored register", 32, std::string("$\n") + store, "", "mov.u32 %r2, 5;", "never written",
         always<5>},
        {"sum of a register", 32, std::string("$\nadd.u32 %r2, %r7, 1;\n") + store, "",
         "mov.u32 %r7, 5;", "never written", always<6>},
        {"register of half of the lanes", 32,
         std::string("setp.lt.u32 %p1, %r1, 16;\n$\n@%p1 mov.u32 %r2, 5;\n") + store, "",
         "mov.u32 %r2, 5;", "never written", always<5>},
        {"address", 32, std::string("$\nld.global.u32 %r2, [%rd6];\n") + store, "",
         "mov.u64 %rd6, %rd4;", "never written", in_of},
        {"shared address", 32,
         std::string("st.shared.u32 [%r5], 3;\n$\nld.shared.u32 %r2, [%r7];\n") + store, "",
         "mov.u32 %r7, %r5;", "never written", always<3>},
        {"guard", 32, std::string("mov.u32 %r2, 1;\n$\n@%p1 mov.u32 %r2, 2;\n") + store, "",
         "setp.ge.u32 %p1, %r1, 0;", "the guard is a predicate that was never written", always<2>},
        {"guard of a branch", 32,
         std::string("mov.u32 %r2, 1;\n$\n@%p1 bra L;\nmov.u32 %r2, 2;\nL:\n") + store, "",
         "setp.lt.u32 %p1, %r1, 0;", "the guard is a predicate that was never written", always<2>},
        {"source of a shuffle", 32,
         std::string("$\nshfl.sync.bfly.b32 %r2, %r7, 1, 31, -1;\n") + store, "", "mov.u32 %r7, 9;",
         "never written", always<9>},
    });
}

TEST(faults_memory)
{
    check({
        {"global, one behind", 32, std::string("ld.global.u32 %r2, [%rd4+$];\n") + store, "8", "4",
         "out of bounds", next_of},
        {"global, one behind, store", 32, "mov.u32 %r2, 4;\nst.global.u32 [%rd3+$], %r2;\n", "4",
         "0", "out of bounds", always<4>},
        {"shared", 32,
         std::string("st.shared.u32 [%r5+$], 3;\nld.shared.u32 %r2, [%r5+3968];\n") + store, "8192",
         "3968", "the block has", always<3>},
        {"local", 32,
         std::string("mov.u32 %r7, stack;\nadd.u32 %r7, %r7, $;\nst.local.u32 [%r7], "
                     "3;\nld.local.u32 %r2, [stack+12];\n") +
             store,
         "16", "12", "a thread has 16", always<3>},
        {"parameters", 32,
         "ld.param.u64 %rd7, [p1+$];\nadd.u64 %rd7, %rd7, %rd5;\nld.global.u32 %r2, [%rd7];\n" +
             std::string(store),
         "8", "0", "of parameters", in_of},
        {"misaligned vector", 32,
         std::string("shl.b32 %r7, %r1, 2;\ncvt.u64.u32 %rd6, %r7;\n$\nadd.u64 %rd6, %rd6, "
                     "%rd2;\nld.global.v2.u32 {%r8, %r2}, [%rd6];\nsub.u32 %r2, %r2, %r8;\n") +
             store,
         "", "and.b64 %rd6, %rd6, -8;", "is not aligned to 8 bytes", always<7>},
        {"misaligned shared", 32,
         std::string("st.shared.u32 [%r5+$], 3;\nld.shared.u32 %r2, [%r5+4];\n") + store, "2", "4",
         "is not aligned to 4 bytes", always<3>},
        {"nc of what was written", 32,
         std::string("st.global.u32 [%rd3], 3;\nld.global$.u32 %r2, [%rd3];\n") + store, ".nc", "",
         "memory that the launch also", always<3>},
        {"nc of what will be written", 32,
         std::string("mov.u32 %r2, 3;\nld.global$.u32 %r7, [%rd3];\nadd.u32 %r2, %r2, %r7;\n") +
             store,
         ".nc", "", "nc", always<3>},
    });
}

TEST(faults_collectives)
{
    const std::string split = "setp.$\n@%p1 bra A;\n",
                      join = "mov.u32 %r2, 6;\n" + std::string(store);
    const char odd[] = "ne.u32 %p1, %r7, 0;", second[] = "ge.u32 %p1, %r1, 32;";
    const std::string ones =
        "mov.u32 %r7, 0x3c003c00;\nmov.f32 %f0, 0f00000000;\nand.b32 %r8, %r1, 1;\n";
    const std::string mma =
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, "
        "{%r7, %r7}, {%r7}, {%f0, %f0, %f0, %f0};\n";
    check({
        {"bar.sync, diverged", 64,
         "and.b32 %r7, %r1, 1;\n" + split + "bar.sync 0;\nbra B;\nA:\nbar.sync 0;\nB:\n" + join,
         odd, second, "different branches", always<6>},
        {"mma, diverged", 64,
         ones + "setp.$\n@%p1 bra A;\n" + mma + "bra B;\nA:\n" + mma +
             "B:\ncvt.rni.u32.f32 %r2, %f4;\n" + store,
         "ne.u32 %p1, %r8, 0;", second, "different branches", always<8>},
        {"barriers in another order", 64,
         "setp.ge.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 1, 64;\nbar.sync 2, 64;\nbra "
         "B;\nA:\n$\nB:\n" +
             join,
         "bar.sync 2, 64; bar.sync 1, 64;", "bar.sync 1, 64; bar.sync 2, 64;",
         "no thread can go on", always<6>},
        {"barrier of a warp that has returned", 64,
         "setp.ge.u32 %p1, %r1, 32;\n" + join + "@%p1 exit;\nbar.sync 0, $;\n", "64", "32",
         "no thread can go on", always<6>},
        {"shuffle from other lanes", 32,
         "mov.u32 %r2, 5;\nsetp.ge.u32 %p1, %r1, 16;\n@%p1 bra A;\nshfl.sync.bfly.b32 %r2, %r2, $, "
         "31, 0xffff;\nA:\n" +
             std::string(store),
         "16", "8", "never written", always<5>},
        {"shuffle outside of its mask", 32,
         "mov.u32 %r2, 5;\nshfl.sync.idx.b32 %r2, %r2, 0, 31, $;\n" + std::string(store), "0xffff",
         "-1", "member mask", always<5>},
        {"shared memory without a barrier", 64,
         "xor.b32 %r7, %r5, 128;\nst.shared.u32 [%r5], 6;\n$\nld.shared.u32 %r2, [%r7];\n" +
             std::string(store),
         "", "bar.sync 0;", nullptr, always<6>},
        {"barrier of no whole warps", 64, "bar.sync 0, $;\n" + join, "63", "64",
         "no positive multiple of 32", always<6>},
        {"there is no such barrier", 64, "mov.u32 %r7, $;\nbar.sync %r7;\n" + join, "16", "15",
         "there is no barrier 16", always<6>},
        {"setmaxnreg of three warps", 128,
         "setp.ge.u32 %p1, %r1, $;\n@%p1 bra A;\nsetmaxnreg.dec.sync.aligned.u32 40;\nA:\n" + join,
         "96", "128", "not all warps of the warpgroup", always<6>},
        {"setmaxnreg differs", 128,
         "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nsetmaxnreg.dec.sync.aligned.u32 40;\nbra "
         "B;\nA:\nsetmaxnreg.dec.sync.aligned.u32 $;\nB:\n" +
             join,
         "48", "40", "of the warpgroup has executed", always<6>},
        {"setmaxnreg.dec to more than there are", 384,
         "setmaxnreg.dec.sync.aligned.u32 $;\n" + join, "176", "168", "at most 168 registers",
         always<6>},
        {"setmaxnreg.inc takes more than others leave", 384,
         "setp.lt.u32 %p1, %r1, 128;\n@%p1 bra A;\nsetmaxnreg.inc.sync.aligned.u32 240;\nbra "
         "B;\nA:\nsetmaxnreg.dec.sync.aligned.u32 $;\nB:\n" +
             join,
         "32", "24", "no thread can go on", always<6>},
    });
}

TEST(faults_mbarriers)
{
    const std::string first = "setp.ne.u32 %p1, %r1, 0;\nmov.u32 %r2, 6;\n@%p1 bra A;\n";
    const std::string wait =
        "bar.sync 0;\nW:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;\n@!%p2 bra W;\n";
    const std::string load =
        "mov.u32 %r2, 6;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra A;\nmbarrier.init.shared::cta.b64 "
        "[bar], 1;\n"
        "fence.mbarrier_init.release.cluster;\nA:\nbar.sync 0;\n@%p1 bra B;\n$\nB:\n" +
        wait + "ld.shared.u32 %r2, [%r5];\n" + store;
    const char bulk[] = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [sm], "
                        "[%rd2], 128, [bar];\n";
    const std::string arrive = "mbarrier.arrive.shared::cta.b64 _, [bar];\n";
    const std::string expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], ";
    check({
        {"not initialised", 32,
         first + "$\nmbarrier.arrive.shared::cta.b64 _, [bar], 2;\nA:\n" + wait + store, "",
         "mbarrier.init.shared::cta.b64 [bar], 2;", "not initialised", always<6>},
        {"too many arrivals", 32,
         first +
             "mbarrier.init.shared::cta.b64 [bar], 2;\nmbarrier.arrive.shared::cta.b64 _, [bar], "
             "$;\nA:\n" +
             wait + store,
         "3", "2", "waits for 2 of 2", always<6>},
        {"too few arrivals", 32,
         first +
             "mbarrier.init.shared::cta.b64 [bar], 2;\nmbarrier.arrive.shared::cta.b64 _, [bar], "
             "$;\nA:\n" +
             wait + store,
         "1", "2", "no thread can go on", always<6>},
        {"written over", 32,
         first + "mbarrier.init.shared::cta.b64 [bar], 1;\nst.shared.u32 [$], 7;\n" + arrive +
             "A:\n" + wait + store,
         "bar+4", "sm+4", "written over", always<6>},
        {"initialised twice", 32,
         first +
             "mbarrier.init.shared::cta.b64 [bar], 1;\n$\nmbarrier.init.shared::cta.b64 [bar], "
             "1;\n" +
             arrive + "A:\n" + wait + store,
         "", "mbarrier.inval.shared::cta.b64 [bar];", "invalidated first", always<6>},
        {"no expect_tx", 32, load, bulk, (expect + "128;\n" + bulk).c_str(), "no thread can go on",
         in_of},
        {"expect_tx of too little", 32, load, (expect + "0;\n" + bulk).c_str(),
         (expect + "128;\n" + bulk).c_str(), "is still writing", in_of},
        {"expect_tx of too much", 32, load, (expect + "144;\n" + bulk).c_str(),
         (expect + "128;\n" + bulk).c_str(), "no thread can go on", in_of},
    });
}

TEST(faults_copies)
{
    const std::string copy = "cp.async.ca.shared.global [%r5], [%rd4], 4;\n";
    const std::string next = "cp.async.ca.shared.global [%r5+1024], [%rd4+4], 4;\n";
    const std::string commit = "cp.async.commit_group;\n";
    const std::string bulk =
        "setp.ne.u32 %p1, %r1, 0;\nst.shared.u32 [%r5], 3;\n$\nbar.sync 0;\n@%p1 bra A;\n"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [sm], "
        "128;\ncp.async.bulk.commit_group;\n"
        "cp.async.bulk.wait_group 0;\nA:\n";
    const std::string reuse = "setp.ne.u32 %p1, %r1, 0;\nst.shared.u32 [%r5], "
                              "3;\nfence.proxy.async;\nbar.sync 0;\n@%p1 bra A;\n"
                              "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [sm], "
                              "128;\ncp.async.bulk.commit_group;\n"
                              "$\nA:\nbar.sync 0;\nst.shared.u32 [%r5], 4;\n";
    auto bulk_of = [](const std::string &bytes, const std::string &wait) {
        return "setp.ne.u32 %p1, %r1, 0;\nst.shared.u32 [%r5], 3;\nfence.proxy.async;\nbar.sync "
               "0;\n@%p1 bra A;\n"
               "mov.u32 %r7, " +
               bytes +
               ";\ncp.async.bulk.global.shared::cta.bulk_group [%rd1], [sm], %r7;\n"
               "cp.async.bulk.commit_group;\n" +
               wait + "\nA:\n";
    };
    const std::string size = bulk_of("$", "cp.async.bulk.wait_group 0;"), end = bulk_of("128", "$");
    check({
        {"no wait_all", 32, copy + "$\nld.shared.u32 %r2, [%r5];\n" + store, "",
         "cp.async.wait_all;", "is still writing", in_of},
        {"wait_group of one too few", 32,
         copy + commit + next + commit +
             "cp.async.wait_group $;\nld.shared.u32 %r2, [%r5+1024];\n" + store,
         "1", "0", "is still writing", next_of},
        {"no commit_group", 32,
         copy + "$\ncp.async.wait_group 0;\nld.shared.u32 %r2, [%r5];\n" + store, "",
         commit.c_str(), "is still writing", in_of},
        {"no multiple of 16 bytes", 32, size, "120", "128", "no multiple of 16", always<3>},
        {"block ends before the copy has read", 32, end, "", "cp.async.bulk.wait_group.read 0;",
         "of a block whose threads have all returned", always<3>},
        {"no proxy fence before a bulk store", 32, bulk, "", "fence.proxy.async;",
         "fence.proxy.async is between them", always<3>},
        {"source reused before wait_group.read", 32, reuse, "", "cp.async.bulk.wait_group.read 0;",
         "is still reading", always<3>},
    });
}

TEST(faults_wgmma)
{
    // A and B of ones: an element of D is 16. Core matrices in a row of 128 bytes, 256 a group.
    auto kernel = [](const std::string &fence, const std::string &products) {
        std::string body = "mov.u32 %r7, 0x3c003c00;\n";
        for (int k = 0; k < 5; k++)
            body += "st.shared.u32 [%r5+" + std::to_string(512 * k) + "], %r7;\n";
        return body + fence +
               "bar.sync 0;\nshr.u32 %r8, %r6, 4;\ncvt.u64.u32 %rd8, %r8;\nmov.u64 %rd9, "
               "0x1000080000;\n"
               "or.b64 %rd10, %rd8, %rd9;\nadd.u64 %rd11, %rd10, 128;\nmov.u32 %r9, "
               "1;\nsetp.ne.u32 %p4, %r9, 0;\n"
               "mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;\n"
               "mov.f32 %f4, %f0; mov.f32 %f5, %f0; mov.f32 %f6, %f0; mov.f32 %f7, %f0;\n" +
               products;
    };
    auto mma = [](const char *d, const char *a = "%rd10", const char *transposed = ", 0, 0") {
        return std::string("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {") + d + "}, " + a +
               ", %rd11, %p4, 1, 1" + transposed + ";\n";
    };
    const std::string proxy = "fence.proxy.async;\n", fence = "wgmma.fence.sync.aligned;\n",
                      commit = "wgmma.commit_group.sync.aligned;\n",
                      wait = "wgmma.wait_group.sync.aligned 0;\n", low = mma("%f0, %f1, %f2, %f3"),
                      high = mma("%f4, %f5, %f6, %f7"),
                      end = std::string("cvt.rni.u32.f32 %r2, %f8;\n") + store;
    const std::string plain = low + commit + wait + "add.f32 %f8, %f0, %f3;\n" + end;
    check({
        {"accumulator read before wait_group", 128,
         kernel(proxy, fence + low + commit + "$\n" + wait + end), "add.f32 %f8, %f0, %f3;",
         "wgmma.wait_group.sync.aligned 0; add.f32 %f8, %f0, %f3;",
         "no wgmma.wait_group has waited", always<32>},
        {"accumulator written before wait_group", 128,
         kernel(proxy, fence + low + commit + "mov.f32 $, 0f00000000;\n" + wait +
                           "add.f32 %f8, %f0, %f3;\n" + end),
         "%f0", "%f9", "no wgmma.wait_group has waited", always<32>},
        {"accumulator written after the fence", 128, kernel(proxy, "$\n" + plain),
         "wgmma.fence.sync.aligned; mov.f32 %f0, 0f3f800000;",
         "mov.f32 %f0, 0f3f800000; wgmma.fence.sync.aligned;",
         "was written since the last wgmma.fence", always<33>},
        {"no fence", 128, kernel(proxy, "$\n" + plain), "", "wgmma.fence.sync.aligned;",
         "there was no wgmma.fence", always<32>},
        {"wait_group off by one", 128,
         kernel(proxy, fence + low + commit + high + commit +
                           "wgmma.wait_group.sync.aligned $;\nadd.f32 %f8, %f4, %f7;\n" + wait +
                           end),
         "1", "0", "no wgmma.wait_group has waited", always<32>},
        {"the other of two groups", 128,
         kernel(proxy, fence + low + commit + high + commit +
                           "wgmma.wait_group.sync.aligned 1;\nadd.f32 %f8, $;\n" + wait + end),
         "%f0, %f4", "%f0, %f3", "no wgmma.wait_group has waited", always<32>},
        {"no commit_group", 128,
         kernel(proxy, fence + low + "$\n" + wait + "add.f32 %f8, %f0, %f3;\n" + end), "",
         "wgmma.commit_group.sync.aligned;", "no wgmma.wait_group has waited", always<32>},
        {"no proxy fence", 128, kernel("$\n", fence + plain), "", "fence.proxy.async;",
         "fence.proxy.async is between them", always<32>},
        {"tile written before wait_group", 128,
         kernel(proxy, fence + low + commit + "$\nst.shared.u32 [%r5], 0;\n" + wait +
                           "add.f32 %f8, %f0, %f3;\n" + end),
         "", "wgmma.wait_group.sync.aligned 0; bar.sync 0;", "is still reading", always<32>},
        {"never waited for", 128,
         kernel(proxy, "mov.u32 %r2, 6;\n" + std::string(store) + fence + low + commit + "$\n"), "",
         "wgmma.wait_group.sync.aligned 0;", "the warp ends, and no wgmma.wait_group has waited",
         always<6>},
        {"tile outside of shared memory", 128,
         kernel(proxy, "add.u64 %rd10, %rd10, $;\n" + fence + plain), "4096", "0",
         "is outside of the", always<32>},
        {"accumulator never written", 128,
         kernel(proxy, "$\n" + fence + mma("%f9, %f1, %f2, %f3") + commit + wait +
                           "add.f32 %f8, %f9, %f3;\n" + end),
         "", "mov.f32 %f9, %f0;", "was never written, and scale-d is true", always<32>},
        {"fragment of A written before wait_group", 128,
         kernel(proxy, fence + mma("%f0, %f1, %f2, %f3", "{%r7, %r7, %r7, %r7}", ", 0") + commit +
                           "mov.u32 $, 0;\n" + wait + "add.f32 %f8, %f0, %f3;\n" + end),
         "%r7", "%r10", "no wgmma.wait_group has waited", always<32>},
        {"accumulator in two places", 128,
         kernel(proxy,
                fence + mma("%f0, $, %f2, %f3") + commit + wait + "add.f32 %f8, %f0, %f3;\n" + end),
         "%f0", "%f1", "a register is two of the accumulators", always<32>},
        {"swizzled tile at a wrong offset", 128,
         kernel(proxy, "add.u64 %rd10, %rd10, $;\n" + fence + plain), "0x4000000000000008", "8",
         "of a swizzle pattern", always<32>},
        {"warps with other descriptors", 128,
         kernel(proxy, "setp.ge.u32 %p1, %r1, $;\n@%p1 add.u64 %rd10, %rd10, 8;\n" + fence + plain),
         "64", "128", "in another warp of the warpgroup", always<32>},
    });
}

TEST(faults_shared_size)
{
    const Kernel k(1, "");
    each_schedule([&] {
        const std::string most = k.run({0}, 32, 1, 227 << 10),
                          more = k.run({0}, 32, 1, (227 << 10) + 16);
        EXPECT(most.empty(), "227 KiB: %s", most.c_str());
        EXPECT(more.find("shared memory") != std::string::npos, "more than 227 KiB: '%s'",
               more.c_str());
    });
}

TEST(faults_refused)
{
    // Line 8 of the text has the instruction: the module has three in front of it and an empty one,
    // then there are the entry, its brace and the registers.
    const struct {
        const char *text, *words;
    } cases[] = {
        {"frobnicate.u32 %r1, %r2;", "frobnicate: the operation is not known"},
        {"add.banana.u32 %r1, %r2, %r3;", "the modifier '.banana' is not known"},
        {"add.u32 %r1, %r2;", "operand 3 is missing"},
        {"add.u32 %r1, %r2, %r3, %r4;", "operand 4 is one too many"},
        {"mov.u32 %r1, %r77;", "%r77"},
        {"st.global.u64 [%r1], %tid.x;", "%tid.x has 32 bits, 64 are read"},
        {"bra NOWHERE;", "NOWHERE"},
        {"ld.global.v3.u32 {%r1, %r2, %r3}, [%r4];", "1 registers are expected"},
        {"mma.sync.aligned.m16n8k9.row.col.f32.f16.f16.f32 {%r1}, {%r1}, {%r1}, {%r1};",
         ".m16n8k8"},
        {"@%r1 mov.u32 %r1, %r2;", "predicate"},
    };
    for (const auto &c : cases)
        for (const char *behind : {" ret;", "\n\nret;"}) {
            const Kernel k(0, std::string(".reg .b32 %r<5>;\n") + c.text + behind);
            EXPECT(k.refused().find("PTX line 8") != std::string::npos, "'%s': '%s' has no line",
                   c.text, k.refused().c_str());
            EXPECT(k.refused().find(c.words) != std::string::npos, "'%s': '%s' is without '%s'",
                   c.text, k.refused().c_str(), c.words);
        }
    const Kernel k(0, ".reg .b32 %r<5>;\nadd.u32 %r1, %r2, %r3;");
    EXPECT(k.refused().empty(), "%s", k.refused().c_str());
}
