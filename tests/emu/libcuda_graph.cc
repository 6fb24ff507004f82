// The emulated driver: stream capture, and graphs as what was captured.
//
// A capture holds nodes: work with its parameters as they were, and the nodes it comes after. A
// stream that captures knows the nodes its next one comes after (`tips`); an event recorded there
// carries them to other streams, which thereby join the capture and have to be joined again.
#include "tests/emu/libcuda_state.hpp"

#include <algorithm>

namespace drv
{

void add_node(const stream_ref &s, work_ref what)
{
    s->cap->nodes.push_back({std::move(what), s->tips, s->cap_lane});
    s->tips = {(int)s->cap->nodes.size() - 1};
}

void add_nodes(const stream_ref &s, const std::vector<work_ref> &what)
{
    auto &nodes = s->cap->nodes;
    const std::vector<int> tips = s->tips;
    s->tips.clear();
    for (const work_ref &w : what) {
        nodes.push_back({w, tips, s->cap->n_lanes++});
        s->tips.push_back((int)nodes.size() - 1);
    }
    add_node(s, std::make_shared<work>());
}

bool is_in_graphs(uint64_t comm)
{
    for (const auto &x : S.execs.live)
        for (const node &n : x.second->what->nodes)
            if (n.what->comm == comm)
                return true;
    return false;
}

int refuse_capturing(const stream_ref &s)
{
    if (s->cap->invalid)
        return CAPTURE_INVALIDATED;
    s->cap->invalid = true;
    return CAPTURE_UNSUPPORTED;
}

int refuse_in_capture(const call &c)
{
    for (const auto &s : S.streams.live) {
        const auto &cap = s.second->cap;
        if (!cap || cap->mode == 2 ||
            (cap->mode == 1 && !pthread_equal(cap->thread, pthread_self())))
            continue;
        misuse(nullptr, "%s: not while %s captures", c.symbol, name_of(*s.second).c_str());
        return refuse_capturing(s.second);
    }
    return CU_OK;
}

int capture_record(const stream_ref &s, event *e)
{
    if (s->cap->invalid)
        return CAPTURE_INVALIDATED;
    e->cap = s->cap;
    e->tips = s->tips;
    e->recorded.reset();
    return CU_OK;
}

static void join_capture(const stream_ref &s, const std::shared_ptr<capture> &cap)
{
    s->cap = cap;
    s->cap_lane = cap->n_lanes++;
    s->tips.clear();
}

int capture_wait(const stream_ref &s, const event &e)
{
    if (s->cap && s->cap->invalid)
        return CAPTURE_INVALIDATED;
    if (!e.cap) { // of work outside
        s->cap->invalid = true;
        return CAPTURE_ISOLATION;
    }
    if (e.cap->ended)
        return CAPTURED_EVENT;
    if (s->cap && s->cap != e.cap) {
        s->cap->invalid = e.cap->invalid = true;
        return CAPTURE_MERGE;
    }
    if (!s->number) {
        e.cap->invalid = true;
        return CAPTURE_IMPLICIT;
    }
    if (!s->cap)
        join_capture(s, e.cap);
    for (int tip : e.tips)
        if (std::find(s->tips.begin(), s->tips.end(), tip) == s->tips.end())
            s->tips.push_back(tip);
    return CU_OK;
}

// True when all nodes come before these.
static bool all_before(const std::vector<node> &nodes, const std::vector<int> &tips)
{
    std::vector<char> seen(nodes.size());
    std::vector<int> todo = tips;
    size_t n = 0;
    while (!todo.empty()) {
        int i = todo.back();
        todo.pop_back();
        if (seen[(size_t)i]++)
            continue;
        n++;
        const auto &before = nodes[(size_t)i].before;
        todo.insert(todo.end(), before.begin(), before.end());
    }
    return n == nodes.size();
}

static void end_capture(const std::shared_ptr<capture> &cap)
{
    cap->ended = true;
    for (const auto &s : S.streams.live)
        if (s.second->cap == cap) {
            s.second->cap.reset();
            s.second->tips.clear();
        }
}

// Its nodes in a stream that captures itself.
static void embed(const exec &x, const stream_ref &s)
{
    const int first = (int)s->cap->nodes.size();
    const unsigned lanes = s->cap->n_lanes;
    add_node(s, std::make_shared<work>());
    for (const node &n : x.what->nodes) {
        node copy = n;
        for (int &b : copy.before)
            b += first + 1;
        if (copy.before.empty())
            copy.before = {first};
        copy.lane = n.lane ? lanes + n.lane - 1 : s->cap_lane;
        s->cap->nodes.push_back(std::move(copy));
    }
    s->cap->n_lanes += x.what->n_lanes - 1;
    s->tips.clear();
    for (int i = first; i < (int)s->cap->nodes.size(); i++)
        s->tips.push_back(i);
    add_node(s, std::make_shared<work>());
}

// All nodes between two operations of the stream.
static int launch(const call &c, exec *x, const stream_ref &s)
{
    static const work_ref none = std::make_shared<work>();
    int error = submit(c, s, none, x->last);
    if (error)
        return error;
    const op_ref start = s->last;
    std::vector<op_ref> ops;
    for (const node &n : x->what->nodes) {
        std::vector<op_ref> before;
        for (int b : n.before)
            before.push_back(ops[(size_t)b]);
        if (before.empty())
            before.push_back(start);
        std::string where = name_of(*s) + ", in a graph";
        if (n.lane)
            where += ", branch " + std::to_string(n.lane);
        ops.push_back(
            enqueue(x->ctx, where, n.lane ? x->lanes[n.lane - 1] : s->lane, n.what, before));
    }
    ops.push_back(start);
    x->last = s->last = enqueue(s->ctx, name_of(*s), s->lane, none, ops);
    return CU_OK;
}

} // namespace drv

