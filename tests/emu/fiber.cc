// Stacks for the threads of a block, and the switch between them: 16 instructions on x86-64,
// ucontext elsewhere. Tops of stacks are spread over a page, otherwise all of them meet in the
// same few sets of the cache (measured: 35 ns a switch instead of 9 with 1,024 threads).
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT // also for trying it out
#endif
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif

#include "core.hpp"

namespace emu
{
static constexpr size_t pitch = stack_pitch, guard_bytes = pitch - stack_bytes;
unsigned char *stacks;
static int given[max_threads], n_given, n_made;

int stack_take()
{
    if (n_given)
        return given[--n_given];
    if (!stacks) {
        void *p = mmap(nullptr, pitch * max_threads, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            fail_text("the emulated device has no memory for stacks");
        stacks = static_cast<unsigned char *>(p);
    }
    mprotect(stacks + n_made * pitch, guard_bytes, PROT_NONE);
    return n_made++;
}

void stack_give(int stack)
{
    given[n_given++] = stack;
}

void stacks_give_all()
{
    for (n_given = 0; n_given < n_made; n_given++)
        given[n_given] = n_given;
}

int stack_of(const void *p)
{
    size_t at = (size_t)((uintptr_t)p - (uintptr_t)stacks);
    return stacks && at < pitch * (size_t)n_made ? (int)(at / pitch) : -1;
}

#ifndef EMU_UCONTEXT
__asm__(".text\n"
        ".globl emu_switch\n"
        ".hidden emu_switch\n"
        ".type emu_switch, @function\n"
        "emu_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size emu_switch, . - emu_switch\n");

void *stack_enter(int stack, void (*main)())
{
    unsigned char *top = stacks + ((size_t)stack + 1) * pitch - (size_t)stack * 320 % 4096;
    void **sp = reinterpret_cast<void **>((uintptr_t)top & ~(uintptr_t)63);
    *--sp = nullptr; // where main would return to
    *--sp = reinterpret_cast<void *>(main);
    for (int i = 0; i < 6; i++)
        *--sp = nullptr;
    return sp;
}
#else
static ucontext_t outside, of_stack[max_threads];
static ucontext_t *running = &outside;

extern "C" void emu_switch(void **save, void *to)
{
    ucontext_t *from = running;
    *save = from;
    running = static_cast<ucontext_t *>(to);
    swapcontext(from, running);
}

void *stack_enter(int stack, void (*main)())
{
    ucontext_t *c = &of_stack[stack];
    getcontext(c);
    c->uc_stack.ss_sp = stacks + (size_t)stack * pitch + guard_bytes;
    c->uc_stack.ss_size = stack_bytes - (size_t)stack * 320 % 4096;
    c->uc_link = nullptr;
    makecontext(c, main, 0);
    return c;
}
#endif
} // namespace emu
