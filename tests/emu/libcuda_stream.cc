// The emulated driver: streams and events.
#include "tests/emu/libcuda_state.hpp"

namespace drv
{

stream_ref find_stream(const call &c, cu_stream handle)
{
    return handle ? require(c, S.streams, handle) : c.ctx->legacy;
}

std::string name_of(const stream &s)
{
    std::string name = s.number ? "stream " + std::to_string(s.number) : "the NULL stream";
    return S.devices.size() > 1 ? name + " of device " + std::to_string(s.ctx->device) : name;
}

// The NULL stream waits for all blocking streams of its context, and they for it.
static std::vector<op_ref> predecessors(const stream &s)
{
    std::vector<op_ref> before = {s.last};
    if (s.number && s.blocking)
        before.push_back(s.ctx->legacy->last);
    if (!s.number)
        for (const auto &other : S.streams.live)
            if (other.second->blocking && other.second->ctx == s.ctx)
                before.push_back(other.second->last);
    return before;
}

static int refuse_implicit(const stream &s) // a dependency on a stream that captures
{
    if (s.number)
        return CU_OK;
    for (const auto &other : S.streams.live)
        if (other.second->blocking && other.second->ctx == s.ctx && other.second->cap) {
            refuse_capturing(other.second);
            return CAPTURE_IMPLICIT;
        }
    return CU_OK;
}

int submit(const call &c, const stream_ref &s, work_ref what, const op_ref &also)
{
    (void)c;
    if (s->cap) {
        if (s->cap->invalid)
            return CAPTURE_INVALIDATED;
        add_node(s, std::move(what));
        return CU_OK;
    }
    int error = refuse_implicit(*s);
    if (error)
        return error;
    std::vector<op_ref> before = predecessors(*s);
    before.push_back(also);
    s->last = enqueue(s->ctx, name_of(*s), s->lane, std::move(what), before);
    return CU_OK;
}

static work_ref no_work()
{
    static const work_ref none = std::make_shared<work>();
    return none;
}

int submit_group(const call &c, const stream_ref &s, const std::vector<work_ref> &what)
{
    if (what.size() == 1)
        return submit(c, s, what[0]);
    if (s->cap) {
        if (s->cap->invalid)
            return CAPTURE_INVALIDATED;
        add_nodes(s, what);
        return CU_OK;
    }
    int error = submit(c, s, no_work());
    if (error)
        return error;
    std::vector<op_ref> ops;
    for (size_t i = 0; i < what.size(); i++) {
        if (i == s->branches.size())
            s->branches.push_back(new_lane());
        ops.push_back(enqueue(s->ctx, name_of(*s) + ", branch " + std::to_string(i + 1),
                              s->branches[i], what[i], {s->last}));
    }
    ops.push_back(s->last);
    s->last = enqueue(s->ctx, name_of(*s), s->lane, no_work(), ops);
    return CU_OK;
}

} // namespace drv

using namespace drv;

int cuStreamCreate(cu_stream *stream_out, unsigned flags)
{
    ENTER(current);
    if (!stream_out || flags > CU_STREAM_NON_BLOCKING)
        return c.done(CU_INVALID_VALUE);
    auto s = std::make_shared<stream>();
    s->ctx = c.ctx;
    s->number = ++c.ctx->streams_made;
    s->blocking = flags == 0;
    s->lane = new_lane();
    *stream_out = as_handle<cu_stream>(S.streams.add(s));
    return c.done(CU_OK);
}

int cuStreamDestroy_v2(cu_stream handle) // queued operations still run
{
    ENTER(current | releases);
    auto s = require(c, S.streams, handle);
    if (!s)
        return c.done(INVALID_HANDLE);
    if (s->cap) {
        misuse(c.ctx.get(), "%s: %s is capturing", c.symbol, name_of(*s).c_str());
        refuse_capturing(s);
    }
    S.streams.drop(handle);
    return c.done(CU_OK);
}

int cuStreamSynchronize(cu_stream handle)
{
    ENTER(current);
    stream_ref s = find_stream(c, handle);
    if (!s)
        return c.done(INVALID_HANDLE);
    int error = s->cap ? refuse_capturing(s) : refuse_in_capture(c);
    if (!error && !s->number)
        error = submit(c, s, no_work()); // waits for the blocking streams
    if (error)
        return c.done(error);
    run_until(s->last);
    return c.done(s->ctx->error);
}

