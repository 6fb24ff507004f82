/* One rank's team object: its ports to the other ranks, opened and tested. */
#include "ranks/connect.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "gr/status.h"
#include "model/rank_model.h"
#include "ranks/team.h"

#define TRY_NS (60 * (int64_t)1000000000) /* time limit of the link test of all ranks */

static int open_port(struct gr_team *t, struct gr_port *p, enum gr_lane lane, int32_t from,
                     int32_t to)
{
    p->sum = lane == GR_LANE_DATA;
    return gr_world_link(t->world, lane, from, to, &p->link);
}

static int open_ports(struct gr_team *t)
{
    int32_t own = t->world->rank, n = t->world->n_rank;
    int rc = 0;
    for (int32_t r = own ? 0 : 1; r < (own ? 1 : n) && !rc; r++) {
        int32_t served = own ? own : r;
        rc = open_port(t, &t->command[r], GR_LANE_COMMAND, 0, served);
        if (!rc)
            rc = open_port(t, &t->result[r], GR_LANE_RESULT, served, 0);
    }
    return rc;
}

/* Tests the data links, except wrapped ones: a test's faults are meant for later messages. */
static int try_links(struct gr_team *t)
{
    struct gr_chain_end in = {t->in.link ? &t->in : NULL, &t->path, t->transport_in, 0};
    struct gr_chain_end out = {t->out.link ? &t->out : NULL, &t->path, t->transport_out, 0};
    int64_t until = GR_MIN(gr_team_deadline(), gr_now_ns() + TRY_NS);
    if (t->world->wrap)
        return 0;
    t->found = gr_calloc((size_t)t->world->n_rank, sizeof *t->found);
    int rc = t->found ? gr_chain_try(t->world, &in, &out, until, t->found, &t->n_found)
                      : GR_E_NOMEM_HOST;
    t->transport_in = in.chosen < in.n_path;
    t->transport_out = out.chosen < out.n_path;
    return rc ? gr_team_lose(t, t->world->rank) : 0;
}

static int open_tp_group(struct gr_team *t)
{
    if (t->tp_group)
        return 0;
    int rc = gr_tp_group_open(&t->tp_group, t->world, t->rank_model->n_shard);
    if (rc)
        return rc;
    t->tp_group->patience_ns = gr_team_testing()->patience_ns;
    t->tp_group->transport = t->transport_gathers ? t->rank_model->transport : NULL;
    t->rank_model->tp_group = t->tp_group;
    rc = t->world->wrap ? 0 : gr_tp_group_try(t->tp_group, t->path.backend, &t->shared);
    t->transport_gathers = t->tp_group->transport != NULL;
    return rc ? gr_team_lose(t, t->world->rank) : 0;
}

int gr_team_link(struct gr_team *t)
{
    const struct gr_rank_model *rm = t->rank_model;
    int32_t own = t->world->rank;
    int rc = 0;
    if (t->in.link || t->out.link || t->found)
        return 0;
    if (rm->n_shard > 1)
        rc = open_tp_group(t);
    if (!rc && rm->stage > 0)
        rc = open_port(t, &t->in, GR_LANE_DATA, own - rm->n_shard, own);
    if (!rc && rm->stage < rm->n_stage - 1)
        rc = open_port(t, &t->out, GR_LANE_DATA, own, own + rm->n_shard);
    return rc ? gr_team_lose(t, own) : try_links(t); /* the others would wait for its tests */
}

int gr_team_new(struct gr_team **out, struct gr_model *m, struct gr_world *w,
                struct gr_rank_model *rank_model)
{
    struct gr_team *t = *out = gr_calloc(1, sizeof *t);
    pthread_mutexattr_t recursive;
    if (!t)
        return GR_E_NOMEM_HOST;
    t->model = m, t->world = w, t->rank_model = rank_model;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&t->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    t->clock_ns = gr_calloc((size_t)w->n_rank, sizeof *t->clock_ns);
    int rc = t->clock_ns ? open_ports(t) : GR_E_NOMEM_HOST;
    t->open = !rc;
    if (rc)
        gr_team_free_own(out);
    return rc;
}

static void free_ports(struct gr_team *t)
{
    for (int32_t r = 0; r < t->world->n_rank; r++) {
        gr_link_close(&t->command[r].link);
        gr_link_close(&t->result[r].link);
    }
    gr_link_close(&t->in.link);
    gr_link_close(&t->out.link);
    gr_tp_group_close(&t->tp_group);
    t->rank_model->tp_group = NULL;
}

void gr_team_free_own(struct gr_team **team)
{
    struct gr_team *t = *team;
    if (!t)
        return;
    free_ports(t);
    for (size_t i = 0; i < t->messages.n; i++) {
        struct gr_message *m = ((struct gr_message **)t->messages.data)[i];
        gr_vec_fini(&m->bytes);
        gr_free(m);
    }
    gr_vec_fini(&t->messages);
    gr_vec_fini(&t->sessions);
    gr_vec_fini(&t->body);
    gr_free(t->clock_ns);
    gr_free(t->found);
    pthread_mutex_destroy(&t->lock);
    gr_free(t);
    *team = NULL;
}
