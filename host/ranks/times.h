/* Times of the ranks: sums by activity, and single spans. */
#ifndef GR_RANKS_TIMES_H
#define GR_RANKS_TIMES_H

#include "engine/session.h"
#include "ranks/team.h"

/* Answers the command TIMES in the team's body. */
int gr_timing_answer(struct gr_session *s);
/* Measures the clock offsets of other processes. */
int gr_team_set_clocks(struct gr_team *t);

#endif
