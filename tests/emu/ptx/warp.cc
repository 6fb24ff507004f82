// Execution of instructions by the groups of a warp.
#include "machine.hpp"
#include "run.hpp"

namespace ptx
{
// --- groups ---

static bool is_ready(const Warp &w, const Group &g)
{
    return !g.stopped || g.seen != w.block->grid->events;
}

bool can_run(const Warp &w)
{
    for (const Group &g : w.groups)
        if (is_ready(w, g))
            return true;
    return false;
}

void end_polls(Warp &w)
{
    for (Group &g : w.groups)
        g.stopped = g.stopped && !g.polls;
}

// Groups at the same instruction, neither of which has begun it, become one.
static void join(Warp &w)
{
    for (size_t a = 0; a + 1 < w.groups.size(); a++)
        for (size_t b = w.groups.size(); b-- > a + 1;) {
            Group &g = w.groups[a];
            const Group &other = w.groups[b];
            if (g.pc != other.pc || g.stage || other.stage)
                continue;
            g.lanes |= other.lanes;
            g.stopped = g.stopped && g.polls && other.stopped && other.polls;
            w.groups.erase(w.groups.begin() + (ptrdiff_t)b);
        }
}

// The ready group that executes next: the one with the lowest counter, so that those behind it wait
// for it; with a random schedule now and then another one. False: none is ready.
static bool choose(Warp &w)
{
    size_t best = w.groups.size(), n_ready = 0;
    for (size_t k = 0; k < w.groups.size(); k++) {
        if (!is_ready(w, w.groups[k]))
            continue;
        n_ready++;
        if (best == w.groups.size() || w.groups[k].pc < w.groups[best].pc)
            best = k;
    }
    if (!n_ready)
        return false;
    if (n_ready > 1 && !in_order() && !random_below(4)) {
        size_t skip = random_below((uint32_t)n_ready);
        for (best = 0; !is_ready(w, w.groups[best]) || skip; best++)
            skip -= is_ready(w, w.groups[best]);
    }
    w.running = best;
    w.groups[best].stopped = false;
    return true;
}

// The counter at which the running group meets another one.
static uint32_t meets_at(const Warp &w)
{
    uint32_t at = UINT32_MAX;
    const uint32_t pc = w.groups[w.running].pc;
    for (size_t k = 0; k < w.groups.size(); k++)
        if (k != w.running && w.groups[k].pc > pc && w.groups[k].pc < at)
            at = w.groups[k].pc;
    return at;
}

static void split(Warp &w, uint32_t lanes, uint32_t pc)
{
    w.group().lanes &= ~lanes;
    w.groups.push_back({pc, lanes, 0, false, false, 0});
}

Next jump(Warp &w, uint32_t lanes, uint32_t pc)
{
    Group &g = w.group();
    g.stage = 0;
    if (lanes == g.lanes) {
        g.pc = pc;
    } else {
        g.pc++;
        split(w, lanes, pc);
    }
    return Next::moved;
}

Next leave(Warp &w, uint32_t lanes)
{
    Block &b = *w.block;
    Group &g = w.group();
    w.exited |= lanes;
    g.lanes &= ~lanes;
    g.pc++;
    if (!g.lanes)
        w.groups.erase(w.groups.begin() + (ptrdiff_t)w.running);
    b.n_present -= (uint32_t)__builtin_popcount(lanes);
    barrier_after_exit(b);
    happened(*b.grid);
    return Next::moved;
}

// --- registers ---

// Lanes in which a source was never written.
static uint32_t undefined_sources(const Warp &w, const Inst &i, uint32_t lanes)
{
    uint32_t written = all_lanes;
    for (uint32_t k = 0; k < i.n_s; k++)
        written &= w.defined[i.s[k]];
    return lanes & ~written;
}

static void fault_undefined(const Warp &w, const Inst &i, uint32_t lanes)
{
    uint32_t k = 0;
    while (k + 1u < i.n_s && !(lanes & ~w.defined[i.s[k]]))
        k++;
    fault(w, i, lanes & ~w.defined[i.s[k]],
          "source %u (of %u, addresses and elements counted) is a register that was never written",
          k + 1, i.n_s);
}

static void check_in_flight(const Warp &w, const Inst &i)
{
    for (uint32_t k = 0; k < (uint32_t)i.n_d + i.n_s; k++)
        if (w.in_flight[i.d[k]])
            fault_in_flight(w, i, i.d[k]);
}

// --- execution ---

template <bool wgmma> static Next execute(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint32_t undefined = undefined_sources(w, i, lanes);
    if (__builtin_expect(undefined && i.strict, 0))
        fault_undefined(w, i, undefined);
    if (wgmma && w.n_in_flight && !i.wgmma)
        check_in_flight(w, i);
    *i.executed = 1;
    const Next next = i.run(w, i, lanes);
    if (!i.own_defined && (next == Next::on || next == Next::poll))
        for (uint32_t k = 0; k < i.n_d; k++)
            w.defined[i.d[k]] = (w.defined[i.d[k]] | lanes) & ~undefined;
    if (wgmma && !i.wgmma)
        for (uint32_t k = 0; k < i.n_d; k++)
            w.written[i.d[k]] = w.fence_epoch;
    return next;
}

// Runs the chosen group until it stops, meets another one or the groups change; returns the number
// of instructions.
template <bool wgmma> static uint64_t run_group(Warp &w, uint64_t budget)
{
    const Inst *code = w.block->grid->entry->code.data();
    uint32_t meeting = meets_at(w);
    for (uint64_t n = 1; n <= budget; n++) {
        Group &g = w.group();
        const Inst &i = code[g.pc];
        uint32_t lanes = g.lanes;
        if (i.guard != no_guard) {
            if (lanes & ~w.defined[i.guard])
                fault(w, i, lanes & ~w.defined[i.guard],
                      "the guard is a predicate that was never written");
            lanes &= i.guard_not ? ~w.mask(i.guard) : w.mask(i.guard);
            if (!lanes) {
                g.stage = 0;
                if (++g.pc == meeting)
                    return n;
                continue;
            }
            if (i.collective && lanes != g.lanes) {
                split(w, g.lanes & ~lanes, g.pc + 1);
                meeting = meets_at(w);
            }
        }
        const size_t n_group = w.groups.size();
        const Next next = execute<wgmma>(w, i, lanes);
        switch (next) {
        case Next::on:
            w.group().stage = 0;
            if (++w.group().pc == meeting)
                return n;
            break;
        case Next::moved:
            if (w.groups.size() != n_group || w.running >= w.groups.size())
                return n;
            meeting = meets_at(w);
            break;
        case Next::poll:
            w.group().pc++;
            w.group().stage = 0;
            [[fallthrough]];
        case Next::wait:
            w.group().stopped = true;
            w.group().polls = next == Next::poll;
            w.group().seen = w.block->grid->events;
            return n;
        }
    }
    return budget;
}

uint64_t run_warp(Warp &w, uint64_t budget)
{
    uint64_t n = 0;
    while (n < budget) {
        join(w);
        if (!choose(w))
            break;
        n += w.block->grid->entry->wgmma ? run_group<true>(w, budget - n)
                                         : run_group<false>(w, budget - n);
    }
    join(w); // the budget may have ended where stopped groups meet
    return n;
}
} // namespace ptx
