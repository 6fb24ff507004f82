#include "model/rank_model.h"

#include "base/alloc.h"
#include "model/model.h"
#include "model/shard.h"

struct gr_rank_model *gr_rank_model_add(struct gr_model *m, const struct gr_devices *devices)
{
    struct gr_rank_model *l = m->n_rank_model < GR_MAX_RANK_MODEL ? gr_calloc(1, sizeof *l) : NULL;
    if (!l)
        return NULL;
    l->model = m;
    l->n_stage = l->n_shard = 1;
    l->hp = m->hp;
    l->weight = m->weight, l->bias = m->bias, l->lora = m->lora;
    l->devices = *devices;
    return m->rank_model[m->n_rank_model++] = l;
}

int gr_rank_model_shard(struct gr_rank_model *l, int32_t shard, int32_t n_shard)
{
    int rc = n_shard > 1 ? gr_shard_new(&l->sharded, l->model, shard, n_shard) : 0;
    if (rc || !l->sharded)
        return rc;
    l->shard = shard, l->n_shard = n_shard;
    l->hp = l->sharded->hp;
    l->weight = l->sharded->weight, l->bias = l->sharded->bias, l->lora = l->sharded->lora;
    return 0;
}

int gr_rank_model_open_devices(struct gr_rank_model *l)
{
    int rc = 0;
    for (int32_t i = 0; i < l->devices.n && !rc; i++) {
        struct gr_device_ref *f = &l->devices.found[i];
        struct gr_device_opt opt = {0};
        if (!l->backend[i + 1])
            rc = f->kind->open(&l->backend[i + 1], f->index, &opt);
    }
    return rc;
}

/* Fills the shard's copies for the layers of the rank model's stage. */
static int fill(struct gr_rank_model *l, const struct gr_placement *p)
{
    int32_t lo = 0, hi = l->hp.n_layer;
    while (lo < hi && p->stage[lo] < l->stage)
        lo++;
    while (hi > lo && p->stage[hi - 1] > l->stage)
        hi--;
    return l->sharded ? gr_shard_fill(l->sharded, lo, hi) : 0;
}

int gr_rank_model_upload(struct gr_rank_model *l, struct gr_weights *w)
{
    int rc = fill(l, &w->place);
    if (!rc)
        rc = gr_weights_upload(w, l);
    if (rc)
        return rc;
    l->placed = *w;
    *w = (struct gr_weights){0};
    l->loaded = true;
    return 0;
}

int gr_rank_model_load(struct gr_rank_model *l, const struct gr_placement *p)
{
    struct gr_weights w = {0};
    pthread_mutex_lock(&l->model->lock);
    int rc = l->loaded ? 0 : gr_rank_model_open_devices(l);
    if (!rc && !l->loaded)
        rc = gr_weights_describe(&w, l, p);
    if (!rc && !l->loaded)
        rc = gr_rank_model_upload(l, &w);
    gr_weights_fini(&w, l);
    pthread_mutex_unlock(&l->model->lock);
    return rc;
}

void gr_rank_model_free(struct gr_rank_model **rank_model)
{
    struct gr_rank_model *l = *rank_model;
    if (!l)
        return;
    gr_weights_fini(&l->placed, l);
    for (int d = 1; d < GR_MAX_DEVICE; d++)
        if (l->backend[d])
            l->backend[d]->api->close(&l->backend[d]);
    gr_shard_free(&l->sharded);
    gr_free(l);
    *rank_model = NULL;
}
