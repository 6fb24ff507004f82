/* A slice: what one rank has of a model. The layers of its stage, of these (with n_shard > 1) its
 * share of the heads and of the feed-forward columns, on devices of its own.
 *
 * Ranks are numbered stage by stage: rank = stage * n_shard + shard. A process that is alone with
 * one GPU, or without, has a model of one slice. */
#ifndef GR_MODEL_SLICE_H
#define GR_MODEL_SLICE_H

#include "model/devices.h"
#include "model/place.h"

struct gr_slice {
    struct gr_model *model;
    int32_t rank;
    int32_t stage, n_stage, shard, n_shard;
    /* The model's, or with n_shard > 1 those of the shard: n_head, n_head_kv, n_ff and so on. */
    struct gr_hparams hp;
    /* [n_layer + 1][GR_N_SLOT] on the host: the model's own, or views and copies of the shard. A
     * weight of another stage is described as well, but nobody reads it. */
    const struct gr_ten *weight, *bias;
    struct gr_devices devices; /* beside the CPU; a rank's devices are numbered from 1 */
    struct gr_backend *backend[GR_MAX_DEVICE]; /* [1 ..]: hold the weights' memory */
    struct gr_weights placed;
    bool loaded;
};

#endif
