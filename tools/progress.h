/* How far what takes long has come: on a terminal a bar, elsewhere a line every ten seconds; both
 * on stderr, and nothing of what is over within a second. All of it is for the thread that began
 * it. */
#ifndef GR_TOOLS_PROGRESS_H
#define GR_TOOLS_PROGRESS_H

#include "flags.h"

/* What is counted. SHARE: nothing that anybody wants to know the number of. */
enum gr_bar_unit { GR_BAR_SHARE, GR_BAR_TOKENS, GR_BAR_BYTES };

/* How progress is shown from now on; `wanted`: whether messages of its level are. */
void gr_bar_init(const struct gr_options *o, bool wanted);
/* Begins `total` of something, in the place of what was under way; `what` is copied. */
void gr_bar_begin(const char *what, double total, enum gr_bar_unit unit);
/* So much more of it is done; there is so much more of it to do. */
void gr_bar_add(double done);
void gr_bar_extend(double more);
/* Batches of the session are followed on their way, beyond what was added; NULL: no longer. */
void gr_bar_watch(struct gr_session *s);
/* Says a line, which stands in the bar where there is one, and in the log file. */
void gr_bar_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* It is over, whether or not all of it is done. */
void gr_bar_end(void);

/* A gr_progress_fn for bytes of weights: it begins and ends what it is told of by itself. The user
 * is what to call it, a string. */
bool gr_bar_bytes(uint64_t done, uint64_t total, void *what);

/* Whether progress is a bar, which has no line of its own to keep. */
bool gr_bar_is_shown(void);
/* Before anything else is written to the terminal: takes the bar away until there is news. Safe in
 * a signal handler. */
void gr_bar_hide(void);

/* The clock, seconds; for tests. */
void gr_bar_set_clock(double (*clock)(void));

#endif
