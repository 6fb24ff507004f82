/* Heartbeats of a world: who is lost is found out, in time, by everyone, with the same words; who
 * does not belong to the run gets nowhere. Ranks are heartbeat threads of this process, with a
 * world of their own each, or processes where one is to die. */
#include "link/heartbeat.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "gr/status.h"
#include "link/heartbeat_impl.h"

TestSuite(heartbeat, .timeout = 60);

#define MOST 4

static const struct gr_heartbeat_opt quick = {
    .beat = 50, .silent = 1200, .join = 1500, .leave = 400, .compute = 600};

static void wake(struct gr_world *w)
{
    (void)w;
}
static const struct gr_world_api fake_api = {.name = "fake", .wake = wake};

/* A rank and what became of it. */
struct rank {
    struct gr_world world;
    struct gr_rank ranks[MOST];
    struct gr_heartbeat *heartbeat;
    pthread_t thread;
    int code; /* to leave with; what leaving gave */
    _Atomic int n_called, called_rank;
    _Atomic int64_t called_ns;
    char line[256];
};

/* local: of one machine, as far as they know. */
static void set_up(struct rank *r, int32_t rank, int32_t n, bool local)
{
    memset(r, 0, sizeof *r);
    r->world = (struct gr_world){.api = &fake_api, .rank = rank, .n_rank = n, .ranks = r->ranks};
    for (int32_t i = 0; i < n; i++) {
        r->ranks[i] = (struct gr_rank){.pid = 100 + i, .n_local = local ? n : 1};
        snprintf(r->ranks[i].host, sizeof r->ranks[i].host, "host%d", i);
    }
}

static void on_lost(int32_t rank, const char *line, void *user)
{
    struct rank *r = user;
    snprintf(r->line, sizeof r->line, "%s", line);
    atomic_store(&r->called_ns, gr_now_ns());
    atomic_store(&r->called_rank, rank);
    atomic_fetch_add(&r->n_called, 1);
}

static void begin(struct rank *r, const struct gr_heartbeat_opt *opt,
                  struct gr_heartbeat_hello *hello)
{
    struct gr_heartbeat_hello unused;
    int rc = gr_heartbeat_new(&r->heartbeat, &r->world, opt, r->world.rank ? &unused : hello);
    cr_assert_eq(rc, 0, "%s", gr_error());
    r->world.heartbeat = r->heartbeat;
    rc = gr_heartbeat_start(r->heartbeat, hello);
    cr_assert_eq(rc, 0, "%s", gr_error());
    gr_world_on_lost(&r->world, on_lost, r);
}

static struct gr_heartbeat_hello hello;

static void begin_all(struct rank *r, int32_t n, const struct gr_heartbeat_opt *opt)
{
    for (int32_t i = 0; i < n; i++) {
        set_up(&r[i], i, n, true);
        begin(&r[i], opt, &hello);
    }
}

static void *leave_main(void *p)
{
    struct rank *r = p;
    r->code = gr_heartbeat_leave(&r->heartbeat, r->code);
    return NULL;
}

static void begin_leaving(struct rank *r, int code)
{
    r->code = code;
    cr_assert_eq(pthread_create(&r->thread, NULL, leave_main, r), 0);
}

static int end_leaving(struct rank *r)
{
    pthread_join(r->thread, NULL);
    return r->code;
}

static void leave_all(struct rank *r, int32_t n, const int *code, int want)
{
    for (int32_t i = 0; i < n; i++)
        begin_leaving(&r[i], code ? code[i] : 0);
    for (int32_t i = 0; i < n; i++)
        cr_expect_eq(end_leaving(&r[i]), want, "rank %d: %d", i, r[i].code);
}

static void sleep_ms(int ms)
{
    usleep((useconds_t)ms * 1000);
}

/* Waits until a rank's world is lost and the program was told; that it is `rank`, with these
 * words. */
static void expect_lost(struct rank *r, int32_t rank, const char *words, int within_ms)
{
    int64_t limit = gr_now_ns() + within_ms * 1000000ll;
    char name[64];
    snprintf(name, sizeof name, "rank %d (host%d, pid %d): ", rank, rank, 100 + rank);
    while (!atomic_load(&r->n_called) && gr_now_ns() < limit)
        sleep_ms(5);
    cr_expect_eq(atomic_load(&r->world.lost), rank + 1, "on rank %d: %s", r->world.rank,
                 r->world.lost_text);
    cr_expect_eq(atomic_load(&r->n_called), 1);
    cr_expect_eq(atomic_load(&r->called_rank), rank);
    cr_expect(!strncmp(r->line, name, strlen(name)), "%s", r->line);
    cr_expect(strstr(r->line, words), "'%s' expected, found: %s", words, r->line);
}

