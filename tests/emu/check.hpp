// Calls of the core and the models to the checker, which finds accesses out of bounds, races in
// shared memory, and accesses to memory that asynchronous copies are still writing. Kernels are
// compiled for it by -fsanitize=thread, whose calls (__tsan_read4 ..) check.cc answers. Without the
// checker (EMU_CHECK 0) all of this is empty.
//
// Races are found by vector clocks: events that a thread has released into a Clock are known to
// all threads that acquire it later. A barrier of the whole block begins a new era, in which all
// threads know all earlier events, so its cost does not grow with the number of threads.
#pragma once

#include "core.hpp"

#ifndef EMU_CHECK
#define EMU_CHECK 0
#endif

namespace emu
{
#if EMU_CHECK
struct Clock {
    uint32_t era;
    uint32_t of[max_threads]; // how far each thread is known, when era is the present one
};
void check_launch(); // begins
void check_launch_ends();
void check_block(); // begins
void check_block_ends();
void check_release(const Thread &t, Clock &c);
void check_acquire(const Thread &t, const Clock &c);
void check_arrive(const Barrier &b, const Thread &t);
void check_complete(const Barrier &b);
void check_together(const Warp &w, uint32_t lanes); // __syncwarp
void check_waited(const Warp &w);                   // its lanes know what its first one has done

// An access that a model makes for a thread, to shared or device memory.
void check_access(const Thread &t, const void *p, size_t bytes, bool write, Site site);
// An asynchronous copy into shared memory begins: nobody may touch [p, p + bytes) until it ends,
// when the bytes count as written by t. `ends` at another thread's acquire: into a Clock.
void check_copy_begins(const Thread &t, const void *p, size_t bytes, Site site);
void check_copy_ends(const Thread &t, const void *p, size_t bytes, Site site);
void check_copy_ends(const Thread &t, const void *p, size_t bytes, Site site, Clock &c);
// fence.proxy.async, and what reads through that proxy: plain writes have to be fenced.
void check_proxy_fence(const Thread &t);
void check_proxy_read(const Thread &t, const void *p, size_t bytes, Site site);
// griddep_wait: what launches in front have written is there. griddep_launch: the next one begins.
void check_launch_before(const Thread &t);
void check_launch_behind(const Thread &t);
#else
struct Clock {
};
static inline void check_launch()
{
}
static inline void check_launch_ends()
{
}
static inline void check_block()
{
}
static inline void check_block_ends()
{
}
static inline void check_release(const Thread &, Clock &)
{
}
static inline void check_acquire(const Thread &, const Clock &)
{
}
static inline void check_arrive(const Barrier &, const Thread &)
{
}
static inline void check_complete(const Barrier &)
{
}
static inline void check_together(const Warp &, uint32_t)
{
}
static inline void check_waited(const Warp &)
{
}
static inline void check_access(const Thread &, const void *, size_t, bool, Site)
{
}
static inline void check_copy_begins(const Thread &, const void *, size_t, Site)
{
}
static inline void check_copy_ends(const Thread &, const void *, size_t, Site)
{
}
static inline void check_copy_ends(const Thread &, const void *, size_t, Site, Clock &)
{
}
static inline void check_proxy_fence(const Thread &)
{
}
static inline void check_launch_before(const Thread &)
{
}
static inline void check_launch_behind(const Thread &)
{
}
static inline void check_proxy_read(const Thread &, const void *, size_t, Site)
{
}
#endif
} // namespace emu
