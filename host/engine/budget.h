/* What a model and a session take on each device, before anything is moved there: how many layers
 * fit, and what helps when those asked for do not. */
#ifndef GR_ENGINE_BUDGET_H
#define GR_ENGINE_BUDGET_H

#include "engine/session.h"

/* Fills in what depends on the model and the machine, and checks what does not depend on the
 * caches. */
int gr_session_fill(const struct gr_model *model, struct gr_session_params *p);

/* A session with everything but devices and memory: parameters checked, the caches' shapes, the
 * constants. Closed by gr_session_close, also after a failure. */
int gr_session_begin(struct gr_session **out, struct gr_slice *slice,
                     const struct gr_session_params *params, const struct gr_cpu_use *use);

/* Opens the devices of the session's slice, chooses what goes where, and moves the weights; or,
 * when that was done, sees whether this session fits beside them. GR_E_NOMEM_DEV says in a table
 * what would. */
int gr_budget_load(struct gr_session *s);

#endif
