/* A slice: what one rank has of a model. The layers of its stage, of these (with n_shard > 1) its
 * share of the heads and of the feed-forward columns, on devices of its own.
 *
 * Ranks are numbered stage by stage: rank = stage * n_shard + shard. A process that is alone with
 * one GPU, or without, has a model of one slice. */
#ifndef GR_MODEL_SLICE_H
#define GR_MODEL_SLICE_H

#include "model/devices.h"
#include "model/place.h"

struct gr_group;
struct gr_shard;

struct gr_slice {
    struct gr_model *model;
    int32_t rank;
    int32_t stage, n_stage, shard, n_shard;
    /* The model's, or with n_shard > 1 those of the shard: n_head, n_head_kv, n_ff and so on. */
    struct gr_hparams hp;
    /* [n_layer + 1][GR_N_SLOT] on the host: the model's own, or views and copies of the shard. A
     * weight of another stage is described as well, but nobody reads it. */
    const struct gr_ten *weight, *bias;
    const struct gr_lora *lora; /* [model->n_lora] adapters, likewise */
    struct gr_shard *part;      /* with n_shard > 1: where hp and the weights are from */
    struct gr_group *group; /* with whom (engine/group.h), before there are sessions; not its own */
    struct gr_transport *transport; /* of its device to other ranks', or NULL; not its */
    struct gr_devices devices;      /* beside the CPU; a rank's devices are numbered from 1 */
    /* Under the model's lock, once it is open: */
    struct gr_backend *backend[GR_MAX_DEVICE]; /* [1 ..]: hold the weights' memory */
    struct gr_weights placed;
    bool loaded;
};

/* A slice that is all of the model: stage 0 of 1, shard 0 of 1. It joins the model's list, and is
 * freed with the model. NULL: no memory. */
struct gr_slice *gr_slice_add(struct gr_model *m, const struct gr_devices *devices);
/* Makes of a slice that is all of the model shard `shard` of n_shard; before it is placed anywhere.
 * GR_E_UNSUPPORTED as gr_shard_new. */
int gr_slice_share(struct gr_slice *l, int32_t shard, int32_t n_shard);
/* Opens backends for the slice's devices, for weights; nothing when that was done. The lock is
 * held. */
int gr_slice_open_devices(struct gr_slice *l);
/* Moves weights that were described to the devices; they are the slice's then, and *w is empty.
 * GR_E_NOMEM_DEV when there is not enough memory. The lock is held. */
int gr_slice_take(struct gr_slice *l, struct gr_weights *w);
/* All of it, and takes the lock: the weights where `p` wants them; nothing when there are some. */
int gr_slice_load(struct gr_slice *l, const struct gr_placement *p);
void gr_slice_free(struct gr_slice **slice);

#endif
