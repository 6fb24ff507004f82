/* The ranks of a model: their number, their devices, and which are threads of this process. */
#ifndef GR_RANKS_CHOOSE_H
#define GR_RANKS_CHOOSE_H

#include "model/model.h"

/* How ranks share a model: n_rank / n_shard stages. */
struct gr_ranks {
    struct gr_world *world; /* processes, this one included; NULL: threads of this process */
    int32_t n_rank, n_shard;
    struct gr_devices devices; /* devices of this process, or of all processes on its machine */
};
/* Chooses the ranks that the parameters ask for. GR_E_INVALID names parameters that contradict each
 * other; other errors as gr_devices_choose. */
int gr_ranks_choose(struct gr_ranks *r, const struct gr_model_params *p);

/* Gives rank i of n its share of GPUs: neighbouring GPUs go to one rank where there are more GPUs
 * than ranks; with fewer, ranks share them in turn. */
void gr_devices_assign(struct gr_devices *own, const struct gr_devices *all, int32_t i, int32_t n);

/* Adds a rank model for each rank of this process to a model that has been read. */
int gr_ranks_open(struct gr_model *m, const struct gr_ranks *r);

#endif
