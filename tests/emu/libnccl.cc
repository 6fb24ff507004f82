// The emulated NCCL: communicators between emulated devices, whose ranks are threads, of one
// process or of several of one machine (libnccl_far.cc). Messages are operations of the emulated
// driver (libcuda_queue.cc), so they run late, in drawn orders, and never when their other side
// does not come.
//
// Communicators do not block here: a call leaves one in progress, and what it asked for happens
// while ncclCommGetAsyncError is called, one to three times. What a real one would refuse, or never
// come back from, is refused; what it would let pass, though it is wrong, is reported.
#include "tests/emu/libcuda_state.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace drv
{

struct comm;

struct clique { // the ranks of one id
    uint64_t number = 0;
    std::vector<comm *> rank; // null: of another process
    std::map<std::pair<int, int>, std::shared_ptr<wire>> wires;
};

struct message {
    comm *of;
    stream_ref stream;
    work_ref what;
};

struct comm {
    uint64_t handle = 0;
    std::shared_ptr<clique> with;
    int rank = 0;
    context_ref ctx;
    pthread_t user;
    int result = NCCL_IN_PROGRESS; // answer to a query
    int polls = 0;                 // number of queries that it stays in progress for
    bool met = false;              // the others
    bool finalizing = false;
    port_ref door;                 // to where the ranks meet, until they have
    std::vector<port_ref> links;   // to ranks in other processes
    std::vector<message> to_issue; // of the group that is being launched
    std::map<uint64_t, range> registered;
};

// The calls of a thread between ncclGroupStart and ncclGroupEnd.
struct group {
    int depth = 0;
    std::vector<message> messages;
};

static struct {
    std::map<uint64_t, std::shared_ptr<comm>> comms;
    std::map<std::string, std::weak_ptr<clique>> cliques; // by id
    std::map<pthread_t, group> groups;
    std::map<uintptr_t, context_ref> memory; // of ncclMemAlloc
    uint64_t made = 0;
    std::string last_error; // of any
    std::string told;       // returned by ncclGetLastError
} N;

const char *const nccl_faults[] = {"nccl-async",      // asking gives this ncclResult_t
                                   "nccl-hang",       // a message's other side never comes
                                   "nccl-abort-hang", // an abort takes so many seconds
                                   nullptr};

void forget_comms()
{
    N.comms.clear();
    N.cliques.clear();
    N.groups.clear();
    N.memory.clear();
    N.last_error.clear();
    forget_ports();
}

static int refuse(int result, const std::string &why)
{
    N.last_error = why;
    return result;
}

static std::shared_ptr<comm> find_comm(const call &c, nccl_comm handle)
{
    auto at = N.comms.find((uint64_t)(uintptr_t)handle);
    if (at != N.comms.end())
        return at->second;
    misuse(c.ctx.get(), "%s: the communicator is destroyed, or none", c.symbol);
    return nullptr;
}

// Threads may take turns, but not in the middle of a call.
static void check_thread(const call &c, comm *m)
{
    if (!pthread_equal(m->user, pthread_self()) && m->result == NCCL_IN_PROGRESS)
        misuse(c.ctx.get(), "%s: the communicator of rank %d is used by two threads at once",
               c.symbol, m->rank);
    m->user = pthread_self();
}

// The communicator of a call that wants it ready, or null with the result to return.
static std::shared_ptr<comm> require_ready(const call &c, nccl_comm handle, int *result)
{
    auto m = find_comm(c, handle);
    *result = NCCL_INVALID_ARGUMENT;
    if (!m)
        return nullptr;
    check_thread(c, m.get());
    if (m->result == NCCL_IN_PROGRESS) {
        misuse(c.ctx.get(), "%s: the communicator of rank %d is still at its last call", c.symbol,
               m->rank);
        *result = refuse(NCCL_INVALID_ARGUMENT,
                         "Attempt to use communicator before the previous operation returned "
                         "ncclSuccess");
        return nullptr;
    }
    if (m->result) {
        *result = m->result;
        return nullptr;
    }
    *result = NCCL_OK;
    return m;
}

static void begin_progress(comm *m)
{
    m->result = NCCL_IN_PROGRESS;
    m->polls = 1 + (int)(S.rng() % 3);
}

// --- joining ---

static std::shared_ptr<wire> wire_of(clique *q, int from, int to)
{
    auto &w = q->wires[{from, to}];
    if (!w) {
        w = std::make_shared<wire>();
        w->clique = q->number;
        w->from = from;
        w->to = to;
    }
    return w;
}

static int check_config(const call &c, const struct nccl_config *config)
{
    const bool old = S.opt.nccl < 22700;
    if (!config || config->magic != NCCL_CONFIG_MAGIC || config->size > sizeof *config ||
        (int)config->version > S.opt.nccl ||
        (old && config->size > offsetof(struct nccl_config, comm_name))) {
        misuse(c.ctx.get(), "%s: a configuration that NCCL %d does not know", c.symbol, S.opt.nccl);
        return refuse(NCCL_INVALID_ARGUMENT, "ncclConfig_t argument not initialized");
    }
    if (config->blocking != 0) {
        misuse(c.ctx.get(), "%s: communicators that block are not emulated", c.symbol);
        return refuse(NCCL_INVALID_USAGE, "not emulated");
    }
    return NCCL_OK;
}

static int join(const std::shared_ptr<comm> &m, const struct nccl_id &id, int n_rank)
{
    auto &known = N.cliques[std::string(id.bytes, sizeof id.bytes)];
    auto q = known.lock();
    if (!q) {
        known = q = std::make_shared<clique>();
        q->number = ++N.made;
        q->rank.resize((size_t)n_rank);
    }
    if (q->rank.size() != (size_t)n_rank || q->rank[(size_t)m->rank])
        return refuse(NCCL_INVALID_USAGE, "Bootstrap Root : mismatch in rank count from procs");
    q->rank[(size_t)m->rank] = m.get();
    m->with = q;
    m->door = visit_root(id, n_rank, m->rank, m->ctx->device, m->handle);
    if (!m->door)
        m->result = refuse(NCCL_SYSTEM, "Call to connect failed: Connection refused");
    return NCCL_OK;
}

void comm_joined(uint64_t handle, int result, const std::string &why,
                 const std::vector<neighbour> &ranks)
{
    comm *m = N.comms.at(handle).get();
    m->door.reset();
    m->met = !result;
    if (result)
        m->result = refuse(result, why);
    for (int r = 0; r < (int)ranks.size(); r++)
        if (ranks[(size_t)r].fd >= 0)
            m->links.push_back(open_link(ranks[(size_t)r], handle,
                                         wire_of(m->with.get(), m->rank, r),
                                         wire_of(m->with.get(), r, m->rank)));
}

void comm_lost(uint64_t handle)
{
    auto at = N.comms.find(handle);
    if (at == N.comms.end()) // it is destroyed, and the link sends its last
        return;
    comm *m = at->second.get();
    if (m->result == NCCL_OK || m->result == NCCL_IN_PROGRESS)
        m->result = refuse(NCCL_REMOTE, "socketProgress: Connection closed by remote peer");
}

// --- progress ---

// Hands messages to their streams, those of one stream side by side.
static int launch(const call &c, std::vector<message> messages)
{
    while (!messages.empty()) {
        const stream_ref s = messages[0].stream;
        std::vector<work_ref> group;
        for (size_t i = 0; i < messages.size();)
            if (messages[i].stream == s) {
                group.push_back(messages[i].what);
                messages.erase(messages.begin() + (ptrdiff_t)i);
            } else {
                i++;
            }
        if (submit_group(c, s, group))
            return refuse(NCCL_UNHANDLED_CUDA, "the stream does not take it");
    }
    return NCCL_OK;
}

static void advance(const call &c, comm *m)
{
    if (m->result != NCCL_IN_PROGRESS || !m->met)
        return;
    progress();
    if (m->finalizing &&
        !(is_idle(m->handle) && std::all_of(m->links.begin(), m->links.end(), is_sent)))
        return;
    if (--m->polls > 0)
        return;
    std::vector<message> messages = std::move(m->to_issue);
    m->to_issue.clear();
    m->result = launch(c, std::move(messages));
}

// --- messages ---

static group &own_group()
{
    return N.groups[pthread_self()];
}

static int end_group(const call &c)
{
    group &g = own_group();
    std::vector<message> captured;
    int result = NCCL_OK;
    for (message &x : g.messages) {
        if (x.stream->cap) {
            captured.push_back(std::move(x));
            continue;
        }
        if (x.of->result != NCCL_IN_PROGRESS)
            begin_progress(x.of);
        result = NCCL_IN_PROGRESS;
        x.of->to_issue.push_back(std::move(x));
    }
    N.groups.erase(pthread_self());
    int failed = launch(c, std::move(captured));
    return failed ? failed : result;
}

static int add_message(const call &c, bool sends, const void *p, size_t n, int type, int peer,
                       nccl_comm handle, cu_stream stream_handle)
{
    int result;
    auto m = require_ready(c, handle, &result);
    if (!m)
        return result;
    stream_ref s = find_stream(c, stream_handle);
    range bytes = {(uintptr_t)p, (uintptr_t)p + n};
    const allocation *a = find_in(S.memory, bytes.lo);
    if (!s || s->ctx != m->ctx || c.ctx != m->ctx) {
        misuse(c.ctx.get(), "%s: communicator, stream and current context are not of one device",
               c.symbol);
        return refuse(NCCL_INVALID_ARGUMENT, "stream of another device");
    }
    if (peer < 0 || peer >= (int)m->with->rank.size() || (type != NCCL_BYTES && type != 0))
        return refuse(NCCL_INVALID_ARGUMENT, "invalid peer or type");
    if (!all_in(S.memory, bytes) || a->ctx != m->ctx) {
        misuse(c.ctx.get(),
               "%s: [%#" PRIxPTR ", %#" PRIxPTR ") is no memory of the communicator's device",
               c.symbol, bytes.lo, bytes.hi);
        return refuse(NCCL_INVALID_ARGUMENT, "invalid buffer");
    }
    if (peer == m->rank && !own_group().depth)
        return refuse(NCCL_INVALID_USAGE, "a rank sends to itself in a group only");
    auto w = std::make_shared<work>();
    w->kind = work::meet;
    w->symbol = c.symbol;
    w->sends = sends;
    w->comm = m->handle;
    (sends ? w->src : w->dst) = bytes;
    if (take_failure("nccl-hang", false)) // nobody has the other end of its wire
        peer = -(int)++N.made;
    w->over = sends ? wire_of(m->with.get(), m->rank, peer) : wire_of(m->with.get(), peer, m->rank);
    own_group().messages.push_back({m.get(), s, w});
    return own_group().depth ? NCCL_OK : end_group(c);
}

// --- the end ---

static void say_goodbye(const comm &m)
{
    for (const port_ref &l : m.links)
        say_goodbye(l);
}

static void drop_comm(const std::shared_ptr<comm> &m)
{
    m->with->rank[(size_t)m->rank] = nullptr;
    if (m->door)
        end_port(m->door);
    for (const port_ref &l : m->links)
        close_port(l);
    N.comms.erase(m->handle);
}

static void check_graphs(const call &c, const comm &m)
{
    if (is_in_graphs(m.handle))
        misuse(c.ctx.get(), "%s: graphs with messages of rank %d exist: destroy them first",
               c.symbol, m.rank);
}

static void check_left(const call &c, const comm &m)
{
    check_graphs(c, m);
    if (!m.registered.empty())
        misuse(c.ctx.get(), "%s: rank %d has %zu buffers registered", c.symbol, m.rank,
               m.registered.size());
}

} // namespace drv

