/* The team of a model: its threads are started and joined here. */
#ifndef GR_RANKS_START_H
#define GR_RANKS_START_H

#include "ranks/team.h"

/* Returns the team of a model, made at the first call; *out NULL: it has one rank only. The caller
 * must not hold the model's lock. */
int gr_team_of(struct gr_model *m, struct gr_team **out);
void gr_team_free(struct gr_team **t);

#endif
