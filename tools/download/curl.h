/* libcurl as a table of functions that is opened by the first download: the program starts without
 * the library, and no sooner for having it. */
#ifndef GR_TOOLS_CURL_H
#define GR_TOOLS_CURL_H

#include <curl/curl.h>

struct gr_curl {
#define FN(name) __typeof__(curl_##name) *name;
#include "curl.def"
#undef FN
};

/* Returns the table, the same in every call. NULL, after printing the error: no usable libcurl. */
const struct gr_curl *gr_curl(void);

#endif
