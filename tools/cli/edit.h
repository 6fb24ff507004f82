/* Lines typed on a terminal, with editing and a history (libedit). */
#ifndef GR_TOOLS_EDIT_H
#define GR_TOOLS_EDIT_H

#include <stddef.h>

struct gr_edit;

enum gr_edit_result { GR_EDIT_LINE, GR_EDIT_END, GR_EDIT_INTERRUPT };

/* Opens the terminal of stdin and stdout, and the history of the user: the file gpurun/history in
 * $XDG_STATE_HOME or ~/.local/state, none without either. 0 or an exit code, after printing the
 * error. */
int gr_edit_open(struct gr_edit **out);
void gr_edit_close(struct gr_edit **e);
/* Reads a line. *line [*n], without the newline, is valid until the next call. END: Ctrl-D on an
 * empty line, or the terminal is gone; INTERRUPT: Ctrl-C, *n is the length of what was typed and is
 * dropped. The line is added to the history unless it is blank or the same as the last one. */
enum gr_edit_result gr_edit_line(struct gr_edit *e, const char *prompt, const char **line,
                                 size_t *n);

#endif
