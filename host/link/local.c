/* The world of the threads of a process. A link is a queue: a message sent before its receive is
 * copied into the queue, one sent after it goes straight to the receive's buffer. */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "gr/status.h"
#include "link/link.h"
#include "link/link_impl.h"

/* Time that a wait polls before it sleeps: waking up takes longer than most messages do. */
#define SPIN_NS 20000

/* Messages up to this length are reused, so that decoding token by token allocates nothing. */
#define KEPT_BYTES ((size_t)1 << 16)

struct message {
    struct message *next;
    size_t n, cap;
    char data[];
};

/* A begun receive. Belongs to its request until that has been waited for or the link closes. */
struct receive {
    struct receive *next;
    void *buf;
    size_t cap, n;
    _Atomic bool done;
};

struct channel {
    pthread_mutex_t lock;
    pthread_cond_t came; /* something was sent, or a rank was lost */
    struct message *first, **last;
    struct receive *begun, **last_begun; /* in order; done ones until they are waited for */
    struct receive *wanted;              /* the first of them that is not done */
    _Atomic bool has_message;            /* first != NULL; read without the lock */
    struct message *spare;               /* to be reused */
    struct receive *idle;                /* to be reused */
};

struct hub {
    pthread_mutex_t lock; /* guards the fields below; taken before a channel's lock */
    int32_t n, n_open;
    struct gr_rank *ranks;     /* [n] */
    struct gr_world **worlds;  /* [n], NULL = has left */
    struct channel **channels; /* [GR_N_LANE_ALL, n, n], NULL before a channel's first link */
};

struct thread_world {
    struct gr_world base;
    struct hub *hub;
};

struct local_link {
    struct gr_link base;
    struct channel *channel;
};

static struct channel *channel_of(struct gr_link *l)
{
    return ((struct local_link *)l)->channel;
}

/* ---- channels ---- */

static struct channel *channel_new(void)
{
    struct channel *c = gr_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->came, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&c->lock, NULL);
    c->last = &c->first, c->last_begun = &c->begun;
    return c;
}

static void channel_free(struct channel *c)
{
    if (!c)
        return;
    *c->last = c->spare;
    for (struct message *m = c->first, *next; m; m = next) {
        next = m->next;
        gr_free(m);
    }
    for (struct receive *r = c->idle, *next; r; r = next) {
        next = r->next;
        gr_free(r);
    }
    pthread_cond_destroy(&c->came);
    pthread_mutex_destroy(&c->lock);
    gr_free(c);
}

/* Delivers a message to the first waiting receive. The lock is held. */
static void deliver(struct channel *c, const void *data, size_t n)
{
    struct receive *r = c->wanted;
    if (n && n <= r->cap)
        memcpy(r->buf, data, n);
    r->n = n;
    c->wanted = r->next;
    atomic_store_explicit(&r->done, true, memory_order_release);
}

static struct message *pop_message(struct channel *c)
{
    struct message *m = c->first;
    c->first = m->next;
    if (!c->first) {
        c->last = &c->first;
        atomic_store(&c->has_message, false);
    }
    return m;
}

static void drop_message(struct channel *c, struct message *m)
{
    if (m->cap > KEPT_BYTES) {
        gr_free(m);
        return;
    }
    m->next = c->spare, c->spare = m;
}

/* Returns a message with capacity for n bytes, reusing a spare one if possible. */
static struct message *new_message(struct channel *c, size_t n)
{
    size_t bytes;
    struct message *m = c->spare, *others = m ? m->next : NULL;
    if (!m || m->cap < n) {
        m = gr_add(&bytes, sizeof *m, n) ? gr_realloc(m, 1, bytes) : gr_calloc(SIZE_MAX, 2);
        if (!m)
            return NULL;
        m->cap = n;
    }
    c->spare = others;
    return m;
}

static int put_message(struct channel *c, const void *buf, size_t n)
{
    struct message *m = new_message(c, n);
    if (!m)
        return GR_E_NOMEM_HOST;
    m->next = NULL, m->n = n;
    if (n)
        memcpy(m->data, buf, n);
    *c->last = m, c->last = &m->next;
    atomic_store(&c->has_message, true);
    return 0;
}

/* ---- links ---- */

