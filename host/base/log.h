/* Log lines for the user, sent to the receiver that gr_log_set (gpurun.h) sets. */
#ifndef GR_BASE_LOG_H
#define GR_BASE_LOG_H

#include "gpurun.h"

/* One line, without the newline. */
void gr_log(enum gr_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
