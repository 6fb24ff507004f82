// The emulated driver: start, devices, contexts, modules, launches. Memory is in libcuda_memory.cc,
// streams and events in libcuda_stream.cc, capture and graphs in libcuda_graph.cc, what is queued
// and when it runs in libcuda_queue.cc.
#include "tests/emu/libcuda_state.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <unistd.h>

using namespace drv;

int cuInit(unsigned flags)
{
    ENTER(anytime);
    if (flags || !S.bad_options.empty())
        return c.done(CU_INVALID_VALUE);
    if (S.opt.devices == 0)
        return c.done(CU_NO_DEVICE);
    if (!S.opt.lost.empty() && access(S.opt.lost.c_str(), F_OK) == 0)
        return c.done(CU_UNKNOWN);
    S.initialized = true;
    return c.done(CU_OK);
}

int cuDriverGetVersion(int *version)
{
    ENTER(anytime);
    if (!version)
        return c.done(CU_INVALID_VALUE);
    *version = S.opt.driver;
    return c.done(CU_OK);
}

static const struct {
    int error;
    const char *name, *text;
} errors[] = {
#define ERROR(number, name, text) {number, #name, text},
#include "tests/emu/libcuda_errors.def"
#undef ERROR
};

int cuGetErrorName(int error, const char **name)
{
    ENTER(anytime);
    if (!name)
        return c.done(CU_INVALID_VALUE);
    *name = nullptr;
    for (const auto &e : errors)
        if (e.error == error)
            *name = e.name;
    return c.done(*name ? CU_OK : CU_INVALID_VALUE);
}

int cuGetErrorString(int error, const char **text)
{
    ENTER(anytime);
    if (!text)
        return c.done(CU_INVALID_VALUE);
    *text = nullptr;
    for (const auto &e : errors)
        if (e.error == error)
            *text = e.text;
    return c.done(*text ? CU_OK : CU_INVALID_VALUE);
}

// --- devices ---

static bool is_device(int d)
{
    return d >= 0 && (size_t)d < S.devices.size();
}

int cuDeviceGetCount(int *n)
{
    ENTER(initialized);
    if (!n)
        return c.done(CU_INVALID_VALUE);
    *n = (int)S.devices.size();
    return c.done(CU_OK);
}

int cuDeviceGet(cu_device *d, int i)
{
    ENTER(initialized);
    if (!d)
        return c.done(CU_INVALID_VALUE);
    if (!is_device(i))
        return c.done(INVALID_DEVICE);
    *d = i;
    return c.done(CU_OK);
}

int cuDeviceGetName(char *name, int n, cu_device d)
{
    ENTER(initialized);
    if (!name || n < 1)
        return c.done(CU_INVALID_VALUE);
    if (!is_device(d))
        return c.done(INVALID_DEVICE);
    char text[64];
    snprintf(text, sizeof text, "Emulated device, sm_%d", S.opt.cc);
    snprintf(name, (size_t)n, "%s", S.opt.name.empty() ? text : S.opt.name.c_str());
    return c.done(CU_OK);
}

int cuDeviceGetPCIBusId(char *id, int n, cu_device d)
{
    ENTER(initialized);
    if (!id || n < 13)
        return c.done(CU_INVALID_VALUE);
    if (!is_device(d))
        return c.done(INVALID_DEVICE);
    snprintf(id, (size_t)n, "0000:%02x:00.0", d + 1);
    return c.done(CU_OK);
}

int cuDeviceTotalMem_v2(size_t *bytes, cu_device d)
{
    ENTER(initialized);
    if (!bytes)
        return c.done(CU_INVALID_VALUE);
    if (!is_device(d))
        return c.done(INVALID_DEVICE);
    *bytes = S.opt.memory;
    return c.done(CU_OK);
}

// Properties of devices of a compute capability (CUDA C++ Programming Guide, "Compute
// Capabilities"; clocks and widths of A100, RTX 3090, L40S, H200, B200).
static const struct model {
    int cc, sm, smem, smem_sm, threads_sm, l2, clock_khz, memory_khz, memory_bits;
} models[] = {
    {80, 108, 163 << 10, 164 << 10, 2048, 40 << 20, 1410000, 1215000, 5120},
    {86, 82, 99 << 10, 100 << 10, 1536, 6 << 20, 1695000, 9751000, 384},
    {89, 142, 99 << 10, 100 << 10, 1536, 96 << 20, 2520000, 9001000, 384},
    {90, 132, 227 << 10, 228 << 10, 2048, 50 << 20, 1980000, 3201000, 6144},
    {100, 148, 227 << 10, 228 << 10, 2048, 126 << 20, 1965000, 3996000, 8192},
};

