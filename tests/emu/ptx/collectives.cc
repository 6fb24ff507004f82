// Operations in which the lanes of a warp, or the warps of a block or cluster, act together:
// "Parallel Synchronization and Communication Instructions" of the PTX ISA but for memory,
// "Data Movement and Conversion Instructions: shfl.sync", and "Miscellaneous Instructions".
#include <algorithm>

#include "machine.hpp"
#include "statement.hpp"

namespace ptx
{
namespace
{
// --- members of a mask ---

// Lanes whose member mask, the last source, is that of `lane`.
uint32_t lanes_with_mask(const uint32_t *mask, uint32_t lanes, uint32_t lane)
{
    uint32_t same = 0;
    for (uint32_t k = 0; k < warp_lanes; k++)
        same |= (uint32_t)(mask[k] == mask[lane]) << k;
    return same & lanes;
}
void must_be_members(Warp &w, const Inst &i, uint32_t lanes, uint32_t mask)
{
    if (lanes & ~mask)
        fault(w, i, lanes & ~mask, "lanes that are not in their member mask 0x%08x execute it",
              mask);
}

// Runs act(w, i, set), which returns the lanes whose first result is not defined, for each set of
// lanes that have named themselves and are all there; the others wait. Lanes of the mask that have
// returned are not waited for.
using Act = uint32_t (*)(Warp &, const Inst &, uint32_t);
template <Act act> Next of_members(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint32_t *mask = w.words(i.s[i.n_s - 1]);
    uint32_t waiting = 0;
    for (uint32_t rest = lanes; rest;) {
        const uint32_t lane = (uint32_t)__builtin_ctz(rest);
        const uint32_t same = lanes_with_mask(mask, rest, lane);
        rest &= ~same;
        must_be_members(w, i, same, mask[lane]);
        if (same != (mask[lane] & w.present())) {
            waiting |= same;
            continue;
        }
        const uint32_t undefined = act(w, i, same);
        for (uint32_t k = 0; k < i.n_d; k++)
            w.defined[i.d[k]] |= same;
        if (i.n_d)
            w.defined[i.d[0]] &= ~undefined;
    }
    if (!waiting)
        return Next::on;
    return waiting == lanes ? Next::wait : jump(w, waiting, w.group().pc);
}
// The last operand of all of them.
void source_members(Statement &s, size_t k)
{
    s.source(k, Type::b32);
    s.inst.collective = true;
    s.inst.strict = true;
    s.inst.own_defined = true;
}
void must_take(Statement &s, const char *word)
{
    s.must_take_of({word});
}
void write_predicate(Warp &w, Slot d, uint32_t lanes, uint32_t values)
{
    w.mask(d) = (w.mask(d) & ~lanes) | (values & lanes);
}
void write_words(Warp &w, Slot d, uint32_t lanes, uint32_t value)
{
    uint32_t *to = w.words(d);
    each_apart(lanes, [&](uint32_t k) { to[k] = value; });
}

// --- shfl.sync ---

// Value of a lane that reads from one that does not take part: undefined by the ISA.
constexpr uint32_t poison = 0x7fbadbad;

enum Shuffle { up, down, bfly, idx };
template <Shuffle mode> uint32_t shuffle(Warp &w, const Inst &i, uint32_t set)
{
    for (uint32_t k = 1; k < 4; k++) // the value may be undefined: so is what is made of it
        if (set & ~w.defined[i.s[k]])
            fault(w, i, set & ~w.defined[i.s[k]], "source %u was never written", k + 1);
    uint32_t value[warp_lanes], source[warp_lanes], in_range = 0, undefined = 0;
    memcpy(value, w.words(i.s[0]), sizeof value);
    const uint32_t *b = w.words(i.s[1]), *c = w.words(i.s[2]);
    for (uint32_t lane = 0; lane < warp_lanes; lane++) {
        const int32_t by = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
        const int32_t own = (int32_t)lane, low = own & segment, last = low | (clamp & ~segment);
        const int32_t from = mode == up     ? own - by
                             : mode == down ? own + by
                             : mode == bfly ? own ^ by
                                            : low | (by & ~segment);
        const bool within = mode == up ? from >= last : from <= last;
        in_range |= (uint32_t)within << lane;
        source[lane] = (uint32_t)(within ? from : own);
    }
    const uint32_t valid = set & w.defined[i.s[0]];
    uint32_t *d = w.words(i.d[0]);
    each(set, [&](uint32_t lane) { d[lane] = value[source[lane] & 31]; });
    write_predicate(w, i.d[1], set, in_range);
    if (valid == all_lanes)
        return 0;
    each(set, [&](uint32_t lane) {
        undefined |= (~valid >> source[lane] & 1) << lane;
        if (!(set >> source[lane] & 1))
            d[lane] = poison;
    });
    return undefined;
}
Run decode_shuffle(Statement &s)
{
    static const Run runs[] = {of_members<shuffle<up>>, of_members<shuffle<down>>,
                               of_members<shuffle<bfly>>, of_members<shuffle<idx>>};
    must_take(s, "sync");
    const int mode = s.must_take_of({"up", "down", "bfly", "idx"});
    must_take(s, "b32");
    s.targets_pair(0, Type::b32, Type::pred);
    s.source(1, Type::b32);
    s.source(2, Type::u32);
    s.source(3, Type::u32);
    source_members(s, 4);
    s.inst.strict = false;
    return runs[mode];
}

// --- vote.sync, match.sync, redux.sync, elect.sync, activemask ---

enum Vote { all, any, uni, ballot };
template <Vote mode> uint32_t vote(Warp &w, const Inst &i, uint32_t set)
{
    const uint32_t is_true = (w.mask(i.s[0]) ^ (uint32_t)i.value[0]) & set;
    if (mode == ballot) {
        write_words(w, i.d[0], set, is_true);
        return 0;
    }
    const bool result = mode == all   ? is_true == set
                        : mode == any ? is_true != 0
                                      : is_true == set || !is_true;
    write_predicate(w, i.d[0], set, result ? all_lanes : 0);
    return 0;
}
Run decode_vote(Statement &s)
{
    static const Run runs[] = {of_members<vote<all>>, of_members<vote<any>>, of_members<vote<uni>>,
                               of_members<vote<ballot>>};
    must_take(s, "sync");
    const int mode = s.must_take_of({"all", "any", "uni", "ballot"});
    must_take(s, mode == ballot ? "b32" : "pred");
    s.target(0, mode == ballot ? Type::b32 : Type::pred);
    bool negated;
    s.source_pred(1, &negated);
    s.inst.value[0] = negated ? -1 : 0;
    source_members(s, 2);
    return runs[mode];
}

template <class T> uint32_t lanes_equal(const Lanes<T> &a, uint32_t set, uint32_t lane)
{
    uint32_t same = 0;
    for (uint32_t k = 0; k < warp_lanes; k++)
        same |= (uint32_t)(a[k] == a[lane]) << k;
    return same & set;
}
template <class T> uint32_t match_any(Warp &w, const Inst &i, uint32_t set)
{
    Lanes<T> a(w, i.s[0]);
    uint32_t same[warp_lanes];
    each(set, [&](uint32_t k) { same[k] = lanes_equal(a, set, k); });
    each(set, [&](uint32_t k) { w.words(i.d[0])[k] = same[k]; });
    return 0;
}
template <class T> uint32_t match_all(Warp &w, const Inst &i, uint32_t set)
{
    const bool same = lanes_equal(Lanes<T>(w, i.s[0]), set, (uint32_t)__builtin_ctz(set)) == set;
    write_words(w, i.d[0], set, same ? set : 0);
    write_predicate(w, i.d[1], set, same ? all_lanes : 0);
    return 0;
}
Run decode_match(Statement &s)
{
    must_take(s, "sync");
    const bool every = s.must_take_of({"any", "all"});
    const bool wide = s.must_take_of({"b32", "b64"});
    if (every)
        s.targets_pair(0, Type::b32, Type::pred);
    else
        s.target(0, Type::b32);
    s.source(1, wide ? Type::b64 : Type::b32);
    source_members(s, 2);
    return every  ? wide ? of_members<match_all<uint64_t>> : of_members<match_all<uint32_t>>
            : wide ? of_members<match_any<uint64_t>>
                  : of_members<match_any<uint32_t>>;
}

enum Reduction { add, smallest, largest, bits_and, bits_or, bits_xor };
template <Reduction how, class T> uint32_t reduce(Warp &w, const Inst &i, uint32_t set)
{
    Lanes<T> a(w, i.s[0]);
    const uint32_t first = (uint32_t)__builtin_ctz(set);
    T r = a[first];
    each(set & ~(1u << first), [&](uint32_t k) {
        const T v = a[k];
        r = how == add        ? (T)((uint32_t)r + (uint32_t)v)
            : how == smallest ? (v < r ? v : r)
            : how == largest  ? (v > r ? v : r)
            : how == bits_and ? (r & v)
            : how == bits_or  ? (r | v)
                              : (r ^ v);
    });
    write_words(w, i.d[0], set, (uint32_t)r);
    return 0;
}
Run decode_reduction(Statement &s)
{
    static const Run of_numbers[3][2] = {
        {of_members<reduce<add, uint32_t>>, of_members<reduce<add, int32_t>>},
        {of_members<reduce<smallest, uint32_t>>, of_members<reduce<smallest, int32_t>>},
        {of_members<reduce<largest, uint32_t>>, of_members<reduce<largest, int32_t>>}};
    static const Run of_bits[3] = {of_members<reduce<bits_and, uint32_t>>,
                                   of_members<reduce<bits_or, uint32_t>>,
                                   of_members<reduce<bits_xor, uint32_t>>};
    must_take(s, "sync");
    const int how = s.must_take_of({"add", "min", "max", "and", "or", "xor"});
    const Type t = s.take_type();
    if (how < 3 ? t != Type::u32 && t != Type::s32 : t != Type::b32)
        s.refuse("the type .%s does not fit", name_of(t));
    s.target(0, t);
    s.source(1, t);
    source_members(s, 2);
    return how < 3 ? of_numbers[how][t == Type::s32] : of_bits[how - 3];
}

uint32_t elect(Warp &w, const Inst &i, uint32_t set)
{
    const uint32_t leader = (uint32_t)__builtin_ctz(set);
    write_words(w, i.d[0], set, leader);
    write_predicate(w, i.d[1], set, 1u << leader);
    return 0;
}
Run decode_elect(Statement &s)
{
    must_take(s, "sync");
    if (!s.targets_pair(0, Type::b32, Type::pred))
        s.refuse("a predicate as the second result is expected");
    source_members(s, 1);
    return of_members<elect>;
}

Next active_mask(Warp &w, const Inst &i, uint32_t lanes)
{
    write_words(w, i.d[0], lanes, lanes);
    return Next::on;
}
Run decode_active_mask(Statement &s)
{
    must_take(s, "b32");
    s.target(0, Type::b32);
    return active_mask;
}

// --- bar.warp.sync ---

// True if all lanes of the mask that have not returned have come.
bool have_come(const Warp &w, uint32_t mask, uint32_t come)
{
    return !(mask & w.present() & ~come);
}
// Lanes with the same mask may come to it in different places of the program.
Next sync_warp(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint32_t *mask = w.words(i.s[0]);
    auto &sync = w.meetings.sync;
    uint32_t waiting = 0;
    for (uint32_t rest = lanes; rest;) {
        const uint32_t lane = (uint32_t)__builtin_ctz(rest), m = mask[lane];
        const uint32_t same = lanes_with_mask(mask, rest, lane);
        rest &= ~same;
        must_be_members(w, i, same, m);
        auto at = sync.find(m);
        if (w.group().stage) { // they have come before
            waiting |= at == sync.end() ? 0 : at->second & same;
        } else if (have_come(w, m, same | (at == sync.end() ? 0 : at->second))) {
            if (at != sync.end()) {
                sync.erase(at);
                happened(*w.block->grid);
            }
        } else {
            sync[m] |= same;
            waiting |= same;
        }
    }
    if (!waiting)
        return Next::on;
    if (waiting != lanes)
        jump(w, waiting, w.group().pc);
    for (Group &g : w.groups)
        if (g.lanes == waiting)
            g.stage = 1;
    return waiting == lanes ? Next::wait : Next::moved;
}
Run decode_sync_warp(Statement &s)
{
    must_take(s, "sync");
    s.source(0, Type::b32);
    s.inst.collective = true;
    s.inst.strict = true;
    return sync_warp;
}

// --- barriers of a block ---

// A barrier that has what it needs is over: those that wait for it go on, and its next turn begins.
void end_turn(Block &b, Barrier &barrier)
{
    uint32_t need = barrier.need;
    if (!need)
        for (const Warp &w : b.warps)
            need += w.present() ? warp_lanes : 0;
    if (!barrier.arrived || barrier.arrived < need)
        return;
    if (barrier.reduces)
        barrier.over[barrier.turn] = barrier.reduced;
    barrier.reduced = {};
    barrier.arrived = 0;
    barrier.turn++;
    happened(*b.grid);
}

// The warp arrives, when all its lanes that have not returned have come: as 32 threads.
void arrive(Warp &w, Barrier &barrier, Meeting &m)
{
    if (!m.lanes || !have_come(w, all_lanes, m.lanes))
        return;
    const uint32_t n = (uint32_t)__builtin_popcount(m.lanes);
    if (!barrier.arrived) {
        barrier.need = m.need;
        barrier.reduces = m.reduces;
    }
    barrier.arrived += warp_lanes;
    barrier.reduced.n_true += (uint32_t)__builtin_popcount(m.truths);
    barrier.reduced.n += n;
    barrier.reduced.left += n;
    m.turn = barrier.turn;
    m.lanes = m.truths = 0;
    happened(*w.block->grid);
    end_turn(*w.block, barrier);
}

// A source that has to have one value in all lanes.
uint32_t one_value(Warp &w, const Inst &i, uint32_t lanes, uint32_t source, const char *what)
{
    const uint32_t *value = w.words(i.s[source]);
    const uint32_t first = value[__builtin_ctz(lanes)];
    each(lanes, [&](uint32_t k) {
        if (value[k] != first)
            fault(w, i, lanes, "lanes name different %s: %u and %u", what, first, value[k]);
    });
    return first;
}

// inst.value: whether a thread count is there, the negation of the predicate, .aligned.
enum Part { sync, only_arrive, popc, reduce_and, reduce_or };
template <Part part> void come(Warp &w, const Inst &i, uint32_t lanes, uint32_t number)
{
    Barrier &barrier = w.block->barrier[number];
    Meeting &m = w.meetings.barrier[number];
    const uint32_t need = i.value[0] ? one_value(w, i, lanes, 1, "thread counts") : 0;
    const bool reduces = part >= popc;
    if (need % warp_lanes || (part == only_arrive && !need))
        fault(w, i, lanes, "%u threads are no positive multiple of %u", need, warp_lanes);
    if ((barrier.arrived && barrier.reduces != reduces) || (m.lanes && m.reduces != reduces))
        fault(w, i, lanes, "bar.red and bar.sync or bar.arrive meet at barrier %u", number);
    if ((barrier.arrived && barrier.need != need) || (m.lanes && m.need != need))
        fault(w, i, lanes,
              "barrier %u for %u threads, others have come for %u (0: all of the block)", number,
              need, barrier.arrived ? barrier.need : m.need);
    m.need = need;
    m.reduces = reduces;
    m.lanes |= lanes;
    if (reduces)
        m.truths |= (w.mask(i.s[i.n_s - 1]) ^ (uint32_t)i.value[1]) & lanes;
    arrive(w, barrier, m);
}

template <Part part> void take_reduced(Warp &w, const Inst &i, uint32_t lanes, uint32_t number)
{
    auto &over = w.block->barrier[number].over;
    auto at = over.find(w.meetings.barrier[number].turn);
    const Barrier::Reduced r = at->second;
    at->second.left -= (uint32_t)__builtin_popcount(lanes);
    if (!at->second.left)
        over.erase(at);
    if (part == popc)
        write_words(w, i.d[0], lanes, r.n_true);
    else
        write_predicate(w, i.d[0], lanes,
                        (part == reduce_and ? r.n_true == r.n : r.n_true) ? all_lanes : 0);
}

template <Part part> Next at_barrier(Warp &w, const Inst &i, uint32_t lanes, uint32_t number)
{
    if (!w.group().stage) {
        if (i.aligned && !w.all_present(lanes))
            return Next::wait;
        come<part>(w, i, lanes, number);
        w.group().stage = 1;
    }
    const Meeting &m = w.meetings.barrier[number];
    if (m.lanes & lanes)
        return Next::wait;
    if (part != only_arrive && m.turn == w.block->barrier[number].turn)
        return Next::wait;
    if (part >= popc)
        take_reduced<part>(w, i, lanes, number);
    return Next::on;
}
template <Part part> Next barrier(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint32_t number = one_value(w, i, lanes, 0, "barriers");
    if (number > 15)
        fault(w, i, lanes, "there is no barrier %u", number);
    return at_barrier<part>(w, i, lanes, number);
}

Run decode_barrier(Statement &s, bool aligned)
{
    static const Run runs[] = {barrier<sync>, barrier<only_arrive>, barrier<popc>,
                               barrier<reduce_and>, barrier<reduce_or>};
    s.take("cta");
    int part = s.must_take_of({"sync", "arrive", "red"});
    s.inst.aligned = s.take("aligned") || aligned;
    size_t at = 0;
    if (part == popc) {
        part += s.must_take_of({"popc", "and", "or"});
        must_take(s, part == popc ? "u32" : "pred");
        s.target(at++, part == popc ? Type::u32 : Type::pred);
    }
    s.source(at++, Type::u32);
    const size_t behind = part >= popc; // the predicate
    if (part == only_arrive || s.n_operand() > at + behind) {
        s.inst.value[0] = 1;
        s.source(at++, Type::u32);
    }
    if (behind) {
        bool negated;
        s.source_pred(at, &negated);
        s.inst.value[1] = negated ? -1 : 0;
    }
    s.inst.collective = true;
    s.inst.strict = true;
    return runs[part];
}

// --- barrier.cluster ---

// The cluster's turn is over, when all warps of its blocks have arrived that have not returned.
void end_cluster_turn(Block &b)
{
    for (const Block *other : b.grid->resident)
        if (other->cluster == b.cluster)
            for (const Warp &w : other->warps)
                if (w.present() && w.meetings.cluster_turn != other->cluster_turn)
                    return;
    for (Block *other : b.grid->resident)
        if (other->cluster == b.cluster)
            other->cluster_turn++;
    happened(*b.grid);
}
void arrive_at_cluster(Warp &w)
{
    Meetings &m = w.meetings;
    if (!m.cluster_arrive.lanes || !have_come(w, all_lanes, m.cluster_arrive.lanes))
        return;
    m.cluster_arrive.lanes = 0;
    m.cluster_turn = w.block->cluster_turn;
    m.cluster_waited = false;
    happened(*w.block->grid);
    end_cluster_turn(*w.block);
}
void meet_for_cluster(Warp &w) // at barrier.cluster.wait
{
    Meetings &m = w.meetings;
    if (!m.cluster_wait.lanes || !have_come(w, all_lanes, m.cluster_wait.lanes))
        return;
    m.cluster_wait.lanes = 0;
    m.cluster_waited = true;
    happened(*w.block->grid);
}

Next cluster_arrive(Warp &w, const Inst &i, uint32_t lanes)
{
    Meetings &m = w.meetings;
    if (!w.group().stage) {
        if (i.aligned && !w.all_present(lanes))
            return Next::wait;
        if (!m.cluster_waited)
            fault(w, i, lanes, "a second arrival without barrier.cluster.wait in between");
        m.cluster_arrive.lanes |= lanes;
        w.group().stage = 1;
        arrive_at_cluster(w);
    }
    return m.cluster_arrive.lanes & lanes ? Next::wait : Next::on;
}
// Waits at barrier 0 of the block, as ptxas compiles the wait of a launch without clusters: a warp
// that has arrived and never waits holds up the others.
Next wait_for_block(Warp &w, const Inst &i, uint32_t lanes)
{
    const Next next = at_barrier<sync>(w, i, lanes, 0);
    w.meetings.cluster_waited |= next == Next::on;
    return next;
}
Next cluster_wait(Warp &w, const Inst &i, uint32_t lanes)
{
    Meetings &m = w.meetings;
    const uint32_t *c = w.block->grid->cluster;
    if (!w.group().stage && m.cluster_waited && (!i.aligned || w.all_present(lanes)))
        fault(w, i, lanes, "the warp has not arrived by barrier.cluster.arrive");
    if (c[0] * c[1] * c[2] == 1)
        return wait_for_block(w, i, lanes);
    if (!w.group().stage) {
        if (i.aligned && !w.all_present(lanes))
            return Next::wait;
        m.cluster_wait.lanes |= lanes;
        w.group().stage = 1;
        meet_for_cluster(w);
    }
    const bool waits = m.cluster_wait.lanes & lanes || m.cluster_turn == w.block->cluster_turn;
    return waits ? Next::wait : Next::on;
}
Run decode_cluster(Statement &s)
{
    const bool waits = s.must_take_of({"arrive", "wait"});
    if (waits)
        s.take("acquire");
    else
        s.take_of({"release", "relaxed"});
    s.inst.aligned = s.take("aligned");
    s.inst.collective = true;
    return waits ? cluster_wait : cluster_arrive;
}

Run decode_bar(Statement &s)
{
    return s.take("warp") ? decode_sync_warp(s) : decode_barrier(s, true);
}
Run decode_barrier_or_cluster(Statement &s)
{
    return s.take("cluster") ? decode_cluster(s) : decode_barrier(s, false);
}

// --- setmaxnreg ---

constexpr uint32_t warps_of_group = 4;
constexpr uint32_t file_registers = 65536, most_registers = 248; // of a multiprocessor, a thread

// Registers that a thread has at most when its block begins: PTX does not say how many it has.
uint32_t registers_at_first(const Block &b)
{
    const uint32_t blocks = std::max(b.grid->entry->min_blocks, 1u);
    const uint32_t each = file_registers / ((uint32_t)b.warps.size() * warp_lanes * blocks);
    const uint32_t bound = b.grid->entry->max_registers;
    return std::min(bound ? std::min(each, bound) / 8 * 8 : each / 8 * 8, most_registers);
}
uint32_t registers_now(const Warp &w)
{
    return w.meetings.registers ? (uint32_t)w.meetings.registers->value[0]
                                : registers_at_first(*w.block);
}
// True when the other warps of the block leave enough registers for the warp to have n a thread.
bool pool_has(const Warp &w, uint32_t n)
{
    uint32_t taken = n;
    for (const Warp &other : w.block->warps)
        taken += other.number == w.number ? 0 : registers_now(other);
    return taken <= registers_at_first(*w.block) * w.block->warps.size();
}

// inst.value: registers of a thread, 1 for .inc.
Next set_registers(Warp &w, const Inst &i, uint32_t lanes)
{
    if (!w.all_present(lanes))
        return Next::wait;
    Meetings &m = w.meetings;
    // Triton's code repeats a number without the warpgroup's warps synchronizing in between.
    if (m.registers && m.registers->value[0] == i.value[0])
        return Next::on;
    const uint32_t n = (uint32_t)i.value[0], now = registers_now(w);
    if (i.value[1] ? m.registers && n < now : n > now)
        fault(w, i, lanes, "the warp has %s%u registers a thread", m.registers ? "" : "at most ",
              now);
    if (i.value[1] && !pool_has(w, n))
        return Next::wait;
    m.registers = &i;
    happened(*w.block->grid);
    m.n_registers++;
    for (const Warp &other : w.block->warps) {
        const Meetings &o = other.meetings;
        if (other.number / warps_of_group != w.number / warps_of_group)
            continue;
        if (o.n_registers + 1 < m.n_registers)
            fault(w, i, lanes, "warp %u of the warpgroup has not executed the one before",
                  other.number);
        if (o.n_registers == m.n_registers &&
            (o.registers->value[0] != i.value[0] || o.registers->value[1] != i.value[1]))
            fault(w, i, lanes, "warp %u of the warpgroup has executed .%s %d", other.number,
                  o.registers->value[1] ? "inc" : "dec", (int)o.registers->value[0]);
    }
    return Next::on;
}
Run decode_set_registers(Statement &s)
{
    s.inst.value[1] = !s.must_take_of({"inc", "dec"});
    must_take(s, "sync");
    must_take(s, "aligned");
    must_take(s, "u32");
    const int64_t n = s.inst.value[0] = s.immediate(0);
    if (n < 24 || n > 256 || n % 8)
        s.refuse("%lld registers are no multiple of 8 from 24 to 256", (long long)n);
    s.inst.aligned = true;
    s.inst.collective = true;
    return set_registers;
}
// When a block is over: all warps of a warpgroup have executed as many.
void check_registers(const Block &b)
{
    for (const Warp &w : b.warps) {
        const Meetings &first = b.warps[w.number / warps_of_group * warps_of_group].meetings;
        if (w.meetings.n_registers == first.n_registers)
            continue;
        const Inst *last =
            w.meetings.n_registers > first.n_registers ? w.meetings.registers : first.registers;
        fault(w, *last, ~w.missing, "not all warps of the warpgroup of warp %u have executed it",
              w.number);
    }
}

// --- what has no effect where memory is in order and one grid runs at a time ---

Next nothing(Warp &, const Inst &, uint32_t)
{
    return Next::on;
}
bool has(const Statement &s, const char *word)
{
    for (const std::string &w : s.words)
        if (w == word)
            return true;
    return false;
}
Run decode_fence(Statement &s)
{
    if (has(s, "proxy") || has(s, "mbarrier_init"))
        return nullptr;
    const int sem = s.take_of({"sc", "acq_rel", "acquire", "release"});
    const int restricted =
        s.take_of({"sync_restrict::shared::cluster", "sync_restrict::shared::cta"});
    const int scope = s.must_take_of({"cta", "cluster", "gpu", "sys"});
    if (restricted >= 0 && (sem != 2 + restricted || scope != 1))
        s.refuse(".%s and .cluster go with this .sync_restrict",
                 restricted ? "release" : "acquire");
    return nothing;
}
Run decode_membar(Statement &s)
{
    if (has(s, "proxy"))
        return nullptr;
    s.must_take_of({"cta", "gl", "sys"});
    return nothing;
}
Run decode_dependents(Statement &s)
{
    s.must_take_of({"wait", "launch_dependents"});
    return nothing;
}

Run decode_sleep(Statement &s)
{
    must_take(s, "u32");
    s.source(0, Type::u32);
    return [](Warp &, const Inst &, uint32_t) { return Next::poll; };
}
} // namespace

void barrier_after_exit(Block &b)
{
    for (Warp &w : b.warps) {
        Meetings &m = w.meetings;
        for (uint32_t k = 0; k < 16; k++)
            arrive(w, b.barrier[k], m.barrier[k]);
        for (auto at = m.sync.begin(); at != m.sync.end();)
            at = have_come(w, at->first, at->second) ? m.sync.erase(at) : std::next(at);
        arrive_at_cluster(w);
        meet_for_cluster(w);
    }
    for (Barrier &barrier : b.barrier)
        if (!barrier.need)
            end_turn(b, barrier);
    end_cluster_turn(b);
    if (b.n_present)
        return;
    check_registers(b);
    for (Warp &w : b.warps) { // for the next block
        w.meetings = {};
        w.carry_defined = 0;
    }
}

const Operation collectives[] = {
    {"shfl", decode_shuffle},
    {"vote", decode_vote},
    {"match", decode_match},
    {"redux", decode_reduction},
    {"elect", decode_elect},
    {"activemask", decode_active_mask},
    {"bar", decode_bar},
    {"barrier", decode_barrier_or_cluster},
    {"setmaxnreg", decode_set_registers},
    {"griddepcontrol", decode_dependents},
    {"nanosleep", decode_sleep},
    {"membar", decode_membar},
    {"fence", decode_fence},
    {nullptr, nullptr},
};
} // namespace ptx
