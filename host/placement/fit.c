#include "placement/fit.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "engine/open.h"
#include "gr/status.h"
#include "placement/choose.h"
#include "placement/measure.h"
#include "placement/search.h"
#include "placement/suggest.h"

/* ---- loading ---- */

static int load(struct gr_model *m, const struct gr_session_params *params)
{
    struct gr_placement place;
    struct gr_weights w = {0};
    int rc = gr_place_world(&place, m, params, NULL);
    for (int32_t i = 0; i < m->n_rank_model && !rc; i++) {
        rc = gr_weights_describe(&w, m->rank_model[i], &place);
        if (!rc)
            rc = gr_rank_model_upload(m->rank_model[i], &w);
        gr_weights_fini(&w, m->rank_model[i]);
    }
    return rc;
}

/* gr_survey_fn for one rank model alone. */
static int survey_one(void *user, const struct gr_session_params *params,
                      const struct gr_placement *place, struct gr_vec *devices)
{
    return gr_rank_devices_survey(user, params, place, devices);
}

/* Checks that a further session fits beside the weights and sessions that are there. */
static int fit_beside(const struct gr_session *s)
{
    struct gr_session_params asked = s->params;
    asked.offload_from = -1;
    struct gr_choice c = {.m = s->model,
                          .params = &asked,
                          .request = &s->model->split,
                          .survey = survey_one,
                          .user = s->rank_model,
                          .loaded = true};
    bool fits = true;
    if (s->rank_model->placed.place.n_device == 1)
        return 0;
    c.place = s->rank_model->placed.place;
    int rc = gr_choice_begin(&c);
    if (!rc)
        rc = gr_choice_measure(&c, false, &fits);
    if (!rc && !fits)
        rc = gr_choice_explain(&c);
    gr_choice_fini(&c);
    return rc;
}

/* Loads the rank model's weights; where that is done already, checks whether this session fits
 * beside them. */
static int load_for(const struct gr_session *s)
{
    struct gr_model *m = s->model;
    pthread_mutex_lock(&m->lock);
    int rc = s->rank_model->loaded ? fit_beside(s) : load(m, &s->params);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int gr_session_open_rank(struct gr_session **out, struct gr_rank_model *rank_model,
                         const struct gr_session_params *params)
{
    int rc = gr_session_begin(out, rank_model, params, false);
    if (!rc)
        rc = load_for(*out);
    if (!rc)
        rc = gr_session_finish(*out);
    if (rc)
        gr_session_close(out);
    return rc;
}

int gr_placement_load(struct gr_model *m, const struct gr_session_params *params)
{
    pthread_mutex_lock(&m->lock);
    int rc = m->rank_model[0]->loaded ? 0 : load(m, params);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* ---- reports to callers ---- */

/* Returns whether a device is reported: GPUs, rank 0's CPU, the only device of a rank, and CPUs
 * with layers are. alone: the last device of its rank. */
static bool is_reported(const struct gr_rank_device *dev, bool alone, const struct gr_fit_device *f)
{
    return dev->device || dev->rank == 0 || alone || f->n_layer;
}

/* Number of entries for the same GPU, which divide its memory. */
static uint64_t n_sharers(const struct gr_vec *devices, const struct gr_rank_device *dev)
{
    const struct gr_rank_device *o = devices->data;
    uint64_t n = 0;
    for (size_t i = 0; i < devices->n; i++)
        n += o[i].device && !strcmp(o[i].unit, dev->unit);
    return GR_MAX(n, 1);
}

static void report_one(const struct gr_rank_device *dev, const struct gr_placement *p,
                       int32_t n_layer, int32_t stage, struct gr_fit_device *f)
{
    *f = (struct gr_fit_device){.rank = dev->rank,
                                .weights = dev->weights,
                                .cache = dev->cache,
                                .work = dev->work,
                                .free_bytes = dev->device ? dev->free_bytes : 0,
                                .total_bytes = dev->device ? dev->total_bytes : 0};
    snprintf(f->name, sizeof f->name, "%s", dev->name);
    snprintf(f->description, sizeof f->description, "%s", dev->description);
    for (int32_t il = 0; il <= n_layer; il++)
        if (p->stage[il] == stage && p->layer[il] == dev->device) {
            f->first = f->n_layer++ ? f->first : il;
        }
}

static void report(const struct gr_model *m, const struct gr_placement *p,
                   const struct gr_vec *devices, struct gr_fit *fit)
{
    int32_t n = m->hp.n_layer, n_shard = m->rank_model[0]->n_shard;
    *fit = (struct gr_fit){.n_layer = n + 1,
                           .n_gpu_layers = gr_place_n_gpu(p, n),
                           .n_cpu_experts = m->has_experts ? p->n_cpu_experts : 0};
    for (size_t i = 0; i < devices->n && fit->n_device < GR_FIT_MAX; i++) {
        const struct gr_rank_device *dev = (const struct gr_rank_device *)devices->data + i;
        struct gr_fit_device *f = &fit->device[fit->n_device];
        bool alone = i + 1 == devices->n || dev[1].rank != dev->rank;
        if (!dev->rank && !dev->device)
            fit->host_free = dev->free_bytes;
        report_one(dev, p, n, dev->rank / n_shard, f);
        f->free_bytes /= n_sharers(devices, dev), f->total_bytes /= n_sharers(devices, dev);
        fit->n_device += is_reported(dev, alone, f);
    }
}

/* Fills in the memory that a session with all layers has taken. */
static void fill_own(const struct gr_session *s, struct gr_vec *devices)
{
    struct gr_rank_device *dev = devices->data;
    for (size_t i = 0; i < devices->n; i++, dev++) {
        const struct gr_memory_need *has = &s->device[dev->device].has;
        dev->weights = s->rank_model->placed.bytes[dev->device];
        dev->cache = has->cache, dev->work = gr_memory_need_work(has);
    }
}

int gr_placement_of_session(const struct gr_session *s, struct gr_fit *fit)
{
    struct gr_model *m = s->model;
    const struct gr_placement *p = &s->rank_model->placed.place;
    struct gr_vec devices = {0};
    pthread_mutex_lock(&m->lock);
    int rc = p->n_stage > 1 || s->rank_model->n_shard > 1
                 ? gr_place_survey(m, &s->params, p, &devices)
                 : gr_rank_devices_survey(s->rank_model, NULL, NULL, &devices);
    pthread_mutex_unlock(&m->lock);
    if (!rc && p->n_stage == 1 && s->rank_model->n_shard == 1)
        fill_own(s, &devices);
    if (!rc)
        report(m, p, &devices, fit);
    gr_vec_fini(&devices);
    return rc;
}

int gr_placement_of_model(struct gr_model *m, const struct gr_session_params *params,
                          struct gr_fit *fit)
{
    struct gr_placement place;
    struct gr_vec devices;
    pthread_mutex_lock(&m->lock);
    int rc = gr_place_world(&place, m, params, &devices);
    pthread_mutex_unlock(&m->lock);
    if (!rc || rc == GR_E_NOMEM_DEV)
        report(m, &place, &devices, fit);
    gr_vec_fini(&devices);
    return rc;
}
