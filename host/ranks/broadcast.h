/* Rank 0's commands to the other ranks, their answers, and the results of batches. */
#ifndef GR_RANKS_BROADCAST_H
#define GR_RANKS_BROADCAST_H

#include "engine/session.h"
#include "ranks/team.h"

/* Sends a command about a session (NULL: none) to all others, before rank 0 executes it. */
int gr_team_broadcast(struct gr_team *t, const struct gr_session *s, uint32_t kind,
                      const void *command);
/* The same for the session numbered id, which need not exist yet. hash: rank 0's hash of decisions
 * before the command. */
int gr_team_broadcast_id(struct gr_team *t, uint32_t id, uint32_t kind, const void *command,
                         uint64_t hash);
/* The same for a command that rank 0 cannot undo: the team is lost when it cannot be sent. */
int gr_team_broadcast_or_lose(struct gr_team *t, uint32_t id, uint32_t kind, const void *command,
                              uint64_t hash);
/* Sends a command to ranks [lo, hi) only. */
int gr_team_send_to(struct gr_team *t, int32_t lo, int32_t hi, const struct gr_session *s,
                    uint32_t kind, const void *command);
/* Receives a rank's answer to a command, after collecting the results of batches sent before it.
 * Its arrays point into t->body. */
int gr_team_receive_answer(struct gr_team *t, int32_t rank, uint32_t kind, void *answer);
/* Receives the answers of all others to a command that can fail. Returns the most informative
 * failure (gr_team_more_informative), with the rank's name in the message. */
int gr_team_collect_status(struct gr_team *t);
/* Returns whether a failure is more informative than another, or than 0: GR_E_PEER_LOST, a missing
 * rank, is less so than the reason why that rank is missing. */
bool gr_team_more_informative(int status, int than);
/* Sends the reserved batch of a session to all others. */
int gr_team_broadcast_batch(struct gr_session *s, const struct gr_pending_batch *pending);
/* Appends a begun batch to those whose results are outstanding. */
void gr_team_enqueue(struct gr_team *t, struct gr_pending_batch *pending);
/* Waits for the results of a batch and of all earlier ones; NULL: of all pending batches. */
int gr_team_collect(struct gr_team *t, const struct gr_pending_batch *pending);

#endif
