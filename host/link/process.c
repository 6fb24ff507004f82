/* The world of processes: links send MPI messages, with a tag for each lane. MPI has no deadlines,
 * and a wait inside it cannot be ended; so nothing here blocks in MPI, waits only poll. One lock
 * around all calls makes do with any MPI that allows calls from several threads. */
#include "link/process.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"
#include "link/link_impl.h"

/* A wait first polls as fast as it can, then yields in between, and then sleeps for a small
 * fraction of the time waited so far: the added delay does not matter, and an idle rank takes
 * little CPU time. */
#define SPIN_NS 5000
#define YIELD_NS 500000
#define SLEEP_PART 256
#define SLEEP_MIN_NS 20000
#define SLEEP_MAX_NS 1000000
#define LOOKS 8

#define LEAVE_NS (2 * (int64_t)1000000000) /* time limit for all to end MPI together */
#define CANCEL_NS (200 * (int64_t)1000000)

struct mpi_world {
    struct gr_world base;
    const struct gr_mpi *mpi;
    pthread_mutex_t lock;    /* held around calls of MPI; guards the fields below */
    struct message *sending; /* unfinished sends, the oldest first */
    pthread_cond_t begun;    /* signals a new one, or stop */
    pthread_t mover;
    bool stop;
};

/* A pending request; belongs to its link until its wait has ended. */
struct message {
    struct message *next, *next_sending;
    struct gr_mpi_request request;
    size_t n, cap;
    bool done;
    int error; /* of MPI, or GR_MPI_TRUNCATED */
};

struct mpi_link {
    struct gr_link base;
    struct message *begun;
};

static struct mpi_world *world_of(const struct gr_link *l)
{
    return (struct mpi_world *)l->world;
}

/* ---- polling ---- */

struct patience {
    int64_t start_ns;
};

/* Pauses between polls. Returns how often to poll before the next pause: each call of MPI moves a
 * long message by a few pieces only. */
static int pause_between(const struct patience *p, int64_t now_ns)
{
    int64_t waited = now_ns - p->start_ns;
    if (waited < SPIN_NS)
        return 1;
    if (waited < YIELD_NS) {
        sched_yield();
        return 1;
    }
    int64_t ns = GR_MIN(GR_MAX(waited / SLEEP_PART, SLEEP_MIN_NS), SLEEP_MAX_NS);
    nanosleep(&(struct timespec){0, ns}, NULL);
    return LOOKS;
}

static int mpi_error(struct gr_world *w, int32_t rank, int error)
{
    char text[400], name[128];
    ((struct mpi_world *)w)->mpi->text(error, text, sizeof text);
    return gr_fail(GR_E_PEER_LOST, "%s: MPI: %s", gr_world_name(w, rank, name, sizeof name), text);
}

/* Under the lock: removes m from the unfinished sends, if it is among them. */
static void sent(struct mpi_world *w, const struct message *m)
{
    struct message **at = &w->sending;
    while (*at && *at != m)
        at = &(*at)->next_sending;
    if (*at)
        *at = m->next_sending;
}

/* Under the lock: tests whether m is done, and stores its result. */
static bool test(struct mpi_world *w, struct message *m)
{
    int done = 0, n = 0;
    if (m->done)
        return true;
    m->error = w->mpi->test(&m->request, &done, &n);
    m->done = done || m->error;
    m->n = (size_t)n;
    if (m->done)
        sent(w, m);
    return m->done;
}

/* Tests whether m is done, up to `times` times. */
static bool look(struct mpi_world *w, struct message *m, int times)
{
    bool done = false;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < times && !done; i++)
        done = test(w, m);
    pthread_mutex_unlock(&w->lock);
    return done;
}

/* ---- progress of sends ---- */

/* Thread that drives unfinished sends. MPI moves messages only inside its own calls, and a large
 * one takes several; the thread that began the send computes meanwhile, and the receiver would have
 * to wait for that, too. */
