// The queue of operations of the emulated devices, the order in which they run, and the check
// that operations on the same bytes are ordered.
//
// An operation comes after others: the one before it in its stream, those that events stand for,
// those before it in its graph. Any operation whose predecessors are done may run; the order is
// drawn. What the host may rely on is kept as vector clocks: an operation knows which others are
// finished when it begins. Two that do not know of each other and touch the same bytes, one
// writing, are reported, whatever order they ran in.
#include "tests/emu/libcuda_state.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <deque>
#include <time.h>
#include <unistd.h>

namespace drv
{

static struct {
    std::vector<std::deque<op_ref>> open; // for each lane: what the host does not know finished
    std::vector<uint32_t> made;           // for each lane
    drv::clock host;
    std::vector<op_ref> ready;
    uint64_t marks = 0;
    uint64_t staged = 0; // bytes of pageable memory waiting
    int waiting = 0;     // messages whose other side has not come
    std::vector<std::string> told;
} Q;

unsigned new_lane()
{
    Q.open.emplace_back();
    Q.made.push_back(0);
    return (unsigned)Q.made.size() - 1;
}

void forget_queue()
{
    for (auto &lane : Q.open)
        for (auto &o : lane) {
            o->before.clear();
            o->after.clear();
            if (o->what->over) {
                o->what->over->queued[0].clear();
                o->what->over->queued[1].clear();
            }
        }
    Q = {};
}

// --- happens before ---

static uint32_t at(const drv::clock &c, unsigned lane)
{
    return lane < c.size() ? c[lane] : 0;
}

static void join(drv::clock *a, const drv::clock &b)
{
    if (a->size() < b.size())
        a->resize(b.size());
    for (size_t i = 0; i < b.size(); i++)
        (*a)[i] = std::max((*a)[i], b[i]);
}

static bool known(const drv::clock &c, const op &o) // o is finished where the clock stands
{
    return at(c, o.lane) >= at(o.when, o.lane);
}

void host_knows(const op_ref &o)
{
    join(&Q.host, o->when);
    for (unsigned lane = 0; lane < Q.open.size(); lane++) {
        auto &list = Q.open[lane];
        while (!list.empty() && known(Q.host, *list.front()))
            list.pop_front();
    }
}

// The kind of conflict of two operations, or null. Of a kernel only addresses are known: an
// argument inside the bytes that a copy writes is a conflict.
static const char *conflict(const work &a, const work &b)
{
    if (is_launch(a) && is_launch(b))
        return nullptr;
    if (is_launch(b))
        return conflict(b, a);
    if (is_launch(a)) {
        for (uintptr_t p : a.pointers)
            if (b.dst.holds(p))
                return "writes where an argument of the other points";
        return nullptr;
    }
    if (a.dst.overlaps(b.dst))
        return "writes what the other writes";
    return a.dst.overlaps(b.src) || a.src.overlaps(b.dst) ? "and the other touch the same bytes"
                                                          : nullptr;
}

static std::string describe(const op &o)
{
    const work &w = *o.what;
    if (is_launch(w))
        return (w.run ? std::string("kernel ") + w.run->name : w.symbol) + " on " + o.where;
    char bytes[96];
    if (w.kind == work::meet && w.sends) {
        snprintf(bytes, sizeof bytes, " of %" PRIuPTR " bytes from %#" PRIxPTR, w.src.hi - w.src.lo,
                 w.src.lo);
        return w.symbol + std::string(bytes) + " on " + o.where;
    }
    snprintf(bytes, sizeof bytes, " of %" PRIuPTR " bytes to %#" PRIxPTR, w.dst.hi - w.dst.lo,
             w.dst.lo);
    return w.symbol + std::string(bytes) + " on " + o.where;
}

static void tell_once(context *ctx, const std::string &line)
{
    if (std::find(Q.told.begin(), Q.told.end(), line) != Q.told.end() || Q.told.size() > 1000)
        return;
    Q.told.push_back(line);
    misuse(ctx, "%s", line.c_str());
}

// The later one is a copy, the earlier one a kernel with an address in what the copy reads: when it
// writes there, that is a race; or the other way round.
static void watch(op *a, op *b)
{
    op *kernel = is_launch(*a->what) ? a : b, *copy = kernel == a ? b : a;
    if (!is_launch(*kernel->what) || is_launch(*copy->what) || kernel->done)
        return;
    for (uintptr_t p : kernel->what->pointers)
        if (copy->what->src.holds(p)) {
            kernel->watched.push_back({copy->what->src, describe(*copy)});
            return;
        }
}

// Nothing promises that operations of two communicators get on beside each other.
static void check_alone(const op &o, const op &other)
{
    if (o.what->kind == work::meet && other.what->kind == work::meet && o.ctx == other.ctx &&
        o.what->over->clique != other.what->over->clique)
        tell_once(o.ctx.get(), describe(o) + " and " + describe(other) +
                                   ": operations of two communicators, and nothing orders them");
}

static void check_order(op *o)
{
    if (o->what->kind == work::nothing)
        return;
    for (unsigned lane = 0; lane < Q.open.size(); lane++) {
        if (lane == o->lane)
            continue;
        for (const op_ref &other : Q.open[lane]) {
            if (known(o->when, *other) || other->what->kind == work::nothing)
                continue;
            check_alone(*o, *other);
            const char *how = conflict(*o->what, *other->what);
            if (how)
                tell_once(o->ctx.get(), describe(*o) + " and " + describe(*other) +
                                            ": nothing orders them, and one " + how +
                                            "; wait for an event of the earlier one");
            else
                watch(o, other.get());
        }
    }
}

op_ref unfinished_user(const range &bytes)
{
    for (const auto &lane : Q.open)
        for (const op_ref &o : lane) {
            const work &w = *o->what;
            if (w.dst.overlaps(bytes) || w.src.overlaps(bytes))
                return o;
            for (uintptr_t p : w.pointers)
                if (bytes.holds(p))
                    return o;
        }
    return nullptr;
}

op_ref unfinished_kernel(const struct emu_kernel *k)
{
    for (const auto &lane : Q.open)
        for (const op_ref &o : lane)
            if (o->what->run == k)
                return o;
    return nullptr;
}

// --- what operations do ---

static uint64_t checksum(const range &r)
{
    const unsigned char *p = (const unsigned char *)r.lo;
    size_t n = r.hi - r.lo;
    uint64_t h = n;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        h = (h ^ v) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    for (; n; p++, n--)
        h = (h ^ *p) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static void fail(const op &o, int error, const char *why)
{
    misuse(nullptr, "%s: %s", describe(o).c_str(), why);
    if (!o.ctx->error)
        o.ctx->error = error;
}

static bool there(const range &r) // memory of a device or of cuMemHostAlloc
{
    return all_in(S.memory, r) || all_in(S.host, r);
}

static void run_copy(const op &o)
{
    const work &w = *o.what;
    if (!(w.host_dst || there(w.dst)) || !(w.staged || w.kind == work::fill || there(w.src)) ||
        (w.host_dst && !there(w.src))) {
        fail(o, CU_ILLEGAL_ADDRESS, "its memory has been freed");
        return;
    }
    if (w.pinned_src && checksum(w.src) != o.checksum)
        misuse(o.ctx.get(),
               "%s: its source at %#" PRIxPTR " in host memory has changed since it was queued; "
               "synchronize before writing there",
               describe(o).c_str(), w.src.lo);
    size_t bytes = w.dst.hi - w.dst.lo;
    count_bytes(w.symbol, bytes);
    if (w.kind == work::fill)
        memset((void *)w.dst.lo, w.value, bytes);
    else
        memmove((void *)w.dst.lo, w.staged ? w.staged->data() : (const void *)w.src.lo, bytes);
}

// The first argument that points to where a kernel of this context cannot read, or 0.
static uintptr_t bad_pointer(const op &o, const char **why)
{
    for (uintptr_t p : o.what->pointers) {
        const allocation *a = find_in(S.memory, p);
        *why = !a ? "freed memory" : "memory of another device";
        if (a ? !may_use(*o.ctx, *a) : !find_in(S.host, p))
            return p;
    }
    return 0;
}

// A kernel that was stopped at an address, or for something else.
static int launch_error(const char *report)
{
    if (strstr(report, "is not aligned"))
        return MISALIGNED_ADDRESS;
    return strstr(report, "access") ? CU_ILLEGAL_ADDRESS : CU_LAUNCH_FAILED;
}

// A fault on request, in kernels whose names begin with a word: the CUresult that the launch ends
// with. *skip: it does nothing, so what it should have written is wrong.
static int plant(const char *kernel, bool *skip)
{
    const options &opt = S.opt;
    if (opt.plant.empty() || strncmp(kernel, opt.planted_in.c_str(), opt.planted_in.size()))
        return CU_OK;
    *skip = opt.plant == "wrong";
    while (opt.plant == "hang")
        pause();
    if (opt.plant == "lose" && !opt.lost.empty()) {
        FILE *f = fopen(opt.lost.c_str(), "w");
        if (f)
            fclose(f);
    }
    return *skip ? CU_OK : CU_ILLEGAL_ADDRESS;
}

// Appends a line of a launch to the file that is to have them: kernel, grid, threads.
static void note_launch(const work &w)
{
    FILE *f = S.opt.launches.empty() ? nullptr : fopen(S.opt.launches.c_str(), "a");
    if (!f)
        return;
    const uint32_t *grid = w.shape.grid, *block = w.shape.block;
    fprintf(f, "%s %u %u %u %u\n", w.run->name, grid[0], grid[1], grid[2],
            block[0] * block[1] * block[2]);
    fclose(f);
}

static void run_kernel(const op &o)
{
    const work &w = *o.what;
    bool skip = false;
    note_launch(w);
    int error = take_failure("kernel", false);
    if (!error)
        error = plant(w.run->name, &skip);
    if (!error && w.early)
        S.counters["early"].calls++;
    emu_launch_next(o.lane, w.early);
    if (error)
        fail(o, error, "fails on request");
    else if (!skip && emu_launch(w.run, &w.shape, w.args.get()))
        fail(o, launch_error(emu_report()), emu_report());
}

static void run_launch(const op &o)
{
    const work &w = *o.what;
    if (w.kind == work::kernel)
        S.counters["kernel"].calls++;
    const char *what;
    uintptr_t p = bad_pointer(o, &what);
    if (p) {
        char why[96];
        snprintf(why, sizeof why, "argument %#" PRIxPTR " is %s", p, what);
        fail(o, CU_ILLEGAL_ADDRESS, why);
        return;
    }
    std::vector<uint64_t> before;
    for (const auto &r : o.watched)
        before.push_back(there(r.first) ? checksum(r.first) : 0);
    if (w.kind == work::kernel)
        run_kernel(o);
    else
        run_product(*w.operands);
    for (size_t i = 0; i < before.size(); i++)
        if (there(o.watched[i].first) && checksum(o.watched[i].first) != before[i])
            tell_once(o.ctx.get(), describe(o) + " writes what " + o.watched[i].second +
                                       " reads, and nothing orders them; wait for an event");
}

static int64_t now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void finish(const op_ref &o)
{
    o->done = true;
    o->done_ns = now_ns();
    o->before.clear();
    for (op_ref &next : o->after)
        if (--next->waiting == 0)
            Q.ready.push_back(std::move(next));
    o->after.clear();
}

// --- messages ---

static void carry(const op &send, const op &recv)
{
    const work &from = *send.what, &to = *recv.what;
    size_t bytes = from.src.hi - from.src.lo, room = to.dst.hi - to.dst.lo;
    if (bytes != room)
        misuse(recv.ctx.get(), "%s meets %s: other sizes", describe(send).c_str(),
               describe(recv).c_str());
    else if (!there(from.src))
        fail(send, CU_ILLEGAL_ADDRESS, "its memory has been freed");
    else if (!there(to.dst))
        fail(recv, CU_ILLEGAL_ADDRESS, "its memory has been freed");
    else
        memmove((void *)to.dst.lo, (const void *)from.src.lo, bytes);
    count_bytes(from.symbol, bytes);
}

// Sends the messages that have arrived on both sides.
static void meet(wire *w)
{
    auto &recv = w->queued[0], &send = w->queued[1];
    while (!recv.empty() && !send.empty() && recv[0]->arrived && send[0]->arrived) {
        op_ref to = recv[0], from = send[0];
        recv.erase(recv.begin());
        send.erase(send.begin());
        Q.waiting -= 2;
        carry(*from, *to);
        finish(from);
        finish(to);
    }
}

// The side of a wire to another process that is queued in this one.
static bool own_side(const wire &w)
{
    return w.queued[0].empty();
}

static void leave_far(wire *w)
{
    auto &own = w->queued[own_side(*w)];
    op_ref o = own[0];
    own.erase(own.begin());
    w->arrived.pop_front();
    Q.waiting--;
    finish(o);
}

void meet_far(const std::shared_ptr<wire> &w)
{
    auto &own = w->queued[own_side(*w)];
    while (!w->leaving && !own.empty() && own[0]->arrived && !w->arrived.empty()) {
        const op &o = *own[0];
        const range &memory = o.what->sends ? o.what->src : o.what->dst;
        uint64_t bytes = memory.hi - memory.lo, other = w->arrived[0];
        if (bytes != other) {
            misuse(o.ctx.get(), "%s meets one of %" PRIu64 " bytes of rank %d: other sizes",
                   describe(o).c_str(), other, o.what->sends ? w->to : w->from);
        } else if (!there(memory)) {
            fail(o, CU_ILLEGAL_ADDRESS, "its memory has been freed");
        } else if (o.what->sends) {
            w->leaving = true;
            send_message(w, memory);
            return;
        } else if (w->came.size() < bytes) {
            return;
        } else {
            memcpy((void *)memory.lo, w->came.data(), bytes);
            w->came.erase(0, bytes);
        }
        leave_far(w.get());
    }
}

void message_sent(const std::shared_ptr<wire> &w)
{
    const auto &send = w->queued[1];
    w->leaving = false;
    if (send.empty() || !send[0]->arrived)
        return; // an abort came in between
    count_bytes(send[0]->what->symbol, w->arrived[0]);
    leave_far(w.get());
    meet_far(w);
}

static void arrive(const op_ref &o)
{
    const work &what = *o->what;
    o->arrived = true;
    Q.waiting++;
    if (what.over->cut[what.sends]) {
        cut_wire(what.over, what.sends);
    } else if (what.over->far) {
        tell_arrival(*what.over, what.sends, what.src.hi - what.src.lo + what.dst.hi - what.dst.lo);
        meet_far(what.over);
    } else {
        meet(what.over.get());
    }
}

void cut_wire(const std::shared_ptr<wire> &w, bool sends)
{
    w->cut[sends] = true;
    auto &queued = w->queued[sends];
    for (size_t i = 0; i < queued.size();)
        if (queued[i]->arrived) {
            op_ref o = queued[i];
            queued.erase(queued.begin() + (ptrdiff_t)i);
            Q.waiting--;
            finish(o);
        } else {
            i++;
        }
}

bool is_idle(uint64_t comm)
{
    for (const auto &lane : Q.open)
        for (const op_ref &o : lane)
            if (!o->done && o->what->comm == comm)
                return false;
    return true;
}

// The other side of a message, if it is queued.
static op *other_side(const op &o)
{
    const wire *w = o.what->over.get();
    if (!w)
        return nullptr;
    const auto &own = w->queued[o.what->sends], &other = w->queued[!o.what->sends];
    for (size_t i = 0; i < own.size() && i < other.size(); i++)
        if (own[i].get() == &o)
            return other[i].get();
    return nullptr;
}

static void run_op(const op_ref &o)
{
    const work &w = *o->what;
    if (w.kind == work::meet && !o->ctx->error && !o->ctx->gone) {
        arrive(o);
        return;
    }
    if (o->ctx->error || o->ctx->gone)
        ; // nothing runs any more
    else if (is_launch(w))
        run_launch(*o);
    else if (w.kind != work::nothing)
        run_copy(*o);
    if (w.staged)
        Q.staged -= w.staged->size();
    finish(o);
}

// --- the schedule ---

static uint64_t draw(uint64_t n)
{
    return S.rng() % n;
}

// Runs one that may run (of those marked, with mark), and says whether there was one.
static bool run_one(uint64_t mark)
{
    std::vector<size_t> may;
    for (size_t i = 0; i < Q.ready.size(); i++)
        if (!mark || Q.ready[i]->mark == mark)
            may.push_back(i);
    if (may.empty())
        return false;
    size_t i = may[S.opt.order == order::eager ? 0 : draw(may.size())];
    op_ref o = std::move(Q.ready[i]);
    Q.ready.erase(Q.ready.begin() + (ptrdiff_t)i);
    run_op(o);
    return true;
}

static void mark_needed(const op_ref &target, uint64_t mark)
{
    std::vector<op *> todo = {target.get()};
    target->mark = mark;
    while (!todo.empty()) {
        op *o = todo.back();
        todo.pop_back();
        op *other = other_side(*o);
        if (other && other->mark != mark) {
            other->mark = mark;
            todo.push_back(other);
        }
        for (const op_ref &b : o->before)
            if (!b->done && b->mark != mark) {
                b->mark = mark;
                todo.push_back(b.get());
            }
    }
}

void nap()
{
    const struct timespec t = {0, 50000};
    S.lock.unlock();
    nanosleep(&t, nullptr);
    S.lock.lock();
}

// Runs what this one needs, as far as that can run, until it is done or, with `arrival`, a message
// that waits for its other side.
static void run_toward(const op_ref &target, bool arrival)
{
    uint64_t mark = S.opt.order == order::late ? ++Q.marks : 0;
    if (mark)
        mark_needed(target, mark);
    emu_open();
    while (!target->done && !(arrival && target->arrived) && run_one(mark))
        ;
    emu_close();
}

bool run_awaited(const wire &w)
{
    const auto &own = w.queued[own_side(w)];
    if (w.arrived.empty())
        return false;
    if (!own.empty() && !own[0]->arrived)
        run_toward(op_ref(own[0]), true);
    return own.empty() || !own[0]->arrived;
}

// While a message waits for its other side, other threads may queue that side.
void run_until(const op_ref &target)
{
    while (target && !target->done) {
        run_toward(target, false);
        if (target->done || !Q.waiting)
            break;
        nap();
    }
    if (target)
        host_knows(target);
}

static void run_some(uint64_t n)
{
    if (Q.ready.empty())
        return;
    emu_open();
    while (n-- && run_one(0))
        ;
    emu_close();
}

void run_all()
{
    run_some(UINT64_MAX);
    for (auto &lane : Q.open)
        while (!lane.empty())
            host_knows(op_ref(lane.back()));
}

void progress()
{
    run_some(1 + draw(4));
}

// --- queueing ---

// Nothing of a copy's destination in host memory may be looked at before it has come.
static void spoil(const op &o)
{
    const work &w = *o.what;
    if (!w.host_dst || !all_in(S.host, w.dst))
        return;
    for (const auto &lane : Q.open)
        for (const op_ref &other : lane)
            if (!other->done && other.get() != &o &&
                (other->what->src.overlaps(w.dst) || other->what->dst.overlaps(w.dst)))
                return;
    memset((void *)w.dst.lo, 0xff, w.dst.hi - w.dst.lo);
}

static void count_staged(const work &w)
{
    if (w.staged)
        Q.staged += w.staged->size();
    if (Q.staged > 64u << 20) // a driver has no more to stage in, either
        run_some(UINT64_MAX);
}

op_ref enqueue(const context_ref &ctx, const std::string &where, unsigned lane, work_ref what,
               const std::vector<op_ref> &before)
{
    op_ref o = std::make_shared<op>();
    o->what = std::move(what);
    o->ctx = ctx;
    o->where = where;
    o->lane = lane;
    o->when = Q.host;
    for (const op_ref &b : before) {
        if (!b)
            continue;
        join(&o->when, b->when);
        if (!b->done) {
            o->before.push_back(b);
            b->after.push_back(o);
            o->waiting++;
        }
    }
    o->when.resize(std::max(o->when.size(), (size_t)lane + 1));
    o->when[lane] = ++Q.made[lane];
    check_order(o.get());
    if (o->what->pinned_src)
        o->checksum = checksum(o->what->src);
    spoil(*o);
    Q.open[lane].push_back(o);
    if (o->what->over)
        o->what->over->queued[o->what->sends].push_back(o);
    if (o->waiting == 0)
        Q.ready.push_back(o);
    count_staged(*o->what);
    if (S.opt.order == order::eager)
        run_some(UINT64_MAX);
    else if (S.opt.order == order::random && draw(16) == 0)
        run_some(1 + draw(8));
    return o;
}

} // namespace drv
