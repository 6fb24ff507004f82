/* A transport over NCCL: a communicator of all members, also of several processes and machines.
 *
 * A communicator is one thread's, does not block, and is asked how it is (ncclCommGetAsyncError)
 * wherever something is waited for, so that every wait has our own deadline: NCCL has none.
 * Messages go through rings of pieces on either side, filled and emptied in the order of the
 * backends' work, and sent by a stream of their own, in one order: data goes forward only, so a
 * send that waits for its receiver holds up nothing that this one needs. Both sides' rings are
 * memory of NCCL, registered, where it has that.
 *
 * A small message (a step of single tokens) is a graph of one operation, captured once for each
 * buffer and size class: outside a graph each operation of such a communicator costs NCCL a thread.
 * Sizes are rounded up to their class, and both sides know them, so they agree on what is captured.
 * Large ones are issued one by one.
 *
 * Operations of two communicators may not run at once on a device (nothing promises that both get
 * on), so there is one for a world. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/checked.h"
#include "base/clock.h"
#include "cuda/nccl.h"
#include "cuda/nvtx.h"
#include "cuda/transport.h"
#include "gr/status.h"

enum {
    SMALLEST = 4096, /* bytes of the first size class; each has twice those of the one before */
    N_CLASS = 5,
    SMALL = SMALLEST << (N_CLASS - 1),
    N_PART = 32, /* graphs of gathers that are kept */
};
#define SECOND ((int64_t)1000000000)
#define ABORT_NS SECOND       /* after which an abort is left to itself */
#define LEAVE_NS (2 * SECOND) /* after which leaving becomes an abort */

/* An operation of a group. */
struct op {
    bool sends;
    int32_t with; /* member */
    void *p;
    size_t bytes;
};

/* One side of a link: GR_TRANSPORT_RING pieces. */
struct ring {
    char *memory;
    void *handle;                     /* of its registration */
    cu_event own[GR_TRANSPORT_RING];  /* the backend has filled, or emptied, the piece */
    cu_event comm[GR_TRANSPORT_RING]; /* it has been sent, or has come */
    uint64_t n;                       /* pieces so far */
    cu_graph_exec graph[GR_TRANSPORT_RING][N_CLASS];
};

/* The graph of gathers into the same memory. */
struct part {
    void *all;
    size_t bytes;
    cu_graph_exec graph;
    uint64_t used;
};

struct nccl_transport {
    struct gr_cuda_transport transport;
    const struct gr_nccl *nccl;
    nccl_comm comm;
    cu_stream stream;
    size_t piece_bytes;
    struct ring in, out;
    cu_event before, after; /* of a gather */
    cu_event last;          /* behind the last work on the stream; NULL: there is none */
    struct part part[N_PART];
    uint64_t n_use;
    bool stuck; /* an abort has not come back: what it may use stays */
};

#define NCCL(x, call, ...)                                                                         \
    gr_nccl_said((x)->nccl, (x)->comm, (x)->transport.name, GR_NCCL_##call,                        \
                 (x)->nccl->call(__VA_ARGS__))
#define CU_OF(x, call, ...) CU(&(x)->transport, call, __VA_ARGS__)

static struct nccl_transport *nccl_of(struct gr_transport *n)
{
    return (struct nccl_transport *)(void *)n;
}

/* ---- waiting ---- */

/* Pauses between two looks: yields at first, as most waits end within microseconds. */
static void rest(int64_t since)
{
    const struct timespec t = {0, 50000};
    if (gr_now_ns() - since < 1000000)
        (void)sched_yield();
    else
        (void)nanosleep(&t, NULL);
}

/* Asks the communicator for its state; *busy: its last call is in progress. */
static int ask(struct nccl_transport *x, bool *busy)
{
    int result = NCCL_OK;
    int rc = NCCL(x, async_error, x->comm, &result);
    *busy = result == NCCL_IN_PROGRESS;
    return rc ? rc : gr_nccl_said(x->nccl, x->comm, x->transport.name, GR_NCCL_async_error, result);
}

