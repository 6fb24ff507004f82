/* A backend on a device: the table's entries for memory, copies and options. One stream carries a
 * session's work, in the order in which it was queued; weights have streams of their own
 * (upload.c), for which it is made to wait. */
#include <string.h>

#include "base/checked.h"
#include "cuda/build.h"
#include "cuda/nvtx.h"
#include "cuda/transport.h"
#include "cuda/upload.h"
#include "gr/status.h"

#define RING_SLOTS 4
#define RING_SLOT (256 * 1024) /* lists of 32,768 cells, written anew, have 145 KiB */

struct pinned {
    char *p;
    size_t bytes;
};

/* ---- memory ---- */

static void *cuda_alloc(struct gr_backend *b, size_t bytes)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    cu_pointer p = 0;
    int rc = gr_cuda_enter(c, &v);
    if (!rc)
        rc = gr_cuda_alloc(c, bytes, &p);
    return rc ? NULL : (void *)(uintptr_t)p;
}

static void cuda_free(struct gr_backend *b, void *p)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    if (!p)
        return;
    gr_cuda_settle(c, &v);
    (void)c->cu->free((cu_pointer)(uintptr_t)p);
}

static int pin(struct gr_cuda_backend *c, size_t bytes, void **p)
{
    struct pinned *known = gr_vec_push(&c->pinned, sizeof *known);
    if (!known)
        return GR_E_NOMEM_HOST;
    bytes = GR_MAX(bytes, 1);
    int rc = CU(c, host_alloc, p, bytes, 0);
    if (rc)
        return c->pinned.n--, rc;
    memset(*p, 0, bytes);
    *known = (struct pinned){*p, bytes};
    return 0;
}

static void *cuda_host_alloc(struct gr_backend *b, size_t bytes)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    void *p = NULL;
    int rc = gr_cuda_enter(c, &v);
    if (!rc)
        rc = pin(c, bytes, &p);
    return rc ? NULL : p;
}

static void cuda_host_free(struct gr_backend *b, void *p)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    struct pinned *known = c->pinned.data;
    for (size_t i = 0; i < c->pinned.n; i++)
        if (known[i].p == p) {
            known[i] = known[--c->pinned.n];
            gr_cuda_settle(c, &v);
            (void)c->cu->host_free(p);
            return;
        }
}

static bool is_pinned(const struct gr_cuda_backend *c, const void *p, size_t bytes)
{
    const struct pinned *known = c->pinned.data;
    for (size_t i = 0; i < c->pinned.n; i++)
        if ((uintptr_t)p >= (uintptr_t)known[i].p &&
            gr_in((uintptr_t)p - (uintptr_t)known[i].p, bytes, known[i].bytes))
            return true;
    return false;
}

/* ---- copies ---- */

static int stage(struct gr_cuda_backend *c, cu_pointer dst, const char *src, size_t bytes)
{
    int slot, rc = 0;
    char *host;
    for (size_t at = 0, n; at < bytes && !rc; at += n) {
        n = GR_MIN(bytes - at, c->ring.slot_bytes);
        if ((rc = gr_cuda_ring_next(c, &c->ring, &slot, &host)))
            break;
        memcpy(host, src + at, n);
        if (!(rc = CU(c, copy_in, dst + at, host, n, c->stream)))
            rc = CU(c, event_record, c->ring.copied[slot], c->stream);
    }
    return rc;
}

static int cuda_upload(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    cu_pointer to = (cu_pointer)(uintptr_t)dst;
    int rc = gr_cuda_enter(c, &v);
    if (rc || bytes == 0)
        return rc;
    if (!is_pinned(c, src, bytes))
        return gr_cuda_leave(c, stage(c, to, src, bytes));
    rc = CU(c, copy_in, to, src, bytes, c->stream);
    return gr_cuda_leave(c, rc ? rc : CU(c, event_record, c->uploaded, c->stream));
}

static int cuda_uploaded(struct gr_backend *b)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_enter(c, &v);
    return rc ? rc : gr_cuda_leave(c, CU(c, event_sync, c->uploaded));
}

static int cuda_sync(struct gr_backend *b)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_enter(c, &v);
    if (!rc)
        rc = gr_cuda_leave(c, CU(c, stream_sync, c->stream));
    if (!rc)
        rc = gr_cuda_leave(c, gr_cuda_offload_sync(c));
    if (!rc)
        gr_cuda_loader_free(c, &c->loader);
    return rc;
}

static int collect(struct gr_cuda_backend *c, void *dst, const void *src, size_t bytes)
{
    return bytes ? CU(c, copy_out, dst, (cu_pointer)(uintptr_t)src, bytes, c->stream) : 0;
}

static int cuda_collect(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_enter(c, &v);
    return rc ? rc : gr_cuda_leave(c, collect(c, dst, src, bytes));
}

/* Waits for the stream, whose last work is the copy. */
static int cuda_download(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_enter(c, &v);
    if (!rc)
        rc = collect(c, dst, src, bytes);
    return gr_cuda_leave(c, rc ? rc : CU(c, stream_sync, c->stream));
}

static int cuda_clear(struct gr_backend *b, void *dst, size_t bytes)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_enter(c, &v);
    if (rc || bytes == 0)
        return rc;
    return gr_cuda_leave(c, CU(c, fill, (cu_pointer)(uintptr_t)dst, 0, bytes, c->stream));
}

