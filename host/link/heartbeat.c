#include "link/heartbeat.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"
#include "link/heartbeat_impl.h"

#define MAX_STRANGER 16
#define STRANGER_NS 2000000000 /* time limit for a new connection to identify itself */
#define ACCEPT_AT_ONCE 8
#define MS 1000000ll

enum presence { ABSENT, HERE, LEFT };

/* A rank that this one exchanges heartbeats with: for rank 0 each other one, otherwise rank 0. */
struct peer {
    struct gr_heartbeat_conn conn;
    enum presence is;
    bool to_tell, to_leave, to_beat; /* messages waiting for conn.out: LOST, LEAVE, BEAT */
    int32_t doing, code;             /* its last reported activity; its exit code once it left */
    uint32_t ms;
    uint64_t n_done;
    int64_t left_ns;
};

struct gr_heartbeat {
    struct gr_world *world;
    struct gr_heartbeat_opt opt;
    struct gr_heartbeat_hello hello;
    pthread_t thread;
    bool started;
    int wake;     /* eventfd by which other threads wake this one */
    int listener; /* -1: all ranks have joined, or this is not rank 0 */
    bool deaf;    /* accept has failed (out of descriptors): not tried until the next beat */
    int64_t begin_ns, beat_ns, loop_ns, leave_ns;
    bool told;     /* the loss has been passed on */
    int lost_code; /* exit code of the lost rank, if it sent one */
    _Atomic bool leaving;
    int code;       /* written before `leaving` is set */
    int32_t lo, hi; /* peers: ranks [lo, hi) */
    struct gr_heartbeat_conn stranger[MAX_STRANGER];
    struct peer peer[GR_MAX_RANK];
    struct pollfd fds[2 + MAX_STRANGER + GR_MAX_RANK];
    pthread_mutex_t lock; /* guards fn, user */
    gr_lost_fn *fn;
    void *user;
};

struct gr_heartbeat_opt gr_heartbeat_opt_default(void)
{
    return (struct gr_heartbeat_opt){
        .beat = 250, .silent = 4000, .join = 8000, .leave = 2000, .compute = 600000};
}

static bool world_lost(const struct gr_heartbeat *h)
{
    return atomic_load_explicit(&h->world->lost, memory_order_acquire) != 0;
}

static bool leaving(const struct gr_heartbeat *h)
{
    return atomic_load_explicit(&h->leaving, memory_order_acquire);
}

/* ---- losing a rank ---- */

static const char *doing_text(int doing)
{
    static const char *const text[] = {
        [GR_DOING_START] = "starting", [GR_DOING_LOAD] = "loading",
        [GR_DOING_WAIT] = "waiting",   [GR_DOING_COMPUTE] = "computing",
        [GR_DOING_IDLE] = "idle",      [GR_DOING_CLOSE] = "closing"};
    return doing >= GR_DOING_START && doing <= GR_DOING_CLOSE ? text[doing] : "busy";
}

/* Loses a peer; the reason includes the activity that it reported last. */
static void lose_peer(struct gr_heartbeat *h, int32_t rank, const char *why)
{
    struct peer *p = &h->peer[rank];
    char reason[200];
    if (p->n_done && p->is == HERE)
        snprintf(reason, sizeof reason, "%s (it had been %s for %.1f s, step %llu)", why,
                 doing_text(p->doing), p->ms * 1e-3, (unsigned long long)p->n_done);
    else
        snprintf(reason, sizeof reason, "%s", why);
    p->is = LEFT;
    gr_world_lose(h->world, rank, reason);
}

/* Handles the end of a peer's connection: a loss, unless it has announced that it leaves. */
static void on_end(struct gr_heartbeat *h, int32_t rank, int err)
{
    struct peer *p = &h->peer[rank];
    char why[100];
    gr_heartbeat_conn_close(&p->conn);
    if (p->is == LEFT)
        return;
    if (err == 0 || err == ECONNRESET || err == EPIPE)
        snprintf(why, sizeof why, "its process has ended");
    else
        snprintf(why, sizeof why, "cannot be reached: %s", strerror(err));
    lose_peer(h, rank, why);
}