/* Waits until the communicator has finished its last call. */
static int until_ready(struct nccl_transport *x, const char *what, int64_t deadline_ns)
{
    int64_t since = gr_now_ns();
    bool busy;
    int rc;
    while (!(rc = ask(x, &busy)) && busy) {
        if ((rc = gr_cuda_transport_patience(&x->transport, what, since, deadline_ns)))
            return rc;
        rest(since);
    }
    return rc;
}

/* Waits until the work queued on the stream before this event is done. */
static int until_done(struct nccl_transport *x, cu_event event, const char *what,
                      int64_t deadline_ns)
{
    int64_t since = gr_now_ns();
    bool busy;
    int result, rc;
    while ((result = x->transport.cu->event_query(event)) != CU_OK) {
        if (result != CU_NOT_READY)
            return gr_cuda_said(x->transport.cu, x->transport.name, GR_CU_event_query, result);
        if ((rc = ask(x, &busy)) ||
            (rc = gr_cuda_transport_patience(&x->transport, what, since, deadline_ns)))
            return rc;
        rest(since);
    }
    return 0;
}

static int until_all_done(struct nccl_transport *x, int64_t deadline_ns)
{
    return x->last ? until_done(x, x->last, "what NCCL is to send or receive", deadline_ns) : 0;
}

/* ---- operations ---- */

/* Gives NCCL a group of operations, which are on the stream when this returns. */
static int issue(struct nccl_transport *x, const struct op *op, int n_op, int64_t deadline_ns)
{
    int rc = NCCL(x, group_start);
    if (rc)
        return rc;
    for (int i = 0; i < n_op && !rc; i++)
        rc = op[i].sends
                 ? NCCL(x, send, op[i].p, op[i].bytes, NCCL_BYTES, op[i].with, x->comm, x->stream)
                 : NCCL(x, recv, op[i].p, op[i].bytes, NCCL_BYTES, op[i].with, x->comm, x->stream);
    int ended = x->nccl->group_end(); /* whatever came of it: a group that is open stays so */
    if (!rc)
        rc = gr_nccl_said(x->nccl, x->comm, x->transport.name, GR_NCCL_group_end, ended);
    return rc ? rc : until_ready(x, "NCCL's launch", deadline_ns);
}

static int capture(struct nccl_transport *x, const struct op *op, int n_op, cu_graph_exec *exec,
                   int64_t deadline_ns)
{
    cu_graph graph = NULL;
    int rc = CU_OF(x, capture_begin, x->stream, CU_CAPTURE_THREAD_LOCAL);
    if (rc)
        return rc;
    rc = issue(x, op, n_op, deadline_ns);
    if (rc) /* ends what was begun; the first error is the one to tell */
        (void)x->transport.cu->capture_end(x->stream, &graph);
    else
        rc = CU_OF(x, capture_end, x->stream, &graph);
    if (!rc)
        rc = CU_OF(x, graph_instantiate, exec, graph, 0);
    if (graph)
        (void)x->transport.cu->graph_destroy(graph);
    return rc;
}

/* Queues operations on the stream; by *graph, made at its first use, unless `graph` is NULL. */
static int run(struct nccl_transport *x, const struct op *op, int n_op, cu_graph_exec *graph,
               int64_t deadline_ns)
{
    int rc = 0;
    if (!graph)
        return issue(x, op, n_op, deadline_ns);
    if (!*graph)
        rc = capture(x, op, n_op, graph, deadline_ns);
    return rc ? rc : CU_OF(x, graph_launch, *graph, x->stream);
}

static int mark(struct nccl_transport *x, cu_event event)
{
    int rc = CU_OF(x, event_record, event, x->stream);
    if (!rc)
        x->last = event;
    return rc;
}

/* ---- pieces ---- */

