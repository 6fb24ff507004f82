/* Collects the inputs of matrix products into an importance matrix. */
#ifndef GR_ENGINE_IMATRIX_H
#define GR_ENGINE_IMATRIX_H

#include <stdbool.h>
#include <stdint.h>

#include "gpurun.h"
#include "gr/backend.h"

struct gr_imatrix_collector {
    struct gr_imatrix *imatrix; /* the caller's, or NULL */
    bool output;                /* includes output.weight */
    int32_t *ids;               /* [n_id] expert ids of the next product */
    int64_t n_id, n_used;       /* ids in all, and of one token */
    int rc;                     /* first failure */
};
void gr_imatrix_collector_fini(struct gr_imatrix_collector *c);

/* Receives the tap of a product: its expert ids, or its input. */
void gr_imatrix_collect(struct gr_imatrix_collector *c, const struct gr_tap *tap,
                        const struct gr_ten *t);
/* Returns the first failure since the last call, and clears it. */
int gr_imatrix_collector_status(struct gr_imatrix_collector *c);

#endif
