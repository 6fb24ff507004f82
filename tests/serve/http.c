/* The HTTP layer with handlers of its own: answers from other threads, streams, and clients that go
 * at any time. What single requests look like is in server.py. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "tools/serve/http.h"

TestSuite(http, .timeout = 120);

static void wait_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* ---- handlers ---- */

static _Atomic(struct gr_exchange *) held; /* that /held has kept */
static atomic_int n_gone;

static void on_gone(void *user)
{
    (void)user;
    n_gone++;
}

static void answer_text(struct gr_exchange *x, const char *text)
{
    gr_exchange_answer(x, 200, "text/plain", strdup(text), strlen(text));
}

static void handle_now(struct gr_exchange *x, void *user)
{
    (void)user;
    answer_text(x, "now");
}

static void handle_held(struct gr_exchange *x, void *user)
{
    (void)user;
    gr_exchange_keep(x, on_gone, NULL);
    held = x;
}

static void *answer_soon(void *exchange)
{
    answer_text(exchange, "soon");
    return NULL;
}

/* Another thread answers, before or after this returns. */
static void handle_soon(struct gr_exchange *x, void *user)
{
    pthread_t thread;
    (void)user;
    gr_exchange_keep(x, on_gone, NULL);
    cr_assert_eq(pthread_create(&thread, NULL, answer_soon, x), 0);
    pthread_detach(thread);
}

/* A stream of the body's number of pieces, each of 1 to 1000 bytes, with pauses now and then. */
struct writer {
    struct gr_exchange *x;
    uint64_t n;
    atomic_int gone;
};
static atomic_int n_complete, n_cut, n_wrong; /* streams */

static void on_writer_gone(void *user)
{
    n_wrong += ((struct writer *)user)->gone++ != 0;
}

static void *write_stream(void *user)
{
    struct writer *w = user;
    struct gr_rng r = gr_rng_new(w->n);
    char piece[1000];
    bool there = true;
    memset(piece, 'a', sizeof piece);
    for (uint64_t i = 0; i < w->n && there; i++) {
        if (gr_rng_u32(&r) % 8 == 0)
            wait_ms(1);
        there = gr_exchange_write(w->x, piece, 1 + gr_rng_u32(&r) % sizeof piece);
    }
    gr_exchange_end(w->x);
    *(there && !w->gone ? &n_complete : &n_cut) += 1;
    free(w);
    return NULL;
}

static void handle_stream(struct gr_exchange *x, void *user)
{
    pthread_t thread;
    size_t n;
    struct writer *w = calloc(1, sizeof *w);
    (void)user;
    w->x = x, w->n = strtoull(gr_exchange_body(x, &n), NULL, 10);
    gr_exchange_keep(x, on_writer_gone, w);
    gr_exchange_stream(x, "text/event-stream", NULL);
    cr_assert_eq(pthread_create(&thread, NULL, write_stream, w), 0);
    pthread_detach(thread);
}

/* Answers with so many MiB. */
static void handle_large(struct gr_exchange *x, void *user)
{
    size_t n, most;
    (void)user;
    most = strtoul(gr_exchange_body(x, &n), NULL, 10) << 20;
    char *p = malloc(most);
    memset(p, 'a', most);
    gr_exchange_answer(x, 200, "text/plain", p, most);
}

static void refuse(struct gr_exchange *x, int status, const char *message, const char *code)
{
    (void)code;
    gr_exchange_answer(x, status, "text/plain", strdup(message), strlen(message));
}

/* ---- the server ---- */

/* Holds the event loop up, as a busy machine does. */
static void handle_slow(struct gr_exchange *x, void *user)
{
    (void)user;
    wait_ms(300);
    answer_text(x, "slow");
}

