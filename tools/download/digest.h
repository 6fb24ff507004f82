/* Digests of files, as the hub names them. */
#ifndef GR_TOOLS_DIGEST_H
#define GR_TOOLS_DIGEST_H

#include <stdbool.h>
#include <stdint.h>

#define GR_OID_MAX 65

/* Returns whether the text is a name that can be checked: 64 hexadecimal digits (SHA-256 of the
 * content), or 40 (SHA-1 of a Git blob). */
bool gr_oid_is_known(const char *oid);

/* Computes the name of the `size` bytes of the file as long as `oid` (NULL: in no form), shows
 * progress and stores it in found. 0, or an exit code after printing the error; `path` is the
 * file's in messages. */
int gr_oid_of(int fd, const char *path, uint64_t size, const char *oid, char found[GR_OID_MAX]);

#endif
