/* Offloaded weights: they stay on the host and come to the device in the midst of steps, while the
 * steps' stream computes and the CPU does its part of the step. A thread sends what is asked for,
 * in that order, by a loader of its own (upload.c). So the link works on while the host does
 * something else; the host waits only where a kernel needs the weights next, and only until their
 * copies are queued.
 *
 * A layer of the CPU that a GPU computes for a prompt is two segments of a plan, A in front of
 * attention and B behind it, with a segment of the CPU's in between (engine/offload.c). The order
 * of work, with a and b the weights of segments A and B:
 *
 *      link      b(i)............... a(i+1) | b(i+1)............... a(i+2) |
 *      GPU  B(i-1) A(i)                 B(i)  A(i+1)                 B(i+1)
 *      CPU           q,k,v> attention >x         q,k,v> attention >x
 *
 * b(i) and a(i+1) are asked for as A(i) begins; b(i) takes the memory of b(i-1), so its copies come
 * behind B(i-1). Q, K and V are waited for by the CPU (it needs them), B(i) for x and b(i). A layer
 * takes max(b, A + q,k,v + attention + x) + max(a, B); where one thread sent weights and then
 * computed attention it took their sum.
 *
 * Llama-3-8B, Q4_K_M, 512 tokens, an H200 with a link of 55 GB/s and 16 cores (predicted; not yet
 * run on a GPU): b 116 MB or 2.1 ms, a 14 MB or 0.25 ms, A and B 0.3 ms, 12.6 MB of q, k, v and 8.4
 * MB of x 0.4 ms, attention 2 to 3 ms: 2.8 to 3.8 ms a layer instead of 4.9 to 5.9. Four threads
 * fill pinned memory with 30 to 45 GB/s, which bounds the link: 2.9 to 3.9 ms for b then. */
#include <ctype.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/threads.h"
#include "cuda/nvtx.h"
#include "cuda/upload.h"
#include "gr/status.h"

struct item {
    struct gr_ten host;
    cu_pointer dst;
    bool matrix, first, last; /* of its group */
};

/* Events of a group: all work queued before it was asked for is done; all of the group is there. */
struct group {
    cu_event behind, done;
};

struct gr_cuda_offloader {
    struct gr_cuda_backend *c;
    struct gr_cuda_loader *loader; /* the thread's */
    struct group group[GR_OFFLOAD_GROUPS];
    uint32_t n_asked, n_waited; /* groups, counted by the caller */
    bool open;                  /* more of a group is to come */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t asked, sent;
    struct gr_vec item; /* struct item: [head, n) are to be sent */
    size_t head;
    uint32_t n_sent; /* groups */
    bool sending, stop;
    int rc; /* the first failure of the thread, and its text; nothing is sent after it */
    char why[1024];
};

/* ---- the thread ---- */

static int send(struct gr_cuda_offloader *f, const struct item *x, const struct group *g)
{
    struct gr_cuda_backend *c = f->c;
    struct gr_cuda_loader *l = f->loader;
    int rc = CU(c, context_set, c->device->context);
    if (!rc && x->first)
        rc = CU(c, stream_wait, l->stream, g->behind, 0);
    if (!rc && x->first)
        rc = CU(c, stream_wait, l->pack, g->behind, 0);
    if (!rc)
        rc = gr_cuda_send_weight(c, l, &x->host, x->matrix, x->dst);
    return rc || !x->last ? rc : CU(c, event_record, g->done, l->pack);
}

static int send_named(struct gr_cuda_offloader *f, const struct item *x, const struct group *g)
{
    if (!f->c->opt.nvtx)
        return send(f, x, g);
    gr_nvtx_begin(GR_RANGE_LOAD, gr_cuda_weight_bytes(&f->c->base, &x->host, x->matrix));
    int rc = send(f, x, g);
    gr_nvtx_end();
    return rc;
}

/* Sends the next item. The lock is held, but not while the item is sent. */
static void take_one(struct gr_cuda_offloader *f)
{
    struct item x = ((const struct item *)f->item.data)[f->head++];
    struct group g = f->group[f->n_sent % GR_OFFLOAD_GROUPS];
    if (f->head == f->item.n)
        f->head = f->item.n = 0;
    f->sending = true;
    int rc = f->rc;
    pthread_mutex_unlock(&f->lock);
    bool failed = !rc && (rc = send_named(f, &x, &g));
    pthread_mutex_lock(&f->lock);
    if (failed) {
        f->rc = rc;
        (void)snprintf(f->why, sizeof f->why, "%s", gr_error());
    }
    f->sending = false;
    f->n_sent += x.last;
    pthread_cond_broadcast(&f->sent);
}

