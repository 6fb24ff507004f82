// Planted faults are found, and the kernels beside them that lack the fault are not blamed.
#include <math.h>

#include "base/f16.h"
#include "test/device.hpp"
#include "test/kernels/basic.h"
#include "test/test.hpp"

#ifndef EMU_CHECK
#define EMU_CHECK 0
#endif

static constexpr uint32_t n = 256, schedules = 9;

static void schedule(uint32_t i)
{
    struct emu_options o = {i, (enum emu_policy)(i % 3), EMU_CHECK ? 16u : 0};
    emu_set(&o);
}

// Outcome of a kernel of faults.cu: its report, or "wrong results".
static std::string outcome(const std::string &kernel, uint32_t smem)
{
    std::vector<float> x(n);
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)i;
    Buffer<float> dx(x), dy(n);
    std::string report =
        run(kernel.c_str(), {{1, 1, 1}, {n, 1, 1}, smem}, fault_args{dx.p, dy.p, n, nullptr});
    if (!report.empty())
        return report;
    std::vector<float> y = dy.get();
    for (uint32_t i = 0; i < n; i++)
        if (!(y[i] == (float)(n - 1 - i)))
            return "wrong results";
    return "";
}

static bool holds(const std::string &text, const char *part)
{
    return text.find(part) != std::string::npos;
}

struct Fault {
    const char *kernel;
    uint32_t smem;
    const char *checked; // in the checker's report, in every schedule
    const char *plain;   // without the checker, in one schedule at least; nothing when empty
};

static void twins(const Fault &f)
{
    uint32_t found = 0;
    std::string all;
    for (uint32_t i = 0; i < schedules; i++) {
        schedule(i);
        std::string right = outcome(f.kernel, f.smem);
        CHECK(right.empty(), "%s, schedule %u: %s", f.kernel, i, right.c_str());
        std::string wrong = outcome(std::string(f.kernel) + "_wrong", f.smem);
        found += holds(wrong, EMU_CHECK ? f.checked : f.plain);
        all += wrong + "\n";
    }
    uint32_t least = EMU_CHECK ? schedules : f.plain[0] != 0;
    CHECK(found >= least, "%s: found in %u schedules: %s", f.kernel, found, all.c_str());
}

static void test_twins()
{
    static const Fault faults[] = {
        {"test_reverse", 0, "race: reads what thread (", "wrong results"},
        {"test_reuse", 0,
         "has read at tests/emu/test/kernels/faults.cu:24 without a barrier between",
         "wrong results"},
        {"test_beside", 0, "faults.cu:38: race: reads what thread (", "wrong results"},
        {"test_hand_over", 0, "wait in bar_sync at tests/emu/test/kernels/faults.cu:51",
         "wait in bar_sync at tests/emu/test/kernels/faults.cu:51"},
        {"test_dynamic", 1024,
         "faults.cu:61: writes 4 bytes out of bounds: byte 1024 of the 1024 bytes of dynamic "
         "shared",
         "shared memory was written at byte 1024 of 1024"},
        {"test_copied", 0,
         "reads the destination of an asynchronous copy still in flight (issued at "
         "tests/emu/test/kernels/faults.cu:69)",
         "wrong results"},
        {"test_agreed", 0, "race: writes what thread (", ""},
        {"test_counted", 0, "wrong results", "wrong results"},
    };
    for (const Fault &f : faults)
        if (!EMU_CHECK || f.checked[0])
            twins(f);
}

static void test_gemms()
{
    static const struct {
        const char *kernel, *checked;
    } faults[] = {{"test_gemm_early",
                   "destination of an asynchronous copy still in flight (issued at "
                   "tests/emu/test/kernels/gemm.cu:"},
                  {"test_gemm_unsynced", "race: "}};
    const uint32_t m = 64, k = 192;
    Buffer<uint16_t> a(std::vector<uint16_t>(m * k, 0x3c00)); // ones
    Buffer<float> c(m * m);
    for (const auto &f : faults) {
        uint32_t found = 0;
        for (uint32_t i = 0; i < schedules; i++) {
            schedule(i);
            std::string why = run(f.kernel, {{1, 1, 1}, {128, 1, 1}, 3 * 2 * 64 * 40 * 2},
                                  gemm_args{a.p, a.p, c.p, m, m, k});
            bool right = why.empty();
            for (float v : c.get())
                right &= v == (float)k;
            found += EMU_CHECK ? holds(why, f.checked) : !right;
        }
        CHECK(found >= (EMU_CHECK ? schedules : 1), "%s: found in %u schedules", f.kernel, found);
    }
}

