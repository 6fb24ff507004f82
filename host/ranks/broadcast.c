#include "ranks/broadcast.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"
#include "ranks/command.h"
#include "ranks/team.h"

#define TABLE_EVERY 64 /* number of batches after which all cells are compared */

static int broadcast(struct gr_team *t, int32_t lo, int32_t hi, uint32_t id, uint32_t kind,
                     const void *command, uint64_t hash)
{
    struct gr_frame frame = {.kind = kind, .session = id, .hash = hash};
    int rc = gr_world_check(t->world);
    if (rc)
        return rc;
    gr_team_lock(t);
    struct gr_message *m = gr_message_new(t, lo, hi);
    rc = m ? gr_command_write(&m->bytes, kind, command) : GR_E_NOMEM_HOST;
    if (m && rc)
        m->hi = m->lo;
    if (!rc)
        rc = gr_message_send(t, m, &frame);
    gr_team_unlock(t);
    return rc;
}

int gr_team_broadcast_id(struct gr_team *t, uint32_t id, uint32_t kind, const void *command,
                         uint64_t hash)
{
    return broadcast(t, 1, t->world->n_rank, id, kind, command, hash);
}

int gr_team_broadcast_or_lose(struct gr_team *t, uint32_t id, uint32_t kind, const void *command,
                              uint64_t hash)
{
    return gr_team_broadcast_id(t, id, kind, command, hash) ? gr_team_lose(t, t->world->rank) : 0;
}

int gr_team_broadcast(struct gr_team *t, const struct gr_session *s, uint32_t kind,
                      const void *command)
{
    return gr_team_broadcast_id(t, s ? s->rank->id : 0, kind, command, s ? s->cache.hash : 0);
}

int gr_team_send_to(struct gr_team *t, int32_t lo, int32_t hi, const struct gr_session *s,
                    uint32_t kind, const void *command)
{
    return broadcast(t, lo, hi, s ? s->rank->id : 0, kind, command, s ? s->cache.hash : 0);
}

/* ---- batches ---- */

/* Sends the arrays of a checked batch. pos_yx: rows and columns, [2][n_tok], or NULL. */
static int write_batch(struct gr_session *s, const struct gr_pending_batch *pending,
                       int32_t *pos_yx, uint64_t hash)
{
    const struct gr_full_batch *b = &s->batch;
    uint64_t n = (uint64_t)b->n_tok, n_embd = (uint64_t)s->model->hp.n_embd;
    struct gr_command_decode c = {
        .encode = s->cache.encoding,
        .token = {b->token, n},
        .embd = {b->embd, b->embd ? n * n_embd : 0},
        .pos = {b->pos, n},
        .pos_yx = {pos_yx, pos_yx ? 2 * n : 0},
        .n_seq = {b->n_seq, n},
        .seq = {b->seq, 0},
        .logits = {b->logits, n},
        .rows = {s->sampled.rows, pending->sampled ? (uint64_t)pending->n_out : 0},
        .edits = {s->sampled.edits.data, pending->sampled ? s->sampled.edits.n : 0},
        .masks = {s->sampled.masks.data, pending->sampled ? s->sampled.masks.n : 0}};
    c.seq.n = (uint64_t)(b->seq_at[n - 1] + b->n_seq[n - 1]);
    if (++s->rank->team->n_batch % TABLE_EVERY == 0)
        c.table = gr_cache_table_hash(&s->cache);
    return gr_team_broadcast_id(s->rank->team, s->rank->id, GR_COMMAND_DECODE, &c, hash);
}

int gr_team_broadcast_batch(struct gr_session *s, const struct gr_pending_batch *pending)
{
    const struct gr_full_batch *b = &s->batch;
    size_t n = (size_t)b->n_tok;
    uint64_t hash = s->cache.hash;
    if (!b->pos_2d)
        return write_batch(s, pending, NULL, hash);
    int32_t *pos_yx = gr_calloc(2 * n, sizeof *pos_yx);
    if (!pos_yx)
        return GR_E_NOMEM_HOST;
    memcpy(pos_yx, b->row, n * sizeof *b->row);
    memcpy(pos_yx + n, b->col, n * sizeof *b->col);
    int rc = write_batch(s, pending, pos_yx, hash);
    gr_free(pos_yx);
    return rc;
}

/* ---- answers ---- */

