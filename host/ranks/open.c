#include "ranks/open.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "gr/status.h"
#include "placement/choose.h"
#include "placement/fit.h"
#include "placement/measure.h"
#include "ranks/broadcast.h"
#include "ranks/command.h"
#include "ranks/params.h"
#include "ranks/rank.h"
#include "ranks/start.h"
#include "ranks/team.h"
#include "ranks/times.h"
#include "ranks/transport.h"

/* ---- handshake ---- */

/* The first line of n bytes, without its newline. */
static struct gr_str line_of(const char *p, size_t n)
{
    const char *end = n ? memchr(p, '\n', n) : NULL;
    return (struct gr_str){p, end ? (size_t)(end - p) : n};
}

/* Returns GR_E_INVALID, naming the rank and both values, when its facts differ from rank 0's. */
static int compare(const struct gr_team *t, int32_t rank, const char *want, size_t n_want,
                   const char *found, size_t n_found)
{
    char name[128];
    while (n_want || n_found) {
        struct gr_str a = line_of(want, n_want), b = line_of(found, n_found);
        if (a.n != b.n || (a.n && memcmp(a.p, b.p, a.n) != 0))
            return gr_fail(GR_E_INVALID,
                           "%s has %s where rank 0 has %s: all ranks need the same program, model "
                           "and parameters",
                           gr_world_name(t->world, rank, name, sizeof name), gr_quote(b.p, b.n),
                           gr_quote(a.p, a.n));
        size_t skip_a = GR_MIN(a.n + 1, n_want), skip_b = GR_MIN(b.n + 1, n_found);
        want += skip_a, n_want -= skip_a, found += skip_b, n_found -= skip_b;
    }
    return 0;
}

static int handshake(struct gr_team *t)
{
    struct gr_vec text = {0};
    struct gr_command_rank own, other;
    int rc = gr_team_broadcast(t, NULL, GR_COMMAND_HANDSHAKE, NULL);
    int described = rc ? 0 : gr_team_describe(t, &text, &own);
    t->transports[0] = described ? 0 : own.transports;
    int differs = 0;
    for (int32_t r = 1; r < t->world->n_rank && !rc; r++) {
        rc = gr_team_receive_answer(t, r, GR_COMMAND_RANK, &other);
        t->transports[r] = rc ? 0 : other.transports;
        if (!rc && !described && !differs)
            differs = compare(t, r, own.facts.p, (size_t)own.facts.n, other.facts.p,
                              (size_t)other.facts.n);
    }
    gr_vec_fini(&text);
    return rc ? rc : described ? described : differs;
}

/* ---- placing ---- */

/* gr_survey_fn of a team: surveys the devices of this process and of all others. */
static int survey(void *user, const struct gr_session_params *params,
                  const struct gr_placement *place, struct gr_vec *devices)
{
    struct gr_team *t = user;
    struct gr_vec bytes = {0};
    struct gr_command_survey c = {0};
    uint64_t n = (uint64_t)t->model->hp.n_layer + 1;
    struct gr_command_open open = params ? gr_command_open_of(params) : (struct gr_command_open){0};
    int rc = params ? gr_command_write(&bytes, GR_COMMAND_OPEN, &open) : 0;
    c.params.p = bytes.data, c.params.n = bytes.n;
    c.n_cpu_experts = place ? place->n_cpu_experts : 0;
    if (place && place->n_stage) {
        c.n_stage = place->n_stage, c.n_shard = t->rank_model->n_shard;
        c.stage.p = place->stage, c.device.p = place->layer;
        c.stage.n = c.device.n = n;
    }
    if (!rc)
        rc = gr_team_broadcast(t, NULL, GR_COMMAND_SURVEY, &c);
    int own = rc ? 0 : gr_rank_devices_survey(t->rank_model, params, place, devices);
    for (int32_t r = 1; r < t->world->n_rank && !rc; r++) {
        int one = gr_team_receive_answer(t, r, GR_COMMAND_DEVICES, NULL);
        rc = gr_team_check(t);
        own = own ? own : one;
        if (!rc && !own)
            own = gr_vec_append(devices, t->body.data, t->body.n / sizeof(struct gr_rank_device),
                                sizeof(struct gr_rank_device));
    }
    gr_vec_fini(&bytes);
    return rc ? rc : own;
}

int gr_team_handshake(struct gr_team *t)
{
    if (!gr_team_is_root(t))
        return gr_fail(GR_E_INVALID,
                       "rank %d does with the model what rank 0 does with it, and nothing else: "
                       "gr_world_serve",
                       t->world->rank);
    gr_team_lock(t);
    int rc = gr_team_check(t);
    if (!rc && !t->handshake_done)
        rc = handshake(t);
    if (!rc && !t->handshake_done)
        rc = gr_team_set_clocks(t);
    if (!t->threads)
        t->model->survey = survey, t->model->survey_user = t;
    t->handshake_done |= !rc;
    gr_team_unlock(t);
    return rc;
}

