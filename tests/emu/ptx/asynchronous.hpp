// Interface between shared.cc, mbarriers.cc and the files of copies.
#pragma once

#include <unordered_map>

#include "machine.hpp"
#include "statement.hpp"

namespace ptx
{
// --- operands ---

struct AddressOperand {
    uint8_t source; // index in Inst::s
    bool wide;      // 64 bits
    int64_t offset;
};
static inline uint64_t address_in(Warp &w, const Inst &i, const AddressOperand &a, uint32_t lane)
{
    return a.wide ? Lanes<uint64_t>(w, i.s[a.source])[lane] + (uint64_t)a.offset
                  : (uint32_t)(Lanes<uint32_t>(w, i.s[a.source])[lane] + (uint32_t)a.offset);
}
static inline uint32_t word_in(Warp &w, const Inst &i, uint8_t source, uint32_t lane)
{
    return Lanes<uint32_t>(w, i.s[source])[lane];
}

// Asks a statement for sources, and counts them.
struct Asker {
    Statement &s;
    uint8_t n = 0;
    AddressOperand address(size_t k)
    {
        const bool wide = s.address(k, 0) == 64;
        return {n++, wide, s.inst.value[0]};
    }
    uint8_t source(size_t k, Type t)
    {
        s.source(k, t);
        return n++;
    }
};

// Keeps a decoded form for run, at inst.value[0].
template <class F> static inline void keep_form(Statement &s, F form)
{
    s.inst.value[0] = (int64_t)(intptr_t)s.keep(form);
    s.inst.strict = true;
}
template <class F> static inline const F &form_of(const Inst &i)
{
    return *reinterpret_cast<const F *>((intptr_t)i.value[0]);
}

// The window that an address of shared memory is in, by the space in the instruction's text.
enum class Window : uint8_t { generic, cta, cluster };
// The space that is in the words, ".shared" being that of the block; generic: there is none.
Window take_window(Statement &s);
SharedPlace place_in(Warp &w, const Inst &i, const AddressOperand &a, Window window, uint32_t bytes,
                     uint32_t align, uint32_t lane);
// The place at the same offset in the block of a rank of the cluster.
SharedPlace same_place(Warp &w, const Inst &i, SharedPlace p, uint32_t rank, uint32_t lane);

// --- mbarriers ---

struct Mbarrier {
    uint32_t offset; // in Block::shared
    uint32_t phase, pending, expected;
    int32_t tx;
    uint64_t word; // that its memory holds
    const Inst *init;
    uint32_t thread, clock; // of mbarrier.init: thread_of(), Hazards::clock
};
// A valid one; otherwise a fault.
Mbarrier &mbarrier_at(Warp &w, const Inst &i, uint32_t lane, SharedPlace p);
// One that a copy will report to: also a note where another block's lacks a fence.
void mbarrier_for_copy(Warp &w, const Inst &i, uint32_t lane, SharedPlace p);
void mbarrier_increment(Warp &w, const Inst &i, uint32_t lane, SharedPlace p);
void mbarrier_arrive(Warp &w, const Inst &i, uint32_t lane, SharedPlace p, uint32_t count);

// --- a block's shared memory ---

struct WarpCopies; // of a warp's threads (copies.cc)

struct Hazards {
    struct Access {       // in the background
        const Inst *inst; // null: this number is free
        const char *what;
        Hazard kind;
        uint32_t offset, bytes;
    };
    std::vector<Access> accesses;   // by number - 1
    std::vector<uint32_t> free;     // indices
    std::vector<uint16_t> count[2]; // of each 4 bytes the accesses, by kind; empty until needed
    uint32_t n_in_flight = 0;

    // Ordinary stores that the asynchronous proxy may not see: of each 4 bytes the clock of the
    // last one, 0 where there was none, and its thread.
    struct Piece { // 16 bytes
        uint32_t clock[4];
        uint16_t thread[4];
        const Inst *inst; // of the last one
    };
    Piece *pieces = nullptr;
    bool remembers = false;
    // By thread of the block: the clock of its last fence.proxy.async, and fence.mbarrier_init.
    std::vector<uint32_t> fenced, init_fenced;
    static uint32_t clock; // counts fences