static void expect_well(const struct rank *r)
{
    cr_expect_eq(atomic_load(&r->world.lost), 0, "on rank %d: %s", r->world.rank,
                 r->world.lost_text);
    cr_expect_eq(atomic_load(&r->n_called), 0);
}

/* ---- in good order ---- */

Test(heartbeat, all_leave_with_the_code_of_rank_0)
{
    struct rank r[3];
    begin_all(r, 3, &quick);
    sleep_ms(2 * quick.silent);
    for (int i = 0; i < 3; i++)
        expect_well(&r[i]);
    leave_all(r, 3, (int[]){7, 0, 5}, 7);
    for (int i = 0; i < 3; i++)
        expect_well(&r[i]);
}

Test(heartbeat, others_wait_for_rank_0_and_it_for_them)
{
    struct rank r[3];
    begin_all(r, 3, &quick);
    gr_world_doing(&r[0].world, GR_DOING_LOAD);
    begin_leaving(&r[1], 0);
    sleep_ms(quick.leave + 200);
    begin_leaving(&r[0], 0);
    sleep_ms(quick.leave / 2);
    begin_leaving(&r[2], 0);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(end_leaving(&r[i]), 0);
        expect_well(&r[i]);
    }
}

/* Rank 0 may be through before the others have joined. */
Test(heartbeat, rank_0_leaves_at_once)
{
    struct rank r[2];
    set_up(&r[0], 0, 2, true);
    set_up(&r[1], 1, 2, true);
    begin(&r[0], &quick, &hello);
    begin_leaving(&r[0], 0);
    sleep_ms(100);
    begin(&r[1], &quick, &hello);
    begin_leaving(&r[1], 0);
    cr_expect_eq(end_leaving(&r[1]), 0);
    cr_expect_eq(end_leaving(&r[0]), 0);
    expect_well(&r[0]);
    expect_well(&r[1]);
}

Test(heartbeat, a_world_of_one)
{
    struct rank r;
    set_up(&r, 0, 1, true);
    begin(&r, NULL, &hello);
    cr_expect_eq(gr_heartbeat_leave(&r.heartbeat, 3), 3);
    cr_expect_null(r.heartbeat);
    cr_expect_eq(gr_heartbeat_leave(&r.heartbeat, 4), 4);
}

Test(heartbeat, over_all_addresses)
{
    struct rank r[2];
    set_up(&r[0], 0, 2, false);
    set_up(&r[1], 1, 2, false);
    begin(&r[0], &quick, &hello);
    cr_expect_geq(hello.n_address, 1);
    begin(&r[1], &quick, &hello);
    leave_all(r, 2, NULL, 0);
    expect_well(&r[0]);
    expect_well(&r[1]);
}

static bool has_ipv6(void)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool has = fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a);
    if (fd >= 0)
        close(fd);
    return has;
}

Test(heartbeat, over_ipv6_alone)
{
    struct rank r[2];
    if (!has_ipv6())
        cr_skip_test("no IPv6 on this machine");
    set_up(&r[0], 0, 2, false);
    set_up(&r[1], 1, 2, false);
    begin(&r[0], &quick, &hello);
    hello.n_address = 1;
    hello.address[0].family = 6;
    memcpy(hello.address[0].ip, &in6addr_loopback, 16);
    begin(&r[1], &quick, &hello);
    leave_all(r, 2, NULL, 0);
    expect_well(&r[1]);
}

/* An address where nobody is, one that swallows everything and one of a stranger keep nobody from
 * the right one. */
Test(heartbeat, the_right_address_is_found)
{
    struct rank r[2];
    static const uint8_t more[2][4] = {{192, 0, 2, 1}, {127, 0, 0, 99}};
    set_up(&r[0], 0, 2, true);
    set_up(&r[1], 1, 2, true);
    begin(&r[0], &quick, &hello);
    cr_assert_geq(hello.n_address, 1);
    hello.address[2] = hello.address[0];
    hello.n_address = 3;
    for (int i = 0; i < 2; i++) {
        hello.address[i].family = 4;
        memcpy(hello.address[i].ip, more[i], 4);
    }
    begin(&r[1], &quick, &hello);
    leave_all(r, 2, NULL, 0);
    expect_well(&r[1]);
}

