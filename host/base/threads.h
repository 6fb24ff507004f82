/* A pool of threads that run one function together, as the CPU backend's nodes need it. */
#ifndef GR_BASE_THREADS_H
#define GR_BASE_THREADS_H

#include <stdint.h>

struct gr_threads;

#define GR_THREADS_MAX 512

struct gr_seats;

struct gr_threads_opt {
    const struct gr_seats *seats; /* of at least n threads, living as long; NULL: where the system
                                     puts them. The caller's own affinity holds again after a run */
    int prio;                     /* -1 low (batch), 0 as it is, 1 to 3 real time: 40, 80, 90 */
    int poll_us;                  /* how long a waiter polls at most before it sleeps */
};
#define GR_THREADS_POLL_US 50

/* Starts n - 1 workers (the caller is thread 0), 1 <= n <= GR_THREADS_MAX. opt NULL: no seats, no
 * priority, GR_THREADS_POLL_US. Seats or priorities that the system refuses are said in the log,
 * and the threads run without. */
int gr_threads_new(struct gr_threads **out, int n, const struct gr_threads_opt *opt);
int gr_threads_count(const struct gr_threads *t);

/* Runs fn(arg, i, n) on every thread i of the first n = min(n, count) ones and returns when all are
 * done. Inside fn, gr_threads_barrier(t) waits for all n. One caller at a time. */
void gr_threads_run(struct gr_threads *t, int n, void (*fn)(void *arg, int i, int n), void *arg);
void gr_threads_barrier(struct gr_threads *t);

/* Number of processors this process may run on: those of its affinity, and no more than its control
 * group grants it time of; at most GR_THREADS_MAX. */
int gr_threads_online(void);

void gr_threads_free(struct gr_threads **t);

#endif
