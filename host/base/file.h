/* Files: reading through a mapping or by pread, whole files, and replacing a file so that a reader
 * sees the old one or the new one. */
#ifndef GR_BASE_FILE_H
#define GR_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

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
 * GR_E_NO_MODEL when there is none, GR_E_IO otherwise; *f is closed then. */
int gr_file_open(struct gr_file *f, const char *path, bool mapped);

/* Reads exactly n bytes at off into dst; GR_E_IO names path, offset and what was missing, and dst
 * is zeroed. */
int gr_file_read(const struct gr_file *f, uint64_t off, void *dst, size_t n);

/* 0 when size, inode and modification time are still those at opening, GR_E_CORRUPT otherwise. */
int gr_file_unchanged(const struct gr_file *f);

/* Closes; a zeroed or closed file is fine. */
void gr_file_close(struct gr_file *f);

/* The whole of `path` ("-" is standard input) as a zero-terminated buffer (gr_free); GR_E_IO, or
 * GR_E_TOO_LARGE over `limit` bytes. */
int gr_file_slurp(const char *path, size_t limit, char **data, size_t *n);

/* 0 when there is nothing under the name, GR_E_INVALID otherwise. */
int gr_file_absent(const char *path);

/* A file being written beside its final name: without any where that is possible, so that a writer
 * that is killed leaves nothing behind. */
struct gr_replace {
    FILE *out;
    char *path, *temp;
    bool named; /* `temp` is there */
};
/* Creates the file in the directory of `path` for writing to r->out. mode: 0666 for a file
 * like any other, 0600 for one of the user's own. */
int gr_replace_open(struct gr_replace *r, const char *path, mode_t mode);
/* Flushes, syncs and renames over the final name; on any error the old file is intact and the
 * temporary one gone. */
int gr_replace_commit(struct gr_replace *r);
/* Throws the file away; fine after a commit too. */
void gr_replace_abort(struct gr_replace *r);

#endif
