#include "engine/state_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"

#define MAGIC "gpurunKV"
#define BYTE_ORDER_MARK 0x01020304u
#define CHUNK (1u << 18)

struct header {
    char magic[8];
    uint32_t version, byte_order;
    uint64_t bytes; /* in total */
    uint32_t n_section, scope;
    struct gr_state_sum sum; /* of the header, with zeros in this field, and the table */
};

_Static_assert(sizeof(struct header) == 48 && sizeof(struct gr_state_section) == 32,
               "what is written has no padding");

static struct gr_state_sum digest(XXH3_state_t *hash)
{
    struct gr_state_sum sum;
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits_digest(hash));
    memcpy(&sum, &c, sizeof sum);
    return sum;
}

static struct gr_state_sum header_sum(XXH3_state_t *hash, struct header h,
                                      const struct gr_state_section *table)
{
    memset(&h.sum, 0, sizeof h.sum);
    XXH3_128bits_reset(hash);
    XXH3_128bits_update(hash, &h, sizeof h);
    XXH3_128bits_update(hash, table, h.n_section * sizeof *table);
    return digest(hash);
}

static void *new_hash(void)
{
    XXH3_state_t *hash = gr_calloc(1, sizeof *hash);
    if (hash)
        XXH3_INITSTATE(hash);
    return hash;
}

/* Sums the bytes of header, table and sections; false when they exceed INT64_MAX. */
static bool total(const struct gr_state_section *table, uint32_t n_section, uint64_t *bytes)
{
    *bytes = sizeof(struct header) + n_section * sizeof *table;
    for (uint32_t i = 0; i < n_section; i++)
        if (!gr_add(bytes, *bytes, table[i].bytes))
            return false;
    return *bytes <= INT64_MAX;
}

/* ---- writing ---- */

/* Begins the next section that has bytes; empty ones get the checksum of no bytes. */
static void next_section(struct gr_state_writer *w)
{
    for (; w->at < w->n_section; w->at++) {
        XXH3_128bits_reset(w->hash);
        w->left = w->table[w->at].bytes;
        if (w->left)
            return;
        w->table[w->at].sum = digest(w->hash);
    }
}

static int open_target(struct gr_state_writer *w, const char *path)
{
    size_t head = sizeof(struct header) + w->n_section * sizeof *w->table;
    w->hash = new_hash();
    if (!w->hash)
        return GR_E_NOMEM_HOST;
    if (!path) {
        w->memory = gr_calloc(w->n, 1);
        return w->memory ? 0 : GR_E_NOMEM_HOST;
    }
    /* private: it holds conversations */
    int rc = gr_output_open(&w->file, path, GR_OUTPUT_PRIVATE | GR_OUTPUT_SEEKS);
    return rc ? rc : gr_output_seek(w->file, head);
}

int gr_state_writer_open(struct gr_state_writer *w, const char *path,
                         struct gr_state_section *table, uint32_t n_section, uint32_t scope)
{
    uint64_t bytes;
    *w = (struct gr_state_writer){.table = table, .n_section = n_section, .scope = scope};
    if (!total(table, n_section, &bytes))
        return gr_fail(GR_E_TOO_LARGE, "the state is too large to be saved");
    w->n = (size_t)bytes;
    w->n_done = sizeof(struct header) + n_section * sizeof *table;
    int rc = open_target(w, path);
    if (rc)
        gr_state_writer_close(w);
    else
        next_section(w);
    return rc;
}

int gr_state_writer_put(struct gr_state_writer *w, const void *data, size_t n)
{
    if (n > w->left)
        return gr_fail(GR_E_INTERNAL, "state: section %u: %zu bytes more than it has", w->at,
                       (size_t)(n - w->left));
    if (!n)
        return 0;
    if (w->memory) {
        memcpy(w->memory + w->n_done, data, n);
    } else {
        int rc = gr_output_put(w->file, data, n);
        if (rc)
            return rc;
    }
    XXH3_128bits_update(w->hash, data, n);
    w->n_done += n, w->left -= n;
    if (!w->left) {
        w->table[w->at++].sum = digest(w->hash);
        next_section(w);
    }
    return 0;
}

static int put_head(struct gr_state_writer *w)
{
    struct header h = {.version = GR_STATE_VERSION,
                       .byte_order = BYTE_ORDER_MARK,
                       .bytes = w->n,
                       .n_section = w->n_section,
                       .scope = w->scope};
    size_t table_bytes = w->n_section * sizeof *w->table;
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.sum = header_sum(w->hash, h, w->table);
    if (w->memory) {
        memcpy(w->memory, &h, sizeof h);
        memcpy(w->memory + sizeof h, w->table, table_bytes);
        return 0;
    }
    int rc = gr_output_seek(w->file, 0);
    if (!rc)
        rc = gr_output_put(w->file, &h, sizeof h);
    return rc ? rc : gr_output_put(w->file, w->table, table_bytes);
}

int gr_state_writer_commit(struct gr_state_writer *w, void **data, size_t *n)
{
    if (w->n_done != w->n)
        return gr_fail(GR_E_INTERNAL, "state: %zu of %zu bytes were written", w->n_done, w->n);
    int rc = put_head(w);
    if (rc)
        return rc;
    if (!w->memory)
        return gr_output_commit(&w->file);
    *data = w->memory, *n = w->n;
    w->memory = NULL;
    return 0;
}

void gr_state_writer_close(struct gr_state_writer *w)
{
    gr_free(w->hash);
    gr_free(w->memory);
    gr_output_abort(&w->file);
    *w = (struct gr_state_writer){0};
}

/* ---- reading ---- */