static int local_send(struct gr_link *l, const void *buf, size_t n, struct gr_request *r)
{
    struct channel *c = channel_of(l);
    int rc = gr_world_check(l->world);
    *r = (struct gr_request){0};
    if (rc)
        return rc;
    pthread_mutex_lock(&c->lock);
    if (c->wanted)
        deliver(c, buf, n);
    else
        rc = put_message(c, buf, n);
    pthread_cond_broadcast(&c->came);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Returns a new or an idle receive. The lock is held. */
static struct receive *new_receive(struct channel *c)
{
    struct receive *w = c->idle;
    if (!w)
        return gr_calloc(1, sizeof *w);
    c->idle = w->next;
    *w = (struct receive){0};
    return w;
}

static int local_recv(struct gr_link *l, void *buf, size_t cap, struct gr_request *r)
{
    struct channel *c = channel_of(l);
    struct receive *w;
    *r = (struct gr_request){0};
    if (gr_world_check(l->world))
        return GR_E_PEER_LOST;
    pthread_mutex_lock(&c->lock);
    if (!(w = new_receive(c))) {
        pthread_mutex_unlock(&c->lock);
        return GR_E_NOMEM_HOST;
    }
    w->buf = buf, w->cap = cap;
    r->impl = w;
    *c->last_begun = w, c->last_begun = &w->next;
    if (!c->wanted)
        c->wanted = w;
    if (c->first) { /* then no earlier receive is waiting */
        struct message *m = pop_message(c);
        deliver(c, m->data, m->n);
        drop_message(c, m);
    }
    pthread_mutex_unlock(&c->lock);
    return 0;
}

/* Waits for `flag` or a loss: polls for a while, then sleeps. */
static int wait_for(struct gr_link *l, const _Atomic bool *flag, int64_t deadline_ns)
{
    struct channel *c = channel_of(l);
    int64_t start = gr_now_ns(), now = start;
    for (; now < GR_MIN(start + SPIN_NS, deadline_ns); now = gr_now_ns()) {
        if (atomic_load_explicit(flag, memory_order_acquire) || atomic_load(&l->world->lost))
            break;
        sched_yield();
    }
    struct timespec until = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    pthread_mutex_lock(&c->lock);
    while (!atomic_load(flag) && !atomic_load(&l->world->lost) && now < deadline_ns) {
        if (deadline_ns == INT64_MAX)
            pthread_cond_wait(&c->came, &c->lock);
        else
            pthread_cond_timedwait(&c->came, &c->lock, &until);
        now = gr_now_ns();
    }
    pthread_mutex_unlock(&c->lock);
    int rc = gr_world_check(l->world);
    return rc || atomic_load(flag) ? rc : gr_link_late(l, start);
}

static int local_probe(struct gr_link *l, int64_t deadline_ns, size_t *n)
{
    struct channel *c = channel_of(l);
    int rc = wait_for(l, &c->has_message, deadline_ns);
    if (rc)
        return rc;
    pthread_mutex_lock(&c->lock);
    *n = c->first->n;
    pthread_mutex_unlock(&c->lock);
    return 0;
}

/* Removes a receive, done or not, and makes it idle. The lock is held. */
static void forget(struct channel *c, struct receive *w)
{
    struct receive **at = &c->begun;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    if (!*at)
        c->last_begun = at;
    if (c->wanted == w)
        c->wanted = w->next;
    w->next = c->idle, c->idle = w;
}

static int local_wait(struct gr_link *l, struct gr_request *r, int64_t deadline_ns)
{
    struct receive *w = r->impl; /* NULL: a send, which is done at once */
    int rc = w ? wait_for(l, &w->done, deadline_ns) : gr_world_check(l->world);
    if (!w || (rc && !atomic_load(&l->world->lost)))
        return rc;
    struct channel *c = channel_of(l);
    pthread_mutex_lock(&c->lock);
    size_t n = w->n, cap = w->cap;
    forget(c, w);
    pthread_mutex_unlock(&c->lock);
    *r = (struct gr_request){.n = n};
    return !rc && n > cap ? gr_link_too_long(l, n, cap) : rc;
}

static bool local_done(struct gr_link *l, struct gr_request *r)
{
    struct receive *w = r->impl;
    return !w || atomic_load_explicit(&w->done, memory_order_acquire) ||
           atomic_load(&l->world->lost);
}

static void local_close(struct gr_link **l)
{
    struct channel *c = channel_of(*l);
    pthread_mutex_lock(&c->lock);
    while ((*l)->to == (*l)->world->rank && c->begun)
        forget(c, c->begun);
    pthread_mutex_unlock(&c->lock);
    gr_free(*l);
    *l = NULL;
}

static const struct gr_link_api local_api = {"local",    local_send, local_recv, local_probe,
                                             local_wait, local_done, local_close};

/* ---- the world ---- */

static int thread_link(struct gr_world *w, enum gr_lane lane, int32_t from, int32_t to,
                       struct gr_link **out)
{
    struct hub *h = ((struct thread_world *)w)->hub;
    struct local_link *l = gr_calloc(1, sizeof *l);
    if (!l)
        return GR_E_NOMEM_HOST;
    pthread_mutex_lock(&h->lock);
    struct channel **c = &h->channels[((int32_t)lane * h->n + from) * h->n + to];
    if (!*c)
        *c = channel_new();
    l->channel = *c;
    pthread_mutex_unlock(&h->lock);
    if (!l->channel) {
        gr_free(l);
        return GR_E_NOMEM_HOST;
    }
    l->base = (struct gr_link){&local_api, w, lane, from, to};
    *out = &l->base;
    return 0;
}

static void thread_wake(struct gr_world *w)
{
    struct hub *h = ((struct thread_world *)w)->hub;
    pthread_mutex_lock(&h->lock);
    for (int32_t i = 0; i < h->n; i++)
        if (h->worlds[i] && h->worlds[i] != w)
            gr_world_copy_loss(h->worlds[i], w);
    for (int32_t i = 0; i < GR_N_LANE_ALL * h->n * h->n; i++) {
        struct channel *c = h->channels[i];
        if (!c)
            continue;
        pthread_mutex_lock(&c->lock); /* a thread between its check and its sleep holds it */
        pthread_cond_broadcast(&c->came);
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&h->lock);
}

static void hub_free(struct hub *h)
{
    for (int32_t i = 0; h->channels && i < GR_N_LANE_ALL * h->n * h->n; i++)
        channel_free(h->channels[i]);
    pthread_mutex_destroy(&h->lock);
    gr_free(h->channels);
    gr_free(h->worlds);
    gr_free(h->ranks);
    gr_free(h);
}

static void thread_close(struct gr_world **w)
{
    struct hub *h = ((struct thread_world *)*w)->hub;
    pthread_mutex_lock(&h->lock);
    h->worlds[(*w)->rank] = NULL;
    bool last = --h->n_open == 0;
    pthread_mutex_unlock(&h->lock);
    gr_free(*w);
    *w = NULL;
    if (last)
        hub_free(h);
}

static const struct gr_world_api thread_api = {"threads", thread_link, thread_wake, thread_close};

static struct hub *hub_new(int32_t n)
{
    struct hub *h = gr_calloc(1, sizeof *h);
    if (!h)
        return NULL;
    pthread_mutex_init(&h->lock, NULL);
    h->n = n;
    h->ranks = gr_calloc((size_t)n, sizeof *h->ranks);
    h->worlds = gr_calloc((size_t)n, sizeof(struct gr_world *));
    h->channels = gr_calloc((size_t)(GR_N_LANE_ALL * n * n), sizeof(struct channel *));
    if (!h->ranks || !h->worlds || !h->channels) {
        hub_free(h);
        return NULL;
    }
    for (int32_t i = 0; i < n; i++) {
        h->ranks[i] = (struct gr_rank){.pid = getpid(), .local = i, .n_local = n};
        gethostname(h->ranks[i].host, sizeof h->ranks[i].host - 1);
    }
    return h;
}

int gr_world_threads(struct gr_world **out, int32_t n)
{
    if (n < 1 || n > GR_MAX_RANK)
        return gr_fail(GR_E_INVALID, "%d ranks asked for; 1 to %d are possible", n, GR_MAX_RANK);
    memset(out, 0, (size_t)n * sizeof(struct gr_world *));
    struct hub *h = hub_new(n);
    if (!h)
        return GR_E_NOMEM_HOST;
    int rc = 0;
    for (int32_t i = 0; i < n && !rc; i++) {
        struct thread_world *w = gr_calloc(1, sizeof *w);
        if (!w) {
            rc = GR_E_NOMEM_HOST;
            break;
        }
        w->base = (struct gr_world){.api = &thread_api, .rank = i, .n_rank = n, .ranks = h->ranks};
        w->hub = h;
        out[i] = h->worlds[i] = &w->base;
        h->n_open++;
    }
    if (rc && h->n_open == 0)
        hub_free(h);
    else if (rc)
        for (int32_t i = 0; i < n; i++)
            if (out[i])
                out[i]->api->close(&out[i]);
    return rc;
}
