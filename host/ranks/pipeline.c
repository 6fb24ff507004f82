#include "ranks/pipeline.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "engine/step.h"
#include "gr/status.h"
#include "ranks/boundary.h"
#include "ranks/command.h"
#include "ranks/team.h"
#include "ranks/transport.h"

static bool is_last(const struct gr_session *s)
{
    return s->rank_model->stage == s->rank_model->n_stage - 1;
}

/* Returns whether this rank has the results: of the ranks that share the last stage, the first. */
static bool has_results(const struct gr_session *s)
{
    return is_last(s) && s->rank_model->shard == 0;
}

/* Enlarges a buffer of host memory that devices copy from and to, to at least n bytes. */
static int reserve(struct gr_session *s, void **buf, size_t *cap, size_t n)
{
    struct gr_backend *b = s->pin;
    if (n <= *cap)
        return 0;
    if (*buf)
        b->api->host_free(b, *buf);
    *buf = b->api->host_alloc(b, n);
    *cap = *buf ? n : 0;
    return *buf ? 0 : gr_error_status();
}

/* ---- from the previous stage ---- */

void gr_stage_log_cells(const struct gr_session *s)
{
    enum { MAX_TEXT = 1 << 16 };
    char *text = gr_calloc(MAX_TEXT, 1), *rest = text;
    FILE *out = text ? fmemopen(text, MAX_TEXT - 1, "w") : NULL;
    if (out) {
        gr_cache_print(&s->cache, out);
        fclose(out);
        gr_log(GR_LOG_WARN, "the cells of rank %d, hash %016llx:", s->rank_model->rank,
               (unsigned long long)s->cache.hash);
    }
    for (char *line = out ? strsep(&rest, "\n") : NULL; line; line = strsep(&rest, "\n"))
        gr_log(GR_LOG_WARN, "%s", line);
    gr_free(text);
}

static int differ(const struct gr_session *s, uint64_t found)
{
    gr_stage_log_cells(s);
    return gr_fail(GR_E_INTERNAL, GR_TEAM_DIFFERS ": hash %016llx expected, %016llx found",
                   (unsigned long long)found, (unsigned long long)s->cache.hash);
}

int gr_stage_compare(struct gr_session *s, uint64_t hash)
{
    return hash == s->cache.hash ? 0 : differ(s, hash);
}

/* Receives the values of a micro-batch into the plan's `in`. */
static int receive(struct gr_session *s, const struct gr_plan *p)
{
    struct gr_rank_session *own = s->rank;
    struct gr_team *t = own->team;
    struct gr_frame frame;
    int32_t from = t->world->rank - s->rank_model->n_shard;
    int rc = gr_frame_recv(&t->in, &frame, gr_team_deadline());
    if (rc)
        return gr_team_lose(t, from);
    s->now->status = frame.status;
    if (frame.kind != GR_COMMAND_BOUNDARY || frame.session != own->id ||
        (!frame.status && frame.n != gr_boundary_bytes(p, &p->in)))
        return gr_fail(GR_E_INTERNAL, "values of a micro-batch were expected, %s came",
                       gr_command_name(frame.kind));
    rc = frame.status ? 0 : gr_stage_compare(s, frame.hash);
    if (!rc && !frame.status && t->transport_in)
        return gr_transport_receive(s, p);
    if (!rc)
        rc = reserve(s, &own->recv_buffer, &own->recv_cap, (size_t)frame.n);
    if (rc)
        return rc;
    if (gr_frame_body(&t->in, &frame, own->recv_buffer, own->recv_cap, gr_team_deadline()))
        return gr_team_lose(t, from);
    return frame.status ? 0 : gr_boundary_in(s, p, own->recv_buffer);
}

static int flow_in(struct gr_session *s, const struct gr_plan *p, void *user)
{
    struct gr_world *w = s->rank->team->world;
    (void)user;
    gr_world_doing(w, GR_DOING_WAIT);
    int rc = s->rank_model->stage > 0 ? receive(s, p) : 0;
    gr_world_doing(w, GR_DOING_COMPUTE);
    return rc;
}

/* ---- to the next stage ---- */

/* Returns the buffer of the next message, of GR_N_SEND_BUFFER in turn, once its last message has
 * been sent. */
static int next_send_buffer(struct gr_session *s, struct gr_send_buffer **out)
{
    struct gr_rank_session *own = s->rank;
    struct gr_team *t = own->team;
    struct gr_send_buffer *buffer = *out = &own->send_buffer[own->n_send++ % GR_N_SEND_BUFFER];
    int rc = gr_frame_sent(&t->out, &buffer->out, gr_team_deadline());
    buffer->out =
        (struct gr_frame_out){.frame = {.kind = GR_COMMAND_BOUNDARY, .session = s->rank->id}};
    return rc ? gr_team_lose(t, t->world->rank + s->rank_model->n_shard) : 0;
}

