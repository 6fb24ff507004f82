#include "model/slice.h"

#include "base/alloc.h"
#include "model/model.h"
#include "model/shard.h"

struct gr_slice *gr_slice_add(struct gr_model *m, const struct gr_devices *devices)
{
    struct gr_slice *l = m->n_slice < GR_MAX_SLICE ? gr_calloc(1, sizeof *l) : NULL;
    if (!l)
        return NULL;
    l->model = m;
    l->n_stage = l->n_shard = 1;
    l->hp = m->hp;
    l->weight = m->weight, l->bias = m->bias, l->lora = m->lora;
    l->devices = *devices;
    return m->slice[m->n_slice++] = l;
}

int gr_slice_share(struct gr_slice *l, int32_t shard, int32_t n_shard)
{
    int rc = n_shard > 1 ? gr_shard_new(&l->part, l->model, shard, n_shard) : 0;
    if (rc || !l->part)
        return rc;
    l->shard = shard, l->n_shard = n_shard;
    l->hp = l->part->hp;
    l->weight = l->part->weight, l->bias = l->part->bias, l->lora = l->part->lora;
    return 0;
}

int gr_slice_open_devices(struct gr_slice *l)
{
    int rc = 0;
    for (int32_t i = 0; i < l->devices.n && !rc; i++) {
        struct gr_found *f = &l->devices.found[i];
        struct gr_device_opt opt = {0};
        if (!l->backend[i + 1])
            rc = f->kind->open(&l->backend[i + 1], f->index, &opt);
    }
    return rc;
}

/* Fills the shard's copies for the layers of the slice's stage. */
static int fill(struct gr_slice *l, const struct gr_placement *p)
{
    int32_t lo = 0, hi = l->hp.n_layer;
    while (lo < hi && p->stage[lo] < l->stage)
        lo++;
    while (hi > lo && p->stage[hi - 1] > l->stage)
        hi--;
    return l->part ? gr_shard_fill(l->part, lo, hi) : 0;
}

int gr_slice_take(struct gr_slice *l, struct gr_weights *w)
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

int gr_slice_load(struct gr_slice *l, const struct gr_placement *p)
{
    struct gr_weights w = {0};
    pthread_mutex_lock(&l->model->lock);
    int rc = l->loaded ? 0 : gr_slice_open_devices(l);
    if (!rc && !l->loaded)
        rc = gr_weights_describe(&w, l, p);
    if (!rc && !l->loaded)
        rc = gr_slice_take(l, &w);
    gr_weights_fini(&w, l);
    pthread_mutex_unlock(&l->model->lock);
    return rc;
}

void gr_slice_free(struct gr_slice **slice)
{
    struct gr_slice *l = *slice;
    if (!l)
        return;
    gr_weights_fini(&l->placed, l);
    for (int d = 1; d < GR_MAX_DEVICE; d++)
        if (l->backend[d])
            l->backend[d]->api->close(&l->backend[d]);
    gr_shard_free(&l->part);
    gr_free(l);
    *slice = NULL;
}
