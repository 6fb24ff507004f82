// mbarriers, the copy engine and wgmma: planted faults are reported, and what lacks them is right.
#include "test/kernels/engine.h"
#include <algorithm>

#include "base/f16.h"
#include "tensor_map.h"
#include "test/device.hpp"
#include "test/test.hpp"

#ifndef EMU_CHECK
#define EMU_CHECK 0
#endif

static constexpr int n_tile = 5, k = 64 * n_tile;
static constexpr uint32_t schedules = 9, smem_bytes = 4 * 64 * 128 + 64;

static void schedule(uint32_t i)
{
    struct emu_options o = {i, (enum emu_policy)(i % 3), EMU_CHECK ? 64u : 0};
    emu_set(&o);
}

// a [64, k] f16 in boxes of [64, 64] with the swizzle of 128 bytes.
static struct gr_tensor_map map_of(const uint16_t *a)
{
    struct emu_tensor_map m = {};
    m.magic = EMU_TENSOR_MAP_MAGIC;
    m.base = (uintptr_t)a;
    m.stride[0] = 2 * k;
    m.last[0] = k - 1;
    m.last[1] = 63;
    m.box[0] = m.box[1] = 64;
    m.element_stride[0] = m.element_stride[1] = 1;
    m.rank = 2;
    m.element_bytes = 2;
    m.swizzle = EMU_SWIZZLE_128B;
    struct gr_tensor_map map;
    memcpy(&map, &m, sizeof map);
    return map;
}

static int element(int row, int column, int salt)
{
    return (row * 7 + column * (salt + 3) + salt) % 9 - 4;
}

struct Matrices {
    std::vector<uint16_t> bits[2];
    Buffer<uint16_t> a, b;
    Matrices() : bits{fill(1), fill(2)}, a(bits[0]), b(bits[1])
    {
    }
    static std::vector<uint16_t> fill(int salt)
    {
        std::vector<uint16_t> v;
        for (int i = 0; i < 64 * k; i++)
            v.push_back(gr_f32_to_f16((float)element(i / k, i % k, salt)));
        return v;
    }
};

static bool right_product(const std::vector<float> &c, int depth)
{
    for (int row = 0; row < 64; row++)
        for (int column = 0; column < 64; column++) {
            int sum = 0;
            for (int i = 0; i < depth; i++)
                sum += element(row, i, 1) * element(column, i, 2);
            if (!(c[(size_t)row * 64 + (size_t)column] == (float)sum))
                return false;
        }
    return true;
}

// The report of a launch, or "wrong results".
enum Result { product, first_tiles, words, anything };
static std::string outcome(const std::string &kernel, uint32_t threads, Result result)
{
    const Matrices m;
    Buffer<float> c(64 * 64);
    const engine_args args = {map_of(m.a.p), map_of(m.b.p), m.a.p, m.b.p, c.p, n_tile};
    std::string report = run(kernel.c_str(), {{1, 1, 1}, {threads, 1, 1}, smem_bytes}, args);
    if (!report.empty() || result == anything)
        return report;
    std::vector<float> got = c.get();
    bool right = result == words ? !memcmp(got.data(), m.bits[0].data(), 8192)
                                 : right_product(got, result == product ? k : 64);
    return right ? "" : "wrong results";
}

// True when the text has one of these parts, which '|' separates.
static bool holds(const std::string &text, const std::string &parts)
{
    for (size_t from = 0, to; from <= parts.size(); from = to + 1) {
        to = std::min(parts.find('|', from), parts.size());
        if (text.find(parts.substr(from, to - from)) != std::string::npos)
            return true;
    }
    return false;
}

#define SOURCE "tests/emu/test/kernels/engine.cu:"
struct Fault {
    const char *kernel;
    uint32_t threads;
    Result result;
    const char *plain;   // in one of the schedules at least; null: in none anything
    const char *checked; // in all of them, with the checker
};

static void find(const Fault &f)
{
    uint32_t found = 0;
    std::string all;
    const char *text = EMU_CHECK ? f.checked : f.plain;
    for (uint32_t i = 0; i < schedules; i++) {
        schedule(i);
        std::string why = outcome(f.kernel, f.threads, f.result);
        found += text ? holds(why, text) : !why.empty();
        all += why + "\n";
    }
    uint32_t least = !text ? 0 : EMU_CHECK ? schedules : 1;
    CHECK(found >= least && (text || !found), "%s: found in %u schedules: %s", f.kernel, found,
          all.c_str());
}