static struct model device_model() // the newest that is not newer
{
    struct model m = models[0];
    for (const auto &known : models)
        if (known.cc <= S.opt.cc)
            m = known;
    m.sm = S.opt.sm ? S.opt.sm : m.sm;
    m.smem = S.opt.smem ? S.opt.smem : m.smem;
    m.l2 = S.opt.l2 ? S.opt.l2 : m.l2;
    return m;
}

int cuDeviceGetAttribute(int *value, int attribute, cu_device d)
{
    ENTER(initialized);
    if (!value)
        return c.done(CU_INVALID_VALUE);
    if (!is_device(d))
        return c.done(INVALID_DEVICE);
    const struct model m = device_model();
    const int hopper = S.opt.cc >= 90;
    const struct {
        int attribute, value;
    } facts[] = {
        {1, 1024},           // threads of a block
        {2, 1024},           // its x
        {3, 1024},           // y
        {4, 64},             // z
        {5, 0x7fffffff},     // blocks of a grid, x
        {6, 65535},          // y
        {7, 65535},          // z
        {8, 48 << 10},       // shared memory of a block, not opted in
        {9, 64 << 10},       // constant memory
        {10, 32},            // warp
        {12, 65536},         // registers of a block
        {13, m.clock_khz},   // clock
        {15, 1},             // copies overlap with kernels
        {16, m.sm},          // multiprocessors
        {17, 0},             // no limit of time
        {18, 0},             // not integrated
        {19, 1},             // maps host memory
        {20, 0},             // compute mode
        {31, 1},             // concurrent kernels
        {32, 1},             // ECC
        {33, d + 1},         // PCI bus
        {34, 0},             // PCI device
        {36, m.memory_khz},  // clock of the memory
        {37, m.memory_bits}, // and its width
        {38, m.l2},          // L2
        {39, m.threads_sm},  // threads of a multiprocessor
        {40, 3},             // copy engines
        {41, 1},             // unified addresses
        {50, 0},             // PCI domain
        {75, S.opt.cc / 10}, // compute capability
        {76, S.opt.cc % 10}, //
        {78, 1},             // priorities of streams
        {81, m.smem_sm},     // shared memory of a multiprocessor
        {82, 65536},         // registers of a multiprocessor
        {95, 0},             // no cooperative launches
        {CU_ATTR_MAX_SMEM, m.smem},
        {111, 1024}, // shared memory of a block that the system takes
        {CU_ATTR_CLUSTERS, hopper && S.opt.clusters && emu_has_clusters()},
        {127, hopper}, // tensor maps
    };
    for (const auto &f : facts)
        if (f.attribute == attribute) {
            *value = f.value;
            return c.done(CU_OK);
        }
    return c.done(CU_INVALID_VALUE);
}

// --- contexts: the primary one of each device ---

int cuDevicePrimaryCtxRetain(cu_context *context_out, cu_device i)
{
    ENTER(initialized);
    if (!context_out)
        return c.done(CU_INVALID_VALUE);
    if (!is_device(i))
        return c.done(INVALID_DEVICE);
    device &d = S.devices[(size_t)i];
    if (!d.primary) {
        d.primary = std::make_shared<context>();
        d.primary->device = i;
        d.primary->legacy = std::make_shared<stream>();
        d.primary->legacy->ctx = d.primary;
        d.primary->legacy->lane = new_lane();
        uint64_t handle = 0xb1ull << 56 | ++S.contexts_made << 4;
        S.contexts[handle] = d.primary;
        d.handle = as_handle<cu_context>(handle);
    }
    d.primary->retained++;
    *context_out = d.handle;
    return c.done(CU_OK);
}

