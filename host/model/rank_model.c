#include "model/rank_model.h"

#include "base/alloc.h"
#include "model/lock.h"
#include "model/model.h"
#include "model/shard.h"

struct gr_rank_model *gr_rank_model_add(struct gr_model *m, const struct gr_devices *devices)
{
    struct gr_rank_model *rm =
        m->n_rank_model < GR_MAX_RANK_MODEL ? gr_calloc(1, sizeof *rm) : NULL;
    if (!rm)
        return NULL;
    rm->model = m;
    rm->n_stage = rm->n_shard = 1;
    rm->hp = m->hp;
    rm->weight = m->weight, rm->bias = m->bias, rm->lora = m->lora;
    rm->devices = *devices;
    return m->rank_model[m->n_rank_model++] = rm;
}

int gr_rank_model_shard(struct gr_rank_model *rm, int32_t shard, int32_t n_shard)
{
    int rc = n_shard > 1 ? gr_shard_new(&rm->sharded, rm->model, shard, n_shard) : 0;
    if (rc || !rm->sharded)
        return rc;
    rm->shard = shard, rm->n_shard = n_shard;
    rm->hp = rm->sharded->hp;
    rm->weight = rm->sharded->weight, rm->bias = rm->sharded->bias, rm->lora = rm->sharded->lora;
    return 0;
}

int gr_rank_model_open_devices(struct gr_rank_model *rm)
{
    int rc = 0;
    for (int32_t i = 0; i < rm->devices.n && !rc; i++) {
        struct gr_device_ref *f = &rm->devices.found[i];
        struct gr_device_opt opt = {0};
        if (!rm->backend[i + 1])
            rc = f->kind->open(&rm->backend[i + 1], f->index, &opt);
    }
    return rc;
}

/* Fills the shard's copies for the layers of the rank model's stage. */
static int fill(struct gr_rank_model *rm, const struct gr_placement *p)
{
    int32_t lo = 0, hi = rm->hp.n_layer;
    while (lo < hi && p->stage[lo] < rm->stage)
        lo++;
    while (hi > lo && p->stage[hi - 1] > rm->stage)
        hi--;
    return rm->sharded ? gr_shard_fill(rm->sharded, lo, hi) : 0;
}

int gr_rank_model_upload(struct gr_rank_model *rm, struct gr_weights *w)
{
    int rc = fill(rm, &w->place);
    if (!rc)
        rc = gr_weights_upload(w, rm);
    if (rc)
        return rc;
    rm->placed = *w;
    *w = (struct gr_weights){0};
    rm->loaded = true;
    if (rm->model->use_mlock)
        gr_weights_lock(rm);
    return 0;
}

int gr_rank_model_load(struct gr_rank_model *rm, const struct gr_placement *p)
{
    struct gr_weights w = {0};
    pthread_mutex_lock(&rm->model->lock);
    int rc = rm->loaded ? 0 : gr_rank_model_open_devices(rm);
    if (!rc && !rm->loaded)
        rc = gr_weights_describe(&w, rm, p);
    if (!rc && !rm->loaded)
        rc = gr_rank_model_upload(rm, &w);
    gr_weights_fini(&w, rm);
    pthread_mutex_unlock(&rm->model->lock);
    return rc;
}

void gr_rank_model_free(struct gr_rank_model **rank_model)
{
    struct gr_rank_model *rm = *rank_model;
    if (!rm)
        return;
    if (rm->loaded && rm->model->use_mlock)
        gr_weights_unlock(rm);
    gr_weights_fini(&rm->placed, rm);
    for (int d = 1; d < GR_MAX_DEVICE; d++)
        if (rm->backend[d])
            rm->backend[d]->api->close(&rm->backend[d]);
    gr_shard_free(&rm->sharded);
    gr_free(rm);
    *rank_model = NULL;
}
