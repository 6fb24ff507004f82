/* Reading files: through a mapping, by pread, or whole. */
#ifndef GR_BASE_FILE_H
#define GR_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An open file. `map` is NULL when it was opened for pread, or is of length 0. */
struct gr_file {
    int fd;
    uint64_t size;
    const uint8_t *map; /* the whole file, read-only, or NULL */
    char *path;
    int64_t mtime_ns;
    uint64_t inode;
};

/* Opens a regular file; with `mapped` also maps it (falls back to pread when mmap is refused).
 * GR_E_NO_MODEL when there is no such file, GR_E_IO for other failures; *f is closed after
 * either. */
int gr_file_open(struct gr_file *f, const char *path, bool mapped);

/* Reads exactly n bytes at off into dst. On failure GR_E_IO, whose message names path, offset and
 * missing bytes, and dst is zeroed. */
int gr_file_read(const struct gr_file *f, uint64_t off, void *dst, size_t n);

/* Returns 0 when size, inode and modification time are those at opening, else GR_E_CORRUPT. */
int gr_file_unchanged(const struct gr_file *f);

/* Closes; a zeroed or closed file is fine. */
void gr_file_close(struct gr_file *f);

/* Reads all of `path` ("-": standard input) into a zero-terminated buffer (gr_free); GR_E_IO, or
 * GR_E_TOO_LARGE over `limit` bytes. */
int gr_file_slurp(const char *path, size_t limit, char **data, size_t *n);

#endif
