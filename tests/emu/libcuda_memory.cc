// The emulated driver: memory of devices and of the host, copies and fills.
#include "tests/emu/libcuda_state.hpp"

#include <cinttypes>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace drv
{

const allocation *find_in(const std::map<uintptr_t, allocation> &m, uintptr_t p)
{
    auto at = m.upper_bound(p);
    if (at == m.begin())
        return nullptr;
    --at;
    return at->second.bytes.holds(p) ? &at->second : nullptr;
}

bool all_in(const std::map<uintptr_t, allocation> &m, const range &r)
{
    const allocation *a = find_in(m, r.lo);
    return a && r.hi >= r.lo && r.hi <= a->bytes.hi;
}

static bool any_in(const std::map<uintptr_t, allocation> &m, const range &r)
{
    auto at = m.upper_bound(r.hi - 1);
    return at != m.begin() && std::prev(at)->second.bytes.overlaps(r);
}

bool may_use(const context &ctx, const allocation &a)
{
    if (a.ctx->device == ctx.device)
        return true;
    for (const context *other : ctx.reaches)
        if (other == a.ctx.get())
            return true;
    return false;
}

// Freed while queued work uses it: a driver waits, or does not. Behind an error that ends a context
// none of its work runs any more.
static void check_unused(const call &c, const range &bytes)
{
    op_ref o = unfinished_user(bytes);
    if (o && !o->ctx->error)
        misuse(c.ctx.get(),
               "%s: memory at %#" PRIxPTR " is freed while %s on %s, which uses it, is not known "
               "to be finished; synchronize first",
               c.symbol, bytes.lo, o->what->run ? o->what->run->name : o->what->symbol,
               o->where.c_str());
    run_all();
}

// --- memory of a device ---

static void release_device(std::map<uintptr_t, allocation>::iterator at)
{
    S.devices[(size_t)at->second.ctx->device].used -= at->second.counted;
    emu_free((void *)at->first);
    S.memory.erase(at);
}

static size_t page(size_t bytes) // rounded up to whole pages
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + size - 1) / size * size;
}

static void release_host(std::map<uintptr_t, allocation>::iterator at)
{
    munmap((void *)at->first, at->second.counted);
    S.host.erase(at);
}

typedef std::map<uintptr_t, allocation>::iterator allocation_at;

static size_t release_of(std::map<uintptr_t, allocation> *m, const context *ctx,
                         void (*release)(allocation_at))
{
    size_t n = 0;
    for (allocation_at at = m->begin(); at != m->end();) {
        allocation_at next = std::next(at);
        if (at->second.ctx.get() == ctx) {
            release(at);
            n++;
        }
        at = next;
    }
    return n;
}

void free_memory_of(const context *ctx, size_t *n_memory, size_t *n_host)
{
    *n_memory = release_of(&S.memory, ctx, release_device);
    *n_host = release_of(&S.host, ctx, release_host);
}

int allocate(const call &c, size_t bytes, uintptr_t *p)
{
    int error = refuse_in_capture(c);
    if (error)
        return error;
    if (!bytes)
        return CU_INVALID_VALUE;
    device &d = S.devices[(size_t)c.ctx->device];
    uint64_t counted = (bytes + 511) & ~(uint64_t)511;
    if (counted < bytes || d.used + S.opt.busy + counted > S.opt.memory)
        return CU_OUT_OF_MEMORY;
    void *at = emu_alloc(bytes);
    if (!at)
        return CU_OUT_OF_MEMORY;
    d.used += counted;
    uintptr_t lo = (uintptr_t)at;
    S.memory[lo] = {c.ctx, {lo, lo + bytes}, counted};
    count_bytes(c.symbol, bytes);
    *p = lo;
    return CU_OK;
}

int release_memory(const call &c, uintptr_t p)
{
    int error = refuse_in_capture(c);
    if (error)
        return error;
    auto at = S.memory.find(p);
    if (at == S.memory.end()) {
        misuse(c.ctx.get(), "%s: %#" PRIxPTR " is not the beginning of an allocation", c.symbol, p);
        return CU_INVALID_VALUE;
    }
    check_unused(c, at->second.bytes);
    release_device(at);
    return CU_OK;
}

} // namespace drv

using namespace drv;

