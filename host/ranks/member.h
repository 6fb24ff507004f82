/* A session as a member of a team: the engine's hooks (engine/ranks_hooks.h). */
#ifndef GR_RANKS_MEMBER_H
#define GR_RANKS_MEMBER_H

#include "engine/session.h"
#include "ranks/team.h"

/* Adds a session to the team, with number id. GR_E_NOMEM_HOST. gr_session_close removes it, from
 * rank 0 on all ranks. */
int gr_team_add_session(struct gr_session *s, struct gr_team *t, uint32_t id);
/* Makes the team's pointers to a session lead to s, which has another address than before. */
void gr_team_moved(struct gr_session *s);

#endif