// A context that goes takes everything in it along.
static void destroy(device *d)
{
    context_ref ctx = d->primary;
    run_all();
    size_t memory, host, streams = S.streams.drop_of(ctx.get()),
                         events = S.events.drop_of(ctx.get());
    free_memory_of(ctx.get(), &memory, &host);
    size_t others =
        S.modules.drop_of(ctx.get()) + S.execs.drop_of(ctx.get()) + S.graphs.drop_of(ctx.get());
    S.functions.drop_of(ctx.get());
    if (!ctx->error && streams + events + memory + host + others)
        misuse(nullptr,
               "the context of device %d goes with %zu streams, %zu events, %zu pieces of device "
               "memory, %zu of host memory and %zu modules and graphs left in it",
               ctx->device, streams, events, memory, host, others);
    for (auto &other : S.contexts) {
        auto &reaches = other.second->reaches;
        reaches.erase(std::remove(reaches.begin(), reaches.end(), ctx.get()), reaches.end());
    }
    ctx->gone = true;
    ctx->legacy.reset();
    S.contexts.erase((uint64_t)(uintptr_t)d->handle);
    d->primary.reset();
    d->handle = nullptr;
    if (S.contexts.empty())
        forget_queue();
}

int cuDevicePrimaryCtxRelease_v2(cu_device i)
{
    ENTER(initialized | releases);
    if (!is_device(i))
        return c.done(INVALID_DEVICE);
    device &d = S.devices[(size_t)i];
    if (!d.primary) {
        misuse(nullptr, "%s: the context of device %d is released more often than retained",
               c.symbol, i);
        return c.done(INVALID_CONTEXT);
    }
    if (--d.primary->retained == 0)
        destroy(&d);
    return c.error;
}

int cuCtxSetCurrent(cu_context context)
{
    ENTER(initialized);
    if (context && !S.contexts.count((uint64_t)(uintptr_t)context)) {
        misuse(nullptr, "%s: the context is gone, or none", c.symbol);
        return c.done(INVALID_CONTEXT);
    }
    set_current_context(context);
    return c.error;
}

int cuCtxGetCurrent(cu_context *context)
{
    ENTER(initialized);
    if (!context)
        return c.done(CU_INVALID_VALUE);
    *context = as_handle<cu_context>((uint64_t)(uintptr_t)current_context());
    return c.done(CU_OK);
}

// --- access from one device to another's memory ---

int cuDeviceCanAccessPeer(int *can, cu_device d, cu_device peer)
{
    ENTER(initialized);
    if (!can)
        return c.done(CU_INVALID_VALUE);
    if (!is_device(d) || !is_device(peer))
        return c.done(INVALID_DEVICE);
    *can = S.opt.peers && d != peer;
    return c.done(CU_OK);
}

int cuCtxEnablePeerAccess(cu_context handle, unsigned flags)
{
    ENTER(current);
    auto at = S.contexts.find((uint64_t)(uintptr_t)handle);
    if (flags)
        return c.done(CU_INVALID_VALUE);
    if (at == S.contexts.end() || at->second == c.ctx) {
        misuse(c.ctx.get(), "%s: the context is gone, or the current one", c.symbol);
        return c.done(INVALID_CONTEXT);
    }
    if (!S.opt.peers)
        return c.done(PEER_ACCESS_UNSUPPORTED);
    for (const context *known : c.ctx->reaches)
        if (known == at->second.get())
            return c.done(CU_PEER_ACCESS_ALREADY_ENABLED);
    c.ctx->reaches.push_back(at->second.get());
    return c.done(CU_OK);
}

// --- modules ---

int cuModuleLoadData(cu_module *module_out, const void *image)
{
    ENTER(current);
    int error = refuse_in_capture(c);
    if (error)
        return c.done(error);
    if (!module_out || !image)
        return c.done(CU_INVALID_VALUE);
    if ((error = check_image(image)))
        return c.done(error);
    const char *why = nullptr;
    struct emu_image *opened = emu_image_open(image, S.opt.cc, &why);
    if (!opened) {
        if (why)
            misuse(c.ctx.get(), "%s: %s", c.symbol, why);
        return c.done(why ? (int)INVALID_PTX : CU_NO_BINARY_FOR_GPU);
    }
    auto m = std::make_shared<drv::module>();
    m->ctx = c.ctx;
    m->image = {opened, emu_image_close};
    *module_out = as_handle<cu_module>(S.modules.add(m));
    return c.done(CU_OK);
}

int cuModuleUnload(cu_module handle)
{
    ENTER(current | releases);
    int error = refuse_in_capture(c);
    if (error)
        return c.done(error);
    auto m = require(c, S.modules, handle);
    if (!m)
        return c.done(INVALID_HANDLE);
    for (const auto &f : m->functions) {
        op_ref o = unfinished_kernel(S.functions.find(f.second)->kernel);
        if (o)
            misuse(c.ctx.get(), "%s: kernel %s on %s is not known to be finished", c.symbol,
                   f.first.c_str(), o->where.c_str());
        S.functions.drop(f.second);
    }
    run_all();
    S.modules.drop(handle);
    return c.done(CU_OK);
}