static void *move(void *arg)
{
    struct mpi_world *w = arg;
    struct patience p = {0};
    prctl(PR_SET_TIMERSLACK, 1UL); /* for exact short sleeps */
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (!w->sending || atomic_load(&w->base.lost)) { /* lost: callers may free buffers */
            pthread_cond_wait(&w->begun, &w->lock);
            p.start_ns = gr_now_ns();
        } else if (test(w, w->sending)) {
            p.start_ns = gr_now_ns();
        } else {
            pthread_mutex_unlock(&w->lock);
            (void)pause_between(&p, gr_now_ns());
            pthread_mutex_lock(&w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Under the lock: passes m to that thread, unless it is sent already, as most messages are. */
static void look_after(struct mpi_world *w, struct message *m)
{
    struct message **at = &w->sending;
    if (test(w, m))
        return;
    while (*at)
        at = &(*at)->next_sending;
    *at = m;
    pthread_cond_signal(&w->begun);
}

static int start_mover(struct mpi_world *w)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&w->mover, NULL, move, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? gr_fail(GR_E_NOMEM_HOST, "no thread for messages under way: %s", strerror(error))
                 : 0;
}

static void stop_mover(struct mpi_world *w)
{
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->begun);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->mover, NULL);
}

/* ---- links ---- */

static struct message *message_new(struct gr_link *l, size_t cap, struct gr_request *r)
{
    struct mpi_link *link = (struct mpi_link *)l;
    struct message *m = gr_calloc(1, sizeof *m), **at = &link->begun;
    *r = (struct gr_request){.impl = m};
    if (!m)
        return NULL;
    m->cap = cap;
    while (*at)
        at = &(*at)->next;
    *at = m;
    return m;
}

static void message_free(struct gr_link *l, struct message *m)
{
    struct message **at = &((struct mpi_link *)l)->begun;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    pthread_mutex_lock(&world_of(l)->lock);
    sent(world_of(l), m);
    pthread_mutex_unlock(&world_of(l)->lock);
    gr_free(m);
}

/* Begins a send (from != NULL) or a receive. */
static int begin(struct gr_link *l, const void *from, void *to, size_t n, struct gr_request *r)
{
    struct mpi_world *w = world_of(l);
    char name[64];
    *r = (struct gr_request){0};
    if (gr_world_check(l->world))
        return GR_E_PEER_LOST;
    if (from && n > INT32_MAX)
        return gr_fail(GR_E_TOO_LARGE, "%s: a message of %zu bytes; MPI takes %d at most",
                       gr_link_name(l, name, sizeof name), n, INT32_MAX);
    struct message *m = message_new(l, n, r);
    if (!m)
        return GR_E_NOMEM_HOST;
    int count = (int)GR_MIN(n, (size_t)INT32_MAX);
    pthread_mutex_lock(&w->lock);
    int error = from ? w->mpi->send(from, count, l->to, (int)l->lane, &m->request)
                     : w->mpi->recv(to, count, l->from, (int)l->lane, &m->request);
    if (from && !error)
        look_after(w, m);
    pthread_mutex_unlock(&w->lock);
    if (!error)
        return 0;
    message_free(l, m);
    *r = (struct gr_request){0};
    return mpi_error(l->world, gr_link_other(l), error);
}

static int mpi_send(struct gr_link *l, const void *buf, size_t n, struct gr_request *r)
{
    return begin(l, buf ? buf : "", NULL, n, r);
}

static int mpi_recv(struct gr_link *l, void *buf, size_t cap, struct gr_request *r)
{
    return begin(l, NULL, buf, cap, r);
}

static int mpi_probe(struct gr_link *l, int64_t deadline_ns, size_t *n)
{
    struct mpi_world *w = world_of(l);
    struct patience p = {gr_now_ns()};
    for (;;) {
        int found = 0, count = 0, rc = gr_world_check(l->world);
        if (rc)
            return rc;
        pthread_mutex_lock(&w->lock);
        int error = w->mpi->probe(l->from, (int)l->lane, &found, &count);
        pthread_mutex_unlock(&w->lock);
        if (error)
            return mpi_error(l->world, gr_link_other(l), error);
        if (found)
            return *n = (size_t)count, 0;
        int64_t now = gr_now_ns();
        if (now >= deadline_ns)
            return gr_link_late(l, p.start_ns);
        (void)pause_between(&p, now);
    }
}

