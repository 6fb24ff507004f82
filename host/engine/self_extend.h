/* Self-Extend on the cells of a cache: moves and divides positions. */
#ifndef GR_ENGINE_SELF_EXTEND_H
#define GR_ENGINE_SELF_EXTEND_H

#include "gpurun.h"
#include "kv/cache.h"

/* gr_self_extend (gpurun.h) on sequence `seq` of all caches. The w positions of each complete
 * window (*n_past at least se->i + se->w) become w / n positions, and later ones move down. n = 1:
 * does nothing. GR_E_INVALID when n does not divide w or the state is out of range; the windows
 * before the failing one are then already merged. */
int gr_self_extend_cells(struct gr_cache *cache, int32_t seq, struct gr_self_extend *se,
                         int32_t *n_past);

#endif
