/* The pipeline: a rank's part of a batch, between the stages before and behind it. */
#ifndef GR_RANKS_PIPELINE_H
#define GR_RANKS_PIPELINE_H

#include "engine/session.h"
#include "ranks/team.h"

/* Passes values between the ranks of consecutive stages. */
extern const struct gr_flow gr_stage_flow;
/* Runs this rank's stage for the micro-batches of a batch: receives inputs from the previous stage,
 * sends outputs to the next one, or results to rank 0. pending->status: a failure of rank 0 that
 * was passed on, or 0. */
int gr_stage_run(struct gr_session *s, struct gr_pending_batch *pending, int32_t n_ub);
/* Reason why a rank is lost whose decisions differ from rank 0's. */
#define GR_TEAM_DIFFERS "its cells are not those of rank 0 any more"
/* Logs the cells of a session, for debugging. */
void gr_stage_log_cells(const struct gr_session *s);
/* Compares this rank's hash of decisions with another rank's. When they differ, logs the cells and
 * returns GR_E_INTERNAL. */
int gr_stage_compare(struct gr_session *s, uint64_t hash);
/* Waits until all messages of the session to the next stage have been sent, and frees buffers. */
void gr_stage_fini(struct gr_session *s);

#endif