static void *offload_main(void *arg)
{
    struct gr_cuda_offloader *f = arg;
    if (f->c->opt.nvtx)
        gr_nvtx_name_thread("gpurun offload");
    pthread_mutex_lock(&f->lock);
    while (!f->stop)
        if (f->head < f->item.n)
            take_one(f);
        else
            pthread_cond_wait(&f->asked, &f->lock);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- making it ---- */

static int start(struct gr_cuda_offloader *f)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL}; /* raised by the thread itself */
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < GR_COUNT(own); i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* others go to other threads */
    int error = pthread_create(&f->thread, NULL, offload_main, f);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    f->started = !error;
    return error ? gr_fail(GR_E_NOMEM_HOST, "%s: no thread for weights on their way: %s",
                           f->c->name, strerror(error))
                 : 0;
}

static int offloader_new(struct gr_cuda_backend *c)
{
    struct gr_cuda_offloader *f = c->offloader = gr_calloc(1, sizeof *f);
    if (!f)
        return GR_E_NOMEM_HOST;
    f->c = c;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->asked, NULL);
    pthread_cond_init(&f->sent, NULL);
    int rc = gr_cuda_loader_new(c, &f->loader, gr_cuda_load_slot, true);
    for (int i = 0; i < GR_OFFLOAD_GROUPS && !rc; i++)
        if (!(rc = CU(c, event_create, &f->group[i].behind, CU_EVENT_NO_TIMING)))
            rc = CU(c, event_create, &f->group[i].done, CU_EVENT_NO_TIMING);
    if (!rc)
        rc = start(f);
    if (rc)
        gr_cuda_offloader_free(c);
    return rc;
}

void gr_cuda_offloader_free(struct gr_cuda_backend *c)
{
    struct gr_cuda_offloader *f = c->offloader;
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_signal(&f->asked);
    pthread_mutex_unlock(&f->lock);
    if (f->started)
        pthread_join(f->thread, NULL);
    gr_cuda_loader_free(c, &f->loader);
    for (int i = 0; i < GR_OFFLOAD_GROUPS; i++) {
        cu_event event[] = {f->group[i].behind, f->group[i].done};
        for (int k = 0; k < 2; k++)
            if (event[k])
                (void)c->cu->event_destroy(event[k]);
    }
    pthread_cond_destroy(&f->asked);
    pthread_cond_destroy(&f->sent);
    pthread_mutex_destroy(&f->lock);
    gr_vec_fini(&f->item);
    gr_free(f);
    c->offloader = NULL;
}

/* ---- asking ---- */

/* Begins a group: its copies come behind what is queued now. */
static int begin_group(struct gr_cuda_offloader *f)
{
    struct gr_cuda_backend *c = f->c;
    if (f->n_asked - f->n_waited == GR_OFFLOAD_GROUPS)
        return gr_fail(GR_E_INTERNAL, "%s: more than %d groups of weights on their way", c->name,
                       GR_OFFLOAD_GROUPS);
    return CU(c, event_record, f->group[f->n_asked % GR_OFFLOAD_GROUPS].behind, c->stream);
}

static int ask(struct gr_cuda_offloader *f, struct item x)
{
    x.first = !f->open;
    int rc = x.first ? begin_group(f) : 0;
    if (rc)
        return rc;
    pthread_mutex_lock(&f->lock);
    rc = gr_vec_append(&f->item, &x, 1, sizeof x);
    pthread_cond_signal(&f->asked);
    pthread_mutex_unlock(&f->lock);
    f->open = rc || !x.last;
    f->n_asked += !rc && x.last;
    return rc;
}

int gr_cuda_offload(struct gr_backend *b, const struct gr_ten *host, bool matrix, void *dst,
                    bool last)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_enter(c, &v);
    if (!rc && !c->offloader)
        rc = offloader_new(c);
    if (rc || !dst)
        return rc;
    return gr_cuda_leave(c, ask(c->offloader, (struct item){.host = *host,
                                                            .matrix = matrix,
                                                            .last = last,
                                                            .dst = (cu_pointer)(uintptr_t)dst}));
}