static void test_right()
{
    for (uint32_t i = 0; i < 3 * schedules; i++) {
        schedule(i);
        std::string why = outcome("test_ring_none", 160, product);
        why += outcome("test_ring_one_of_warp", 160, product);
        why += outcome("test_stored", 128, first_tiles);
        why += outcome("test_copied_out", 128, words);
        why += outcome("test_registers", 384, anything);
        CHECK(why.empty(), "schedule %u: %s", i, why.c_str());
    }
}

// Parts of the reports.
#define FLIGHT "meets the destination of a copy still in flight, the tma_load_2d of " SOURCE
#define HELD "tma_load_2d: writes shared memory that the wgmma of " SOURCE
#define MORE                                                                                       \
    "mbar_arrive_expect_tx: more arrivals in a phase than the 1 of the mbarrier made at " SOURCE
#define RACE "race: writes what thread ("
#define STUCK "no thread can go on: threads 128 wait in mbar_wait at " SOURCE
#define SHIFTED "shared address 0x480 is not aligned to 1024, the period of the map's swizzle"
#define UNFENCED "wgmma: no wgmma_fence since these accumulators could be touched"
#define RETURNED                                                                                   \
    "wgmma: the thread has returned while it is in flight: no wgmma_wait came behind it"
#define UNKNOWN "tma_load_2d: the copy engine does not know the mbarrier made at " SOURCE
#define UNMADE "there is no mbarrier at shared address"
#define DIFFER "wgmma: threads of the warpgroup disagree with those at " SOURCE
static void test_planted()
{
    static const Fault faults[] = {
        {"test_ring_no_wait", 160, product, FLIGHT, FLIGHT "|" HELD "|" MORE "|" RACE "|" STUCK},
        {"test_ring_one_waits", 160, product, FLIGHT, FLIGHT "|" HELD "|" RACE},
        {"test_ring_half_expected", 160, product, FLIGHT, FLIGHT},
        {"test_ring_read_early", 160, product, "wrong results",
         "reads accumulators of the wgmma of " SOURCE},
        {"test_ring_released_early", 160, product, HELD, HELD "|" RACE},
        {"test_ring_wrong_swizzle", 160, product, "wrong results",
         "wgmma: a: read with a swizzle of 64 bytes, brought by a map with one of 128"},
        {"test_ring_misaligned_box", 160, product, SHIFTED, SHIFTED},
        {"test_ring_no_wgmma_fence", 160, product, UNFENCED, UNFENCED},
        {"test_ring_no_commit", 160, product, HELD, HELD},
        {"test_ring_no_wgmma_wait", 160, product, RETURNED, RETURNED},
        {"test_ring_no_mbar_fence", 160, product, UNKNOWN, UNKNOWN},
        {"test_ring_no_mbar_sync", 160, product, UNMADE,
         UNMADE "|race: reads what thread (0, 0, 0) has written at " SOURCE},
        {"test_ring_one_arrival", 160, product, STUCK, STUCK},
        {"test_ring_many_arrivals", 160, product, HELD "|" MORE "|" FLIGHT "|" STUCK,
         HELD "|" MORE "|" RACE "|" STUCK},
        {"test_ring_another_tile", 160, product, DIFFER, DIFFER "|" FLIGHT},
        {"test_stored_wrong", 128, first_tiles, nullptr,
         "reads by the asynchronous proxy what thread ("},
        {"test_copied_unfenced", 128, words, nullptr,
         "reads by the asynchronous proxy what thread ("},
        {"test_copied_unwaited", 128, words, "wrong results",
         "writes what the bulk_store of " SOURCE},
        {"test_registers_wrong", 384, anything, "wait in setmaxnreg_inc at " SOURCE,
         "wait in setmaxnreg_inc at " SOURCE},
        {"test_registers_fewer", 384, anything,
         "setmaxnreg_inc: to 160 registers a thread, and there are 168",
         "setmaxnreg_inc: to 160 registers a thread, and there are 168"},
    };
    for (const Fault &f : faults)
        find(f);
}

