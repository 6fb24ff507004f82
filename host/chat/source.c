/* Places in the source of a template, and errors there. */
#include "chat/source.h"

#include <stdarg.h>
#include <stdio.h>

#include "gr/status.h"

void gr_source_place(const char *source, size_t at, unsigned *line, unsigned *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < at; i++) {
        if (source[i] == '\n')
            ++*line, *column = 1;
        else
            *column += (source[i] & 0xc0) != 0x80;
    }
}

int gr_source_fail(const char *source, size_t at, const char *fmt, ...)
{
    char what[512];
    unsigned line, column;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    gr_source_place(source, at, &line, &column);
    return gr_fail(GR_E_TEMPLATE, "chat template, line %u, column %u: %s", line, column, what);
}
