/* Weights and sessions put where there is memory for them, and reports of what takes how much. */
#ifndef GR_PLACEMENT_FIT_H
#define GR_PLACEMENT_FIT_H

#include "engine/session.h"

/* gr_session_open for one rank's part of the model. Chooses the devices and uploads the weights;
 * where that is done already, checks whether this session fits beside them. GR_E_NOMEM_DEV: the
 * message is a table of what is needed and what would fit. */
int gr_session_open_rank(struct gr_session **out, struct gr_rank_model *rank_model,
                         const struct gr_session_params *params);
/* gr_model_load for a model that this process runs alone. */
int gr_placement_load(struct gr_model *m, const struct gr_session_params *params);

/* gr_session_fit and gr_model_fit; the caller has made sure that all ranks answer (m->survey). */
int gr_placement_of_session(const struct gr_session *s, struct gr_fit *fit);
int gr_placement_of_model(struct gr_model *m, const struct gr_session_params *params,
                          struct gr_fit *fit);

#endif
