/* Weights from a file's mapping to the device. Rows travel in pieces: mapping -> pinned slot (host
 * threads) -> device (copy stream); a matrix is packed from a staging buffer there (pack stream),
 * while the next piece is on its way. There is no wait between two tensors.
 *
 * The loader is made by the first weight and goes with the next sync; the steps' stream packs. */
#include "cuda/upload.h"

#include <string.h>

#include "base/checked.h"
#include "base/threads.h"
#include "cuda/nvtx.h"
#include "gr/pack.h"
#include "gr/status.h"

#define SLOT_LEAST (1 << 20)
#define COPY_ALONE (256 << 10) /* bytes that are not worth waking other threads for */
#define ALIGN 256

size_t gr_cuda_load_slot = 16 << 20;

/* ---- making it ---- */

static void name_thread(void *arg, int ith, int nth)
{
    (void)arg, (void)nth;
    if (ith) /* 0 is the caller's */
        gr_nvtx_name_thread("gpurun load");
}

static void name_for_profilers(struct gr_cuda_loader *l)
{
    gr_nvtx_name_stream(l->stream, "gpurun load");
    gr_threads_run(l->pool, gr_threads_count(l->pool), name_thread, NULL);
}

/* Allocates staging memory: smaller slots where weights leave little, but `least` bytes or more. */
static int staging_new(struct gr_cuda_backend *c, struct gr_cuda_loader *l, size_t least)
{
    int rc;
    l->slot = gr_cuda_load_slot;
    while ((rc = gr_cuda_alloc(c, GR_LOADER_SLOTS * l->slot, &l->staging)) == GR_E_NOMEM_DEV &&
           l->slot > least)
        l->slot /= 2;
    return rc;
}

/* Makes the events; loading begins behind what is queued already. */
static int events_new(struct gr_cuda_backend *c, struct gr_cuda_loader *l)
{
    int rc = 0;
    for (int i = 0; i < GR_LOADER_SLOTS && !rc; i++)
        if (!(rc = CU(c, event_create, &l->packed[i], CU_EVENT_NO_TIMING)))
            rc = CU(c, event_record, l->packed[i], c->stream);
    return rc ? rc : CU(c, stream_wait, l->stream, l->packed[0], 0);
}

int gr_cuda_loader_new(struct gr_cuda_backend *c, struct gr_cuda_loader **loader, size_t least,
                       bool own_stream)
{
    struct gr_cuda_loader *l = *loader = gr_calloc(1, sizeof *l);
    if (!l)
        return GR_E_NOMEM_HOST;
    l->pack = own_stream ? NULL : c->stream;
    int rc = gr_threads_new(&l->pool, GR_MIN(GR_LOADER_THREADS, gr_threads_online()), NULL);
    if (!rc)
        rc = staging_new(c, l, least);
    if (!rc)
        rc = CU(c, stream_create, &l->stream, CU_STREAM_NON_BLOCKING);
    if (!rc && own_stream)
        rc = CU(c, stream_create, &l->pack, CU_STREAM_NON_BLOCKING);
    if (!rc)
        rc = gr_cuda_ring_new(c, &l->ring, l->stream, GR_LOADER_SLOTS, l->slot);
    if (!rc)
        rc = events_new(c, l);
    if (!rc && c->opt.nvtx)
        name_for_profilers(l);
    if (rc)
        gr_cuda_loader_free(c, loader);
    return rc;
}

void gr_cuda_loader_free(struct gr_cuda_backend *c, struct gr_cuda_loader **loader)
{
    struct gr_cuda_loader *l = *loader;
    if (!l)
        return;
    cu_stream stream[] = {l->stream, l->pack == c->stream ? NULL : l->pack};
    for (int i = 0; i < 2; i++)
        if (stream[i])
            (void)c->cu->stream_sync(stream[i]);
    gr_cuda_ring_free(c, &l->ring);
    for (int i = 0; i < GR_LOADER_SLOTS; i++)
        if (l->packed[i])
            (void)c->cu->event_destroy(l->packed[i]);
    if (l->staging)
        (void)c->cu->free(l->staging);
    for (int i = 0; i < 2; i++)
        if (stream[i])
            (void)c->cu->stream_destroy(stream[i]);
    gr_cuda_notes_fini(&l->notes);
    gr_threads_free(&l->pool);
    gr_free(l);
    *loader = NULL;
}

