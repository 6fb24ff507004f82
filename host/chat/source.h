/* Places in the source of a template, and errors there. */
#ifndef GR_CHAT_SOURCE_H
#define GR_CHAT_SOURCE_H

#include <stddef.h>

/* Line and column, from 1, of an offset of the source; columns count characters. */
void gr_source_place(const char *source, size_t at, unsigned *line, unsigned *column);
/* Records an error at an offset of the source; returns GR_E_TEMPLATE. */
int gr_source_fail(const char *source, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
