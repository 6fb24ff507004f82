/* Cells of a saved state, restored on each rank; gpurun.h declares saving and restoring. */
#ifndef GR_ENGINE_STATE_H
#define GR_ENGINE_STATE_H

#include "engine/session.h"

/* Parts of a state: cells of each cache kind, then rows of recurrent states. */
enum { GR_STATE_PART_STATES = GR_N_CACHE_KIND, GR_N_STATE_PART };

/* Blocks as in kv/state.h for sequence seq, -1: all sequences. A part that the caches do not have
 * has 0 bytes. */
struct gr_state_cells {
    int32_t seq;
    const char *block[GR_N_STATE_PART];
    size_t bytes[GR_N_STATE_PART];
};

/* Restores cells that rank 0 has checked and restored, without their rows. */
int gr_state_restore_cells(struct gr_session *s, const struct gr_state_cells *cells);

#endif
