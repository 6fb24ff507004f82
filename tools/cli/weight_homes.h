/* Weights that the flags place apart from their layer. */
#ifndef GR_TOOLS_WEIGHT_HOMES_H
#define GR_TOOLS_WEIGHT_HOMES_H

#include "gpurun.h"

struct gr_options;

/* Those of --override-tensor, in its order; patterns and devices are copies. Reading prints
 * errors; free it also after a failure. */
struct gr_weight_home_list {
    struct gr_weight_home *v;
    int32_t n;
};
int gr_weight_homes_of(struct gr_weight_home_list *list, const struct gr_options *o);
void gr_weight_home_list_free(struct gr_weight_home_list *list);

#endif