static unsigned static_memory(const char *kernel)
{
    static const std::map<std::string, unsigned> known = {
#define STATIC(name, bytes) {#name, bytes},
#include "tests/emu/static_smem.def"
#undef STATIC
    };
    auto at = known.find(kernel);
    return at == known.end() ? 0 : at->second;
}

int cuModuleGetFunction(cu_function *function_out, cu_module handle, const char *name)
{
    ENTER(current);
    if (!function_out || !name)
        return c.done(CU_INVALID_VALUE);
    auto m = require(c, S.modules, handle);
    if (!m)
        return c.done(INVALID_HANDLE);
    auto known = m->functions.find(name);
    if (known != m->functions.end()) {
        *function_out = known->second;
        return c.done(CU_OK);
    }
    const char *why = nullptr;
    const struct emu_kernel *kernel = emu_image_find(m->image.get(), name, &why);
    if (why)
        misuse(c.ctx.get(), "%s: %s", c.symbol, why);
    if (!kernel)
        return c.done(why ? (int)INVALID_PTX : CU_NOT_FOUND);
    auto f = std::make_shared<function>();
    f->ctx = c.ctx;
    f->kernel = kernel;
    f->fixed = kernel->entry ? kernel->static_bytes : static_memory(name);
    f->max_dynamic = CU_SMEM_UNASKED - f->fixed;
    *function_out = m->functions[name] = as_handle<cu_function>(S.functions.add(f));
    return c.done(CU_OK);
}

int cuFuncGetAttribute(int *value, int attribute, cu_function handle)
{
    ENTER(current);
    auto f = require(c, S.functions, handle);
    if (!f)
        return c.done(INVALID_HANDLE);
    if (!value || attribute < 0 || attribute > CU_FUNC_MAX_DYNAMIC_SMEM)
        return c.done(CU_INVALID_VALUE);
    const int registers = (int)(65536 / f->kernel->max_threads / 8 * 8);
    const int values[] = {
        (int)f->kernel->max_threads, // threads that a block can have
        (int)f->fixed,               // static shared memory
        0,                           // constant memory
        0,                           // local memory
        registers < 255 ? registers : 255,
        S.opt.cc, // PTX version
        S.opt.cc, // binary version
        0,        // cache mode
        (int)f->max_dynamic,
    };
    *value = values[attribute];
    return c.done(CU_OK);
}

int cuFuncSetAttribute(cu_function handle, int attribute, int value)
{
    ENTER(current);
    auto f = require(c, S.functions, handle);
    if (!f)
        return c.done(INVALID_HANDLE);
    if (attribute == 9 && value >= -1 && value <= 100) // preferred carve-out: a hint
        return c.done(CU_OK);
    if (attribute != CU_FUNC_MAX_DYNAMIC_SMEM || value < 0 ||
        value > device_model().smem - (int)f->fixed)
        return c.done(CU_INVALID_VALUE);
    f->max_dynamic = (unsigned)value;
    return c.done(CU_OK);
}

// --- launches ---

static int check_shape(const call &c, const cu_launch &l, const function &f)
{
    const unsigned *g = l.grid, *b = l.block;
    const uint64_t threads = (uint64_t)b[0] * b[1] * b[2];
    if (!g[0] || !g[1] || !g[2] || g[0] > 0x7fffffff || g[1] > 65535 || g[2] > 65535) {
        misuse(c.ctx.get(), "%s: %s: a grid of %u x %u x %u blocks", c.symbol, f.kernel->name, g[0],
               g[1], g[2]);
        return CU_INVALID_VALUE;
    }
    if (!threads || b[0] > 1024 || b[1] > 1024 || b[2] > 64 || threads > f.kernel->max_threads) {
        misuse(c.ctx.get(), "%s: %s: a block of %u x %u x %u threads; its bound is %u", c.symbol,
               f.kernel->name, b[0], b[1], b[2], f.kernel->max_threads);
        return CU_INVALID_VALUE;
    }
    if (l.smem > f.max_dynamic) {
        misuse(c.ctx.get(),
               "%s: %s: %u bytes of shared memory, %u are allowed (cuFuncSetAttribute) and %d "
               "possible beside %u of the kernel's own",
               c.symbol, f.kernel->name, l.smem, f.max_dynamic, device_model().smem - (int)f.fixed,
               f.fixed);
        return CU_INVALID_VALUE;
    }
    return CU_OK;
}

