/* Messages between ranks.
 *
 * A rank is what runs a part of a model: a thread of this process, or a process. A *world* is all
 * ranks of one model, numbered from 0; a *link* takes messages from one rank to another, in order,
 * without tags. What is sent over one link is received over the same link: (lane, from, to) names
 * it on both sides. A lane is an order of its own, so that data, orders and results never wait for
 * each other.
 *
 * Sending and receiving are begun and then waited for. Whatever is waited for ends: when a rank is
 * lost (gr_world_lose, by whoever notices) every wait of this process, now and later, returns
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
    GR_LANE_ORDER,  /* from rank 0 to every other: what is to be done */
    GR_LANE_RESULT, /* back to rank 0 */
    GR_LANE_DATA,   /* activations, to the next stage */
    GR_LANE_GROUP,  /* partial sums, between the ranks that share a layer */
    GR_N_LANE,
    /* lane + GR_N_LANE: acknowledgements of that lane, for links that buffer nothing (wrap.c) */
    GR_N_LANE_ALL = 2 * GR_N_LANE
};

struct gr_link;

/* A message under way. The caller's, zeroed before the first use. It and its buffer are the link's
 * until its wait has returned 0, or anything once the world is lost, or the link is closed. One
 * whose deadline has passed is still under way and can be waited for again. */
struct gr_request {
    void *impl;
    size_t n; /* received: bytes that came */
};