int cuMemGetInfo_v2(size_t *free, size_t *total)
{
    ENTER(current);
    if (!free || !total)
        return c.done(CU_INVALID_VALUE);
    uint64_t used = S.devices[(size_t)c.ctx->device].used + S.opt.busy;
    *total = S.opt.memory;
    *free = used < S.opt.memory ? S.opt.memory - used : 0;
    return c.done(CU_OK);
}

int cuMemAlloc_v2(cu_pointer *p, size_t bytes)
{
    ENTER(current);
    uintptr_t at = 0;
    int error = p ? allocate(c, bytes, &at) : CU_INVALID_VALUE;
    if (!error)
        *p = at;
    return c.done(error);
}

int cuMemFree_v2(cu_pointer p)
{
    ENTER(current | releases);
    return c.done(release_memory(c, (uintptr_t)p));
}

// Pages of their own, so that a use after cuMemFreeHost faults; contents are not zeros.
int cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    ENTER(current);
    int error = refuse_in_capture(c);
    if (error)
        return c.done(error);
    if (!p || !bytes || flags > 7 || bytes > SIZE_MAX / 2)
        return c.done(CU_INVALID_VALUE);
    size_t size = page(bytes) + page(1); // the last one stays closed
    void *at = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return c.done(CU_OUT_OF_MEMORY);
    if (mprotect(at, page(bytes), PROT_READ | PROT_WRITE)) {
        munmap(at, size);
        return c.done(CU_OUT_OF_MEMORY);
    }
    madvise(at, page(bytes), MADV_HUGEPAGE); // a fault for 2 MiB, not for each 4 KiB
    memset(at, 0xff, bytes);
    uintptr_t lo = (uintptr_t)at;
    S.host[lo] = {c.ctx, {lo, lo + bytes}, size};
    count_bytes(c.symbol, bytes);
    *p = at;
    return c.done(CU_OK);
}

int cuMemFreeHost(void *p)
{
    ENTER(current | releases);
    int error = refuse_in_capture(c);
    if (error)
        return c.done(error);
    auto at = S.host.find((uintptr_t)p);
    if (at == S.host.end()) {
        misuse(c.ctx.get(), "%s: %p is not the beginning of an allocation", c.symbol, p);
        return c.done(CU_INVALID_VALUE);
    }
    check_unused(c, at->second.bytes);
    release_host(at);
    return c.done(CU_OK);
}

// --- copies and fills ---

static int bad_range(const call &c, const char *what, const range &r)
{
    misuse(c.ctx.get(), "%s: the %s [%#" PRIxPTR ", %#" PRIxPTR ") does not lie in one allocation",
           c.symbol, what, r.lo, r.hi);
    return CU_INVALID_VALUE;
}

static bool is_host(const call &c, const range &r) // memory of the host, pinned or not
{
    bool pinned = find_in(S.host, r.lo);
    if (!any_in(S.memory, r) && (!pinned || all_in(S.host, r)))
        return true;
    misuse(c.ctx.get(), "%s: [%#" PRIxPTR ", %#" PRIxPTR ") is not memory of the host", c.symbol,
           r.lo, r.hi);
    return false;
}

static range range_of(const void *p, size_t bytes)
{
    return {(uintptr_t)p, (uintptr_t)p + bytes};
}

static std::shared_ptr<work> new_work(const call &c, enum work::kind kind)
{
    auto w = std::make_shared<work>();
    w->kind = kind;
    w->symbol = c.symbol;
    return w;
}

// Copies between pageable memory and a device cannot be captured.
static int refuse_pageable(const call &c, const stream_ref &s, const range &host)
{
    if (!s->cap || all_in(S.host, host))
        return CU_OK;
    misuse(c.ctx.get(), "%s: memory of cuMemHostAlloc is needed in a captured copy", c.symbol);
    return refuse_capturing(s);
}

// Pinned memory is read when the copy runs, pageable memory now.
int cuMemcpyHtoDAsync_v2(cu_pointer dst, const void *src, size_t bytes, cu_stream stream)
{
    ENTER(current);
    stream_ref s = find_stream(c, stream);
    if (!s)
        return c.done(INVALID_HANDLE);
    if (!bytes)
        return c.done(CU_OK);
    auto w = new_work(c, work::copy);
    w->dst = range_of((void *)(uintptr_t)dst, bytes);
    range from = range_of(src, bytes);
    if (!all_in(S.memory, w->dst))
        return c.done(bad_range(c, "destination", w->dst));
    if (!src || !is_host(c, from))
        return c.done(CU_INVALID_VALUE);
    int error = refuse_pageable(c, s, from);
    if (error)
        return c.done(error);
    w->pinned_src = all_in(S.host, from);
    if (w->pinned_src)
        w->src = from;
    else
        w->staged = std::make_shared<std::vector<unsigned char>>(
            (const unsigned char *)src, (const unsigned char *)src + bytes);
    return c.done(submit(c, s, w));
}

