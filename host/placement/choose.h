/* Placement: which layers go to which rank and device, from one GPU to many processes. */
#ifndef GR_PLACEMENT_CHOOSE_H
#define GR_PLACEMENT_CHOOSE_H

#include "model/model.h"

/* Surveys all ranks of a model: by m->survey or, where that is NULL, the rank models of this
 * process. The caller holds the model's lock. */
int gr_place_survey(struct gr_model *m, const struct gr_session_params *params,
                    const struct gr_placement *place, struct gr_vec *devices);

/* Places the layers as the model's parameters ask, for sessions with these parameters.
 * GR_E_NOMEM_DEV: they do not fit; a message of several lines says what would. GR_E_DEVICE:
 * require_gpu is set and not one layer fits on a GPU. Logs an automatic choice. Each rank model
 * sets n_device of the placement itself. devices, unless NULL: receives a vector of struct
 * gr_rank_device with the memory taken on each device, after GR_E_NOMEM_DEV too; the caller frees
 * it. The caller holds the model's lock. */
int gr_place_world(struct gr_placement *out, struct gr_model *m,
                   const struct gr_session_params *params, struct gr_vec *devices);

#endif