static int copy_piece(const struct gr_cuda_backend *c, char *ring, struct gr_cuda_spans *s,
                      size_t bytes, bool sends)
{
    cu_pointer at = (cu_pointer)(uintptr_t)ring, span;
    int rc = 0;
    for (size_t n; bytes && !rc; bytes -= n, at += n) {
        span = gr_cuda_spans_next(s, bytes, &n);
        rc = sends ? CU(c, copy, at, span, n, c->stream) : CU(c, copy, span, at, n, c->stream);
    }
    return rc;
}

/* The size class of a message, to whose size *bytes is rounded up; N_CLASS and the message's own
 * size when it is too large. */
static int class_of(const struct gr_cuda_backend *c, size_t *bytes)
{
    int size = 0;
    if (*bytes > SMALL || c->opt.no_graphs)
        return N_CLASS;
    while ((size_t)SMALLEST << size < *bytes)
        size++;
    *bytes = (size_t)SMALLEST << size;
    return size;
}

static int send_piece(struct gr_cuda_backend *c, struct nccl_transport *x, struct gr_cuda_spans *s,
                      size_t bytes, int64_t deadline_ns)
{
    struct ring *r = &x->out;
    size_t i = r->n % GR_TRANSPORT_RING;
    char *piece = r->memory + i * x->piece_bytes;
    /* on the host: so the backend's stream never waits for a receiver */
    int rc = r->n >= GR_TRANSPORT_RING
                 ? until_done(x, r->comm[i], "room for what is sent", deadline_ns)
                 : 0;
    if (!rc)
        rc = copy_piece(c, piece, s, bytes, true);
    if (!rc)
        rc = CU(c, event_record, r->own[i], c->stream);
    if (!rc)
        rc = CU_OF(x, stream_wait, x->stream, r->own[i], 0);
    int size = class_of(c, &bytes);
    const struct op op = {true, x->transport.opt.to, piece, bytes};
    if (!rc)
        rc = run(x, &op, 1, size < N_CLASS ? &r->graph[i][size] : NULL, deadline_ns);
    if (!rc)
        rc = mark(x, r->comm[i]);
    r->n += !rc;
    return rc;
}

static int recv_piece(struct gr_cuda_backend *c, struct nccl_transport *x, struct gr_cuda_spans *s,
                      size_t bytes, int64_t deadline_ns)
{
    struct ring *r = &x->in;
    size_t i = r->n % GR_TRANSPORT_RING, whole = bytes;
    char *piece = r->memory + i * x->piece_bytes;
    int rc = r->n >= GR_TRANSPORT_RING ? CU_OF(x, stream_wait, x->stream, r->own[i], 0) : 0;
    int size = class_of(c, &whole);
    const struct op op = {false, x->transport.opt.from, piece, whole};
    if (!rc)
        rc = run(x, &op, 1, size < N_CLASS ? &r->graph[i][size] : NULL, deadline_ns);
    if (!rc)
        rc = mark(x, r->comm[i]);
    if (!rc)
        rc = CU(c, stream_wait, c->stream, r->comm[i], 0);
    if (!rc)
        rc = copy_piece(c, piece, s, bytes, false);
    if (!rc)
        rc = CU(c, event_record, r->own[i], c->stream);
    r->n += !rc;
    return rc;
}

/* ---- the end ---- */

/* An abort under way; freed by the side that ends last. */
struct aborting {
    const struct gr_nccl *nccl;
    const struct gr_cuda_driver *cu;
    cu_context context;
    nccl_comm comm;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done, alone; /* the abort has returned; nobody waits for it */
};

static void free_aborting(struct aborting *a)
{
    pthread_cond_destroy(&a->ended);
    pthread_mutex_destroy(&a->lock);
    gr_free(a);
}

static void *abort_main(void *arg)
{
    struct aborting *a = arg;
    (void)a->cu->context_set(a->context);
    (void)a->nccl->abort(a->comm);
    pthread_mutex_lock(&a->lock);
    a->done = true;
    bool alone = a->alone;
    pthread_cond_signal(&a->ended);
    pthread_mutex_unlock(&a->lock);
    if (alone)
        free_aborting(a);
    return NULL;
}

