// Shared parts of the core: fibers, the threads of the running block and their schedule,
// collectives, and the failure of a launch. One launch runs at a time, in one thread of the host.
// No variable here is thread_local: the thread-local storage of this library is static shared
// memory.
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

#include "common.hpp"
#include "device/thread.hpp"

namespace emu
{
// --- fiber.cc: stacks, and switching between them ---

constexpr size_t stack_bytes = 64 << 10, stack_pitch = stack_bytes + 4096; // and a guard page
constexpr int max_threads = 1024;

int stack_take();                             // one of max_threads stacks
void stack_give(int stack);                   // the caller may still run on it until it jumps away
void *stack_enter(int stack, void (*main)()); // a context that begins main there
void stacks_give_all();                       // a launch has failed
extern unsigned char *stacks;
static inline bool stack_holds(const void *p)
{
    return (uintptr_t)p - (uintptr_t)stacks < stack_pitch * max_threads;
}
int stack_of(const void *p); // the stack that p lies in (its guard page counts), or -1
// Keeps the running context in *save and goes on in `to`.
extern "C" void emu_switch(void **save, void *to) __attribute__((visibility("hidden")));

// --- block.cc: the running block ---

struct Warp;

// A cp.async that was issued and not waited for.
struct Copy {
    unsigned char *dst;
    const void *src;
    uint32_t bytes, src_bytes, group;
    Site site;
};

struct Thread : Index {
    void *context; // null before it has begun
    int stack;
    Warp *warp;
    uint32_t lane;
    const char *waits_for; // object and place of its wait; null while it runs
    Site site;
    std::vector<Copy> copies;
    uint32_t group;      // of copies, that is open
    uint64_t n_finished; // copies
};

// Something that lanes of a warp do together: each leaves its operands in column `lane` of
// warp.in and finds its results in warp.out, where `compute` has put them once all are there.
struct Together {
    const char *name;
    void (*compute)(Warp &w, uint32_t lanes);
    bool aligned; // all 32 lanes execute it, at one place
};
struct Meeting {
    const Together *what;
    uint32_t mask, arrived;
    Site site;
};

struct Warp {
    alignas(64) uint32_t in[16][32], out[8][32];
    uint32_t runnable, polling; // lanes
    uint32_t ended;             // lanes that have returned or never were
    uint32_t missing;           // lanes that never were
    Meeting meeting[32];
    int n_meeting;
    uint32_t place; // among the warps: in block.ready, and of its priority
    Thread *thread; // of lane 0
};

struct Barrier {
    uint32_t need, have; // threads
    uint32_t waiting[max_threads / 32];
    Site site;
    int sum;        // of the values that came
    int result, of; // of the last completed turn: sum and threads
};

struct Block {
    Thread thread[max_threads];
    Warp warp[max_threads / 32];
    uint32_t n_thread, n_warp, n_ended;
    Warp *order[max_threads / 32]; // by place
    uint32_t ready;                // places of warps with runnable lanes
    bool polling;                  // there are polling lanes
    Barrier barrier[16];
    uint32_t idle; // rounds in which only polling threads ran
    void *outside; // the context that launched
};
extern Block block;

static inline Thread &self()
{
    return *static_cast<Thread *>(current);
}
static inline uint32_t thread_number(const Thread &t)
{
    return (uint32_t)(&t - block.thread);
}

// A pointer as an operand of a collective: in[0] and in[1].
static inline void put_pointer(Thread &t, const void *p)
{
    t.warp->in[0][t.lane] = (uint32_t)(uintptr_t)p;
    t.warp->in[1][t.lane] = (uint32_t)((uintptr_t)p >> 32);
}
static inline unsigned char *get_pointer(const Warp &w, int lane)
{
    return reinterpret_cast<unsigned char *>((uint64_t)w.in[1][lane] << 32 | w.in[0][lane]);
}

// Runs a block of the running launch; false when it failed.
bool run_block();
// Waits until wake() names the caller.
void wait(const char *what, Site site);
void wake(Warp &w, uint32_t lanes);
// Has another thread go on when the schedule is one that varies.
void yield();
void give_way(); // whatever the schedule is
// The lanes of `mask` meet; afterwards warp.out holds the results.
void meet(const Together &what, uint32_t mask, Site site);
// Tells threads that wait for others to look again: something happened besides polling.
static inline void progress()
{
    block.idle = 0;
}

// --- async.cc: cp.async ---

void forget_copies(Thread &t); // copies that were never waited for

// --- launch.cc: the running launch ---

struct Launch {
    const struct emu_kernel *kernel; // null: none runs
    const void *args;
    uint32_t smem_bytes;
    uint64_t number; // launches so far
    bool in_thread;  // one of its threads runs
    bool early;      // it may begin before the one in front of it is over
    uint32_t stream; // in which that one is
};
extern Launch launch;

// --- report.cc: what goes wrong ---

// Ends the launch from a thread of it.
[[noreturn]] void fail(Site site, const char *form, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void fail_text(const std::string &text);
// Notes a finding that does not stop the launch; `thread` and place are said with it.
void note(Site site, const char *form, ...) __attribute__((format(printf, 2, 3)));
void tell_lines();            // a launch has ended: addresses of code in the report become lines
std::string here();           // "kernel k, block (x, y, z), thread (x, y, z)"
std::string place(Site site); // "file:line"
// Places as numbers: of a site, and of code that was called from `from`. Their text becomes
// "file:line" at the end of the launch.
uint32_t place_of(Site site);
uint32_t place_of_code(const void *from);
std::string place_text(uint32_t place);
[[noreturn]] void fail_stuck(); // no thread can go on

// --- shared.cc: shared memory, and this library in memory ---

constexpr size_t page_bytes = 4096;
constexpr size_t smem_most = (max_smem + page_bytes - 1) / page_bytes * page_bytes;
struct SharedMemory {
    size_t n_dynamic; // bytes that the launch asked for, at dynamic_smem
    unsigned char *statics;
    size_t n_static;
};
extern SharedMemory shared;

// Offset of p in shared memory, static behind dynamic; -1 when one of `bytes` is outside.
static inline int64_t shared_number(const void *p, size_t bytes)
{
    size_t at = (uintptr_t)p - (uintptr_t)dynamic_smem;
    if (at < shared.n_dynamic && bytes <= shared.n_dynamic - at)
        return (int64_t)at;
    at = (uintptr_t)p - (uintptr_t)shared.statics;
    if (at < shared.n_static && bytes <= shared.n_static - at)
        return (int64_t)(smem_most + at);
    return -1;
}
static inline bool is_smem_page(const void *p)
{
    return (uintptr_t)p - (uintptr_t)smem_pages < smem_most + 2 * page_bytes;
}

struct Image {
    uintptr_t base, lo, hi; // addresses of its file count from base
    std::string path;
};
extern Image image;
static inline bool image_holds(const void *p)
{
    return (uintptr_t)p >= image.lo && (uintptr_t)p < image.hi;
}

// Memory of [addr, addr + bytes), which `what` accesses, aligned to `align`.
unsigned char *shared_memory(uint32_t addr, uint32_t bytes, uint32_t align, const char *what,
                             Site site);
bool shared_size(uint32_t dynamic_bytes); // makes that much of it accessible; false: too much
void shared_poison();
void shared_check_end();
std::string where_shared(const void *p); // as where(), empty: not shared memory
} // namespace emu