// Programmatic dependent launch, clusters, cooperative launches, priorities and hints may be asked
// for.
static int check_attributes(const call &c, const cu_launch &l, const function &f)
{
    if (l.n_attribute && !l.attribute)
        return CU_INVALID_VALUE;
    for (unsigned i = 0; i < l.n_attribute; i++)
        switch (l.attribute[i].id) {
        case 2: // cooperative
        case 4: // dimensions of a cluster
            if (!f.kernel->entry) {
                misuse(c.ctx.get(), "%s: kernels compiled as C++ run one block after another",
                       c.symbol);
                return NOT_SUPPORTED;
            }
            break;
        case 0:
        case 1:
        case 3:
        case 5: // how clusters are scheduled
        case 6: // programmatic stream serialization
        case 8:
        case 14:
            break;
        default:
            misuse(c.ctx.get(), "%s: launch attribute %d is not emulated", c.symbol,
                   l.attribute[i].id);
            return NOT_SUPPORTED;
        }
    return CU_OK;
}

// The parameters as they lie in memory. A kernel compiled as C++ has one.
static std::shared_ptr<unsigned char> copy_args(const struct emu_kernel *k, void **params)
{
    auto *copy = (unsigned char *)aligned_alloc(128, (k->args_bytes + 128) / 128 * 128);
    memset(copy, 0, k->args_bytes);
    if (!k->entry)
        memcpy(copy, params[0], k->args_bytes);
    for (uint32_t i = 0; i < k->n_param; i++)
        memcpy(copy + k->param_at[i], params[i], k->param_bytes[i]);
    return std::shared_ptr<unsigned char>(copy, free);
}

// Words of the arguments that are addresses in memory of a device or of cuMemHostAlloc.
static std::vector<uintptr_t> find_pointers(const struct emu_kernel *k, const void *args)
{
    std::vector<uintptr_t> found;
    for (size_t at = 0; at + 8 <= k->args_bytes; at += 8) {
        uintptr_t p;
        memcpy(&p, (const char *)args + at, 8);
        if (find_in(S.memory, p) || find_in(S.host, p))
            found.push_back(p);
    }
    return found;
}

int cuLaunchKernelEx(const struct cu_launch *l, cu_function handle, void **params, void **extra)
{
    ENTER(current);
    auto f = require(c, S.functions, handle);
    if (!f)
        return c.done(INVALID_HANDLE);
    if (!l || extra || !params || (f->kernel->args_bytes && !params[0]))
        return c.done(CU_INVALID_VALUE);
    stream_ref s = find_stream(c, l->stream);
    if (!s)
        return c.done(INVALID_HANDLE);
    if (s->ctx != c.ctx || f->ctx != c.ctx) {
        misuse(c.ctx.get(), "%s: %s: kernel, stream and current context are not of one device",
               c.symbol, f->kernel->name);
        return c.done(INVALID_HANDLE);
    }
    int error = check_shape(c, *l, *f);
    if (!error)
        error = check_attributes(c, *l, *f);
    if (error)
        return c.done(error);
    auto w = std::make_shared<work>();
    w->kind = work::kernel;
    w->symbol = c.symbol;
    w->run = f->kernel;
    memcpy(w->shape.grid, l->grid, sizeof w->shape.grid);
    memcpy(w->shape.block, l->block, sizeof w->shape.block);
    w->shape.smem_bytes = l->smem;
    for (unsigned i = 0; i < l->n_attribute; i++) {
        const struct cu_launch_attribute &a = l->attribute[i];
        w->early |= a.id == 6 && a.value.value;
        w->shape.cooperative |= a.id == 2 && a.value.value;
        if (a.id == 4)
            memcpy(w->shape.cluster, a.value.bytes, sizeof w->shape.cluster);
    }
    w->args = copy_args(f->kernel, params);
    w->pointers = find_pointers(f->kernel, w->args.get());
    return c.done(submit(c, s, w));
}

// --- profilers ---

int cuProfilerStart(void)
{
    ENTER(current);
    return c.done(CU_OK);
}

int cuProfilerStop(void)
{
    ENTER(current);
    return c.done(CU_OK);
}
