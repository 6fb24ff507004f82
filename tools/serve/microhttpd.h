/* libmicrohttpd as a table of functions that is opened by the first server: the program starts
 * without the library. */
#ifndef GR_TOOLS_MICROHTTPD_H
#define GR_TOOLS_MICROHTTPD_H

#include <microhttpd.h>

struct gr_microhttpd {
#define FN(name) __typeof__(MHD_##name) *name;
#include "microhttpd.def"
#undef FN
};

/* Returns the table, the same in every call. NULL, after printing the error: no usable
 * libmicrohttpd. */
const struct gr_microhttpd *gr_microhttpd(void);

#endif
