// Memory barriers in shared memory, proxy fences, addresses in other blocks of a cluster.
//
// Source: PTX ISA 9, "Parallel Synchronization and Communication Instructions": mbarrier, membar /
// fence; "Data Movement and Conversion Instructions": mapa, getctarank.
#include "asynchronous.hpp"

namespace ptx
{
// --- addresses ---

Window take_window(Statement &s)
{
    if (s.take("shared::cluster"))
        return Window::cluster;
    return s.take("shared::cta") || s.take("shared") ? Window::cta : Window::generic;
}

SharedPlace place_in(Warp &w, const Inst &i, const AddressOperand &a, Window window, uint32_t bytes,
                     uint32_t align, uint32_t lane)
{
    uint64_t addr = address_in(w, i, a, lane);
    if (window == Window::generic) {
        if (addr >> 60 != shared_window >> 60)
            fault(w, i, 1u << lane, "generic address 0x%llx is not of shared memory",
                  (unsigned long long)addr);
        addr -= shared_window;
    }
    const SharedPlace p = reach_shared(w, i, addr, bytes, align, lane);
    if (window == Window::cta && p.block != w.block)
        fault(w, i, 1u << lane, "shared address 0x%llx is of another block, not in .shared::cta",
              (unsigned long long)addr);
    return p;
}

SharedPlace same_place(Warp &w, const Inst &i, SharedPlace p, uint32_t rank, uint32_t lane)
{
    const uint64_t addr = (uint64_t)(rank + 1) << cluster_shift | (shared_at + p.offset);
    return reach_shared(w, i, addr, 1, 1, lane);
}

// --- the object ---

constexpr uint32_t max_count = (1u << 20) - 1; // "Contents of the mbarrier object"

// The 64 bits that an object has in memory: they change with each operation, so that a value
// written over it, or copied to it, is noticed.
static uint64_t word_of(const Mbarrier &m)
{
    uint64_t v = (uint64_t)m.phase << 40 ^ (uint64_t)m.pending << 20 ^ m.expected;
    v = (v ^ v >> 31) * 0x9e3779b97f4a7c15 + (uint32_t)m.tx;
    v = (v ^ v >> 29) * 0xbf58476d1ce4e5b9 + m.offset;
    v = (v ^ v >> 32) * 0x94d049bb133111eb;
    return v ^ v >> 30;
}

static void keep_word(Block &b, Mbarrier &m)
{
    m.word = word_of(m);
    memcpy(b.shared.data() + m.offset, &m.word, sizeof m.word);
}

static Mbarrier *find(const SharedPlace &p)
{
    auto &all = p.block->hazards->mbarriers;
    auto at = all.find(p.offset);
    return at == all.end() ? nullptr : &at->second;
}

static bool is_whole(const SharedPlace &p, const Mbarrier &m)
{
    return !memcmp(p.block->shared.data() + p.offset, &m.word, sizeof m.word);
}

static const char *whose(const Warp &w, const SharedPlace &p)
{
    return p.block == w.block ? "" : " of another block";
}

Mbarrier &mbarrier_at(Warp &w, const Inst &i, uint32_t lane, SharedPlace p)
{
    check_hazards(w, i, *p.block, p.offset, 8, lane, true, "uses");
    Mbarrier *m = find(p);
    if (!m)
        fault(w, i, 1u << lane, "there is no mbarrier at shared address 0x%x%s: not initialised",
              shared_at + p.offset, whose(w, p));
    if (!is_whole(p, *m))
        fault(w, i, 1u << lane,
              "the mbarrier at shared address 0x%x%s, initialised at %s, has been written over",
              shared_at + p.offset, whose(w, p), place_of(*w.block->grid->entry, *m->init).c_str());
    return *m;
}

// The copy engine reaches an mbarrier through the generic proxy ("This instruction accesses its
// mbarrier operand using generic-proxy"): in the issuing block a barrier behind mbarrier.init is
// enough.
void mbarrier_for_copy(Warp &w, const Inst &i, uint32_t lane, SharedPlace p)
{
    const Mbarrier &m = mbarrier_at(w, i, lane, p);
    if (p.block == w.block || fenced_since(*p.block, m.thread, m.clock, &Hazards::init_fenced) ||
        fenced_since(*p.block, m.thread, m.clock, &Hazards::fenced))
        return;
    if (first_time(*w.block->grid, i, Finding::unseen_mbarrier))
        note(w, i, 1u << lane,
             "the copy reports to the mbarrier at shared address 0x%x of another block, whose "
             "initialisation at %s is not followed by fence.mbarrier_init or fence.proxy.async",
             shared_at + p.offset, place_of(*w.block->grid->entry, *m.init).c_str());
}

// "Phase Completion of the mbarrier object"
static void complete_phase(Block &b, Mbarrier &m)
{
    if (!m.pending && !m.tx) {
        m.phase++;
        m.pending = m.expected;
        happened(*b.grid);
    }
    keep_word(b, m);
}

static void add_tx(Warp &w, const Inst &i, uint32_t lane, SharedPlace p, Mbarrier &m, int64_t by)
{
    const int64_t tx = m.tx + by;
    if (tx > max_count || tx < -(int64_t)max_count)
        fault(w, i, 1u << lane,
              "the tx-count of the mbarrier at shared address 0x%x%s goes from %d to %lld, out of "
              "-1048575 .. 1048575",
              shared_at + p.offset, whose(w, p), m.tx, (long long)tx);
    m.tx = (int32_t)tx;
}

static void check_count(Warp &w, const Inst &i, uint32_t lane, uint32_t count)
{
    if (count < 1 || count > max_count)
        fault(w, i, 1u << lane, "a count of %u, out of 1 .. 1048575", count);
}

static void take_arrivals(Warp &w, const Inst &i, uint32_t lane, SharedPlace p, Mbarrier &m,
                          uint32_t count)
{
    check_count(w, i, lane, count);
    if (count > m.pending)
        fault(w, i, 1u << lane,
              "%u arrivals at the mbarrier at shared address 0x%x%s, whose phase %u waits for %u "
              "of %u "
              "more and has a tx-count of %d",
              count, shared_at + p.offset, whose(w, p), m.phase, m.pending, m.expected, m.tx);
    m.pending -= count;
}

void mbarrier_increment(Warp &w, const Inst &i, uint32_t lane, SharedPlace p)
{
    Mbarrier &m = mbarrier_at(w, i, lane, p);
    if (m.pending == max_count)
        fault(w, i, 1u << lane,
              "the pending count of the mbarrier at shared address 0x%x exceeds 1048575",
              shared_at + p.offset);
    m.pending++;
    keep_word(*p.block, m);
}

void mbarrier_arrive(Warp &w, const Inst &i, uint32_t lane, SharedPlace p, uint32_t count)
{
    Mbarrier &m = mbarrier_at(w, i, lane, p);
    take_arrivals(w, i, lane, p, m, count);
    complete_phase(*p.block, m);
}

void mbarrier_complete(Warp &w, const Inst &i, uint32_t lane, Block &b, uint32_t offset,
                       uint32_t bytes)
{
    const SharedPlace p = {&b, offset};
    Mbarrier &m = mbarrier_at(w, i, lane, p);
    add_tx(w, i, lane, p, m, -(int64_t)bytes);
    complete_phase(b, m);
}

// --- states: 0xa, the offset in units of 8, 24 bits of the phase, .noComplete, the pending count
// ---

static uint64_t state_of(const Mbarrier &m, bool no_complete)
{
    return 0xaull << 60 | (uint64_t)(m.offset / 8) << 45 | (uint64_t)(m.phase & 0xffffff) << 21 |
           (uint64_t)no_complete << 20 | m.pending;
}

// True if the phase of `state`, the current one or the one before it, is complete.
static bool is_over(Warp &w, const Inst &i, uint32_t lane, const Mbarrier &m, uint64_t state)
{
    const uint32_t age = (m.phase - (uint32_t)(state >> 21)) & 0xffffff;
    if (state >> 60 != 0xa || (state >> 45 & 0x7fff) != m.offset / 8)
        fault(w, i, 1u << lane, "0x%llx is not a state of the mbarrier at shared address 0x%x",
              (unsigned long long)state, shared_at + m.offset);
    if (age > 1)
        fault(w, i, 1u << lane,
              "a state of phase %u, and the mbarrier at shared address 0x%x is in phase %u: not "
              "the current "
              "phase nor the one before it",
              (uint32_t)(state >> 21) & 0xffffff, shared_at + m.offset, m.phase);
    return age;
}

// --- instructions ---

namespace
{
struct Form {
    AddressOperand at;
    Window window;
    int operand; // source; -1: none
    bool state;  // a result is wanted
};
} // namespace

static Next init(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        const SharedPlace p = place_in(w, i, f.at, f.window, 8, 8, lane);
        const uint32_t count = word_in(w, i, (uint8_t)f.operand, lane);
        check_hazards(w, i, *p.block, p.offset, 8, lane, true, "initialises");
        check_count(w, i, lane, count);
        const Mbarrier *old = find(p);
        if (old && is_whole(p, *old))
            fault(
                w, i, 1u << lane,
                "there is a valid mbarrier at shared address 0x%x, initialised at %s: it has to be "
                "invalidated first",
                shared_at + p.offset, place_of(*w.block->grid->entry, *old->init).c_str());
        Mbarrier m = {p.offset, 0, count, count, 0, 0, &i, thread_of(w, lane), Hazards::clock};
        keep_word(*p.block, m);
        p.block->hazards->mbarriers[p.offset] = m;
    });
    return Next::on;
}