using namespace drv;

// Calls of NCCL do not return errors of the driver: a context that has failed is theirs to find.
#define ENTER_NCCL(need)                                                                           \
    drv::call c(__func__, need);                                                                   \
    if (c.refused)                                                                                 \
    return c.error <= NCCL_IN_PROGRESS ? c.error : refuse(NCCL_UNHANDLED_CUDA, "Cuda failure")

int ncclGetVersion(int *version)
{
    ENTER_NCCL(anytime);
    *version = S.opt.nccl;
    return NCCL_OK;
}

int ncclGetUniqueId(struct nccl_id *id)
{
    ENTER_NCCL(anytime);
    return make_root(id) ? NCCL_OK : refuse(NCCL_SYSTEM, "Call to bind failed");
}

const char *ncclGetErrorString(int result)
{
    static const char *const text[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for "
        "details)",
        "internal error - please report this issue to the NCCL "
        "developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress"};
    return result >= 0 && result <= NCCL_IN_PROGRESS ? text[result] : "unknown result code";
}

const char *ncclGetLastError(nccl_comm)
{
    std::lock_guard<std::mutex> guard(S.lock);
    N.told = N.last_error;
    return N.told.c_str();
}

int ncclCommInitRankConfig(nccl_comm *out, int n_rank, struct nccl_id id, int rank,
                           struct nccl_config *config)
{
    ENTER_NCCL(current);
    *out = nullptr;
    int result = check_config(c, config);
    if (result)
        return result;
    if (n_rank < 1 || n_rank > MOST_RANKS || rank < 0 || rank >= n_rank)
        return refuse(NCCL_INVALID_ARGUMENT, "invalid rank");
    auto m = std::make_shared<comm>();
    m->rank = rank;
    m->ctx = c.ctx;
    m->user = pthread_self();
    m->handle = 0xb8ull << 56 | ++N.made << 4;
    begin_progress(m.get());
    result = join(m, id, n_rank);
    if (result)
        return result;
    N.comms[m->handle] = m;
    *out = as_handle<nccl_comm>(m->handle);
    return NCCL_IN_PROGRESS;
}

