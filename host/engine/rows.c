/* Rows of the tensors of caches, wherever they are: on this rank, or on the one that has the layer.
 */
#include <string.h>

#include "base/checked.h"
#include "engine/team.h"
#include "gr/status.h"

/* Cells that lie one behind the other are moved at once. */
static int move_own(struct gr_session *s, const struct gr_ten *t, const int32_t *cell, uint32_t n,
                    char *rows, bool get)
{
    struct gr_session_device *v = &s->device[gr_tensor_device(s, t)];
    struct gr_backend *b = v->backend;
    size_t row = (size_t)t->row_bytes;
    int rc = 0;
    for (uint32_t i = 0, k; i < n && !rc; i = k) {
        char *at = gr_ten_row(t, 0, cell[i]), *p = rows + i * row;
        for (k = i + 1; k < n && cell[k] == cell[k - 1] + 1;)
            k++;
        rc = get ? b->api->download(b, p, at, (k - i) * row)
                 : b->api->upload(b, at, p, (k - i) * row);
    }
    v->pending |= !get && v != s->device;
    return rc;
}

/* The ranks that have a tensor of another stage than this one's. */
static int32_t first_rank(const struct gr_session *s, uint32_t tensor)
{
    int32_t stage = s->env.stage[tensor % (uint32_t)s->slice->hp.n_layer];
    return stage * s->slice->n_shard;
}

static int get_far(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n,
                   char *rows)
{
    struct gr_team *team = s->team;
    struct gr_order_get o = {.tensor = tensor, .cell = {cell, n}};
    size_t bytes = n * (size_t)s->tensors[tensor].row_bytes;
    int32_t rank = first_rank(s, tensor);
    gr_team_lock(team);
    int rc = gr_team_tell_some(team, rank, rank + 1, s, GR_ORDER_IS_GET, &o);
    if (!rc)
        rc = gr_team_answer(team, rank, GR_ORDER_IS_ROWS, NULL);
    if (!rc && team->body.n != bytes) {
        gr_fail(GR_E_INTERNAL, "%zu bytes of rows expected, %zu came", bytes, team->body.n);
        rc = gr_team_lose(team, rank);
    }
    if (!rc && bytes)
        memcpy(rows, team->body.data, bytes);
    gr_team_unlock(team);
    return rc;
}

static int put_far(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n,
                   const char *rows)
{
    int32_t rank = first_rank(s, tensor);
    struct gr_order_put o = {.tensor = tensor,
                             .cell = {cell, n},
                             .rows = {rows, n * (uint64_t)s->tensors[tensor].row_bytes}};
    return gr_team_tell_some(s->team, rank, rank + 1, s, GR_ORDER_IS_PUT, &o);
}

int gr_rows_move(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n, char *rows,
                 bool get)
{
    const struct gr_ten *t = &s->tensors[tensor];
    if (gr_tensor_device(s, t) >= 0)
        return move_own(s, t, cell, n, rows, get);
    return get ? get_far(s, tensor, cell, n, rows) : put_far(s, tensor, cell, n, rows);
}

/* ---- for rank 0 ---- */

static int check_cells(const struct gr_session *s, uint32_t tensor, const int32_t *cell, uint64_t n)
{
    bool good = tensor < (uint32_t)s->slice->hp.n_layer * GR_N_CACHE_TENSOR && n <= INT32_MAX;
    const struct gr_ten *t = good ? &s->tensors[tensor] : NULL;
    good = good && gr_ten_is(t) && gr_tensor_device(s, t) >= 0;
    for (uint64_t i = 0; good && i < n; i++)
        good = cell[i] >= 0 && cell[i] < t->rows;
    return good ? 0
                : gr_fail(GR_E_CORRUPT, "order about rows: there are none of tensor %u", tensor);
}

int gr_rows_answer(struct gr_session *s)
{
    struct gr_team *team = s->team;
    struct gr_order_get o;
    int rc = gr_order_read(&o, GR_ORDER_IS_GET, team->body.data, team->body.n);
    if (!rc)
        rc = check_cells(s, o.tensor, o.cell.p, o.cell.n);
    if (rc)
        return rc;
    const struct gr_ten *t = &s->tensors[o.tensor];
    struct gr_parcel *p = gr_parcel_new(team, 0, 1);
    size_t n = (size_t)o.cell.n * (size_t)t->row_bytes;
    rc = p ? gr_vec_room(&p->bytes, n, 1) : GR_E_NOMEM_HOST;
    if (!rc)
        rc = move_own(s, t, o.cell.p, (uint32_t)o.cell.n, p->bytes.data, true);
    if (rc)
        return rc;
    p->bytes.n = n;
    return gr_parcel_send(team, p, &(struct gr_frame){.kind = GR_ORDER_IS_ROWS, .session = s->id});
}

int gr_rows_take(struct gr_session *s)
{
    struct gr_team *team = s->team;
    struct gr_order_put o;
    int rc = gr_order_read(&o, GR_ORDER_IS_PUT, team->body.data, team->body.n);
    if (!rc)
        rc = check_cells(s, o.tensor, o.cell.p, o.cell.n);
    if (!rc && o.rows.n != o.cell.n * (uint64_t)s->tensors[o.tensor].row_bytes)
        rc = gr_fail(GR_E_CORRUPT, "order PUT: %llu bytes for %llu rows",
                     (unsigned long long)o.rows.n, (unsigned long long)o.cell.n);
    if (rc)
        return rc;
    const struct gr_ten *t = &s->tensors[o.tensor];
    rc = move_own(s, t, o.cell.p, (uint32_t)o.cell.n, (char *)(uintptr_t)o.rows.p, false);
    int settled = gr_session_settle(s, -1);
    return rc ? rc : settled;
}
