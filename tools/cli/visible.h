/* Texts of others (models, files) on a terminal. */
#ifndef GR_TOOLS_VISIBLE_H
#define GR_TOOLS_VISIBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Writes n bytes, which end with a complete character, as they are; on a terminal nothing but line
 * ends and tabs is obeyed: control characters are shown as ^X, and those of 8 bits, characters that
 * reverse others, and what is no UTF-8 as U+FFFD. False: not written, errno says why. */
bool gr_write_visible(FILE *f, const char *p, size_t n);

#endif
