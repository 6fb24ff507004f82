/* Output: messages on stderr and in the log file, text on stdout. */
#ifndef GR_TOOLS_SAY_H
#define GR_TOOLS_SAY_H

#include "gpurun.h"

struct gr_options;

/* ---- stderr: one line each, also into the log file ---- */

/* Sets the level and opens the log file; 0 or an exit code. Sets gpurun.h's sink. */
int gr_say_init(const struct gr_options *o);
/* Returns whether messages of this level are printed. */
bool gr_say_shows(enum gr_log_level level);
/* Closes the log file; exit code 6, after printing the error, when messages could not be
 * written. */
int gr_say_fini(void);
/* "gpurun: error: ..." */
void gr_say_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Returns the text of this thread's last error, "" before the first; at most 511 bytes. */
const char *gr_say_last_error(void);
void gr_say_warning(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints that memory ran out; returns the exit code. */
int gr_say_no_memory(void);
/* Sets a prefix for errors and warnings, the part of the command they are about ("-a"); "": none.
 * The string must live as long. */
void gr_say_within(const char *part);
void gr_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void gr_say_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* with -v */
/* Writes to the log file only. */
void gr_say_logged(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Ends an incomplete line of text, on a terminal and where stdout and stderr are one file; gr_say
 * functions do so by themselves. */
void gr_say_break(void);
/* Makes this a rank other than 0: only errors are printed, with its name as prefix; its own errors
 * are held until gr_say_held. */
void gr_say_as(const char *name);
/* Prints or discards the rank's first own error, if any. */
void gr_say_held(bool print);
/* Drops log lines of the library while on, for trial runs. */
void gr_say_hush(bool on);
/* Draws a line at the end of the terminal, in place of the one drawn before; whatever is printed
 * next removes it. */
void gr_say_draw(const char *line);
/* Removes the drawn line, if any; call before writing to the terminal by other means.
 * Async-signal-safe. */
void gr_say_erase(void);
/* Prints the library's message for a failed call; returns the exit code of its status. */
int gr_say_status(int status);

/* ---- stdout ---- */

/* Writes n bytes by gr_write_visible and flushes. When stdout has no reader any more the program
 * ends with exit code 0, after a failed write (full disk) with 6. */
void gr_out(const char *p, size_t n);
/* The same for a sequence that the terminal is to obey, which is no part of the line. */
void gr_out_style(const char *sequence);
/* The same for formatted text, at most 1,023 bytes. */
void gr_print(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same check after printing to stdout by other means. On a terminal ends an incomplete line. */
void gr_out_finish(void);
/* Returns whether the text on the terminal ends with an incomplete line. */
bool gr_out_is_open(void);
/* Returns whether stdout has no reader any more; a single process has ended then. */
bool gr_out_ended(void);
/* With several ranks, which must be told of the end: when stdout loses its reader the program is
 * interrupted (SIGINT), where the command handles that, and does not end. */
void gr_out_with_ranks(bool several);
/* Returns whether a file descriptor is a user's terminal; the pseudo-terminals that Open MPI's
 * mpirun gives its processes do not count. */
bool gr_is_terminal(int fd);

#endif
