/* Registry of the address ranges of mapped files, for signal handlers: reading such an address
 * raises SIGBUS after the file has been truncated. */
#ifndef GR_BASE_MAPPED_H
#define GR_BASE_MAPPED_H

#include <stdbool.h>
#include <stddef.h>

/* Registers [p, p + bytes); thread-safe. False when there is no memory; then nothing changes. */
bool gr_mapped_add(const void *p, size_t bytes);
/* Removes the range that was added with p; thread-safe. */
void gr_mapped_remove(const void *p);
/* Returns whether the address lies in a registered range. Async-signal-safe: it takes no lock and
 * allocates and changes nothing. */
bool gr_mapped_has(const void *address);

#endif
