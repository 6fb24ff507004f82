/* Lines for the person at the terminal, through a callback that the front end sets (default: nothing is printed). */
#ifndef GR_BASE_LOG_H
#define GR_BASE_LOG_H

enum gr_log_level { GR_LOG_DEBUG, GR_LOG_INFO, GR_LOG_WARN, GR_LOG_ERROR };

typedef void gr_log_fn(enum gr_log_level level, const char *line, void *user);

/* Sets the sink of the whole process; NULL switches logging off. Set it before other threads use the library. */
void gr_log_set(gr_log_fn *fn, void *user);

/* One line, without the newline. */
void gr_log(enum gr_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