static const struct gr_route routes[] = {
    {"GET", "/slow", handle_slow, GR_ROUTE_MODEL},
    {"GET", "/now", handle_now, GR_ROUTE_MODEL},
    {"GET", "/held", handle_held, GR_ROUTE_MODEL},
    {"POST", "/held", handle_held, GR_ROUTE_MODEL},
    {"GET", "/soon", handle_soon, GR_ROUTE_MODEL},
    {"POST", "/soon", handle_soon, GR_ROUTE_MODEL},
    {"POST", "/stream", handle_stream, GR_ROUTE_MODEL},
    {"POST", "/large", handle_large, GR_ROUTE_MODEL},
};
static struct gr_httpd *server;
static uint16_t port;

#define MOST_UNREAD ((size_t)40 << 20)
#define MOST_BODY ((size_t)1 << 18)

/* Returns a listening socket whose connections keep at most 128 KiB that is sent and not read: left
 * to itself the kernel keeps up to megabytes of each, by its settings. */
static int open_listener(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
        send_buffer = 65536; /* it is doubled */
    cr_assert(fd >= 0);
    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer), 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(listen(fd, SOMAXCONN), 0);
    return fd;
}

static void open_server_for(int32_t n_thread, uint32_t max_connections)
{
    struct gr_httpd_params p = {.host = "127.0.0.1",
                                .listener = open_listener(),
                                .route = routes,
                                .n_route = sizeof routes / sizeof *routes,
                                .refuse = refuse,
                                .max_body = MOST_BODY,
                                .max_bodies = 4 * MOST_BODY,
                                .max_unread = MOST_UNREAD,
                                .max_connections = max_connections,
                                .n_thread = n_thread,
                                .header_s = 10,
                                .stall_s = 5};
    cr_assert_eq(gr_httpd_open(&server, &p), 0);
    port = (uint16_t)strtol(strrchr(gr_httpd_url(server), ':') + 1, NULL, 10);
    gr_httpd_set_unready(server, NULL);
}

static void open_server(int32_t n_thread)
{
    open_server_for(n_thread, 500);
}

/* All exchanges end within that time. */
static void expect_idle(int ms)
{
    for (; gr_httpd_busy(server) && ms > 0; ms -= 10)
        wait_ms(10);
    cr_expect_eq(gr_httpd_busy(server), 0);
}

static void close_server(void)
{
    expect_idle(5000);
    gr_httpd_close(&server);
    cr_expect_null(server);
}

/* ---- clients ---- */

