// The threads of the running block: who runs next, how they wait for each other.
#include <string.h>

#include <utility>

#include "check.hpp"
#include "engine.hpp"

namespace emu
{
Block block;
Index *current;
uint3 block_index, block_dim, grid_dim;

static constexpr uint32_t most_idle =
    100000; // rounds of polling until nothing will happen any more

// --- the schedule ---

// The first of `set` behind `from`, going round.
static inline uint32_t bit_after(uint32_t set, uint32_t from)
{
    uint32_t behind = set & (uint32_t)(~(uint64_t)1 << from);
    return (uint32_t)__builtin_ctz(behind ? behind : set);
}
static inline uint32_t any_bit(uint32_t set)
{
    return bit_after(set, random_below(32));
}

// Puts a warp somewhere behind where it is.
static void demote(Warp &w)
{
    uint32_t p = w.place, q = p + random_below(block.n_warp - p);
    uint32_t differ = (block.ready >> p ^ block.ready >> q) & 1;
    block.ready ^= differ << p | differ << q;
    std::swap(block.order[p], block.order[q]);
    block.order[p]->place = p;
    block.order[q]->place = q;
}

// Threads that poll go on when no other can; after most_idle rounds of that, none ever will.
static bool wake_polling()
{
    if (!block.polling || ++block.idle > most_idle)
        return false;
    for (uint32_t w = 0; w < block.n_warp; w++) {
        uint32_t lanes = block.warp[w].polling;
        block.warp[w].polling = 0;
        wake(block.warp[w], lanes);
    }
    block.polling = false;
    return true;
}

static Thread *next()
{
    engine_step();
    while (!block.ready && engine_idle()) {
    }
    if (!block.ready && !wake_polling())
        return nullptr;
    Thread &t = self();
    if (options.policy == EMU_IN_ORDER) {
        if (t.warp->runnable)
            return t.warp->thread + bit_after(t.warp->runnable, t.lane);
        Warp &w = *block.order[bit_after(block.ready, t.warp->place)];
        return w.thread + __builtin_ctz(w.runnable);
    }
    bool random = options.policy == EMU_RANDOM;
    Warp &w = *block.order[random ? any_bit(block.ready) : (uint32_t)__builtin_ctz(block.ready)];
    if (!random && random_below(64) == 0)
        demote(w);
    return w.thread + any_bit(w.runnable);
}

static void thread_main();

static inline void go_on(Thread &n)
{
    Thread &t = self();
    if (&n == &t)
        return;
    if (!n.context) {
        n.stack = stack_take();
        n.context = stack_enter(n.stack, thread_main);
    }
    current = &n;
    emu_switch(&t.context, n.context);
}

static inline void sleep(Thread &t)
{
    Warp &w = *t.warp;
    w.runnable &= ~(1u << t.lane);
    if (!w.runnable)
        block.ready &= ~(1u << w.place);
}

void wake(Warp &w, uint32_t lanes)
{
    w.runnable |= lanes;
    if (lanes)
        block.ready |= 1u << w.place;
}

void wait(const char *what, Site site)
{
    Thread &t = self();
    t.waits_for = what;
    t.site = site;
    sleep(t);
    Thread *n = next();
    if (!n)
        fail_stuck();
    go_on(*n);
    t.waits_for = nullptr;
}

void give_way()
{
    go_on(*next());
}

void yield()
{
    if (options.policy != EMU_IN_ORDER)
        give_way();
}

void poll(const char *what, Site site)
{
    Thread &t = self();
    t.warp->polling |= 1u << t.lane;
    block.polling = true;
    wait(what, site);
}

// --- lanes that meet ---

static void complete(Warp &w, int i, uint32_t awake)
{
    Meeting m = w.meeting[i];
    w.meeting[i] = w.meeting[--w.n_meeting];
    m.what->compute(w, m.arrived);
    wake(w, m.arrived & ~awake);
    progress();
}

static int meeting_of(Warp &w, const Together &what, uint32_t mask, Site site)
{
    for (int i = 0; i < w.n_meeting; i++)
        if (w.meeting[i].what == &what && w.meeting[i].mask == mask)
            return i;
    w.meeting[w.n_meeting] = {&what, mask, 0, site};
    return w.n_meeting++;
}

void meet(const Together &what, uint32_t mask, Site site)
{
    Thread &t = self();
    Warp &w = *t.warp;
    uint32_t bit = 1u << t.lane;
    if (!(mask & bit))
        fail(site, "%s: the mask 0x%08x does not name the lane itself, %u", what.name, mask,
             t.lane);
    if (what.aligned && w.ended)
        fail(site, "%s needs all 32 lanes, and of 0x%08x some have returned", what.name, w.ended);
    int i = meeting_of(w, what, mask, site);
    Meeting &m = w.meeting[i];
    if (what.aligned && (m.site.line != site.line || strcmp(m.site.file, site.file)))
        fail(site, "%s: other lanes of the warp are at %s: all have to execute the same one",
             what.name, place(m.site).c_str());
    m.arrived |= bit;
    if (m.arrived == (mask & ~w.ended)) {
        complete(w, i, bit);
        yield();
    } else {
        wait(what.name, site);
    }
}

// --- barriers ---

static void release(Barrier &b, Thread *last)
{
    b.result = b.sum;
    b.of = (int)b.have;
    check_complete(b);
    for (uint32_t i = 0; i < block.n_warp; i++) {
        Warp &w = block.warp[i];
        uint32_t gone = w.ended & ~w.missing;
        if (b.waiting[i] && gone && &b == block.barrier)
            fail(b.site,
                 "__syncthreads: lanes 0x%08x of warp %u wait there, lanes 0x%08x have "
                 "returned: all of a warp have to come",
                 b.waiting[i], i, gone);
        uint32_t bit = last && last->warp == &w ? 1u << last->lane : 0;
        wake(w, b.waiting[i] & ~bit);
        b.waiting[i] = 0;
    }
    b.have = b.need = 0;
    b.sum = 0;
    progress();
}

static void arrive(Barrier &b, uint32_t need, bool stay, const char *what, Site site)
{
    Thread &t = self();
    b.need = need;
    b.have++;
    if (stay)
        b.waiting[t.warp - block.warp] |= 1u << t.lane;
    check_arrive(b, t);
    if (b.have == need) {
        release(b, &t);
        yield();
    } else if (stay) {
        wait(what, site);
    }
}

int sync_threads(Join how, int value, Site site)
{
    Barrier &b = block.barrier[0];
    if (!b.have)
        b.site = site;
    else if (b.site.line != site.line || strcmp(b.site.file, site.file))
        fail(site,
             "__syncthreads, but %u threads wait at the one of %s: a barrier in divergent code",
             b.have, place(b.site).c_str());
    b.sum += value;
    arrive(b, block.n_thread - block.n_ended, true, "__syncthreads", site);
    switch (how) {
    case Join::and_:
        return b.result == b.of;
    case Join::or_:
        return b.result != 0;
    default:
        return b.result;
    }
}

static Barrier &named(int id, int n, const char *what, Site site)
{
    if (id < 1 || id > 15)
        fail(site, "%s: barrier %d: 1 .. 15 are there", what, id);
    if (n <= 0 || n % 32 || n > (int)block.n_warp * 32)
        fail(site,
             "%s: barrier %d of %d threads: a multiple of 32 up to the block's %u is expected",
             what, id, n, block.n_thread);
    Barrier &b = block.barrier[id];
    if (b.have && b.need != (uint32_t)n)
        fail(site, "%s: barrier %d of %d threads, but others wait there for %u", what, id, n,
             b.need);
    return b;
}

void bar_sync(int id, int n, Site site)
{
    arrive(named(id, n, "bar_sync", site), (uint32_t)n, true, "bar_sync", site);
}
void bar_arrive(int id, int n, Site site)
{
    arrive(named(id, n, "bar_arrive", site), (uint32_t)n, false, "bar_arrive", site);
}

// --- beginning and end ---

// A thread has returned: what waits for all that are left may go on.
static void end(Thread &t)
{
    Warp &w = *t.warp;
    engine_thread_ends(t);
    t.context = nullptr;
    sleep(t);
    w.ended |= 1u << t.lane;
    block.n_ended++;
    forget_copies(t);
    progress();
    for (int i = 0; i < w.n_meeting; i++) {
        if (w.meeting[i].what->aligned)
            fail(w.meeting[i].site, "%s needs all 32 lanes, and lane %u has returned",
                 w.meeting[i].what->name, t.lane);
        if (w.meeting[i].arrived == (w.meeting[i].mask & ~w.ended))
            complete(w, i--, 0);
    }
    Barrier &b = block.barrier[0];
    if (b.have && b.have == block.n_thread - block.n_ended)
        release(b, nullptr);
}

// Entry of a stack, on which threads run one after another, as long as the next one has not begun
// either.
static void thread_main()
{
    for (;;) {
        Thread &t = self();
        launch.kernel->run(launch.args);
        int stack = t.stack;
        end(t);
        void *to = block.outside;
        if (block.n_ended < block.n_thread) {
            Thread *n = next();
            if (!n)
                fail_stuck();
            current = n;
            if (!n->context) {
                n->stack = stack;
                continue;
            }
            to = n->context;
        }
        stack_give(stack);
        void *unused;
        emu_switch(&unused, to);
    }
}

static void begin_warp(uint32_t i)
{
    Warp &w = block.warp[i];
    uint32_t lanes = block.n_thread - i * 32;
    w.missing = w.ended = lanes < 32 ? ~0u << lanes : 0;
    w.runnable = ~w.missing;
    w.polling = 0;
    w.n_meeting = 0;
    w.place = i;
    block.order[i] = &w;
}

bool run_block()
{
    block.n_ended = block.idle = 0;
    block.polling = false;
    block.ready = ~0u >> (32 - block.n_warp);
    for (uint32_t i = 0; i < block.n_warp; i++)
        begin_warp(i);
    for (uint32_t i = 0; i < block.n_warp && options.policy == EMU_PRIORITIES; i++)
        demote(*block.order[i]);
    memset(block.barrier, 0, sizeof block.barrier);
    check_block();
    engine_begin();
    Thread *first = options.policy == EMU_IN_ORDER ? &block.thread[0] : next();
    current = first;
    first->stack = stack_take();
    emu_switch(&block.outside, stack_enter(first->stack, thread_main));
    return block.n_ended == block.n_thread;
}
} // namespace emu
