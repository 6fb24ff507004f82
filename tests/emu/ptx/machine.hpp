// State of a running grid: warps, blocks, and the memory that they reach.
//
// A warp is a structure of arrays: for each register 32 values. Its lanes are in groups, each with
// one program counter; a group runs until it has to wait, or meets another one, which it joins. No
// host thread or fiber stands for a thread of the device: all state is here.
#pragma once

#include <string.h>

#include <functional>
#include <list>
#include <type_traits>

#include "program.hpp"

namespace ptx
{
constexpr uint32_t warp_lanes = 32, all_lanes = ~0u;
constexpr uint32_t max_depth = 8; // of calls

struct Grid;
struct Block;

struct Group { // lanes of a warp that execute the same instruction next
    uint32_t pc, lanes;
    uint32_t stage; // of the instruction at pc that has begun and waits; 0: none has begun
    bool stopped;   // nothing to do since ..
    bool polls;     // .. but goes on when nothing else can
    uint64_t seen;  // .. the grid had this number of events
};

struct Meeting { // lanes of a warp that have come to a barrier and wait for the warp's others
    uint32_t lanes = 0;
    uint32_t truths = 0;  // those with a true predicate, of bar.red
    uint32_t need = 0;    // threads, as they have said
    bool reduces = false; // bar.red
    uint32_t turn = 0;    // the barrier's, for which the warp has arrived last
};
struct Meetings { // of a warp (collectives.cc)
    Meeting barrier[16], cluster_arrive, cluster_wait;
    uint32_t cluster_turn = 0;         // for which the warp has arrived last; 0: never
    bool cluster_waited = true;        // and waited for since
    std::map<uint32_t, uint32_t> sync; // bar.warp.sync: by the member mask the lanes that wait
    const Inst *registers = nullptr;   // setmaxnreg: the last one
    uint32_t n_registers = 0;          // how many
};

struct Warp {
    Block *block;
    uint32_t number;   // in the block
    uint32_t *file;    // registers: entry->n_unit units of 32 words
    uint32_t *defined; // of each unit the lanes that have written it
    uint32_t exited;   // lanes that have returned or never were
    uint32_t missing;  // lanes that never were
    std::vector<Group> groups;
    size_t running;                                          // the group that executes
    unsigned char *local;                                    // entry->local_bytes for each lane
    uint32_t depth[warp_lanes], back[max_depth][warp_lanes]; // of calls: where they return to

    // Products of the warp's warpgroup that have been issued and not waited for (warpgroup.cc).
    uint32_t fence_epoch; // counts wgmma.fence
    uint32_t *written;    // of each unit the epoch in which it was last written by others
    uint32_t *in_flight;  // of each unit the product's number, counted from 1, that will write or
                          // that reads it
    uint32_t n_in_flight; // registers in flight
    std::shared_ptr<struct Products> products;

    Meetings meetings;
    uint32_t carry = 0, carry_defined = 0; // CC.CF of each lane, and where it was written

