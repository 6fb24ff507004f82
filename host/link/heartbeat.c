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

/* A watched rank: rank 0 watches all others, the others watch rank 0. */
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
    int wake;     /* eventfd by which other threads wake the heartbeat's */
    int listener; /* -1: all ranks have joined, or this is not rank 0 */
    bool deaf;    /* accept has failed (out of descriptors): not tried until the next beat */
    int64_t begin_ns, beat_ns, loop_ns, leave_ns;
    bool told;     /* the loss has been passed on */
    int lost_code; /* exit code of the lost rank, if it sent one */
    _Atomic bool leaving;
    int code;       /* written before `leaving` is set */
    int32_t lo, hi; /* watched ranks [lo, hi) */
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

static bool world_lost(const struct gr_heartbeat *w)
{
    return atomic_load_explicit(&w->world->lost, memory_order_acquire) != 0;
}

static bool leaving(const struct gr_heartbeat *w)
{
    return atomic_load_explicit(&w->leaving, memory_order_acquire);
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
static void lose_peer(struct gr_heartbeat *w, int32_t rank, const char *why)
{
    struct peer *p = &w->peer[rank];
    char reason[200];
    if (p->n_done && p->is == HERE)
        snprintf(reason, sizeof reason, "%s (it had been %s for %.1f s, step %llu)", why,
                 doing_text(p->doing), p->ms * 1e-3, (unsigned long long)p->n_done);
    else
        snprintf(reason, sizeof reason, "%s", why);
    p->is = LEFT;
    gr_world_lose(w->world, rank, reason);
}

/* Handles the end of a peer's connection: a loss, unless it has announced that it leaves. */
static void on_end(struct gr_heartbeat *w, int32_t rank, int err)
{
    struct peer *p = &w->peer[rank];
    char why[100];
    gr_heartbeat_conn_close(&p->conn);
    if (p->is == LEFT)
        return;
    if (err == 0 || err == ECONNRESET || err == EPIPE)
        snprintf(why, sizeof why, "its process has ended");
    else
        snprintf(why, sizeof why, "cannot be reached: %s", strerror(err));
    lose_peer(w, rank, why);
}

/* The world's message about the loss, without the rank's name. */
static const char *lost_reason(const struct gr_world *world, int32_t rank)
{
    char name[128];
    size_t n = strlen(gr_world_name(world, rank, name, sizeof name));
    return strlen(world->lost_text) > n + 2 ? world->lost_text + n + 2 : world->lost_text;
}

/* Once after a loss: queues a message about it to every connected rank. */
static void broadcast_loss(struct gr_heartbeat *w)
{
    if (w->told || !world_lost(w))
        return;
    w->told = true;
    for (int32_t r = w->lo; r < w->hi; r++)
        w->peer[r].to_tell = w->peer[r].conn.fd >= 0; /* the lost rank too, it may come back */
}

/* Calls the program's function, once: after the ranks were told, as it may take its time. */
static void call_back(struct gr_heartbeat *w)
{
    if (!w->told)
        return;
    pthread_mutex_lock(&w->lock);
    gr_lost_fn *fn = w->fn;
    void *user = w->user;
    w->fn = NULL;
    pthread_mutex_unlock(&w->lock);
    if (fn)
        fn(atomic_load(&w->world->lost) - 1, w->world->lost_text, user);
}

/* ---- receiving ---- */

static void on_message(struct gr_heartbeat *w, int32_t rank)
{
    struct peer *p = &w->peer[rank];
    struct gr_heartbeat_msg *m = &p->conn.in;
    m->text[sizeof m->text - 1] = 0;
    if (m->magic != GR_HEARTBEAT_MAGIC || m->rank >= w->world->n_rank) {
        gr_heartbeat_conn_close(&p->conn);
        lose_peer(w, rank, "what it says on the heartbeat's connection makes no sense");
    } else if (m->kind == GR_HEARTBEAT_BEAT) {
        p->doing = m->value, p->ms = m->ms, p->n_done = m->n;
    } else if (m->kind == GR_HEARTBEAT_LEAVE) {
        p->is = LEFT;
        p->code = m->value;
        p->left_ns = gr_now_ns();
    } else if (m->kind == GR_HEARTBEAT_LOST) {
        w->lost_code = world_lost(w) ? w->lost_code : m->value;
        gr_world_lose(w->world, m->rank, m->text);
    }
}

static void receive(struct gr_heartbeat *w, int32_t rank)
{
    struct peer *p = &w->peer[rank];
    enum gr_heartbeat_event e = GR_HEARTBEAT_MESSAGE;
    while (p->conn.fd >= 0 && (e = gr_heartbeat_recv(&p->conn)) == GR_HEARTBEAT_MESSAGE) {
        p->conn.since_ns = gr_now_ns();
        on_message(w, rank);
    }
    if (e == GR_HEARTBEAT_ENDED)
        on_end(w, rank, errno);
}

/* ---- sending ---- */

static struct gr_heartbeat_msg next_message(struct gr_heartbeat *w, struct peer *p)
{
    struct gr_world *world = w->world;
    struct gr_heartbeat_msg m = {.rank = (uint16_t)world->rank};
    if (p->to_tell) {
        int32_t rank = atomic_load(&world->lost) - 1;
        m.kind = GR_HEARTBEAT_LOST, m.rank = (uint16_t)rank, m.value = w->lost_code;
        snprintf(m.text, sizeof m.text, "%s", lost_reason(world, rank));
        p->to_tell = false;
    } else if (p->to_leave) {
        m.kind = GR_HEARTBEAT_LEAVE, m.value = w->code;
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
static void speak(struct gr_heartbeat *w, int32_t rank)
{
    struct peer *p = &w->peer[rank];
    enum gr_heartbeat_event e =
        p->conn.fd < 0 ? GR_HEARTBEAT_NOTHING : gr_heartbeat_flush(&p->conn);
    while (e == GR_HEARTBEAT_MESSAGE && (p->to_tell || p->to_leave || p->to_beat)) {
        struct gr_heartbeat_msg m = next_message(w, p);
        e = gr_heartbeat_send(&p->conn, &m);
    }
    if (e == GR_HEARTBEAT_ENDED) {
        int err = errno;
        receive(w, rank); /* its last messages */
        if (p->conn.fd >= 0)
            on_end(w, rank, err);
    }
}

/* ---- joining, on rank 0 ---- */

static void add_stranger(struct gr_heartbeat *w, int fd)
{
    struct gr_heartbeat_conn *oldest = &w->stranger[0];
    for (int i = 1; i < MAX_STRANGER && oldest->fd >= 0; i++) {
        struct gr_heartbeat_conn *c = &w->stranger[i];
        if (c->fd < 0 || c->since_ns < oldest->since_ns)
            oldest = c;
    }
    gr_heartbeat_conn_close(oldest);
    gr_heartbeat_conn_init(oldest, fd);
}

static void accept_some(struct gr_heartbeat *w)
{
    int fd = 0;
    for (int i = 0; i < ACCEPT_AT_ONCE && (fd = gr_heartbeat_accept(w->listener)) >= 0; i++)
        add_stranger(w, fd);
    w->deaf = fd < 0 && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR;
}

static void welcome(struct gr_heartbeat *w, struct gr_heartbeat_conn *c, int32_t rank)
{
    struct gr_heartbeat_msg m = {.kind = GR_HEARTBEAT_WELCOME};
    struct peer *p = &w->peer[rank];
    memcpy(m.text, w->hello.answer, sizeof w->hello.answer);
    p->conn = *c;
    p->conn.n_in = 0;
    p->conn.since_ns = gr_now_ns();
    p->is = HERE;
    p->to_tell = w->told;
    p->to_leave = w->leave_ns != 0;
    gr_heartbeat_conn_init(c, -1);
    if (gr_heartbeat_send(&p->conn, &m) == GR_HEARTBEAT_ENDED)
        on_end(w, rank, errno);
}

static void hear_stranger(struct gr_heartbeat *w, struct gr_heartbeat_conn *c)
{
    enum gr_heartbeat_event e = gr_heartbeat_recv(c);
    int32_t rank = e == GR_HEARTBEAT_MESSAGE ? c->in.rank : 0;
    if (e == GR_HEARTBEAT_NOTHING)
        return;
    if (e == GR_HEARTBEAT_MESSAGE && gr_heartbeat_knows(&w->hello, &c->in) && rank >= w->lo &&
        rank < w->hi && w->peer[rank].is == ABSENT)
        welcome(w, c, rank);
    else
        gr_heartbeat_conn_close(c);
}

/* Closes connections that did not identify themselves in time, and the listener once all ranks have
 * joined. */
static void end_joining(struct gr_heartbeat *w, int64_t now)
{
    bool complete = true;
    for (int32_t r = w->lo; r < w->hi; r++)
        complete &= w->peer[r].is != ABSENT;
    for (int i = 0; i < MAX_STRANGER; i++) {
        if (complete || now - w->stranger[i].since_ns > STRANGER_NS)
            gr_heartbeat_conn_close(&w->stranger[i]);
    }
    if (complete) {
        close(w->listener);
        w->listener = -1;
    }
}

/* ---- judging ---- */

/* Returns whether a rank has left too early: rank 0 while this one still serves it; another rank
 * with an error, or while rank 0 starts or has waited for a rank for longer than opt.leave. */
static bool is_missed(const struct gr_heartbeat *w, int32_t rank, int64_t now)
{
    int doing = atomic_load(&w->world->doing);
    int64_t since_ns = atomic_load(&w->world->since_ns);
    if (rank == 0)
        return doing != GR_DOING_CLOSE;
    return w->peer[rank].code || doing == GR_DOING_START ||
           (doing == GR_DOING_WAIT && now - since_ns > w->opt.leave * MS);
}

static void judge_peer(struct gr_heartbeat *w, int32_t rank, int64_t now)
{
    struct peer *p = &w->peer[rank];
    char why[100];
    if (p->is == ABSENT && now - w->begin_ns > w->opt.join * MS) {
        snprintf(why, sizeof why, "did not come to rank 0 for heartbeats within %.1f s",
                 w->opt.join * 1e-3);
        lose_peer(w, rank, why);
    } else if (p->is == HERE && now - p->conn.since_ns > w->opt.silent * MS) {
        snprintf(why, sizeof why,
                 "nothing heard of it for %.1f s: stopped, hung or cut off from the network",
                 (double)(now - p->conn.since_ns) * 1e-9);
        lose_peer(w, rank, why);
    } else if (p->is == LEFT && p->left_ns && now - p->left_ns > w->opt.leave * MS &&
               is_missed(w, rank, now)) {
        w->lost_code = p->code;
        p->left_ns = 0;
        snprintf(why, sizeof why, "has left, with exit code %d", p->code);
        lose_peer(w, rank, why);
    }
}

static void judge_self(struct gr_heartbeat *w, int64_t now)
{
    int64_t ms = (now - atomic_load(&w->world->since_ns)) / MS;
    char why[100];
    if (atomic_load(&w->world->doing) != GR_DOING_COMPUTE || ms <= w->opt.compute)
        return;
    snprintf(why, sizeof why, "has computed one micro-batch for %.0f s: it hangs",
             (double)ms * 1e-3);
    gr_world_lose(w->world, w->world->rank, why);
}

static void judge(struct gr_heartbeat *w, int64_t now)
{
    if (!leaving(w))
        judge_self(w, now);
    for (int32_t r = w->lo; r < w->hi && !world_lost(w); r++) {
        if (!leaving(w) || w->peer[r].is != LEFT)
            judge_peer(w, r, now);
    }
}

/* Extends the others' time limits after a time in which this thread did not run: they may have been
 * stopped with it, so they get another quarter of opt.silent to be heard. */
static void forgive(struct gr_heartbeat *w, int64_t now)
{
    int64_t gap = now - w->loop_ns - w->opt.beat * MS, grace = w->opt.silent * MS / 4;
    int64_t heard = now - w->opt.silent * MS + grace;
    w->loop_ns = now;
    if (gap < grace)
        return;
    w->begin_ns += gap;
    for (int32_t r = w->lo; r < w->hi; r++)
        w->peer[r].conn.since_ns = GR_MAX(w->peer[r].conn.since_ns, heard);
}

/* ---- leaving ---- */

static void begin_leaving(struct gr_heartbeat *w, int64_t now)
{
    if (w->leave_ns || !leaving(w))
        return;
    w->leave_ns = now;
    for (int32_t r = w->lo; r < w->hi; r++)
        w->peer[r].to_leave = w->peer[r].conn.fd >= 0;
}

/* Returns whether leaving has begun and there is nothing more to wait for. */
static bool finished(struct gr_heartbeat *w, int64_t now)
{
    bool unsaid = false, others = false;
    if (!w->leave_ns)
        return false;
    for (int32_t r = w->lo; r < w->hi; r++) {
        const struct peer *p = &w->peer[r];
        unsaid |= p->is == ABSENT; /* it may be about to join, and must be told */
        unsaid |= p->conn.fd >= 0 && (p->conn.n_out || p->to_tell || p->to_leave);
        others |= p->is != LEFT;
        if (w->world->rank == 0 && p->is != LEFT && !world_lost(w) &&
            now - w->leave_ns > 3 * w->opt.leave * MS)
            lose_peer(w, r, "does not leave although rank 0 has");
    }
    bool late = now - w->leave_ns > w->opt.leave * MS;
    return (!unsaid && !others) || (world_lost(w) && w->told && (late || !unsaid));
}

/* ---- the thread ---- */

static nfds_t list_descriptors(struct gr_heartbeat *w)
{
    nfds_t n = 0;
    w->fds[n++] = (struct pollfd){w->wake, POLLIN, 0};
    w->fds[n++] = (struct pollfd){w->deaf ? -1 : w->listener, POLLIN, 0};
    for (int i = 0; i < MAX_STRANGER; i++)
        w->fds[n++] = (struct pollfd){w->stranger[i].fd, POLLIN, 0};
    for (int32_t r = w->lo; r < w->hi; r++) {
        const struct gr_heartbeat_conn *c = &w->peer[r].conn;
        w->fds[n++] = (struct pollfd){c->fd, (short)(POLLIN | (c->n_out ? POLLOUT : 0)), 0};
    }
    return n;
}

static void wait_for_events(struct gr_heartbeat *w)
{
    int64_t ms = (w->beat_ns - gr_now_ns()) / MS + 1;
    uint64_t count;
    nfds_t n = list_descriptors(w), at = 2 + MAX_STRANGER;
    int timeout = ms < 0 ? 0 : ms > w->opt.beat ? w->opt.beat : (int)ms;
    if (poll(w->fds, n, timeout) <= 0)
        return;
    if (w->fds[0].revents)
        (void)!read(w->wake, &count, sizeof count);
    for (int i = 0; i < MAX_STRANGER; i++) {
        if (w->fds[2 + i].revents)
            hear_stranger(w, &w->stranger[i]);
    }
    if (w->fds[1].revents)
        accept_some(w);
    for (int32_t r = w->lo; r < w->hi; r++) {
        if (w->fds[at++].revents && w->peer[r].conn.fd >= 0)
            receive(w, r);
    }
}

static void beat(struct gr_heartbeat *w, int64_t now)
{
    if (now < w->beat_ns)
        return;
    w->beat_ns = now + w->opt.beat * MS;
    w->deaf = false;
    for (int32_t r = w->lo; r < w->hi; r++)
        w->peer[r].to_beat = w->peer[r].conn.fd >= 0;
}

static void *heartbeat_main(void *p)
{
    struct gr_heartbeat *w = p;
    do {
        wait_for_events(w);
        int64_t now = gr_now_ns();
        forgive(w, now);
        judge(w, now);
        broadcast_loss(w);
        begin_leaving(w, now);
        beat(w, now);
        for (int32_t r = w->lo; r < w->hi; r++)
            speak(w, r);
        if (w->listener >= 0)
            end_joining(w, now);
        call_back(w);
    } while (!finished(w, gr_now_ns()));
    return NULL;
}

/* ---- called by other threads ---- */

static void free_heartbeat(struct gr_heartbeat *w)
{
    for (int i = 0; i < MAX_STRANGER; i++)
        gr_heartbeat_conn_close(&w->stranger[i]);
    for (int32_t r = 0; r < GR_MAX_RANK; r++)
        gr_heartbeat_conn_close(&w->peer[r].conn);
    if (w->listener >= 0)
        close(w->listener);
    if (w->wake >= 0)
        close(w->wake);
    pthread_mutex_destroy(&w->lock);
    gr_free(w);
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
    struct gr_heartbeat *w = gr_calloc(1, sizeof *w);
    if (!w)
        return GR_E_NOMEM_HOST;
    w->world = world;
    w->opt = opt ? *opt : gr_heartbeat_opt_default();
    gr_world_doing(world, GR_DOING_START);
    w->lo = world->rank == 0, w->hi = world->rank == 0 ? world->n_rank : 1;
    w->listener = -1;
    for (int i = 0; i < MAX_STRANGER; i++)
        gr_heartbeat_conn_init(&w->stranger[i], -1);
    for (int32_t r = 0; r < GR_MAX_RANK; r++)
        gr_heartbeat_conn_init(&w->peer[r].conn, -1);
    pthread_mutex_init(&w->lock, NULL);
    w->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int rc = w->wake >= 0 ? 0 : gr_fail(GR_E_IO, "heartbeat: no eventfd: %s", strerror(errno));
    if (!rc && world->rank == 0)
        rc = gr_heartbeat_listen(&w->listener, hello, one_machine(world));
    if (rc)
        free_heartbeat(w);
    else
        *out = w;
    return rc;
}

/* Starts the thread with all signals blocked: they are for the program's threads. */
static int start_thread(struct gr_heartbeat *w)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&w->thread, NULL, heartbeat_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    w->started = !err;
    return err ? gr_fail(GR_E_NOMEM_HOST, "heartbeat: no thread: %s", strerror(err)) : 0;
}

int gr_heartbeat_start(struct gr_heartbeat *w, const struct gr_heartbeat_hello *hello)
{
    int rc = 0;
    w->hello = *hello;
    w->hello.n_address = (uint16_t)GR_MIN(w->hello.n_address, GR_HEARTBEAT_MAX_ADDRESS);
    w->begin_ns = w->beat_ns = w->loop_ns = gr_now_ns();
    if (w->world->rank != 0 && !hello->port)
        rc = gr_fail(GR_E_IO, "heartbeat: rank 0 cannot listen for the other ranks");
    else if (w->world->rank != 0)
        rc = gr_heartbeat_join(&w->peer[0].conn, w->world, &w->hello,
                               w->begin_ns + w->opt.join * MS);
    if (!rc && w->world->rank != 0)
        w->peer[0].is = HERE;
    return rc ? rc : start_thread(w);
}

void gr_world_on_lost(struct gr_world *world, gr_lost_fn *fn, void *user)
{
    struct gr_heartbeat *w = world->heartbeat;
    uint64_t one = 1;
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->fn = fn, w->user = user;
    pthread_mutex_unlock(&w->lock);
    (void)!write(w->wake, &one, sizeof one);
}

static int agree(const struct gr_heartbeat *w, int code)
{
    const struct peer *first = &w->peer[0];
    if (!world_lost(w))
        return w->world->rank != 0 && first->is == LEFT ? first->code : code;
    if (w->lost_code)
        return w->lost_code;
    return code ? code : gr_status_exit(GR_E_PEER_LOST);
}

int gr_heartbeat_leave(struct gr_heartbeat **heartbeat, int code)
{
    struct gr_heartbeat *w = *heartbeat;
    uint64_t one = 1;
    if (!w)
        return code;
    w->code = code;
    atomic_store_explicit(&w->leaving, true, memory_order_release);
    if (w->started) {
        (void)!write(w->wake, &one, sizeof one);
        pthread_join(w->thread, NULL);
        code = agree(w, code);
    }
    free_heartbeat(w);
    *heartbeat = NULL;
    return code;
}
