/* Free memory of a rank's devices, and memory that layers and a session would take there. */
#ifndef GR_PLACEMENT_MEASURE_H
#define GR_PLACEMENT_MEASURE_H

#include "engine/session.h"
#include "model/spot.h"

/* Appends a struct gr_spot for the CPU of a slice's rank and for each of its GPUs, with the memory
 * that is free now. With params and a placement: also the memory that its layers and a session with
 * these parameters take there; without a placement: that of each single layer. params NULL:
 * neither. Opens the devices; uploads nothing and keeps no memory. The caller holds the model's
 * lock. */
int gr_spots_survey(struct gr_slice *l, const struct gr_session_params *params,
                    const struct gr_placement *place, struct gr_vec *spots);

#endif
