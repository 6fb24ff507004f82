// The blocks of a grid and their schedule.
#include "grid.hpp"

#include <stdarg.h>
#include <stdio.h>

#include <algorithm>
#include <numeric>

#include "run.hpp"
#include "tests/emu/common.hpp"

namespace ptx
{
constexpr uint64_t never = ~0ull;
constexpr uint32_t long_delay = 16384;      // instructions of warps
constexpr uint32_t patience = 1000;         // rounds in which only polling groups ran
constexpr uint64_t in_order_turn = 1 << 16; // instructions that a warp executes at most in a turn

uint32_t random_below(uint32_t n)
{
    return emu::random_below(n);
}

bool in_order()
{
    return emu::options.policy == EMU_IN_ORDER;
}

// --- faults ---

static std::string here(const Warp &w, const Inst &i, uint32_t lanes)
{
    const Entry &e = *w.block->grid->entry;
    const uint32_t *b = w.block->index;
    return emu::format(
        "kernel %s, block (%u, %u, %u), warp %u, lanes %08x: %s: %s: ", e.name.c_str(), b[0], b[1],
        b[2], w.number, lanes, place_of(e, i).c_str(), text_of(e, i).c_str());
}

void fault(const Warp &w, const Inst &i, uint32_t lanes, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    Fault f{here(w, i, lanes) + emu::format_list(form, list)};
    va_end(list);
    throw f;
}

void note(const Warp &w, const Inst &i, uint32_t lanes, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    emu::report_add(here(w, i, lanes) + emu::format_list(form, list));
    va_end(list);
}

[[noreturn]] static void fault_stuck(const Grid &g)
{
    const Entry &e = *g.entry;
    std::string text = "kernel " + e.name + ": no thread can go on:";
    int n = 0;
    for (const Block *b : g.resident)
        for (const Warp &w : b->warps)
            for (const Group &group : w.groups) {
                const Inst &i = e.code[group.pc];
                if (++n <= 40)
                    text += emu::format("\n  block (%u, %u, %u), warp %u, lanes %08x at %s: %s%s",
                                        b->index[0], b->index[1], b->index[2], w.number,
                                        group.lanes, place_of(e, i).c_str(), text_of(e, i).c_str(),
                                        i.aligned && !w.all_present(group.lanes)
                                            ? " (.aligned, and lanes are elsewhere: reached by "
                                              "different branches)"
                                            : "");
            }
    throw Fault{text};
}

// --- what happens beside the threads ---

void later(Grid &g, std::function<void()> happens)
{
    const uint64_t due = in_order() || !random_below(4) ? never : g.step + random_below(long_delay);
    g.later.push_back({due, std::move(happens)});
}

static void let_happen(Grid &g, std::list<Grid::Later>::iterator at)
{
    auto happens = std::move(at->happens);
    g.later.erase(at);
    happens();
    happened(g);
}

static void let_due_happen(Grid &g)
{
    for (auto at = g.later.begin(); at != g.later.end();) {
        auto next = std::next(at);
        if (at->due <= g.step) {
            let_happen(g, at);
            next = g.later.begin(); // it may have added some
        }
        at = next;
    }
}

// Nothing else can run: something happens. False: there is nothing.
static bool let_one_happen(Grid &g)
{
    if (g.later.empty())
        return false;
    auto at = g.later.begin();
    if (!in_order())
        std::advance(at, random_below((uint32_t)g.later.size()));
    let_happen(g, at);
    return true;
}

// --- blocks ---

uint32_t shared_size(const Entry &e, uint32_t dynamic_bytes, uint32_t *dynamic_at)
{
    const uint32_t align = std::max(e.dynamic_align, 16u);
    *dynamic_at = (shared_at + e.shared_bytes + align - 1) / align * align;
    return dynamic_bytes ? *dynamic_at - shared_at + dynamic_bytes : e.shared_bytes;
}

namespace
{
// Memory of registers and the like, which launches use one after another.
class Pool
{
  public:
    void reset(size_t n) // words, that take() will be asked for
    {
        if (n > words.size())
            words.assign(n, ~0u);
        used = 0;
    }
    uint32_t *take(size_t n)
    {
        used += whole(n);
        return words.data() + used - whole(n);
    }
    static size_t whole(size_t n) // words that take(n) uses: multiples of 64 bytes
    {
        return (n + 15) & ~(size_t)15;
    }

  private:
    std::vector<uint32_t> words;
    size_t used = 0;
};
Pool pool;

class Runner
{
  public:
    Runner(const Entry &entry, const Shape &s, uint64_t number) : e(entry), shape(s)
    {
        g.entry = &e;
        std::copy(s.grid, s.grid + 3, g.grid);
        std::copy(s.block, s.block + 3, g.block);
        std::copy(s.cluster, s.cluster + 3, g.cluster);
        g.dynamic_bytes = s.dynamic_bytes;
        g.shared_bytes = shared_size(e, s.dynamic_bytes, &g.dynamic_at);
        g.number = number;
        g.events = 1;
        g.step = 0;
    }
    ~Runner()
    {
        for (Block *b : g.resident) // the launch has failed
            drop_hazards(*b);
    }
    void run();

