// The emulated device for kernels of PTX: the interface of emu.h.
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "grid.hpp"
#include "tests/emu/common.hpp"

namespace ptx
{
constexpr uint32_t max_shared = 227 << 10; // of a block: static, dynamic, and what aligns it
constexpr uint32_t max_cluster = 16, max_resident = 1024; // blocks

struct Kernel { // of an entry
    struct emu_kernel shown;
    std::vector<uint32_t> at, bytes;
};
} // namespace ptx

struct emu_image {
    std::unique_ptr<ptx::Module> module;
    std::map<std::string, ptx::Kernel> kernels; // those asked for
};

using namespace ptx;

static std::string last_refusal; // by emu.running

static const char *refused(const std::string &why)
{
    last_refusal = why;
    return last_refusal.c_str();
}

// --- images: one text, or several behind a line "// texts: N", each with its zero ---

// "sm_90a" of a text
static std::string target_of(const char *text)
{
    const char *at = strstr(text, "\n.target ");
    return at ? std::string(at + 9, strcspn(at + 9, ", \r\n")) : "";
}

// Ranks a text's target for a compute capability, the greatest suits best; 0: it cannot run.
static int suits(const std::string &target, int cc)
{
    const int of = target.compare(0, 3, "sm_") ? 0 : atoi(target.c_str() + 3);
    if (!target.empty() && target.back() == 'a')
        return of == cc ? 1000 : 0;
    return of <= cc ? of : 0;
}

static const char *best_text(const char *image, int cc)
{
    int n = 1;
    if (sscanf(image, "// texts: %d", &n) == 1)
        image = strchr(image, '\n') + 1;
    const char *best = nullptr;
    for (int k = 0, most = 0; k < n; k++, image += strlen(image) + 1) {
        const int fits = suits(target_of(image), cc);
        if (fits > most) {
            most = fits;
            best = image;
        }
    }
    return best;
}

struct emu_image *emu_image_open(const void *image, int cc, const char **why)
{
    std::lock_guard<std::mutex> guard(emu::running);
    const char *text = best_text(static_cast<const char *>(image), cc);
    *why = nullptr;
    if (!text)
        return nullptr;
    try {
        return new emu_image{parse(text), {}};
    } catch (const Refused &r) {
        *why = refused(r.why);
        return nullptr;
    }
}

static void show(const std::string &name, Entry &e, Kernel *k)
{
    for (const Variable &p : e.params) {
        k->at.push_back((uint32_t)p.address);
        k->bytes.push_back((uint32_t)p.bytes);
    }
    const uint32_t *t = e.max_threads;
    k->shown.name = name.c_str();
    k->shown.file = "";
    k->shown.max_threads = t[0] ? t[0] * t[1] * t[2] : 1024;
    k->shown.min_blocks = e.min_blocks ? e.min_blocks : 1;
    k->shown.args_bytes = e.param_bytes;
    k->shown.n_param = (uint32_t)k->at.size();
    k->shown.param_at = k->at.data();
    k->shown.param_bytes = k->bytes.data();
    k->shown.static_bytes = e.shared_bytes;
    k->shown.entry = &e;
}

const struct emu_kernel *emu_image_find(struct emu_image *image, const char *name, const char **why)
{
    std::lock_guard<std::mutex> guard(emu::running);
    auto known = image->kernels.find(name);
    if (known != image->kernels.end())
        return &known->second.shown;
    auto entry = image->module->entries.find(name);
    *why = nullptr;
    if (entry == image->module->entries.end())
        return nullptr;
    try {
        decode(*entry->second);
    } catch (const Refused &r) {
        *why = refused(std::string(name) + ": " + r.why);
        return nullptr;
    }
    auto made = image->kernels.emplace(name, Kernel()).first;
    show(made->first, *entry->second, &made->second);
    return &made->second.shown;
}

void emu_image_close(struct emu_image *image)
{
    std::lock_guard<std::mutex> guard(emu::running);
    delete image;
}

int emu_has_clusters(void)
{
    return 1;
}

// --- launches ---

static uint64_t n_launch;

void emu_launch_next(uint32_t, int)
{
}

int emu_watch(const void *, size_t)
{
    return 1;
}

int64_t emu_watched(int)
{
    return 0;
}

void emu::front_fault(const void *, int, void *)
{
}

static std::string refuse_shape(const struct emu_kernel &k, const Entry &e, const Shape &s)
{
    const uint32_t *b = s.block, *g = s.grid, *c = s.cluster, *need = e.max_threads;
    uint32_t dynamic_at;
    const uint32_t bytes = shared_size(e, s.dynamic_bytes, &dynamic_at);
    const uint64_t n = (uint64_t)b[0] * b[1] * b[2], n_cluster = (uint64_t)c[0] * c[1] * c[2];
    if (e.exact_threads && !std::equal(need, need + 3, b))
        return emu::format("blocks of %u x %u x %u threads, %u x %u x %u are required", b[0], b[1],
                           b[2], need[0], need[1], need[2]);
    if (n == 0 || n > k.max_threads)
        return emu::format("blocks of %u x %u x %u threads, 1 to %u are possible", b[0], b[1], b[2],
                           k.max_threads);
    if (!g[0] || !g[1] || !g[2] || g[1] > 65535 || g[2] > 65535)
        return emu::format("a grid of %u x %u x %u blocks", g[0], g[1], g[2]);
    if (n_cluster > max_cluster || g[0] % c[0] || g[1] % c[1] || g[2] % c[2])
        return emu::format("clusters of %u x %u x %u blocks in a grid of %u x %u x %u", c[0], c[1],
                           c[2], g[0], g[1], g[2]);
    if (e.cluster[0] && !std::equal(c, c + 3, e.cluster))
        return emu::format("clusters of %u x %u x %u blocks, %u x %u x %u are required", c[0], c[1],
                           c[2], e.cluster[0], e.cluster[1], e.cluster[2]);
    if (bytes > max_shared)
        return emu::format("%u bytes of shared memory (%u static, %u dynamic), %u are there", bytes,
                           e.shared_bytes, s.dynamic_bytes, max_shared);
    if (s.all_resident && (uint64_t)g[0] * g[1] * g[2] > max_resident)
        return emu::format("a cooperative launch of %u x %u x %u blocks: %u are possible", g[0],
                           g[1], g[2], max_resident);
    return "";
}

int emu_launch(const struct emu_kernel *k, const struct emu_shape *wanted, const void *args)
{
    std::lock_guard<std::mutex> guard(emu::running);
    Entry &e = *static_cast<Entry *>(k->entry);
    Shape shape = {};
    std::copy(wanted->grid, wanted->grid + 3, shape.grid);
    std::copy(wanted->block, wanted->block + 3, shape.block);
    for (int a = 0; a < 3; a++)
        shape.cluster[a] = wanted->cluster[a] ? wanted->cluster[a]
                           : e.cluster[a]     ? e.cluster[a]
                                              : 1;
    shape.dynamic_bytes = wanted->smem_bytes;
    shape.all_resident = wanted->cooperative;
    emu::report_begin();
    const std::string why = refuse_shape(*k, e, shape);
    if (!why.empty()) {
        emu::report_add(emu::format("kernel %s: ", k->name) + why);
        return 1;
    }
    memcpy(e.param_memory, args, e.param_bytes);
    emu_open();
    try {
        run_grid(e, shape, ++n_launch);
        emu::memory_check_ends(k->name);
    } catch (const Fault &f) {
        emu::report_add(f.text);
    }
    emu_close();
    return emu::report_any();
}
