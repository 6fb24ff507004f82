/* Rank 0's side of loading a model on all ranks and of opening sessions there. */
#ifndef GR_RANKS_OPEN_H
#define GR_RANKS_OPEN_H

#include "engine/session.h"
#include "ranks/team.h"

/* Compares program, model and parameters of all ranks, once; from then on they can be surveyed
 * (gr_place_survey). */
int gr_team_handshake(struct gr_team *t);
/* Performs the handshake, places the layers and has all ranks load theirs, once. */
int gr_team_load(struct gr_team *t, const struct gr_session_params *params);
/* Opens a session on all ranks. */
int gr_team_open_session(struct gr_session **out, struct gr_team *t,
                         const struct gr_session_params *params);

#endif