int cuStreamWaitEvent(cu_stream handle, cu_event event_handle, unsigned flags)
{
    ENTER(current);
    stream_ref s = find_stream(c, handle);
    auto e = require(c, S.events, event_handle);
    if (!s || !e)
        return c.done(INVALID_HANDLE);
    if (flags > 1)
        return c.done(CU_INVALID_VALUE);
    if (s->cap || e->cap)
        return c.done(capture_wait(s, *e));
    if (!e->recorded) {
        misuse(c.ctx.get(), "%s: %s waits for an event that was never recorded: no wait", c.symbol,
               name_of(*s).c_str());
        return c.done(CU_OK);
    }
    return c.done(submit(c, s, no_work(), e->recorded));
}

// --- events ---

int cuEventCreate(cu_event *event_out, unsigned flags)
{
    ENTER(current);
    if (!event_out || flags > 7 || ((flags & 4) && !(flags & CU_EVENT_NO_TIMING)))
        return c.done(CU_INVALID_VALUE);
    auto e = std::make_shared<event>();
    e->ctx = c.ctx;
    e->timing = !(flags & CU_EVENT_NO_TIMING);
    *event_out = as_handle<cu_event>(S.events.add(e));
    return c.done(CU_OK);
}

int cuEventDestroy_v2(cu_event handle)
{
    ENTER(current | releases);
    if (!require(c, S.events, handle))
        return c.done(INVALID_HANDLE);
    S.events.drop(handle);
    return c.done(CU_OK);
}

int cuEventRecord(cu_event handle, cu_stream stream_handle)
{
    ENTER(current);
    stream_ref s = find_stream(c, stream_handle);
    auto e = require(c, S.events, handle);
    if (!s || !e)
        return c.done(INVALID_HANDLE);
    if (e->ctx != s->ctx) {
        misuse(c.ctx.get(), "%s: event and stream are not of one device", c.symbol);
        return c.done(INVALID_HANDLE);
    }
    if (s->cap)
        return c.done(capture_record(s, e.get()));
    int error = submit(c, s, no_work());
    if (error)
        return c.done(error);
    e->cap.reset();
    e->recorded = s->last;
    return c.done(CU_OK);
}

// Checks that a query or a wait on the host is allowed.
static int check_waitable(const call &c, const event &e)
{
    if (e.cap) {
        e.cap->invalid = !e.cap->ended || e.cap->invalid;
        return CAPTURED_EVENT;
    }
    int error = refuse_in_capture(c);
    if (!error && !e.recorded)
        misuse(c.ctx.get(), "%s: the event was never recorded: nothing is waited for", c.symbol);
    return error;
}

int cuEventSynchronize(cu_event handle)
{
    ENTER(current);
    auto e = require(c, S.events, handle);
    if (!e)
        return c.done(INVALID_HANDLE);
    int error = check_waitable(c, *e);
    if (error)
        return c.done(error);
    run_until(e->recorded);
    return c.done(e->ctx->error);
}

int cuEventQuery(cu_event handle)
{
    ENTER(current);
    auto e = require(c, S.events, handle);
    if (!e)
        return c.done(INVALID_HANDLE);
    int error = check_waitable(c, *e);
    if (error || !e->recorded)
        return c.done(error);
    if (!e->recorded->done)
        progress();
    if (!e->recorded->done)
        return c.done(CU_NOT_READY);
    host_knows(e->recorded);
    return c.done(e->ctx->error);
}

int cuEventElapsedTime(float *ms, cu_event start, cu_event end)
{
    ENTER(current);
    auto a = require(c, S.events, start), b = require(c, S.events, end);
    if (!a || !b)
        return c.done(INVALID_HANDLE);
    if (!ms)
        return c.done(CU_INVALID_VALUE);
    if (a->cap || b->cap)
        return c.done(CAPTURED_EVENT);
    if (!a->recorded || !b->recorded || !a->timing || !b->timing || a->ctx != b->ctx) {
        misuse(c.ctx.get(), "%s: events that were not recorded, take no time or are of two devices",
               c.symbol);
        return c.done(INVALID_HANDLE);
    }
    if (!a->recorded->done || !b->recorded->done)
        return c.done(CU_NOT_READY);
    *ms = (float)((double)(b->recorded->done_ns - a->recorded->done_ns) * 1e-6);
    return c.done(CU_OK);
}