  private:
    Grid g = {};
    const Entry &e;
    const Shape &shape;
    std::deque<Block> blocks; // used again for the next ones

    uint32_t n_warp() const
    {
        return (g.block[0] * g.block[1] * g.block[2] + warp_lanes - 1) / warp_lanes;
    }
    size_t local_words() const
    {
        return (size_t)e.local_bytes * warp_lanes / 4;
    }
    size_t words_of_warp() const;
    void make(Block &b);
    void fill(Warp &w, Slot slot, uint64_t value, uint32_t bits);
    uint64_t special(const Warp &w, Special which, uint32_t lane) const;
    void begin(Block &b, const uint32_t index[3], uint32_t cluster, uint32_t rank);
    void run_resident();
    void end(Block &b);
};

size_t Runner::words_of_warp() const
{
    return Pool::whole((size_t)e.n_unit * warp_lanes) + (e.wgmma ? 3 : 1) * Pool::whole(e.n_unit) +
           Pool::whole(local_words());
}

void Runner::make(Block &b)
{
    b.grid = &g;
    b.n_thread = g.block[0] * g.block[1] * g.block[2];
    b.warps.resize(n_warp());
    b.shared.resize(g.shared_bytes);
    for (uint32_t k = 0; k < n_warp(); k++) {
        Warp &w = b.warps[k];
        w.block = &b;
        w.number = k;
        w.file = pool.take((size_t)e.n_unit * warp_lanes);
        w.defined = pool.take(e.n_unit);
        w.written = e.wgmma ? pool.take(e.n_unit) : nullptr;
        w.in_flight = e.wgmma ? pool.take(e.n_unit) : nullptr;
        w.local = (unsigned char *)pool.take(local_words());
        const uint32_t n = std::min(warp_lanes, b.n_thread - k * warp_lanes);
        w.missing = n == warp_lanes ? 0 : all_lanes << n;
        for (const Constant &c : e.constants)
            fill(w, c.slot, c.value + (c.in_dynamic ? g.dynamic_at : 0), c.bits);
    }
}

void Runner::fill(Warp &w, Slot slot, uint64_t value, uint32_t bits)
{
    if (bits == 1)
        w.mask(slot) = value ? all_lanes : 0;
    else if (bits == 64)
        std::fill(w.longs(slot), w.longs(slot) + warp_lanes, value);
    else
        std::fill(w.words(slot), w.words(slot) + warp_lanes, (uint32_t)value);
}

uint64_t Runner::special(const Warp &w, Special which, uint32_t lane) const
{
    const Block &b = *w.block;
    const uint32_t thread = w.number * warp_lanes + lane;
    const uint32_t tid[3] = {thread % g.block[0], thread / g.block[0] % g.block[1],
                             thread / g.block[0] / g.block[1]};
    const auto axis = [&](Special first) { return (int)which - (int)first; };
    const uint32_t *c = g.cluster;
    switch (which) {
    case Special::tid_x:
    case Special::tid_y:
    case Special::tid_z:
        return tid[axis(Special::tid_x)];
    case Special::ntid_x:
    case Special::ntid_y:
    case Special::ntid_z:
        return g.block[axis(Special::ntid_x)];
    case Special::ctaid_x:
    case Special::ctaid_y:
    case Special::ctaid_z:
        return b.index[axis(Special::ctaid_x)];
    case Special::nctaid_x:
    case Special::nctaid_y:
    case Special::nctaid_z:
        return g.grid[axis(Special::nctaid_x)];
    case Special::laneid:
        return lane;
    case Special::warpid:
        return w.number;
    case Special::nwarpid:
        return b.warps.size();
    case Special::lanemask_eq:
        return 1u << lane;
    case Special::lanemask_le:
        return (2u << lane) - 1;
    case Special::lanemask_lt:
        return (1u << lane) - 1;
    case Special::lanemask_ge:
        return ~((1u << lane) - 1);
    case Special::lanemask_gt:
        return ~((2u << lane) - 1);
    case Special::clusterid_x:
    case Special::clusterid_y:
    case Special::clusterid_z:
        return b.index[axis(Special::clusterid_x)] / c[axis(Special::clusterid_x)];
    case Special::nclusterid_x:
    case Special::nclusterid_y:
    case Special::nclusterid_z:
        return g.grid[axis(Special::nclusterid_x)] / c[axis(Special::nclusterid_x)];
    case Special::cluster_ctaid_x:
    case Special::cluster_ctaid_y:
    case Special::cluster_ctaid_z:
        return b.index[axis(Special::cluster_ctaid_x)] % c[axis(Special::cluster_ctaid_x)];
    case Special::cluster_nctaid_x:
    case Special::cluster_nctaid_y:
    case Special::cluster_nctaid_z:
        return c[axis(Special::cluster_nctaid_x)];
    case Special::cluster_ctarank:
        return b.rank;
    case Special::cluster_nctarank:
        return c[0] * c[1] * c[2];
    case Special::dynamic_smem_size:
        return g.dynamic_bytes;
    case Special::total_smem_size:
        return g.shared_bytes;
    case Special::smid:
        return 0;
    case Special::nsmid:
        return 1;
    case Special::gridid:
        return g.number;
    case Special::count:
        break;
    }
    return 0;
}

void Runner::begin(Block &b, const uint32_t index[3], uint32_t cluster, uint32_t rank)
{
    std::copy(index, index + 3, b.index);
    b.cluster = cluster;
    b.rank = rank;
    b.n_present = b.n_thread;
    std::fill(b.shared.begin(), b.shared.end(), 0xff);
    for (Barrier &barrier : b.barrier)
        barrier = Barrier();
    make_hazards(b);
    for (Warp &w : b.warps) {
        w.exited = w.missing;
        w.groups.assign(1, {0, ~w.missing, 0, false, false, 0});
        w.running = 0;
        std::fill(w.defined, w.defined + e.n_unit, 0u);
        std::fill(w.depth, w.depth + warp_lanes, 0u);
        for (const Constant &c : e.constants)
            w.defined[c.slot] = all_lanes;
        for (const SpecialSlot &s : e.specials) {
            w.defined[s.slot] = all_lanes;
            for (uint32_t lane = 0; lane < warp_lanes; lane++)
                if (s.which == Special::gridid)
                    w.longs(s.slot)[lane] = special(w, s.which, lane);
                else
                    w.words(s.slot)[lane] = (uint32_t)special(w, s.which, lane);
        }
        std::fill(w.local, w.local + (size_t)e.local_bytes * warp_lanes, 0xff);
        if (e.wgmma) {
            std::fill(w.written, w.written + e.n_unit, 0u);
            std::fill(w.in_flight, w.in_flight + e.n_unit, 0u);
            begin_products(w);
        }
    }
}

void Runner::end(Block &b)
{
    for (Warp &w : b.warps)
        if (e.wgmma)
            end_products(w, nullptr);
    drop_hazards(b);
}

// One turn of each warp after another, or turns of random lengths of warps that are drawn.
void Runner::run_resident()
{
    std::vector<Warp *> warps;
    for (Block *b : g.resident)
        for (Warp &w : b->warps)
            warps.push_back(&w);
    uint32_t idle = 0;
    uint64_t events = g.events;
    while (std::any_of(g.resident.begin(), g.resident.end(),
                       [](const Block *b) { return b->n_present; })) {
        uint64_t ran = 0;
        const size_t first = in_order() ? 0 : random_below((uint32_t)warps.size());
        for (size_t k = 0; k < warps.size(); k++) {
            Warp &w = *warps[(first + k) % warps.size()];
            if (!can_run(w))
                continue;
            const uint64_t turn = in_order() ? in_order_turn : 1ull << random_below(12);
            const uint64_t n = run_warp(w, turn);
            g.step += n;
            ran += n;
            let_due_happen(g);
            if (!in_order() && !random_below(4))
                break;
        }
        if (g.events != events) {
            events = g.events;
            idle = 0;
        }
        if (ran || let_one_happen(g))
            continue;
        if (++idle > patience)
            fault_stuck(g);
        bool any = false;
        for (Warp *w : warps) {
            end_polls(*w);
            any |= can_run(*w);
        }
        if (!any)
            fault_stuck(g);
    }
    while (let_one_happen(g)) {
    }
}

void Runner::run()
{
    const uint32_t *c = shape.cluster;
    const uint32_t of_cluster = c[0] * c[1] * c[2];
    const uint32_t n[3] = {g.grid[0] / c[0], g.grid[1] / c[1], g.grid[2] / c[2]}; // clusters
    const uint32_t n_cluster = n[0] * n[1] * n[2];
    std::vector<uint32_t> order(n_cluster);
    std::iota(order.begin(), order.end(), 0u);
    for (uint32_t k = n_cluster; k > 1 && !in_order(); k--)
        std::swap(order[k - 1], order[random_below(k)]);
    const uint32_t at_once = shape.all_resident ? n_cluster : 1;
    blocks.resize((size_t)at_once * of_cluster);
    pool.reset(blocks.size() * n_warp() * words_of_warp());
    for (Block &b : blocks)
        make(b);
    for (uint32_t done = 0; done < n_cluster; done += at_once) {
        for (uint32_t k = 0; k < at_once * of_cluster; k++) {
            const uint32_t number = order[done + k / of_cluster], rank = k % of_cluster;
            const uint32_t index[3] = {number % n[0] * c[0] + rank % c[0],
                                       number / n[0] % n[1] * c[1] + rank / c[0] % c[1],
                                       number / n[0] / n[1] * c[2] + rank / c[0] / c[1]};
            begin(blocks[k], index, number, rank);
            g.resident.push_back(&blocks[k]);
        }
        run_resident();
        for (Block *b : g.resident)
            end(*b);
        g.resident.clear();
    }
}
} // namespace

void run_grid(const Entry &e, const Shape &shape, uint64_t number)
{
    forget_constant_reads();
    Runner(e, shape, number).run();
}
} // namespace ptx