int ncclCommGetAsyncError(nccl_comm handle, int *result)
{
    ENTER_NCCL(anytime);
    auto m = find_comm(c, handle);
    if (!m)
        return NCCL_INVALID_ARGUMENT;
    check_thread(c, m.get());
    int fault = take_failure("nccl-async", false);
    if (fault)
        m->result = fault;
    advance(c, m.get());
    *result = m->result;
    return NCCL_OK;
}

int ncclCommFinalize(nccl_comm handle)
{
    ENTER_NCCL(current);
    int result;
    auto m = require_ready(c, handle, &result);
    if (!m)
        return result;
    m->finalizing = true;
    say_goodbye(*m);
    begin_progress(m.get());
    return NCCL_IN_PROGRESS;
}

int ncclCommDestroy(nccl_comm handle)
{
    ENTER_NCCL(current | releases);
    int result;
    auto m = require_ready(c, handle, &result);
    if (!m)
        return result;
    check_left(c, *m);
    if (!is_idle(m->handle))
        misuse(c.ctx.get(), "%s: messages of rank %d are under way", c.symbol, m->rank);
    if (!m->finalizing)
        say_goodbye(*m);
    drop_comm(m);
    return c.error;
}

int ncclCommAbort(nccl_comm handle) // by any thread
{
    ENTER_NCCL(current | releases);
    auto m = find_comm(c, handle);
    if (!m)
        return NCCL_INVALID_ARGUMENT;
    for (int seconds = take_failure("nccl-abort-hang", false); seconds > 0; seconds--)
        for (int i = 0; i < 20000; i++)
            nap();
    check_graphs(c, *m);
    for (auto &w : m->with->wires)
        for (int sends = 0; sends < 2; sends++)
            if ((sends ? w.second->from : w.second->to) == m->rank)
                cut_wire(w.second, sends);
    drop_comm(m);
    return c.error <= NCCL_IN_PROGRESS ? c.error : NCCL_OK;
}

