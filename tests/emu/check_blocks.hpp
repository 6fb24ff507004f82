// The checker's part for device memory: what blocks of one launch do to each other.
#pragma once

#include "check.hpp"

namespace emu
{
#if EMU_CHECK
void blocks_launch(); // begins
void blocks_launch_ends();
void blocks_next_begins(bool waited); // a thread lets it, having waited itself or not
void blocks_begin();                  // a block begins
// An access to the allocation [lo, hi): whether it meets what another one did, and whose that was.
// `early`: the thread has not waited, launches in front of this one may still run.
struct Other {
    uint32_t block, place;
    bool before; // in a launch in front
    bool wrote;
};
bool blocks_conflict(uintptr_t lo, uintptr_t hi, const void *p, size_t bytes, bool write,
                     bool atomic, uint32_t place, bool early, Other *other);
// An atomic operation in device memory, with its order as the compiler has it; a fence of the
// device.
void blocks_atomic(const void *p, int order, bool reads, bool writes);
void blocks_fence();
std::string block_text(uint32_t block); // "block (x, y, z)"

// Counts for emu_watch: a block begins; an access to device memory.
void traffic_block();
void traffic_note(const void *p, size_t bytes, bool write);
#endif
} // namespace emu
