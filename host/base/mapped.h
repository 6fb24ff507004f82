/* Which addresses lie in files that this process has mapped, for handlers of signals: reading such
 * an address raises SIGBUS when somebody has cut the file off since. */
#ifndef GR_BASE_MAPPED_H
#define GR_BASE_MAPPED_H

#include <stdbool.h>
#include <stddef.h>

/* Any thread. False when there is no memory to remember it with; nothing is remembered then. */
bool gr_mapped_add(const void *p, size_t bytes);
/* Forgets what was added with p. */
void gr_mapped_remove(const void *p);
/* Takes no lock and no memory, and changes nothing. */
bool gr_mapped_has(const void *address);

#endif
