/* Progress of long work: a bar on a terminal, elsewhere a line every ten seconds; both on stderr,
 * and nothing for work of less than a second. Used by one thread only. */
#ifndef GR_TOOLS_PROGRESS_H
#define GR_TOOLS_PROGRESS_H

#include <stdatomic.h>

#include "gpurun.h"

struct gr_options;

/* Unit of the numbers. SHARE: only a percentage is shown. */
enum gr_bar_unit { GR_BAR_SHARE, GR_BAR_TOKENS, GR_BAR_BYTES };

/* Configures the display, after gr_say_init. */
void gr_bar_init(const struct gr_options *o);
/* Begins work of `total` units, replacing the current one; `what`, its name, is copied. */
void gr_bar_begin(const char *what, double total, enum gr_bar_unit unit);
/* Add to the work done; to the total. */
void gr_bar_add(double done);
void gr_bar_extend(double more);
/* Counts work that was done before, and is no part of the rate. */
void gr_bar_skip(double done);
/* Also shows the progress of the session's pending batches; NULL: stops. */
void gr_bar_watch(struct gr_session *s);
/* Prints a line, within the bar if there is one, and to the log file. */
void gr_bar_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Has weights that are read or uploaded (gr_bar_bytes) and batches that are watched end with
 * GR_E_CANCELLED once *cancelled is set; NULL: no longer. */
void gr_bar_cancel_by(const atomic_bool *cancelled);
/* Ends the work, complete or not. */
void gr_bar_end(void);

/* A gr_progress_fn for bytes of weights, which begins and ends the work by itself. user: the work's
 * name, a string. */
bool gr_bar_bytes(uint64_t done, uint64_t total, void *what);

/* Returns whether progress is shown as a bar rather than as lines. */
bool gr_bar_is_shown(void);

/* Sets the clock (seconds), for tests. */
void gr_bar_set_clock(double (*clock)(void));

#endif
