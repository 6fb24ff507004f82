// Faults of the host that a kernel has caused: accesses that no model has checked.
#include <signal.h>
#include <ucontext.h>

#include "core.hpp"
#include "device/kernels/ptx.cuh"

namespace emu
{
// Place of the code that caused a fault, where it can be found.
static std::string fault_place(void *context)
{
#ifdef __x86_64__
    const ucontext_t *c = static_cast<const ucontext_t *>(context);
    const void *at = (const void *)(c->uc_mcontext.gregs[REG_RIP] + 1);
    if (image_holds(at))
        return ": " + place_text(place_of_code(at));
#endif
    (void)context;
    return "";
}

static std::string fault_words(const void *p, int signal)
{
    int stack = stack_of(p);
    if (stack >= 0)
        return "the stack of a thread is full: 64 KiB of local memory";
    std::string shared = where_shared(p);
    if (!shared.empty())
        return "access out of bounds: " + shared;
    return (signal == SIGBUS ? "bad access: " : "access out of bounds: ") + where(p);
}

void front_fault(const void *p, int signal, void *context)
{
    int inside = 0;
    if (launch.kernel && stack_of(&inside) < 0 && current && launch.in_thread)
        fail_text(here() + fault_place(context) + ": " + fault_words(p, signal));
}

void check_aligned(const void *p, uint32_t bytes, const char *what, Site site)
{
    if ((uintptr_t)p & (bytes - 1))
        fail(site, "%s: %p is not aligned to %u bytes", what, p, bytes);
}
} // namespace emu
