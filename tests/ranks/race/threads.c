/* The thread pool under ThreadSanitizer, which Criterion cannot run under: everything that passes
 * between threads here is plain memory, so that only the pool's own ordering keeps it from being a
 * race. Exits 0 when all sums are right; a race ends the program by itself. */
#include <stdio.h>
#include <time.h>

#include "base/pinning.h"
#include "base/threads.h"
#include "gr/status.h"

#define N 4
#define ROUNDS 60
#define BARRIERS 5 /* of a round, times three */

struct job {
    struct gr_threads *pool;
    long input;     /* written by the caller before a run */
    long part[N];   /* each thread its own, before the barrier */
    long sum[N];    /* each thread its own, over all parts, after it */
    int n_run;      /* threads of the run, as each of them was told */
    long next_part; /* written by thread 0 between two barriers, read by all after */
};

static void work(void *arg, int i, int n)
{
    struct job *j = arg;
    if (i == 0)
        j->n_run = n;
    for (int k = 0; k < BARRIERS; k++) {
        j->part[i] = j->input + i;
        gr_threads_barrier(j->pool);
        j->sum[i] = 0;
        for (int other = 0; other < n; other++)
            j->sum[i] += j->part[other];
        gr_threads_barrier(j->pool);
        if (i == 0)
            j->next_part = j->sum[n - 1];
        gr_threads_barrier(j->pool);
        j->part[i] = j->next_part;
    }
}

/* One run of n threads; false when a thread saw something else than the others wrote. */
static int run(struct job *j, long input, int n)
{
    j->input = input;
    gr_threads_run(j->pool, n, work, j);
    long want = 0;
    for (int i = 0; i < n; i++)
        want += input + i;
    int good = j->n_run == n && j->next_part == want;
    for (int i = 0; i < n; i++)
        good = good && j->sum[i] == want && j->part[i] == want;
    return good;
}

static int try(int size, const struct gr_threads_opt *opt)
{
    struct job j = {0};
    if (gr_threads_new(&j.pool, size, opt)) {
        fprintf(stderr, "%s\n", gr_error());
        return 0;
    }
    for (int k = 0; k < ROUNDS; k++) {
        if (!run(&j, k * 1000L, 1 + k % size)) {
            fprintf(stderr, "round %d with %d of %d threads: wrong sums\n", k, 1 + k % size, size);
            return 0;
        }
        if (k % 20 == 0) /* long enough for the others to fall asleep */
            nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    gr_threads_free(&j.pool);
    return 1;
}

int main(void)
{
    /* Pinned, at a lower priority, and asleep whenever they wait. */
    static struct gr_pinning pinning = {
        .n = N, .n_node = 1, .pinned = true, .cpu = {-1, -1, -1, -1}};
    const struct gr_threads_opt asleep = {.pinning = &pinning, .prio = -1, .poll_us = 0};
    if (!gr_cpus_allowed(&pinning.cpus[0]))
        return 1;
    for (int size = 1; size <= N; size++)
        if (!try(size, NULL) || !try(size, &asleep))
            return 1;
    /* Threads that are told to end before they have begun. */
    for (int k = 0; k < 20; k++) {
        struct gr_threads *pool;
        if (gr_threads_new(&pool, N, NULL))
            return 1;
        gr_threads_free(&pool);
    }
    return 0;
}