/* The world's message about the loss, without the rank's name. */
static const char *lost_reason(const struct gr_world *world, int32_t rank)
{
    char name[128];
    size_t n = strlen(gr_world_name(world, rank, name, sizeof name));
    return strlen(world->lost_text) > n + 2 ? world->lost_text + n + 2 : world->lost_text;
}

/* Once after a loss: queues a message about it to every connected rank. */
static void broadcast_loss(struct gr_heartbeat *h)
{
    if (h->told || !world_lost(h))
        return;
    h->told = true;
    for (int32_t r = h->lo; r < h->hi; r++)
        h->peer[r].to_tell = h->peer[r].conn.fd >= 0; /* the lost rank too, it may come back */
}

/* Calls the program's function, once: after the other ranks were told, since it may take long. */
static void call_back(struct gr_heartbeat *h)
{
    if (!h->told)
        return;
    pthread_mutex_lock(&h->lock);
    gr_lost_fn *fn = h->fn;
    void *user = h->user;
    h->fn = NULL;
    pthread_mutex_unlock(&h->lock);
    if (fn)
        fn(atomic_load(&h->world->lost) - 1, h->world->lost_text, user);
}

/* ---- receiving ---- */

static void on_message(struct gr_heartbeat *h, int32_t rank)
{
    struct peer *p = &h->peer[rank];
    struct gr_heartbeat_msg *m = &p->conn.in;
    m->text[sizeof m->text - 1] = 0;
    if (m->magic != GR_HEARTBEAT_MAGIC || m->rank >= h->world->n_rank) {
        gr_heartbeat_conn_close(&p->conn);
        lose_peer(h, rank, "what it says on the heartbeat's connection makes no sense");
    } else if (m->kind == GR_HEARTBEAT_BEAT) {
        p->doing = m->value, p->ms = m->ms, p->n_done = m->n;
    } else if (m->kind == GR_HEARTBEAT_LEAVE) {
        p->is = LEFT;
        p->code = m->value;
        p->left_ns = gr_now_ns();
    } else if (m->kind == GR_HEARTBEAT_LOST) {
        h->lost_code = world_lost(h) ? h->lost_code : m->value;
        gr_world_lose(h->world, m->rank, m->text);
    }
}

static void receive(struct gr_heartbeat *h, int32_t rank)
{
    struct peer *p = &h->peer[rank];
    enum gr_heartbeat_event e = GR_HEARTBEAT_MESSAGE;
    while (p->conn.fd >= 0 && (e = gr_heartbeat_recv(&p->conn)) == GR_HEARTBEAT_MESSAGE) {
        p->conn.since_ns = gr_now_ns();
        on_message(h, rank);
    }
    if (e == GR_HEARTBEAT_ENDED)
        on_end(h, rank, errno);
}

/* ---- sending ---- */

static struct gr_heartbeat_msg next_message(struct gr_heartbeat *h, struct peer *p)
{
    struct gr_world *world = h->world;
    struct gr_heartbeat_msg m = {.rank = (uint16_t)world->rank};
    if (p->to_tell) {
        int32_t rank = atomic_load(&world->lost) - 1;
        m.kind = GR_HEARTBEAT_LOST, m.rank = (uint16_t)rank, m.value = h->lost_code;
        snprintf(m.text, sizeof m.text, "%s", lost_reason(world, rank));
        p->to_tell = false;
    } else if (p->to_leave) {
        m.kind = GR_HEARTBEAT_LEAVE, m.value = h->code;
        p->to_leave = false;
    } else {
        m.kind = GR_HEARTBEAT_BEAT, m.value = atomic_load(&world->doing);
        m.n = atomic_load(&world->n_done);
        m.ms = (uint32_t)((gr_now_ns() - atomic_load(&world->since_ns)) / MS);
        p->to_beat = false;
    }
    return m;
}

