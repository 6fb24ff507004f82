// The checker (check.hpp): every load and store of kernels that were compiled for it.
#include "check.hpp"
#include "check_blocks.hpp"

#if EMU_CHECK
#include <string.h>

#include <set>
#include <utility>

#include "device/kernels/ptx.cuh"
#include "engine.hpp"

namespace emu
{
// One access to a word of shared memory. `mask`: its bytes.
struct Access {
    uint32_t era, clock, place;
    uint16_t thread;
    uint8_t mask, kind;
};
enum : uint8_t { atomic_kind = 1, async_kind = 2 };

// Record of a word: the last write, and some reads.
struct Word {
    Access write, read[3];
};
// An asynchronous copy that is writing a word: its block, and the place of its call.
struct Flight {
    uint64_t block;
    uint32_t place;
};

static std::vector<Word> words;
static std::vector<Flight> flights;
static Clock known[max_threads];     // events of the others that each thread knows
static uint32_t own[max_threads];    // its own clock
static uint32_t fenced[max_threads]; // and that of its last proxy fence
static bool waited[max_threads];     // for the launch in front
static uint32_t waited_era;          // the first that did; 0: none
static Clock of_barrier[16];
static uint32_t era;
static uint64_t n_block;
static uint32_t left;                  // accesses until the next preemption
static uintptr_t global_lo, global_hi; // the allocation that was accessed last
static std::set<std::pair<uint32_t, uint32_t>> said;

// --- clocks ---

static void renew(Clock &c)
{
    if (c.era != era) {
        memset(c.of, 0, block.n_thread * sizeof c.of[0]);
        c.era = era;
    }
}

static void join(Clock &to, const Clock &from)
{
    if (from.era != era)
        return; // all of it is known
    renew(to);
    for (uint32_t i = 0; i < block.n_thread; i++)
        to.of[i] = from.of[i] > to.of[i] ? from.of[i] : to.of[i];
}

void check_release(const Thread &t, Clock &c)
{
    uint32_t n = thread_number(t);
    renew(c);
    join(c, known[n]);
    c.of[n] = own[n]++;
}

void check_acquire(const Thread &t, const Clock &c)
{
    join(known[thread_number(t)], c);
}

void check_arrive(const Barrier &b, const Thread &t)
{
    if (&b != block.barrier)
        check_release(t, of_barrier[&b - block.barrier]);
}

void check_complete(const Barrier &b)
{
    if (&b == block.barrier) {
        era++;
        return;
    }
    Clock &c = of_barrier[&b - block.barrier];
    for (uint32_t w = 0; w < block.n_warp; w++)
        for (uint32_t set = b.waiting[w]; set; set &= set - 1)
            check_acquire(block.thread[w * 32 + (uint32_t)__builtin_ctz(set)], c);
    c.era = 0;
}

void check_together(const Warp &w, uint32_t lanes)
{
    static Clock all;
    all.era = 0;
    for (uint32_t set = lanes; set; set &= set - 1)
        check_release(w.thread[__builtin_ctz(set)], all);
    for (uint32_t set = lanes; set; set &= set - 1)
        check_acquire(w.thread[__builtin_ctz(set)], all);
}

void check_waited(const Warp &w)
{
    uint32_t first = thread_number(w.thread[0]), now = own[first]++;
    for (uint32_t n = first; n < first + 32; n++) {
        renew(known[n]);
        known[n].of[first] = now;
    }
}

static bool before(const Access &a, uint32_t thread)
{
    return a.era != era || a.thread == thread ||
           (known[thread].era == era && known[thread].of[a.thread] >= a.clock);
}

// --- what is said ---

static std::string said_of(uint32_t thread)
{
    uint3 t = block.thread[thread].thread;
    return format("thread (%u, %u, %u)", t.x, t.y, t.z);
}

static void say(uint32_t place, uint32_t other, const std::string &text)
{
    if (said.insert({place, other}).second)
        report_add(here() + ": " + place_text(place) + ": " + text);
}

// A store over another one that it races with: wrong when it changes what is there, as will be
// seen as soon as it has happened, that is, when anything else does. Lanes that all write the same
// are a custom of kernels, and right.
static struct Overwrite {
    const void *p;
    size_t bytes; // 0: there is none
    unsigned char before[16];
    uint32_t place, other;
    std::string text;
} overwrite;
static const void *storing; // the access at hand, when it is a store of the kernel's own code
static size_t n_storing;

static void settle_overwrite()
{
    size_t bytes = overwrite.bytes;
    overwrite.bytes = 0;
    if (bytes && memcmp(overwrite.p, overwrite.before, bytes) &&
        said.insert({overwrite.place, overwrite.other}).second)
        report_add(overwrite.text);
}

static void say_unless_same(uint32_t place, uint32_t other, const std::string &text)
{
    if (!n_storing || n_storing > sizeof overwrite.before) {
        say(place, other, text);
        return;
    }
    overwrite.p = storing;
    overwrite.bytes = n_storing;
    memcpy(overwrite.before, storing, n_storing);
    overwrite.place = place;
    overwrite.other = other;
    overwrite.text = here() + ": " + place_text(place) + ": " + text;
}

void check_launch()
{
    words.resize((smem_most + shared.n_static) / 4 + 1);
    flights.resize(words.size());
    global_lo = global_hi = 0;
    left = options.preempt ? 1 + random_below(2 * options.preempt) : 0;
    said.clear();
    overwrite.bytes = 0;
    blocks_launch();
}

void check_launch_ends()
{
    blocks_launch_ends();
}

// Waiting for a launch that has waited itself means waiting for all in front of it: so every block
// waits.
void check_block_ends()
{
    settle_overwrite();
    if (launch.early && !waited_era && said.insert({0, 0}).second)
        report_add(format("kernel %s: %s ends without griddep_wait", launch.kernel->name,
                          block_text(0).c_str()));
}

void check_block()
{
    era++;
    n_block++;
    blocks_begin();
    traffic_block();
    waited_era = 0;
    for (uint32_t i = 0; i < block.n_thread; i++) {
        own[i]++;
        fenced[i] = own[i];
        waited[i] = !launch.early;
    }
}

// All of the block knows when one of its threads has waited and a barrier came since.
static bool has_waited(uint32_t thread)
{
    return waited[thread] || (waited_era && waited_era != era);
}

void check_launch_before(const Thread &t)
{
    waited[thread_number(t)] = true;
    if (!waited_era)
        waited_era = era;
}

void check_launch_behind(const Thread &t)
{
    blocks_next_begins(has_waited(thread_number(t)));
}

// --- shared memory ---

static void say_race(const void *p, bool write, const Access &a, bool wrote, uint32_t place)
{
    (write && wrote ? say_unless_same : say)(
        place, a.place,
        format("race: %s what %s has %s at %s without a barrier between: %s",
               write ? "writes" : "reads", said_of(a.thread).c_str(), wrote ? "written" : "read",
               place_text(a.place).c_str(), where_shared(p).c_str()));
}

static bool conflict(const Access &a, const Access &now)
{
    return (a.mask & now.mask) && !before(a, now.thread) && !(a.kind & now.kind & atomic_kind);
}

static void remember_read(Word &w, const Access &now)
{
    Access *oldest = nullptr;
    for (Access &r : w.read) {
        if (r.thread == now.thread || r.era != era) {
            r = now;
            return;
        }
        if (before(r, now.thread))
            oldest = &r;
    }
    *(oldest ? oldest : &w.read[random_below(3)]) = now;
}

static void access_word(Word &w, const void *p, const Access &now, bool write)
{
    if (conflict(w.write, now))
        say_race(p, write, w.write, true, now.place);
    if (!write) {
        remember_read(w, now);
        return;
    }
    for (const Access &r : w.read)
        if (conflict(r, now))
            say_race(p, true, r, false, now.place);
    w.write = now;
}

// Reports a write to bytes that background work may still be reading.
static void store_beside(size_t at, size_t bytes, uint32_t place)
{
    const char *what;
    Site reader;
    if (at < smem_most &&
        stored_while_held(dynamic_at + (uint32_t)at, (uint32_t)bytes, &what, &reader))
        say(place, place_of(reader),
            format("writes what the %s of %s reads: it has not been waited for", what,
                   emu::place(reader).c_str()));
}

// `at`: number of the first byte within shared memory.
static void access_shared(uint32_t thread, const void *p, size_t at, size_t bytes, bool write,
                          uint8_t kind, uint32_t place)
{
    Access now = {era, own[thread], place, (uint16_t)thread, 15, kind};
    if (write && engine_used && kind != async_kind)
        store_beside(at, bytes, place);
    for (size_t i = at / 4; i * 4 < at + bytes; i++) {
        if (flights[i].block == n_block)
            say(place, flights[i].place,
                format("%s the destination of an asynchronous copy still in flight (issued at %s)",
                       write ? "writes" : "reads", place_text(flights[i].place).c_str()));
        size_t lo = at > i * 4 ? at - i * 4 : 0,
               hi = at + bytes - i * 4 < 4 ? at + bytes - i * 4 : 4;
        now.mask = (uint8_t)((15u << lo) & (15u >> (4 - hi)));
        access_word(words[i], p, now, write);
    }
}

// --- all memory ---

[[noreturn]] static void outside(const void *p, size_t bytes, bool write, uint32_t place)
{
    std::string at = where_shared(p);
    fail_text(here() + ": " + place_text(place) +
              format(": %s %zu bytes out of bounds: ", write ? "writes" : "reads", bytes) +
              (at.empty() ? where(p) : at));
}

// A switch to another thread, now and then.
static void preempt()
{
    if (left && --left == 0) {
        left = 1 + random_below(2 * options.preempt);
        give_way();
    }
}

// Checks an access to the allocation that was accessed last.
static void access_global(uint32_t thread, const void *p, size_t bytes, bool write, uint8_t kind,
                          uint32_t place)
{
    Other other;
    traffic_note(p, bytes, write);
    if (!blocks_conflict(global_lo, global_hi, p, bytes, write, kind == atomic_kind, place,
                         !has_waited(thread), &other))
        return;
    const char *does = write ? "writes" : "reads", *did = other.wrote ? "written" : "read";
    const std::string there = place_text(other.place);
    if (other.before)
        say(place, other.place,
            format("%s what a launch in front has %s at %s, and no griddep_wait came before: ",
                   does, did, there.c_str()) +
                where(p));
    else
        (write ? say_unless_same : say)(place, other.place,
                                        format("race between blocks: %s what %s has %s at %s: %s",
                                               does, block_text(other.block).c_str(), did,
                                               there.c_str(), where(p).c_str()));
}

static inline void access(uint32_t thread, const void *p, size_t bytes, bool write, uint8_t kind,
                          uint32_t place)
{
    int64_t at = shared_number(p, bytes);
    if (at >= 0) {
        access_shared(thread, p, (size_t)at, bytes, write, kind, place);
        return;
    }
    uintptr_t lo = (uintptr_t)p, hi = lo + bytes;
    if ((lo >= global_lo && hi <= global_hi) ||
        (memory_range(p, &global_lo, &global_hi) && lo >= global_lo && hi <= global_hi)) {
        access_global(thread, p, bytes, write, kind, place);
        return;
    }
    global_lo = global_hi = 0;
    if (is_smem_page(p) ||
        (!image_holds(p) && lo - (uintptr_t)launch.args >= launch.kernel->args_bytes))
        outside(p, bytes, write, place);
}

void check_access(const Thread &t, const void *p, size_t bytes, bool write, Site site)
{
    access(thread_number(t), p, bytes, write, 0, place_of(site));
}

void check_copy_begins(const Thread &t, const void *p, size_t bytes, Site site)
{
    uint32_t place = place_of(site);
    access(thread_number(t), p, bytes, true, async_kind, place);
    int64_t at = shared_number(p, bytes);
    for (size_t i = (size_t)at / 4; at >= 0 && i < ((size_t)at + bytes) / 4; i++)
        flights[i] = {n_block, place};
}

void check_copy_ends(const Thread &t, const void *p, size_t bytes, Site site)
{
    int64_t at = shared_number(p, bytes);
    for (size_t i = (size_t)at / 4; at >= 0 && i < ((size_t)at + bytes) / 4; i++)
        flights[i].block = 0;
    access(thread_number(t), p, bytes, true, async_kind, place_of(site));
}

void check_copy_ends(const Thread &t, const void *p, size_t bytes, Site site, Clock &c)
{
    uint32_t n = thread_number(t);
    own[n]++;
    check_copy_ends(t, p, bytes, site);
    renew(c);
    c.of[n] = own[n]++;
}

void check_proxy_fence(const Thread &t)
{
    fenced[thread_number(t)] = ++own[thread_number(t)];
}

void check_proxy_read(const Thread &t, const void *p, size_t bytes, Site site)
{
    uint32_t place = place_of(site);
    access(thread_number(t), p, bytes, false, async_kind, place);
    int64_t at = shared_number(p, bytes);
    for (size_t i = (size_t)at / 4; at >= 0 && i < ((size_t)at + bytes) / 4; i++) {
        const Access &a = words[i].write;
        if (a.mask && !(a.kind & async_kind) && a.clock >= fenced[a.thread])
            say(place, a.place,
                format("reads by the asynchronous proxy what %s has written at %s without "
                       "fence_proxy_async behind it",
                       said_of(a.thread).c_str(), place_text(a.place).c_str()));
    }
}

// --- what the compiler calls ---

// Local memory is a thread's own; accumulators of wgmma are not until they have been waited for.
static inline void access_local(const void *p, bool write, uint32_t place)
{
    Site product;
    if (wgmma_in_flight && wgmma_holds(p, &product))
        say(place, place_of(product),
            format("%s accumulators of the wgmma of %s before wgmma_wait",
                   write ? "writes" : "reads", emu::place(product).c_str()));
}

static inline void called(const void *p, size_t bytes, bool write, uint8_t kind, void *from)
{
    if (!launch.in_thread)
        return;
    if (stack_holds(p)) {
        access_local(p, write, place_of_code(from));
        return;
    }
    settle_overwrite();
    preempt();
    storing = p;
    n_storing = write && kind != atomic_kind ? bytes : 0;
    access(thread_number(self()), p, bytes, write, kind, place_of_code(from));
    n_storing = 0;
}

static void called_atomic(const void *p, size_t bytes, int order, bool reads, bool writes,
                          void *from)
{
    called(p, bytes, writes, atomic_kind, from);
    if (launch.in_thread && !stack_holds(p) && shared_number(p, bytes) < 0)
        blocks_atomic(p, order, reads, writes);
}
} // namespace emu

