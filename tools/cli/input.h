/* Reading of files and texts. */
#ifndef GR_TOOLS_INPUT_H
#define GR_TOOLS_INPUT_H

#include <stdbool.h>
#include <stddef.h>

struct gr_options;

/* Reads a whole file, or standard input for "-", zero-terminated (free); 0 or an exit code, after
 * printing the error. */
int gr_read_all(const char *path, char **data, size_t *n);
/* Reads the text of -p, -f or, without either and unless it is a terminal, standard input; ""
 * without any. Escapes in -p are replaced. *given: there was a text. 0 or an exit code, after
 * printing the error. */
int gr_read_text(const struct gr_options *o, char **text, size_t *n, bool *given);
/* Replaces \n \r \t \' \" \\ and \xHH in place; other escapes stay as they are. Returns the
 * length. */
size_t gr_unescape(char *s);
/* Warns once when standard input has text that is unused because the flags name another. For a pipe
 * this is known only after its writer has written, so call it at the end of a command too. */
void gr_warn_unread(const struct gr_options *o);

#endif
