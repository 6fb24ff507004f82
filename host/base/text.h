/* Small helpers on names. */
#ifndef GR_BASE_TEXT_H
#define GR_BASE_TEXT_H

#include <stddef.h>

/* Insertions, deletions and substitutions that turn a into b (letter case does not count). Names over 64 bytes are cut
 * there. */
size_t gr_edit_distance(const char *a, size_t n_a, const char *b, size_t n_b);

#endif
