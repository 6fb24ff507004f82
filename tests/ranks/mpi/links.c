/* Links between processes: run by mpirun as 2 to 4 ranks, each of which is this program. Criterion
 * runs each test in a process of its own, which MPI does not survive; so this is a plain one that
 * says what is wrong and exits with 1. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gpurun.h"
#include "link/self_test.h"
#include "support/traffic.h"

#define S ((int64_t)1000000000)
#define LIMIT (60 * S) /* of what ends at once, but on a machine that stands still */

static struct gr_world *w;

#define expect(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %d: %s:%d: %s is false (%s)\n", w ? w->rank : -1, __FILE__,      \
                    __LINE__, #condition, gr_error());                                             \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static struct gr_link *open_link(enum gr_lane lane, int32_t from, int32_t to)
{
    struct gr_link *l;
    expect(gr_world_link(w, lane, from, to, &l) == 0);
    return l;
}

/* Everybody knows everybody; those of one machine are numbered in their order. */
static void facts(void)
{
    char name[128], mine[64] = "";
    int32_t local = 0, n_local = 0;
    expect(strcmp(w->api->name, "mpi") == 0 && w->n_rank > 1);
    expect(gr_world_rank(w) == w->rank && gr_world_size(w) == w->n_rank);
    gethostname(mine, sizeof mine - 1);
    expect(strcmp(w->ranks[w->rank].host, mine) == 0 && w->ranks[w->rank].pid == getpid());
    for (int32_t i = 0; i < w->n_rank; i++) {
        bool here = strcmp(w->ranks[i].host, mine) == 0;
        local += here && i < w->rank, n_local += here;
        expect(w->ranks[i].pid > 0 && w->ranks[i].host[0]);
        expect(strstr(gr_world_name(w, i, name, sizeof name), w->ranks[i].host));
    }
    expect(w->ranks[w->rank].local == local && w->ranks[w->rank].n_local == n_local);
}

/* Around the ring, which only works since sends do not block. */
static void ring(void)
{
    static const size_t lengths[] = {0, 1, 8192, 65536, 1 << 20, (64 << 20) + 3};
    int32_t next = (w->rank + 1) % w->n_rank, before = (w->rank + w->n_rank - 1) % w->n_rank;
    struct gr_link *out = open_link(GR_LANE_DATA, w->rank, next);
    struct gr_link *in = open_link(GR_LANE_DATA, before, w->rank);
    unsigned char *a = gr_calloc((64 << 20) + 8, 1), *b = gr_calloc((64 << 20) + 8, 1);
    expect(a && b);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct gr_request s = {0}, r = {0};
        size_t n = lengths[i], found = 1;
        traffic_fill(a, n, i, out, 0);
        expect(gr_link_send(out, a, n, &s) == 0);
        if (i % 2)
            expect(in->api->probe(in, gr_now_ns() + LIMIT, &found) == 0 && found == n);
        expect(gr_link_recv(in, b, n, &r) == 0);
        expect(gr_link_wait(in, &r, gr_now_ns() + LIMIT) == 0 && r.n == n);
        expect(gr_link_wait(out, &s, gr_now_ns() + LIMIT) == 0);
        traffic_fill(a, n, i, in, 0);
        expect(memcmp(a, b, n) == 0);
    }
    gr_free(a), gr_free(b);
    gr_link_close(&out), gr_link_close(&in);
}

/* Rank 0 has many requests under way to every other rank, and answers come back. */
static void many_in_flight(void)
{
    enum { N = 300 };
    static struct gr_request requests[GR_MAX_RANK][N];
    static int values[GR_MAX_RANK][N];
    for (int32_t other = 1; other < w->n_rank; other++) {
        if (w->rank != 0 && w->rank != other)
            continue;
        struct gr_link *out = open_link(GR_LANE_COMMAND, 0, other);
        for (int i = 0; i < N; i++) {
            int *v = &values[other][i];
            struct gr_request *r = &requests[other][i];
            *v = w->rank ? -1 : i * 3 + other;
            expect((w->rank ? gr_link_recv(out, v, sizeof *v, r)
                            : gr_link_send(out, v, sizeof *v, r)) == 0);
        }
        for (int i = N - 1; i >= 0; i--)
            expect(gr_link_wait(out, &requests[other][i], gr_now_ns() + LIMIT) == 0);
        for (int i = 0; i < N; i++)
            expect(values[other][i] == i * 3 + other);
        gr_link_close(&out);
    }
}