/* Sends a request that is the last one of its connection; returns the socket. */
static int ask(const char *method, const char *path, const char *body, int receive_buffer)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    char text[256];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (receive_buffer)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    int n = snprintf(text, sizeof text,
                     "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     method, path, strlen(body));
    cr_assert_eq(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
    cr_assert_eq(send(fd, body, strlen(body), MSG_NOSIGNAL), (ssize_t)strlen(body));
    return fd;
}

/* Reads up to most bytes, or to the end, and closes. Returns all (free). */
static char *read_all(int fd, size_t most, size_t *n)
{
    size_t room = 1 << 16;
    char *p = malloc(room + 1);
    ssize_t got = 1;
    for (*n = 0; *n < most && got > 0; *n += got > 0 ? (size_t)got : 0) {
        if (*n == room)
            p = realloc(p, 2 * room + 1), room *= 2;
        size_t left = room - *n < most - *n ? room - *n : most - *n;
        got = recv(fd, p + *n, left, 0);
    }
    p[*n] = 0;
    close(fd);
    return p;
}

static void expect_answer(int fd, const char *words)
{
    size_t n;
    char *p = read_all(fd, SIZE_MAX, &n);
    const char *body = strstr(p, "\r\n\r\n");
    cr_expect(!strncmp(p, "HTTP/1.1 200", 12) && body && !strcmp(body + 4, words), "%s", p);
    free(p);
}

/* Waits for the exchange that /held has kept. */
static struct gr_exchange *take_held(void)
{
    struct gr_exchange *x = NULL;
    for (int i = 0; i < 1000 && !(x = atomic_exchange(&held, NULL)); i++)
        wait_ms(5);
    cr_assert(x);
    return x;
}

static bool wait_gone(int n)
{
    for (int i = 0; i < 200 && n_gone < n; i++)
        wait_ms(5);
    return n_gone == n;
}

/* ---- answers ---- */

Test(http, answers_from_another_thread)
{
    open_server(2);
    for (int i = 0; i < 300; i++)
        expect_answer(ask(i % 2 ? "GET" : "POST", "/soon", "", 0), "soon");
    for (int i = 0; i < 20; i++) {
        int fd = ask(i % 2 ? "GET" : "POST", "/held", "", 0);
        struct gr_exchange *x = take_held();
        wait_ms(i);
        answer_text(x, "late");
        expect_answer(fd, "late");
    }
    cr_expect_eq(n_gone, 0);
    close_server();
}

/* A client that hangs up while it waits is noticed, once; the exchange may be answered all the
 * same. */
Test(http, clients_that_do_not_wait)
{
    open_server(1);
    for (int i = 0; i < 20; i++) {
        int fd = ask(i % 2 ? "GET" : "POST", "/held", "", 0);
        struct gr_exchange *x = take_held();
        struct linger reset = {1, 0};
        if (i % 3 == 0)
            (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
        cr_expect(wait_gone(i + 1), "%d: %d", i, n_gone);
        wait_ms(i % 5 * 30);
        if (i % 4 < 2)
            gr_exchange_end(x);
        else
            answer_text(x, "too late");
        expect_answer(ask("GET", "/now", "", 0), "now");
    }
    expect_idle(1000);
    cr_expect_eq(n_gone, 20);
    close_server();
}

/* The bodies of all requests that go on are bounded, as what was made of them is kept; small ones
 * do not count. */
Test(http, bodies_of_requests_that_wait)
{
    enum { N = 4 };
    static char body[MOST_BODY];
    struct gr_exchange *x[N];
    int fd[N];
    open_server(2);
    memset(body, 'a', sizeof body - 1);
    for (int round = 0; round < 3; round++) {
        size_t n;
        for (int i = 0; i < N; i++) {
            fd[i] = ask("POST", "/held", body, 0);
            x[i] = take_held();
            gr_exchange_drop_body(x[i]); /* as its handler does */
        }
        char *p = read_all(ask("POST", "/soon", body, 0), SIZE_MAX, &n);
        cr_expect(!strncmp(p, "HTTP/1.1 503", 12), "%s", p);
        free(p);
        expect_answer(ask("POST", "/soon", "small", 0), "soon");
        for (int i = 0; i < N; i++) {
            answer_text(x[i], "late");
            expect_answer(fd[i], "late");
        }
    }
    expect_answer(ask("POST", "/soon", body, 0), "soon");
    close_server();
}

Test(http, exchanges_without_an_answer)
{
    size_t n;
    open_server(2);
    int fd = ask("POST", "/held", "", 0);
    gr_exchange_end(take_held());
    char *p = read_all(fd, SIZE_MAX, &n);
    cr_expect_eq(n, 0, "%s", p);
    free(p);
    cr_expect_eq(n_gone, 0);
    close_server();
}

/* More connections than there may be come while the loop is held up. */
Test(http, connections_that_wait_for_the_loop, .timeout = 60)
{
    static int fd[300];
    open_server_for(1, 16);
    int slow = ask("GET", "/slow", "", 0);
    wait_ms(50);
    for (int i = 0; i < 300; i++)
        fd[i] = ask("GET", "/now", "", 0);
    expect_answer(slow, "slow");
    expect_answer(ask("GET", "/now", "", 0), "now");
    for (int i = 0; i < 300; i++)
        close(fd[i]);
    expect_answer(ask("GET", "/now", "", 0), "now");
    close_server();
}

/* ---- streams ---- */

/* Bytes of the chunks behind the header, which have to end. */
static size_t chunk_bytes(const char *p)
{
    size_t sum = 0, n = 1;
    p = strstr(p, "\r\n\r\n");
    for (p = p ? p + 4 : ""; n; p += n + 2) {
        char *end;
        n = strtoull(p, &end, 16);
        if (end == p || strncmp(end, "\r\n", 2) != 0)
            return SIZE_MAX;
        p = end + 2;
        sum += n;
    }
    return sum;
}

static size_t stream_bytes(uint64_t n)
{
    struct gr_rng r = gr_rng_new(n);
    size_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        (void)gr_rng_u32(&r);
        sum += 1 + gr_rng_u32(&r) % 1000;
    }
    return sum;
}

static void *read_streams(void *seed)
{
    struct gr_rng r = gr_rng_new((uintptr_t)seed);
    for (int i = 0; i < 12; i++) {
        uint64_t n = gr_rng_u32(&r) % 200;
        bool cut = gr_rng_u32(&r) % 2;
        size_t got, most = cut ? (size_t)1 + gr_rng_u32(&r) % 20000 : SIZE_MAX;
        char body[24];
        snprintf(body, sizeof body, "%llu", (unsigned long long)n);
        int fd = ask("POST", "/stream", body, cut ? 4096 : 0);
        char *p = read_all(fd, most, &got);
        if (!cut)
            n_wrong += chunk_bytes(p) != stream_bytes(n);
        free(p);
    }
    return NULL;
}

/* Many at a time, every second client leaves at any byte. */
Test(http, streams_and_clients_that_leave)
{
    pthread_t thread[16];
    open_server(2);
    for (uintptr_t i = 0; i < 16; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, read_streams, (void *)(i + 1)), 0);
    for (int i = 0; i < 16; i++)
        pthread_join(thread[i], NULL);
    expect_idle(5000);
    cr_expect_eq(n_wrong, 0);
    cr_expect_eq(n_complete + n_cut, 16 * 12);
    cr_expect(n_complete >= 60 && n_cut >= 5, "%d %d", n_complete, n_cut);
    expect_answer(ask("GET", "/now", "", 0), "now");
    close_server();
}

