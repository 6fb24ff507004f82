/* Rows of caches on other ranks: assembled from their parts where several ranks share a layer. */
#include "ranks/cache_rows.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/cache_rows.h"
#include "engine/session_devices.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "model/shard.h"
#include "ranks/broadcast.h"
#include "ranks/command.h"
#include "ranks/team.h"

static int get_far(struct gr_session *s, int32_t rank, uint32_t tensor, const int32_t *cell,
                   uint32_t n, char *rows, size_t row)
{
    struct gr_team *team = s->rank->team;
    struct gr_command_get c = {.tensor = tensor, .cell = {cell, n}};
    size_t bytes = n * row;
    gr_team_lock(team);
    int rc = gr_team_send_to(team, rank, rank + 1, s, GR_COMMAND_GET, &c);
    if (!rc)
        rc = gr_team_receive_answer(team, rank, GR_COMMAND_ROWS, NULL);
    if (!rc && team->body.n != bytes) {
        gr_fail(GR_E_INTERNAL, "%zu bytes of rows expected, %zu came", bytes, team->body.n);
        rc = gr_team_lose(team, rank);
    }
    if (!rc && bytes)
        memcpy(rows, team->body.data, bytes);
    gr_team_unlock(team);
    return rc;
}

static int put_far(struct gr_session *s, int32_t rank, uint32_t tensor, const int32_t *cell,
                   uint32_t n, const char *rows, size_t row)
{
    struct gr_command_put c = {
        .tensor = tensor, .cell = {cell, n}, .rows = {rows, n * (uint64_t)row}};
    return gr_team_send_to(s->rank->team, rank, rank + 1, s, GR_COMMAND_PUT, &c);
}

/* Reads or writes one rank's rows of a tensor, `row` bytes each. */
static int move_of(struct gr_session *s, int32_t rank, uint32_t tensor, const int32_t *cell,
                   uint32_t n, char *rows, size_t row, bool get)
{
    if (rank == s->rank_model->rank)
        return gr_rows_move_own(s, tensor, cell, n, rows, get);
    return get ? get_far(s, rank, tensor, cell, n, rows, row)
               : put_far(s, rank, tensor, cell, n, rows, row);
}

/* ---- shards ---- */

/* A shard's part of a whole row: bytes [lo, hi). */
struct piece {
    size_t lo, hi;
};

/* Keys and values are split by heads; states are whole on every rank. */
static struct piece piece_of(const struct gr_session *s, uint32_t tensor, int32_t shard)
{
    uint32_t n = (uint32_t)s->rank_model->hp.n_layer, il = tensor % n, which = tensor / n;
    uint32_t type = s->tensors[tensor].dtype;
    if (!s->rank_model->sharded || which >= GR_T_CONV)
        return (struct piece){0, gr_rows_bytes(s, tensor)};
    struct gr_extent c = which == GR_T_V ? gr_shard_v(s->rank_model->sharded, shard, (int)il)
                                         : gr_shard_k(s->rank_model->sharded, shard, (int)il);
    return (struct piece){gr_row_bytes(type, (uint64_t)c.lo), gr_row_bytes(type, (uint64_t)c.hi)};
}

/* Copies between n whole rows and a shard's packed parts of them. */
static void copy_piece(struct piece p, char *rows, size_t row, char *part, uint32_t n, bool get)
{
    size_t width = p.hi - p.lo;
    for (uint32_t i = 0; i < n; i++) {
        char *whole = rows + i * row + p.lo, *at = part + i * width;
        memcpy(get ? whole : at, get ? at : whole, width);
    }
}

int gr_rows_move_far(struct gr_session *s, uint32_t tensor, const int32_t *cell, uint32_t n,
                     char *rows, bool get)
{
    const struct gr_rank_model *rm = s->rank_model;
    int32_t stage = gr_tensor_device(s, &s->tensors[tensor]) >= 0
                        ? rm->stage
                        : (int32_t)s->env.stage[tensor % (uint32_t)rm->hp.n_layer];
    size_t row = gr_rows_bytes(s, tensor);
    struct piece done = {0};
    char *part = rm->sharded ? gr_calloc(n, row) : rows;
    int rc = part || !n ? 0 : GR_E_NOMEM_HOST;
    for (int32_t i = 0; i < rm->n_shard && !rc; i++) {
        struct piece p = piece_of(s, tensor, i);
        if (get && i && p.lo == done.lo) /* the previous shard has the same heads */
            continue;
        if (rm->sharded && !get)
            copy_piece(p, rows, row, part, n, false);
        rc = move_of(s, stage * rm->n_shard + i, tensor, cell, n, part, p.hi - p.lo, get);
        if (rm->sharded && get && !rc)
            copy_piece(p, rows, row, part, n, true);
        done = p;
    }
    if (rm->sharded)
        gr_free(part);
    return rc;
}

/* ---- for rank 0 ---- */

/* Bytes of a row as this rank has it. */
static size_t row_of(const struct gr_ten *t)
{
    return gr_row_bytes(t->dtype, (uint64_t)t->cols);
}

static int check_cells(const struct gr_session *s, uint32_t tensor, const int32_t *cell, uint64_t n)
{
    bool good = tensor < (uint32_t)s->rank_model->hp.n_layer * GR_N_CACHE_TENSOR && n <= INT32_MAX;
    const struct gr_ten *t = good ? &s->tensors[tensor] : NULL;
    good = good && gr_ten_is(t) && gr_tensor_device(s, t) >= 0;
    for (uint64_t i = 0; good && i < n; i++)
        good = cell[i] >= 0 && cell[i] < t->rows;
    return good ? 0
                : gr_fail(GR_E_CORRUPT, "command about rows: there are none of tensor %u", tensor);
}

int gr_rows_get(struct gr_session *s)
{
    struct gr_team *team = s->rank->team;
    struct gr_command_get c;
    int rc = gr_command_read(&c, GR_COMMAND_GET, team->body.data, team->body.n);
    if (!rc)
        rc = check_cells(s, c.tensor, c.cell.p, c.cell.n);
    if (rc)
        return rc;
    struct gr_message *m = gr_message_new(team, 0, 1);
    size_t n = (size_t)c.cell.n * row_of(&s->tensors[c.tensor]);
    rc = m ? gr_vec_reserve(&m->bytes, n, 1) : GR_E_NOMEM_HOST;
    if (!rc)
        rc = gr_rows_move_own(s, c.tensor, c.cell.p, (uint32_t)c.cell.n, m->bytes.data, true);
    if (rc)
        return rc;
    m->bytes.n = n;
    return gr_message_send(team, m,
                           &(struct gr_frame){.kind = GR_COMMAND_ROWS, .session = s->rank->id});
}

int gr_rows_put(struct gr_session *s)
{
    struct gr_team *team = s->rank->team;
    struct gr_command_put c;
    int rc = gr_command_read(&c, GR_COMMAND_PUT, team->body.data, team->body.n);
    if (!rc)
        rc = check_cells(s, c.tensor, c.cell.p, c.cell.n);
    if (!rc && c.rows.n != c.cell.n * (uint64_t)row_of(&s->tensors[c.tensor]))
        rc = gr_fail(GR_E_CORRUPT, "command PUT: %llu bytes for %llu rows",
                     (unsigned long long)c.rows.n, (unsigned long long)c.cell.n);
    if (rc)
        return rc;
    rc = gr_rows_move_own(s, c.tensor, c.cell.p, (uint32_t)c.cell.n, (char *)(uintptr_t)c.rows.p,
                          false);
    int synced = gr_session_sync(s);
    return rc ? rc : synced;
}
