// The checker's part for device memory: what blocks of one launch do to each other.
#pragma once

#include "check.hpp"

namespace emu
{
#if EMU_CHECK
void blocks_launch(); // begins
void blocks_begin();  // a block begins
// An access to the allocation [lo, hi), or null when nothing is wrong; otherwise whose write it
// meets: block and place. `early`: the launch before may still run.
struct Writer {
    uint32_t block, place;
    bool before; // in the launch before
};
bool blocks_conflict(uintptr_t lo, uintptr_t hi, const void *p, size_t bytes, bool write,
                     bool atomic, uint32_t place, bool early, Writer *other);
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