/* Bytes that a client leaves unread are bounded; then it counts as gone. */
Test(http, streams_that_nobody_reads)
{
    static char piece[65536];
    size_t n = 0;
    open_server(2);
    int fd = ask("POST", "/held", "", 4096);
    struct gr_exchange *x = take_held();
    gr_exchange_stream(x, "text/event-stream", NULL);
    while (n < (size_t)64 << 20 && gr_exchange_write(x, piece, sizeof piece))
        n += sizeof piece;
    cr_expect(n >= (size_t)8 << 20 && n < (size_t)32 << 20, "%zu", n);
    cr_expect(!gr_exchange_write(x, piece, 1));
    cr_expect(wait_gone(1));
    gr_exchange_end(x);
    expect_idle(2000);
    close(fd);
    close_server();
}

/* A little that nobody reads: after the time of a stall it counts as gone. */
Test(http, streams_that_stall)
{
    static char piece[65536];
    open_server(2);
    int fd = ask("POST", "/held", "", 4096);
    struct gr_exchange *x = take_held();
    gr_exchange_stream(x, "text/event-stream", NULL);
    for (int i = 0; i < 110; i++)
        cr_assert(gr_exchange_write(x, piece, sizeof piece));
    for (int i = 0; i < 800 && !n_gone; i++)
        wait_ms(10);
    cr_expect_eq(n_gone, 1);
    gr_exchange_end(x);
    expect_idle(2000);
    close(fd);
    close_server();
}

/* Returns whether all of an answer comes, which is closed then. */
static bool comes_whole(int fd, size_t mib)
{
    size_t n;
    char *p = read_all(fd, SIZE_MAX, &n);
    const char *body = strstr(p, "\r\n\r\n");
    size_t n_body = body ? n - (size_t)(body + 4 - p) : 0;
    free(p);
    return n_body == mib << 20;
}