/* The first failure of the thread. The lock is held. */
static int failure(const struct gr_cuda_offloader *f)
{
    return f->rc ? gr_fail(f->rc, "%s", f->why) : 0;
}

/* Waits until the oldest group is queued, when its event can be waited for. */
static int await(struct gr_cuda_offloader *f)
{
    if (f->n_waited == f->n_asked)
        return gr_fail(GR_E_INTERNAL, "%s: no weights are on their way", f->c->name);
    pthread_mutex_lock(&f->lock);
    while (f->n_sent == f->n_waited)
        pthread_cond_wait(&f->sent, &f->lock);
    int rc = failure(f);
    pthread_mutex_unlock(&f->lock);
    return rc;
}

int gr_cuda_offload_wait(struct gr_backend *b)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    struct gr_cuda_offloader *f = c->offloader;
    int rc = gr_cuda_enter(c, &v);
    if (!rc)
        rc = await(f);
    if (!rc)
        rc = CU(c, stream_wait, c->stream, f->group[f->n_waited++ % GR_OFFLOAD_GROUPS].done, 0);
    return gr_cuda_leave(c, rc);
}

int gr_cuda_offload_sync(struct gr_cuda_backend *c)
{
    struct gr_cuda_offloader *f = c->offloader;
    if (!f || (f->n_asked == f->n_waited && !f->open))
        return 0;
    pthread_mutex_lock(&f->lock);
    while (f->head < f->item.n || f->sending)
        pthread_cond_wait(&f->sent, &f->lock);
    int rc = failure(f);
    f->rc = 0;
    f->n_waited = f->n_asked = f->n_sent;
    f->open = false;
    pthread_mutex_unlock(&f->lock);
    int copied = CU(c, stream_sync, f->loader->stream);
    int packed = CU(c, stream_sync, f->loader->pack);
    return rc ? rc : copied ? copied : packed;
}

void gr_cuda_settle(struct gr_cuda_backend *c, struct gr_cuda_visit *v)
{
    (void)gr_cuda_visit(v, c->device);
    (void)c->cu->stream_sync(c->stream);
    (void)gr_cuda_offload_sync(c);
}

/* ---- the table's entries ---- */

void gr_cuda_offload_end(struct gr_backend *b)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    gr_cuda_settle(c, &v);
    gr_cuda_offloader_free(c);
    gr_cuda_scratch_free(c);
}

/* Reads the number that a line of sysfs begins with; 0: there is none. */
static double read_number(const char *folder, const char *name)
{
    char path[128], line[64] = "";
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    double x = f && fgets(line, sizeof line, f) ? strtod(line, NULL) : 0;
    if (f)
        (void)fclose(f);
    return x > 0 ? x : 0;
}

/* Bytes a second of a PCI device, or of the port above it, by its generation and lanes; 85 of 100
 * bits carry data. The present speed is not asked for, as an idle link saves power. 0: not
 * known. */
static double link_rate(const char *bus_id, const char *end)
{
    char folder[80];
    int n = snprintf(folder, sizeof folder, "/sys/bus/pci/devices/%s%s", bus_id, end);
    for (int i = 0; i < n && i < (int)sizeof folder; i++)
        folder[i] = (char)tolower((unsigned char)folder[i]);
    return read_number(folder, "max_link_speed") * read_number(folder, "max_link_width") * 1e9 / 8 *
           0.85;
}

/* Bytes a second at which weights come: those of the link, which may have fewer lanes than the
 * device, or of the threads that fill pinned memory, whichever is less. A link that is not known
 * counts as one that any machine of these devices has. */
double gr_cuda_offload_rate(struct gr_backend *b)
{
    const double thread = 9e9, unknown = 12e9;
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    char bus_id[32] = "";
    double filled = thread * GR_MIN(GR_LOADER_THREADS, gr_threads_online());
    if (gr_cuda_enter(c, &v) || CU(c, device_bus_id, bus_id, sizeof bus_id, c->device->handle))
        return unknown;
    double device = link_rate(bus_id, ""), port = link_rate(bus_id, "/..");
    double link = device > 0 && port > 0 ? GR_MIN(device, port) : device;
    return GR_MIN(link > 0 ? link : unknown, filled);
}

size_t gr_cuda_offload_bytes(struct gr_backend *b)
{
    (void)b;
    return GR_LOADER_SLOTS * gr_cuda_load_slot;
}