static int cuda_can_borrow(struct gr_backend *b)
{
    (void)b;
    return 0;
}

/* ---- options ---- */

static int cuda_set_timer(struct gr_backend *b, gr_time_fn *fn, void *user)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    c->time_fn = fn;
    c->time_user = user;
    return gr_cuda_enter(c, &v);
}

static void cuda_set_cancel(struct gr_backend *b, const _Atomic int *flag)
{
    gr_cuda_of(b)->cancel = flag;
}

static int cuda_profile(struct gr_backend *b, bool on)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_enter(c, &v);
    if (!rc) /* earlier work is not to be profiled */
        rc = gr_cuda_leave(c, CU(c, stream_sync, c->stream));
    return rc ? rc : on ? CU(c, profiler_start) : CU(c, profiler_stop);
}

static void cuda_range_begin(struct gr_backend *b, enum gr_range range, uint64_t payload)
{
    if (gr_cuda_of(b)->opt.nvtx)
        gr_nvtx_begin(range, payload);
}

static void cuda_range_end(struct gr_backend *b)
{
    if (gr_cuda_of(b)->opt.nvtx)
        gr_nvtx_end();
}

/* ---- opening ---- */

/* Gives back what the device holds. */
static void give_back(struct gr_cuda_backend *c)
{
    GR_CUDA_VISIT(v);
    gr_cuda_settle(c, &v);
    gr_cuda_loader_free(c, &c->loader);
    gr_cuda_offloader_free(c);
    gr_cuda_products_close(c);
    gr_cuda_events_fini(c);
    gr_cuda_ring_free(c, &c->ring);
    gr_cuda_scratch_free(c);
    if (c->uploaded)
        (void)c->cu->event_destroy(c->uploaded);
    if (c->counters)
        (void)c->cu->free(c->counters);
    if (c->stream)
        (void)c->cu->stream_destroy(c->stream);
}

static void cuda_close(struct gr_backend **b)
{
    struct gr_cuda_backend *c = *b ? gr_cuda_of(*b) : NULL;
    if (!c)
        return;
    if (c->device)
        give_back(c);
    gr_cuda_release(&c->device);
    gr_vec_fini(&c->pinned);
    gr_free(c);
    *b = NULL;
}

static const struct gr_backend_api api = {
    .name = gr_cuda_kind,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .clear = cuda_clear,
    .upload = cuda_upload,
    .uploaded = cuda_uploaded,
    .download = cuda_download,
    .collect = cuda_collect,
    .sync = cuda_sync,
    .can_borrow = cuda_can_borrow,
    .weight_bytes = gr_cuda_weight_bytes,
    .weight_upload = gr_cuda_weight_upload,
    .offload = gr_cuda_offload,
    .offload_wait = gr_cuda_offload_wait,
    .offload_end = gr_cuda_offload_end,
    .offload_bytes = gr_cuda_offload_bytes,
    .offload_rate = gr_cuda_offload_rate,
    .segment_scratch = gr_cuda_segment_scratch,
    .segment_new = gr_cuda_segment_new,
    .segment_run = gr_cuda_segment_run,
    .segment_free = gr_cuda_segment_free,
    .set_timer = cuda_set_timer,
    .set_cancel = cuda_set_cancel,
    .range_begin = cuda_range_begin,
    .range_end = cuda_range_end,
    .profile = cuda_profile,
    .transport_join = gr_cuda_transport_join,
    .close = cuda_close,
};

static int make_counters(struct gr_cuda_backend *c)
{
    const size_t bytes = GR_LAUNCH_COUNTERS * sizeof(uint32_t);
    int rc = gr_cuda_alloc(c, bytes, &c->counters);
    return rc ? rc : CU(c, fill, c->counters, 0, bytes, c->stream);
}

static int make_ready(struct gr_cuda_backend *c)
{
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_visit(&v, c->device);
    if (!rc)
        rc = CU(c, stream_create, &c->stream, CU_STREAM_NON_BLOCKING);
    if (!rc)
        rc = CU(c, event_create, &c->uploaded, CU_EVENT_NO_TIMING);
    if (!rc)
        rc = CU(c, event_record, c->uploaded, c->stream);
    if (!rc)
        rc = gr_cuda_ring_new(c, &c->ring, c->stream, RING_SLOTS, RING_SLOT);
    if (!rc)
        rc = make_counters(c);
    if (!rc)
        rc = gr_cuda_products_open(c);
    if (!rc && c->opt.nvtx)
        gr_nvtx_name_stream(c->stream, "gpurun steps");
    return rc;
}

int gr_cuda_open(struct gr_backend **out, int i, const struct gr_device_opt *opt)
{
    *out = NULL;
    struct gr_cuda_backend *c = gr_calloc(1, sizeof *c);
    if (!c)
        return GR_E_NOMEM_HOST;
    *out = &c->base;
    c->base.api = &api;
    c->opt = *opt;
    c->no_early = opt->no_pdl;
    c->scratch_turn = 1;
    int rc = gr_cuda_acquire(&c->device, i);
    if (!rc) {
        gr_cuda_take_over(c->device);
        c->cu = c->device->cu;
        c->name = c->device->name;
        rc = make_ready(c);
    }
    if (rc)
        cuda_close(out);
    return rc;
}
