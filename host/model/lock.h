/* Weights locked in memory. */
#ifndef GR_MODEL_LOCK_H
#define GR_MODEL_LOCK_H

struct gr_rank_model;

/* Locks the placed weights that the CPU reads (mlock(2)), so that they are in memory and stay
 * there. Logs a warning with the limit where the system refuses; the rest is not locked then. */
void gr_weights_lock(const struct gr_rank_model *rm);
void gr_weights_unlock(const struct gr_rank_model *rm);

#endif