// To pageable memory: done before the call returns.
int cuMemcpyDtoHAsync_v2(void *dst, cu_pointer src, size_t bytes, cu_stream stream)
{
    ENTER(current);
    stream_ref s = find_stream(c, stream);
    if (!s)
        return c.done(INVALID_HANDLE);
    if (!bytes)
        return c.done(CU_OK);
    auto w = new_work(c, work::copy);
    w->dst = range_of(dst, bytes);
    w->src = range_of((void *)(uintptr_t)src, bytes);
    w->host_dst = true;
    if (!all_in(S.memory, w->src))
        return c.done(bad_range(c, "source", w->src));
    if (!dst || !is_host(c, w->dst))
        return c.done(CU_INVALID_VALUE);
    int error = refuse_pageable(c, s, w->dst);
    if (!error)
        error = submit(c, s, w);
    if (!error && !s->cap && !all_in(S.host, w->dst))
        run_until(s->last);
    return c.done(error);
}

// From device memory to device memory, of the contexts that were said.
static int copy_between(const call &c, const range &dst, const range &src, cu_stream stream,
                        const context *of_dst, const context *of_src)
{
    stream_ref s = find_stream(c, stream);
    if (!s)
        return INVALID_HANDLE;
    if (dst.lo == dst.hi)
        return CU_OK;
    if (!all_in(S.memory, dst))
        return bad_range(c, "destination", dst);
    if (!all_in(S.memory, src))
        return bad_range(c, "source", src);
    const allocation *to = find_in(S.memory, dst.lo), *from = find_in(S.memory, src.lo);
    if (of_dst && (to->ctx.get() != of_dst || from->ctx.get() != of_src)) {
        misuse(c.ctx.get(),
               "%s: from memory of device %d to memory of device %d: the contexts say "
               "%d and %d",
               c.symbol, from->ctx->device, to->ctx->device, of_src->device, of_dst->device);
        return CU_INVALID_VALUE;
    }
    if (dst.overlaps(src))
        misuse(c.ctx.get(), "%s: source and destination overlap: what arrives is undefined",
               c.symbol);
    auto w = new_work(c, work::copy);
    w->dst = dst;
    w->src = src;
    return submit(c, s, w);
}

int cuMemcpyDtoDAsync_v2(cu_pointer dst, cu_pointer src, size_t bytes, cu_stream stream)
{
    ENTER(current);
    return c.done(copy_between(c, range_of((void *)(uintptr_t)dst, bytes),
                               range_of((void *)(uintptr_t)src, bytes), stream, nullptr, nullptr));
}

// Needs no access between the devices: the driver stages it where there is none.
int cuMemcpyPeerAsync(cu_pointer dst, cu_context dst_context, cu_pointer src,
                      cu_context src_context, size_t bytes, cu_stream stream)
{
    ENTER(current);
    auto to = S.contexts.find((uint64_t)(uintptr_t)dst_context),
         from = S.contexts.find((uint64_t)(uintptr_t)src_context);
    if (to == S.contexts.end() || from == S.contexts.end()) {
        misuse(c.ctx.get(), "%s: a context is gone, or none", c.symbol);
        return c.done(INVALID_CONTEXT);
    }
    return c.done(copy_between(c, range_of((void *)(uintptr_t)dst, bytes),
                               range_of((void *)(uintptr_t)src, bytes), stream, to->second.get(),
                               from->second.get()));
}

int cuMemsetD8Async(cu_pointer dst, unsigned char value, size_t bytes, cu_stream stream)
{
    ENTER(current);
    stream_ref s = find_stream(c, stream);
    if (!s)
        return c.done(INVALID_HANDLE);
    if (!bytes)
        return c.done(CU_OK);
    auto w = new_work(c, work::fill);
    w->dst = range_of((void *)(uintptr_t)dst, bytes);
    w->value = value;
    if (!all_in(S.memory, w->dst))
        return c.done(bad_range(c, "destination", w->dst));
    return c.done(submit(c, s, w));
}
