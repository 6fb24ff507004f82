/* --trace and --op-times: what every operation of a session took. */
#ifndef GR_TOOLS_TRACE_H
#define GR_TOOLS_TRACE_H

#include "flags.h"

struct gr_trace;

/* Begins what the options ask for; *out NULL when that is nothing. 0 or an exit code, said. */
int gr_trace_begin(struct gr_trace **out, const struct gr_options *o, struct gr_session *s);
/* Ends it: completes the file, prints the table on stderr. The session is still open. NULL is fine.
 */
int gr_trace_end(struct gr_trace **t);

#endif