static Next invalidate(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        const SharedPlace p = place_in(w, i, f.at, f.window, 8, 8, lane);
        mbarrier_at(w, i, lane, p);
        p.block->hazards->mbarriers.erase(p.offset);
        memset(p.block->shared.data() + p.offset, 0xff, 8);
    });
    return Next::on;
}

template <bool expect> static Next change_tx(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        const SharedPlace p = place_in(w, i, f.at, f.window, 8, 8, lane);
        const int64_t count = word_in(w, i, (uint8_t)f.operand, lane);
        Mbarrier &m = mbarrier_at(w, i, lane, p);
        add_tx(w, i, lane, p, m, expect ? count : -count);
        complete_phase(*p.block, m);
    });
    return Next::on;
}

// Arrivals of one lane; returns the state before.
template <bool drop, bool expect, bool no_complete>
static uint64_t arrive_one(Warp &w, const Inst &i, const Form &f, uint32_t lane)
{
    const SharedPlace p = place_in(w, i, f.at, f.window, 8, 8, lane);
    if (f.state && p.block != w.block)
        fault(w, i, 1u << lane,
              "an mbarrier of another block has no state for this one: '_' is wanted");
    Mbarrier &m = mbarrier_at(w, i, lane, p);
    const uint32_t operand = f.operand < 0 ? 1 : word_in(w, i, (uint8_t)f.operand, lane);
    const uint32_t count = expect ? 1 : operand;
    if (expect)
        add_tx(w, i, lane, p, m, operand);
    const uint64_t state = state_of(m, no_complete);
    if (drop) {
        check_count(w, i, lane, count);
        if (count > m.expected)
            fault(w, i, 1u << lane, "%u are dropped of an expected arrival count of %u", count,
                  m.expected);
        m.expected -= count;
    }
    take_arrivals(w, i, lane, p, m, count);
    if (no_complete && !m.pending && !m.tx)
        fault(w, i, 1u << lane, "an arrival with .noComplete completes phase %u", m.phase);
    complete_phase(*p.block, m);
    return state;
}

