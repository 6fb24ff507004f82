/* The lists of cells in the step block. */
#ifndef GR_ENGINE_LISTS_H
#define GR_ENGINE_LISTS_H

#include <stdbool.h>
#include <stdint.h>

#include "batch/batch.h"
#include "gr/step.h"
#include "kv/cache.h"

struct gr_cached_plan;
struct gr_session;

/* The first GR_N_LIST arrays of the step block are kept from step to step. gr_dirty_range: the
 * bytes [lo, hi) of the step block in which one of them has changed on the host. */
#define GR_N_LIST (GR_STEP_KEY_POS + 1)
struct gr_dirty_range {
    int64_t lo, hi;
};

/* Capacity and validity of a session's lists. */
struct gr_lists {
    int32_t room[GR_N_CACHE_KIND]; /* enlarged capacity; 0: the initial one */
    bool kept;                     /* the step block still holds the lists filled last */
};

/* Sets the capacities of the session's lists, the same in the shape of each of its plans. */
void gr_lists_shape(const struct gr_session *s, struct gr_step_shape *shape);
/* Enlarges these capacities for a micro-batch whose cells are assigned. GR_E_TOO_LARGE. */
int gr_lists_reserve(struct gr_session *s, const struct gr_ubatch *ub);
/* Writes lists and spans of a micro-batch into the step block. */
void gr_lists_fill(struct gr_session *s, const struct gr_cached_plan *c,
                   const struct gr_ubatch *ub);
/* Uploads to device d the changes of the lists since its last upload. */
int gr_lists_upload(struct gr_session *s, int32_t d);
/* Marks the lists as absent from the step block, for instance because it is a new one. */
void gr_lists_invalidate(struct gr_session *s);

#endif