/* Waits for an abort; true when it came back in time. */
static bool await(struct aborting *a)
{
    int64_t until = gr_now_ns() + ABORT_NS;
    const struct timespec t = {until / SECOND, until % SECOND};
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    while (!a->done && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&a->ended, &a->lock, &t);
    bool done = a->done;
    a->alone = !done;
    pthread_mutex_unlock(&a->lock);
    return done;
}

static struct aborting *start_abort(const struct nccl_transport *x)
{
    pthread_condattr_t monotonic;
    pthread_attr_t detached;
    pthread_t thread;
    struct aborting *a = gr_calloc(1, sizeof *a);
    if (!a)
        return NULL;
    *a = (struct aborting){.nccl = x->nccl,
                           .cu = x->transport.cu,
                           .context = x->transport.device->context,
                           .comm = x->comm};
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    int rc = pthread_create(&thread, &detached, abort_main, a);
    pthread_attr_destroy(&detached);
    if (!rc)
        return a;
    free_aborting(a);
    return NULL;
}

static void drop_graphs(struct nccl_transport *x)
{
    struct ring *const rings[] = {&x->in, &x->out};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < GR_TRANSPORT_RING * N_CLASS; i++) {
            cu_graph_exec *g = &rings[k]->graph[i / N_CLASS][i % N_CLASS];
            if (*g)
                (void)x->transport.cu->graph_exec_destroy(*g);
            *g = NULL;
        }
    for (int i = 0; i < N_PART; i++) {
        if (x->part[i].graph)
            (void)x->transport.cu->graph_exec_destroy(x->part[i].graph);
        x->part[i] = (struct part){0};
    }
}

/* Aborts the communicator. That has hung in more than one version: a thread does it, which is
 * waited for no longer than a second. */
static void end_comm(struct nccl_transport *x)
{
    if (!x->comm)
        return;
    drop_graphs(x);
    struct aborting *a = start_abort(x);
    x->stuck = !a || !await(a);
    if (!x->stuck)
        free_aborting(a);
    x->comm = NULL;
}

/* ---- the table's entries ---- */

/* The member that is probably to blame when nothing comes. */
static int32_t suspect(const struct nccl_transport *x, int rc)
{
    return rc != GR_E_PEER_LOST         ? -1
           : x->transport.opt.from >= 0 ? x->transport.opt.from
                                        : x->transport.opt.to;
}

/* Ends a call: a failure ends the communicator too, as the device may wait for what never comes. */
static int settle(struct nccl_transport *x, int rc)
{
    if (!rc)
        return 0;
    (void)gr_cuda_transport_leave(&x->transport, rc, suspect(x, rc));
    end_comm(x);
    return gr_fail(x->transport.failed, "%s", x->transport.failed_text);
}

static int pass(struct gr_transport *n, struct gr_backend *b, bool sends,
                const struct gr_transport_span *span, int n_span, int64_t deadline_ns)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    struct nccl_transport *x = nccl_of(n);
    struct gr_cuda_spans s = {span, n_span, 0};
    size_t left = gr_cuda_spans_bytes(span, n_span), bytes;
    int rc = gr_cuda_transport_enter(&x->transport, b, &v);
    if (rc)
        return rc;
    if ((sends ? x->transport.opt.to : x->transport.opt.from) < 0)
        return gr_fail(GR_E_INVALID, "%s: member %d has nobody to %s", x->transport.name,
                       x->transport.opt.member, sends ? "send to" : "receive from");
    if (c->opt.nvtx)
        gr_nvtx_begin(sends ? GR_RANGE_SEND : GR_RANGE_RECV, left);
    for (; left && !rc; left -= bytes) {
        bytes = GR_MIN(left, x->piece_bytes);
        rc = (sends ? send_piece : recv_piece)(c, x, &s, bytes, deadline_ns);
    }
    if (c->opt.nvtx)
        gr_nvtx_end();
    return settle(x, rc);
}