using namespace emu;

#define CALLED(write, bytes, kind) called(p, bytes, write, kind, __builtin_return_address(0))
#define PLAIN(n)                                                                                   \
    extern "C" void __tsan_read##n(void *p)                                                        \
    {                                                                                              \
        CALLED(false, n, 0);                                                                       \
    }                                                                                              \
    extern "C" void __tsan_write##n(void *p)                                                       \
    {                                                                                              \
        CALLED(true, n, 0);                                                                        \
    }                                                                                              \
    extern "C" void __tsan_unaligned_read##n(void *p)                                              \
    {                                                                                              \
        CALLED(false, n, 0);                                                                       \
    }                                                                                              \
    extern "C" void __tsan_unaligned_write##n(void *p)                                             \
    {                                                                                              \
        CALLED(true, n, 0);                                                                        \
    }                                                                                              \
    extern "C" void __tsan_volatile_read##n(void *p)                                               \
    {                                                                                              \
        CALLED(false, n, 0);                                                                       \
    }                                                                                              \
    extern "C" void __tsan_volatile_write##n(void *p)                                              \
    {                                                                                              \
        CALLED(true, n, 0);                                                                        \
    }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
extern "C" void __tsan_read_range(void *p, size_t bytes)
{
    CALLED(false, bytes, 0);
}
extern "C" void __tsan_write_range(void *p, size_t bytes)
{
    CALLED(true, bytes, 0);
}
// Argument of the call of -fsanitize=alignment for an address that the type of an access does not
// allow: a GPU refuses it, this machine does not. The layout is the sanitizer's.
struct mismatch {
    const char *file;
    uint32_t line, column;
    const void *type;
    unsigned char log_align, kind;
};
extern "C" void __ubsan_handle_type_mismatch_v1(const mismatch *m, uintptr_t p)
{
    if (launch.in_thread)
        check_aligned((const void *)p, 1u << m->log_align, m->kind == 1 ? "writes" : "reads",
                      {m->file, (int)m->line});
}
extern "C" void __tsan_init()
{
}
extern "C" void __tsan_func_entry(void *)
{
}
extern "C" void __tsan_func_exit()
{
}
extern "C" void __tsan_atomic_thread_fence(int order) // as builtins.hpp has __threadfence
{
    if (order == __ATOMIC_SEQ_CST)
        blocks_fence();
}

