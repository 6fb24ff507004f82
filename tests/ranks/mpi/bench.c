/* Speed of links: one-way times of messages of many lengths, as one JSON object a line.
 *   bench_links [--threads N]   links between N threads (2), or under mpirun between processes
 * Rank 0 and every other rank take turns; what is said is half of the way there and back. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "gpurun.h"
#include "link/link.h"

#define MAX_ROUND 2000
#define LENGTH_NS (150 * (int64_t)1000000) /* for each length */
#define LIMIT_NS (30 * (int64_t)1000000000)

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int pass(struct gr_link *l, void *buf, size_t n)
{
    struct gr_request r = {0};
    bool sends = l->from == l->world->rank;
    int rc = sends ? gr_link_send(l, buf, n, &r) : gr_link_recv(l, buf, n, &r);
    return rc ? rc : gr_link_wait(l, &r, gr_now_ns() + LIMIT_NS);
}

/* There and back, and after every few rounds a byte that says whether it goes on. */
static int rounds_of(struct gr_link *out, struct gr_link *in, void *buf, size_t n, double *seconds,
                     int *n_round)
{
    bool leads = out->world->rank == 0;
    int64_t end = gr_now_ns() + LENGTH_NS;
    int rc = 0, k = 0, block = n < 1 << 20 ? 20 : 1;
    for (char more = 1; more && !rc;) {
        for (int i = 0; i < block && !rc; i++, k++) {
            int64_t start = gr_now_ns();
            rc = pass(leads ? out : in, buf, n);
            if (!rc)
                rc = pass(leads ? in : out, buf, n);
            seconds[k % MAX_ROUND] = gr_seconds_since(start) / 2;
        }
        if (leads)
            more = k < MAX_ROUND && gr_now_ns() < end;
        if (!rc)
            rc = pass(leads ? out : in, &more, 1);
    }
    *n_round = k;
    return rc;
}

static void print(const struct gr_world *w, int32_t other, size_t n, double *seconds, int n_round)
{
    qsort(seconds, (size_t)n_round, sizeof *seconds, by_size);
    double p50 = seconds[n_round / 2];
    bool here = strcmp(w->ranks[0].host, w->ranks[other].host) == 0;
    printf("{\"world\": \"%s\", \"from\": 0, \"to\": %d, \"same_host\": %s, \"bytes\": %zu, "
           "\"rounds\": %d, \"min_us\": %.2f, \"p50_us\": %.2f, \"p99_us\": %.2f, "
           "\"gb_per_s\": %.3f}\n",
           w->api->name, other, here ? "true" : "false", n, n_round, seconds[0] * 1e6, p50 * 1e6,
           seconds[n_round * 99 / 100] * 1e6, (double)n / p50 * 1e-9);
    fflush(stdout);
}

static int measure(struct gr_world *w)
{
    static const size_t lengths[] = {8,       1024,    8192,    16384,   65536,
                                     1 << 18, 1 << 20, 4 << 20, 16 << 20};
    void *buf = gr_calloc(16 << 20, 1);
    double *seconds = gr_calloc(MAX_ROUND, sizeof *seconds);
    int rc = buf && seconds ? 0 : GR_E_NOMEM_HOST;
    for (int32_t other = 1; other < w->n_rank && !rc; other++) {
        struct gr_link *out = NULL, *in = NULL;
        int32_t peer = w->rank ? 0 : other;
        if (w->rank != 0 && w->rank != other)
            continue;
        rc = gr_world_link(w, GR_LANE_DATA, w->rank, peer, &out);
        if (!rc)
            rc = gr_world_link(w, GR_LANE_DATA, peer, w->rank, &in);
        for (size_t i = 0; i < GR_COUNT(lengths) && !rc; i++) {
            int n_round;
            rc = rounds_of(out, in, buf, lengths[i], seconds, &n_round);
            if (!rc && w->rank == 0)
                print(w, other, lengths[i], seconds, n_round);
        }
        gr_link_close(&out), gr_link_close(&in);
    }
    gr_free(buf), gr_free(seconds);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", w->rank, gr_error_message());
    return rc;
}

static void *measure_thread(void *arg)
{
    struct gr_world *w = arg;
    int rc = measure(w);
    w->api->close(&w);
    return rc ? arg : NULL;
}

static int measure_threads(int n)
{
    struct gr_world *world[GR_MAX_RANK];
    pthread_t thread[GR_MAX_RANK];
    int rc = gr_world_threads(world, n);
    if (rc) {
        fprintf(stderr, "%s\n", gr_error_message());
        return rc;
    }
    for (int i = 0; i < n; i++)
        pthread_create(&thread[i], NULL, measure_thread, world[i]);
    for (int i = 0; i < n; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        rc |= failed != NULL;
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct gr_world *w;
    int n = argc == 3 && strcmp(argv[1], "--threads") == 0 ? atoi(argv[2]) : 2;
    if (gr_world_open(&w)) {
        fprintf(stderr, "%s\n", gr_error_message());
        return 1;
    }
    if (!w)
        return measure_threads(n) != 0;
    int rc = measure(w);
    return gr_world_close(&w, rc != 0);
}