static int damaged(const struct gr_state_reader *r, const char *what)
{
    return gr_fail(GR_E_CORRUPT, "%s: %s: it is damaged, save it again", r->name, what);
}

static int read_at(const struct gr_state_reader *r, uint64_t offset, void *dst, size_t n)
{
    if (!gr_in(offset, n, r->bytes))
        return gr_fail(GR_E_CORRUPT,
                       "%s: %" PRIu64 " bytes expected at least, %" PRIu64
                       " found: it is cut off, save it again",
                       r->name, offset + n, r->bytes);
    if (!r->memory)
        return gr_file_read(&r->file, offset, dst, n);
    memcpy(dst, r->memory + offset, n);
    return 0;
}

static int check_header(const struct gr_state_reader *r, const struct header *h)
{
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return gr_fail(GR_E_CORRUPT, "%s: not a saved state: '" MAGIC "' expected, %s found",
                       r->name, gr_quote(h->magic, sizeof h->magic));
    if (h->byte_order != BYTE_ORDER_MARK)
        return gr_fail(GR_E_UNSUPPORTED,
                       "%s: byte order %08x expected, %08x found: it is from another kind of "
                       "machine, or damaged",
                       r->name, BYTE_ORDER_MARK, h->byte_order);
    if (h->version != GR_STATE_VERSION)
        return gr_fail(GR_E_UNSUPPORTED,
                       "%s: version %d of the format expected, %u found: use the program that "
                       "saved it, or save it again",
                       r->name, GR_STATE_VERSION, h->version);
    if (h->bytes != r->bytes)
        return gr_fail(GR_E_CORRUPT,
                       "%s: %" PRIu64 " bytes expected, %" PRIu64 " found: it is %s, save it again",
                       r->name, h->bytes, r->bytes,
                       r->bytes < h->bytes ? "cut off" : "followed by others");
    if (h->n_section > GR_STATE_MAX_SECTION)
        return damaged(r, "more sections than there can be");
    return 0;
}

static int read_table(struct gr_state_reader *r)
{
    struct header h;
    uint64_t bytes;
    int rc = read_at(r, 0, &h, sizeof h);
    if (!rc)
        rc = check_header(r, &h);
    if (rc)
        return rc;
    r->n_section = h.n_section, r->scope = h.scope;
    r->table = gr_calloc(h.n_section, sizeof *r->table);
    if (!r->table)
        return GR_E_NOMEM_HOST;
    rc = read_at(r, sizeof h, r->table, h.n_section * sizeof *r->table);
    if (rc)
        return rc;
    struct gr_state_sum sum = header_sum(r->hash, h, r->table);
    if (memcmp(&sum, &h.sum, sizeof sum) != 0)
        return damaged(r, "the checksum of its header differs");
    if (!total(r->table, r->n_section, &bytes) || bytes != r->bytes)
        return damaged(r, "its sections do not fill it");
    return 0;
}

int gr_state_reader_open(struct gr_state_reader *r, const char *path, const void *data, size_t n)
{
    int rc = 0;
    *r = (struct gr_state_reader){.name = path ? path : "state"};
    r->memory = path ? NULL : data;
    r->bytes = path || !data ? 0 : n;
    if (path) {
        rc = gr_file_open(&r->file, path, false);
        rc = rc == GR_E_NO_MODEL ? GR_E_IO : rc; /* the message has path and reason */
        r->bytes = rc ? 0 : r->file.size;
    }
    if (!rc && !(r->hash = new_hash()))
        rc = GR_E_NOMEM_HOST;
    if (!rc)
        rc = read_table(r);
    if (rc)
        gr_state_reader_close(r);
    return rc;
}

void gr_state_reader_close(struct gr_state_reader *r)
{
    gr_file_close(&r->file);
    gr_free(r->table);
    gr_free(r->hash);
    *r = (struct gr_state_reader){.file.fd = -1};
}

void gr_state_reader_seek(struct gr_state_reader *r, uint32_t i)
{
    r->offset = sizeof(struct header) + r->n_section * sizeof *r->table;
    for (uint32_t k = 0; k < i; k++)
        r->offset += r->table[k].bytes;
    r->at = i, r->left = r->table[i].bytes;
    XXH3_128bits_reset(r->hash);
}

int gr_state_reader_get(struct gr_state_reader *r, void *dst, size_t n)
{
    static const char *const names[] = {"configuration", "note", "cells", "states", "data"};
    const struct gr_state_section *s = &r->table[r->at];
    char what[96];
    if (n > r->left)
        return gr_fail(GR_E_INTERNAL, "%s: section %u: read beyond its end", r->name, r->at);
    int rc = read_at(r, r->offset, dst, n);
    if (rc)
        return rc;
    XXH3_128bits_update(r->hash, dst, n);
    r->offset += n, r->left -= n;
    if (r->left)
        return 0;
    struct gr_state_sum sum = digest(r->hash);
    if (memcmp(&sum, &s->sum, sizeof sum) == 0)
        return 0;
    snprintf(what, sizeof what, "the checksum of section %u (%s) differs", r->at,
             s->kind < GR_COUNT(names) ? names[s->kind] : "unknown");
    return damaged(r, what);
}

int gr_state_reader_verify(struct gr_state_reader *r)
{
    char *chunk = gr_calloc(CHUNK, 1);
    int rc = chunk ? 0 : GR_E_NOMEM_HOST;
    for (uint32_t i = 0; i < r->n_section && !rc; i++) {
        gr_state_reader_seek(r, i);
        do
            rc = gr_state_reader_get(r, chunk, (size_t)GR_MIN(r->left, CHUNK));
        while (!rc && r->left);
    }
    gr_free(chunk);
    return rc;
}
