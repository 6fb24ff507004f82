#include "models/fake.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "cpu/cpu.h"
#include "gr/status.h"

enum { MAX_BLOCK = 256, MAX_QUEUE = 256, MAX_OFFLOAD = 64 };

struct block {
    char *p;
    size_t bytes, mapped;
};

static struct device {
    uint64_t total, used, peak;
    struct block block[MAX_BLOCK];
    const char *unusable;
    int64_t n_run, n_offload, n_coming, n_wait;
    bool open; /* its memory can be accessed, until the call of the backend returns */
} device[FAKE_MAX];
static int n_device;
static int64_t n_alloc;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Queued work: an upload, a segment, or a download. */
struct job {
    void *dst, *exec;
    bool back;
    const void *src;
    char *copy;
    size_t bytes;
};

/* A weight on its way. `there`: it came as early as it may. */
struct offload {
    const struct gr_ten *host;
    void *dst;
    bool matrix, last, there;
};

struct fake {
    struct gr_backend base;
    struct gr_backend *cpu;
    struct device *d;
    struct block pinned[MAX_BLOCK];
    struct job job[MAX_QUEUE];
    int n_job;
    struct offload offload[MAX_OFFLOAD];
    int n_offload;
    int64_t n_asked;
    const void *asked[MAX_OFFLOAD]; /* by the host's addresses, what was asked for last */
    uint64_t scratch;
    bool timed;
};

static struct fake *fake_of(struct gr_backend *b)
{
    return (struct fake *)(void *)b;
}

static void protect(struct device *d, int how)
{
    for (int i = 0; i < MAX_BLOCK; i++)
        if (d->block[i].p)
            cr_assert_eq(mprotect(d->block[i].p, d->block[i].mapped, how), 0);
}

static void enter(void)
{
    pthread_mutex_lock(&lock);
}

/* Makes the device's memory accessible until leave(). */
static void access_memory(struct fake *f)
{
    if (!f->d->open)
        protect(f->d, PROT_READ | PROT_WRITE);
    f->d->open = true;
}

static int leave(struct fake *f, int rc)
{
    if (f->d->open)
        protect(f->d, PROT_NONE);
    f->d->open = false;
    pthread_mutex_unlock(&lock);
    return rc;
}

static bool holds(const struct block *block, const void *p, size_t bytes)
{
    for (int i = 0; i < MAX_BLOCK; i++)
        if (block[i].p && (const char *)p >= block[i].p &&
            (const char *)p + bytes <= block[i].p + block[i].bytes)
            return true;
    return false;
}

/* ---- the queue ---- */

static int run_jobs(struct fake *f, int n)
{
    int rc = 0;
    if (n)
        access_memory(f);
    for (int i = 0; i < n; i++) {
        struct job *j = &f->job[i];
        if (j->exec && !rc)
            rc = f->cpu->api->segment_run(f->cpu, j->exec, NULL, NULL);
        else if (!j->exec && !rc)
            memcpy(j->dst, j->copy ? j->copy : j->src, j->bytes);
        gr_free(j->copy);
    }
    memmove(f->job, f->job + n, (size_t)(f->n_job - n) * sizeof *f->job);
    f->n_job -= n;
    return rc;
}

static int flush(struct fake *f)
{
    return run_jobs(f, f->n_job);
}

static int queue(struct fake *f, struct job j)
{
    int rc = f->n_job == MAX_QUEUE ? flush(f) : 0;
    f->job[f->n_job++] = j;
    return rc;
}

/* ---- memory ---- */

static int count(struct device *d, uint64_t bytes)
{
    if (d->used + bytes > d->total)
        return gr_fail(GR_E_NOMEM_DEV, "FAKE%d: out of memory: %llu bytes", (int)(d - device),
                       (unsigned long long)bytes);
    d->used += bytes;
    d->peak = GR_MAX(d->peak, d->used);
    return 0;
}

static struct block *free_block(struct block *block)
{
    int i = 0;
    while (i < MAX_BLOCK && block[i].p)
        i++;
    cr_assert(i < MAX_BLOCK);
    return &block[i];
}