int ncclGroupStart(void)
{
    ENTER_NCCL(anytime);
    own_group().depth++;
    return NCCL_OK;
}

int ncclGroupEnd(void)
{
    ENTER_NCCL(anytime | releases);
    group &g = own_group();
    if (g.depth == 0) {
        misuse(c.ctx.get(), "%s: there is no group", c.symbol);
        return refuse(NCCL_INVALID_USAGE, "ncclGroupEnd: not in a group call");
    }
    if (--g.depth)
        return NCCL_OK;
    if (c.error) {
        N.groups.erase(pthread_self());
        return c.error;
    }
    return end_group(c);
}

int ncclSend(const void *p, size_t n, int type, int peer, nccl_comm comm, cu_stream stream)
{
    ENTER_NCCL(current);
    return add_message(c, true, p, n, type, peer, comm, stream);
}

int ncclRecv(void *p, size_t n, int type, int peer, nccl_comm comm, cu_stream stream)
{
    ENTER_NCCL(current);
    return add_message(c, false, p, n, type, peer, comm, stream);
}

// --- memory ---

int ncclMemAlloc(void **p, size_t bytes)
{
    ENTER_NCCL(current);
    uintptr_t at = 0;
    if (allocate(c, bytes, &at))
        return refuse(NCCL_UNHANDLED_CUDA, "Cuda failure 2 'out of memory'");
    N.memory[at] = c.ctx;
    *p = (void *)at;
    return NCCL_OK;
}

int ncclMemFree(void *p)
{
    ENTER_NCCL(current | releases);
    if (!N.memory.erase((uintptr_t)p)) {
        misuse(c.ctx.get(), "%s: %p is not of ncclMemAlloc", c.symbol, p);
        return NCCL_INVALID_ARGUMENT;
    }
    for (const auto &m : N.comms)
        for (const auto &r : m.second->registered)
            if (r.second.holds((uintptr_t)p))
                misuse(c.ctx.get(), "%s: the memory is registered with rank %d", c.symbol,
                       m.second->rank);
    (void)release_memory(c, (uintptr_t)p);
    return c.error <= NCCL_IN_PROGRESS ? c.error : NCCL_OK;
}

int ncclCommRegister(nccl_comm handle, void *p, size_t bytes, void **out)
{
    ENTER_NCCL(current);
    int result;
    auto m = require_ready(c, handle, &result);
    if (!m)
        return result;
    range r = {(uintptr_t)p, (uintptr_t)p + bytes};
    if (!all_in(S.memory, r)) {
        misuse(c.ctx.get(), "%s: %zu bytes at %p are no memory of a device", c.symbol, bytes, p);
        return refuse(NCCL_INVALID_ARGUMENT, "invalid buffer");
    }
    uint64_t made = ++N.made << 4;
    m->registered[made] = r;
    *out = (void *)(uintptr_t)made;
    return NCCL_OK;
}

int ncclCommDeregister(nccl_comm handle, void *of)
{
    ENTER_NCCL(current | releases);
    int result;
    auto m = require_ready(c, handle, &result);
    if (!m)
        return result;
    if (!m->registered.erase((uint64_t)(uintptr_t)of)) {
        misuse(c.ctx.get(), "%s: what is taken back is not registered", c.symbol);
        return NCCL_INVALID_ARGUMENT;
    }
    return c.error;
}
