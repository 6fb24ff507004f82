/* Adapters and control vectors that the flags name. */
#ifndef GR_TOOLS_ADAPTERS_H
#define GR_TOOLS_ADAPTERS_H

#include "gpurun.h"

struct gr_options;

/* Adapters of the command line, in its order; paths are copies. Reading prints errors. */
struct gr_adapters {
    struct gr_adapter v[GR_MAX_ADAPTER];
    int32_t n;
};
int gr_adapters_read(struct gr_adapters *a, const struct gr_options *o);
/* Control vectors, and the layers that have them; 0, 0: all. */
int gr_control_vectors_read(struct gr_adapters *a, const struct gr_options *o, int32_t *first,
                            int32_t *last);
void gr_adapters_free(struct gr_adapters *a);

#endif
