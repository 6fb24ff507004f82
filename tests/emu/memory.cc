// Device memory: each allocation is mapped by itself and ends at a guard page, so that an access
// beyond it is a fault, which ends the launch with words about where. Outside launches and copies
// nothing of it is accessible; inside, an allocation is opened by the first fault on it.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <map>
#include <mutex>

#include "common.hpp"

namespace emu
{
static constexpr size_t page = 4096, align = 256;

struct Allocation {
    size_t bytes, mapped; // of the pages between two guard pages, whose end is that of the memory
    unsigned char *pages;
    bool open;
};
// By address. Never destroyed: modules with variables end as late as the process.
static auto &allocations = *new std::map<uintptr_t, Allocation>;
static std::recursive_mutex lock;
static int n_open;

// The allocation that begins at p or nearest below, or null.
static const std::pair<const uintptr_t, Allocation> *below(uintptr_t p)
{
    auto a = allocations.upper_bound(p);
    return a == allocations.begin() ? nullptr : &*--a;
}

bool memory_owns(const void *p, size_t bytes)
{
    auto a = below((uintptr_t)p);
    if (!a)
        return false;
    size_t at = (uintptr_t)p - a->first;
    return at <= a->second.bytes && bytes <= a->second.bytes - at;
}

bool memory_range(const void *p, uintptr_t *lo, uintptr_t *hi)
{
    auto a = below((uintptr_t)p);
    if (!a)
        return false;
    *lo = a->first;
    *hi = a->first + a->second.bytes;
    return (uintptr_t)p < *hi;
}

// Opens the allocation that p lies in; false when it is open, or none.
static bool open_at(const void *p)
{
    auto a = allocations.upper_bound((uintptr_t)p);
    if (a == allocations.begin())
        return false;
    Allocation &of = (--a)->second;
    if (of.open || (const unsigned char *)p >= of.pages + of.mapped)
        return false;
    of.open = true;
    return mprotect(of.pages, of.mapped, PROT_READ | PROT_WRITE) == 0;
}

static void close_all()
{
    for (auto &a : allocations)
        if (a.second.open) {
            mprotect(a.second.pages, a.second.mapped, PROT_NONE);
            a.second.open = false;
        }
}

std::string where(const void *p)
{
    uintptr_t at = (uintptr_t)p;
    auto a = below(at);
    auto b = allocations.lower_bound(at);
    size_t behind = a ? at - a->first : SIZE_MAX; // its beginning
    size_t before = b != allocations.end() ? b->first - at : SIZE_MAX;
    if (a && behind < a->second.bytes)
        return format("byte %zu of an allocation of %zu bytes", behind, a->second.bytes);
    if (a && behind - a->second.bytes <= before)
        return format("address %p, %zu bytes behind the end of an allocation of %zu bytes", p,
                      behind - a->second.bytes, a->second.bytes);
    if (before != SIZE_MAX)
        return format("address %p, %zu bytes before an allocation of %zu bytes", p, before,
                      b->second.bytes);
    return format("address %p", p);
}

void memory_check_ends(const char *kernel)
{
    for (auto &a : allocations) {
        const unsigned char *begin = (const unsigned char *)a.first;
        for (size_t i = a.second.bytes; i % align; i++)
            if (begin[i] != 0xff) {
                report_add(
                    format("kernel %s: device memory was written %zu bytes behind the end of "
                           "an allocation of %zu bytes",
                           kernel, i - a.second.bytes, a.second.bytes));
                memset((void *)(a.first + a.second.bytes), 0xff, align - a.second.bytes % align);
                break;
            }
    }
}

// --- faults ---

static struct sigaction before[2];

static void on_fault(int signal, siginfo_t *info, void *context)
{
    if (n_open && open_at(info->si_addr))
        return;
    front_fault(info->si_addr, signal, context);
    if (below((uintptr_t)info->si_addr) && memory_owns(info->si_addr, 1))
        fprintf(stderr, "the host touches device memory: %s\n", where(info->si_addr).c_str());
    sigaction(signal, &before[signal == SIGBUS], nullptr); // and the access happens again
}

static stack_t outer; // the thread's own signal stack

static void catch_faults()
{
    alignas(64) static unsigned char stack[64 << 10];
    stack_t other = {};
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    sigaltstack(&other, &outer);
    struct sigaction now = {}, old;
    now.sa_sigaction = on_fault;
    now.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&now.sa_mask);
    for (int i = 0; i < 2; i++) {
        sigaction(i ? SIGBUS : SIGSEGV, &now, &old);
        if (!(old.sa_flags & SA_SIGINFO) || old.sa_sigaction != on_fault)
            before[i] = old;
    }
}

} // namespace emu

using namespace emu;

void *emu_alloc(size_t bytes)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    size_t rounded = (bytes + align - 1) / align * align,
           mapped = (rounded + page - 1) / page * page;
    if (rounded < bytes || mapped + 2 * page < rounded)
        return nullptr;
    void *p = mmap(nullptr, mapped + 2 * page, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return nullptr;
    unsigned char *pages = static_cast<unsigned char *>(p) + page;
    mprotect(pages, mapped, PROT_READ | PROT_WRITE);
    madvise(p, mapped + 2 * page, MADV_HUGEPAGE); // a fault for 2 MiB, not for each 4 KiB
    memset(pages, 0xff, mapped);
    if (!n_open)
        mprotect(pages, mapped, PROT_NONE);
    unsigned char *begin = pages + mapped - rounded;
    allocations[(uintptr_t)begin] = {bytes, mapped, pages, n_open > 0};
    return begin;
}

void emu_free(void *p)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    auto a = allocations.find((uintptr_t)p);
    if (a == allocations.end())
        return;
    munmap(a->second.pages - page, a->second.mapped + 2 * page);
    allocations.erase(a);
}

int emu_owns(const void *p, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    return memory_owns(p, bytes);
}

void emu_open(void)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (n_open++ == 0)
        catch_faults();
}

void emu_close(void)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (--n_open == 0) {
        close_all();
        sigaltstack(&outer, nullptr);
    }
}