/* ---- one piece ---- */

/* A copy of host rows, `stride` bytes apart, into a slot without gaps. Nothing behind the last row
 * is touched: it may be the end of a file. */
struct copy {
    char *dst;
    const char *src;
    size_t row, stride, rows;
};

static void copy_part(void *arg, int ith, int nth)
{
    const struct copy *x = arg;
    size_t bytes = x->rows * x->row, part = GR_PAD(bytes / (size_t)nth + 1, 4096),
           at = GR_MIN(part * (size_t)ith, bytes);
    if (x->stride == x->row || x->rows == 1)
        memcpy(x->dst + at, x->src + at, GR_MIN(part, bytes - at));
    else
        for (size_t r = (size_t)ith; r < x->rows; r += (size_t)nth)
            memcpy(x->dst + r * x->row, x->src + r * x->stride, x->row);
}

/* Queues rows for device memory at dst (0: the slot's own staging buffer), by pinned slot *slot. */
static int send(struct gr_cuda_backend *c, struct gr_cuda_loader *l, cu_pointer dst, struct copy x,
                int *slot)
{
    size_t bytes = x.rows * x.row;
    int rc = gr_cuda_ring_next(c, &l->ring, slot, &x.dst);
    if (rc)
        return rc;
    gr_threads_run(l->pool, bytes < COPY_ALONE ? 1 : GR_LOADER_THREADS, copy_part, &x);
    if (!dst) {
        dst = l->staging + (size_t)*slot * l->slot;
        rc = CU(c, stream_wait, l->stream, l->packed[*slot], 0);
    }
    if (!rc)
        rc = CU(c, copy_in, dst, x.dst, bytes, l->stream);
    return rc ? rc : CU(c, event_record, l->ring.copied[*slot], l->stream);
}

/* ---- one weight ---- */

static int send_rows(struct gr_cuda_backend *c, struct gr_cuda_loader *l, const struct gr_ten *t,
                     cu_pointer dst)
{
    size_t row = gr_row_bytes(t->dtype, (uint64_t)t->cols);
    size_t rows = (size_t)(t->batch * t->rows);
    bool dense = (size_t)t->row_bytes == row;
    size_t piece = dense ? rows * row : row, n = dense ? 1 : rows;
    size_t most = l->slot;
    int rc = 0, slot;
    for (size_t i = 0; i < n && !rc; i++)
        for (size_t at = 0; at < piece && !rc; at += most)
            rc = send(c, l, dst + i * row + at,
                      (struct copy){.src = (const char *)t->data + i * (size_t)t->row_bytes + at,
                                    .row = GR_MIN(piece - at, most),
                                    .rows = 1},
                      &slot);
    return rc;
}

/* Sends rows [lo, hi) of matrix m to the tile at dst. */
static int send_tiles(struct gr_cuda_backend *c, struct gr_cuda_loader *l, const struct gr_ten *t,
                      int64_t m, int64_t lo, int64_t hi, cu_pointer dst)
{
    int slot;
    const struct copy x = {.src = gr_ten_row(t, m, lo),
                           .row = gr_row_bytes(t->dtype, (uint64_t)t->cols),
                           .stride = (size_t)t->row_bytes,
                           .rows = (size_t)(hi - lo)};
    int rc = send(c, l, 0, x, &slot);
    if (rc)
        return rc;
    struct gr_ten rows = {.data = (void *)(uintptr_t)(l->staging + (size_t)slot * l->slot),
                          .batch = 1,
                          .rows = hi - lo,
                          .cols = t->cols,
                          .row_bytes = (int64_t)x.row,
                          .dtype = t->dtype};
    struct gr_ten packed = rows;
    packed.data = (void *)(uintptr_t)dst;
    packed.row_bytes = 0, packed.packed = 1;
    if ((rc = gr_cuda_note_pack(c, &l->notes, &rows, &packed)) ||
        (rc = CU(c, stream_wait, l->pack, l->ring.copied[slot], 0)) ||
        (rc = gr_cuda_launch_range(c, l->pack, &l->notes, 0, l->notes.launch.n)))
        return rc;
    return CU(c, event_record, l->packed[slot], l->pack);
}

