// The emulated driver's objects, and what its files know of each other. No thread_local here: the
// thread-local memory of this library is the shared memory of kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/driver.h"
#include "cuda/nccl.h"
#include "tests/emu/emu.h"
#include "tests/emu/libcuda.h"

extern "C" {
#define FN(name, symbol, params) __attribute__((visibility("default"))) int symbol params;
#include "cuda/driver.def"
#undef FN
#define FN(type, name, symbol, since, params)                                                      \
    __attribute__((visibility("default"))) type symbol params;
#include "cuda/nccl.def"
#undef FN
}

namespace drv
{

enum result : int { // CUresult, what cuda/driver.h does not name
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    CONTEXT_IS_DESTROYED = 709,
    MISALIGNED_ADDRESS = 716,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
};

// --- what is configured (libcuda_options.cc) ---

enum class order {
    eager,  // every operation runs when it is queued
    late,   // when something waits for it, and then no more than that needs
    random, // mostly late; any operation whose dependencies are met, now and then one early
};

struct options {
    int devices = 1;
    int cc = 90;
    int sm = 0, smem = 0, l2 = 0; // 0: as devices of that compute capability have
    uint64_t memory = 4ull << 30; // of each device
    uint64_t busy = 0;            // of that, what others have taken
    int driver = 13000;
    int nccl = 22809, cublaslt = 130100;
    std::string name;
    std::string plant, planted_in; // a fault, and in kernels whose names begin so
    std::string lost;              // a file: while it is there, no process has the device
    std::string launches;          // a file: launches are written there
    enum order order = order::random;
    uint64_t seed = 1;
    bool peers = true;    // devices reach each other's memory
    bool clusters = true; // of a device that has them
    bool strict = false;  // misuse fails the context it happens in
    bool quiet = false;   // no line on stderr
};
// 0, or 1 with a line in *why; adds failures with add_failure.
int parse_options(const char *text, options *o, std::string *why);
int add_failure(const std::string &symbol, int64_t nth, int error);

// --- objects ---

struct op;
struct capture;
struct port;
using op_ref = std::shared_ptr<op>;

// Vector clock: for each lane (a stream, or a branch of a graph) the number of its operations known
// to be over.
using clock = std::vector<uint32_t>;

struct stream;
struct product;

struct context { // the primary one of a device
    int device = 0;
    int retained = 0;
    int error = 0; // once a kernel has failed: of every later call
    bool gone = false;
    unsigned streams_made = 0;
    std::vector<const context *>
        reaches; // contexts with memory that its kernels and copies may use as well
    std::shared_ptr<stream> legacy; // the NULL stream
};
using context_ref = std::shared_ptr<context>;

struct stream {
    context_ref ctx;
    unsigned number = 0; // 0: the NULL stream
    bool blocking = true;
    unsigned lane = 0;
    op_ref last;
    std::shared_ptr<capture> cap; // while it captures
    std::vector<int> tips;        // nodes that the next one comes after
    unsigned cap_lane = 0;
    std::vector<unsigned> branches; // lanes of what runs side by side in it
};
using stream_ref = std::shared_ptr<stream>;

struct event {
    context_ref ctx;
    bool timing = true;
    op_ref recorded;
    std::shared_ptr<capture> cap; // when last recorded in a capture
    std::vector<int> tips;
};

struct module {
    context_ref ctx;
    std::shared_ptr<struct emu_image> image;
    std::map<std::string, cu_function> functions;
};

struct function {
    context_ref ctx;
    const struct emu_kernel *kernel;
    unsigned fixed = 0, max_dynamic = 0; // shared memory: static, and dynamic that it may have
};

struct range {
    uintptr_t lo, hi; // [lo, hi)
    bool overlaps(const range &r) const
    {
        return lo < r.hi && r.lo < hi;
    }
    bool holds(uintptr_t p) const
    {
        return p >= lo && p < hi;
    }
};

struct allocation {
    context_ref ctx;
    range bytes;
    uint64_t counted; // against the device's memory
};

// One way from a rank of an emulated NCCL communicator to another: messages meet in the order in
// which either side has queued them.
struct wire {
    uint64_t clique = 0; // the communicator's
    int from = 0, to = 0;
    std::vector<op_ref> queued[2]; // by side, [0] receives; those that have not met
    bool cut[2] = {false, false};  // the side was aborted: its operations end, others wait on
    // With its other side in another process (libnccl_far.cc), so that one list is always empty:
    std::shared_ptr<port> far;    // the way there
    std::deque<uint64_t> arrived; // bytes of the messages that it has come to
    std::string came;             // its bytes of the next messages
    bool leaving = false;         // the first one of the list is on its way there
};

// Work of an operation.
struct work {
    enum kind { nothing, copy, fill, kernel, meet, matmul } kind = nothing;
    const char *symbol = ""; // the entry point that asked for it
    range dst = {0, 0}, src = {0, 0};
    bool pinned_src = false, host_dst = false;
    unsigned char value = 0;
    std::shared_ptr<std::vector<unsigned char>> staged; // of pageable memory, read at once
    const struct emu_kernel *run = nullptr;
    struct emu_shape shape = {};
    bool early = false; // programmatic stream serialization
    std::shared_ptr<unsigned char> args;
    std::vector<uintptr_t> pointers;                // words of the arguments that are addresses
    std::shared_ptr<const struct product> operands; // of one by the emulated cuBLASLt
    std::shared_ptr<wire> over; // a message: src of the sender, dst of the receiver
    bool sends = false;
    uint64_t comm = 0;
};
using work_ref = std::shared_ptr<const work>;
// Work of which only addresses are known: a kernel, or a library's.
static inline bool is_launch(const work &w)
{
    return w.kind == work::kernel || w.kind == work::matmul;
}

struct node {
    work_ref what;
    std::vector<int> before;
    unsigned lane; // 0: that of the stream it is launched in
};

struct capture {
    stream *origin;
    int mode;
    pthread_t thread;
    bool invalid = false, ended = false;
    unsigned n_lanes = 1;
    std::vector<node> nodes;
};

struct graph {
    std::vector<node> nodes;
    unsigned n_lanes = 1;
    context_ref ctx;
};

struct exec {
    std::shared_ptr<const graph> what;
    context_ref ctx;
    std::vector<unsigned> lanes;
    op_ref last; // launches of one exec run one after another
};

// Handles are numbers that no one can follow; those of destroyed objects are not given again.
template <class T> class table
{
  public:
    table(unsigned k, const char *n) : kind(k), name(n)
    {
    }
    uint64_t add(std::shared_ptr<T> object)
    {
        uint64_t handle = (uint64_t)kind << 56 | ++made << 4;
        live[handle] = std::move(object);
        return handle;
    }
    std::shared_ptr<T> find(const void *handle) const
    {
        auto at = live.find((uint64_t)(uintptr_t)handle);
        return at == live.end() ? nullptr : at->second;
    }
    bool was(const void *handle) const // one that has been destroyed
    {
        uint64_t h = (uint64_t)(uintptr_t)handle;
        return h >> 56 == kind && (h & 15) == 0 && (h & ~(255ull << 56)) >> 4 <= made;
    }
    void drop(const void *handle)
    {
        live.erase((uint64_t)(uintptr_t)handle);
    }
    size_t drop_of(const context *ctx)
    {
        size_t before = live.size();
        for (auto at = live.begin(); at != live.end();)
            at = at->second->ctx.get() == ctx ? live.erase(at) : std::next(at);
        return before - live.size();
    }
    std::unordered_map<uint64_t, std::shared_ptr<T>> live;
    const unsigned kind;
    const char *const name;

  private:
    uint64_t made = 0;
};

template <class H> H as_handle(uint64_t handle)
{
    return (H)(uintptr_t)handle;
}

struct device {
    context_ref primary;
    cu_context handle = nullptr;
    uint64_t used = 0;
};

struct counter {
    int64_t calls = 0, bytes = 0;
};

struct failure {
    std::string symbol; // "": any entry point
    int64_t nth;
    int error;
};

struct state {
    std::mutex lock;
    bool configured = false, initialized = false;
    options opt;
    std::string bad_options;
    std::mt19937_64 rng;
    std::vector<device> devices;
    std::unordered_map<uint64_t, context_ref> contexts; // by handle
    uint64_t contexts_made = 0;
    table<module> modules{0xb2, "module"};
    table<function> functions{0xb3, "function"};
    table<stream> streams{0xb4, "stream"};
    table<event> events{0xb5, "event"};
    table<graph> graphs{0xb6, "graph"};
    table<exec> execs{0xb7, "exec"};
    std::map<uintptr_t, allocation> memory, host; // by their first byte
    std::map<std::string, counter> counters;
    std::vector<failure> failures;
    std::string held; // entry point that other threads than `holder` wait at
    pthread_t holder = {};
    std::vector<std::string> lines;
    size_t lines_lost = 0;
    std::string report;
};
extern state S;

// --- calls (libcuda_options.cc) ---

enum need {
    anytime = 0,
    initialized = 1,
    current = 3,  // a context that works
    releases = 4, // fails after its work
};

// One call of an entry point: takes the lock, counts, and says whether the call fails at once
// (`refused`). What it returns is done(result).
class call
{
  public:
    call(const char *symbol, int need);
    int done(int result);
    const char *symbol;
    bool refused = false;
    int error = CU_OK;
    context_ref ctx; // the current one
  private:
    std::lock_guard<std::mutex> guard;
    void prepare(int need);
};

bool is_sticky(int error);
int take_failure(const char *symbol, bool entry_point); // CU_OK: none due
void count_bytes(const char *symbol, uint64_t bytes);
void forget_everything();
// Misuse that a driver would not notice, or what stands behind an error.
void misuse(context *ctx, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *current_context();
void set_current_context(void *handle);
const char *of_handle(bool was); // "destroyed" or "unknown"
// The object behind a handle, or null with a line in the report.
template <class T> std::shared_ptr<T> require(const call &c, const table<T> &t, const void *handle)
{
    std::shared_ptr<T> object = t.find(handle);
    if (!object)
        misuse(c.ctx.get(), "%s: the %s is %s", c.symbol, t.name, of_handle(t.was(handle)));
    return object;
}

// --- images (libcuda_image.cc) ---

// CU_OK: it is no fatbin, or one with code that this driver loads on its devices.
int check_image(const void *image);

// --- memory (libcuda_memory.cc) ---

const allocation *find_in(const std::map<uintptr_t, allocation> &m, uintptr_t p);
bool all_in(const std::map<uintptr_t, allocation> &m, const range &r);
// The work of cuMemAlloc_v2 and cuMemFree_v2.
int allocate(const call &c, size_t bytes, uintptr_t *p);
int release_memory(const call &c, uintptr_t p);
void free_memory_of(const context *ctx, size_t *n_memory, size_t *n_host);

// True when operations of this context may use that memory.
bool may_use(const context &ctx, const allocation &a);

// --- streams (libcuda_stream.cc) ---

stream_ref find_stream(const call &c, cu_stream handle); // NULL: the current context's own
std::string name_of(const stream &s);
// Queues work after what is in the stream and after `also`, or records it while the stream
// captures.
int submit(const call &c, const stream_ref &s, work_ref what, const op_ref &also = nullptr);
// Several side by side: what comes next in the stream comes after all of them.
int submit_group(const call &c, const stream_ref &s, const std::vector<work_ref> &what);

// --- capture (libcuda_graph.cc) ---

void add_node(const stream_ref &s, work_ref what);
void add_nodes(const stream_ref &s, const std::vector<work_ref> &what); // side by side
bool is_in_graphs(uint64_t comm); // messages of this communicator, in graphs that exist
// A call that may not happen while something is captured (in this thread, or anywhere).
int refuse_in_capture(const call &c);
// One that may not happen in a stream that captures: it ends the capture.
int refuse_capturing(const stream_ref &s);
int capture_record(const stream_ref &s, event *e);
int capture_wait(const stream_ref &s, const event &e); // s captures, or e was recorded in a capture

// --- the queue (libcuda_queue.cc) ---

struct op {
    work_ref what;
    context_ref ctx;
    std::string where; // "stream 2"
    unsigned lane;
    drv::clock when; // operations known to be finished before it, and itself
    std::vector<op_ref> before, after;
    unsigned waiting = 0;
    uint64_t mark = 0;
    bool done = false;
    uint64_t checksum = 0; // of pinned memory that it will read
    int64_t done_ns = 0;
    std::vector<std::pair<range, std::string>> watched; // ranges that an unordered copy reads
    bool arrived = false;                               // a message that waits for its other side
};

unsigned new_lane();
op_ref enqueue(const context_ref &ctx, const std::string &where, unsigned lane, work_ref what,
               const std::vector<op_ref> &before);
void run_until(const op_ref &target); // and the host knows that it is finished
void run_all();                       // all of it, of every context
void progress();                      // a little, as a query gives occasion for
void host_knows(const op_ref &o);
// An operation that touches the bytes and that the host does not know to be finished, or null.
op_ref unfinished_user(const range &bytes);
op_ref unfinished_kernel(const struct emu_kernel *k);
void cut_wire(const std::shared_ptr<wire> &w, bool sends); // of that side nothing waits any more
bool is_idle(uint64_t comm);                               // no message of it is queued
// Wires to other processes: meet_far exchanges messages that both sides have reached, message_sent
// goes on once the first one has been sent, run_awaited runs the operation that the other side
// waits for and returns true when that side still waits.
void meet_far(const std::shared_ptr<wire> &w);
void message_sent(const std::shared_ptr<wire> &w);
bool run_awaited(const wire &w);
void nap(); // lets other threads call, as a device works on while one waits for it
void forget_queue();

// --- cuBLASLt (libcublaslt.cc) ---

void run_product(const struct product &p);
void forget_products();
int64_t live_products(); // handles, descriptors and so on that exist

// --- NCCL (libnccl.cc) ---

void forget_comms();
extern const char *const nccl_faults[]; // faults that can be planted beside those of entry points

enum { MOST_RANKS = 64 }; // of a communicator
struct neighbour {        // another rank of a communicator
    int fd;               // a socket to it, which is the taker's; -1: it is in this process
    bool same_machine;
};
// Result of joining a communicator: NCCL_OK with all ranks, otherwise the reason.
void comm_joined(uint64_t comm, int result, const std::string &why,
                 const std::vector<neighbour> &ranks);
void comm_lost(uint64_t comm); // a rank on another machine has gone without a word

// --- NCCL between processes (libnccl_far.cc, libnccl_port.cc) ---

using port_ref = std::shared_ptr<port>;
bool make_root(struct nccl_id *id); // the ranks of this id meet in this process
// Goes there; null when nobody is there. comm_joined() is called with what comes of it.
port_ref visit_root(const struct nccl_id &id, int n_rank, int rank, int device, uint64_t comm);
// Two wires over the socket to a rank in another process.
port_ref open_link(const neighbour &n, uint64_t comm, const std::shared_ptr<wire> &out,
                   const std::shared_ptr<wire> &in);
void tell_arrival(const wire &w, bool sends, uint64_t bytes); // this side has come to a message
void send_message(const std::shared_ptr<wire> &w, const range &bytes); // message_sent() follows
void say_goodbye(const port_ref &link); // the end of the connection is then no fault
bool is_sent(const port_ref &link);     // everything that was to go there has gone
void close_port(const port_ref &p);     // when that is so
void end_port(const port_ref &p);       // now
void forget_ports();

} // namespace drv

#define ENTER(need)                                                                                \
    drv::call c(__func__, need);                                                                   \
    if (c.refused)                                                                                 \
    return c.error