struct gr_link_api {
    const char *name; /* "local", "mpi", "wrapped" */
    /* Begins to send n bytes (n may be 0); buf must not change until the request is done. Never
     * blocks. Requests of a link are done in the order in which they were begun; they may be
     * waited for in any. */
    int (*send)(struct gr_link *l, const void *buf, size_t n, struct gr_request *r);
    /* Begins to receive the next message into cap bytes. A longer one is GR_E_INTERNAL at wait. */
    int (*recv)(struct gr_link *l, void *buf, size_t cap, struct gr_request *r);
    /* *n: the length of the next message, without taking it. Waits until there is one. */
    int (*probe)(struct gr_link *l, int64_t deadline_ns, size_t *n);
    /* Waits until a request is done. deadline_ns: of gr_now_ns (base/clock.h), INT64_MAX = none;
     * when it passes GR_E_PEER_LOST is returned, with the other rank's name and how long it was
     * waited. */
    int (*wait)(struct gr_link *l, struct gr_request *r, int64_t deadline_ns);
    /* Whether wait would return at once. */
    bool (*done)(struct gr_link *l, struct gr_request *r);
    /* Forgets requests under way: their buffers are the caller's again. */
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
/* NULL is fine, a closed one is set to it. */
void gr_link_close(struct gr_link **l);

/* ---- worlds ---- */

/* Facts of a rank that every rank knows. */
struct gr_rank {
    char host[64]; /* of the machine */
    int32_t pid;
    int32_t local, n_local; /* its number among the processes of its machine, and how many */
};

/* What a rank is at, which its heartbeats tell (host/link/watch.h). */
enum gr_doing {
    GR_DOING_START, /* until the ranks have something together */
    GR_DOING_LOAD,
    GR_DOING_WAIT, /* for another rank */
    GR_DOING_COMPUTE,
    GR_DOING_IDLE, /* rank 0: its program is at something else */
    GR_DOING_CLOSE
};

struct gr_watch;

struct gr_world_api {
    const char *name; /* "threads", "mpi" */
    /* gr_world_link without the wrapper. */
    int (*link)(struct gr_world *w, enum gr_lane lane, int32_t from, int32_t to,
                struct gr_link **out);
    /* Wakes whoever waits on a link of this process: the world has been lost. From any thread. */
    void (*wake)(struct gr_world *w);
    /* Gives back what the world has. The others have been waited for (gr_watch_leave), and may be
     * lost: it must not wait for them. */
    void (*close)(struct gr_world **w);
};

struct gr_world {
    const struct gr_world_api *api;
    int32_t rank, n_rank;
    struct gr_rank *ranks;          /* [n_rank] */
    const struct gr_link_opt *wrap; /* what every link of the data lane is wrapped in, or NULL */
    _Atomic int lost;               /* 0, or rank + 1 of the first that was lost */
    char lost_text[256];            /* complete once `lost` is set */
    struct gr_watch *watch;         /* NULL: threads of one process need none */
    _Atomic int doing;              /* enum gr_doing */
    _Atomic int64_t since_ns;       /* when it began with that */
    _Atomic uint64_t n_done;        /* things that were begun so far */
};

/* This rank begins with something else, or with the next of the same kind. What is
 * GR_DOING_COMPUTE for too long counts as hung: one micro-batch each. */
static inline void gr_world_doing(struct gr_world *w, enum gr_doing what)
{
    atomic_store_explicit(&w->since_ns, gr_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&w->doing, (int)what, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->n_done, 1, memory_order_relaxed);
}

/* Waiting for another rank in the middle of something, which is not hanging. Returns what it was.
 */
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

/* The link of a lane from one rank to another, one of which is this one; at most one at a time on
 * each side. Links are closed before their world is. */
int gr_world_link(struct gr_world *w, enum gr_lane lane, int32_t from, int32_t to,
                  struct gr_link **out);

/* n worlds of threads of this process, out [n]: each for one thread. When a rank is lost in one of
 * them it is lost in all. */
int gr_world_threads(struct gr_world **out, int32_t n);
/* The world of the processes that mpirun or srun has started, this one among them: exchanges what
 * struct gr_rank says and watches the others from then on (host/link/watch.h). *out NULL and 0 when
 * nobody did. */
int gr_world_processes(struct gr_world **out);

/* Rank `rank` is lost. The first call decides; every wait of this process ends. `reason` goes
 * behind "rank 2 (host, pid 17): ". Any thread. */
void gr_world_lose(struct gr_world *w, int32_t rank, const char *reason);
/* 0, or GR_E_PEER_LOST with the message of the one that was lost. */
int gr_world_check(const struct gr_world *w);

/* ---- wrappers, for tests and measurements ---- */

struct gr_link_opt {
    int64_t delay_ns;    /* each message comes so much later */
    int64_t bytes_per_s; /* and as if over a wire of that speed; 0 = no limit */
    bool sync;       /* nothing is buffered: a send is done when its recv was begun and is done */
    int64_t drop_at; /* message that is lost on the way, counted from 1; 0 = none */
    int64_t fail_at; /* message whose sending fails with GR_E_PEER_LOST */
    int64_t flip_at; /* message in which a bit is turned over */
};
/* l becomes the wrapper's: closed with it. Both sides of a link are wrapped alike. */
int gr_link_wrap(struct gr_link **l, const struct gr_link_opt *opt);

/* ---- frames: what ranks say to each other ---- */

/* Goes before every body. */
struct gr_frame {
    uint32_t kind, session;
    int32_t status; /* of what was computed: nothing else is in the body when it is not 0 */
    uint32_t sum;   /* of the body where it is wanted: low half of its xxh3, never 0; or 0 */
    uint64_t seq;   /* counts frames of a link from 1 */
    uint64_t hash;  /* of the sender's decisions so far */
    uint64_t n;     /* bytes of the body, a message of its own; 0 = none follows */
};

/* One side of a link that carries frames. When something on it has failed, a deadline or a sum, its
 * buffers stay the link's until the world is lost. */
struct gr_port {
    struct gr_link *link; /* the caller's */
    bool sum;             /* sums go with bodies; a receiver looks at every sum that came */
    uint64_t seq;         /* of the last frame */
};

/* A frame under way: the caller's, zeroed before the first use, at one place until it was sent. */
struct gr_frame_out {
    struct gr_frame frame;
    struct gr_request head, body;
};

/* Begins to send o->frame, whose seq and sum are set here, and its body of frame.n bytes. NULL: the
 * body takes another way (between devices), or there is none. */
int gr_frame_send(struct gr_port *p, struct gr_frame_out *o, const void *body);
/* Waits until both have been sent. */
int gr_frame_sent(struct gr_port *p, struct gr_frame_out *o, int64_t deadline_ns);
bool gr_frame_is_sent(struct gr_port *p, struct gr_frame_out *o);

/* The next frame. GR_E_PEER_LOST when it is not the one that follows the last one. */
int gr_frame_recv(struct gr_port *p, struct gr_frame *f, int64_t deadline_ns);
/* The body of f into cap bytes: frame.n of them, fewer or more are GR_E_PEER_LOST, and so is a sum
 * that does not hold. Called for every frame whose body came by the link, also for n == 0. */
int gr_frame_body(struct gr_port *p, const struct gr_frame *f, void *buf, size_t cap,
                  int64_t deadline_ns);

#endif
