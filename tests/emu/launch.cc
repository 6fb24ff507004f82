// Kernels and launches: the blocks of a grid, one after another.
#include <string.h>

#include <map>
#include <numeric>

#include "check.hpp"
#include "engine.hpp"

namespace emu
{
Launch launch;

// --- kernels: registered before main, so nothing here is constructed then ---

static std::map<std::string, const struct emu_kernel *> &kernels()
{
    static std::map<std::string, const struct emu_kernel *> all;
    return all;
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

static std::string refuse(const struct emu_kernel *k, const struct emu_shape &shape)
{
    const uint32_t *grid = shape.grid, *threads = shape.block;
    uint64_t n = (uint64_t)threads[0] * threads[1] * threads[2];
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    if (n == 0 || n > k->max_threads || n > max_threads || threads[0] > max_threads)
        return format("kernel %s: blocks of %u x %u x %u threads, 1 to %u are possible", k->name,
                      threads[0], threads[1], threads[2], k->max_threads);
    if (blocks == 0 || grid[0] > 0x7fffffffu || grid[1] > 65535 || grid[2] > 65535 ||
        blocks > 0xffffffffu)
        return format("kernel %s: a grid of %u x %u x %u blocks", k->name, grid[0], grid[1],
                      grid[2]);
    if (!shared_size(shape.smem_bytes))
        return format("kernel %s: %u bytes of shared memory, %u are there", k->name,
                      shape.smem_bytes, max_smem);
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
    memory_check_ends(launch.kernel->name);
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

// --- images: the name of a file of kernels, or a fatbin, which stands for all ---

struct emu_image {
    std::string file; // "kernels/NAME.cu"; "": of all files
};

// True for the targets of kernels.cmake: sm_80 and its PTX, but sm_90a alone for wgmma.
static bool has_code(const std::string &file, int cc)
{
    const bool only_90 = file.find("_sm90.cu") != std::string::npos;
    return only_90 ? cc == 90 : cc >= 80;
}

struct emu_image *emu_image_open(const void *image, int cc, const char **why)
{
    const char *text = static_cast<const char *>(image);
    const std::string file = strncmp(text, "kernels/", 8) ? "" : text;
    *why = nullptr;
    return has_code(file, cc) ? new emu_image{file} : nullptr;
}

// Finds kernels of the image's file only: a module of the driver holds the kernels of one file.
const struct emu_kernel *emu_image_find(struct emu_image *image, const char *name, const char **why)
{
    const struct emu_kernel *k = emu_find(name);
    *why = nullptr;
    const size_t n = k ? strlen(k->file) : 0, end = image->file.size();
    return n >= end && k && image->file == k->file + n - end ? k : nullptr;
}

void emu_image_close(struct emu_image *image)
{
    delete image;
}

int emu_has_clusters(void)
{
    return 0;
}

static uint32_t next_stream;
static bool next_early;

void emu_launch_next(uint32_t stream, int early)
{
    std::lock_guard<std::mutex> guard(running);
    next_stream = stream;
    next_early = early != 0;
}

int emu_launch(const struct emu_kernel *k, const struct emu_shape *shape, const void *args)
{
    const uint32_t *grid = shape->grid, *threads = shape->block;
    std::lock_guard<std::mutex> guard(running);
    report_begin();
    std::string why = refuse(k, *shape);
    if (!why.empty()) {
        report_add(why);
        return 1;
    }
    // the block's copy: a kernel that writes its arguments does not change the caller's
    std::vector<max_align_t> copy(k->args_bytes / sizeof(max_align_t) + 9);
    void *aligned = (void *)(((uintptr_t)copy.data() + 127) & ~(uintptr_t)127);
    memcpy(aligned, args, k->args_bytes);
    launch = {k, aligned, shape->smem_bytes, launch.number + 1, false, next_early, next_stream};
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
    tell_lines();
    return report_any();
}
