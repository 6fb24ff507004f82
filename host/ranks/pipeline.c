/* A rank's part of micro-batches: receives values from the previous stage, runs the plan, and sends
 * values to the next stage or results to rank 0. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "gr/status.h"
#include "ranks/team.h"

static bool is_last(const struct gr_session *s)
{
    return s->slice->stage == s->slice->n_stage - 1;
}

static void be_at(const struct gr_session *s, enum gr_doing what)
{
    if (s->team)
        gr_world_doing(s->team->world, what);
}

/* Returns whether this rank has the results: of the ranks that share the last stage, the first. */
static bool has_results(const struct gr_session *s)
{
    return is_last(s) && s->slice->shard == 0;
}

/* Enlarges a buffer of host memory that devices copy from and to, to at least n bytes. */
static int room_for(struct gr_session *s, void **buf, size_t *cap, size_t n)
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
    enum { ROOM = 1 << 16 };
    char *text = gr_calloc(ROOM, 1), *rest = text;
    FILE *out = text ? fmemopen(text, ROOM - 1, "w") : NULL;
    if (out) {
        gr_cache_print(&s->cache, out);
        fclose(out);
        gr_log(GR_LOG_WARN, "the cells of rank %d, hash %016llx:", s->slice->rank,
               (unsigned long long)s->cache.hash);
    }
    for (char *line = out ? strsep(&rest, "\n") : NULL; line; line = strsep(&rest, "\n"))
        gr_log(GR_LOG_WARN, "%s", line);
    gr_free(text);
}

static int differ(const struct gr_session *s, uint64_t found)
{
    gr_stage_log_cells(s);
    return gr_fail(GR_E_INTERNAL,
                   GR_TEAM_DIFFERS ": hash %016llx expected, %016llx "
                                   "found",
                   (unsigned long long)found, (unsigned long long)s->cache.hash);
}

int gr_stage_compare(struct gr_session *s, uint64_t hash)
{
    return hash == s->cache.hash ? 0 : differ(s, hash);
}

static int receive(struct gr_session *s, const struct gr_plan *p, void *user)
{
    struct gr_team *t = s->team;
    struct gr_frame frame;
    int32_t from = t->world->rank - s->slice->n_shard;
    (void)user;
    if (s->slice->stage == 0)
        return 0;
    int rc = gr_frame_recv(&t->in, &frame, gr_team_deadline());
    if (rc)
        return gr_team_lose(t, from);
    s->now->status = frame.status;
    if (frame.kind != GR_ORDER_IS_BOUNDARY || frame.session != s->id ||
        (!frame.status && frame.n != gr_boundary_bytes(p, &p->in)))
        return gr_fail(GR_E_INTERNAL, "values of a micro-batch were expected, %s came",
                       gr_order_name(frame.kind));
    rc = frame.status ? 0 : gr_stage_compare(s, frame.hash);
    if (!rc && !frame.status && t->transport_in)
        return gr_transport_take(s, p);
    if (!rc)
        rc = room_for(s, &s->arrival, &s->arrival_cap, (size_t)frame.n);
    if (rc)
        return rc;
    if (gr_frame_body(&t->in, &frame, s->arrival, s->arrival_cap, gr_team_deadline()))
        return gr_team_lose(t, from);
    return frame.status ? 0 : gr_boundary_in(s, p, s->arrival);
}

/* ---- to the next stage ---- */

/* The buffer of the next message, of GR_N_DEPARTURE in turn: waits until its last message has been
 * sent. */
static int next_departure(struct gr_session *s, struct gr_departure **out)
{
    struct gr_team *t = s->team;
    struct gr_departure *d = *out = &s->departure[s->n_departure++ % GR_N_DEPARTURE];
    int rc = gr_frame_sent(&t->out, &d->out, gr_team_deadline());
    d->out = (struct gr_frame_out){.frame = {.kind = GR_ORDER_IS_BOUNDARY, .session = s->id}};
    return rc ? gr_team_lose(t, t->world->rank + s->slice->n_shard) : 0;
}

static int depart(struct gr_session *s, struct gr_departure *d)
{
    d->out.frame.hash = s->cache.hash;
    const void *body = s->team->transport_out ? NULL : d->buf;
    return gr_frame_send(&s->team->out, &d->out, body) ? gr_team_lose(s->team, s->slice->rank) : 0;
}

static int forward(struct gr_session *s, const struct gr_plan *p, void *user)
{
    struct gr_departure *d;
    (void)user;
    if (is_last(s))
        return 0;
    size_t n = gr_boundary_bytes(p, &p->out);
    bool transport = s->team->transport_out;
    int rc = next_departure(s, &d);
    if (!rc && transport)
        rc = gr_transport_give(s, p);
    if (!rc && !transport)
        rc = room_for(s, &d->buf, &d->cap, n);
    if (!rc && !transport)
        rc = gr_boundary_out(s, p, d->buf);
    d->out.frame.n = n;
    return rc ? rc : depart(s, d);
}

const struct gr_flow gr_stage_flow = {receive, forward, NULL};

/* ---- results ---- */

/* Sends n bytes of results to rank 0. */
static int answer(struct gr_session *s, const void *rows, size_t n, int status)
{
    struct gr_frame frame = {
        .kind = GR_ORDER_IS_LOGITS, .session = s->id, .status = status, .hash = s->cache.hash};
    struct gr_parcel *p = gr_parcel_new(s->team, 0, 1);
    int rc = p ? gr_vec_append(&p->bytes, rows, n, 1) : GR_E_NOMEM_HOST;
    return rc ? rc : gr_parcel_send(s->team, p, &frame);
}