/* Numbers from rank 0 are not trusted beyond the room for them. */
Test(heartbeat, more_addresses_than_there_are)
{
    struct rank r[2];
    set_up(&r[0], 0, 2, true);
    set_up(&r[1], 1, 2, true);
    begin(&r[0], &quick, &hello);
    hello.n_address = UINT16_MAX;
    begin(&r[1], &quick, &hello);
    leave_all(r, 2, NULL, 0);
    expect_well(&r[1]);
}

/* ---- losses ---- */

Test(heartbeat, what_one_finds_out_all_hear)
{
    struct rank r[4];
    begin_all(r, 4, &quick);
    gr_world_lose(&r[2].world, 1, "its table differs");
    for (int i = 0; i < 4; i++)
        expect_lost(&r[i], 1, "its table differs", 1000);
    leave_all(r, 4, NULL, 4);
}

Test(heartbeat, told_late_a_program_hears_it_all_the_same)
{
    struct rank r[2];
    begin_all(r, 2, &quick);
    gr_world_on_lost(&r[1].world, NULL, NULL);
    gr_world_lose(&r[0].world, 0, "out of memory");
    expect_lost(&r[0], 0, "out of memory", 1000);
    sleep_ms(200);
    cr_expect_eq(atomic_load(&r[1].n_called), 0);
    gr_world_on_lost(&r[1].world, on_lost, &r[1]);
    expect_lost(&r[1], 0, "out of memory", 1000);
    leave_all(r, 2, NULL, 4);
}

Test(heartbeat, a_rank_that_gives_up_is_lost_with_its_code)
{
    struct rank r[3];
    begin_all(r, 3, &quick);
    for (int i = 0; i < 3; i++)
        gr_world_doing(&r[i].world, GR_DOING_LOAD);
    begin_leaving(&r[2], 3);
    expect_lost(&r[0], 2, "has left, with exit code 3", 1500);
    expect_lost(&r[1], 2, "has left, with exit code 3", 1500);
    begin_leaving(&r[0], 0);
    begin_leaving(&r[1], 0);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(end_leaving(&r[i]), 3, "rank %d: %d", i, r[i].code);
}

/* Before the model is open everyone is needed, whatever code they leave with. */
Test(heartbeat, a_rank_that_does_something_else)
{
    struct rank r[2];
    begin_all(r, 2, &quick);
    begin_leaving(&r[1], 0);
    expect_lost(&r[0], 1, "has left, with exit code 0", 1500);
    begin_leaving(&r[0], 0);
    cr_expect_eq(end_leaving(&r[0]), 4);
    end_leaving(&r[1]);
}

Test(heartbeat, rank_0_waits_for_one_that_has_left)
{
    struct rank r[2];
    begin_all(r, 2, &quick);
    gr_world_doing(&r[0].world, GR_DOING_IDLE);
    begin_leaving(&r[1], 0);
    sleep_ms(quick.leave + 300);
    expect_well(&r[0]);
    int doing = gr_world_pause(&r[0].world);
    expect_lost(&r[0], 1, "has left, with exit code 0", quick.leave + 1000);
    gr_world_resume(&r[0].world, doing);
    cr_expect_eq(atomic_load(&r[0].world.doing), GR_DOING_IDLE);
    begin_leaving(&r[0], 0);
    cr_expect_eq(end_leaving(&r[0]), 4);
    end_leaving(&r[1]);
}

Test(heartbeat, rank_0_leaves_while_others_serve)
{
    struct rank r[3];
    begin_all(r, 3, &quick);
    gr_world_doing(&r[1].world, GR_DOING_WAIT);
    gr_world_doing(&r[2].world, GR_DOING_WAIT);
    begin_leaving(&r[0], 6);
    expect_lost(&r[1], 0, "has left, with exit code 6", 1500);
    expect_lost(&r[2], 0, "has left, with exit code 6", 1500);
    begin_leaving(&r[1], 0);
    begin_leaving(&r[2], 0);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(end_leaving(&r[i]), 6, "rank %d: %d", i, r[i].code);
}

