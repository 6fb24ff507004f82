/* The stages of a session, and the use of each rank's time. */
#ifndef GR_TOOLS_STAGES_H
#define GR_TOOLS_STAGES_H

#include "gpurun.h"

struct json_t;

/* Returns the number of stages, at least 1: ranks that share layers are one. */
int32_t gr_count_stages(struct gr_session *session);
/* Print a line on the use of each rank's time, if there are several; and return the same as a list,
 * NULL without memory. */
void gr_say_stages(struct gr_session *session);
struct json_t *gr_stages_json(struct gr_session *session);

#endif