static int send_to_next(struct gr_session *s, struct gr_send_buffer *buffer)
{
    buffer->out.frame.hash = s->cache.hash;
    const void *body = s->rank->team->transport_out ? NULL : buffer->buf;
    return gr_frame_send(&s->rank->team->out, &buffer->out, body)
               ? gr_team_lose(s->rank->team, s->rank_model->rank)
               : 0;
}

/* ---- results ---- */

/* Sends n bytes of results to rank 0. */
static int answer(struct gr_session *s, const void *rows, size_t n, int status)
{
    struct gr_frame frame = {
        .kind = GR_COMMAND_LOGITS, .session = s->rank->id, .status = status, .hash = s->cache.hash};
    struct gr_message *m = gr_message_new(s->rank->team, 0, 1);
    int rc = m ? gr_vec_append(&m->bytes, rows, n, 1) : GR_E_NOMEM_HOST;
    return rc ? rc : gr_message_send(s->rank->team, m, &frame);
}

static int forward(struct gr_session *s, const struct gr_plan *p)
{
    struct gr_send_buffer *buffer;
    size_t n = gr_boundary_bytes(p, &p->out);
    bool transport = s->rank->team->transport_out;
    int rc = next_send_buffer(s, &buffer);
    if (!rc && transport)
        rc = gr_transport_send(s, p);
    if (!rc && !transport)
        rc = reserve(s, &buffer->buf, &buffer->cap, n);
    if (!rc && !transport)
        rc = gr_boundary_out(s, p, buffer->buf);
    buffer->out.frame.n = n;
    return rc ? rc : send_to_next(s, buffer);
}

static int flow_out(struct gr_session *s, const struct gr_plan *p, const void *rows, size_t n,
                    void *user)
{
    int rc = 0;
    (void)user;
    if (!is_last(s))
        rc = forward(s, p);
    else if (has_results(s) && s->rank_model->rank)
        rc = answer(s, rows, n, 0);
    gr_world_doing(s->rank->team->world, GR_DOING_COMPUTE);
    return rc;
}

const struct gr_flow gr_stage_flow = {flow_in, flow_out, NULL};

/* Passes the failure of a batch on to the next stage, or from the last one to rank 0. */
static int pass_on(struct gr_session *s, int status)
{
    struct gr_send_buffer *buffer;
    if (is_last(s))
        return has_results(s) && s->rank_model->rank ? answer(s, NULL, 0, status) : 0;
    int rc = next_send_buffer(s, &buffer);
    buffer->out.frame.status = status;
    return rc ? rc : send_to_next(s, buffer);
}

/* ---- a batch ---- */

/* After a failure of rank 0's own part: passes it on to all stages. Once the last stage has
 * answered, no message of the batch is under way any more. */
static int give_up(struct gr_session *s, struct gr_pending_batch *pending, int status)
{
    char why[800];
    snprintf(why, sizeof why, "%s", gr_error());
    int rc = gr_world_check(s->rank->team->world);
    if (!rc)
        rc = pass_on(s, status);
    pending->n_ubatch = rc || is_last(s) ? 0 : pending->n_begun;
    return rc ? rc : gr_fail(status, "%s", why);
}

int gr_stage_run(struct gr_session *s, struct gr_pending_batch *pending, int32_t n_ub)
{
    struct gr_team *t = s->rank->team;
    gr_world_doing(t->world, GR_DOING_COMPUTE);
    int rc = gr_batch_run(s, pending, n_ub);
    gr_world_doing(t->world, GR_DOING_WAIT);
    if (pending->status && !rc)
        rc = pass_on(s, pending->status);
    gr_world_doing(t->world, GR_DOING_IDLE);
    pending->n_ubatch = gr_team_is_root(t) && !is_last(s) ? n_ub : 0;
    return rc && gr_team_is_root(t) ? give_up(s, pending, rc) : rc;
}

void gr_stage_fini(struct gr_session *s)
{
    struct gr_rank_session *own = s->rank;
    gr_team_lock(own->team);
    for (int i = 0; i < GR_N_SEND_BUFFER; i++) {
        struct gr_send_buffer *buffer = &own->send_buffer[i];
        if (own->team->out.link)
            (void)gr_frame_sent(&own->team->out, &buffer->out, INT64_MAX);
        if (buffer->buf)
            s->pin->api->host_free(s->pin, buffer->buf);
    }
    gr_team_unlock(own->team);
    if (own->recv_buffer)
        s->pin->api->host_free(s->pin, own->recv_buffer);
    gr_transport_fini(s);
}
