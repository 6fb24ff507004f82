/* libmicrohttpd as a table of functions that is opened by the first server: the program starts
 * without the library. */
#ifndef GR_TOOLS_MICROHTTPD_H
#define GR_TOOLS_MICROHTTPD_H

#include <microhttpd.h>
#include <stdbool.h>

struct gr_microhttpd {
#define FN(name) __typeof__(MHD_##name) *name;
#include "microhttpd.def"
#undef FN
    bool strict; /* it refuses header lines that other programs may read differently: 1.0 */
};

/* Returns the table, the same in every call. NULL, after printing the error: no usable
 * libmicrohttpd. */
const struct gr_microhttpd *gr_microhttpd(void);

#endif
