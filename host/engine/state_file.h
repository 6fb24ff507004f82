/* The container of a saved state: a header, a table of sections, and the sections' bytes one after
 * the other, in memory or in a file. engine/state.c defines the contents of the sections.
 *
 * Every byte is covered by a checksum (XXH3, 128 bits): one for header and table, one for each
 * section in the table. A reader uses nothing before its checksum has been verified; extra bytes
 * after the last section, and missing ones, are detected by the header's byte count. Numbers have
 * the byte order of the machine that wrote them, which the header records. */
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
    GR_STATE_CONFIG, /* fingerprint that must agree, engine/fingerprint.h */
    GR_STATE_NOTE,   /* the caller's bytes */
    GR_STATE_CELLS,  /* metadata of cells of the cache `index`, kv/state.h */
    GR_STATE_ROWS,   /* the same of recurrent states */
    GR_STATE_DATA    /* rows of the tensor `index`, in the order of the saved cells */
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

/* The sizes of all sections are known before the first byte is written, so memory is allocated once
 * and a file is streamed. */
struct gr_state_writer {
    struct gr_state_section *table; /* the caller's; the writer fills in the sums */
    uint32_t n_section, at;
    uint64_t left; /* bytes left to write of section `at` */
    uint32_t scope;
    void *hash;
    uint8_t *memory;  /* NULL: writes to the file */
    size_t n, n_done; /* bytes in total, and written so far */
    struct gr_output *file;
};

/* path NULL: writes into memory. scope: a number for the header. GR_E_NOMEM_HOST, GR_E_TOO_LARGE,
 * or GR_E_IO naming the path; after a failure there is nothing to close. */
int gr_state_writer_open(struct gr_state_writer *w, const char *path,
                         struct gr_state_section *table, uint32_t n_section, uint32_t scope);
/* Writes the next n bytes, all of one section. */
int gr_state_writer_put(struct gr_state_writer *w, const void *data, size_t n);
/* After the last byte: returns the memory as *data (gr_free) of *n bytes, or syncs the file and
 * renames it to its path. On failure an existing file at the path is untouched. */
int gr_state_writer_commit(struct gr_state_writer *w, void **data, size_t *n);
/* Aborts, or cleans up after a commit. */
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
    uint32_t at; /* the section being read; offset of its next byte, and bytes left of it */
    uint64_t offset, left;
};

/* Opens the file, or the n bytes of `data` when path is NULL, and checks header and table.
 * GR_E_CORRUPT when a checksum or size is wrong, GR_E_UNSUPPORTED for another version or byte
 * order, GR_E_IO, GR_E_NOMEM_HOST; the reader is closed after a failure. */
int gr_state_reader_open(struct gr_state_reader *r, const char *path, const void *data, size_t n);
void gr_state_reader_close(struct gr_state_reader *r);
/* Reads all sections and compares their checksums. */
int gr_state_reader_verify(struct gr_state_reader *r);
/* Moves to the beginning of section i. */
void gr_state_reader_seek(struct gr_state_reader *r, uint32_t i);
/* Reads the section's next n bytes, at most as many as are left. The checksum is compared again at
 * its end (GR_E_CORRUPT), so that a file that changes between two readings is noticed. */
int gr_state_reader_get(struct gr_state_reader *r, void *dst, size_t n);

#endif
