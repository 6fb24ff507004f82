/* Messages between ranks.
 *
 * A rank runs a part of a model: a thread of this process, or a process. A *world* is all ranks of
 * one model, numbered from 0. A *link* carries messages from one rank to another, in order, without
 * tags; (lane, from, to) identifies it on both sides. Each lane has an order of its own, so that
 * commands, results, activations and partial sums never wait for each other.
 *
 * Sends and receives are asynchronous: begun, then waited for. Every wait ends: once a rank is lost
 * (gr_world_lose, by whoever notices), every wait of this process, now and later, returns
 * GR_E_PEER_LOST with that rank's name and the reason in the message.
 *
 * Threads: a link is used by one thread at a time; different links of a world by different ones. */
#ifndef GR_LINK_LINK_H
#define GR_LINK_LINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "gpurun.h"

#define GR_MAX_RANK 64

enum gr_lane {
    GR_LANE_COMMAND, /* from rank 0 to every other */
    GR_LANE_RESULT,  /* answers and results, to rank 0 */
    GR_LANE_DATA,    /* activations, to the next stage */
    GR_LANE_TENSOR,  /* partial sums, between the ranks that share a layer */
    GR_N_LANE,
    /* lane + GR_N_LANE: acknowledgements of that lane, for links that buffer nothing (wrap.c) */
    GR_N_LANE_ALL = 2 * GR_N_LANE
};

struct gr_link;

/* A pending send or receive; the caller's memory, zeroed before the first use. The request and its
 * buffer belong to the link until its wait has returned 0 (or anything, once the world is lost), or
 * the link is closed. After a passed deadline it is still pending and can be waited for again. */
struct gr_request {
    void *impl;
    size_t n; /* bytes received */
};

struct gr_link_api {
    const char *name; /* "local", "mpi", "wrapped" */
    /* Begins to send n bytes (n may be 0); buf must not change until the request is done. Never
     * blocks. Requests of a link complete in the order in which they were begun; they may be
     * waited for in any order. */
    int (*send)(struct gr_link *l, const void *buf, size_t n, struct gr_request *r);
    /* Begins to receive the next message into cap bytes. For a longer one, wait returns
     * GR_E_INTERNAL. */
    int (*recv)(struct gr_link *l, void *buf, size_t cap, struct gr_request *r);
    /* Waits for the next message and sets *n to its length, without receiving it. */
    int (*probe)(struct gr_link *l, int64_t deadline_ns, size_t *n);
    /* Waits until a request is done. deadline_ns: on the clock of gr_now_ns (base/clock.h),
     * INT64_MAX = none; when it passes, returns GR_E_PEER_LOST, with the other rank's name and the
     * time waited in the message. */
    int (*wait)(struct gr_link *l, struct gr_request *r, int64_t deadline_ns);
    /* Returns whether wait would return at once. */
    bool (*done)(struct gr_link *l, struct gr_request *r);
    /* Drops pending requests and frees the link; the buffers belong to the caller again. */
    void (*close)(struct gr_link **l);
};

struct gr_world;

struct gr_link {
    const struct gr_link_api *api;
    struct gr_world *world;
    enum gr_lane lane;
    int32_t from, to;
};

static inline int gr_link_send(struct gr_link *l, const void *buf, size_t n, struct gr_request *r)
{
    return l->api->send(l, buf, n, r);
}
static inline int gr_link_recv(struct gr_link *l, void *buf, size_t cap, struct gr_request *r)
{
    return l->api->recv(l, buf, cap, r);
}
static inline int gr_link_wait(struct gr_link *l, struct gr_request *r, int64_t deadline_ns)
{
    return l->api->wait(l, r, deadline_ns);
}
/* Accepts a pointer to NULL; sets it to NULL. */
void gr_link_close(struct gr_link **l);

/* ---- worlds ---- */

/* Properties of a rank, known to all ranks. */
struct gr_rank {
    char host[64]; /* name of its machine */
    int32_t pid;
    int32_t local, n_local; /* its number among the ranks of its machine, and their number */
};

/* Activity of a rank, which its heartbeats report (host/link/heartbeat.h). */
enum gr_doing {
    GR_DOING_START, /* until its first joint activity */
    GR_DOING_LOAD,
    GR_DOING_WAIT, /* for another rank */
    GR_DOING_COMPUTE,
    GR_DOING_IDLE, /* rank 0: control is with the program */
    GR_DOING_CLOSE
};

struct gr_heartbeat;

struct gr_world_api {
    const char *name; /* "threads", "mpi" */
    /* gr_world_link without the wrapper. */
    int (*link)(struct gr_world *w, enum gr_lane lane, int32_t from, int32_t to,
                struct gr_link **out);
    /* Wakes all waits on links of this process after a loss. From any thread. */
    void (*wake)(struct gr_world *w);
    /* Frees the world. The other ranks have been waited for (gr_heartbeat_leave) and may be lost:
     * it must not wait for a lost one. */
    void (*close)(struct gr_world **w);
};

