// Shared memory. The dynamic part is one array of which a launch sees as many pages as it asked
// for; the static part is this library's thread-local storage, where kernels' __shared__ variables
// are. Both are 0xff, which is NaN, when a block begins.
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "core.hpp"

namespace emu
{
static constexpr size_t page = 4096, top = (max_smem + page - 1) / page * page;
alignas(page) unsigned char smem_pages[page + top + page]; // the first and the last are never open

SharedMemory shared = {0, nullptr, 0};
Image image;
static size_t n_open; // bytes of the dynamic part that are accessible
static bool guarded;

extern "C" void *__tls_get_addr(size_t module_and_offset[2]);

// Notes where this library is in memory, and where its thread-local storage is for this thread.
static int find_image(struct dl_phdr_info *info, size_t, void *)
{
    uintptr_t lo = UINTPTR_MAX, hi = 0;
    const ElfW(Phdr) *tls = nullptr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &h = info->dlpi_phdr[i];
        if (h.p_type == PT_TLS)
            tls = &h;
        if (h.p_type != PT_LOAD)
            continue;
        lo = std::min(lo, (uintptr_t)(info->dlpi_addr + h.p_vaddr));
        hi = std::max(hi, (uintptr_t)(info->dlpi_addr + h.p_vaddr + h.p_memsz));
    }
    if ((uintptr_t)smem_pages < lo || (uintptr_t)smem_pages >= hi)
        return 0;
    image = {info->dlpi_addr, lo, hi, info->dlpi_name};
    if (tls) {
        size_t at[2] = {info->dlpi_tls_modid, 0};
        shared.statics = static_cast<unsigned char *>(__tls_get_addr(at));
        shared.n_static = tls->p_memsz;
    }
    return 1;
}

// At exit a leak checker reads all data of the library, earlier than destructors run.
static void open_all()
{
    mprotect(smem_pages, sizeof smem_pages, PROT_READ | PROT_WRITE);
}

bool shared_size(uint32_t dynamic_bytes)
{
    dl_iterate_phdr(find_image, nullptr);
    if (dynamic_bytes > max_smem)
        return false;
    if (!guarded) {
        mprotect(smem_pages, page, PROT_NONE);
        mprotect(smem_pages + page + top, page, PROT_NONE);
        atexit(open_all);
        guarded = true;
        n_open = top;
    }
    shared.n_dynamic = dynamic_bytes;
    size_t open = (dynamic_bytes + page - 1) / page * page;
    if (open != n_open) {
        mprotect(dynamic_smem, open, PROT_READ | PROT_WRITE);
        mprotect(dynamic_smem + open, top - open, PROT_NONE);
        n_open = open;
    }
    return true;
}

void shared_poison()
{
    memset(dynamic_smem, 0xff, n_open);
    if (shared.n_static)
        memset(shared.statics, 0xff, shared.n_static);
}

void shared_check_end()
{
    for (size_t i = shared.n_dynamic; i < n_open; i++)
        if (dynamic_smem[i] != 0xff) {
            report_add(format(
                "kernel %s, block (%u, %u, %u): shared memory was written at byte %zu of %zu",
                launch.kernel->name, block_index.x, block_index.y, block_index.z, i,
                shared.n_dynamic));
            return;
        }
}

uint32_t shared_address(const void *p, Site site)
{
    size_t at = (uintptr_t)p - (uintptr_t)dynamic_smem;
    if (at <= shared.n_dynamic)
        return dynamic_at + (uint32_t)at;
    at = (uintptr_t)p - (uintptr_t)shared.statics;
    if (at < shared.n_static)
        return static_at + (uint32_t)at;
    fail(site, "smem_u32: the address is not one of shared memory: %s", where(p).c_str());
}

unsigned char *shared_memory(uint32_t addr, uint32_t bytes, uint32_t align, const char *what,
                             Site site)
{
    if (addr & (align - 1))
        fail(site, "%s: shared address 0x%x is not aligned to %u", what, addr, align);
    size_t at = (size_t)addr - dynamic_at;
    if (at < shared.n_dynamic && bytes <= shared.n_dynamic - at)
        return dynamic_smem + at;
    at = (size_t)addr - static_at;
    if (at < shared.n_static && bytes <= shared.n_static - at)
        return shared.statics + at;
    fail(site, "%s: bytes [%zd, %zd) of the %zu bytes of dynamic shared memory", what,
         (ptrdiff_t)addr - (ptrdiff_t)dynamic_at, (ptrdiff_t)addr - (ptrdiff_t)dynamic_at + bytes,
         shared.n_dynamic);
}

std::string where_shared(const void *p)
{
    ptrdiff_t at = (ptrdiff_t)((uintptr_t)p - (uintptr_t)dynamic_smem);
    if (at >= -(ptrdiff_t)page && at < (ptrdiff_t)(top + page))
        return format("byte %td of the %zu bytes of dynamic shared memory", at, shared.n_dynamic);
    if ((uintptr_t)p - (uintptr_t)shared.statics < shared.n_static)
        return "static shared memory";
    return "";
}
} // namespace emu