/* Passes the failure of a batch on to the next stage, or from the last one to rank 0. */
static int pass_on(struct gr_session *s, int status)
{
    struct gr_departure *d;
    if (is_last(s))
        return has_results(s) && s->slice->rank ? answer(s, NULL, 0, status) : 0;
    int rc = next_departure(s, &d);
    d->out.frame.status = status;
    return rc ? rc : depart(s, d);
}

/* ---- a micro-batch ---- */

static int run_plan(struct gr_session *s, const struct gr_ubatch *ub, struct gr_cached_plan *c,
                    int32_t first_row)
{
    int64_t start = gr_now_ns();
    const struct gr_flight *f = s->now;
    size_t row = f->draws ? 1 : (size_t)s->n_row; /* a token id has the size of a logit */
    size_t n_out = (size_t)gr_vectors_rows(s, ub);
    float *out = f->logits ? f->logits + (size_t)first_row * row : NULL;
    s->part_tok = ub->n_tok;
    int rc = gr_plan_run(s, c, n_out ? out : NULL);
    s->part_tok = 0;
    if (!rc && s->flow) /* s->arrival is reused by the next micro-batch */
        rc = gr_session_settle(s);
    start = gr_spent_note(&s->spent, GR_SPAN_BUSY, start);
    if (!rc && s->flow)
        rc = s->flow->out(s, &c->plan, s->flow->user);
    if (!rc && s->team && has_results(s) && s->slice->rank)
        rc = answer(s, out, n_out * row * sizeof *out, 0);
    gr_spent_note(&s->spent, GR_SPAN_TRANSFER, start);
    return rc && s->slice->group ? gr_group_lose(s->slice->group) : rc;
}

/* Agreement of the ranks that share layers before they run them: all of them do, or none. */
static int agree(struct gr_session *s, int rc)
{
    char why[800];
    if (!rc && !s->now->status && atomic_load(&s->cancel))
        rc = gr_fail(GR_E_CANCELLED, "cancelled");
    if (rc && s->team && !gr_team_leads(s->team)) /* only rank 0 can take a batch back */
        return gr_group_lose(s->slice->group);
    snprintf(why, sizeof why, "%s", rc ? gr_error_message() : "");
    int status = gr_group_agree(s->slice->group, rc ? rc : s->now->status);
    int lost = gr_world_check(s->slice->group->world);
    if (lost)
        return lost;
    if (rc)
        return gr_fail(rc, "%s", why);
    s->now->status = status;
    return gr_team_leads(s->team) ? status : 0;
}

/* Runs a micro-batch; its logits, or sampled tokens, are rows [first_row, first_row + n_out). */
static int run_ubatch(struct gr_session *s, const struct gr_ubatch *ub, int32_t first_row)
{
    struct gr_cached_plan *c;
    int64_t start = gr_now_ns();
    be_at(s, GR_DOING_COMPUTE);
    int rc = gr_ubatch_ready(s, s->now, ub, first_row, &c);
    start = gr_spent_note(&s->spent, GR_SPAN_BUSY, start);
    be_at(s, GR_DOING_WAIT);
    if (!rc && s->flow)
        rc = s->flow->in(s, &c->plan, s->flow->user);
    if (s->slice->group)
        rc = agree(s, rc);
    gr_spent_note(&s->spent, GR_SPAN_WAIT, start);
    be_at(s, GR_DOING_COMPUTE);
    return rc || s->now->status ? rc : run_plan(s, ub, c, first_row);
}

/* After a failure of rank 0's own part in micro-batch i: passes it on to all stages. Once the last
 * stage has answered, no message of the batch is under way any more. */
static int give_up(struct gr_session *s, struct gr_flight *f, int32_t i, int status)
{
    char why[800];
    snprintf(why, sizeof why, "%s", gr_error());
    int rc = gr_world_check(s->team->world);
    if (!rc)
        rc = pass_on(s, status);
    f->n_ubatch = rc || is_last(s) ? 0 : i + 1;
    return rc ? rc : gr_fail(status, "%s", why);
}

int gr_stage_run(struct gr_session *s, struct gr_flight *f, int32_t n_ub)
{
    int32_t i = 0, row = 0;
    int rc = 0;
    s->now = f;
    s->progress.done = 0;
    for (; i < n_ub && !rc && !f->status; i++) {
        gr_session_tell(s, 0);
        rc = run_ubatch(s, &s->ub[i], row);
        row += gr_vectors_rows(s, &s->ub[i]);
        s->progress.done += (uint64_t)s->ub[i].n_tok;
    }
    be_at(s, GR_DOING_WAIT);
    int settled = s->flow ? 0 : gr_session_settle(s);
    rc = rc ? rc : settled;
    if (!rc && !f->status)
        gr_session_tell(s, 0);
    if (f->status && !rc)
        rc = pass_on(s, f->status);
    if (s->team)
        gr_world_doing(s->team->world, GR_DOING_IDLE);
    f->n_ubatch = gr_team_leads(s->team) && !is_last(s) ? n_ub : 0;
    return rc && gr_team_leads(s->team) ? give_up(s, f, i - 1, rc) : rc;
}

void gr_stage_fini(struct gr_session *s)
{
    gr_team_lock(s->team);
    for (int i = 0; i < GR_N_DEPARTURE; i++) {
        struct gr_departure *d = &s->departure[i];
        if (s->team && s->team->out.link)
            (void)gr_frame_sent(&s->team->out, &d->out, INT64_MAX);
        if (d->buf)
            s->pin->api->host_free(s->pin, d->buf);
    }
    gr_team_unlock(s->team);
    if (s->arrival)
        s->pin->api->host_free(s->pin, s->arrival);
    gr_transport_fini(s);
}