// One thread, one launch, in order.
static void test_alone()
{
    static const struct {
        const char *kernel, *text;
    } faults[] = {
        {"test_no_barrier",
         "mbar_arrive: there is no mbarrier at shared address 0x8408: mbar_init comes first"},
        {"test_barrier_overwritten", "mbar_arrive: the mbarrier made at " SOURCE ""},
        {"test_barrier_twice", "is there: mbar_inval comes first"},
        {"test_barrier_of_none", "mbar_init: a count of 0: 1 to 1048575 are possible"},
        {"test_arrivals",
         "mbar_arrive: more arrivals in a phase than the 1 of the mbarrier made at"},
        {"test_never", "is in phase 0, 1 of 1 arrivals and 0 bytes to come"},
        {"test_still_flying", "bulk_load: still in flight at the end of the block"},
        {"test_bytes_missing", "is in phase 0, 0 of 1 arrivals and 64 bytes to come"},
        {"test_bytes_left", "at its end the mbarrier made at " SOURCE ""},
        {"test_odd_bytes", "bulk_load: 40 bytes: a multiple of 16 is expected"},
        {"test_odd_source", "is not aligned to 16 bytes"},
        {"test_bulk_behind",
         "bulk_load: 64 bytes out of bounds: byte 40928 of an allocation of 40960 bytes"},
        {"test_into_flight",
         "bulk_load: meets the destination of a copy still in flight, the bulk_load of"},
        {"test_not_a_map", "tma_load_2d: this is not a tensor map"},
        {"test_other_rank", "tma_load_3d: a map of 2 dimensions"},
        {"test_half_a_group", "threads 0 wait in wgmma_wait at " SOURCE ""},
        {"test_unaligned_tile",
         "wgmma: descriptor of a: the tile at shared address 0x480 is not aligned to 1024"},
        {"test_tile_behind",
         "wgmma: b: bytes [32912, 32928) of the 32832 bytes of dynamic shared memory"},
        {"test_bits_set",
         "wgmma: descriptor of a: a base offset of 1: not emulated, align the tile"},
        {"test_unread_store", "bulk_store: the thread has returned without bulk_wait_read"},
        {"test_parity", "mbar_wait: parity 2: 0 or 1 is expected"},
    };
    for (const auto &f : faults) {
        schedule(0);
        std::string why = outcome(f.kernel, 128, anything);
        CHECK(holds(why, f.text), "%s: expected %s, found: %s", f.kernel, f.text, why.c_str());
        why = outcome("test_ring_none", 160, product);
        CHECK(why.empty(), "after %s: %s", f.kernel, why.c_str());
    }
}

// Three launches: the third reads before it waits what the first has written, which may still run
// when the second has let the third begin before it has waited itself. What another stream does is
// not in front.
static void test_third()
{
    static const struct {
        const char *second;
        uint32_t stream;
        bool wrong;
    } cases[] = {{"test_passes", 0, false},
                 {"test_passes_all", 0, false},
                 {"test_passes_on", 0, true},
                 {"test_passes_half", 0, true},
                 {"test_passes_on", 1, false}};
    const Matrices m;
    Buffer<float> c(64 * 64), other(64);
    engine_args args = {map_of(m.a.p), map_of(m.b.p), m.a.p, m.b.p, c.p, n_tile}, aside = args;
    aside.c = other.p;
    for (const auto &t : cases) {
        schedule(2);
        std::string why = run("test_stored", {{1, 1, 1}, {128, 1, 1}, smem_bytes}, args);
        emu_launch_next(t.stream, 1);
        why += run(t.second, {{1, 1, 1}, {128, 1, 1}, 0}, aside);
        emu_launch_next(t.stream, 1);
        why += run("test_peeks", {{1, 1, 1}, {128, 1, 1}, 0}, args);
        CHECK(EMU_CHECK && t.wrong ? holds(why, "reads what a launch in front has written at ")
                                   : why.empty(),
              "%s, stream %u: %s", t.second, t.stream, why.c_str());
    }
}

// Launches one behind the other, the second allowed to begin early; and two blocks whose copies
// meet.
static void test_launches()
{
    static const struct {
        const char *kernel, *checked;
    } launches[] = {
        {"test_dependent", nullptr},
        {"test_dependent_all", nullptr},
        {"test_dependent_wrong", "reads what a launch in front has written at " SOURCE},
        {"test_dependent_writes", "writes what a launch in front has written at " SOURCE},
        {"test_dependent_never", "ends without griddep_wait"}};
    const Matrices m;
    Buffer<float> c(64 * 64);
    const engine_args args = {map_of(m.a.p), map_of(m.b.p), m.a.p, m.b.p, c.p, n_tile};
    for (const auto &l : launches) {
        schedule(1);
        std::string why = run("test_stored", {{1, 1, 1}, {128, 1, 1}, smem_bytes}, args);
        emu_launch_next(0, 1);
        why += run(l.kernel, {{1, 1, 1}, {128, 1, 1}, 0}, args);
        CHECK(EMU_CHECK && l.checked ? holds(why, l.checked) : why.empty(), "%s: %s", l.kernel,
              why.c_str());
    }
    test_third();
    std::string why = run("test_stores_meet", {{2, 1, 1}, {128, 1, 1}, 128}, args);
    CHECK(holds(why, "race between blocks: writes what block (") == (EMU_CHECK != 0), "%s",
          why.c_str());
}

void test_engine()
{
    test_right();
    test_planted();
    test_alone();
    test_launches();
}
