/* Which layers go to which rank and device: decided here, for a model that is alone with one GPU as
 * for one of many processes. */
#ifndef GR_ENGINE_PLACE_H
#define GR_ENGINE_PLACE_H

#include "model/model.h"

/* Asks all ranks of a model: m->survey, or where that is NULL the slices of this process. The
 * model's lock is held. */
int gr_place_survey(struct gr_model *m, const struct gr_session_params *params,
                    const struct gr_placement *place, struct gr_vec *spots);

/* Decides as the model's parameters ask, for sessions like this one; m->survey asks all ranks. What
 * does not fit is GR_E_NOMEM_DEV, with a message of several lines that says what would.
 * GR_E_DEVICE: require_gpu, and not one layer fits on a GPU. Says in the log what it chose where it
 * had a choice. n_device of the placement is left to each slice. spots, unless NULL: becomes a
 * vector of struct gr_spot with what is taken where, after GR_E_NOMEM_DEV too; the caller's to
 * free. The model's lock is held. */
int gr_place_world(struct gr_placement *out, struct gr_model *m,
                   const struct gr_session_params *params, struct gr_vec *spots);

#endif
