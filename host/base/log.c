#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static gr_log_fn *sink;
static void *sink_user;

void gr_log_set(gr_log_fn *fn, void *user)
{
    sink = fn, sink_user = user;
}

void gr_log(enum gr_log_level level, const char *fmt, ...)
{
    char line[1024];
    if (!sink)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    sink(level, line, sink_user);
}
