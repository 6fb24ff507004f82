/* Text that grows: JSON is written into it as it comes. Failures are kept: nothing is added after
 * one. */
#ifndef GR_TOOLS_WRITER_H
#define GR_TOOLS_WRITER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct gr_writer {
    char *p; /* [n] */
    size_t n, cap;
    bool failed; /* no memory */
};

void gr_write(struct gr_writer *w, const char *p, size_t n);
void gr_writef(struct gr_writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds a JSON string of any bytes; those that are no UTF-8 become U+FFFD. */
void gr_write_string(struct gr_writer *w, const char *p, size_t n);
/* Adds what another one holds. */
void gr_write_all(struct gr_writer *w, const struct gr_writer *from);
/* Adds a JSON value. */
void gr_write_json(struct gr_writer *w, const json_t *value);
void gr_writer_free(struct gr_writer *w);

/* Length of the UTF-8 character at p [n > 0]; 0: there is none. */
size_t gr_utf8_length(const char *p, size_t n);

#endif
