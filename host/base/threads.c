#include "base/threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/cpus.h"
#include "base/log.h"
#include "base/pinning.h"
#include "gr/status.h"

/* A value whose change other threads wait for. A waiter polls it first (on an idle machine the
 * others are microseconds away), then sleeps: on a busy one they may wait for a processor, and
 * sleeping frees one. */
struct signal {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t asleep; /* waiters */
};

struct gr_threads {
    int n;        /* threads, the caller included */
    int n_active; /* threads of the run in progress */
    void (*fn)(void *, int, int);
    void *arg;
    bool stop;
    _Atomic int64_t poll_ns; /* time that a waiter polls; adapts */
    int64_t most_poll_ns;
    struct signal started; /* runs */
    struct signal pending; /* counts workers that have not finished the run */
    struct signal passed;  /* counts barriers passed */
    _Atomic int arrived;   /* threads at the barrier */
    const struct gr_pinning *pinning;
    int prio;
    _Atomic int no_pinning, no_prio; /* errno of a refusal */
    pthread_t *thread;               /* [n - 1] */
    struct worker *worker;
};

struct worker {
    struct gr_threads *pool;
    int index;
};

/* Number of polls between two readings of the clock. */
#define POLLS 64

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Polls for a value other than `seen`; returns the last value read. The polling time adapts:
 * polling in vain means that other processes use our processors, and halves it; a success lengthens
 * it by 1/32 of the maximum. */
static uint32_t poll_for_change(struct gr_threads *t, struct signal *s, uint32_t seen)
{
    uint32_t now = atomic_load_explicit(&s->value, memory_order_acquire);
    int64_t poll_ns = atomic_load_explicit(&t->poll_ns, memory_order_relaxed), until = 0, at = 0;
    while (now == seen && poll_ns && at <= until) {
        for (int i = 0; i < POLLS && now == seen; i++) {
            relax();
            now = atomic_load_explicit(&s->value, memory_order_acquire);
        }
        at = gr_now_ns();
        until = until ? until : at + poll_ns;
    }
    int64_t most = t->most_poll_ns,
            next = now == seen ? GR_MAX(poll_ns / 2, most / 32) : GR_MIN(poll_ns + most / 32, most);
    if (next != poll_ns)
        atomic_store_explicit(&t->poll_ns, next, memory_order_relaxed);
    return now;
}

/* A sleeper increments `asleep` before the kernel compares the value, and a writer reads `asleep`
 * after changing the value: one of the two sees the other, so no wake-up is lost. */
static uint32_t wait_for_change(struct gr_threads *t, struct signal *s, uint32_t seen)
{
    uint32_t now = poll_for_change(t, s, seen);
    if (now != seen)
        return now;
    atomic_fetch_add(&s->asleep, 1);
    while ((now = atomic_load(&s->value)) == seen)
        syscall(SYS_futex, &s->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&s->asleep, 1);
    return now;
}