static int nccl_send(struct gr_transport *n, struct gr_backend *b,
                     const struct gr_transport_span *span, int n_span, int64_t deadline_ns)
{
    return pass(n, b, true, span, n_span, deadline_ns);
}

static int nccl_recv(struct gr_transport *n, struct gr_backend *b,
                     const struct gr_transport_span *span, int n_span, int64_t deadline_ns)
{
    return pass(n, b, false, span, n_span, deadline_ns);
}

/* The graph for a gather into this memory; a new one replaces the least recently used. */
static cu_graph_exec *graph_of(struct nccl_transport *x, void *all, size_t bytes)
{
    struct part *oldest = &x->part[0];
    for (int i = 0; i < N_PART; i++) {
        struct part *p = &x->part[i];
        if (p->used && p->all == all && p->bytes == bytes) {
            p->used = ++x->n_use;
            return &p->graph;
        }
        if (p->used < oldest->used)
            oldest = p;
    }
    if (oldest->graph)
        (void)x->transport.cu->graph_exec_destroy(oldest->graph);
    *oldest = (struct part){.all = all, .bytes = bytes, .used = ++x->n_use};
    return &oldest->graph;
}

/* Sends to and receives from each other member, as one NCCL group: they progress together. */
static int gather(struct gr_cuda_backend *c, struct nccl_transport *x, char *all, size_t bytes,
                  int64_t deadline_ns)
{
    const struct gr_transport_opt *o = &x->transport.opt;
    struct op *op = gr_calloc(2 * (size_t)o->n_group, sizeof *op);
    int n = 0, rc = op ? 0 : GR_E_NOMEM_HOST;
    for (int32_t i = 0; i < o->n_group && !rc; i++) {
        if (o->first + i == o->member)
            continue;
        op[n++] =
            (struct op){true, o->first + i, all + (size_t)(o->member - o->first) * bytes, bytes};
        op[n++] = (struct op){false, o->first + i, all + (size_t)i * bytes, bytes};
    }
    if (!rc)
        rc = CU(c, event_record, x->before, c->stream);
    if (!rc)
        rc = CU_OF(x, stream_wait, x->stream, x->before, 0);
    if (!rc)
        rc = run(x, op, n, bytes > SMALL || c->opt.no_graphs ? NULL : graph_of(x, all, bytes),
                 deadline_ns);
    if (!rc)
        rc = mark(x, x->after);
    gr_free(op);
    return rc ? rc : CU(c, stream_wait, c->stream, x->after, 0);
}

static int nccl_gather(struct gr_transport *n, struct gr_backend *b, void *all, size_t bytes,
                       int64_t deadline_ns)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    struct nccl_transport *x = nccl_of(n);
    int rc = gr_cuda_transport_enter(&x->transport, b, &v);
    if (rc || x->transport.opt.n_group <= 1 || !bytes)
        return rc;
    if (c->opt.nvtx)
        gr_nvtx_begin(GR_RANGE_EXCHANGE, bytes * (size_t)x->transport.opt.n_group);
    rc = gather(c, x, all, bytes, deadline_ns);
    if (c->opt.nvtx)
        gr_nvtx_end();
    return settle(x, rc);
}

static int nccl_wait(struct gr_transport *n, int64_t deadline_ns)
{
    struct nccl_transport *x = nccl_of(n);
    if (x->transport.failed)
        return gr_fail(x->transport.failed, "%s", x->transport.failed_text);
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_visit(&v, x->transport.device);
    if (!rc)
        rc = until_all_done(x, deadline_ns);
    return settle(x, rc);
}

/* ---- leaving ---- */

static void nccl_abort(struct gr_transport *n)
{
    struct nccl_transport *x = nccl_of(n);
    GR_CUDA_VISIT(v);
    gr_cuda_transport_end(&x->transport);
    (void)gr_cuda_visit(&v, x->transport.device);
    end_comm(x);
}

/* Waits until the others have received everything, and closes the communicator; true when that
 * succeeded. Communicators go after what refers to them. */