/* Waits until m is done. GR_E_PEER_LOST in a lost world or after the deadline. */
static int wait_for(struct gr_link *l, struct message *m, int64_t deadline_ns)
{
    struct patience p = {gr_now_ns()};
    for (int times = 1;;) {
        int rc = gr_world_check(l->world);
        if (rc || look(world_of(l), m, times))
            return rc;
        int64_t now = gr_now_ns();
        if (now >= deadline_ns)
            return gr_link_late(l, p.start_ns);
        times = pause_between(&p, now);
    }
}

static int mpi_wait(struct gr_link *l, struct gr_request *r, int64_t deadline_ns)
{
    struct message *m = r->impl; /* NULL: already waited for */
    int rc = m ? wait_for(l, m, deadline_ns) : gr_world_check(l->world);
    if (!m || (rc && !atomic_load(&l->world->lost)))
        return rc;
    int error = m->error;
    size_t n = m->n, cap = m->cap;
    message_free(l, m);
    *r = (struct gr_request){.n = n};
    if (rc || !error)
        return rc;
    return error == GR_MPI_TRUNCATED ? gr_link_too_long(l, n, cap)
                                     : mpi_error(l->world, gr_link_other(l), error);
}

static bool mpi_done(struct gr_link *l, struct gr_request *r)
{
    return !r->impl || atomic_load(&l->world->lost) || look(world_of(l), r->impl, 1);
}

/* Ends a message that was not waited for: cancels a receive; gives a send CANCEL_NS to finish. */
static void give_up(struct gr_link *l, struct message *m)
{
    struct mpi_world *w = world_of(l);
    if (look(w, m, 1))
        return;
    if (l->to == l->world->rank) {
        pthread_mutex_lock(&w->lock);
        (void)w->mpi->cancel(&m->request);
        pthread_mutex_unlock(&w->lock);
    }
    (void)wait_for(l, m, gr_now_ns() + CANCEL_NS);
}

static void mpi_close_link(struct gr_link **l)
{
    struct mpi_link *link = (struct mpi_link *)*l;
    while (link->begun) {
        if (!atomic_load(&(*l)->world->lost))
            give_up(*l, link->begun);
        message_free(*l, link->begun);
    }
    gr_free(link);
    *l = NULL;
}

static const struct gr_link_api link_api = {"mpi",    mpi_send, mpi_recv,      mpi_probe,
                                            mpi_wait, mpi_done, mpi_close_link};

/* ---- the world ---- */

static int mpi_link(struct gr_world *w, enum gr_lane lane, int32_t from, int32_t to,
                    struct gr_link **out)
{
    struct mpi_link *l = gr_calloc(1, sizeof *l);
    if (!l)
        return GR_E_NOMEM_HOST;
    l->base = (struct gr_link){&link_api, w, lane, from, to};
    *out = &l->base;
    return 0;
}

/* Does nothing: waits poll, and sleep 1 ms at most. */
static void mpi_wake(struct gr_world *w)
{
    (void)w;
}

/* Waits for a collective operation. */
static int wait_for_all(struct mpi_world *w, struct gr_mpi_request *request, int64_t deadline_ns)
{
    struct patience p = {gr_now_ns()};
    for (;;) {
        int done = 0, n, rc = gr_world_check(&w->base);
        if (rc)
            return rc;
        pthread_mutex_lock(&w->lock);
        int error = w->mpi->test(request, &done, &n);
        pthread_mutex_unlock(&w->lock);
        if (error)
            return mpi_error(&w->base, w->base.rank, error);
        if (done)
            return 0;
        int64_t now = gr_now_ns();
        if (now >= deadline_ns)
            return gr_fail(GR_E_PEER_LOST, "not all of %d ranks have answered for %.1f s",
                           w->base.n_rank, gr_seconds_since(p.start_ns));
        (void)pause_between(&p, now);
    }
}

