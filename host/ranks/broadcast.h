/* Rank 0's commands to the other ranks, their answers, and the results of batches. */
#ifndef GR_RANKS_BROADCAST_H
#define GR_RANKS_BROADCAST_H

#include "engine/session.h"
#include "ranks/team.h"

/* Sends an order about a session (NULL: none) to all others, before rank 0 executes it. */
int gr_team_tell(struct gr_team *t, const struct gr_session *s, uint32_t kind, const void *order);
/* The same for the session numbered id, which need not exist yet. hash: rank 0's hash of decisions
 * before the order. */
int gr_team_tell_all(struct gr_team *t, uint32_t id, uint32_t kind, const void *order,
                     uint64_t hash);
/* The same for an order that rank 0 cannot take back: the team is lost when it cannot be sent. */
int gr_team_tell_done(struct gr_team *t, uint32_t id, uint32_t kind, const void *order,
                      uint64_t hash);
/* Sends an order to ranks [lo, hi) only. */
int gr_team_tell_some(struct gr_team *t, int32_t lo, int32_t hi, const struct gr_session *s,
                      uint32_t kind, const void *order);
/* Receives a rank's answer to an order, after collecting the results of batches sent before it. Its
 * arrays point into t->body. */
int gr_team_answer(struct gr_team *t, int32_t rank, uint32_t kind, void *answer);
/* Receives the answers of all others to an order that can fail. Returns the most informative
 * failure (gr_team_says_more), with the rank's name in the message. */
int gr_team_all_done(struct gr_team *t);
/* Returns whether a failure is more informative than another, or than 0: GR_E_PEER_LOST, a missing
 * rank, is less so than the reason why that rank is missing. */
bool gr_team_says_more(int status, int than);
/* Sends the reserved batch of a session to all others. */
int gr_tell_batch(struct gr_session *s, const struct gr_flight *f);
/* Appends a begun flight to those whose results are outstanding. */
void gr_team_expect(struct gr_team *t, struct gr_flight *f);
/* Waits for the results of a flight and of all earlier ones; NULL: of all flights. */
int gr_team_collect(struct gr_team *t, const struct gr_flight *f);

#endif