static bool close_comm(struct nccl_transport *x)
{
    int64_t until = gr_now_ns() + LEAVE_NS;
    if (x->transport.failed || until_all_done(x, until))
        return false;
    drop_graphs(x);
    if (x->in.handle && NCCL(x, cancel, x->comm, x->in.handle))
        return false;
    if (x->out.handle && NCCL(x, cancel, x->comm, x->out.handle))
        return false;
    if (NCCL(x, finalize, x->comm) || until_ready(x, "the end of the transport", until) ||
        NCCL(x, destroy, x->comm))
        return false;
    x->comm = NULL;
    return true;
}

static void ring_fini(struct nccl_transport *x, struct ring *r)
{
    for (int i = 0; i < GR_TRANSPORT_RING; i++) {
        cu_event *const both[] = {&r->own[i], &r->comm[i]};
        for (int k = 0; k < 2; k++)
            if (*both[k]) {
                if ((uint64_t)i < r->n)
                    (void)x->transport.cu->event_sync(*both[k]);
                (void)x->transport.cu->event_destroy(*both[k]);
            }
    }
    if (r->memory && x->nccl->alloc)
        (void)x->nccl->free(r->memory);
    else if (r->memory)
        (void)x->transport.cu->free((cu_pointer)(uintptr_t)r->memory);
}

static void nccl_leave(struct gr_transport **n)
{
    struct nccl_transport *x = *n ? nccl_of(*n) : NULL;
    GR_CUDA_VISIT(v);
    if (!x)
        return;
    *n = NULL;
    if (x->transport.device)
        (void)gr_cuda_visit(&v, x->transport.device);
    if (x->comm && !close_comm(x))
        end_comm(x);
    if (!x->stuck && x->transport.device) {
        if (x->stream)
            (void)x->transport.cu->stream_sync(x->stream);
        ring_fini(x, &x->in);
        ring_fini(x, &x->out);
        if (x->before)
            (void)x->transport.cu->event_destroy(x->before);
        if (x->after)
            (void)x->transport.cu->event_destroy(x->after);
        if (x->stream)
            (void)x->transport.cu->stream_destroy(x->stream);
        gr_cuda_release(&x->transport.device);
    }
    gr_free(x);
}

/* ---- joining ---- */

static int memory_new(struct gr_cuda_backend *c, struct nccl_transport *x, struct ring *r)
{
    size_t bytes = GR_TRANSPORT_RING * x->piece_bytes;
    cu_pointer p = 0;
    void *own = NULL;
    if (x->nccl->alloc && x->nccl->free && x->nccl->enter && x->nccl->cancel) {
        int rc = NCCL(x, alloc, &own, bytes);
        r->memory = own;
        return rc ? rc : NCCL(x, enter, x->comm, own, bytes, &r->handle);
    }
    int rc = gr_cuda_alloc(c, bytes, &p);
    r->memory = (char *)(uintptr_t)p;
    return rc;
}

static int ring_new(struct gr_cuda_backend *c, struct nccl_transport *x, struct ring *r)
{
    int rc = memory_new(c, x, r);
    for (int i = 0; i < GR_TRANSPORT_RING && !rc; i++)
        if (!(rc = CU_OF(x, event_create, &r->own[i], CU_EVENT_NO_TIMING)))
            rc = CU_OF(x, event_create, &r->comm[i], CU_EVENT_NO_TIMING);
    return rc;
}

static int connect_comm(struct nccl_transport *x)
{
    const struct gr_transport_opt *o = &x->transport.opt;
    struct nccl_id id;
    struct nccl_config config = gr_nccl_config(gr_nccl_state()->version, "gpurun");
    memcpy(id.bytes, o->ticket.bytes, sizeof id.bytes);
    int rc = NCCL(x, init, &x->comm, o->n_member, id, o->member, &config);
    return rc ? rc : until_ready(x, "a member of the transport", o->deadline_ns);
}

/* Makes all connections, at once: NCCL makes them at their first use, which can take longer than a
 * step may. */
