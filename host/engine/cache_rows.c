/* Rows of the caches' tensors, outside the caches: packed, and in blocks. */
#include "engine/cache_rows.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "engine/memory.h"
#include "engine/session_devices.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/planes.h"

/* Bytes of a row outside the cache: in blocks, also where the cache stores planes. */
static size_t row_of(const struct gr_ten *t)
{
    return gr_row_bytes(t->dtype, (uint64_t)t->cols);
}

/* Reads or writes consecutive rows without conversion. */
static int move_plain(struct gr_backend *b, char *at, char *rows, size_t bytes, bool get)
{
    return get ? b->api->download(b, rows, at, bytes) : b->api->upload(b, at, rows, bytes);
}

static int move_planes(struct gr_backend *b, const struct gr_ten *t, char *at, char *rows,
                       uint32_t n, bool get)
{
    size_t pitch = (size_t)t->row_bytes, row = row_of(t);
    char *planes = gr_calloc(n, pitch);
    int rc = planes ? 0 : GR_E_NOMEM_HOST;
    for (uint32_t i = 0; i < n && !rc && !get; i++)
        gr_planes_from_blocks(t->dtype, t->cols, rows + i * row, planes + i * pitch);
    if (!rc)
        rc = move_plain(b, at, planes, n * pitch, get);
    for (uint32_t i = 0; i < n && !rc && get; i++)
        gr_planes_to_blocks(t->dtype, t->cols, planes + i * pitch, rows + i * row);
    gr_free(planes);
    return rc;
}

/* Runs of consecutive cells are moved at once. */
int gr_rows_move_own(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n,
                     char *rows, bool get)
{
    const struct gr_ten *t = &s->tensors[tensor];
    struct gr_session_device *v = &s->device[gr_tensor_device(s, t)];
    struct gr_backend *b = v->backend;
    size_t row = row_of(t);
    int rc = 0;
    for (uint32_t i = 0, k; i < n && !rc; i = k) {
        char *at = gr_ten_row(t, 0, cell[i]), *p = rows + i * row;
        for (k = i + 1; k < n && cell[k] == cell[k - 1] + 1;)
            k++;
        rc = t->planes ? move_planes(b, t, at, p, k - i, get)
                       : move_plain(b, at, p, (k - i) * row, get);
    }
    if (!get)
        gr_session_mark_queued(v);
    return rc;
}

size_t gr_rows_bytes(const struct gr_session *s, uint32_t tensor)
{
    uint32_t n = (uint32_t)s->rank_model->hp.n_layer;
    struct gr_ten shape = s->tensors[tensor];
    if (s->rank_model->sharded)
        (void)gr_memory_tensor(&s->memory, &s->model->hp, (int)(tensor % n),
                               (enum gr_cache_tensor)(tensor / n), &shape);
    return gr_row_bytes(shape.dtype, (uint64_t)shape.cols);
}

int gr_rows_move(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n, char *rows,
                 bool get)
{
    return s->ranks ? s->ranks->rows(s, tensor, cell, n, rows, get)
                    : gr_rows_move_own(s, tensor, cell, n, rows, get);
}