/* Sends a peer's waiting messages; bytes that cannot be sent now wait in conn.out. */
static void send_waiting(struct gr_heartbeat *h, int32_t rank)
{
    struct peer *p = &h->peer[rank];
    enum gr_heartbeat_event e =
        p->conn.fd < 0 ? GR_HEARTBEAT_NOTHING : gr_heartbeat_flush(&p->conn);
    while (e == GR_HEARTBEAT_MESSAGE && (p->to_tell || p->to_leave || p->to_beat)) {
        struct gr_heartbeat_msg m = next_message(h, p);
        e = gr_heartbeat_send(&p->conn, &m);
    }
    if (e == GR_HEARTBEAT_ENDED) {
        int err = errno;
        receive(h, rank); /* its last messages */
        if (p->conn.fd >= 0)
            on_end(h, rank, err);
    }
}

/* ---- joining, on rank 0 ---- */

static void add_stranger(struct gr_heartbeat *h, int fd)
{
    struct gr_heartbeat_conn *oldest = &h->stranger[0];
    for (int i = 1; i < MAX_STRANGER && oldest->fd >= 0; i++) {
        struct gr_heartbeat_conn *c = &h->stranger[i];
        if (c->fd < 0 || c->since_ns < oldest->since_ns)
            oldest = c;
    }
    gr_heartbeat_conn_close(oldest);
    gr_heartbeat_conn_init(oldest, fd);
}

static void accept_some(struct gr_heartbeat *h)
{
    int fd = 0;
    for (int i = 0; i < ACCEPT_AT_ONCE && (fd = gr_heartbeat_accept(h->listener)) >= 0; i++)
        add_stranger(h, fd);
    h->deaf = fd < 0 && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR;
}

static void welcome(struct gr_heartbeat *h, struct gr_heartbeat_conn *c, int32_t rank)
{
    struct gr_heartbeat_msg m = {.kind = GR_HEARTBEAT_WELCOME};
    struct peer *p = &h->peer[rank];
    memcpy(m.text, h->hello.answer, sizeof h->hello.answer);
    p->conn = *c;
    p->conn.n_in = 0;
    p->conn.since_ns = gr_now_ns();
    p->is = HERE;
    p->to_tell = h->told;
    p->to_leave = h->leave_ns != 0;
    gr_heartbeat_conn_init(c, -1);
    if (gr_heartbeat_send(&p->conn, &m) == GR_HEARTBEAT_ENDED)
        on_end(h, rank, errno);
}

static void receive_stranger(struct gr_heartbeat *h, struct gr_heartbeat_conn *c)
{
    enum gr_heartbeat_event e = gr_heartbeat_recv(c);
    int32_t rank = e == GR_HEARTBEAT_MESSAGE ? c->in.rank : 0;
    if (e == GR_HEARTBEAT_NOTHING)
        return;
    if (e == GR_HEARTBEAT_MESSAGE && gr_heartbeat_knows(&h->hello, &c->in) && rank >= h->lo &&
        rank < h->hi && h->peer[rank].is == ABSENT)
        welcome(h, c, rank);
    else
        gr_heartbeat_conn_close(c);
}

/* Closes connections that did not identify themselves in time, and, if all have joined, the
 * listener. */
static void end_joining(struct gr_heartbeat *h, int64_t now)
{
    bool complete = true;
    for (int32_t r = h->lo; r < h->hi; r++)
        complete &= h->peer[r].is != ABSENT;
    for (int i = 0; i < MAX_STRANGER; i++) {
        if (complete || now - h->stranger[i].since_ns > STRANGER_NS)
            gr_heartbeat_conn_close(&h->stranger[i]);
    }
    if (complete) {
        close(h->listener);
        h->listener = -1;
    }
}

