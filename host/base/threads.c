#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"

/* Waiting spins a little (a node of a small model takes microseconds), then sleeps. */
#define SPIN 4000

struct gr_threads {
    int n;        /* threads, the caller included */
    int n_active; /* of the run in progress */
    void (*fn)(void *, int, int);
    void *arg;
    bool stop;
    _Atomic uint64_t generation; /* runs started */
    _Atomic int pending;         /* workers that have not finished the run */
    _Atomic int arrived;         /* at the barrier */
    _Atomic uint64_t phase;      /* barriers passed */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t *thread; /* [n - 1] */
    struct worker *worker;
};

struct worker {
    struct gr_threads *pool;
    int index;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static uint64_t wait_for_run(struct gr_threads *t, uint64_t seen)
{
    uint64_t g;
    for (int i = 0; i < SPIN; i++) {
        if ((g = atomic_load_explicit(&t->generation, memory_order_acquire)) != seen)
            return g;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    while ((g = atomic_load_explicit(&t->generation, memory_order_acquire)) == seen)
        pthread_cond_wait(&t->wake, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return g;
}

static void *worker_main(void *p)
{
    struct worker *w = p;
    struct gr_threads *t = w->pool;
    for (uint64_t seen = 0;;) {
        seen = wait_for_run(t, seen);
        if (t->stop)
            return NULL;
        if (w->index < t->n_active)
            t->fn(t->arg, w->index, t->n_active);
        atomic_fetch_sub_explicit(&t->pending, 1, memory_order_acq_rel);
    }
}

static void start_run(struct gr_threads *t)
{
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add_explicit(&t->generation, 1, memory_order_acq_rel);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

int gr_threads_new(struct gr_threads **out, int n)
{
    *out = NULL;
    if (n < 1 || n > GR_THREADS_MAX)
        return gr_fail(GR_E_INVALID, "%d threads asked for; 1 to %d are possible", n,
                       GR_THREADS_MAX);
    struct gr_threads *t = gr_calloc(1, sizeof *t);
    if (!t)
        return GR_E_NOMEM_HOST;
    t->n = 1;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    t->thread = gr_calloc((size_t)n, sizeof *t->thread);
    t->worker = gr_calloc((size_t)n, sizeof *t->worker);
    int rc = t->thread && t->worker ? 0 : GR_E_NOMEM_HOST;
    for (int i = 1; i < n && !rc; i++) {
        t->worker[i - 1] = (struct worker){t, i};
        if (pthread_create(&t->thread[i - 1], NULL, worker_main, &t->worker[i - 1]) != 0)
            rc = gr_fail(GR_E_NOMEM_HOST, "thread %d of %d could not be started", i + 1, n);
        else
            t->n++;
    }
    if (rc)
        gr_threads_free(&t);
    *out = t;
    return rc;
}

int gr_threads_count(const struct gr_threads *t)
{
    return t->n;
}

void gr_threads_run(struct gr_threads *t, int n, void (*fn)(void *, int, int), void *arg)
{
    t->n_active = GR_MAX(1, GR_MIN(n, t->n));
    if (t->n_active == 1) {
        fn(arg, 0, 1);
        return;
    }
    t->fn = fn, t->arg = arg;
    atomic_store_explicit(&t->pending, t->n - 1, memory_order_release);
    start_run(t);
    fn(arg, 0, t->n_active);
    for (unsigned i = 0; atomic_load_explicit(&t->pending, memory_order_acquire); i++) {
        if (i < SPIN)
            relax();
        else
            sched_yield();
    }
}

void gr_threads_barrier(struct gr_threads *t)
{
    if (t->n_active == 1)
        return;
    uint64_t phase = atomic_load_explicit(&t->phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) == t->n_active - 1) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&t->phase, 1, memory_order_acq_rel);
        return;
    }
    for (unsigned i = 0; atomic_load_explicit(&t->phase, memory_order_acquire) == phase; i++) {
        if (i < SPIN)
            relax();
        else
            sched_yield();
    }
}

int gr_threads_online(void)
{
    cpu_set_t set;
    long n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                         : sysconf(_SC_NPROCESSORS_ONLN);
    return (int)GR_MAX(1, GR_MIN(n, GR_THREADS_MAX));
}

void gr_threads_free(struct gr_threads **out)
{
    struct gr_threads *t = *out;
    if (!t)
        return;
    t->stop = true;
    start_run(t);
    for (int i = 0; i < t->n - 1; i++)
        pthread_join(t->thread[i], NULL);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->wake);
    gr_free(t->thread);
    gr_free(t->worker);
    gr_free(t);
    *out = NULL;
}
