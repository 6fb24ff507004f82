/* Status codes and the message that goes with a failure.
 *
 * A function that can fail returns int: 0, or one of enum gr_status. The place that knows the fact
 * writes the message (object, expected, found, remedy) by `return gr_fail(GR_E_CORRUPT, "...",
 * ...)`; callers pass the code up unchanged. The message lives in a buffer of the calling thread
 * and stays until that thread's next gr_fail. */
#ifndef GR_STATUS_H
#define GR_STATUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gr_status {
    GR_OK = 0,
#define STATUS(name, exit_code, text) GR_E_##name,
#include "gr/status.def"
#undef STATUS
    GR_N_STATUS
};

/* Records a formatted message for this thread (truncated at 1,999 bytes) and returns `status`. */
int gr_fail(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The message of this thread's last gr_fail, "" if there was none. Valid until the next gr_fail of
 * this thread. */
const char *gr_error(void);

/* The status of this thread's last gr_fail, 0 if there was none: for functions that return no
 * status, a pointer for example. */
int gr_error_status(void);

/* Meaning of a status code, for example "bad model file"; "ok" for 0, "unknown status" outside the
 * table. */
const char *gr_status_text(int status);

/* Exit code of the command line for a status code. */
int gr_status_exit(int status);

/* `n` bytes of foreign text made safe to print: quotes, non-ASCII and control bytes escaped, at
 * most 60 bytes shown. Returns one of eight rotating buffers of this thread. */
const char *gr_quote(const char *p, size_t n);

/* Makes foreign text, a parser's message for example, one line: '?' for control characters. Returns
 * it. */
char *gr_one_line(char *text);

#ifdef __cplusplus
}
#endif
#endif