#define ATOMIC(reads, writes)                                                                      \
    called_atomic(p, sizeof *p, order, reads, writes, __builtin_return_address(0))
#define UPDATE(bits, T, name, expression)                                                          \
    extern "C" T __tsan_atomic##bits##_##name(T *p, T v, int order)                                \
    {                                                                                              \
        ATOMIC(true, true);                                                                        \
        T old = *p;                                                                                \
        *p = expression;                                                                           \
        return old;                                                                                \
    }
#define ATOMICS(bits, T)                                                                           \
    UPDATE(bits, T, exchange, v)                                                                   \
    UPDATE(bits, T, fetch_add, old + v)                                                            \
    UPDATE(bits, T, fetch_sub, old - v)                                                            \
    UPDATE(bits, T, fetch_and, old &v)                                                             \
    UPDATE(bits, T, fetch_or, old | v)                                                             \
    UPDATE(bits, T, fetch_xor, old ^ v)                                                            \
    extern "C" T __tsan_atomic##bits##_load(const T *p, int order)                                 \
    {                                                                                              \
        ATOMIC(true, false);                                                                       \
        return *p;                                                                                 \
    }                                                                                              \
    extern "C" void __tsan_atomic##bits##_store(T *p, T v, int order)                              \
    {                                                                                              \
        ATOMIC(false, true);                                                                       \
        *p = v;                                                                                    \
    }                                                                                              \
    extern "C" int __tsan_atomic##bits##_compare_exchange_strong(T *p, T *expected, T v,           \
                                                                 int order, int)                   \
    {                                                                                              \
        ATOMIC(true, true);                                                                        \
        T old = *p;                                                                                \
        bool same = old == *expected;                                                              \
        *(same ? p : expected) = same ? v : old;                                                   \
        return same;                                                                               \
    }                                                                                              \
    extern "C" int __tsan_atomic##bits##_compare_exchange_weak(T *p, T *expected, T v, int order,  \
                                                               int)                                \
    {                                                                                              \
        return __tsan_atomic##bits##_compare_exchange_strong(p, expected, v, order, order);        \
    }                                                                                              \
    extern "C" T __tsan_atomic##bits##_compare_exchange_val(T *p, T expected, T v, int order, int) \
    {                                                                                              \
        ATOMIC(true, true);                                                                        \
        T old = *p;                                                                                \
        *p = old == expected ? v : old;                                                            \
        return old;                                                                                \
    }
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
#endif
