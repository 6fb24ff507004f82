/* Times of the ranks: sums by activity, and single spans. */
#include "ranks/times.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "engine/times.h"
#include "gr/status.h"
#include "ranks/broadcast.h"
#include "ranks/command.h"
#include "ranks/team.h"

#define N_PING 5

/* ---- this rank ---- */

/* Reports spans to fn, oldest first. add_ns: the offset to rank 0's clock. */
static void report_spans(const struct gr_timing_span *span, uint64_t n, int32_t rank,
                         int64_t add_ns, gr_span_fn *fn, void *user)
{
    for (uint64_t i = 0; i < n; i++)
        fn(&(struct gr_stage_span){.rank = rank,
                                   .ubatch = span[i].number,
                                   .what = (enum gr_span)span[i].what,
                                   .start_ns = span[i].start_ns + add_ns,
                                   .ns = span[i].end_ns - span[i].start_ns},
           user);
}

static void fill_stage(const struct gr_session *s, int32_t rank, struct gr_stage *out)
{
    const struct gr_rank_model *rm = s->rank_model;
    const struct gr_placement *p = &rm->placed.place;
    int32_t stage = rank / rm->n_shard, n = 0;
    *out = (struct gr_stage){.rank = rank};
    for (int32_t il = 0; il <= s->model->hp.n_layer; il++)
        if (p->stage[il] == stage)
            out->first_layer = n++ ? out->first_layer : il;
    out->n_layer = n;
}

static void fill_times(struct gr_stage *out, const int64_t ns[GR_N_SPAN], uint64_t n_ubatch)
{
    out->busy_ns = ns[GR_SPAN_BUSY], out->wait_ns = ns[GR_SPAN_WAIT];
    out->transfer_ns = ns[GR_SPAN_TRANSFER], out->n_ubatch = n_ubatch;
}

/* ---- answers to rank 0 ---- */

int gr_timing_answer(struct gr_session *s)
{
    struct gr_team *t = s->rank->team;
    struct gr_command_times asked;
    struct gr_vec list = {0};
    const char *device = s->device[s->n_device - 1].name;
    int rc = gr_command_read(&asked, GR_COMMAND_TIMES, t->body.data, t->body.n);
    if (!rc && asked.spans)
        rc = gr_timing_list(&s->timing, &list);
    struct gr_command_timing c = {.busy_ns = s->timing.ns[GR_SPAN_BUSY],
                                  .wait_ns = s->timing.ns[GR_SPAN_WAIT],
                                  .transfer_ns = s->timing.ns[GR_SPAN_TRANSFER],
                                  .n_ubatch = s->timing.n_ubatch,
                                  .device = {device, strlen(device)},
                                  .span = {list.data, list.n}};
    struct gr_message *m = rc ? NULL : gr_message_new(t, 0, 1);
    if (!rc)
        rc = m ? gr_command_write(&m->bytes, GR_COMMAND_TIMING, &c) : GR_E_NOMEM_HOST;
    gr_vec_fini(&list);
    return rc ? rc
              : gr_message_send(
                    t, m, &(struct gr_frame){.kind = GR_COMMAND_TIMING, .session = s->rank->id});
}

/* ---- all ranks ---- */

int gr_team_set_clocks(struct gr_team *t)
{
    int rc = 0;
    for (int32_t r = 1; r < t->world->n_rank && !t->threads; r++) {
        int64_t least = INT64_MAX;
        for (int i = 0; i < N_PING && !rc; i++) {
            struct gr_command_done d;
            int64_t start = gr_now_ns();
            rc = gr_team_send_to(t, r, r + 1, NULL, GR_COMMAND_CLOCK, NULL);
            if (!rc)
                rc = gr_team_receive_answer(t, r, GR_COMMAND_DONE, &d);
            int64_t took = gr_now_ns() - start;
            if (rc || took >= least)
                continue;
            least = took;
            t->clock_ns[r] = start + took / 2 - d.now_ns;
        }
    }
    return rc;
}

/* Receives a rank's times into *out, and reports its spans to fn unless that is NULL. */
static int receive_timing(struct gr_session *s, int32_t rank, struct gr_stage *out, gr_span_fn *fn,
                          void *user)
{
    struct gr_team *t = s->rank->team;
    struct gr_command_timing c;
    int rc = gr_team_receive_answer(t, rank, GR_COMMAND_TIMING, &c);
    if (rc)
        return rc;
    const int64_t ns[GR_N_SPAN] = {c.wait_ns, c.busy_ns, c.transfer_ns};
    fill_stage(s, rank, out);
    fill_times(out, ns, c.n_ubatch);
    snprintf(out->host, sizeof out->host, "%s", t->world->ranks[rank].host);
    snprintf(out->device, sizeof out->device, "%.*s", (int)GR_MIN(c.device.n, 15), c.device.p);
    if (fn)
        report_spans(c.span.p, c.span.n, rank, t->clock_ns[rank], fn, user);
    return 0;
}

static int fill_own(struct gr_session *s, struct gr_stage *out, gr_span_fn *fn, void *user)
{
    struct gr_vec list = {0};
    fill_stage(s, s->rank_model->rank, out);
    fill_times(out, s->timing.ns, s->timing.n_ubatch);
    snprintf(out->device, sizeof out->device, "%s", s->device[s->n_device - 1].name);
    if (s->ranks)
        snprintf(out->host, sizeof out->host, "%s", s->rank->team->world->ranks[0].host);
    int rc = fn ? gr_timing_list(&s->timing, &list) : 0;
    if (!rc && fn)
        report_spans(list.data, list.n, s->rank_model->rank, 0, fn, user);
    gr_vec_fini(&list);
    return rc;
}

/* Collects the times of all ranks: stage [GR_MAX_RANK]. */
static int collect_all(struct gr_session *s, struct gr_stage *stage, gr_span_fn *fn, void *user)
{
    const struct gr_command_times c = {.spans = fn != NULL};
    if (!s->ranks)
        return fill_own(s, &stage[0], fn, user);
    struct gr_team *t = s->rank->team;
    gr_team_lock(t);
    int rc = gr_team_broadcast(t, s, GR_COMMAND_TIMES, &c);
    if (!rc)
        rc = fill_own(s, &stage[0], fn, user);
    for (int32_t r = 1; r < t->world->n_rank && !rc; r++)
        rc = receive_timing(s, r, &stage[r], fn, user);
    gr_team_unlock(t);
    return rc;
}

int32_t gr_session_stages(struct gr_session *s, struct gr_stage *stage, int32_t n)
{
    struct gr_stage all[GR_MAX_RANK];
    int32_t n_rank = s->ranks ? s->rank->team->world->n_rank : 1;
    if (collect_all(s, all, NULL, NULL))
        return 0;
    memcpy(stage, all, (size_t)GR_MIN(n, n_rank) * sizeof *stage);
    return GR_MIN(n, n_rank);
}

int gr_session_spans(struct gr_session *s, gr_span_fn *fn, void *user)
{
    struct gr_stage all[GR_MAX_RANK];
    return collect_all(s, all, fn, user);
}

int gr_session_profile(struct gr_session *s, bool on)
{
    int rc = 0;
    for (int32_t d = 0; d < s->n_device && !rc; d++) {
        struct gr_backend *b = s->device[d].backend;
        rc = b->api->profile ? b->api->profile(b, on) : 0;
    }
    const struct gr_command_profile c = {.on = on};
    return rc || !s->ranks || !gr_team_is_root(s->rank->team)
               ? rc
               : gr_team_broadcast(s->rank->team, s, GR_COMMAND_PROFILE, &c);
}
