/* A pool of threads that run one function together, for the nodes of the CPU backend. */
#ifndef GR_BASE_THREADS_H
#define GR_BASE_THREADS_H

#include <stdint.h>

struct gr_threads;

#define GR_THREADS_MAX 512

struct gr_pinning;

struct gr_threads_opt {
    const struct gr_pinning *pinning; /* of at least n threads; must outlive the pool; NULL: threads
                                     run where the system puts them. The caller's own affinity is
                                     restored after each run */
    int prio;                         /* -1: low (SCHED_BATCH), 0: unchanged, 1 to 3: real time
                                         (SCHED_FIFO 40, 80, 90) */
    int poll_us;                      /* longest time that a waiter polls before it sleeps */
};
#define GR_THREADS_POLL_US 50

/* Starts n - 1 workers (the caller is thread 0), 1 <= n <= GR_THREADS_MAX. opt NULL: no pinning, no
 * priority, GR_THREADS_POLL_US. Pinning or a priority that the system refuses is logged, and the
 * threads run without it. */
int gr_threads_new(struct gr_threads **out, int n, const struct gr_threads_opt *opt);
int gr_threads_count(const struct gr_threads *t);

/* Runs fn(arg, i, n) on the first n = min(n, count) threads, i in [0, n), and returns when all are
 * done. Inside fn, gr_threads_barrier(t) waits for all n. One caller at a time. */
void gr_threads_run(struct gr_threads *t, int n, void (*fn)(void *arg, int i, int n), void *arg);
void gr_threads_barrier(struct gr_threads *t);

/* Returns the number of processors this process may use: those of its affinity, limited by the CPU
 * quota of its control group and by GR_THREADS_MAX. */
int gr_threads_online(void);

void gr_threads_free(struct gr_threads **t);

#endif
