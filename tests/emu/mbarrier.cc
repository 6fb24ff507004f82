// mbarriers. The 8 bytes in shared memory hold a word that only the present state has, so that what
// overwrites them is seen.
#include <string.h>

#include <map>
#include <utility>

#include "device/kernels/ptx.cuh"
#include "engine.hpp"

namespace emu
{
static constexpr int32_t most_bytes = (1 << 20) - 1;
static std::map<uint32_t, Mbarrier> mbarriers; // by address

static uint64_t word_of(uint32_t addr, const Mbarrier &b)
{
    uint64_t h =
        (uint64_t)addr << 32 ^ b.phase << 44 ^ (uint64_t)b.pending << 12 ^ (uint32_t)b.bytes;
    h *= 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

static void put_word(uint32_t addr, const Mbarrier &b, const char *what, Site site)
{
    const uint64_t word = word_of(addr, b);
    memcpy(shared_memory(addr, 8, 8, what, site), &word, 8);
}

Mbarrier &mbarrier_at(uint32_t addr, const char *what, Site site)
{
    uint64_t word;
    memcpy(&word, shared_memory(addr, 8, 8, what, site), 8);
    auto b = mbarriers.find(addr);
    if (b == mbarriers.end())
        fail(site, "%s: there is no mbarrier at shared address 0x%x: mbar_init comes first", what,
             addr);
    if (word != word_of(addr, b->second))
        fail(site, "%s: the mbarrier made at %s has been overwritten", what,
             place(b->second.made).c_str());
    return b->second;
}

// Ends the phase when all has come.
static void settle(uint32_t addr, Mbarrier &b, Site site)
{
    if (b.pending == 0 && b.bytes == 0) {
        b.phase++;
        b.pending = b.count;
        std::swap(b.open, b.over);
        b.open = {};
        for (uint32_t w = 0; w < block.n_warp; w++) {
            wake(block.warp[w], b.waiting[w]);
            b.waiting[w] = 0;
        }
        progress();
    }
    put_word(addr, b, "mbarrier", site);
}

static void expect(Mbarrier &b, uint32_t bytes, const char *what, Site site)
{
    if (bytes > (uint32_t)most_bytes || b.bytes + (int32_t)bytes > most_bytes)
        fail(site, "%s: %u bytes more than the %d that are expected: %d are possible", what, bytes,
             b.bytes, most_bytes);
    b.bytes += (int32_t)bytes;
}

void mbarrier_arrive(uint32_t addr, uint32_t bytes, const char *what, Site site)
{
    Mbarrier &b = mbarrier_at(addr, what, site);
    if (b.pending == 0)
        fail(site, "%s: more arrivals in a phase than the %u of the mbarrier made at %s", what,
             b.count, place(b.made).c_str());
    expect(b, bytes, what, site);
    b.pending--;
    settle(addr, b, site);
}

void mbarrier_bytes(uint32_t addr, uint32_t bytes, Site site)
{
    Mbarrier &b = mbarrier_at(addr, "the end of a copy", site);
    b.bytes -= (int32_t)bytes;
    settle(addr, b, site);
}

void mbarriers_fenced(uint32_t maker)
{
    for (auto &b : mbarriers)
        if (b.second.maker == maker)
            b.second.fenced = true;
}

void mbarriers_begin()
{
    mbarriers.clear();
}

static std::string state_of(const Mbarrier &b)
{
    if (b.bytes < 0)
        return format("the mbarrier made at %s got %d bytes more than were expected",
                      place(b.made).c_str(), -b.bytes);
    return format(
        "the mbarrier made at %s is in phase %llu, %u of %u arrivals and %d bytes to come",
        place(b.made).c_str(), (unsigned long long)b.phase, b.pending, b.count, b.bytes);
}

void mbarriers_end()
{
    for (auto &b : mbarriers)
        if (b.second.bytes)
            report_add(format("kernel %s, block (%u, %u, %u): at its end ", launch.kernel->name,
                              block_index.x, block_index.y, block_index.z) +
                       state_of(b.second));
}

std::string engine_state()
{
    std::string text;
    for (auto &b : mbarriers) {
        bool waited = false;
        for (uint32_t lanes : b.second.waiting)
            waited |= lanes != 0;
        if (waited)
            text += "; " + state_of(b.second);
    }
    return text;
}

// --- the instructions ---

// The checker orders making and using by the word: uses are reads of it.
static void touch(uint32_t addr, bool write, Site site)
{
    check_access(self(), shared_memory(addr, 8, 8, "mbarrier", site), 8, write, site);
}

static void arrive(uint32_t addr, uint32_t bytes, const char *what, Site site)
{
    Mbarrier &b = mbarrier_at(addr, what, site);
    touch(addr, false, site);
    check_release(self(), b.open);
    const uint64_t phase = b.phase;
    mbarrier_arrive(addr, bytes, what, site);
    if (b.phase != phase) // others may go on before the caller does
        yield();
}

void mbar_init(uint32_t addr, uint32_t count, Site site)
{
    if (count == 0 || count > (uint32_t)most_bytes)
        fail(site, "mbar_init: a count of %u: 1 to %d are possible", count, most_bytes);
    auto old = mbarriers.find(addr);
    if (old != mbarriers.end())
        fail(site, "mbar_init: the one made at %s is there: mbar_inval comes first",
             place(old->second.made).c_str());
    need_arrived(addr, 8, "mbar_init", site);
    engine_used = true;
    Mbarrier &b = mbarriers[addr];
    b.count = b.pending = count;
    b.made = site;
    b.maker = thread_number(self());
    touch(addr, true, site);
    put_word(addr, b, "mbar_init", site);
}

void mbar_inval(uint32_t addr, Site site)
{
    mbarrier_at(addr, "mbar_inval", site);
    touch(addr, true, site);
    mbarriers.erase(addr);
    memset(shared_memory(addr, 8, 8, "mbar_inval", site), 0xff, 8);
}

void fence_mbar_init()
{
    mbarriers_fenced(thread_number(self()));
}

void mbar_arrive(uint32_t addr, Site site)
{
    arrive(addr, 0, "mbar_arrive", site);
}

void mbar_arrive_expect_tx(uint32_t addr, uint32_t bytes, Site site)
{
    arrive(addr, bytes, "mbar_arrive_expect_tx", site);
}

void mbar_expect_tx(uint32_t addr, uint32_t bytes, Site site)
{
    Mbarrier &b = mbarrier_at(addr, "mbar_expect_tx", site);
    touch(addr, false, site);
    expect(b, bytes, "mbar_expect_tx", site);
    settle(addr, b, site);
}

// True when the phase of this parity is over; then the caller knows the events of the phase.
static bool is_over(uint32_t addr, uint32_t parity, const char *what, Site site)
{
    const Mbarrier &b = mbarrier_at(addr, what, site);
    if (parity > 1)
        fail(site, "%s: parity %u: 0 or 1 is expected", what, parity);
    if ((b.phase & 1) == parity)
        return false;
    touch(addr, false, site);
    check_acquire(self(), b.over);
    return true;
}

bool mbar_try_wait(uint32_t addr, uint32_t parity, Site site)
{
    const bool willing = options.policy == EMU_IN_ORDER || random_below(4);
    if (willing && is_over(addr, parity, "mbar_try_wait", site))
        return true;
    poll("mbar_try_wait", site);
    return false;
}

void mbar_wait(uint32_t addr, uint32_t parity, Site site)
{
    Thread &t = self();
    while (!is_over(addr, parity, "mbar_wait", site)) {
        mbarrier_at(addr, "mbar_wait", site).waiting[t.warp - block.warp] |= 1u << t.lane;
        wait("mbar_wait", site);
    }
}
} // namespace emu
