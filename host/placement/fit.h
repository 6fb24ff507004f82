/* Memory that a model and a session take on each device, worked out before anything is uploaded:
 * how many layers fit, and what helps when the requested ones do not. */
#ifndef GR_PLACEMENT_FIT_H
#define GR_PLACEMENT_FIT_H

#include "engine/session.h"

/* Fills in defaults that depend on the model and the machine, and checks all parameters except
 * those of the caches (gr_memory_plan). */
int gr_session_fill(const struct gr_model *model, struct gr_session_params *p);

/* Makes a session without GPUs and cache memory: checked parameters, the caches' shapes, the
 * constants on the CPU. Closed by gr_session_close, also after a failure. */
int gr_session_begin(struct gr_session **out, struct gr_slice *slice,
                     const struct gr_session_params *params, const struct gr_cpu_use *use);

/* Opens the devices of the session's slice, places the layers and uploads the weights; if that is
 * done already, checks whether this session fits beside them. GR_E_NOMEM_DEV: the message is a
 * table of what is needed and what would fit. */
int gr_budget_load(struct gr_session *s);

#endif
