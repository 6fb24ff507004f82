/* A shard: the part of a model on one of several ranks that share every layer (tensor parallel). It
 * is a smaller model: fewer heads, key/value heads and feed-forward columns (Shoeybi et al. 2019,
 * arXiv 1909.08053).
 *
 * Which dimension of a weight is split follows from the architecture's table: rows by heads and by
 * feed-forward columns; also columns, where they are multiplied with the results of such rows, and
 * then at whole storage blocks, so shares may be uneven. Everything else is whole on every rank:
 * norms, routers, recurrent layers. The bias of a matrix with split columns is on shard 0 only, so
 * that the sum contains it once. Where there are fewer key/value heads than shards, several shards
 * have the same one. The rows of the output matrix are split too. */
#ifndef GR_MODEL_SHARD_H
#define GR_MODEL_SHARD_H

#include "base/alloc.h"
#include "model/model.h"

struct gr_shard {
    const struct gr_model *model;
    struct gr_share share;
    struct gr_hparams hp;
    struct gr_extent *kv;         /* [n_shard][n_layer]: key/value heads of every shard */
    struct gr_ten *weight, *bias; /* [n_layer + 1][GR_N_SLOT]: views of the model's, or copies */
    struct gr_lora *lora;         /* [model->n_lora], likewise */
    struct gr_vec owned;          /* void *: the copies */
};

/* Creates shard `shard` of n_shard (at least 2): shares, hyper-parameters and weights; copies have
 * no memory until gr_shard_fill. GR_E_UNSUPPORTED says how many shards are possible, or why none
 * are. */
int gr_shard_new(struct gr_shard **out, const struct gr_model *m, int32_t shard, int32_t n_shard);
/* Allocates and fills the copies of layers [lo, hi). */
int gr_shard_fill(struct gr_shard *s, int32_t lo, int32_t hi);
void gr_shard_free(struct gr_shard **s);

/* The columns of the model's K, or V, of layer il that shard i has. */
struct gr_extent gr_shard_k(const struct gr_shard *s, int32_t i, int il);
struct gr_extent gr_shard_v(const struct gr_shard *s, int32_t i, int il);

#endif
