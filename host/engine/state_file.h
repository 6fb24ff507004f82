/* The container of a saved state: a header, a table of sections, and the sections' bytes one after
 * the other, in memory or in a file. What the sections mean is engine/state.c's.
 *
 * Every byte is under a checksum (XXH3, 128 bits): the header with the table has one, each section
 * has one in the table. A reader believes nothing before its checksum was right; bytes behind the
 * last section or missing ones are found by the header's count. Numbers have the byte order of the
 * machine that wrote them, which the header says. */
#ifndef GR_ENGINE_STATE_FILE_H
#define GR_ENGINE_STATE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/output.h"

#define GR_STATE_VERSION 1
#define GR_STATE_MAX_SECTION 4096

enum gr_state_kind {
    GR_STATE_CONFIG, /* what must agree, engine/fingerprint.h */
    GR_STATE_NOTE,   /* the caller's bytes */
    GR_STATE_CELLS,  /* kv/state.h, of the cache `index` */
    GR_STATE_ROWS,   /* the same of recurrent states */
    GR_STATE_DATA    /* rows of the tensor `index`, those of the cells in their order */
};

struct gr_state_sum {
    uint8_t byte[16];
};

struct gr_state_section {
    uint32_t kind, index;
    uint64_t bytes;
    struct gr_state_sum sum;
};

/* ---- writing ---- */

/* The sizes of all sections are known before the first byte is written, so that memory is taken
 * once, and a file is streamed. */
struct gr_state_writer {
    struct gr_state_section *table; /* the caller's; sums are filled in */
    uint32_t n_section, at;
    uint64_t left; /* of section `at` */
    uint32_t scope;
    void *hash;
    uint8_t *memory;  /* NULL: to the file */
    size_t n, n_done; /* of all bytes */
    struct gr_output *file;
};

/* path NULL: into memory. scope: a number in the header. GR_E_NOMEM_HOST, GR_E_TOO_LARGE, GR_E_IO
 * naming the path; nothing is left to abort then. */
int gr_state_writer_open(struct gr_state_writer *w, const char *path,
                         struct gr_state_section *table, uint32_t n_section, uint32_t scope);
/* The next n bytes, of one section. */
int gr_state_writer_put(struct gr_state_writer *w, const void *data, size_t n);
/* After the last byte: memory becomes *data (gr_free) of *n bytes, a file is synced and takes its
 * name. On failure what had the name before is untouched. */
int gr_state_writer_commit(struct gr_state_writer *w, void **data, size_t *n);
/* Gives up, or cleans up after a commit. */
void gr_state_writer_close(struct gr_state_writer *w);

/* ---- reading ---- */

struct gr_state_reader {
    const char *name; /* for messages: the path, or "state" */
    const uint8_t *memory;
    struct gr_file file;
    uint64_t bytes;
    struct gr_state_section *table;
    uint32_t n_section, scope;
    void *hash;
    uint32_t at; /* the section being read, the place of its next byte and its bytes left */
    uint64_t offset, left;
};

/* Opens the file, or the n bytes of `data` when path is NULL, and checks header and table.
 * GR_E_CORRUPT when a checksum or size is wrong, GR_E_UNSUPPORTED for another version or byte
 * order, GR_E_IO, GR_E_NOMEM_HOST; closed then. */
int gr_state_reader_open(struct gr_state_reader *r, const char *path, const void *data, size_t n);
void gr_state_reader_close(struct gr_state_reader *r);
/* Reads all sections and compares their checksums. */
int gr_state_reader_verify(struct gr_state_reader *r);
/* Goes to the beginning of section i. */
void gr_state_reader_seek(struct gr_state_reader *r, uint32_t i);
/* The section's next n bytes, which it must have. With its last ones its checksum is compared again
 * (GR_E_CORRUPT), so that a file that changes between two readings is noticed. */
int gr_state_reader_get(struct gr_state_reader *r, void *dst, size_t n);

#endif
