// Units that work beside the threads on compute capability 9.0: mbarriers, the copy engine,
// products of warpgroups. Transfers end at random times, in order, when no thread can go on.
#pragma once

#include "check.hpp"
#include "core.hpp"

namespace emu
{
// --- what the core tells ---

void engine_begin(); // a block begins
extern uint64_t engine_now, engine_due;
void engine_advance();
static inline void engine_step() // the schedule goes on: what is due ends
{
    if (++engine_now >= engine_due)
        engine_advance();
}
bool engine_idle();                // no thread can go on: something ends, or nothing is under way
void engine_thread_ends(Thread &); // it has returned
void engine_end();                 // the block has: reports what is left
std::string engine_state();        // mbarriers that threads wait at, for reports

extern bool engine_used; // in this block; blocks that do not use it need not clear it

// --- mbarrier.cc ---

struct Mbarrier {
    uint32_t count, pending; // arrivals of a phase; those to come
    int32_t bytes;           // to come; below 0: came before they were expected
    uint64_t phase;
    Site made;
    uint32_t maker; // thread
    bool fenced;    // the copy engine knows it
    uint32_t waiting[max_threads / 32];
    Clock open, over; // events of this phase and of the one before it
};
Mbarrier &mbarrier_at(uint32_t addr, const char *what, Site site);
// An arrival, after which so many bytes more are expected, and the end of a copy of some.
void mbarrier_arrive(uint32_t addr, uint32_t expected_bytes, const char *what, Site site);
void mbarrier_bytes(uint32_t addr, uint32_t bytes, Site site);
void mbarriers_begin();
void mbarriers_end();
void mbarriers_fenced(uint32_t maker);

// --- engine.cc: dynamic shared memory in use, in pieces of 16 bytes ---

// Something in the background reads these bytes until they are released.
void hold(uint32_t addr, uint32_t bytes);
void release(uint32_t addr, uint32_t bytes);
// Fails when a copy that has not ended brings some of these bytes.
void need_arrived(uint32_t addr, uint32_t bytes, const char *what, Site site);
// The checker: an ordinary store to [addr, addr + bytes). True when something in the background
// reads that: what, and where it was issued.
bool stored_while_held(uint32_t addr, uint32_t bytes, const char **what, Site *site);
// Finds that the tile load which brought this piece had another swizzle.
void check_swizzle(uint32_t addr, uint32_t width, const char *what, Site site);
[[noreturn]] void fail_beside(Site site, const char *form, ...)
    __attribute__((format(printf, 2, 3))); // as fail(), of no thread

// The swizzles of the copy engine and of wgmma: of an address of shared memory, width 0, 32, 64 or
// 128 bytes; bits 4 .. by bits 7 .. .
static inline uint32_t swizzled(uint32_t addr, uint32_t width)
{
    return width ? addr ^ (addr >> 3 & (width - 16)) : addr;
}

// --- wgmma.cc ---

void wgmma_begin();
void wgmma_thread_ends(Thread &);
// The product that reads this memory.
bool wgmma_reads(uint32_t addr, uint32_t bytes, Site *site);
// True when p lies in accumulators of the running thread whose product `site` has not been waited
// for.
bool wgmma_holds(const void *p, Site *site);
extern uint32_t wgmma_in_flight; // products, of the block

// --- async.cc ---

uint64_t copies_issued(const Thread &t);
// Ends the copies before that number; a thread that acquires c knows of it.
void finish_copies(Thread &t, uint64_t issued_before, Clock &c);
} // namespace emu