template <bool drop, bool expect, bool no_complete>
static Next arrive(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        w.longs(i.d[0])[lane] = arrive_one<drop, expect, no_complete>(w, i, f, lane);
    });
    happened(*w.block->grid);
    return Next::on;
}

// Lanes whose phase is over. A random schedule lets try_wait give up early now and then.
template <bool parity, bool gives_up> static Next wait(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    uint32_t over = 0;
    each(lanes, [&](uint32_t lane) {
        const SharedPlace p = place_in(w, i, f.at, f.window, 8, 8, lane);
        if (p.block != w.block)
            fault(w, i, 1u << lane, "an mbarrier of another block cannot be waited for");
        const Mbarrier &m = mbarrier_at(w, i, lane, p);
        bool is;
        if (parity) {
            is = (m.phase & 1) != (word_in(w, i, (uint8_t)f.operand, lane) & 1); // of any integer
        } else {
            is = is_over(w, i, lane, m, w.longs(i.s[f.operand])[lane]);
        }
        over |= (uint32_t)is << lane;
    });
    const bool early = gives_up && over && !in_order() && !random_below(8);
    uint32_t &mask = w.mask(i.d[0]);
    mask = (mask & ~lanes) | (early ? 0 : over);
    return over ? Next::on : Next::poll;
}

static Next pending_count(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint64_t *states = w.longs(i.s[0]);
    each(lanes, [&](uint32_t lane) {
        const uint64_t state = states[lane];
        if (state >> 60 != 0xa || !(state >> 20 & 1))
            fault(w, i, 1u << lane, "0x%llx is not a state of an arrival with .noComplete",
                  (unsigned long long)state);
        w.words(i.d[0])[lane] = state & max_count;
    });
    return Next::on;
}

