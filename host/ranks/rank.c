#include "ranks/rank.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/cpus.h"
#include "base/threads.h"
#include "engine/fingerprint.h"
#include "gr/status.h"
#include "model/model.h"
#include "placement/fit.h"
#include "ranks/connect.h"
#include "ranks/member.h"
#include "ranks/transport.h"

/* ---- the model ---- */

int gr_team_describe(struct gr_team *t, struct gr_vec *text, struct gr_command_rank *rank)
{
    char model[33], facts[512];
    const struct gr_model *m = t->model;
    int rc = gr_model_hash(m, model);
    if (rc)
        return rc;
    int n = snprintf(facts, sizeof facts,
                     "version: %s\nranks: %d\nlayers: %d\nmodel: %s\nlayers on GPUs: %d\n",
                     gr_version(), t->world->n_rank, m->hp.n_layer, model, m->n_gpu_wanted);
    rc = gr_vec_append(text, facts, (size_t)n, 1);
    n = snprintf(facts, sizeof facts, "layers with experts on the CPU: %d\n", m->n_cpu_experts);
    if (!rc)
        rc = gr_vec_append(text, facts, (size_t)n, 1);
    n = snprintf(facts, sizeof facts, "control vectors: %s\n",
                 gr_control_hash(m, model) ? model : "none");
    if (!rc)
        rc = gr_vec_append(text, facts, (size_t)n, 1);
    if (!rc)
        rc = gr_vec_append(text, m->homes.text.data, m->homes.text.n, 1);
    for (int32_t i = 0; i < m->n_lora && !rc; i++) {
        rc = gr_gguf_hash(m->lora_file[i].gguf, model);
        n = snprintf(facts, sizeof facts, "adapter: %s, scale %.9g\n", model,
                     (double)m->lora_file[i].scale);
        if (!rc)
            rc = gr_vec_append(text, facts, (size_t)n, 1);
    }
    *rank = (struct gr_command_rank){.transports = gr_team_transports(t),
                                     .facts = {text->data, text->n}};
    return rc;
}

int gr_team_read_layers(const struct gr_team *t, const struct gr_command_load *c,
                        struct gr_placement *place)
{
    uint64_t n = (uint64_t)t->model->hp.n_layer + 1;
    bool good = c->n_stage >= 1 && c->n_shard >= 1 && c->stage.n == n && c->device.n == n &&
                c->n_stage == t->rank_model->n_stage && c->n_shard == t->rank_model->n_shard;
    for (uint64_t i = 0; good && i < n; i++)
        good = c->stage.p[i] < c->n_stage && (!i || c->stage.p[i] >= c->stage.p[i - 1]);
    if (!good)
        return gr_fail(GR_E_CORRUPT, "command LOAD: no such layers or ranks");
    *place = (struct gr_placement){.n_stage = c->n_stage, .n_cpu_experts = c->n_cpu_experts};
    memcpy(place->stage, c->stage.p, (size_t)n);
    memcpy(place->layer, c->device.p, (size_t)n);
    return 0;
}

int gr_team_load_own(struct gr_team *t, const struct gr_command_load *c)
{
    struct gr_rank_model *rm = t->rank_model;
    struct gr_placement place;
    int rc = gr_team_read_layers(t, c, &place);
    if (rc)
        return rc;
    gr_world_doing(t->world, GR_DOING_LOAD);
    rc = gr_team_link(t);
    return rc ? rc : gr_rank_model_load(rm, &place);
}

/* ---- sessions ---- */

/* This rank's number of CPU threads: ranks that are threads divide the requested number, processes
 * each use it whole. Without a request all divide the machine's processors, unless each process is
 * bound to its own. */
static int32_t own_threads(const struct gr_team *t, int32_t asked)
{
    bool threads = strcmp(t->world->api->name, "threads") == 0;
    int32_t all = gr_threads_online(), n = t->world->ranks[t->world->rank].n_local;
    if (asked > 0)
        return threads ? GR_MAX(1, asked / n) : asked;
    bool bound = !threads && gr_cpus_bound();
    return bound ? all : GR_MAX(1, all / GR_MAX(1, n));
}

static void share_threads(const struct gr_team *t, struct gr_session_params *p)
{
    if (p->n_threads_batch > 0)
        p->n_threads_batch = own_threads(t, p->n_threads_batch);
    p->n_threads = own_threads(t, p->n_threads);
}

int gr_team_open_own(struct gr_session **out, struct gr_team *t,
                     const struct gr_session_params *params, uint32_t id)
{
    struct gr_session_params own = *params;
    share_threads(t, &own);
    int rc = gr_session_open_rank(out, t->rank_model, &own);
    if (!rc)
        rc = gr_team_add_session(*out, t, id);
    if (rc)
        gr_session_close(out);
    return rc;
}