/* ---- judging ---- */

/* Returns whether a rank has left too early: rank 0 while this one still serves it; another rank
 * with an error, or while rank 0 starts or has waited for a rank for longer than opt.leave. */
static bool is_missed(const struct gr_heartbeat *h, int32_t rank, int64_t now)
{
    int doing = atomic_load(&h->world->doing);
    int64_t since_ns = atomic_load(&h->world->since_ns);
    if (rank == 0)
        return doing != GR_DOING_CLOSE;
    return h->peer[rank].code || doing == GR_DOING_START ||
           (doing == GR_DOING_WAIT && now - since_ns > h->opt.leave * MS);
}

static void judge_peer(struct gr_heartbeat *h, int32_t rank, int64_t now)
{
    struct peer *p = &h->peer[rank];
    char why[100];
    if (p->is == ABSENT && now - h->begin_ns > h->opt.join * MS) {
        snprintf(why, sizeof why, "did not come to rank 0 for heartbeats within %.1f s",
                 h->opt.join * 1e-3);
        lose_peer(h, rank, why);
    } else if (p->is == HERE && now - p->conn.since_ns > h->opt.silent * MS) {
        snprintf(why, sizeof why,
                 "nothing heard of it for %.1f s: stopped, hung or cut off from the network",
                 (double)(now - p->conn.since_ns) * 1e-9);
        lose_peer(h, rank, why);
    } else if (p->is == LEFT && p->left_ns && now - p->left_ns > h->opt.leave * MS &&
               is_missed(h, rank, now)) {
        h->lost_code = p->code;
        p->left_ns = 0;
        snprintf(why, sizeof why, "has left, with exit code %d", p->code);
        lose_peer(h, rank, why);
    }
}

static void judge_self(struct gr_heartbeat *h, int64_t now)
{
    int64_t ms = (now - atomic_load(&h->world->since_ns)) / MS;
    char why[100];
    if (atomic_load(&h->world->doing) != GR_DOING_COMPUTE || ms <= h->opt.compute)
        return;
    snprintf(why, sizeof why, "has computed one micro-batch for %.0f s: it hangs",
             (double)ms * 1e-3);
    gr_world_lose(h->world, h->world->rank, why);
}

static void judge(struct gr_heartbeat *h, int64_t now)
{
    if (!leaving(h))
        judge_self(h, now);
    for (int32_t r = h->lo; r < h->hi && !world_lost(h); r++) {
        if (!leaving(h) || h->peer[r].is != LEFT)
            judge_peer(h, r, now);
    }
}

/* Extends the others' time limits after a time in which this thread did not run: they may have been
 * stopped with it, so they get another quarter of opt.silent to be heard. */
static void extend_limits(struct gr_heartbeat *h, int64_t now)
{
    int64_t gap = now - h->loop_ns - h->opt.beat * MS, grace = h->opt.silent * MS / 4;
    int64_t heard = now - h->opt.silent * MS + grace;
    h->loop_ns = now;
    if (gap < grace)
        return;
    h->begin_ns += gap;
    for (int32_t r = h->lo; r < h->hi; r++)
        h->peer[r].conn.since_ns = GR_MAX(h->peer[r].conn.since_ns, heard);
}

/* ---- leaving ---- */

static void begin_leaving(struct gr_heartbeat *h, int64_t now)
{
    if (h->leave_ns || !leaving(h))
        return;
    h->leave_ns = now;
    for (int32_t r = h->lo; r < h->hi; r++)
        h->peer[r].to_leave = h->peer[r].conn.fd >= 0;
}

/* Returns whether leaving has begun and there is nothing more to wait for. A loss that was heard of
 * while sending is passed on first. */
