/* --trace and --op-times: times of every operation of a session. */
#ifndef GR_TOOLS_TRACE_H
#define GR_TOOLS_TRACE_H

#include "gpurun.h"

struct gr_options;

struct gr_trace;

/* Begins tracing by the options; *out is NULL when they ask for none. 0 or an exit code, after
 * printing the error. */
int gr_trace_begin(struct gr_trace **out, const struct gr_options *o, struct gr_session *s);
/* Ends tracing while the session is still open: completes the file, prints the table on stderr.
 * NULL is fine. */
int gr_trace_end(struct gr_trace **t);

#endif
