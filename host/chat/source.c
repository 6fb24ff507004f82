/* Places in the source of a template, and errors there. */
#include "chat/source.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "gr/status.h"
#include "text/utf8.h"

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

/* Takes bytes out that are no UTF-8: those of a character that a limit has cut. */
static void drop_parts(char *text)
{
    size_t n = strlen(text), to = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int k = gr_utf8_next(text + i, n - i, &cp);
        if (k > 0) {
            memmove(text + to, text + i, (size_t)k);
            to += (size_t)k;
        }
        i += k > 0 ? (size_t)k : 1;
    }
    text[to] = 0;
}

int gr_source_fail(const char *source, size_t at, const char *fmt, ...)
{
    char what[512];
    unsigned line, column;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    drop_parts(what);
    gr_source_place(source, at, &line, &column);
    return gr_fail(GR_E_TEMPLATE, "chat template, line %u, column %u: %s", line, column, what);
}