static bool finished(struct gr_heartbeat *h, int64_t now)
{
    bool unsaid = false, others = false;
    if (!h->leave_ns)
        return false;
    for (int32_t r = h->lo; r < h->hi; r++) {
        const struct peer *p = &h->peer[r];
        unsaid |= p->is == ABSENT; /* it may be about to join, and must be told */
        unsaid |= p->conn.fd >= 0 && (p->conn.n_out || p->to_tell || p->to_leave);
        others |= p->is != LEFT;
        if (h->world->rank == 0 && p->is != LEFT && !world_lost(h) &&
            now - h->leave_ns > 3 * h->opt.leave * MS)
            lose_peer(h, r, "does not leave although rank 0 has");
    }
    bool late = now - h->leave_ns > h->opt.leave * MS;
    return world_lost(h) ? h->told && (late || !unsaid) : !unsaid && !others;
}

/* ---- the thread ---- */

static nfds_t list_descriptors(struct gr_heartbeat *h)
{
    nfds_t n = 0;
    h->fds[n++] = (struct pollfd){h->wake, POLLIN, 0};
    h->fds[n++] = (struct pollfd){h->deaf ? -1 : h->listener, POLLIN, 0};
    for (int i = 0; i < MAX_STRANGER; i++)
        h->fds[n++] = (struct pollfd){h->stranger[i].fd, POLLIN, 0};
    for (int32_t r = h->lo; r < h->hi; r++) {
        const struct gr_heartbeat_conn *c = &h->peer[r].conn;
        h->fds[n++] = (struct pollfd){c->fd, (short)(POLLIN | (c->n_out ? POLLOUT : 0)), 0};
    }
    return n;
}

static void wait_for_events(struct gr_heartbeat *h)
{
    int64_t ms = (h->beat_ns - gr_now_ns()) / MS + 1;
    uint64_t count;
    nfds_t n = list_descriptors(h), at = 2 + MAX_STRANGER;
    int timeout = ms < 0 ? 0 : ms > h->opt.beat ? h->opt.beat : (int)ms;
    if (poll(h->fds, n, timeout) <= 0)
        return;
    if (h->fds[0].revents)
        (void)!read(h->wake, &count, sizeof count);
    for (int i = 0; i < MAX_STRANGER; i++) {
        if (h->fds[2 + i].revents)
            receive_stranger(h, &h->stranger[i]);
    }
    if (h->fds[1].revents)
        accept_some(h);
    for (int32_t r = h->lo; r < h->hi; r++) {
        if (h->fds[at++].revents && h->peer[r].conn.fd >= 0)
            receive(h, r);
    }
}

static void beat(struct gr_heartbeat *h, int64_t now)
{
    if (now < h->beat_ns)
        return;
    h->beat_ns = now + h->opt.beat * MS;
    h->deaf = false;
    for (int32_t r = h->lo; r < h->hi; r++)
        h->peer[r].to_beat = h->peer[r].conn.fd >= 0;
}

static void *heartbeat_main(void *p)
{
    struct gr_heartbeat *h = p;
    do {
        wait_for_events(h);
        int64_t now = gr_now_ns();
        extend_limits(h, now);
        judge(h, now);
        broadcast_loss(h);
        begin_leaving(h, now);
        beat(h, now);
        for (int32_t r = h->lo; r < h->hi; r++)
            send_waiting(h, r);
        if (h->listener >= 0)
            end_joining(h, now);
        call_back(h);
    } while (!finished(h, gr_now_ns()));
    return NULL;
}

/* ---- called by other threads ---- */

static void free_heartbeat(struct gr_heartbeat *h)
{
    for (int i = 0; i < MAX_STRANGER; i++)
        gr_heartbeat_conn_close(&h->stranger[i]);
    for (int32_t r = 0; r < GR_MAX_RANK; r++)
        gr_heartbeat_conn_close(&h->peer[r].conn);
    if (h->listener >= 0)
        close(h->listener);
    if (h->wake >= 0)
        close(h->wake);
    pthread_mutex_destroy(&h->lock);
    gr_free(h);
}