using namespace drv;

int cuStreamBeginCapture_v2(cu_stream handle, int mode)
{
    ENTER(current);
    stream_ref s = find_stream(c, handle);
    if (!s)
        return c.done(INVALID_HANDLE);
    if (mode < 0 || mode > 2)
        return c.done(CU_INVALID_VALUE);
    if (!s->number)
        return c.done(CAPTURE_UNSUPPORTED);
    if (s->cap)
        return c.done(ILLEGAL_STATE);
    s->cap = std::make_shared<capture>();
    s->cap->origin = s.get();
    s->cap->mode = mode;
    s->cap->thread = pthread_self();
    s->cap_lane = 0;
    s->tips.clear();
    return c.done(CU_OK);
}

// Checks at the end of a capture: CU_OK when it can become a graph.
static int check_end(const call &c, const stream &s)
{
    const capture &cap = *s.cap;
    if (cap.mode != 2 && !pthread_equal(cap.thread, pthread_self()))
        return CAPTURE_WRONG_THREAD;
    if (cap.origin != &s)
        return CAPTURE_UNMATCHED;
    if (cap.invalid)
        return CAPTURE_INVALIDATED;
    if (!all_before(cap.nodes, s.tips)) {
        misuse(c.ctx.get(), "%s: work of another stream is not waited for in %s", c.symbol,
               name_of(s).c_str());
        return CAPTURE_UNJOINED;
    }
    return CU_OK;
}

int cuStreamEndCapture(cu_stream handle, cu_graph *graph_out)
{
    ENTER(current | releases); // a stream is out of its capture, whatever comes of it
    stream_ref s = find_stream(c, handle);
    if (!s)
        return c.done(INVALID_HANDLE);
    if (!graph_out)
        return c.done(CU_INVALID_VALUE);
    *graph_out = nullptr;
    if (!s->cap)
        return c.done(ILLEGAL_STATE);
    int error = check_end(c, *s);
    std::shared_ptr<capture> cap = s->cap;
    if (error == CAPTURE_WRONG_THREAD || error == CAPTURE_UNMATCHED)
        cap->invalid = true;
    else
        end_capture(cap);
    if (error)
        return c.done(error);
    auto g = std::make_shared<graph>();
    g->nodes = std::move(cap->nodes);
    g->n_lanes = cap->n_lanes;
    g->ctx = s->ctx;
    *graph_out = as_handle<cu_graph>(S.graphs.add(g));
    return c.done(CU_OK);
}

int cuGraphInstantiateWithFlags(cu_graph_exec *exec_out, cu_graph handle, unsigned long long flags)
{
    ENTER(current);
    auto g = require(c, S.graphs, handle);
    if (!g)
        return c.done(INVALID_HANDLE);
    if (!exec_out || flags > 15)
        return c.done(CU_INVALID_VALUE);
    auto x = std::make_shared<exec>();
    x->what = g;
    x->ctx = g->ctx;
    for (unsigned i = 1; i < g->n_lanes; i++)
        x->lanes.push_back(new_lane());
    *exec_out = as_handle<cu_graph_exec>(S.execs.add(x));
    return c.done(CU_OK);
}

int cuGraphLaunch(cu_graph_exec handle, cu_stream stream_handle)
{
    ENTER(current);
    stream_ref s = find_stream(c, stream_handle);
    auto x = require(c, S.execs, handle);
    if (!s || !x)
        return c.done(INVALID_HANDLE);
    if (s->ctx != x->ctx) {
        misuse(c.ctx.get(), "%s: graph and stream are not of one device", c.symbol);
        return c.done(INVALID_HANDLE);
    }
    if (!s->cap)
        return c.done(launch(c, x.get(), s));
    if (s->cap->invalid)
        return c.done(CAPTURE_INVALIDATED);
    embed(*x, s);
    return c.done(CU_OK);
}

int cuGraphExecDestroy(cu_graph_exec handle) // queued launches still run
{
    ENTER(current | releases);
    if (!require(c, S.execs, handle))
        return c.done(INVALID_HANDLE);
    S.execs.drop(handle);
    return c.done(CU_OK);
}

int cuGraphDestroy(cu_graph handle)
{
    ENTER(current | releases);
    if (!require(c, S.graphs, handle))
        return c.done(INVALID_HANDLE);
    S.graphs.drop(handle);
    return c.done(CU_OK);
}