Test(heartbeat, a_rank_that_does_not_leave)
{
    struct rank r[3];
    begin_all(r, 3, &quick);
    gr_world_doing(&r[2].world, GR_DOING_CLOSE);
    begin_leaving(&r[0], 0);
    begin_leaving(&r[1], 0);
    expect_lost(&r[2], 2, "does not leave", 4 * quick.leave + 500);
    cr_expect_eq(end_leaving(&r[0]), 4);
    cr_expect_eq(end_leaving(&r[1]), 0); /* rank 0 had left in good order */
    begin_leaving(&r[2], 0);
    cr_expect_eq(end_leaving(&r[2]), 4);
}

Test(heartbeat, computing_for_too_long_is_hanging_waiting_is_not)
{
    struct rank r[2];
    begin_all(r, 2, &quick);
    gr_world_doing(&r[0].world, GR_DOING_WAIT);
    for (int i = 0; i < 4; i++) {
        gr_world_doing(&r[1].world, GR_DOING_COMPUTE);
        sleep_ms(quick.compute * 2 / 3);
    }
    expect_well(&r[0]);
    for (int i = 0; i < 2; i++)
        expect_lost(&r[i], 1, "has computed one micro-batch for 1 s", 1500);
    leave_all(r, 2, NULL, 4);
}

Test(heartbeat, who_does_not_come_is_lost)
{
    struct rank r[2];
    set_up(&r[0], 0, 3, true);
    set_up(&r[1], 1, 3, true);
    begin(&r[0], &quick, &hello);
    begin(&r[1], &quick, &hello);
    expect_lost(&r[0], 2, "did not come to rank 0 for heartbeats within 1.5 s", 3000);
    expect_lost(&r[1], 2, "did not come", 1000);
    leave_all(r, 2, NULL, 4);
}

/* ---- joining that fails ---- */

static int try_to_join(const struct gr_heartbeat_hello *h)
{
    struct rank r;
    struct gr_heartbeat_hello unused;
    set_up(&r, 1, 2, true);
    cr_assert_eq(gr_heartbeat_new(&r.heartbeat, &r.world, &quick, &unused), 0);
    r.world.heartbeat = r.heartbeat;
    int64_t begin_ns = gr_now_ns();
    int rc = gr_heartbeat_start(r.heartbeat, h);
    cr_expect_lt(gr_seconds_since(begin_ns), quick.join * 1e-3 + 1);
    cr_expect_eq(gr_heartbeat_leave(&r.heartbeat, 5), 5);
    return rc;
}

Test(heartbeat, nobody_to_join)
{
    struct gr_heartbeat_hello none = {.port = 0}, closed = {.port = 9, .n_address = 1};
    closed.address[0].family = 4;
    memcpy(closed.address[0].ip, (uint8_t[]){127, 0, 0, 1}, 4);
    cr_expect_eq(try_to_join(&none), GR_E_IO);
    cr_expect_eq(try_to_join(&closed), GR_E_PEER_LOST);
    cr_expect(strstr(gr_error(), "rank 0 (host0, pid 100) did not answer at port 9 of 127.0.0.1"),
              "%s", gr_error());
}

/* A listener of this test's own. */
static int listen_here(struct gr_heartbeat_hello *h)
{
    int fd;
    cr_assert_eq(gr_heartbeat_listen(&fd, h, true), 0);
    return fd;
}

struct impostor {
    int listener;
    const void *answer;
    size_t n;
    _Atomic bool stop;
};

/* Answers whoever comes with something. */
static void *impostor_main(void *p)
{
    struct impostor *i = p;
    while (!atomic_load(&i->stop)) {
        int fd = accept(i->listener, NULL, NULL);
        if (fd >= 0) {
            (void)!send(fd, i->answer, i->n, MSG_NOSIGNAL);
            sleep_ms(50);
            close(fd);
        }
        sleep_ms(1);
    }
    return NULL;
}

Test(heartbeat, rank_0_must_know_the_secret_too)
{
    struct gr_heartbeat_hello h;
    struct gr_heartbeat_msg m = {.magic = GR_HEARTBEAT_MAGIC, .kind = GR_HEARTBEAT_WELCOME};
    struct impostor i = {.listener = listen_here(&h), .answer = &m, .n = sizeof m};
    pthread_t thread;
    memcpy(m.text, h.ask, 16);
    cr_assert_eq(pthread_create(&thread, NULL, impostor_main, &i), 0);
    cr_expect_eq(try_to_join(&h), GR_E_PEER_LOST);
    atomic_store(&i.stop, true);
    pthread_join(thread, NULL);
    close(i.listener);
}

