/* The transport of a team: values that go from device to device past the host. */
#ifndef GR_RANKS_TRANSPORT_H
#define GR_RANKS_TRANSPORT_H

#include "engine/session.h"
#include "ranks/team.h"

enum gr_transport_kind gr_team_transport_kind(const struct gr_team *t);
/* Bits of the kinds of transports that this rank could join. */
uint32_t gr_team_transports(const struct gr_team *t);
/* On rank 0: sets which ranks, member [n_rank], join a transport for a placement. Returns false
 * where none is of use: it would connect no two ranks, or a test has wrapped the links. */
bool gr_team_choose_transport(const struct gr_team *t, const struct gr_placement *p,
                              uint8_t *member);
int gr_team_transport_ticket(const struct gr_team *t, struct gr_transport_ticket *ticket);
/* Leaves the current transport, if any, and joins the one of the command, if it names members. */
int gr_team_join_transport(struct gr_team *t, const struct gr_command_join *c);
void gr_team_leave_transport(struct gr_team *t);
/* Receive a plan's `in`, and send its `out`, by the transport. */
int gr_transport_receive(struct gr_session *s, const struct gr_plan *p);
int gr_transport_send(struct gr_session *s, const struct gr_plan *p);
/* Waits until data from other ranks that devices wait for has arrived. GR_E_PEER_LOST. */
int gr_transport_wait_received(struct gr_session *s);
void gr_transport_fini(struct gr_session *s);

#endif
