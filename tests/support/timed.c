#include "support/timed.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cpu/cpu.h"
#include "gr/status.h"
#include "model/devices.h"

static struct {
    int n;
    int64_t segment_ns;
    bool compute;
} how;

struct timed {
    struct gr_backend base;
    struct gr_backend *cpu;
    int64_t ready_ns; /* when everything queued so far is done */
};

static struct timed *timed_of(struct gr_backend *b)
{
    return (struct timed *)(void *)b;
}

static void wait_for(const struct timed *t)
{
    struct timespec at = {.tv_sec = t->ready_ns / 1000000000, .tv_nsec = t->ready_ns % 1000000000};
    if (t->ready_ns <= gr_now_ns())
        return;
    prctl(PR_SET_TIMERSLACK, 1UL); /* of this thread: not 50 us late */
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL))
        ;
}

/* ---- memory ---- */

static void *timed_alloc(struct gr_backend *b, size_t bytes)
{
    struct gr_backend *cpu = timed_of(b)->cpu;
    void *p = cpu->api->alloc(cpu, bytes);
    if (p)
        (void)cpu->api->clear(cpu, p, bytes);
    return p;
}

static void timed_free(struct gr_backend *b, void *p)
{
    timed_of(b)->cpu->api->free(timed_of(b)->cpu, p);
}

static void *timed_host_alloc(struct gr_backend *b, size_t bytes)
{
    return timed_of(b)->cpu->api->host_alloc(timed_of(b)->cpu, bytes);
}

static void timed_host_free(struct gr_backend *b, void *p)
{
    timed_of(b)->cpu->api->host_free(timed_of(b)->cpu, p);
}

static int timed_clear(struct gr_backend *b, void *dst, size_t bytes)
{
    return timed_of(b)->cpu->api->clear(timed_of(b)->cpu, dst, bytes);
}

static int timed_upload(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    return timed_of(b)->cpu->api->upload(timed_of(b)->cpu, dst, src, bytes);
}

static int timed_download(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    wait_for(timed_of(b));
    return timed_of(b)->cpu->api->download(timed_of(b)->cpu, dst, src, bytes);
}

static int timed_sync(struct gr_backend *b)
{
    wait_for(timed_of(b));
    return 0;
}

/* ---- weights, segments ---- */

static int timed_can_borrow(struct gr_backend *b)
{
    (void)b;
    return 0;
}

static size_t timed_weight_bytes(struct gr_backend *b, const struct gr_ten *host, bool matrix)
{
    return timed_of(b)->cpu->api->weight_bytes(timed_of(b)->cpu, host, matrix);
}

static int timed_weight_upload(struct gr_backend *b, const struct gr_ten *host, bool matrix,
                               void *dst, struct gr_ten *out)
{
    return timed_of(b)->cpu->api->weight_upload(timed_of(b)->cpu, host, matrix, dst, out);
}

static size_t timed_segment_scratch(struct gr_backend *b, const struct gr_segment *s,
                                    const struct gr_device_opt *opt)
{
    return timed_of(b)->cpu->api->segment_scratch(timed_of(b)->cpu, s, opt);
}

static int timed_segment_new(struct gr_backend *b, const struct gr_segment *s, void **exec)
{
    return timed_of(b)->cpu->api->segment_new(timed_of(b)->cpu, s, exec);
}

static int timed_segment_run(struct gr_backend *b, void *exec, gr_tap_fn *tap_fn, void *user)
{
    struct timed *t = timed_of(b);
    int64_t now = gr_now_ns();
    t->ready_ns = (t->ready_ns > now ? t->ready_ns : now) + how.segment_ns;
    return how.compute ? t->cpu->api->segment_run(t->cpu, exec, tap_fn, user) : 0;
}

static void timed_segment_free(struct gr_backend *b, void **exec)
{
    timed_of(b)->cpu->api->segment_free(timed_of(b)->cpu, exec);
}

static int timed_set_timer(struct gr_backend *b, gr_time_fn *fn, void *user)
{
    return timed_of(b)->cpu->api->set_timer(timed_of(b)->cpu, fn, user);
}

static void timed_set_cancel(struct gr_backend *b, const _Atomic int *flag)
{
    timed_of(b)->cpu->api->set_cancel(timed_of(b)->cpu, flag);
}

static void timed_close(struct gr_backend **b)
{
    struct timed *t = timed_of(*b);
    t->cpu->api->close(&t->cpu);
    gr_free(t);
    *b = NULL;
}

static const struct gr_backend_api api = {
    .name = "TIMED",
    .alloc = timed_alloc,
    .free = timed_free,
    .host_alloc = timed_host_alloc,
    .host_free = timed_host_free,
    .clear = timed_clear,
    .upload = timed_upload,
    .uploaded = timed_sync,
    .download = timed_download,
    .collect = timed_download,
    .sync = timed_sync,
    .can_borrow = timed_can_borrow,
    .weight_bytes = timed_weight_bytes,
    .weight_upload = timed_weight_upload,
    .segment_scratch = timed_segment_scratch,
    .segment_new = timed_segment_new,
    .segment_run = timed_segment_run,
    .segment_free = timed_segment_free,
    .set_timer = timed_set_timer,
    .set_cancel = timed_set_cancel,
    .close = timed_close,
};

/* ---- the kind ---- */

static int kind_count(const char **why, bool *broken)
{
    *why = "there are none";
    *broken = false;
    return how.n;
}

static int kind_info(int i, struct gr_device_info *info)
{
    *info = (struct gr_device_info){.total_bytes = 1 << 30, .free_bytes = 1 << 30};
    snprintf(info->name, sizeof info->name, "TIMED%d", i);
    snprintf(info->description, sizeof info->description, "a device of the tests");
    return 0;
}

static int kind_open(struct gr_backend **out, int i, const struct gr_device_opt *opt)
{
    struct timed *t = gr_calloc(1, sizeof *t);
    (void)i, (void)opt;
    *out = NULL;
    if (!t)
        return GR_E_NOMEM_HOST;
    t->base.api = &api;
    int rc = gr_cpu_open(&t->cpu, 1, 1, GR_CPU_AUTO);
    if (rc)
        gr_free(t);
    else
        *out = &t->base;
    return rc;
}

void timed_use(int n, int64_t segment_ns, bool compute)
{
    static const struct gr_device_kind kind = {
        .name = "TIMED", .count = kind_count, .info = kind_info, .open = kind_open};
    static const struct gr_device_kind *const kinds[] = {&kind};
    how.n = n, how.segment_ns = segment_ns, how.compute = compute;
    gr_device_kinds_set(kinds, 1);
}