Test(heartbeat, a_rank_without_memory_or_descriptors)
{
    struct rank r;
    struct rlimit before, none;
    set_up(&r, 0, 2, true);
    gr_alloc_fail_at(1, 0);
    cr_expect_eq(gr_heartbeat_new(&r.heartbeat, &r.world, NULL, &hello), GR_E_NOMEM_HOST);
    cr_expect_null(r.heartbeat);
    getrlimit(RLIMIT_NOFILE, &before);
    none = (struct rlimit){3, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    int rc = gr_heartbeat_new(&r.heartbeat, &r.world, NULL, &hello);
    none.rlim_cur = (rlim_t)dup(2) == (rlim_t)-1 ? 0 : 1;
    setrlimit(RLIMIT_NOFILE, &before);
    cr_expect_eq(none.rlim_cur, 0);
    cr_expect_eq(rc, GR_E_IO, "%d", rc);
    cr_expect_eq(hello.port, 0);
}

/* ---- strangers ---- */

static int connect_to(const struct gr_heartbeat_hello *h)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(h->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

static struct gr_heartbeat_msg message(enum gr_heartbeat_kind kind, int rank, const uint8_t *secret)
{
    struct gr_heartbeat_msg m = {
        .magic = GR_HEARTBEAT_MAGIC, .kind = (uint16_t)kind, .rank = (uint16_t)rank};
    if (secret)
        memcpy(m.text, secret, 16);
    return m;
}

/* True when the other side soon ends the connection. */
static bool is_thrown_out(int fd)
{
    struct timeval limit = {.tv_sec = 3};
    char byte[1024];
    ssize_t n;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while ((n = recv(fd, byte, sizeof byte, 0)) > 0)
        continue;
    bool ended = n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    close(fd);
    return ended;
}

static bool is_refused(const void *first, size_t n)
{
    int fd = connect_to(&hello);
    cr_assert_geq(fd, 0);
    cr_assert_eq(send(fd, first, n, MSG_NOSIGNAL), (ssize_t)n);
    return is_thrown_out(fd);
}

Test(heartbeat, strangers_are_turned_away)
{
    struct rank r[3];
    struct gr_heartbeat_msg m;
    struct gr_heartbeat_opt patient = quick;
    patient.join = 20000;
    set_up(&r[0], 0, 3, true);
    begin(&r[0], &patient, &hello);
    set_up(&r[1], 1, 3, true);
    begin(&r[1], &quick, &hello);
    char noise[4096];
    memset(noise, 0xa5, sizeof noise);
    cr_expect(is_refused(noise, sizeof noise));
    cr_expect(is_refused("GET / HTTP/1.1\r\n\r\n", 18), "a partial message");
    m = message(GR_HEARTBEAT_JOIN, 2, hello.answer);
    cr_expect(is_refused(&m, sizeof m), "the wrong secret");
    m = message(GR_HEARTBEAT_BEAT, 2, hello.ask);
    cr_expect(is_refused(&m, sizeof m), "not joining");
    for (int rank = 0; rank < 70000; rank += rank < 4 ? 1 : 9973) {
        m = message(GR_HEARTBEAT_JOIN, rank, hello.ask);
        if (rank != 2)
            cr_expect(is_refused(&m, sizeof m), "rank %d", rank);
    }
    expect_well(&r[0]);
    expect_well(&r[1]);
    set_up(&r[2], 2, 3, true);
    begin(&r[2], &quick, &hello);
    sleep_ms(200);
    cr_expect_eq(connect_to(&hello), -1, "everyone is there, and the door is open");
    leave_all(r, 3, NULL, 0);
    expect_well(&r[0]);
}

/* Becomes rank 0 for a rank of two; returns the connection. */
static int welcome(int listener, const struct gr_heartbeat_hello *h)
{
    struct gr_heartbeat_msg m, answer = message(GR_HEARTBEAT_WELCOME, 0, h->answer);
    int fd = -1;
    while (fd < 0)
        fd = accept(listener, NULL, NULL);
    cr_assert_eq(recv(fd, &m, sizeof m, MSG_WAITALL), (ssize_t)sizeof m);
    cr_assert_eq(send(fd, &answer, sizeof answer, MSG_NOSIGNAL), (ssize_t)sizeof answer);
    return fd;
}

struct goodbye {
    int listener, spin;
    const struct gr_heartbeat_hello *hello;
    pthread_barrier_t together;
};

/* Rank 0 that tells of a loss, leaves, and closes its connection with unread heartbeats, all at
 * once. */
static void *goodbye_main(void *p)
{
    struct goodbye *g = p;
    struct gr_heartbeat_msg last[] = {message(GR_HEARTBEAT_LOST, 2, NULL),
                                      message(GR_HEARTBEAT_LEAVE, 0, NULL)};
    int fd = welcome(g->listener, g->hello);
    snprintf(last[0].text, sizeof last[0].text, "its process has ended");
    pthread_barrier_wait(&g->together);
    for (volatile int i = 0; i < g->spin; i++)
        continue;
    (void)!send(fd, last, sizeof last, MSG_NOSIGNAL);
    close(fd);
    return NULL;
}

/* The message about a loss may be read first when sending the own goodbye fails: the program is
 * told then as well. */
Test(heartbeat, a_loss_heard_of_while_leaving)
{
    struct gr_heartbeat_hello h;
    struct gr_heartbeat_opt lively = quick;
    struct goodbye g = {.listener = listen_here(&h), .hello = &h};
    int n_lost = 0;
    lively.beat = 1;
    pthread_barrier_init(&g.together, NULL, 2);
    for (int i = 0; i < 1000; i++) {
        struct rank r;
        pthread_t thread;
        set_up(&r, 1, 3, true);
        g.spin = i % 100 * 300;
        cr_assert_eq(pthread_create(&thread, NULL, goodbye_main, &g), 0);
        begin(&r, &lively, &h);
        pthread_barrier_wait(&g.together);
        int code = gr_heartbeat_leave(&r.heartbeat, 0);
        pthread_join(thread, NULL);
        n_lost += code == 4;
        cr_assert_eq(atomic_load(&r.n_called), code == 4, "time %d: code %d", i, code);
    }
    cr_expect_gt(n_lost, 0);
    pthread_barrier_destroy(&g.together);
    close(g.listener);
}

struct flood {
    _Atomic bool stop;
    _Atomic int n;
};

/* Connections by the hundred, left open. */
static void *flood_main(void *p)
{
    struct flood *f = p;
    int fds[100], at = 0;
    memset(fds, -1, sizeof fds);
    while (!atomic_load(&f->stop)) {
        int fd = connect_to(&hello);
        if (fd >= 0) {
            (void)!send(fd, "GRWW", 4, MSG_NOSIGNAL);
            atomic_fetch_add(&f->n, 1);
        }
        if (fds[at] >= 0)
            close(fds[at]);
        fds[at] = fd;
        at = (at + 1) % 100;
    }
    for (int i = 0; i < 100; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    return NULL;
}

/* On a busy machine the flood may take most of it: nobody is in a hurry. */
Test(heartbeat, a_flood_of_strangers)
{
    struct rank r[3];
    struct flood f = {0};
    struct gr_heartbeat_opt patient = quick;
    pthread_t thread;
    patient.join = patient.silent = 20000;
    set_up(&r[0], 0, 3, true);
    begin(&r[0], &patient, &hello);
    cr_assert_eq(pthread_create(&thread, NULL, flood_main, &f), 0);
    while (atomic_load(&f.n) < 500)
        sleep_ms(5);
    for (int i = 1; i < 3; i++) {
        set_up(&r[i], i, 3, true);
        begin(&r[i], &patient, &hello);
    }
    sleep_ms(300);
    for (int i = 0; i < 3; i++)
        expect_well(&r[i]);
    atomic_store(&f.stop, true);
    pthread_join(thread, NULL);
    leave_all(r, 3, NULL, 0);
}

/* ---- ranks that misbehave: rank 1 is a socket of the test ---- */

static int begin_with_socket(struct rank *r)
{
    set_up(r, 0, 2, true);
    begin(r, &quick, &hello);
    int fd = connect_to(&hello);
    cr_assert_geq(fd, 0);
    struct gr_heartbeat_msg m = message(GR_HEARTBEAT_JOIN, 1, hello.ask), answer;
    cr_assert_eq(send(fd, &m, sizeof m, 0), (ssize_t)sizeof m);
    cr_assert_eq(recv(fd, &answer, sizeof answer, MSG_WAITALL), (ssize_t)sizeof answer);
    cr_assert_eq(memcmp(answer.text, hello.answer, 16), 0);
    return fd;
}

static void expect_lost_and_leave(struct rank *r, int fd, const char *words)
{
    expect_lost(r, 1, words, 2 * quick.silent);
    cr_expect_eq(gr_heartbeat_leave(&r->heartbeat, 0), 4);
    close(fd);
}

Test(heartbeat, silence_is_a_loss)
{
    struct rank r;
    int64_t begin_ns = gr_now_ns();
    int fd = begin_with_socket(&r);
    expect_lost_and_leave(&r, fd, "nothing heard of it for 1.");
    cr_expect_lt(gr_seconds_since(begin_ns), quick.silent * 1e-3 + 0.8);
}

Test(heartbeat, half_a_message_is_no_sign_of_life)
{
    struct rank r;
    int fd = begin_with_socket(&r);
    struct gr_heartbeat_msg m = message(GR_HEARTBEAT_BEAT, 1, NULL);
    cr_assert_eq(send(fd, &m, 100, 0), 100);
    expect_lost_and_leave(&r, fd, "nothing heard of it");
}

Test(heartbeat, nonsense_is_a_loss)
{
    struct rank r;
    int fd = begin_with_socket(&r);
    char noise[8192];
    memset(noise, 0x5a, sizeof noise);
    cr_assert_eq(send(fd, noise, sizeof noise, 0), (ssize_t)sizeof noise);
    expect_lost_and_leave(&r, fd, "makes no sense");
}

Test(heartbeat, what_is_lost_must_be_a_rank)
{
    struct rank r;
    int fd = begin_with_socket(&r);
    struct gr_heartbeat_msg m = message(GR_HEARTBEAT_LOST, 2, NULL);
    memset(m.text, 'x', sizeof m.text);
    cr_assert_eq(send(fd, &m, sizeof m, 0), (ssize_t)sizeof m);
    expect_lost_and_leave(&r, fd, "makes no sense");
}

Test(heartbeat, a_reason_without_an_end)
{
    struct rank r;
    int fd = begin_with_socket(&r);
    struct gr_heartbeat_msg m = message(GR_HEARTBEAT_LOST, 1, NULL);
    memset(m.text, 'x', sizeof m.text);
    cr_assert_eq(send(fd, &m, sizeof m, 0), (ssize_t)sizeof m);
    expect_lost_and_leave(&r, fd, "xxxx");
}

Test(heartbeat, only_the_end_of_a_connection)
{
    struct rank r;
    int fd = begin_with_socket(&r);
    struct gr_heartbeat_msg m = message(GR_HEARTBEAT_BEAT, 1, NULL);
    m.value = GR_DOING_LOAD, m.ms = 1500, m.n = 12;
    cr_assert_eq(send(fd, &m, sizeof m, 0), (ssize_t)sizeof m);
    shutdown(fd, SHUT_WR);
    expect_lost_and_leave(&r, fd, "its process has ended (it had been loading for 1.5 s, step 12)");
}

/* One that speaks and never listens, until nothing more can be sent to it, holds up nobody. */
Test(heartbeat, a_rank_that_never_reads)
{
    struct rank r;
    struct gr_heartbeat_opt opt = quick;
    opt.beat = 1;
    set_up(&r, 0, 2, true);
    begin(&r, &opt, &hello);
    int fd = socket(AF_INET, SOCK_STREAM, 0), small = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(hello.port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    struct gr_heartbeat_msg m = message(GR_HEARTBEAT_JOIN, 1, hello.ask);
    cr_assert_eq(send(fd, &m, sizeof m, 0), (ssize_t)sizeof m);
    m = message(GR_HEARTBEAT_BEAT, 1, NULL);
    for (int i = 0; i < 3000; i++) {
        cr_assert_eq(send(fd, &m, sizeof m, MSG_NOSIGNAL), (ssize_t)sizeof m);
        sleep_ms(1);
    }
    expect_well(&r);
    expect_lost_and_leave(&r, fd, "nothing heard of it");
}
