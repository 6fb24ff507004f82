/* Bounded reader of little-endian data with a sticky error, over memory or over a file that is read
 * in growing steps. After the first failure every read returns zeros (and no view), so that a
 * parser may check once at the end of a record; loops over counts from the file must also stop on
 * r->rc. */
#ifndef GR_GGUF_READER_H
#define GR_GGUF_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"

struct gr_rd {
    const char *name;           /* of the file, for messages */
    const struct gr_file *file; /* source of the bytes beyond `have`; NULL: have == size */
    uint8_t *buf; /* owned bytes (gr_free) or NULL; reallocated as it grows, which invalidates views
                     into it */
    const uint8_t *p;        /* bytes [0, have) */
    uint64_t at, have, size; /* at <= have <= size */
    uint64_t limit;          /* highest number of bytes to read */
    int rc;                  /* the first failure */
    /* Current record, for messages: `kind` number `index`, and its name once known. */
    const char *kind;
    uint64_t index, name_at, name_n;
};

/* Initialise *r at the first byte of a file or of memory. */
void gr_rd_init_file(struct gr_rd *r, const struct gr_file *file, uint64_t limit);
void gr_rd_init_memory(struct gr_rd *r, const void *p, size_t n, const char *name, uint64_t limit);
void gr_rd_fini(struct gr_rd *r);

/* Sets the current record, for messages; kind NULL: none. */
void gr_rd_about(struct gr_rd *r, const char *kind, uint64_t index);

/* Sets `status` and the message "file: record: message (byte at)" unless there was a failure
 * before. Returns r->rc. */
int gr_rd_fail(struct gr_rd *r, int status, uint64_t at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Read a number. `what` names the field in messages. */
uint32_t gr_rd_u32(struct gr_rd *r, const char *what);
uint64_t gr_rd_u64(struct gr_rd *r, const char *what);
/* Skips n bytes; false when there are fewer. */
bool gr_rd_skip(struct gr_rd *r, uint64_t n, const char *what);
/* Reads a u64 count of items of at least min_bytes each; fails when it exceeds `max` or what the
 * rest of the file can hold. */
uint64_t gr_rd_count(struct gr_rd *r, uint64_t min_bytes, uint64_t max, const char *what);

/* Little-endian numbers at an unaligned address. */
uint32_t gr_le32(const void *p);
uint64_t gr_le64(const void *p);

#endif
