/* One rank's team object: its ports to the other ranks, opened and tested. */
#ifndef GR_RANKS_CONNECT_H
#define GR_RANKS_CONNECT_H

#include "ranks/team.h"

/* Makes one rank's team object of a world. */
int gr_team_new(struct gr_team **out, struct gr_model *m, struct gr_world *w,
                struct gr_rank_model *rank_model);
/* Opens the data links and tests them, once the stages are known. Collective. */
int gr_team_link(struct gr_team *t);
/* Frees one rank's team object, once all its messages have been sent. */
void gr_team_free_own(struct gr_team **t);

#endif
