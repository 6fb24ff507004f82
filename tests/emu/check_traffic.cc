// Traffic of launches to a piece of device memory (emu_watch). A block requests whole sectors, and
// each of them counts once: repeated requests are served by a cache. So this is the least traffic
// of the second level's cache, and of memory as well where blocks do not share data.
#include "check_blocks.hpp"

#include "emu.h"

#if EMU_CHECK
namespace emu
{
static constexpr uintptr_t sector = 32;
static uintptr_t watched_lo, watched_hi;
static std::vector<uint64_t> last[2]; // of each sector, the block that has read or written it last
static uint64_t n_block, n_sector[2];

void traffic_block()
{
    n_block++;
}

void traffic_note(const void *p, size_t bytes, bool write)
{
    uintptr_t lo = (uintptr_t)p, hi = lo + bytes;
    if (lo < watched_lo || hi > watched_hi)
        return;
    for (uintptr_t i = (lo - watched_lo) / sector; i * sector < hi - watched_lo; i++) {
        n_sector[write] += last[write][i] != n_block;
        last[write][i] = n_block;
    }
}
} // namespace emu

using namespace emu;

int emu_watch(const void *p, size_t bytes)
{
    watched_lo = (uintptr_t)p / sector * sector;
    watched_hi = ((uintptr_t)p + bytes + sector - 1) / sector * sector;
    for (int write = 0; write < 2; write++) {
        last[write].assign((watched_hi - watched_lo) / sector, 0);
        n_sector[write] = 0;
    }
    return 0;
}

int64_t emu_watched(int write)
{
    return (int64_t)(n_sector[write != 0] * sector);
}
#else
int emu_watch(const void *, size_t)
{
    return 1;
}

int64_t emu_watched(int)
{
    return 0;
}
#endif
