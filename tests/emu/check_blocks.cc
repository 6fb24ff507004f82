// Blocks of a launch that meet in device memory. Of every word the last write is kept, by which
// block, in which launch, and the last reads of two blocks. Another block that writes what was
// written or read, or reads what was written, is wrong, unless both are atomic or it knows of the
// other: through an acquire of what that one has released. The same words tell what a launch that
// has begun early touches of those that still run.
#include "check_blocks.hpp"

#if EMU_CHECK
#include <sys/mman.h>

#include <algorithm>
#include <map>

namespace emu
{
struct Touch { // 0 everywhere: none
    uint32_t launch, block, place;
    uint8_t mask, atomic;
};
struct Word {
    Touch write, read[2]; // reads of two blocks, the last one first
};

// The words of one allocation.
struct Shadow {
    uintptr_t hi;
    Word *words;
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

// Launches of each stream that may still run when the next one begins there, if that begins early;
// those in front of the one at hand; whether its own next one finds them at work as well.
static std::map<uint32_t, std::vector<uint32_t>> at_work;
static std::vector<uint32_t> in_front;
static bool passes_on;

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
    in_front.clear();
    if (launch.early)
        in_front = at_work[launch.stream];
    passes_on = false;
}

void blocks_launch_ends()
{
    std::vector<uint32_t> &to = at_work[launch.stream];
    to.clear();
    if (passes_on)
        to = in_front;
    to.push_back(launch_number);
}

void blocks_next_begins(bool waited)
{
    passes_on |= !waited;
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

// Null: no memory for it.
static Shadow *shadow_of(uintptr_t lo, uintptr_t hi)
{
    auto at = shadows.find(lo);
    if (at != shadows.end() && at->second.hi == hi)
        return &at->second;
    if (at != shadows.end()) { // of an allocation that is gone
        munmap(at->second.words, at->second.bytes);
        shadows.erase(at);
    }
    size_t bytes = ((hi - lo) / 4 + 1) * sizeof(Word);
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return nullptr;
    return &(shadows[lo] = {hi, static_cast<Word *>(p), bytes});
}

static bool knows(uint32_t b)
{
    return b == me || (b < known.size() && known[b]);
}

// True when `now`, a write or a read, conflicts with the earlier access to the word: by another
// block of this launch, or by a launch that may still run.
static bool meets(const Touch &was, const Touch &now, bool early, bool wrote, Other *other)
{
    if (!(was.mask & now.mask))
        return false;
    const bool present =
                   was.launch == now.launch && !(was.atomic && now.atomic) && !knows(was.block),
               before = early &&
                        std::find(in_front.begin(), in_front.end(), was.launch) != in_front.end();
    if (present || before)
        *other = {was.block, was.place, before, wrote};
    return present || before;
}

// The touch `was` with this one, which is of the same kind, added.
static void renew(Touch &was, Touch now)
{
    if (was.launch == now.launch && was.block == now.block)
        now.mask |= was.mask;
    was = now;
}

bool blocks_conflict(uintptr_t lo, uintptr_t hi, const void *p, size_t bytes, bool write,
                     bool atomic, uint32_t place, bool early, Other *other)
{
    Shadow *s = shadow_of(lo, hi);
    size_t at = (uintptr_t)p - lo, end = at + bytes;
    bool found = false;
    for (size_t i = at / 4; s && i * 4 < end; i++) {
        Word &w = s->words[i];
        size_t from = at > i * 4 ? at - i * 4 : 0, to = end - i * 4 < 4 ? end - i * 4 : 4;
        const Touch now = {launch_number, me, place, (uint8_t)((15u << from) & (15u >> (4 - to))),
                           (uint8_t)atomic};
        for (int k = 0; write && k < 2; k++)
            found |= meets(w.read[k], now, early, false, other);
        found |= meets(w.write, now, early, true, other);
        if (!write && (w.read[0].launch != launch_number || w.read[0].block != me))
            w.read[1] = w.read[0];
        renew(write ? w.write : w.read[0], now);
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