/* Returns whether all ranks are processes of one machine. */
static bool one_machine(const struct gr_world *world)
{
    return world->ranks[world->rank].n_local == world->n_rank;
}

int gr_heartbeat_new(struct gr_heartbeat **out, struct gr_world *world,
                     const struct gr_heartbeat_opt *opt, struct gr_heartbeat_hello *hello)
{
    *out = NULL;
    *hello = (struct gr_heartbeat_hello){0};
    struct gr_heartbeat *h = gr_calloc(1, sizeof *h);
    if (!h)
        return GR_E_NOMEM_HOST;
    h->world = world;
    h->opt = opt ? *opt : gr_heartbeat_opt_default();
    gr_world_doing(world, GR_DOING_START);
    h->lo = world->rank == 0, h->hi = world->rank == 0 ? world->n_rank : 1;
    h->listener = -1;
    for (int i = 0; i < MAX_STRANGER; i++)
        gr_heartbeat_conn_init(&h->stranger[i], -1);
    for (int32_t r = 0; r < GR_MAX_RANK; r++)
        gr_heartbeat_conn_init(&h->peer[r].conn, -1);
    pthread_mutex_init(&h->lock, NULL);
    h->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int rc = h->wake >= 0 ? 0 : gr_fail(GR_E_IO, "heartbeat: no eventfd: %s", strerror(errno));
    if (!rc && world->rank == 0)
        rc = gr_heartbeat_listen(&h->listener, hello, one_machine(world));
    if (rc)
        free_heartbeat(h);
    else
        *out = h;
    return rc;
}

/* Starts the thread with all signals blocked: they are for the program's threads. */
static int start_thread(struct gr_heartbeat *h)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&h->thread, NULL, heartbeat_main, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    h->started = !err;
    return err ? gr_fail(GR_E_NOMEM_HOST, "heartbeat: no thread: %s", strerror(err)) : 0;
}

int gr_heartbeat_start(struct gr_heartbeat *h, const struct gr_heartbeat_hello *hello)
{
    int rc = 0;
    h->hello = *hello;
    h->hello.n_address = (uint16_t)GR_MIN(h->hello.n_address, GR_HEARTBEAT_MAX_ADDRESS);
    h->begin_ns = h->beat_ns = h->loop_ns = gr_now_ns();
    if (h->world->rank != 0 && !hello->port)
        rc = gr_fail(GR_E_IO, "heartbeat: rank 0 cannot listen for the other ranks");
    else if (h->world->rank != 0)
        rc = gr_heartbeat_join(&h->peer[0].conn, h->world, &h->hello,
                               h->begin_ns + h->opt.join * MS);
    if (!rc && h->world->rank != 0)
        h->peer[0].is = HERE;
    return rc ? rc : start_thread(h);
}

void gr_world_on_lost(struct gr_world *world, gr_lost_fn *fn, void *user)
{
    struct gr_heartbeat *h = world->heartbeat;
    uint64_t one = 1;
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->fn = fn, h->user = user;
    pthread_mutex_unlock(&h->lock);
    (void)!write(h->wake, &one, sizeof one);
}

static int agree(const struct gr_heartbeat *h, int code)
{
    const struct peer *first = &h->peer[0];
    if (!world_lost(h))
        return h->world->rank != 0 && first->is == LEFT ? first->code : code;
    if (h->lost_code)
        return h->lost_code;
    return code ? code : gr_status_exit(GR_E_PEER_LOST);
}

int gr_heartbeat_leave(struct gr_heartbeat **heartbeat, int code)
{
    struct gr_heartbeat *h = *heartbeat;
    uint64_t one = 1;
    if (!h)
        return code;
    h->code = code;
    atomic_store_explicit(&h->leaving, true, memory_order_release);
    if (h->started) {
        (void)!write(h->wake, &one, sizeof one);
        pthread_join(h->thread, NULL);
        code = agree(h, code);
    }
    free_heartbeat(h);
    *heartbeat = NULL;
    return code;
}
