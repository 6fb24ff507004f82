/* The other ranks: they execute rank 0's commands one after the other. */
#ifndef GR_RANKS_WORKER_H
#define GR_RANKS_WORKER_H

#include "ranks/team.h"

/* Executes rank 0's commands until the model is closed (returns 0) or a rank is lost. */
int gr_team_serve(struct gr_team *t);

#endif
