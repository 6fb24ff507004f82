/* libedit as a table of functions that is opened by the first chat on a terminal: the program
 * starts without the library. */
#ifndef GR_TOOLS_LIBEDIT_H
#define GR_TOOLS_LIBEDIT_H

#include <histedit.h>

struct gr_libedit {
#define FN(name) __typeof__(name) *name;
#include "libedit.def"
#undef FN
};

/* Returns the table, the same in every call. NULL: no usable libedit, *why says so. */
const struct gr_libedit *gr_libedit(const char **why);

#endif
