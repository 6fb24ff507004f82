/* The ranks of a model: how many there are, which of them are threads of this process, and which
 * devices each has. */
#ifndef GR_MODEL_RANKS_H
#define GR_MODEL_RANKS_H

#include "model/model.h"

/* How ranks share a model: n_rank / n_shard stages. */
struct gr_ranks {
    struct gr_world *world; /* of processes, one of which is this one; NULL: all are its threads */
    int32_t n_rank, n_shard;
    struct gr_devices devices; /* of this process, or of all processes of its machine */
};
/* What the parameters ask for. GR_E_INVALID says what does not go together; also as
 * gr_devices_choose. */
int gr_ranks_choose(struct gr_ranks *r, const struct gr_model_params *p);

/* What rank i of n has of some GPUs: neighbours go to one rank where there are more GPUs than
 * ranks, and are shared in turn where there are fewer. */
void gr_devices_deal(struct gr_devices *own, const struct gr_devices *all, int32_t i, int32_t n);

/* Gives a model that has been read a slice for each rank that is of this process. */
int gr_ranks_open(struct gr_model *m, const struct gr_ranks *r);

#endif
