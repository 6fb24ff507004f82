/* What the devices of a rank have, and what layers of a model and a session would take there. */
#ifndef GR_ENGINE_SPOTS_H
#define GR_ENGINE_SPOTS_H

#include "engine/session.h"
#include "model/spot.h"

/* Appends a struct gr_spot for the CPU of a slice's rank and for each of its GPUs, with the memory
 * that is free now. With a placement: and what exactly its layers there take, for sessions like
 * this one; without: what each layer would. params NULL: neither. Opens the devices; nothing is
 * moved, and no memory is taken that stays. The model's lock is held. */
int gr_spots_survey(struct gr_slice *l, const struct gr_session_params *params,
                    const struct gr_placement *place, struct gr_vec *spots);

#endif