/* Bytes of all answers that clients leave unread are bounded: who has read none for longest is cut.
 * One answer may have more, and who reads gets it whole. */
Test(http, answers_that_nobody_reads)
{
    int fd[12], n_whole = 0;
    open_server(2);
    for (int i = 0; i < 12; i++) {
        fd[i] = ask("POST", "/large", "12", 4096);
        wait_ms(200);
    }
    cr_expect(gr_httpd_busy(server) == 3, "%d", gr_httpd_busy(server));
    cr_expect(comes_whole(ask("POST", "/large", "10", 0), 10));
    for (int i = 0; i < 12; i++) {
        bool whole = comes_whole(fd[i], 12);
        cr_expect(whole || !n_whole, "%d: a later one was cut", i);
        n_whole += whole;
    }
    cr_expect(n_whole == 2 || n_whole == 3, "%d", n_whole);
    cr_expect(comes_whole(ask("POST", "/large", "90", 0), 90));
    expect_answer(ask("GET", "/now", "", 0), "now");
    close_server();
}

/* Streams have the same bound; the owner of one that is cut hears of it. */
Test(http, streams_that_together_leave_too_much_unread)
{
    enum { N = 10 };
    static char piece[65536];
    struct gr_exchange *x[N];
    int fd[N];
    open_server(2);
    for (int i = 0; i < N; i++) {
        fd[i] = ask("POST", "/held", "", 4096);
        x[i] = take_held();
        gr_exchange_stream(x[i], "text/event-stream", NULL);
        for (size_t n = 0; n < 110; n++) {
            cr_assert(gr_exchange_write(x[i], piece, sizeof piece));
            wait_ms(n % 16 == 0);
        }
        wait_ms(150);
    }
    (void)wait_gone(N);
    for (int i = 0; i < N; i++)
        cr_expect_eq(gr_exchange_write(x[i], piece, 1), i >= n_gone, "%d of %d", i, n_gone);
    cr_expect(n_gone > 0 && n_gone < N - 3, "%d", n_gone);
    for (int i = 0; i < N; i++) {
        gr_exchange_end(x[i]);
        close(fd[i]);
    }
    close_server();
}

/* An answer that nobody reads for the time of a stall, however large it is. */
Test(http, answers_that_stall)
{
    open_server(2);
    int fd = ask("POST", "/large", "32", 4096);
    wait_ms(500);
    cr_expect_eq(gr_httpd_busy(server), 1);
    expect_idle(8000);
    cr_expect(!comes_whole(fd, 32));
    close_server();
}

/* A server that closes in the midst of it all. */
Test(http, close_while_clients_are_there)
{
    open_server(2);
    int stream = ask("POST", "/stream", "1000", 0), kept = ask("POST", "/held", "", 0);
    struct gr_exchange *x = take_held();
    gr_httpd_drain(server);
    cr_expect_eq(n_gone, 0);
    answer_text(x, "last");
    expect_answer(kept, "last");
    size_t n;
    char *p = read_all(stream, SIZE_MAX, &n);
    cr_expect_eq(chunk_bytes(p), stream_bytes(1000));
    free(p);
    close_server();
}

/* Connects and leaves until the server no longer listens. */
static void *come_and_go(void *none)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (bool there = true; there;) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        there = !connect(fd, (struct sockaddr *)&a, sizeof a);
        close(fd);
    }
    return none;
}

/* Servers that stop listening at any moment of their loops. */
Test(http, drain_while_clients_come)
{
    for (int round = 0; round < 20; round++) {
        pthread_t client[3];
        open_server(4);
        for (int i = 0; i < 3; i++)
            cr_assert_eq(pthread_create(&client[i], NULL, come_and_go, NULL), 0);
        wait_ms(1 + round % 5);
        gr_httpd_drain(server);
        for (int i = 0; i < 3; i++)
            pthread_join(client[i], NULL);
        close_server();
    }
}