// --- decoders ---

// Order and scope, of which there is one here; ".sem" and ".scope" must be specified together.
static void take_order(Statement &s, const char *sem)
{
    const bool order = s.take(sem) || s.take("relaxed");
    if (order != (s.take_of({"cta", "cluster"}) >= 0))
        s.refuse(".%s or .relaxed, and .cta or .cluster, are expected together", sem);
}

static Run decode_arrive(Statement &s, bool drop)
{
    const bool expect = s.take("expect_tx"), no_complete = s.take("noComplete");
    if (expect && no_complete)
        s.refuse(".expect_tx with .noComplete");
    take_order(s, "release");
    Form f = {};
    f.window = take_window(s);
    f.state = !s.is_sink(0);
    if (f.state && f.window == Window::cluster)
        s.refuse("an mbarrier in .shared::cluster gives no state: '_' is expected");
    if (no_complete && f.window == Window::cluster)
        s.refuse(".noComplete with .shared::cluster");
    s.target(0, Type::b64);
    Asker ask = {s};
    f.at = ask.address(1);
    f.operand = expect || no_complete || s.n_operand() > 2 ? ask.source(2, Type::u32) : -1;
    keep_form(s, f);
    static const Run runs[2][3] = {
        {arrive<false, false, false>, arrive<false, true, false>, arrive<false, false, true>},
        {arrive<true, false, false>, arrive<true, true, false>, arrive<true, false, true>},
    };
    return runs[drop][expect ? 1 : no_complete ? 2 : 0];
}

static Run decode_wait(Statement &s, bool gives_up)
{
    const bool parity = s.take("parity");
    take_order(s, "acquire");
    Form f = {};
    f.window = take_window(s);
    if (f.window == Window::cluster)
        s.refuse("an mbarrier in .shared::cluster cannot be waited for");
    s.target(0, Type::pred);
    Asker ask = {s};
    f.at = ask.address(1);
    f.operand = ask.source(2, parity ? Type::u32 : Type::b64);
    if (gives_up && s.n_operand() > 3)
        ask.source(3, Type::u32); // a time
    keep_form(s, f);
    static const Run runs[2][2] = {{wait<false, false>, wait<false, true>},
                                   {wait<true, false>, wait<true, true>}};
    return runs[parity][gives_up];
}

static Run decode_simple(Statement &s, Run run, bool count, bool remote)
{
    Form f = {};
    if (remote)
        take_order(s, "relaxed");
    f.window = take_window(s);
    if (!remote && f.window == Window::cluster)
        s.refuse(".shared::cluster is not possible");
    Asker ask = {s};
    f.at = ask.address(0);
    f.operand = count ? ask.source(1, Type::u32) : -1;
    keep_form(s, f);
    return run;
}

static Run decode_mbarrier(Statement &s)
{
    if (!s.take("b64"))
        s.refuse(".b64 is expected");
    switch (s.must_take_of({"init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait",
                            "pending_count", "complete_tx", "expect_tx"})) {
    case 0:
        return decode_simple(s, init, true, false);
    case 1:
        return decode_simple(s, invalidate, false, false);
    case 2:
        return decode_arrive(s, false);
    case 3:
        return decode_arrive(s, true);
    case 4:
        return decode_wait(s, false);
    case 5:
        return decode_wait(s, true);
    case 6:
        s.target(0, Type::u32);
        s.source(1, Type::b64);
        s.inst.strict = true;
        return pending_count;
    case 7:
        return decode_simple(s, change_tx<false>, true, true);
    default:
        return decode_simple(s, change_tx<true>, true, true);
    }
}

// --- fences ---

static Next nothing(Warp &, const Inst &, uint32_t)
{
    return Next::on;
}
static Next fence_async(Warp &w, const Inst &, uint32_t lanes)
{
    fence_proxy(w, lanes);
    return Next::on;
}
static Next fence_init(Warp &w, const Inst &, uint32_t lanes)
{
    fence_threads(w, lanes, &Hazards::init_fenced);
    return Next::on;
}
// The map that a fence.proxy.tensormap::generic.acquire is for.
static Next acquire_map(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        const uint64_t addr = address_in(w, i, f.at, lane);
        if (addr >> 60)
            fault(w, i, 1u << lane, "generic address 0x%llx is not of global memory",
                  (unsigned long long)addr);
        reach(w, i, Space::generic, addr, 128, 64, lane, Access::read);
    });
    return Next::on;
}

