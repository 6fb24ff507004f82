/* A rank model, the part of a model on one rank: the layers of its stage and, with n_shard > 1, its
 * share of their heads and feed-forward columns, on devices of its own.
 *
 * Ranks are numbered stage by stage: rank = stage * n_shard + shard. A single process with one GPU
 * or none has one rank model. */
#ifndef GR_MODEL_RANK_MODEL_H
#define GR_MODEL_RANK_MODEL_H

#include "model/devices.h"
#include "model/place.h"

struct gr_tp_group;
struct gr_shard;

struct gr_rank_model {
    struct gr_model *model;
    int32_t rank;
    int32_t stage, n_stage, shard, n_shard;
    /* parameters of the model, or with n_shard > 1 of the shard: numbers of heads, columns and so
     * on */
    struct gr_hparams hp;
    /* [n_layer + 1][GR_N_SLOT] on the host: the model's, or views and copies of the shard. Weights
     * of other stages are described as well, but not read. */
    const struct gr_ten *weight, *bias;
    const struct gr_lora *lora;     /* [model->n_lora] adapters, likewise */
    struct gr_shard *sharded;       /* with n_shard > 1: the source of hp and the weights */
    struct gr_tp_group *tp_group;   /* link/tp_group.h; not owned */
    struct gr_transport *transport; /* between its device and other ranks', or NULL; not owned */
    struct gr_devices devices;      /* besides the CPU; numbered from 1 within a rank */
    /* Under the model's lock once the model is open: */
    struct gr_backend *backend[GR_MAX_DEVICE]; /* [1 ..]: hold the weights' memory */
    struct gr_weights placed;
    bool loaded;
};

/* Adds a rank model that is the whole model (stage 0 of 1, shard 0 of 1) to the model's list; it is
 * freed with the model. NULL when out of memory or past GR_MAX_RANK_MODEL. */
struct gr_rank_model *gr_rank_model_add(struct gr_model *m, const struct gr_devices *devices);
/* Turns a rank model that is the whole model into shard `shard` of n_shard, before it is placed.
 * GR_E_UNSUPPORTED as gr_shard_new. */
int gr_rank_model_shard(struct gr_rank_model *rm, int32_t shard, int32_t n_shard);
/* Opens backends for the rank model's devices, to hold weights; does nothing when they are open.
 * The caller holds the lock. */
int gr_rank_model_open_devices(struct gr_rank_model *rm);
/* Uploads weights that were described to the devices; the rank model then owns them, and *w is
 * empty. GR_E_NOMEM_DEV when there is not enough memory. The caller holds the lock. */
int gr_rank_model_upload(struct gr_rank_model *rm, struct gr_weights *w);
/* Takes the lock, opens the devices and uploads the weights as placed by `p`; does nothing when
 * they are loaded. */
int gr_rank_model_load(struct gr_rank_model *rm, const struct gr_placement *p);
void gr_rank_model_free(struct gr_rank_model **rank_model);

#endif
