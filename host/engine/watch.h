/* What matrices are multiplied with, on its way into an importance matrix. */
#ifndef GR_ENGINE_WATCH_H
#define GR_ENGINE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "gpurun.h"
#include "gr/backend.h"

struct gr_watch {
    struct gr_imatrix *imatrix; /* the caller's, or NULL */
    bool output;                /* of output.weight too */
    int32_t *ids;               /* of the product that comes next, [n_id] */
    int64_t n_id, n_used;       /* ids; of a token */
    int rc;                     /* what went wrong first */
};
void gr_watch_fini(struct gr_watch *w);

/* A tap of a product's ids or of its input. */
void gr_watch_see(struct gr_watch *w, const struct gr_tap *tap, const struct gr_ten *t);
/* What went wrong since the last call. */
int gr_watch_status(struct gr_watch *w);

#endif
