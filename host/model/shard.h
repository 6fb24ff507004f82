/* A shard: what one of several ranks that share every layer has of a model. It is a smaller model:
 * fewer heads, key/value heads and feed-forward columns (Shoeybi et al. 2019, arXiv 1909.08053).
 *
 * Which dimension of a weight is split follows from the architecture's table: rows by heads and by
 * feed-forward columns; columns too, where they meet what such rows gave, and then at whole storage
 * blocks, so shares may be uneven. All else is whole on every rank: norms, routers, recurrent
 * layers. A bias that follows split columns is shard 0's, so that the sum has it once. Where there
 * are fewer key/value heads than shards several have the same one. Of the output matrix each has
 * rows of its own. */
#ifndef GR_MODEL_SHARD_H
#define GR_MODEL_SHARD_H

#include "base/alloc.h"
#include "model/model.h"

struct gr_shard {
    const struct gr_model *model;
    struct gr_share share;
    struct gr_hparams hp;
    struct gr_extent *kv;         /* [n_shard][n_layer] key/value heads of every shard */
    struct gr_ten *weight, *bias; /* [n_layer + 1][GR_N_SLOT]: views of the model's, and copies */
    struct gr_lora *lora;         /* [model->n_lora], likewise */
    struct gr_vec owned;          /* void *: the copies */
};

/* Shard `shard` of n_shard (at least 2): shares, hyper-parameters and weights, but that copies have
 * no memory yet. GR_E_UNSUPPORTED says how many shards are possible, or why none are. */
int gr_shard_new(struct gr_shard **out, const struct gr_model *m, int32_t shard, int32_t n_shard);
/* Makes the copies of layers [lo, hi). */
int gr_shard_fill(struct gr_shard *s, int32_t lo, int32_t hi);
void gr_shard_free(struct gr_shard **s);

/* The columns of layer il's K, or V, that shard i has of the model's. */
struct gr_extent gr_shard_k(const struct gr_shard *s, int32_t i, int il);
struct gr_extent gr_shard_v(const struct gr_shard *s, int32_t i, int il);

#endif
