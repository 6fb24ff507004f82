/* Steps: K-shifts and copies of cells, then the micro-batches of a batch. */
#ifndef GR_ENGINE_STEP_H
#define GR_ENGINE_STEP_H

#include "engine/session.h"

/* Assigns cells to a micro-batch, gets its plan and fills the step block. first_row: the first of
 * its rows of logits among those of the batch. */
int gr_ubatch_prepare(struct gr_session *s, const struct gr_pending_batch *pending,
                      const struct gr_ubatch *ub, int32_t first_row, struct gr_cached_plan **out);
/* Runs this rank's part of a reserved batch: its micro-batches, one after the other, until a
 * failure, or until pending->status is one of rank 0 that was passed on. */
int gr_batch_run(struct gr_session *s, struct gr_pending_batch *pending, int32_t n_ub);
/* Applies all pending K-shifts: rotates the K of every cell whose position has changed. */
int gr_apply_shift(struct gr_session *s);
/* Runs the copies of K and V that an operation on the caches needs. */
int gr_run_moves(struct gr_session *s, const struct gr_kv_moves moves[GR_N_CACHE_KIND]);
/* Begin and end a profiler range on all devices of the session. */
void gr_session_range(struct gr_session *s, enum gr_range range, int64_t payload);
void gr_session_range_end(struct gr_session *s);

#endif
