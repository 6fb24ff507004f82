/* Self-Extend on the cells: which positions a step moves and divides. */
#ifndef GR_ENGINE_SELF_EXTEND_H
#define GR_ENGINE_SELF_EXTEND_H

#include "gpurun.h"
#include "kv/cache.h"

/* gr_self_extend (gpurun.h) on sequence `seq` of all caches. For each window that is complete
 * (*n_past
 * >= se->i + se->w) its w positions become w / n ones; what follows moves down. n = 1 does nothing.
 * GR_E_INVALID when n does not divide w or the state is out of range; the cells are then as after
 * the last whole window. */
int gr_self_extend_cells(struct gr_cache *cache, int32_t seq, struct gr_self_extend *se,
                         int32_t *n_past);

#endif