static int send_matrix(struct gr_cuda_backend *c, struct gr_cuda_loader *l, const struct gr_ten *t,
                       cu_pointer dst)
{
    int64_t tile = gr_pack_tile_bytes(t->dtype, t->cols);
    int64_t most = (int64_t)l->slot;
    int64_t row = (int64_t)gr_row_bytes(t->dtype, (uint64_t)t->cols);
    int64_t step = most / (GR_PACK_ROWS * row) * GR_PACK_ROWS;
    int rc = 0;
    if (step == 0)
        return gr_fail(GR_E_UNSUPPORTED,
                       "%s: a matrix has rows of %lld bytes: at most %lld can be brought to a GPU",
                       c->name, (long long)row, (long long)most / GR_PACK_ROWS);
    for (int64_t m = 0; m < t->batch && !rc; m++)
        for (int64_t lo = 0; lo < t->rows && !rc; lo += step)
            rc = send_tiles(c, l, t, m, lo, GR_MIN(lo + step, t->rows),
                            dst + (cu_pointer)(m * gr_pack_bytes(t->dtype, t->rows, t->cols) +
                                               lo / GR_PACK_ROWS * tile));
    return rc;
}

/* ---- the table's entries ---- */

size_t gr_cuda_weight_bytes(struct gr_backend *b, const struct gr_ten *host, bool matrix)
{
    (void)b;
    int64_t bytes = matrix ? host->batch * gr_pack_bytes(host->dtype, host->rows, host->cols)
                           : host->batch * host->rows *
                                 (int64_t)gr_row_bytes(host->dtype, (uint64_t)host->cols);
    return GR_PAD((size_t)bytes, ALIGN);
}

int gr_cuda_send_weight(struct gr_cuda_backend *c, struct gr_cuda_loader *l,
                        const struct gr_ten *host, bool matrix, cu_pointer dst)
{
    if (matrix)
        return send_matrix(c, l, host, dst);
    int rc = send_rows(c, l, host, dst);
    int slot = (l->ring.next + GR_LOADER_SLOTS - 1) %
               GR_LOADER_SLOTS; /* of the last piece: all are behind it */
    return rc ? rc : CU(c, stream_wait, l->pack, l->ring.copied[slot], 0);
}

static int upload(struct gr_cuda_backend *c, const struct gr_ten *host, bool matrix, cu_pointer dst)
{
    int rc = c->loader ? 0 : gr_cuda_loader_new(c, &c->loader, SLOT_LEAST, false);
    return rc ? rc : gr_cuda_leave(c, gr_cuda_send_weight(c, c->loader, host, matrix, dst));
}

static void describe(const struct gr_ten *host, bool matrix, void *dst, struct gr_ten *out)
{
    *out = *host;
    out->data = dst;
    out->offset = 0, out->value = 0;
    out->packed = matrix;
    out->row_bytes = matrix ? 0 : (int64_t)gr_row_bytes(host->dtype, (uint64_t)host->cols);
}

int gr_cuda_weight_upload(struct gr_backend *b, const struct gr_ten *host, bool matrix, void *dst,
                          struct gr_ten *out)
{
    struct gr_cuda_backend *c = gr_cuda_of(b);
    GR_CUDA_VISIT(v);
    int rc = gr_cuda_enter(c, &v);
    if (!rc && matrix && !gr_pack_is(host->dtype))
        rc = gr_fail(GR_E_UNSUPPORTED, "%s: a matrix of %s cannot be computed with on a GPU",
                     c->name, gr_dtype_name(host->dtype));
    describe(host, matrix, dst, out);
    if (rc || !dst)
        return rc;
    if (c->opt.nvtx)
        gr_nvtx_begin(GR_RANGE_LOAD, gr_cuda_weight_bytes(b, host, matrix));
    rc = upload(c, host, matrix, (cu_pointer)(uintptr_t)dst);
    if (c->opt.nvtx)
        gr_nvtx_end();
    return rc;
}