    std::unordered_map<uint32_t, Mbarrier> mbarriers; // by offset
    std::vector<std::shared_ptr<WarpCopies>> warps;   // by number; null: no copies
    ~Hazards();
};

// Number of a thread in its cluster, below 2^14.
static inline uint32_t thread_of(const Warp &w, uint32_t lane)
{
    return w.block->rank << 10 | (w.number * warp_lanes + lane);
}
// True if the thread, of a block in the same cluster, has executed a fence since `clock`, or if its
// block has ended.
bool fenced_since(const Block &b, uint32_t thread, uint32_t clock,
                  std::vector<uint32_t> Hazards::*fence);
void fence_threads(Warp &w, uint32_t lanes, std::vector<uint32_t> Hazards::*fence);
// A fault where an access meets one in the background.
void check_hazards(Warp &w, const Inst &i, const Block &b, uint32_t offset, uint32_t bytes,
                   uint32_t lane, bool write, const char *what);
// A note where an ordinary store that the asynchronous proxy reads or writes over lacks the fence.
void check_fences(Warp &w, const Inst &i, Block &b, uint32_t offset, uint32_t bytes, uint32_t lane,
                  bool write);
// A thread's ordinary store, which the asynchronous proxy may not see.
void remember_store(Warp &w, const Inst &i, SharedPlace p, uint32_t bytes, uint32_t lane);
enum class Finding { unseen_store, unseen_mbarrier, late_copy };
// True the first time that the launch reports `what` for the instruction.
bool first_time(const Grid &g, const Inst &i, Finding what);

// --- copies of the asynchronous proxy (transfers.cc) ---

struct Rows { // of global memory, and where they are in a box in shared memory
    struct Row {
        unsigned char *global;
        uint32_t at, bytes;
    };
    std::vector<Row> rows;
    uint32_t bytes; // of the box
};
struct Box { // in shared memory
    SharedPlace place;
    uint32_t bytes;
    uint8_t swizzle; // EMU_SWIZZLE_..
};
// to = to op from, of all elements in `bytes`.
using Reduce = void (*)(unsigned char *to, const unsigned char *from, uint32_t bytes);
// The function of a reduction ("add", ..) on a type; null: there is none.
Reduce reduce_of(const std::string &op, Type t, bool to_shared);

class Transfer // that a thread can wait for
{
  public:
    virtual ~Transfer() = default;
    virtual void read() = 0; // finishes reading the source
    virtual void finish() = 0;
    virtual bool is_over() const = 0;
};
struct Issue { // of a copy
    Warp &w;
    const Inst &i;
    uint32_t lane;
    const char *what; // "cp.async.bulk"
};
void start_load(const Issue &from, std::shared_ptr<const Rows> rows, Box to, SharedPlace mbarrier);
// The rows' bytes, or what reduce makes of them.
std::shared_ptr<Transfer> start_store(const Issue &from, std::shared_ptr<const Rows> rows, Box box,
                                      Reduce reduce);
void start_move(const Issue &from, SharedPlace source, SharedPlace to, uint32_t bytes,
                SharedPlace mbarrier, Reduce reduce);
// The next commit_group of the thread takes it.
void add_to_group(Warp &w, uint32_t lane, std::shared_ptr<Transfer> t);

// The spaces of a copy, in the order of the text.
enum class Direction { global_to_cluster, global_to_cta, cta_to_global, cta_to_cluster };
Direction take_direction(Statement &s);
// Blocks of the cluster that a copy goes to, and their places: those of the mask, or the one.
template <class F>
static inline void each_target(Warp &w, const Inst &i, uint32_t lane, int mask_source,
                               SharedPlace to, SharedPlace mbarrier, F f)
{
    if (mask_source < 0) {
        f(to, mbarrier);
        return;
    }
    for (uint32_t mask = word_in(w, i, (uint8_t)mask_source, lane) & 0xffff, rank; mask;
         mask &= mask - 1) {
        rank = (uint32_t)__builtin_ctz(mask);
        f(same_place(w, i, to, rank, lane), same_place(w, i, mbarrier, rank, lane));
    }
}
Run decode_bulk(Statement &s, bool reduce);   // cp.async.bulk, cp.reduce.async.bulk
Run decode_tensor(Statement &s, bool reduce); // cp.async.bulk.tensor, cp.reduce.async.bulk.tensor
Run decode_tensor_prefetch(Statement &s);
Run decode_tensormap(Statement &s);
} // namespace ptx