/* A deadline passes and leaves the request as it was; a message that is too long is an error; a
 * link is closed with a receive under way, and what comes later goes to the next one. */
static void deadlines(void)
{
    struct gr_link *go = w->rank < 2 ? open_link(GR_LANE_COMMAND, 1, 0) : NULL;
    struct gr_link *l = w->rank < 2 ? open_link(GR_LANE_RESULT, 0, 1) : NULL;
    struct gr_request r = {0}, s = {0};
    char buf[8] = "abcdefg";
    size_t n;
    if (w->rank == 1) {
        int64_t start = gr_now_ns();
        expect(gr_link_recv(l, buf, 4, &r) == 0);
        expect(gr_link_wait(l, &r, start + S / 20) == GR_E_PEER_LOST);
        expect(gr_now_ns() - start >= S / 20 && strncmp(gr_error(), "rank 0 (", 8) == 0);
        expect(strstr(gr_error(), "no answer on the result link 0 -> 1"));
        expect(!l->api->done(l, &r));
        gr_link_close(&l);
        l = open_link(GR_LANE_RESULT, 0, 1);
        expect(l->api->probe(l, gr_now_ns() + S / 50, &n) == GR_E_PEER_LOST);
        expect(gr_link_send(go, buf, 1, &s) == 0 && gr_link_wait(go, &s, INT64_MAX) == 0);
        expect(l->api->probe(l, gr_now_ns() + LIMIT, &n) == 0 && n == 3);
        expect(gr_link_recv(l, buf, sizeof buf, &r) == 0);
        expect(gr_link_wait(l, &r, INT64_MAX) == 0 && r.n == 3 && memcmp(buf, "123", 3) == 0);
        expect(gr_link_recv(l, buf, 2, &r) == 0);
        expect(gr_link_wait(l, &r, gr_now_ns() + LIMIT) == GR_E_INTERNAL);
    } else if (w->rank == 0) {
        expect(gr_link_recv(go, buf, 1, &r) == 0 && gr_link_wait(go, &r, INT64_MAX) == 0);
        for (int i = 0; i < 2; i++)
            expect(gr_link_send(l, "123", 3, &s) == 0 && gr_link_wait(l, &s, INT64_MAX) == 0);
    }
    gr_link_close(&go), gr_link_close(&l);
}

static volatile sig_atomic_t arrived;

static void on_arrival(int signal)
{
    (void)signal;
    arrived = 1;
}

/* A send that was begun completes while the sender does nothing of a link, as it does while it
 * computes: the receiver says so by a signal. */
static void goes_by_itself(void)
{
    enum { N = 3 << 20 };
    bool one_host = w->ranks[w->rank].n_local == w->n_rank;
    if (w->rank > 1 || !one_host)
        return;
    struct gr_link *go = open_link(GR_LANE_RESULT, 1, 0), *l = open_link(GR_LANE_DATA, 0, 1);
    struct gr_request r = {0}, s = {0};
    unsigned char *body = gr_calloc(1, N);
    if (w->rank == 0) {
        expect(signal(SIGUSR1, on_arrival) != SIG_ERR);
        expect(gr_link_recv(go, body, 8, &r) == 0 && gr_link_wait(go, &r, INT64_MAX) == 0);
        expect(gr_link_send(l, body, N, &s) == 0);
        for (int64_t end = gr_now_ns() + LIMIT; !arrived && gr_now_ns() < end;)
            usleep(1000);
        expect(arrived);
        expect(gr_link_wait(l, &s, INT64_MAX) == 0);
    } else {
        expect(gr_link_send(go, body, 8, &s) == 0 && gr_link_wait(go, &s, INT64_MAX) == 0);
        expect(gr_link_recv(l, body, N, &r) == 0 && gr_link_wait(l, &r, INT64_MAX) == 0);
        expect(kill(w->ranks[0].pid, SIGUSR1) == 0);
    }
    gr_free(body);
    gr_link_close(&go), gr_link_close(&l);
}