static int warm_up(struct nccl_transport *x)
{
    const struct gr_transport_opt *o = &x->transport.opt;
    size_t n_most = 2 + 2 * (size_t)GR_MAX(o->n_group, 0);
    struct op *op = gr_calloc(n_most, sizeof *op);
    int n = 0, rc = op ? 0 : GR_E_NOMEM_HOST;
    if (!rc && o->to >= 0)
        op[n++] = (struct op){true, o->to, x->out.memory, SMALLEST};
    if (!rc && o->from >= 0)
        op[n++] = (struct op){false, o->from, x->in.memory, SMALLEST};
    for (int32_t i = 0; i < o->n_group && o->n_group > 1 && !rc; i++)
        if (o->first + i != o->member) {
            op[n++] = (struct op){true, o->first + i, x->out.memory, 1};
            op[n++] = (struct op){false, o->first + i, x->in.memory + SMALLEST + i, 1};
        }
    if (n)
        rc = issue(x, op, n, o->deadline_ns);
    if (!rc)
        rc = mark(x, x->after);
    gr_free(op);
    return rc ? rc : until_all_done(x, o->deadline_ns);
}

static int join(struct gr_cuda_backend *c, struct nccl_transport *x)
{
    const struct gr_nccl_state *s = gr_nccl_state();
    const struct gr_transport_opt *opt = &x->transport.opt;
    if (!s->version)
        return gr_fail(GR_E_UNSUPPORTED, "%s", s->what);
    int rc = CU_OF(x, stream_create, &x->stream, CU_STREAM_NON_BLOCKING);
    if (!rc)
        rc = CU_OF(x, event_create, &x->before, CU_EVENT_NO_TIMING);
    if (!rc)
        rc = CU_OF(x, event_create, &x->after, CU_EVENT_NO_TIMING);
    if (!rc)
        rc = connect_comm(x);
    if (!rc && (opt->from >= 0 || opt->n_group > 1))
        rc = ring_new(c, x, &x->in);
    if (!rc && (opt->to >= 0 || opt->n_group > 1))
        rc = ring_new(c, x, &x->out);
    if (!rc)
        rc = warm_up(x);
    if (!rc && c->opt.nvtx)
        gr_nvtx_name_stream(x->stream, "gpurun nccl");
    (void)snprintf(x->transport.base.via, sizeof x->transport.base.via, "%.63s", s->what);
    return rc;
}

static const struct gr_transport_api api = {
    .name = "nccl",
    .send = nccl_send,
    .recv = nccl_recv,
    .gather = nccl_gather,
    .wait = nccl_wait,
    .abort = nccl_abort,
    .leave = nccl_leave,
};

int gr_nccl_join(struct gr_cuda_backend *c, const struct gr_transport_opt *opt,
                 struct gr_transport **out)
{
    struct nccl_transport *x = gr_calloc(1, sizeof *x);
    if (!x)
        return GR_E_NOMEM_HOST;
    *out = &x->transport.base;
    x->transport.base.api = &api;
    x->nccl = &gr_nccl_state()->nccl;
    x->piece_bytes = GR_PAD(GR_MAX(opt->piece_bytes, (size_t)SMALL), (size_t)SMALLEST);
    int rc = gr_cuda_transport_init(&x->transport, c, opt);
    if (!rc)
        rc = join(c, x);
    if (rc)
        rc = gr_cuda_transport_leave(&x->transport, rc, -1);
    if (rc)
        nccl_leave(out);
    return rc;
}

int gr_nccl_ticket(struct gr_transport_ticket *t)
{
    const struct gr_nccl_state *s = gr_nccl_state();
    struct nccl_id id;
    if (!s->version)
        return gr_fail(GR_E_UNSUPPORTED, "%s", s->what);
    int rc = gr_nccl_said(&s->nccl, NULL, "NCCL", GR_NCCL_unique_id, s->nccl.unique_id(&id));
    if (!rc)
        memcpy(t->bytes, id.bytes, sizeof t->bytes);
    return rc;
}
