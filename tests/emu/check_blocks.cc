// Blocks of a launch that meet in device memory. Of every word the last write is kept: by which
// block, in which launch. Another block that writes or reads the word is wrong, unless both are
// atomic or it knows of the writer: through an acquire of what the writer has released. Reads are
// not kept: blocks run one after another in an order that is drawn, so that a read before a write
// is a read behind it in another schedule.
#include "check_blocks.hpp"

#if EMU_CHECK
#include <sys/mman.h>

#include <map>

namespace emu
{
struct Write { // 0 everywhere: none
    uint32_t launch, block, place;
    uint8_t mask, atomic;
};

// The words of one allocation, where it was written.
struct Shadow {
    uintptr_t hi;
    Write *words;
    size_t bytes;
};
static std::map<uintptr_t, Shadow> shadows;

// Sets of blocks: whose writes this one knows; whose it will know behind its next fence; and what
// each word that blocks synchronise by has been told.
typedef std::vector<bool> Blocks;
static Blocks known, pending;
static std::map<const void *, Blocks> released;
static uint32_t me, launch_number;
static bool fenced; // a fence of the device came in this block

static void add(Blocks &to, const Blocks &from)
{
    if (to.size() < from.size())
        to.resize(from.size());
    for (size_t i = 0; i < from.size(); i++)
        to[i] = to[i] || from[i];
}

void blocks_launch()
{
    launch_number = (uint32_t)launch.number;
    released.clear();
}

void blocks_begin()
{
    me = block_index.x + grid_dim.x * (block_index.y + grid_dim.y * block_index.z);
    known.clear();
    pending.clear();
    fenced = false;
}

std::string block_text(uint32_t b)
{
    return format("block (%u, %u, %u)", b % grid_dim.x, b / grid_dim.x % grid_dim.y,
                  b / grid_dim.x / grid_dim.y);
}

// Null when there is none and none is to be made.
static Shadow *shadow_of(uintptr_t lo, uintptr_t hi, bool make)
{
    auto at = shadows.find(lo);
    if (at != shadows.end() && at->second.hi == hi)
        return &at->second;
    if (at != shadows.end()) { // of an allocation that is gone
        munmap(at->second.words, at->second.bytes);
        shadows.erase(at);
    }
    if (!make)
        return nullptr;
    size_t bytes = ((hi - lo) / 4 + 1) * sizeof(Write);
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return nullptr;
    return &(shadows[lo] = {hi, static_cast<Write *>(p), bytes});
}

static bool knows(uint32_t b)
{
    return b == me || (b < known.size() && known[b]);
}

bool blocks_conflict(uintptr_t lo, uintptr_t hi, const void *p, size_t bytes, bool write,
                     bool atomic, uint32_t place, bool early, Writer *other)
{
    Shadow *s = shadow_of(lo, hi, write);
    size_t at = (uintptr_t)p - lo, end = at + bytes;
    bool found = false;
    for (size_t i = at / 4; s && i * 4 < end; i++) {
        Write &w = s->words[i];
        size_t from = at > i * 4 ? at - i * 4 : 0, to = end - i * 4 < 4 ? end - i * 4 : 4;
        uint8_t mask = (uint8_t)((15u << from) & (15u >> (4 - to)));
        bool present = w.mask && w.launch == launch_number;
        if (present && (w.mask & mask) && !(w.atomic && atomic) && !knows(w.block)) {
            *other = {w.block, w.place, false};
            found = true;
        }
        if (early && (w.mask & mask) && w.launch + 1 == launch_number) {
            *other = {w.block, w.place, true};
            found = true;
        }
        if (write)
            w = {launch_number, me, place,
                 (uint8_t)(present && w.block == me ? w.mask | mask : mask), (uint8_t)atomic};
    }
    return found;
}

void blocks_atomic(const void *p, int order, bool reads, bool writes)
{
    Blocks &told = released[p];
    if (reads)
        add(order == __ATOMIC_RELAXED ? pending : known, told);
    if (writes && (order != __ATOMIC_RELAXED || fenced)) {
        add(told, known);
        if (told.size() <= me)
            told.resize(me + 1);
        told[me] = true;
    }
}

void blocks_fence()
{
    fenced = true;
    add(known, pending);
}
} // namespace emu
#endif
