// Asynchronous copies: those of threads (cp.async), and groups of bulk copies.
//
// Source: PTX ISA 9, "Data Movement and Conversion Instructions": cp.async, cp.async.commit_group,
// cp.async.wait_group, cp.async.bulk.commit_group, cp.async.bulk.wait_group; "Parallel
// Synchronization and Communication Instructions": cp.async.mbarrier.arrive.
#include <algorithm>

#include "asynchronous.hpp"

namespace ptx
{
// --- of a warp ---

namespace
{
struct Copy { // one cp.async of some lanes, which ends as late as its threads allow
    const Inst *inst;
    uint32_t lanes; // that have not ended
    uint32_t bytes;
    uint64_t number; // counts those of the warp
    uint32_t group[warp_lanes];
    const unsigned char *from[warp_lanes];
    uint32_t from_bytes[warp_lanes]; // the others are zeros
    uint32_t to[warp_lanes];         // offset in Block::shared
    uint64_t hazard[warp_lanes];
};
struct Bulk { // a bulk copy that a group of its thread has or will have
    std::shared_ptr<Transfer> transfer;
    uint32_t lane, group;
};
} // namespace

// A thread's groups are numbered from 0; n_group and n_bulk_group count those that it has
// committed.
struct WarpCopies {
    std::vector<std::unique_ptr<Copy>> copies; // in the order of issue
    uint64_t n_copy = 0;
    uint32_t n_group[warp_lanes] = {};
    std::vector<Bulk> bulk;
    uint32_t n_bulk_group[warp_lanes] = {};
};

static std::shared_ptr<WarpCopies> &shared_copies_of(Warp &w)
{
    auto &all = w.block->hazards->warps;
    if (all.empty())
        all.resize(w.block->warps.size());
    if (!all[w.number])
        all[w.number] = std::make_shared<WarpCopies>();
    return all[w.number];
}

static WarpCopies &copies_of(Warp &w)
{
    return *shared_copies_of(w);
}

// --- cp.async ---

namespace
{
struct Form {
    AddressOperand to, from;
    Window window; // of `to`
    uint32_t bytes;
    int size, ignore; // sources; -1: not given
    bool ignore_not;
    bool increments; // of cp.async.mbarrier.arrive: without .noinc
};
} // namespace

static uint32_t source_bytes(Warp &w, const Inst &i, const Form &f, uint32_t lane)
{
    if (f.ignore >= 0)
        return ((w.mask(i.s[f.ignore]) >> lane & 1) != f.ignore_not) ? 0 : f.bytes;
    if (f.size < 0)
        return f.bytes;
    const uint32_t bytes = word_in(w, i, (uint8_t)f.size, lane);
    if (bytes > f.bytes)
        fault(w, i, 1u << lane, "a source of %u bytes for a copy of %u", bytes, f.bytes);
    return bytes;
}

static Next issue(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    WarpCopies &all = copies_of(w);
    auto c = std::make_unique<Copy>();
    c->inst = &i;
    c->lanes = lanes;
    c->bytes = f.bytes;
    c->number = all.n_copy++;
    each(lanes, [&](uint32_t lane) {
        const SharedPlace p = place_in(w, i, f.to, Window::cta, f.bytes, f.bytes, lane);
        check_hazards(w, i, *p.block, p.offset, f.bytes, lane, true, "is to write");
        c->group[lane] = all.n_group[lane];
        c->to[lane] = p.offset;
        c->from_bytes[lane] = source_bytes(w, i, f, lane);
        c->from[lane] = !c->from_bytes[lane]
                            ? nullptr
                            : reach(w, i, Space::global, address_in(w, i, f.from, lane),
                                    c->from_bytes[lane], f.bytes, lane, Access::read);
        memset(p.block->shared.data() + p.offset, 0xff, f.bytes);
        c->hazard[lane] =
            begin_hazard(*p.block, Hazard::arriving, p.offset, f.bytes, i, "cp.async");
    });
    all.copies.push_back(std::move(c));
    return Next::on;
}

static void finish(Warp &w, Copy &c, uint32_t lanes)
{
    Block &b = *w.block;
    c.lanes &= ~lanes;
    each(lanes, [&](uint32_t lane) {
        unsigned char *to = b.shared.data() + c.to[lane];
        if (c.from_bytes[lane])
            memcpy(to, c.from[lane], c.from_bytes[lane]);
        memset(to + c.from_bytes[lane], 0, c.bytes - c.from_bytes[lane]);
        end_hazard(b, c.hazard[lane]);
        remember_store(w, *c.inst, {&b, c.to[lane]}, c.bytes, lane);
    });
}

// Ends the copies of `lanes` for which f(copy, lane) is true.
template <class F> static void finish_those(Warp &w, WarpCopies &all, uint32_t lanes, F f)
{
    bool any = false;
    for (auto &c : all.copies) {
        uint32_t over = 0;
        each(c->lanes & lanes, [&](uint32_t lane) { over |= (uint32_t)f(*c, lane) << lane; });
        if (over)
            finish(w, *c, over);
        any |= over;
    }
    if (!any)
        return;
    all.copies.erase(std::remove_if(all.copies.begin(), all.copies.end(),
                                    [](const std::unique_ptr<Copy> &c) { return !c->lanes; }),
                     all.copies.end());
    happened(*w.block->grid);
}

static Next commit(Warp &w, const Inst &, uint32_t lanes)
{
    WarpCopies &all = copies_of(w);
    each(lanes, [&](uint32_t lane) { all.n_group[lane]++; });
    return Next::on;
}

// All but the last value[0] groups end.
static Next wait_group(Warp &w, const Inst &i, uint32_t lanes)
{
    WarpCopies &all = copies_of(w);
    const uint64_t n = (uint64_t)i.value[0];
    finish_those(w, all, lanes, [&](const Copy &c, uint32_t lane) {
        return c.group[lane] + n < all.n_group[lane];
    });
    return Next::on;
}

static Next wait_all(Warp &w, const Inst &i, uint32_t lanes)
{
    commit(w, i, lanes);
    finish_those(w, copies_of(w), lanes, [](const Copy &, uint32_t) { return true; });
    return Next::on;
}

// Once the copies that the threads have issued so far have ended, each arrives.
static Next arrive(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    struct Arrival {
        std::weak_ptr<WarpCopies> copies; // gone with the block
        uint64_t n_copy;
        SharedPlace place[warp_lanes];
    } a = {shared_copies_of(w), copies_of(w).n_copy, {}};
    each(lanes, [&](uint32_t lane) {
        a.place[lane] = place_in(w, i, f.to, f.window, 8, 8, lane);
        if (a.place[lane].block != w.block)
            fault(w, i, 1u << lane, "the mbarrier is of another block");
        mbarrier_at(w, i, lane, a.place[lane]);
        if (f.increments)
            mbarrier_increment(w, i, lane, a.place[lane]);
    });
    later(*w.block->grid, [&w, &i, lanes, a] {
        const auto all = a.copies.lock();
        if (!all)
            return;
        finish_those(w, *all, lanes, [&](const Copy &c, uint32_t) { return c.number < a.n_copy; });
        each(lanes, [&](uint32_t lane) { mbarrier_arrive(w, i, lane, a.place[lane], 1); });
    });
    return Next::on;
}

// --- groups of bulk copies ---

void add_to_group(Warp &w, uint32_t lane, std::shared_ptr<Transfer> t)
{
    WarpCopies &all = copies_of(w);
    all.bulk.push_back({std::move(t), lane, all.n_bulk_group[lane]});
}

static Next commit_bulk(Warp &w, const Inst &, uint32_t lanes)
{
    WarpCopies &all = copies_of(w);
    each(lanes, [&](uint32_t lane) { all.n_bulk_group[lane]++; });
    return Next::on;
}

// All but the last value[0] groups have ended, or have read their sources.
template <bool only_read> static Next wait_bulk(Warp &w, const Inst &i, uint32_t lanes)
{
    WarpCopies &all = copies_of(w);
    const uint64_t n = (uint64_t)i.value[0];
    const auto waited_for = [&](const Bulk &b) {
        return (lanes >> b.lane & 1) && b.group + n < all.n_bulk_group[b.lane];
    };
    for (const Bulk &b : all.bulk)
        if (waited_for(b))
            only_read ? b.transfer->read() : b.transfer->finish();
    all.bulk.erase(std::remove_if(all.bulk.begin(), all.bulk.end(),
                                  [](const Bulk &b) { return b.transfer->is_over(); }),
                   all.bulk.end());
    return Next::on;
}

// --- decoders ---

static int64_t group_count(Statement &s)
{
    const int64_t n = s.immediate(0);
    if (n < 0)
        s.refuse("a number of groups below 0");
    return n;
}

// The operand is a predicate, or else a size.
static void take_ignore(Statement &s, Asker &ask, Form &f, size_t k)
{
    if (!s.is_immediate(k)) {
        try {
            s.source_pred(k, &f.ignore_not);
            f.ignore = ask.n++;
            return;
        } catch (const Refused &) { // a register of more than one bit
        }
    }
    f.size = ask.source(k, Type::u32);
}

static Run decode_async(Statement &s)
{
    const bool all_levels = s.must_take_of({"ca", "cg"}) == 0;
    if (take_window(s) != Window::cta || !s.take("global"))
        s.refuse(".shared.global is expected");
    s.take_of({"L2::64B", "L2::128B", "L2::256B"});
    const bool policy = s.take("L2::cache_hint");
    Form f = {};
    f.size = f.ignore = -1;
    Asker ask = {s};
    f.to = ask.address(0);
    f.from = ask.address(1);
    const int64_t bytes = s.immediate(2);
    if (bytes != 16 && (!all_levels || (bytes != 4 && bytes != 8)))
        s.refuse("a size of %lld bytes", (long long)bytes);
    f.bytes = (uint32_t)bytes;
    size_t k = 3;
    if (s.n_operand() > k + policy)
        take_ignore(s, ask, f, k++);
    if (policy)
        ask.source(k, Type::b64);
    keep_form(s, f);
    return issue;
}

static Run decode_arrive(Statement &s)
{
    if (!s.take("arrive") || !s.take("b64"))
        s.refuse(".arrive.b64 is expected");
    Form f = {};
    f.increments = !s.take("noinc");
    f.window = take_window(s);
    if (f.window == Window::cluster)
        s.refuse(".shared::cluster is not possible");
    f.to = Asker{s}.address(0);
    keep_form(s, f);
    return arrive;
}

static Run decode_bulk_groups(Statement &s)
{
    if (s.take("commit_group"))
        return commit_bulk;
    if (!s.take("wait_group"))
        return nullptr;
    s.inst.value[0] = group_count(s);
    return s.take("read") ? wait_bulk<true> : wait_bulk<false>;
}

static Run decode_bulk_any(Statement &s)
{
    if (Run run = decode_bulk_groups(s))
        return run;
    if (!s.take("tensor"))
        return decode_bulk(s, false);
    return s.take("prefetch") ? decode_tensor_prefetch(s) : decode_tensor(s, false);
}

static Run decode_cp(Statement &s)
{
    const bool reduce = s.take("reduce");
    if (!s.take("async"))
        s.refuse(".async is expected");
    if (reduce) {
        if (!s.take("bulk"))
            s.refuse(".bulk is expected");
        return s.take("tensor") ? decode_tensor(s, true) : decode_bulk(s, true);
    }
    if (s.take("bulk"))
        return decode_bulk_any(s);
    if (s.take("mbarrier"))
        return decode_arrive(s);
    if (s.take("commit_group"))
        return commit;
    if (s.take("wait_all"))
        return wait_all;
    if (!s.take("wait_group"))
        return decode_async(s);
    s.inst.value[0] = group_count(s);
    return wait_group;
}

const Operation copies[] = {
    {"cp", decode_cp},
    {"tensormap", decode_tensormap},
    {nullptr, nullptr},
};
} // namespace ptx
