/* A rank's own part: it describes itself, loads its layers and opens its sessions. */
#ifndef GR_RANKS_RANK_H
#define GR_RANKS_RANK_H

#include "engine/session.h"
#include "ranks/team.h"

/* Describes this rank for comparison: *rank, whose facts point into *text, the caller's to free. */
int gr_team_describe(struct gr_team *t, struct gr_vec *text, struct gr_command_rank *rank);
/* Checks and reads the placement of a LOAD or SURVEY. GR_E_CORRUPT. */
int gr_team_read_layers(const struct gr_team *t, const struct gr_command_load *c,
                        struct gr_placement *place);
/* Loads this rank's layers. */
int gr_team_load_own(struct gr_team *t, const struct gr_command_load *c);
/* Opens this rank's session number id. params: of all ranks together; this one takes its share of
 * the CPU threads. */
int gr_team_open_own(struct gr_session **out, struct gr_team *t,
                     const struct gr_session_params *params, uint32_t id);

#endif
