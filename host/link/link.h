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
    GR_N_LANE
};

struct gr_link;

/* A message under way. The caller's, zeroed before the first use; free for another one when wait
 * has returned 0. */
struct gr_request {
    void *impl;
    size_t n; /* received: bytes that came */
};

struct gr_link_api {
    const char *name; /* "local", "mpi"; wrappers: "delay", ... */
    /* Begins to send n bytes (n may be 0); buf must not change until the request is done. Never
     * blocks. Requests of a link are done in the order in which they were begun. */
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

/* ---- worlds ---- */

/* Facts of a rank that every rank knows. */
struct gr_rank {
    char host[64]; /* of the machine */
    int32_t pid;
    int32_t local, n_local; /* its number among the processes of its machine, and how many */
};

/* What a rank is at, which its heartbeats tell (host/link/watch.h). */
enum gr_doing { GR_DOING_START, GR_DOING_LOAD, GR_DOING_WAIT, GR_DOING_COMPUTE, GR_DOING_CLOSE };

struct gr_watch;

struct gr_world_api {
    const char *name; /* "threads", "mpi" */
    /* One of from and to is this rank. */
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

/* n worlds of threads of this process, out [n]: each for one thread. */
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
    uint32_t sum;   /* xxh32 of the body where it is wanted, or 0 */
    uint64_t seq;   /* counts frames of a link from 1 */
    uint64_t hash;  /* of the sender's decisions so far */
    uint64_t n;     /* bytes of the body, a message of its own; 0 = none follows */
};

#endif