    Group &group()
    {
        return groups[running];
    }
    uint32_t present() const // lanes that have not returned
    {
        return ~exited;
    }
    bool all_present(uint32_t lanes) const // lanes of which none has returned
    {
        return lanes == present();
    }
    uint32_t *words(Slot s)
    {
        return file + (size_t)s * warp_lanes;
    }
    uint64_t *longs(Slot s)
    {
        return reinterpret_cast<uint64_t *>(words(s));
    }
    uint32_t &mask(Slot s) // of a predicate
    {
        return *words(s);
    }
};

// A register's values as a type of C: of the low bits of each lane's word, written with zeros
// above.
template <class T> struct Lanes {
    using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    Word *word;
    Lanes(Warp &w, Slot s) : word(reinterpret_cast<Word *>(w.words(s)))
    {
    }
    T operator[](uint32_t lane) const
    {
        const Word from = word[lane];
        if constexpr (std::is_integral_v<T>)
            return (T)from; // loops of it become vectors, of memcpy with fewer bytes they do not
        T v;
        memcpy(&v, &from, sizeof v); // little-endian: the low part
        return v;
    }
    void set(uint32_t lane, T v)
    {
        Word to = 0;
        if constexpr (std::is_integral_v<T>)
            to = (std::make_unsigned_t<T>)v;
        else
            memcpy(&to, &v, sizeof v);
        word[lane] = to;
    }
};

// f(lane) for each lane of the mask.
template <class F> static inline void each(uint32_t lanes, F f)
{
    if (lanes == all_lanes) {
        for (uint32_t k = 0; k < warp_lanes; k++)
            f(k);
        return;
    }
    for (; lanes; lanes &= lanes - 1)
        f((uint32_t)__builtin_ctz(lanes));
}
// Likewise where no lane reads what f writes for another: the loop of a full mask becomes vectors.
template <class F> static inline void each_apart(uint32_t lanes, F f)
{
    if (lanes == all_lanes) {
#pragma GCC ivdep
        for (uint32_t k = 0; k < warp_lanes; k++)
            f(k);
        return;
    }
    each(lanes, f);
}
// d = f(a ..) of values of these types.
template <class D, class A, class F>
static inline Next unary(Warp &w, const Inst &i, uint32_t lanes, F f)
{
    Lanes<D> d(w, i.d[0]);
    Lanes<A> a(w, i.s[0]);
    each_apart(lanes, [&](uint32_t k) { d.set(k, f(a[k])); });
    return Next::on;
}
template <class D, class A, class B, class F>
static inline Next binary(Warp &w, const Inst &i, uint32_t lanes, F f)
{
    Lanes<D> d(w, i.d[0]);
    Lanes<A> a(w, i.s[0]);
    Lanes<B> b(w, i.s[1]);
    each_apart(lanes, [&](uint32_t k) { d.set(k, f(a[k], b[k])); });
    return Next::on;
}
template <class D, class A, class B, class C, class F>
static inline Next ternary(Warp &w, const Inst &i, uint32_t lanes, F f)
{
    Lanes<D> d(w, i.d[0]);
    Lanes<A> a(w, i.s[0]);
    Lanes<B> b(w, i.s[1]);
    Lanes<C> c(w, i.s[2]);
    each_apart(lanes, [&](uint32_t k) { d.set(k, f(a[k], b[k], c[k])); });
    return Next::on;
}

struct Barrier {          // of bar.sync and the like
    uint32_t need = 0;    // threads; 0: all that have not returned
    uint32_t arrived = 0; // threads, 32 for each warp
    uint32_t turn = 1;    // number of the turn that threads arrive for
    bool reduces = false; // the turn is one of bar.red
    struct Reduced {
        uint32_t n_true = 0, n = 0, left = 0; // threads; those that have not taken the result
    };
    Reduced reduced;                  // of this turn
    std::map<uint32_t, Reduced> over; // of turns that are over
};

struct Block {
    Grid *grid;
    uint32_t index[3]; // in the grid
    uint32_t rank;     // in its cluster
    uint32_t cluster;  // number of the cluster
    std::vector<Warp> warps;
    uint32_t n_thread, n_present;      // threads; those that have not returned
    std::vector<unsigned char> shared; // static, then dynamic, from shared address shared_at on
    Barrier barrier[16];
    uint32_t cluster_turn = 1; // of barrier.cluster
    struct Hazards *hazards;   // asynchronous accesses to its shared memory (shared.cc)
    bool watched;              // touch_shared has something to look at: kept by shared.cc
};

struct Grid {
    const Entry *entry;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t dynamic_bytes, dynamic_at; // of shared memory, and the shared address it begins at
    uint32_t shared_bytes;              // of a block: static, dynamic and what aligns it
    uint64_t number;                    // of the launch
    std::vector<Block *> resident;      // blocks that run at the same time
    uint64_t events;  // whatever a waiting group may wait for: arrivals, stores, ends of copies
    struct Later {    // what happens beside the threads
        uint64_t due; // step; never: when nothing else can run
        std::function<void()> happens;
    };
    std::list<Later> later;
    uint64_t step;        // instructions of warps executed so far
    uint64_t n_clock = 0; // reads of %clock and the like: each tells a later time
};

// --- addresses ---

constexpr uint32_t shared_at = 1024; // the first shared address; those below are the system's
constexpr uint64_t shared_window = 1ull << 60, local_window = 2ull << 60; // generic addresses
constexpr uint32_t cluster_shift =
    24; // shared address of block r of the cluster: r + 1 in the top byte

// --- grid.cc: the schedule ---

// Runs `happens` beside the threads, after a random time or, in order, when nothing else can run.
void later(Grid &g, std::function<void()> happens);
static inline void happened(Grid &g) // threads that wait look again
{
    g.events++;
}
// Uniform, below n; by the seed of GR_EMU.
uint32_t random_below(uint32_t n);
// True for the schedule in order, which draws no random numbers.
bool in_order();

// --- warp.cc ---

// Has `lanes` of the running group go on at pc; the others of the group go on behind the
// instruction.
Next jump(Warp &w, uint32_t lanes, uint32_t pc);
// The lanes return from the kernel.
Next leave(Warp &w, uint32_t lanes);

// --- collectives.cc ---

// Threads of the block have returned: barriers that wait for no others are over.
void barrier_after_exit(Block &b);

// --- faults ---

struct Fault {
    std::string text;
};
// Ends the launch; says kernel, block, warp, lanes, and the place.
[[noreturn]] void fault(const Warp &w, const Inst &i, uint32_t lanes, const char *form, ...)
    __attribute__((format(printf, 4, 5)));
// Notes a finding and goes on.
void note(const Warp &w, const Inst &i, uint32_t lanes, const char *form, ...)
    __attribute__((format(printf, 4, 5)));

// --- memory.cc ---

enum class Access { read, write, read_constant }; // the last: ld.global.nc
// The host's address of [addr, addr + bytes) in a space for a lane, inside one object and aligned
// to `align` bytes; or a fault.
unsigned char *reach(Warp &w, const Inst &i, Space space, uint64_t addr, uint32_t bytes,
                     uint32_t align, uint32_t lane, Access how);
// A place in shared memory: the block of the cluster, and the offset in its Block::shared.
struct SharedPlace {
    Block *block;
    uint32_t offset;
};
SharedPlace reach_shared(Warp &w, const Inst &i, uint64_t addr, uint32_t bytes, uint32_t align,
                         uint32_t lane);
// The address in inst.s[n] with the offset inst.value[v], of a lane.
static inline uint64_t address_of(Warp &w, const Inst &i, uint32_t n, uint32_t v, uint32_t lane,
                                  bool wide)
{
    return wide ? Lanes<uint64_t>(w, i.s[n])[lane] + (uint64_t)i.value[v]
                : (uint32_t)(Lanes<uint32_t>(w, i.s[n])[lane] + (uint32_t)i.value[v]);
}

// --- shared.cc: what is asynchronous in a block's shared memory ---

enum class Hazard { arriving, read }; // nothing touches it; nothing writes it
// From now on [offset, offset + bytes) of the block's shared memory is written, or read, in the
// background, for an instruction `i`. Returns a number for end_hazard().
uint64_t begin_hazard(Block &b, Hazard kind, uint32_t offset, uint32_t bytes, const Inst &i,
                      const char *what);
void end_hazard(Block &b, uint64_t number);
// An ordinary access: a fault where it meets a hazard. A store is remembered as not yet visible to
// the asynchronous proxy, in entries that use it (Entry::async_proxy, ::wgmma).
void touch_watched(Warp &w, const Inst &i, SharedPlace p, uint32_t bytes, uint32_t lane,
                   bool write);
static inline void touch_shared(Warp &w, const Inst &i, SharedPlace p, uint32_t bytes,
                                uint32_t lane, bool write)
{
    if (__builtin_expect(p.block->watched, 0))
        touch_watched(w, i, p, bytes, lane, write);
}
// fence.proxy.async: stores of these lanes are visible to the asynchronous proxy.
void fence_proxy(Warp &w, uint32_t lanes);
// The asynchronous proxy reads or writes: a note where an ordinary store lacks the fence, a fault
// where a copy is still arriving.
void touch_async(Warp &w, const Inst &i, Block &b, uint32_t offset, uint32_t bytes, uint32_t lane,
                 bool write);
void make_hazards(Block &b); // for a new block
void drop_hazards(Block &b); // of one that is over

// --- mbarriers.cc: for copies that report to one ---

// `bytes` of a copy, which a lane of warp w has issued, have come: complete-tx on the mbarrier at
// offset of the block's shared memory.
void mbarrier_complete(Warp &w, const Inst &i, uint32_t lane, Block &b, uint32_t offset,
                       uint32_t bytes);

// --- warpgroup.cc ---

// An instruction that is no wgmma touches a register in flight.
[[noreturn]] void fault_in_flight(const Warp &w, const Inst &i, Slot unit);
void begin_products(Warp &w); // of a new warp
void end_products(Warp &w,
                  const Inst *last); // a warp has ended: a fault when any is not waited for
} // namespace ptx
