// A thread of the emulated device as kernels see it, and the way into the core.
#pragma once

#include <stdint.h>

#include "vectors.hpp"

namespace emu
{
// Place of a call in a kernel: the last, defaulted argument of every model.
struct Site {
    const char *file;
    int line;
    static constexpr Site here(const char *file = __builtin_FILE(), int line = __builtin_LINE())
    {
        return {file, line};
    }
};

struct Index {
    uint3 thread;
};
extern Index *current; // the running thread
extern uint3 block_index, block_dim, grid_dim;

constexpr uint32_t max_smem = 232448; // dynamic and static together: 227 KiB, as compute capability
                                      // 9.0 has
extern unsigned char smem_pages[];    // the first page is a guard
static unsigned char *const dynamic_smem = smem_pages + 4096;

// Shared addresses: dynamic memory begins at 1024, static memory at static_smem.
constexpr uint32_t dynamic_at = 1024, static_at = 0x100000;
uint32_t shared_address(const void *p, Site site);

// Collectives of a warp.
enum class Shuffle { idx, up, down, xor_ };
enum class Vote { ballot, any, all, uni };
enum class Reduce { add, min, max, umin, umax, and_, or_, xor_ };
uint32_t shuffle(Shuffle how, uint32_t mask, uint32_t value, int arg, int width, Site site);
uint64_t shuffle(Shuffle how, uint32_t mask, uint64_t value, int arg, int width, Site site);
uint32_t vote(Vote how, uint32_t mask, bool value, Site site);
uint32_t reduce(Reduce how, uint32_t mask, uint32_t value, Site site);
uint32_t match(uint32_t mask, uint32_t value, Site site);
void sync_warp(uint32_t mask, Site site);
uint32_t lane();

// Barriers of a block.
enum class Join { none, count, and_, or_ };
int sync_threads(Join how, int value, Site site);

// Has the other threads go on before this one; a loop that waits calls it in every turn.
void poll(const char *what, Site site);
} // namespace emu