struct gr_world {
    const struct gr_world_api *api;
    int32_t rank, n_rank;
    struct gr_rank *ranks;          /* [n_rank] */
    const struct gr_link_opt *wrap; /* wrapper of every link of the data lane, or NULL */
    _Atomic int lost;               /* 0, or 1 + the first rank that was lost */
    char lost_text[256];            /* complete once `lost` is set */
    struct gr_heartbeat *heartbeat; /* NULL: threads of one process need none */
    _Atomic int doing;              /* enum gr_doing */
    _Atomic int64_t since_ns;       /* start of that activity */
    _Atomic uint64_t n_done;        /* activities begun so far */
};

/* Begins a new activity of this rank, possibly of the same kind. A GR_DOING_COMPUTE, one
 * micro-batch, that lasts too long counts as hung. */
static inline void gr_world_doing(struct gr_world *w, enum gr_doing what)
{
    atomic_store_explicit(&w->since_ns, gr_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&w->doing, (int)what, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->n_done, 1, memory_order_relaxed);
}

/* Begins a wait for another rank within an activity, which does not count as hanging. Returns that
 * activity, for gr_world_resume. */
static inline int gr_world_pause(struct gr_world *w)
{
    atomic_store_explicit(&w->since_ns, gr_now_ns(), memory_order_relaxed);
    return atomic_exchange_explicit(&w->doing, (int)GR_DOING_WAIT, memory_order_relaxed);
}
static inline void gr_world_resume(struct gr_world *w, int doing)
{
    atomic_store_explicit(&w->since_ns, gr_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&w->doing, doing, memory_order_relaxed);
}

/* Opens the link of a lane between two ranks, one of which is this one; at most one at a time on
 * each side. Links are closed before their world. */
int gr_world_link(struct gr_world *w, enum gr_lane lane, int32_t from, int32_t to,
                  struct gr_link **out);

/* Makes a world of n threads of this process: out [n] receives each rank's own view of it. A rank
 * lost in one view is lost in all. */
int gr_world_threads(struct gr_world **out, int32_t n);
/* Makes the world of the processes that mpirun or srun has started, this one among them: exchanges
 * struct gr_rank and starts the heartbeat (host/link/heartbeat.h). Returns 0 with *out NULL for a
 * process that no launcher has started. */
int gr_world_processes(struct gr_world **out);

/* Marks a rank as lost and ends every wait of this process. Only the first call sets rank and
 * reason; the message is "rank 2 (host, pid 17): " and `reason`. From any thread. */
void gr_world_lose(struct gr_world *w, int32_t rank, const char *reason);
/* Returns 0, or GR_E_PEER_LOST with the message of the lost rank. */
int gr_world_check(const struct gr_world *w);

/* ---- wrappers, for tests and measurements ---- */

struct gr_link_opt {
    int64_t delay_ns;    /* added to the transfer time of each message */
    int64_t bytes_per_s; /* simulated bandwidth; 0 = no limit */
    bool sync;           /* no buffering: a send completes only when its receive has completed */
    int64_t drop_at;     /* number of the message to drop, counted from 1; 0 = none */
    int64_t fail_at;     /* number of the message whose send fails with GR_E_PEER_LOST; 0 = none */
    int64_t flip_at;     /* number of the message in which a bit is flipped; 0 = none */
};
/* Replaces *l by a wrapper that owns and closes it. Both sides of a link need the same wrapper. */
int gr_link_wrap(struct gr_link **l, const struct gr_link_opt *opt);

/* ---- frames: messages with a header ---- */

/* Header, sent before every body. */
struct gr_frame {
    uint32_t kind, session;
    int32_t status; /* of the computation; the body is empty when it is not 0 */
    uint32_t sum;   /* checksum of the body: low half of its xxh3, never 0; 0 = none */
    uint64_t seq;   /* counts frames of a link from 1 */
    uint64_t hash;  /* of the sender's decisions so far */
    uint64_t n;     /* bytes of the body, a message of its own; 0 = no body follows */
};

/* One side of a link that carries frames. After a failure on it (deadline, checksum) its buffers
 * belong to the link until the world is lost. */
struct gr_port {
    struct gr_link *link; /* the caller's */
    bool sum;             /* sends checksums; a receiver verifies all that it gets */
    uint64_t seq;         /* of the last frame */
};

/* A frame being sent: the caller's memory, zeroed before the first use, not moved until sent. */
struct gr_frame_out {
    struct gr_frame frame;
    struct gr_request head, body;
};

/* Begins to send o->frame, whose seq and sum are set here, and its body of frame.n bytes. body
 * NULL: a transport carries it between devices, or there is none. */
int gr_frame_send(struct gr_port *p, struct gr_frame_out *o, const void *body);
/* Waits until header and body have been sent. */
int gr_frame_sent(struct gr_port *p, struct gr_frame_out *o, int64_t deadline_ns);
bool gr_frame_is_sent(struct gr_port *p, struct gr_frame_out *o);

/* Receives the next header. GR_E_PEER_LOST when its seq is not the next one. */
int gr_frame_recv(struct gr_port *p, struct gr_frame *f, int64_t deadline_ns);
/* Receives the body of f into buf [cap]. GR_E_PEER_LOST when it has not f->n bytes or its checksum
 * is wrong, GR_E_INTERNAL when f->n exceeds cap. Called for every frame whose body comes by the
 * link, also for n == 0. */
int gr_frame_body(struct gr_port *p, const struct gr_frame *f, void *buf, size_t cap,
                  int64_t deadline_ns);

#endif