/* The last stage's first rank, which sends the results. */
static int32_t last_rank(const struct gr_team *t)
{
    return t->world->n_rank - t->rank_model->n_shard;
}

static int unexpected(struct gr_team *t, int32_t rank, const struct gr_frame *f,
                      const char *expected)
{
    gr_fail(GR_E_INTERNAL, "it has sent %s of %llu bytes, %s was expected",
            gr_command_name(f->kind), (unsigned long long)f->n, expected);
    return gr_team_lose(t, rank);
}

/* Receives the next result of a micro-batch, which belongs to the first pending batch. */
static int receive_result(struct gr_team *t)
{
    struct gr_pending_batch *pending = t->first;
    struct gr_frame frame;
    int32_t rank = last_rank(t);
    struct gr_port *port = &t->result[rank];
    size_t row = (pending->sampled ? 1 : (size_t)pending->session->n_row) * sizeof(float);
    size_t cap = (size_t)(pending->n_out - pending->n_received) * row;
    int rc = gr_frame_recv(port, &frame, gr_team_deadline());
    if (rc)
        return gr_team_lose(t, rank);
    if (frame.kind != GR_COMMAND_LOGITS || frame.session != pending->session->rank->id ||
        frame.n % row)
        return unexpected(t, rank, &frame, "logits of another session");
    rc = gr_frame_body(port, &frame, (char *)pending->logits + (size_t)pending->n_received * row,
                       cap, gr_team_deadline());
    if (rc)
        return gr_team_lose(t, rank);
    pending->n_received += (int32_t)(frame.n / row);
    if (--pending->n_ubatch > 0)
        return 0;
    t->first = pending->next;
    return frame.status || pending->n_received == pending->n_out
               ? 0
               : unexpected(t, rank, &frame, "the logits of all tokens of the batch");
}

void gr_team_enqueue(struct gr_team *t, struct gr_pending_batch *pending)
{
    pending->next = NULL;
    if (t->first)
        t->last->next = pending;
    else
        t->first = pending;
    t->last = pending;
}

int gr_team_collect(struct gr_team *t, const struct gr_pending_batch *pending)
{
    int rc = gr_world_check(t->world);
    gr_team_lock(t);
    while (!rc && (pending ? pending->n_ubatch > 0 : t->first != NULL))
        rc = receive_result(t);
    gr_team_unlock(t);
    return rc;
}

/* Fails with a rank's own error from its DONE message. */
static int remote_failure(struct gr_team *t, int32_t rank)
{
    struct gr_command_done d;
    char name[128];
    if (gr_command_read(&d, GR_COMMAND_DONE, t->body.data, t->body.n) || !d.status)
        return gr_team_lose(t, rank);
    return gr_fail(d.status, "%s: %.*s", gr_world_name(t->world, rank, name, sizeof name),
                   (int)d.text.n, d.text.p);
}

int gr_team_receive_answer(struct gr_team *t, int32_t rank, uint32_t kind, void *answer)
{
    struct gr_frame frame;
    int rc = rank == last_rank(t) ? gr_team_collect(t, NULL) : 0;
    if (!rc)
        rc = gr_team_receive(t, &t->result[rank], rank, &frame);
    if (rc)
        return rc;
    if (frame.kind == GR_COMMAND_DONE && kind != GR_COMMAND_DONE)
        return remote_failure(t, rank);
    if (frame.kind != kind)
        return unexpected(t, rank, &frame, gr_command_name(kind));
    if (answer && gr_command_read(answer, kind, t->body.data, t->body.n))
        return gr_team_lose(t, rank);
    return 0;
}

bool gr_team_more_informative(int status, int than)
{
    return status && (!than || (than == GR_E_PEER_LOST && status != GR_E_PEER_LOST));
}

int gr_team_collect_status(struct gr_team *t)
{
    char why[800] = "";
    int status = 0, rc = 0;
    for (int32_t r = 1; r < t->world->n_rank && !rc; r++) {
        struct gr_command_done d;
        rc = gr_team_receive_answer(t, r, GR_COMMAND_DONE, &d);
        if (rc || !gr_team_more_informative(d.status, status))
            continue;
        status = remote_failure(t, r);
        snprintf(why, sizeof why, "%s", gr_error());
    }
    return rc || !status ? rc : gr_fail(status, "%s", why);
}