static void *fake_alloc(struct gr_backend *b, size_t bytes)
{
    struct fake *f = fake_of(b);
    struct block *at = NULL;
    enter();
    n_alloc++;
    if (!count(f->d, bytes)) {
        at = free_block(f->d->block);
        *at = (struct block){NULL, bytes, GR_PAD(GR_MAX(bytes, 1), (size_t)4096)};
        at->p = mmap(NULL, at->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        cr_assert(at->p != MAP_FAILED);
        memset(at->p, 0xff, at->mapped);
        cr_assert_eq(mprotect(at->p, at->mapped, PROT_NONE), 0);
    }
    leave(f, 0);
    return at ? at->p : NULL;
}

static void fake_free(struct gr_backend *b, void *p)
{
    struct fake *f = fake_of(b);
    enter();
    (void)flush(f);
    for (int i = 0; p && i < MAX_BLOCK; i++)
        if (f->d->block[i].p == p) {
            f->d->used -= f->d->block[i].bytes;
            munmap(p, f->d->block[i].mapped);
            f->d->block[i] = (struct block){0};
            p = NULL;
        }
    cr_assert_null(p);
    leave(f, 0);
}

static void *fake_host_alloc(struct gr_backend *b, size_t bytes)
{
    struct fake *f = fake_of(b);
    struct block *at = free_block(f->pinned);
    n_alloc++;
    *at = (struct block){gr_calloc(1, bytes), bytes, 0};
    return at->p;
}

static void fake_host_free(struct gr_backend *b, void *p)
{
    struct fake *f = fake_of(b);
    enter();
    (void)flush(f);
    leave(f, 0);
    for (int i = 0; i < MAX_BLOCK; i++)
        if (p && f->pinned[i].p == p) {
            f->pinned[i] = (struct block){0};
            gr_free(p);
            return;
        }
    cr_assert_null(p);
}

static int fake_clear(struct gr_backend *b, void *dst, size_t bytes)
{
    struct fake *f = fake_of(b);
    enter();
    int rc = flush(f);
    access_memory(f);
    memset(dst, 0, bytes);
    return leave(f, rc);
}

static int fake_upload(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    struct fake *f = fake_of(b);
    struct job j = {.dst = dst, .src = src, .bytes = bytes};
    enter();
    cr_assert(holds(f->d->block, dst, bytes), "an upload to what is not the device's");
    if (!holds(f->pinned, src, bytes)) {
        j.copy = gr_calloc(1, GR_MAX(bytes, 1));
        memcpy(j.copy, src, bytes);
    }
    return leave(f, queue(f, j));
}

/* As far as it must: what is queued behind the last upload is not run. */
static int fake_uploaded(struct gr_backend *b)
{
    struct fake *f = fake_of(b);
    enter();
    int n = f->n_job;
    while (n > 0 && (f->job[n - 1].exec || f->job[n - 1].copy || f->job[n - 1].back))
        n--;
    return leave(f, run_jobs(f, n));
}

static int fake_download(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    struct fake *f = fake_of(b);
    enter();
    int rc = flush(f);
    f->d->n_wait++;
    cr_assert(holds(f->d->block, src, bytes), "a download of what is not the device's");
    access_memory(f);
    if (!rc)
        memcpy(dst, src, bytes);
    return leave(f, rc);
}

/* True when queued work still reads these bytes of the host. */
static bool is_read(const struct fake *f, const void *p, size_t bytes)
{
    for (int i = 0; i < f->n_job; i++) {
        const char *src = f->job[i].src;
        if (src && src < (const char *)p + bytes && (const char *)p < src + f->job[i].bytes)
            return true;
    }
    return false;
}

static int fake_collect(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    struct fake *f = fake_of(b);
    enter();
    cr_assert(holds(f->d->block, src, bytes), "bytes of what is not the device's");
    if (!is_read(f, dst, bytes))
        memset(dst, 0xff, bytes);
    return leave(f, queue(f, (struct job){.dst = dst, .src = src, .bytes = bytes, .back = true}));
}

static int bring(struct fake *f, const struct offload *x)
{
    struct gr_ten out;
    access_memory(f);
    return f->cpu->api->weight_upload(f->cpu, x->host, x->matrix, x->dst, &out);
}

/* The first n that are on their way. */
static int bring_some(struct fake *f, int n)
{
    int rc = flush(f);
    for (int i = 0; i < n && !rc; i++)
        rc = f->offload[i].there ? 0 : bring(f, &f->offload[i]);
    f->n_offload -= n;
    f->d->n_coming -= n;
    memmove(f->offload, f->offload + n, (size_t)f->n_offload * sizeof *f->offload);
    return rc;
}

static int fake_sync(struct gr_backend *b)
{
    struct fake *f = fake_of(b);
    enter();
    f->d->n_wait++;
    return leave(f, bring_some(f, f->n_offload));
}

/* ---- weights, segments ---- */

static int fake_can_borrow(struct gr_backend *b)
{
    (void)b;
    return 0;
}

static size_t fake_weight_bytes(struct gr_backend *b, const struct gr_ten *host, bool matrix)
{
    struct fake *f = fake_of(b);
    return f->cpu->api->weight_bytes(f->cpu, host, matrix);
}

static int fake_weight_upload(struct gr_backend *b, const struct gr_ten *host, bool matrix,
                              void *dst, struct gr_ten *out)
{
    struct fake *f = fake_of(b);
    enter();
    access_memory(f);
    return leave(f, f->cpu->api->weight_upload(f->cpu, host, matrix, dst, out));
}

static int groups_coming(const struct fake *f)
{
    int n = 0;
    for (int i = 0; i < f->n_offload; i++)
        n += f->offload[i].last;
    return n;
}

/* Every other weight comes at once, what was queued before being over; the others do when they are
 * waited for. */
static int fake_offload(struct gr_backend *b, const struct gr_ten *host, bool matrix, void *dst,
                        bool last)
{
    struct fake *f = fake_of(b);
    struct offload x = {host, dst, matrix, last, f->n_asked % 2};
    size_t bytes = f->cpu->api->weight_bytes(f->cpu, host ? host : &(struct gr_ten){0}, matrix);
    if (!dst)
        return 0;
    enter();
    cr_assert(holds(f->d->block, dst, bytes), "a weight for what is not the device's");
    cr_assert_lt(groups_coming(f), GR_OFFLOAD_GROUPS);
    cr_assert_lt(f->n_offload, MAX_OFFLOAD);
    int rc = x.there ? flush(f) : 0;
    if (!rc && x.there)
        rc = bring(f, &x);
    f->asked[f->n_asked++ % MAX_OFFLOAD] = host->data;
    f->offload[f->n_offload++] = x, f->d->n_coming++;
    return leave(f, rc);
}

static int fake_offload_wait(struct gr_backend *b)
{
    struct fake *f = fake_of(b);
    int n = 0;
    enter();
    while (n < f->n_offload && !f->offload[n].last)
        n++;
    cr_assert_lt(n, f->n_offload, "no weights are on their way");
    int rc = bring_some(f, n + 1);
    f->d->n_offload++;
    return leave(f, rc);
}

bool fake_asked(struct gr_backend *b, const void *host)
{
    const struct fake *f = fake_of(b);
    for (int i = 0; i < MAX_OFFLOAD; i++)
        if (f->asked[i] == host)
            return true;
    return false;
}

static void fake_offload_end(struct gr_backend *b)
{
    cr_assert_eq(fake_of(b)->n_offload, 0, "weights are on their way");
}

static size_t fake_offload_bytes(struct gr_backend *b)
{
    (void)b;
    return 0;
}

static double fake_offload_rate(struct gr_backend *b)
{
    (void)b;
    return 12e9;
}

static size_t fake_segment_scratch(struct gr_backend *b, const struct gr_segment *s,
                                   const struct gr_device_opt *opt)
{
    struct fake *f = fake_of(b);
    return f->cpu->api->segment_scratch(f->cpu, s, opt);
}

static void check_operands(const struct fake *f, const struct gr_segment *s)
{
    for (int32_t i = 0; i < s->n_node; i++) {
        struct gr_node n = s->node[i];
        for (const struct gr_operand *o = gr_op_info(n.op)->operands; o->role; o++) {
            const struct gr_ten *t = gr_node_ten(&n, o);
            cr_assert(!gr_ten_is(t) || holds(f->d->block, t->data, 1),
                      "%s, layer %d: %s is not in the device's memory", gr_op_info(n.op)->name,
                      n.layer, o->name);
        }
    }
}

static int fake_segment_new(struct gr_backend *b, const struct gr_segment *s, void **exec)
{
    struct fake *f = fake_of(b);
    uint64_t scratch = f->cpu->api->segment_scratch(f->cpu, s, NULL);
    enter();
    int rc = scratch > f->scratch ? count(f->d, scratch - f->scratch) : 0;
    n_alloc += scratch > f->scratch;
    *exec = NULL;
    if (!rc)
        f->scratch = GR_MAX(f->scratch, scratch);
    check_operands(f, s);
    if (!rc)
        rc = f->cpu->api->segment_new(f->cpu, s, exec);
    return leave(f, rc);
}

static int fake_segment_run(struct gr_backend *b, void *exec, gr_tap_fn *tap_fn, void *user)
{
    struct fake *f = fake_of(b);
    int rc;
    enter();
    f->d->n_run++;
    if (tap_fn || f->timed) {
        rc = flush(f);
        access_memory(f);
        if (!rc)
            rc = f->cpu->api->segment_run(f->cpu, exec, tap_fn, user);
    } else {
        rc = queue(f, (struct job){.exec = exec});
    }
    return leave(f, rc);
}

static void fake_segment_free(struct gr_backend *b, void **exec)
{
    struct fake *f = fake_of(b);
    enter();
    (void)flush(f);
    f->cpu->api->segment_free(f->cpu, exec);
    leave(f, 0);
}

static int fake_set_timer(struct gr_backend *b, gr_time_fn *fn, void *user)
{
    struct fake *f = fake_of(b);
    f->timed = fn != NULL;
    return f->cpu->api->set_timer(f->cpu, fn, user);
}

static void fake_set_cancel(struct gr_backend *b, const _Atomic int *flag)
{
    struct fake *f = fake_of(b);
    f->cpu->api->set_cancel(f->cpu, flag);
}

static void fake_close(struct gr_backend **b)
{
    struct fake *f = fake_of(*b);
    enter();
    cr_assert_eq(f->n_job, 0, "closed with work queued");
    f->d->used -= f->scratch;
    leave(f, 0);
    for (int i = 0; i < MAX_BLOCK; i++)
        cr_assert_null(f->pinned[i].p, "closed with host memory taken");
    f->cpu->api->close(&f->cpu);
    gr_free(f);
    *b = NULL;
}

static const struct gr_backend_api api = {
    .name = "FAKE",
    .alloc = fake_alloc,
    .free = fake_free,
    .host_alloc = fake_host_alloc,
    .host_free = fake_host_free,
    .clear = fake_clear,
    .upload = fake_upload,
    .uploaded = fake_uploaded,
    .download = fake_download,
    .collect = fake_collect,
    .sync = fake_sync,
    .can_borrow = fake_can_borrow,
    .weight_bytes = fake_weight_bytes,
    .weight_upload = fake_weight_upload,
    .offload = fake_offload,
    .offload_wait = fake_offload_wait,
    .offload_end = fake_offload_end,
    .offload_bytes = fake_offload_bytes,
    .offload_rate = fake_offload_rate,
    .segment_scratch = fake_segment_scratch,
    .segment_new = fake_segment_new,
    .segment_run = fake_segment_run,
    .segment_free = fake_segment_free,
    .set_timer = fake_set_timer,
    .set_cancel = fake_set_cancel,
    .close = fake_close,
};

/* ---- the kind ---- */

static int kind_count(const char **why, bool *broken)
{
    *why = "the tests have none";
    *broken = false;
    return n_device;
}

static int kind_info(int i, struct gr_device_info *info)
{
    pthread_mutex_lock(&lock);
    *info = (struct gr_device_info){.total_bytes = device[i].total,
                                    .free_bytes = device[i].total - device[i].used,
                                    .unusable = device[i].unusable};
    pthread_mutex_unlock(&lock);
    snprintf(info->name, sizeof info->name, "FAKE%d", i);
    snprintf(info->description, sizeof info->description, "a device of the tests");
    return 0;
}

static int kind_open(struct gr_backend **out, int i, const struct gr_device_opt *opt)
{
    (void)opt;
    struct fake *f = gr_calloc(1, sizeof *f);
    *out = NULL;
    if (!f)
        return GR_E_NOMEM_HOST;
    f->base.api = &api, f->d = &device[i];
    int rc = gr_cpu_open(&f->cpu, 1, 1, GR_CPU_AUTO);
    if (rc)
        gr_free(f);
    else
        *out = &f->base;
    return rc;
}

static const struct gr_device_kind kind = {
    .name = "FAKE", .count = kind_count, .info = kind_info, .open = kind_open};
static const struct gr_device_kind *const kinds[] = {&kind};

void fake_use(int n, uint64_t bytes)
{
    n_device = n;
    for (int i = 0; i < n; i++) {
        device[i].total = bytes, device[i].unusable = NULL;
        device[i].peak = device[i].used;
    }
    gr_device_kinds_set(kinds, 1);
}

void fake_resize(int i, uint64_t bytes)
{
    device[i].total = bytes;
}

void fake_break(int i, const char *why)
{
    device[i].unusable = why;
}

int64_t fake_allocs(void)
{
    return n_alloc;
}

uint64_t fake_used(int i, uint64_t *peak)
{
    if (peak)
        *peak = device[i].peak;
    return device[i].used;
}

int64_t fake_offloads(int i)
{
    return device[i].n_offload;
}

int64_t fake_coming(int i)
{
    return device[i].n_coming;
}

int64_t fake_waits(int i)
{
    return device[i].n_wait;
}

int64_t fake_runs(int i)
{
    return device[i].n_run;
}