/* The test of the links at the start, over the real ones. */
static void chain(void)
{
    struct gr_port in = {0}, out = {0};
    struct gr_chain_end from = {0}, to = {0};
    struct gr_link_result *found = gr_calloc((size_t)w->n_rank, sizeof *found);
    int n_found = 0;
    if (w->rank > 0)
        from.port = &in, in.link = open_link(GR_LANE_DATA, w->rank - 1, w->rank);
    if (w->rank < w->n_rank - 1)
        to.port = &out, out.link = open_link(GR_LANE_DATA, w->rank, w->rank + 1);
    int64_t start = gr_now_ns();
    expect(found && gr_chain_try(w, &from, &to, start + LIMIT, found, &n_found) == 0);
    expect(n_found == w->n_rank - 1 - w->rank && from.chosen == 0 && to.chosen == 0);
    for (int i = 0; i < n_found; i++) {
        char line[160];
        expect(strcmp(found[i].name, "mpi (host memory)") == 0 && found[i].seconds[2] > 0);
        if (w->rank == 0)
            printf("%s\n", gr_link_result_text(&found[i], line, sizeof line));
    }
    if (w->rank == 0)
        printf("tested in %.1f ms\n", gr_seconds_since(start) * 1e3);
    gr_free(found);
    gr_link_close(&in.link), gr_link_close(&out.link);
}

static void traffic(void)
{
    static const struct gr_link_opt wraps[] = {{.sync = true}, {.delay_ns = 300000}};
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct traffic t = {seed, 12, seed % 2 ? 5000 : 300000, seed % 2, LIMIT};
        bool one_clock = w->ranks[w->rank].n_local == w->n_rank;
        w->wrap = seed < 3 || !one_clock ? NULL : &wraps[seed - 3];
        expect(traffic_rank(w, &t) == 0);
    }
    w->wrap = NULL;
}

/* When all are there the last rank loses the first: every wait of every rank ends, with one reason.
 */
static void lost(void)
{
    int32_t last = w->n_rank - 1;
    char buf = 0;
    struct gr_request r = {0}, s = {0};
    struct gr_link *never = NULL;
    for (int32_t i = 0; i < last; i++) {
        struct gr_link *l =
            w->rank == i || w->rank == last ? open_link(GR_LANE_RESULT, i, last) : NULL;
        if (w->rank == i)
            expect(gr_link_send(l, &buf, 1, &s) == 0 && gr_link_wait(l, &s, INT64_MAX) == 0);
        if (w->rank == last)
            expect(gr_link_recv(l, &buf, 1, &r) == 0 && gr_link_wait(l, &r, INT64_MAX) == 0);
        gr_link_close(&l);
    }
    never = open_link(GR_LANE_TENSOR, w->rank == last ? 0 : last, w->rank);
    expect(gr_link_recv(never, &buf, 1, &r) == 0);
    if (w->rank == last)
        gr_world_lose(w, 0, "told to be");
    expect(gr_link_wait(never, &r, gr_now_ns() + LIMIT) == GR_E_PEER_LOST);
    expect(strncmp(gr_error(), "rank 0 (", 8) == 0 && strstr(gr_error(), "told to be"));
    gr_link_close(&never);
}

int main(int argc, char **argv)
{
    bool lose = argc > 1 && strcmp(argv[1], "lose") == 0;
    expect(gr_world_open(&w) == 0);
    if (argc > 1 && strcmp(argv[1], "alone") == 0) {
        expect(!w && gr_world_close(&w, 5) == 5);
        printf("alone\n");
        return 0;
    }
    expect(w);
    int32_t rank = w->rank, n_rank = w->n_rank;
    struct gr_world *second;
    expect(gr_world_open(&second) == GR_E_IO && !second && strstr(gr_error(), "close that first"));
    facts();
    ring();
    many_in_flight();
    deadlines();
    goes_by_itself();
    traffic();
    chain();
    if (lose)
        lost();
    int64_t start = gr_now_ns();
    int code = gr_world_close(&w, 0);
    expect(!w && gr_now_ns() - start < 8 * S);
    expect(lose ? code != 0 : code == 0);
    expect(gr_alloc_held(NULL) == 0);
    printf("rank %d of %d: good\n", rank, n_rank);
    fflush(stdout);
    sleep(lose); /* the first that ends without having ended MPI takes the others along */
    _exit(0);
}