/* Decides the placement for all ranks. */
static int place(struct gr_team *t, const struct gr_session_params *params,
                 struct gr_placement *out)
{
    struct gr_model *m = t->model;
    pthread_mutex_lock(&m->lock);
    int rc = gr_place_world(out, m, params, NULL);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* Result of a command on all ranks, once rank 0 has done its own part with status `own`. */
static int outcome(struct gr_team *t, int own)
{
    char why[800];
    snprintf(why, sizeof why, "%s", gr_error());
    int rc = gr_team_collect_status(t);
    bool lost = rc && gr_team_check(t);
    return lost || !gr_team_more_informative(own, rc) ? rc : gr_fail(own, "%s", why);
}

static int broadcast_join(struct gr_team *t, const struct gr_command_join *c)
{
    int rc = gr_team_broadcast(t, NULL, GR_COMMAND_JOIN, c);
    return rc ? rc : outcome(t, gr_team_join_transport(t, c));
}

/* Makes a transport of the ranks whose devices can communicate directly. When that fails, values go
 * through host memory. */
static int make_transport(struct gr_team *t, const struct gr_placement *place)
{
    uint8_t member[GR_MAX_RANK];
    struct gr_transport_ticket ticket;
    struct gr_command_join c = {.ticket = {ticket.bytes, sizeof ticket.bytes},
                                .member = {member, (uint64_t)t->world->n_rank}};
    if (!gr_team_choose_transport(t, place, member))
        return 0;
    int rc = gr_team_transport_ticket(t, &ticket);
    if (!rc)
        rc = broadcast_join(t, &c);
    if (!rc || gr_team_check(t))
        return gr_team_check(t);
    gr_log(GR_LOG_WARN, "%s; what goes from GPU to GPU goes through the host", gr_error());
    c.member.n = 0;
    return broadcast_join(t, &c);
}

static int broadcast_load(struct gr_team *t, const struct gr_placement *place)
{
    uint64_t n = (uint64_t)t->model->hp.n_layer + 1;
    struct gr_command_load c = {.n_stage = place->n_stage,
                                .n_shard = t->rank_model->n_shard,
                                .n_cpu_experts = place->n_cpu_experts,
                                .stage = {place->stage, n},
                                .device = {place->layer, n}};
    int rc = gr_team_broadcast(t, NULL, GR_COMMAND_LOAD, &c);
    return rc ? rc : outcome(t, gr_team_load_own(t, &c));
}

int gr_team_load(struct gr_team *t, const struct gr_session_params *params)
{
    struct gr_placement layers;
    gr_team_lock(t);
    int rc = gr_team_handshake(t);
    if (!rc && !t->loaded)
        rc = place(t, params, &layers);
    if (!rc && !t->loaded)
        rc = make_transport(t, &layers);
    if (!rc && !t->loaded)
        rc = broadcast_load(t, &layers);
    t->loaded |= !rc;
    gr_team_unlock(t);
    return rc;
}

/* ---- sessions ---- */

/* Finds the first free session number; gr_team_open_own takes it. */
static int number_of(struct gr_team *t, uint32_t *id)
{
    struct gr_session **s = t->sessions.data, *none = NULL;
    for (*id = 0; *id < t->sessions.n; ++*id)
        if (!s[*id])
            return 0;
    return gr_vec_append(&t->sessions, &none, 1, sizeof(struct gr_session *));
}

static int open_everywhere(struct gr_session **out, struct gr_team *t,
                           const struct gr_session_params *p, uint32_t id)
{
    struct gr_command_open c = gr_command_open_of(p);
    char why[800];
    int rc = gr_team_broadcast_id(t, id, GR_COMMAND_OPEN, &c, 0);
    if (rc)
        return rc;
    int own = gr_team_open_own(out, t, p, id);
    snprintf(why, sizeof why, "%s", gr_error());
    int others = gr_team_collect_status(t);
    if (!own && !others)
        return 0;
    if (own)
        gr_fail(own, "%s", why);
    snprintf(why, sizeof why, "%s", gr_error());
    if (own) /* gr_session_close closes an own session on all ranks */
        (void)gr_team_broadcast_or_lose(t, id, GR_COMMAND_CLOSE, NULL, 0);
    gr_session_close(out);
    return gr_fail(own ? own : others, "%s", why);
}

int gr_team_open_session(struct gr_session **out, struct gr_team *t,
                         const struct gr_session_params *params)
{
    const struct gr_session_params usual = gr_session_params_default();
    const struct gr_session_params *p = params ? params : &usual;
    uint32_t id;
    *out = NULL;
    int rc = gr_team_load(t, params);
    gr_team_lock(t);
    if (!rc)
        rc = number_of(t, &id);
    if (!rc)
        rc = open_everywhere(out, t, p, id);
    if (!rc) /* those of all ranks together, for gr_session_resize */
        (*out)->params.n_threads = p->n_threads,
        (*out)->params.n_threads_batch = p->n_threads_batch;
    gr_team_unlock(t);
    return rc;
}

/* ---- for callers ---- */

int gr_session_open(struct gr_session **out, struct gr_model *model,
                    const struct gr_session_params *params)
{
    struct gr_team *team;
    *out = NULL;
    int rc = gr_team_of(model, &team);
    if (rc)
        return rc;
    return team ? gr_team_open_session(out, team, params)
                : gr_session_open_rank(out, model->rank_model[0], params);
}

int gr_model_load(struct gr_model *model, const struct gr_session_params *params)
{
    struct gr_team *team;
    int rc = gr_team_of(model, &team);
    if (rc)
        return rc;
    return team ? gr_team_load(team, params) : gr_placement_load(model, params);
}

int gr_session_fit(const struct gr_session *s, struct gr_fit *fit)
{
    struct gr_team *team = s->ranks ? s->rank->team : NULL;
    *fit = (struct gr_fit){0};
    gr_team_lock(team);
    int rc = gr_placement_of_session(s, fit);
    gr_team_unlock(team);
    return rc;
}

int gr_model_fit(struct gr_model *model, const struct gr_session_params *params, struct gr_fit *fit)
{
    struct gr_team *team;
    *fit = (struct gr_fit){0};
    int rc = gr_team_of(model, &team);
    if (!rc && team)
        rc = gr_team_handshake(team);
    if (rc)
        return rc;
    gr_team_lock(team);
    rc = gr_placement_of_model(model, params, fit);
    gr_team_unlock(team);
    return rc;
}
