// Asynchronous accesses to a block's shared memory: those in flight, and ordinary stores that the
// asynchronous proxy may not see yet.
//
// Source: PTX ISA 9, "Data Movement and Conversion Instructions: Asynchronous copy" (completion
// mechanisms, async proxy), "Memory Consistency Model" (proxy-preserved base causality order).
#include <stdlib.h>

#include <algorithm>
#include <set>

#include "asynchronous.hpp"

namespace ptx
{
// --- blocks ---

uint32_t Hazards::clock = 1;

Hazards::~Hazards()
{
    ::free(pieces);
}

void make_hazards(Block &b)
{
    const Entry &e = *b.grid->entry;
    b.hazards = new Hazards;
    b.watched = b.hazards->remembers = e.async_proxy || e.wgmma;
}

void drop_hazards(Block &b)
{
    delete b.hazards;
    b.hazards = nullptr;
    b.watched = false;
}

// --- accesses in flight ---

static void add_to_words(const Block &b, Hazard kind, uint32_t offset, uint32_t bytes, int by)
{
    std::vector<uint16_t> &words = b.hazards->count[(size_t)kind];
    if (words.empty())
        words.resize((b.shared.size() + 3) / 4);
    if (!bytes)
        return;
    for (uint32_t at = offset / 4; at <= (offset + bytes - 1) / 4; at++)
        words[at] = (uint16_t)(words[at] + by);
}

uint64_t begin_hazard(Block &b, Hazard kind, uint32_t offset, uint32_t bytes, const Inst &i,
                      const char *what)
{
    Hazards &h = *b.hazards;
    if (h.free.empty()) {
        h.free.push_back((uint32_t)h.accesses.size());
        h.accesses.push_back({});
    }
    const uint32_t index = h.free.back();
    h.free.pop_back();
    h.accesses[index] = {&i, what, kind, offset, bytes};
    add_to_words(b, kind, offset, bytes, 1);
    h.n_in_flight++;
    b.watched = true;
    return index + 1ull;
}

void end_hazard(Block &b, uint64_t number)
{
    Hazards &h = *b.hazards;
    const uint32_t index = (uint32_t)(number - 1);
    Hazards::Access &a = h.accesses[index];
    add_to_words(b, a.kind, a.offset, a.bytes, -1);
    a.inst = nullptr;
    h.free.push_back(index);
    h.n_in_flight--;
    b.watched = h.remembers || h.n_in_flight;
}

static bool any_in(const std::vector<uint16_t> &words, uint32_t offset, uint32_t bytes)
{
    if (words.empty() || !bytes)
        return false;
    uint32_t any = 0;
    for (uint32_t at = offset / 4; at <= (offset + bytes - 1) / 4; at++)
        any |= words[at];
    return any;
}

[[noreturn]] static void fault_hazard(const Warp &w, const Inst &i, const Block &b, uint32_t offset,
                                      uint32_t bytes, uint32_t lane, Hazard kind, const char *what)
{
    for (const Hazards::Access &a : b.hazards->accesses)
        if (a.inst && a.kind == kind && a.offset < offset + bytes && offset < a.offset + a.bytes)
            fault(w, i, 1u << lane,
                  "%s %u bytes at shared address 0x%x%s, where the %s of %s is still %s "
                  "(0x%x, %u bytes)",
                  what, bytes, shared_at + offset, &b == w.block ? "" : " of another block", a.what,
                  place_of(*b.grid->entry, *a.inst).c_str(),
                  kind == Hazard::arriving ? "writing" : "reading", shared_at + a.offset, a.bytes);
    fault(w, i, 1u << lane,
          "%s %u bytes at shared address 0x%x, which are in use by an asynchronous access", what,
          bytes, shared_at + offset);
}

void check_hazards(Warp &w, const Inst &i, const Block &b, uint32_t offset, uint32_t bytes,
                   uint32_t lane, bool write, const char *what)
{
    const Hazards &h = *b.hazards;
    if (!h.n_in_flight)
        return;
    if (any_in(h.count[(size_t)Hazard::arriving], offset, bytes))
        fault_hazard(w, i, b, offset, bytes, lane, Hazard::arriving, what);
    if (write && any_in(h.count[(size_t)Hazard::read], offset, bytes))
        fault_hazard(w, i, b, offset, bytes, lane, Hazard::read, what);
}

void touch_watched(Warp &w, const Inst &i, SharedPlace p, uint32_t bytes, uint32_t lane, bool write)
{
    check_hazards(w, i, *p.block, p.offset, bytes, lane, write, write ? "writes" : "reads");
    if (write)
        remember_store(w, i, p, bytes, lane);
}

// --- fences ---

bool fenced_since(const Block &b, uint32_t thread, uint32_t clock,
                  std::vector<uint32_t> Hazards::*fence)
{
    const Block *of = b.rank == thread >> 10 ? &b : nullptr;
    for (const auto &other : b.grid->resident)
        if (!of && other->cluster == b.cluster && other->rank == thread >> 10)
            of = &*other;
    if (!of || !of->hazards)
        return true;
    const std::vector<uint32_t> &clocks = of->hazards->*fence;
    return (thread & 1023) < clocks.size() && clocks[thread & 1023] > clock;
}

void fence_threads(Warp &w, uint32_t lanes, std::vector<uint32_t> Hazards::*fence)
{
    std::vector<uint32_t> &clocks = w.block->hazards->*fence;
    if (clocks.empty())
        clocks.resize(1024);
    const uint32_t now = ++Hazards::clock;
    each(lanes, [&](uint32_t lane) { clocks[thread_of(w, lane) & 1023] = now; });
}

void fence_proxy(Warp &w, uint32_t lanes)
{
    fence_threads(w, lanes, &Hazards::fenced);
}

// --- stores that the asynchronous proxy may not see ---

void remember_store(Warp &w, const Inst &i, SharedPlace p, uint32_t bytes, uint32_t lane)
{
    Hazards &h = *p.block->hazards;
    if (!h.remembers || !bytes)
        return;
    if (!h.pieces)
        h.pieces = static_cast<Hazards::Piece *>(
            calloc(p.block->shared.size() / 16 + 1, sizeof(Hazards::Piece)));
    const uint16_t thread = (uint16_t)thread_of(w, lane);
    for (uint32_t at = p.offset / 4; at <= (p.offset + bytes - 1) / 4; at++) {
        Hazards::Piece &piece = h.pieces[at / 4];
        piece.clock[at % 4] = Hazards::clock;
        piece.thread[at % 4] = thread;
        piece.inst = &i;
    }
}

bool first_time(const Grid &g, const Inst &i, Finding what)
{
    static std::set<std::pair<const Inst *, Finding>> noted;
    static uint64_t of_launch = ~0ull;
    if (of_launch != g.number)
        noted.clear();
    of_launch = g.number;
    return noted.insert({&i, what}).second;
}

// A fence lies between the store and the asynchronous access when the thread that stored has
// executed one since; or the thread that issues the access, which a barrier or the like in between
// puts behind the store.
static bool unseen(const Warp &w, const Block &b, const Hazards::Piece &piece, uint32_t word,
                   uint32_t lane)
{
    const uint32_t clock = piece.clock[word];
    return clock && !fenced_since(b, piece.thread[word], clock, &Hazards::fenced) &&
           !fenced_since(*w.block, thread_of(w, lane), clock, &Hazards::fenced);
}

static void note_unseen(const Warp &w, const Inst &i, const Block &b, uint32_t at, uint32_t lane,
                        bool write)
{
    const Hazards::Piece &piece = b.hazards->pieces[at / 4];
    if (!first_time(*b.grid, i, Finding::unseen_store))
        return;
    note(w, i, 1u << lane,
         "the asynchronous proxy %s shared address 0x%x, where thread %u%s has stored at %s; no "
         "fence.proxy.async is between them",
         write ? "writes" : "reads", shared_at + at * 4, piece.thread[at % 4] & 1023,
         piece.thread[at % 4] >> 10 == w.block->rank ? "" : " of another block",
         place_of(*b.grid->entry, *piece.inst).c_str());
}

void touch_async(Warp &w, const Inst &i, Block &b, uint32_t offset, uint32_t bytes, uint32_t lane,
                 bool write)
{
    check_hazards(w, i, b, offset, bytes, lane, write, write ? "is to write" : "is to read");
    check_fences(w, i, b, offset, bytes, lane, write);
}

void check_fences(Warp &w, const Inst &i, Block &b, uint32_t offset, uint32_t bytes, uint32_t lane,
                  bool write)
{
    Hazards &h = *b.hazards;
    if (!h.pieces || !bytes)
        return;
    const std::vector<uint32_t> &own = w.block->hazards->fenced;
    const uint32_t seen = own.empty() ? 0 : own[thread_of(w, lane) & 1023]; // earlier stores are
    for (uint32_t at = offset / 4; at <= (offset + bytes - 1) / 4; at++) {
        Hazards::Piece &piece = h.pieces[at / 4];
        if (__builtin_expect(piece.clock[at % 4] >= seen, 0) && unseen(w, b, piece, at % 4, lane)) {
            note_unseen(w, i, b, at, lane, write);
            piece.clock[at % 4] = 0;
        }
        if (write)
            piece.clock[at % 4] = 0;
    }
}
} // namespace ptx