/* Wakes all sleepers; called after the value has changed. */
static void wake(struct signal *s)
{
    if (atomic_load(&s->asleep))
        syscall(SYS_futex, &s->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* ---- where threads run ---- */

static void apply_pinning(void *arg, int i, int n)
{
    static const struct {
        int policy, priority;
    } of[] = {
        {SCHED_BATCH, 0}, {SCHED_OTHER, 0}, {SCHED_FIFO, 40}, {SCHED_FIFO, 80}, {SCHED_FIFO, 90}};
    struct gr_threads *t = arg;
    (void)n;
    if (t->pinning && !gr_pinning_apply(t->pinning, i))
        atomic_store(&t->no_pinning, errno);
    struct sched_param p = {.sched_priority = of[t->prio + 1].priority};
    if (t->prio && sched_setscheduler(0, of[t->prio + 1].policy, &p) != 0)
        atomic_store(&t->no_prio, errno);
}

/* Affinity and scheduling of the caller before it became thread 0. */
struct before {
    struct gr_cpus cpus;
    bool has_cpus;
    int policy;
    struct sched_param param;
};

static void enter(struct gr_threads *t, struct before *b)
{
    b->has_cpus = t->pinning && gr_cpus_allowed(&b->cpus);
    b->policy = t->prio ? sched_getscheduler(0) : -1;
    if (b->policy >= 0 && sched_getparam(0, &b->param) != 0)
        b->policy = -1;
    apply_pinning(t, 0, 1);
}

static void leave(const struct before *b)
{
    if (b->has_cpus)
        (void)gr_cpus_run_on(&b->cpus);
    if (b->policy >= 0)
        (void)sched_setscheduler(0, b->policy, &b->param);
}

static void say_refused(const struct gr_threads *t)
{
    if (t->no_pinning)
        gr_log(GR_LOG_WARN, "threads could not be placed (%s); they run where the system puts them",
               strerror(t->no_pinning));
    if (t->no_prio)
        gr_log(GR_LOG_WARN,
               "priority %d was refused (%s); threads keep theirs. Real time takes CAP_SYS_NICE or "
               "a limit (ulimit -r)",
               t->prio, strerror(t->no_prio));
}

/* ---- runs ---- */

static void *worker_main(void *p)
{
    struct worker *w = p;
    struct gr_threads *t = w->pool;
    for (uint32_t seen = 0;;) {
        seen = wait_for_change(t, &t->started, seen);
        if (t->stop)
            return NULL;
        if (w->index < t->n_active)
            t->fn(t->arg, w->index, t->n_active);
        if (atomic_fetch_sub(&t->pending.value, 1) == 1)
            wake(&t->pending);
    }
}

static void start_run(struct gr_threads *t)
{
    atomic_fetch_add(&t->started.value, 1);
    wake(&t->started);
}

int gr_threads_new(struct gr_threads **out, int n, const struct gr_threads_opt *opt)
{
    static const struct gr_threads_opt usual = {.poll_us = GR_THREADS_POLL_US};
    opt = opt ? opt : &usual;
    *out = NULL;
    if (n < 1 || n > GR_THREADS_MAX)
        return gr_fail(GR_E_INVALID, "%d threads asked for; 1 to %d are possible", n,
                       GR_THREADS_MAX);
    struct gr_threads *t = gr_calloc(1, sizeof *t);
    if (!t)
        return GR_E_NOMEM_HOST;
    t->n = 1;
    t->poll_ns = t->most_poll_ns = INT64_C(1000) * GR_MAX(opt->poll_us, 0);
    t->pinning = opt->pinning && opt->pinning->pinned ? opt->pinning : NULL;
    t->prio = GR_MAX(-1, GR_MIN(opt->prio, 3));
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
    if (!rc && (t->pinning || t->prio)) {
        gr_threads_run(t, t->n, apply_pinning, t);
        say_refused(t);
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

static void run_all(struct gr_threads *t, void (*fn)(void *, int, int), void *arg)
{
    t->fn = fn, t->arg = arg;
    atomic_store(&t->pending.value, (uint32_t)t->n - 1);
    start_run(t);
    fn(arg, 0, t->n_active);
    for (uint32_t n; (n = atomic_load_explicit(&t->pending.value, memory_order_acquire));)
        wait_for_change(t, &t->pending, n);
}

void gr_threads_run(struct gr_threads *t, int n, void (*fn)(void *, int, int), void *arg)
{
    struct before before;
    bool pinning = t->pinning || t->prio;
    t->n_active = GR_MAX(1, GR_MIN(n, t->n));
    if (pinning)
        enter(t, &before);
    if (t->n_active == 1)
        fn(arg, 0, 1);
    else
        run_all(t, fn, arg);
    if (pinning)
        leave(&before);
}

void gr_threads_barrier(struct gr_threads *t)
{
    if (t->n_active == 1)
        return;
    uint32_t passed = atomic_load_explicit(&t->passed.value, memory_order_acquire);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) == t->n_active - 1) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_fetch_add(&t->passed.value, 1);
        wake(&t->passed);
        return;
    }
    wait_for_change(t, &t->passed, passed);
}

int gr_threads_online(void)
{
    struct gr_cpus set;
    int quota = gr_cpus_quota("");
    long n = gr_cpus_allowed(&set) ? gr_cpus_count(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    n = quota ? GR_MIN(n, quota) : n;
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
    gr_free(t->thread);
    gr_free(t->worker);
    gr_free(t);
    *out = NULL;
}