static Run decode_map_fence(Statement &s)
{
    const bool acquire = s.must_take_of({"release", "acquire"}) == 1;
    s.must_take_of({"cta", "cluster", "gpu", "sys"});
    if (!acquire)
        return nothing;
    Form f = {};
    f.at = Asker{s}.address(0);
    if (s.immediate(1) != 128)
        s.refuse("a size of 128 is expected");
    keep_form(s, f);
    return acquire_map;
}

static Run decode_fence(Statement &s)
{
    if (s.take("mbarrier_init")) {
        if (!s.take("release") || !s.take("cluster"))
            s.refuse(".release.cluster is expected");
        return fence_init;
    }
    if (!s.take("proxy"))
        return nullptr; // of threads
    if (s.take("alias"))
        return nothing;
    if (s.take("tensormap::generic"))
        return decode_map_fence(s);
    if (!s.take("async"))
        s.refuse("the proxy is not known");
    if (s.take("global"))
        return nothing;
    s.take_of({"shared::cta", "shared::cluster"});
    return fence_async;
}

static Run decode_membar(Statement &s)
{
    if (!s.words.empty() && s.words[0] == "proxy")
        return decode_fence(s);
    return nullptr;
}

// --- addresses in a cluster ---

static uint32_t cluster_size(const Grid &g)
{
    return g.cluster[0] * g.cluster[1] * g.cluster[2];
}

// The shared address in value, without the window.
template <bool generic>
static uint64_t shared_address(Warp &w, const Inst &i, uint64_t value, uint32_t lane)
{
    const uint64_t addr = value - (generic ? shared_window : 0);
    if (addr >> 32)
        fault(w, i, 1u << lane, "0x%llx is not %s", (unsigned long long)value,
              generic ? "a generic address of shared memory" : "a shared address");
    return addr;
}

template <class T, bool generic> static Next map_address(Warp &w, const Inst &i, uint32_t lanes)
{
    Lanes<T> d(w, i.d[0]), a(w, i.s[0]);
    Lanes<uint32_t> b(w, i.s[1]);
    each(lanes, [&](uint32_t lane) {
        const uint64_t addr = shared_address<generic>(w, i, a[lane], lane);
        if (b[lane] >= cluster_size(*w.block->grid))
            fault(w, i, 1u << lane, "rank %u, and the cluster has %u blocks", b[lane],
                  cluster_size(*w.block->grid));
        const uint64_t offset = addr & ((1u << cluster_shift) - 1);
        d.set(lane, (T)((generic ? shared_window : 0) | (uint64_t)(b[lane] + 1) << cluster_shift |
                        offset));
    });
    return Next::on;
}

template <class T, bool generic> static Next rank_of_address(Warp &w, const Inst &i, uint32_t lanes)
{
    Lanes<T> a(w, i.s[0]);
    each(lanes, [&](uint32_t lane) {
        const uint32_t addr = (uint32_t)shared_address<generic>(w, i, a[lane], lane);
        w.words(i.d[0])[lane] = addr >> cluster_shift ? (addr >> cluster_shift) - 1 : w.block->rank;
    });
    return Next::on;
}

// .u32 of generic addresses is refused: they have 64 bits here.
static bool take_wide(Statement &s, bool *generic)
{
    *generic = !s.take("shared::cluster");
    const bool wide = s.must_take_of({"u32", "u64"}) == 1;
    if (*generic && !wide)
        s.refuse("a generic address has .u64");
    s.inst.strict = true;
    return wide;
}

static Run decode_mapa(Statement &s)
{
    bool generic;
    const bool wide = take_wide(s, &generic);
    const Type t = wide ? Type::u64 : Type::u32;
    s.target(0, t);
    s.source(1, t);
    s.source(2, Type::u32);
    return generic ? map_address<uint64_t, true>
           : wide  ? map_address<uint64_t, false>
                   : map_address<uint32_t, false>;
}

static Run decode_getctarank(Statement &s)
{
    bool generic;
    const bool wide = take_wide(s, &generic);
    s.target(0, Type::u32);
    s.source(1, wide ? Type::u64 : Type::u32);
    return generic ? rank_of_address<uint64_t, true>
           : wide  ? rank_of_address<uint64_t, false>
                   : rank_of_address<uint32_t, false>;
}

const Operation mbarriers[] = {
    {"mbarrier", decode_mbarrier}, {"fence", decode_fence},           {"membar", decode_membar},
    {"mapa", decode_mapa},         {"getctarank", decode_getctarank}, {nullptr, nullptr},
};
} // namespace ptx