int gr_world_gather(struct gr_world *base, const void *mine, void *all, size_t n,
                    int64_t deadline_ns)
{
    struct mpi_world *w = (struct mpi_world *)base;
    struct gr_mpi_request request;
    pthread_mutex_lock(&w->lock);
    int error = w->mpi->gather(mine, all, (int)n, &request);
    pthread_mutex_unlock(&w->lock);
    return error ? mpi_error(base, base->rank, error) : wait_for_all(w, &request, deadline_ns);
}

static void world_free(struct mpi_world **w)
{
    pthread_cond_destroy(&(*w)->begun);
    pthread_mutex_destroy(&(*w)->lock);
    gr_free((*w)->base.ranks);
    gr_free(*w);
    *w = NULL;
}

/* Ends MPI if all ranks get here in time, otherwise not at all: MPI's end would wait for the
 * missing ones for ever. */
static void end_mpi(struct mpi_world *w)
{
    struct gr_mpi_request request;
    if (atomic_load(&w->base.lost))
        return;
    pthread_mutex_lock(&w->lock);
    int error = w->mpi->barrier(&request);
    pthread_mutex_unlock(&w->lock);
    if (!error && !wait_for_all(w, &request, gr_now_ns() + LEAVE_NS))
        w->mpi->stop();
}

static void mpi_close(struct gr_world **world)
{
    struct mpi_world *w = (struct mpi_world *)*world;
    stop_mover(w);
    end_mpi(w);
    world_free(&w);
    *world = NULL;
}

static const struct gr_world_api world_api = {"mpi", mpi_link, mpi_wake, mpi_close};

/* Compares rank and size of MPI with those of the launcher's variables. */
static int check_size(const struct gr_launch *launch, int rank, int n_rank)
{
    if (launch->n_rank > 1 && n_rank == 1)
        return gr_fail(GR_E_IO,
                       "%s has started %d processes, but MPI knows of one: it is not the "
                       "launcher's own MPI, or it was not told to join them (srun --mpi=pmix)",
                       launch->by, launch->n_rank);
    if (launch->n_rank && (launch->n_rank != n_rank || launch->rank != rank))
        return gr_fail(GR_E_IO, "%s says rank %d of %d, MPI says rank %d of %d", launch->by,
                       launch->rank, launch->n_rank, rank, n_rank);
    if (n_rank > GR_MAX_RANK)
        return gr_fail(GR_E_INVALID, "%d processes were started; at most %d can share a model",
                       n_rank, GR_MAX_RANK);
    return 0;
}

static int world_new(struct gr_world **out, const struct gr_mpi *mpi, int rank, int n_rank)
{
    struct mpi_world *w = gr_calloc(1, sizeof *w);
    struct gr_rank *ranks = gr_calloc((size_t)n_rank, sizeof *ranks);
    if (!w || !ranks) {
        gr_free(w), gr_free(ranks);
        return GR_E_NOMEM_HOST;
    }
    w->base = (struct gr_world){.api = &world_api, .rank = rank, .n_rank = n_rank, .ranks = ranks};
    w->mpi = mpi;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->begun, NULL);
    ranks[rank].pid = getpid();
    gethostname(ranks[rank].host, sizeof ranks[rank].host - 1);
    int rc = start_mover(w);
    if (rc)
        world_free(&w);
    else
        *out = &w->base;
    return rc;
}

int gr_world_mpi(struct gr_world **out, const struct gr_mpi *mpi, const struct gr_launch *launch)
{
    char why[400] = "";
    int rank = 0, n_rank = 0;
    *out = NULL;
    if (mpi->start(&rank, &n_rank, why, sizeof why))
        return gr_fail(GR_E_IO, "%s has started this process, but MPI cannot be used: %s",
                       launch->by, why);
    int rc = check_size(launch, rank, n_rank);
    if (!rc && n_rank > 1)
        rc = world_new(out, mpi, rank, n_rank);
    if (!*out && n_rank == 1)
        mpi->stop();
    return rc;
}
