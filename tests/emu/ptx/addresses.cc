// State spaces: from an address of the device to one of the host, with its checks.
#include <unordered_map>

#include "grid.hpp"
#include "tests/emu/common.hpp"

namespace ptx
{
// --- ld.global.nc: memory that it reads is not written by the launch ---

namespace
{
enum : unsigned char { WRITTEN = 1, READ_CONSTANT = 2 };
constexpr uint64_t page_bytes = 64 << 10;
using Page = std::vector<unsigned char>; // a byte for 4 of memory
std::unordered_map<uint64_t, Page> pages;
uint64_t last_number = ~0ull;
Page *last_page;
} // namespace

void forget_constant_reads()
{
    pages.clear();
    last_number = ~0ull;
}

static void mark_constant(const Warp &w, const Inst &i, uint64_t addr, uint32_t bytes,
                          uint32_t lane, bool write)
{
    for (uint64_t at = addr & ~3ull; at < addr + bytes; at += 4) {
        if (at / page_bytes != last_number) {
            last_number = at / page_bytes;
            last_page = &pages[last_number];
            last_page->resize(page_bytes / 4);
        }
        unsigned char &flags = (*last_page)[at % page_bytes / 4];
        if (flags & (write ? READ_CONSTANT : WRITTEN))
            fault(w, i, 1u << lane, "%s memory that the launch also %s: address 0x%llx",
                  write ? "writes" : "ld.global.nc of", write ? "reads by ld.global.nc" : "writes",
                  (unsigned long long)addr);
        flags |= write ? WRITTEN : READ_CONSTANT;
    }
}

// --- spaces ---

static const char *name_of(Space space)
{
    static const char *const names[] = {"generic", "global", "shared", "local", "param", "const"};
    return names[(size_t)space];
}

// The space that a generic address lies in, and the address there.
static Space resolve(const Warp &w, uint64_t *addr)
{
    const Entry &e = *w.block->grid->entry;
    if (*addr >> 60 == shared_window >> 60) {
        *addr -= shared_window;
        return Space::shared;
    }
    if (*addr >> 60 == local_window >> 60) {
        *addr -= local_window;
        return Space::local;
    }
    if (*addr - (uint64_t)(uintptr_t)e.param_memory < e.param_bytes)
        return Space::param;
    return Space::global;
}

SharedPlace reach_shared(Warp &w, const Inst &i, uint64_t addr, uint32_t bytes, uint32_t align,
                         uint32_t lane)
{
    const Grid &g = *w.block->grid;
    const uint32_t owner = (uint32_t)(addr >> cluster_shift); // 0: the warp's own block
    const uint64_t offset = (addr & ((1u << cluster_shift) - 1)) - shared_at;
    if (addr & (align - 1))
        fault(w, i, 1u << lane, "shared address 0x%llx is not aligned to %u bytes",
              (unsigned long long)addr, align);
    if (addr >> 32 || offset >= g.shared_bytes || bytes > g.shared_bytes - offset)
        fault(w, i, 1u << lane, "shared address 0x%llx, %u bytes: the block has 0x%x .. 0x%x",
              (unsigned long long)addr, bytes, shared_at, shared_at + g.shared_bytes);
    if (!owner)
        return {w.block, (uint32_t)offset};
    for (Block *b : g.resident)
        if (b->cluster == w.block->cluster && b->rank == owner - 1)
            return {b, (uint32_t)offset};
    fault(w, i, 1u << lane, "shared address 0x%llx of block %u of the cluster, which is not there",
          (unsigned long long)addr, owner - 1);
}

static unsigned char *reach_global(Warp &w, const Inst &i, uint64_t addr, uint32_t bytes,
                                   uint32_t lane, Access how)
{
    static uintptr_t lo, hi; // of the allocation used last
    static uint64_t of_launch = ~0ull;
    const Grid &g = *w.block->grid;
    if (of_launch != g.number || addr < lo || addr >= hi) {
        of_launch = g.number;
        if (!emu::memory_range((const void *)(uintptr_t)addr, &lo, &hi))
            lo = hi = 0;
    }
    if (addr < lo || addr >= hi || bytes > hi - addr)
        fault(w, i, 1u << lane, "%u bytes at %s: out of bounds", bytes,
              emu::where((const void *)(uintptr_t)addr).c_str());
    if (g.entry->constant_reads && how != Access::read)
        mark_constant(w, i, addr, bytes, lane, how == Access::write);
    return reinterpret_cast<unsigned char *>((uintptr_t)addr);
}

unsigned char *reach(Warp &w, const Inst &i, Space space, uint64_t addr, uint32_t bytes,
                     uint32_t align, uint32_t lane, Access how)
{
    const Entry &e = *w.block->grid->entry;
    if (space == Space::generic)
        space = resolve(w, &addr);
    if (addr & (align - 1))
        fault(w, i, 1u << lane, "%s address 0x%llx is not aligned to %u bytes", name_of(space),
              (unsigned long long)addr, align);
    switch (space) {
    case Space::shared: {
        const SharedPlace p = reach_shared(w, i, addr, bytes, align, lane);
        touch_shared(w, i, p, bytes, lane, how == Access::write);
        return p.block->shared.data() + p.offset;
    }
    case Space::local:
        if (addr >= e.local_bytes || bytes > e.local_bytes - addr)
            fault(w, i, 1u << lane, "local address 0x%llx, %u bytes: a thread has %u",
                  (unsigned long long)addr, bytes, e.local_bytes);
        return w.local + (size_t)lane * e.local_bytes + addr;
    case Space::param: {
        const uint64_t at = addr - (uint64_t)(uintptr_t)e.param_memory;
        if (at >= e.param_bytes || bytes > e.param_bytes - at)
            fault(w, i, 1u << lane, "byte %lld of %u bytes of parameters, %u bytes", (long long)at,
                  e.param_bytes, bytes);
        if (how == Access::write)
            fault(w, i, 1u << lane, "a store to the parameters");
        return e.param_memory + at;
    }
    default:
        return reach_global(w, i, addr, bytes, lane, how);
    }
}
} // namespace ptx
