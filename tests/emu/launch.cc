// Kernels, options, and launches: the blocks of a grid, one after another.
#include <stdlib.h>
#include <string.h>

#include <map>
#include <mutex>
#include <numeric>

#include "check.hpp"
#include "engine.hpp"

namespace emu
{
Launch launch;
struct emu_options options;

// --- kernels: registered before main, so nothing here is constructed then ---

static std::map<std::string, const struct emu_kernel *> &kernels()
{
    static std::map<std::string, const struct emu_kernel *> all;
    return all;
}

// --- options ---

static std::mutex running; // one launch at a time
static uint64_t state = 1;

uint32_t random_below(uint32_t n)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1dull >> 32) * n >> 32);
}

// The same seed gives the same schedules, launch for launch.
static void seed(uint64_t seed)
{
    state = (seed + 1) * 0x9e3779b97f4a7c15ull;
    state = (state ^ state >> 31) | 1;
}

// GR_EMU=policy:seed[:preempt]
__attribute__((constructor)) static void options_from_environment()
{
    static const char *const policies[] = {"in-order", "random", "priorities"};
    const char *text = getenv("GR_EMU");
    for (int i = 0; text && i < 3; i++) {
        size_t n = strlen(policies[i]);
        if (strncmp(text, policies[i], n) || (text[n] != ':' && text[n]))
            continue;
        options.policy = (enum emu_policy)i;
        char *end = nullptr;
        if (text[n])
            options.seed = strtoull(text + n + 1, &end, 10);
        if (end && *end == ':')
            options.preempt = (uint32_t)strtoul(end + 1, nullptr, 10);
    }
    seed(options.seed);
}

// --- launches ---

static uint3 of_array(const uint32_t v[3])
{
    return {v[0], v[1], v[2]};
}

static void shape_threads()
{
    block.n_thread = block_dim.x * block_dim.y * block_dim.z;
    block.n_warp = (block.n_thread + 31) / 32;
    uint32_t i = 0;
    for (uint32_t z = 0; z < block_dim.z; z++)
        for (uint32_t y = 0; y < block_dim.y; y++)
            for (uint32_t x = 0; x < block_dim.x; x++, i++) {
                Thread &t = block.thread[i];
                t.thread = {x, y, z};
                t.warp = &block.warp[i / 32];
                t.lane = i % 32;
                t.warp->thread = &t - t.lane;
            }
}

static std::string refuse(const struct emu_kernel *k, const uint32_t grid[3],
                          const uint32_t threads[3], uint32_t smem_bytes)
{
    uint64_t n = (uint64_t)threads[0] * threads[1] * threads[2];
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    if (n == 0 || n > k->max_threads || n > max_threads || threads[0] > max_threads)
        return format("kernel %s: blocks of %u x %u x %u threads, 1 to %u are possible", k->name,
                      threads[0], threads[1], threads[2], k->max_threads);
    if (blocks == 0 || grid[0] > 0x7fffffffu || grid[1] > 65535 || grid[2] > 65535 ||
        blocks > 0xffffffffu)
        return format("kernel %s: a grid of %u x %u x %u blocks", k->name, grid[0], grid[1],
                      grid[2]);
    if (!shared_size(smem_bytes))
        return format("kernel %s: %u bytes of shared memory, %u are there", k->name, smem_bytes,
                      max_smem);
    return "";
}

// The order of blocks: their own, or a random one.
static std::vector<uint32_t> block_order(uint32_t n)
{
    std::vector<uint32_t> order;
    if (options.policy == EMU_IN_ORDER)
        return order;
    order.resize(n);
    std::iota(order.begin(), order.end(), 0u);
    for (uint32_t i = n; i > 1; i--)
        std::swap(order[i - 1], order[random_below(i)]);
    return order;
}

static void clean_up()
{
    stacks_give_all();
    for (Thread &t : block.thread) {
        t.context = nullptr;
        forget_copies(t);
    }
}

static void run_grid()
{
    uint32_t n = grid_dim.x * grid_dim.y * grid_dim.z;
    std::vector<uint32_t> order = block_order(n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = order.empty() ? i : order[i];
        block_index = {b % grid_dim.x, b / grid_dim.x % grid_dim.y, b / grid_dim.x / grid_dim.y};
        shared_poison();
        launch.in_thread = true;
        bool ended = run_block();
        launch.in_thread = false;
        if (!ended) {
            clean_up();
            return;
        }
        engine_end();
        shared_check_end();
        check_block_ends();
    }
    memory_check_ends();
}
} // namespace emu

using namespace emu;

void emu_register(const struct emu_kernel *k)
{
    kernels()[k->name] = k;
}

const struct emu_kernel *emu_find(const char *name)
{
    auto k = kernels().find(name);
    return k == kernels().end() ? nullptr : k->second;
}

void emu_set(const struct emu_options *o)
{
    std::lock_guard<std::mutex> guard(running);
    options = *o;
    seed(o->seed);
}

static uint32_t next_stream;
static bool next_early;

void emu_launch_next(uint32_t stream, int early)
{
    std::lock_guard<std::mutex> guard(running);
    next_stream = stream;
    next_early = early != 0;
}

int emu_launch(const struct emu_kernel *k, const uint32_t grid[3], const uint32_t threads[3],
               uint32_t smem_bytes, const void *args)
{
    std::lock_guard<std::mutex> guard(running);
    report_begin();
    std::string why = refuse(k, grid, threads, smem_bytes);
    if (!why.empty()) {
        report_add(why);
        return report_end();
    }
    // the block's copy: a kernel that writes its arguments does not change the caller's
    std::vector<max_align_t> copy(k->args_bytes / sizeof(max_align_t) + 9);
    void *aligned = (void *)(((uintptr_t)copy.data() + 127) & ~(uintptr_t)127);
    memcpy(aligned, args, k->args_bytes);
    launch = {k, aligned, smem_bytes, launch.number + 1, false, next_early, next_stream};
    next_early = false;
    next_stream = 0;
    grid_dim = of_array(grid);
    block_dim = of_array(threads);
    shape_threads();
    emu_open();
    check_launch();
    run_grid();
    check_launch_ends();
    emu_close();
    launch.kernel = nullptr;
    return report_end();
}