// Launches that end where the fault is.
static void test_ends()
{
    static const struct {
        const char *kernel, *plain, *checked;
    } faults[] = {
        {"test_store_behind",
         "thread (255, 0, 0): tests/emu/test/kernels/faults.cu:111: access out of "
         "bounds: address 0x",
         "thread (255, 0, 0): tests/emu/test/kernels/faults.cu:111: writes 4 bytes out of "
         "bounds: "},
        {"test_store_behind", ", 0 bytes behind the end of an allocation of 1024 bytes",
         ", 0 bytes behind the end of an allocation of 1024 bytes"},
        {"test_load_behind",
         "faults.cu:115: access out of bounds: ", "reads 4 bytes out of bounds: "},
        {"test_null", "faults.cu:119: access out of bounds: address (nil)",
         "faults.cu:119: reads 4 bytes out of bounds: address (nil)"},
        {"test_shared_far",
         "access out of bounds: byte 4096 of the 64 bytes of dynamic shared memory",
         "writes 1 bytes out of bounds: byte 4096 of the 64 bytes of dynamic shared memory"},
        {"test_two_barriers",
         "faults.cu:131: __syncthreads, but 128 threads wait at the one of "
         "tests/emu/test/kernels/faults.cu:129: a barrier in divergent code",
         nullptr},
        {"test_half_warps",
         "faults.cu:136: __syncthreads: lanes 0x0000ffff of warp 0 wait there, lanes "
         "0xffff0000 have returned",
         nullptr},
        {"test_stuck",
         "no thread can go on: threads 0-15, 32-47, 64-79, 96-111, 128-143, 160-175, "
         "192-207, 224-239 wait in __shfl_xor_sync at tests/emu/test/kernels/faults.cu:142; "
         "threads 16-31, ",
         nullptr},
        {"test_not_named", "__shfl_sync: the mask 0x0000ffff does not name the lane itself, ",
         nullptr},
        {"test_poll", "no thread can go on: threads 0-255 wait in load_acquire at tests/emu/",
         nullptr},
        {"test_misaligned", "faults.cu:158: cp_async: shared address 0x408 is not aligned to 16",
         nullptr},
        {"test_copy_behind",
         "thread (4, 0, 0): tests/emu/test/kernels/faults.cu:163: cp_async: bytes [64, 80) "
         "of the 64 bytes of dynamic shared memory",
         nullptr},
        {"test_deep", "the stack of a thread is full", nullptr},
    };
    Buffer<float> x(n), y(n);
    Buffer<uint32_t> word(std::vector<uint32_t>(1, 0));
    for (const auto &f : faults) {
        struct emu_options o = {0, EMU_IN_ORDER, 0};
        emu_set(&o);
        uint32_t *w = strcmp(f.kernel, "test_null") ? word.p : nullptr;
        std::string why = run(f.kernel, {{2, 1, 1}, {n, 1, 1}, 64}, fault_args{x.p, y.p, n, w});
        const char *want = EMU_CHECK && f.checked ? f.checked : f.plain;
        CHECK(holds(why, want), "%s: expected %s, found: %s", f.kernel, want, why.c_str());
        CHECK(holds(why, (std::string("kernel ") + f.kernel + ", block (0, 0, 0)").c_str()), "%s",
              why.c_str());
        why = outcome("test_reverse", 0);
        CHECK(why.empty(), "after %s: %s", f.kernel, why.c_str());
    }
}

// Blocks that write and read the same device memory: only the checker sees it.
static void test_blocks()
{
    static const struct {
        const char *kernel;
        const char *checked; // null: right
    } cases[] = {
        {"test_blocks_counted", nullptr},
        {"test_blocks_fenced", nullptr},
        {"test_blocks_halves", nullptr},
        {"test_blocks_count", nullptr},
        {"test_blocks_unordered", "race between blocks: reads what block ("},
        {"test_blocks_overlap", "race between blocks: writes what block ("},
        {"test_blocks_read_first", nullptr},
        {"test_blocks_read", "race between blocks: "},
    };
    const uint32_t blocks = 2;
    for (const auto &c : cases)
        for (uint32_t i = 0; i < schedules; i++) {
            std::vector<float> ascending(n);
            for (uint32_t k = 0; k < n; k++)
                ascending[k] = (float)k;
            Buffer<float> x(ascending), y(2 * n);
            Buffer<uint32_t> word(std::vector<uint32_t>(n, 0));
            schedule(i);
            std::string why =
                run(c.kernel, {{blocks, 1, 1}, {n, 1, 1}, 0}, fault_args{x.p, y.p, n, word.p});
            bool expected = EMU_CHECK && c.checked ? holds(why, c.checked) : why.empty();
            CHECK(expected, "%s, schedule %u: %s", c.kernel, i, why.c_str());
        }
}

// Vectors at addresses that a GPU refuses: only the checker sees it, but for copies.
static void test_alignment()
{
    static const struct {
        const char *kernel, *why;
        bool always;
    } cases[] = {
        {"test_misaligned_load", "reads: 0x", false},
        {"test_misaligned_store", "writes: 0x", false},
        {"test_misaligned_nothing", "cp_async: 0x", true},
    };
    for (const auto &c : cases) {
        Buffer<float> x(n), y(n);
        std::string why =
            run(c.kernel, {{1, 1, 1}, {n, 1, 1}, 64}, fault_args{x.p, y.p, n, nullptr});
        bool expected = EMU_CHECK || c.always
                            ? holds(why, c.why) && holds(why, " is not aligned to ")
                            : why.empty();
        CHECK(expected, "%s: %s", c.kernel, why.c_str());
    }
}

// Launches that are refused before a thread runs.
static void test_refusals()
{
    Buffer<float> x(n), y(n);
    fault_args a = {x.p, y.p, n, nullptr};
    std::string why = run("test_reverse", {{1, 1, 1}, {257, 1, 1}, 0}, a);
    CHECK(holds(why, "blocks of 257 x 1 x 1 threads, 1 to 256 are possible"), "%s", why.c_str());
    why = run("test_reverse", {{1, 65536, 1}, {256, 1, 1}, 0}, a);
    CHECK(holds(why, "a grid of 1 x 65536 x 1 blocks"), "%s", why.c_str());
    why = run("test_reverse", {{1, 1, 1}, {256, 1, 1}, 300000}, a);
    CHECK(holds(why, "300000 bytes of shared memory, 232448 are there"), "%s", why.c_str());
}

void test_faults()
{
    test_twins();
    test_gemms();
    test_ends();
    test_blocks();
    test_alignment();
    test_refusals();
}
