/* Free memory of a rank's devices, and memory that layers and a session would take there. */
#ifndef GR_PLACEMENT_MEASURE_H
#define GR_PLACEMENT_MEASURE_H

#include "engine/session.h"
#include "model/rank_device.h"

/* Appends a struct gr_rank_device for the CPU of a rank and for each of its GPUs, with the memory
 * that is free now. With params and a placement: also the memory that its layers and a session with
 * these parameters take there; without a placement (NULL, or n_stage 0): that of each single layer,
 * with place->n_cpu_experts. params NULL: neither. Opens the devices, uploads nothing and keeps no
 * memory. Under the model's lock. */
int gr_rank_devices_survey(struct gr_rank_model *rm, const struct gr_session_params *params,
                           const struct gr_placement *place, struct gr_vec *devices);

#endif
