#include "gguf/reader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"

#define FIRST_STEP (64u << 10)

uint32_t gr_le32(const void *p)
{
    const uint8_t *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint64_t gr_le64(const void *p)
{
    return gr_le32(p) | (uint64_t)gr_le32((const uint8_t *)p + 4) << 32;
}

void gr_rd_init_file(struct gr_rd *r, const struct gr_file *file, uint64_t limit)
{
    *r = (struct gr_rd){.name = file->path, .file = file, .size = file->size, .limit = limit};
}

void gr_rd_init_memory(struct gr_rd *r, const void *p, size_t n, const char *name, uint64_t limit)
{
    *r = (struct gr_rd){.name = name, .p = p, .have = n, .size = n, .limit = limit};
}

void gr_rd_fini(struct gr_rd *r)
{
    gr_free(r->buf);
    *r = (struct gr_rd){0};
}

void gr_rd_about(struct gr_rd *r, const char *kind, uint64_t index)
{
    r->kind = kind, r->index = index, r->name_n = 0;
}

int gr_rd_fail(struct gr_rd *r, int status, uint64_t at, const char *fmt, ...)
{
    char text[400], about[400] = "";
    va_list ap;
    if (r->rc)
        return r->rc;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (r->kind && r->name_n)
        snprintf(about, sizeof about, "%s %s: ", r->kind,
                 gr_quote((const char *)r->p + r->name_at, r->name_n));
    else if (r->kind)
        snprintf(about, sizeof about, "%s number %" PRIu64 ": ", r->kind, r->index);
    return r->rc = gr_fail(status, "%s: %s%s (byte %" PRIu64 ")", r->name, about, text, at);
}

/* Reads the file up to byte `upto`; at least doubles the buffer, so that all steps together cost
 * O(n). */
static void grow(struct gr_rd *r, uint64_t upto)
{
    uint64_t want = GR_MAX(GR_MAX(upto, 2 * r->have), (uint64_t)FIRST_STEP);
    want = GR_MIN(GR_MIN(want, r->size), r->limit);
    uint8_t *p = gr_realloc(r->buf, want, 1);
    if (!p) {
        r->rc = GR_E_NOMEM_HOST;
        return;
    }
    r->p = r->buf = p;
    r->rc = gr_file_read(r->file, r->have, p + r->have, want - r->have);
    r->have = want;
}

/* Makes the next n bytes available, reading more of the file if necessary; false: there are
 * fewer. */
static bool need(struct gr_rd *r, uint64_t n, const char *what)
{
    uint64_t left = (r->file ? r->size : r->have) - r->at;
    if (r->rc)
        return false;
    if (n > left)
        gr_rd_fail(r, GR_E_CORRUPT, r->at,
                   "the file ends inside the %s: expected %" PRIu64 " more bytes, found %" PRIu64,
                   what, n, left);
    else if (r->at + n > r->limit)
        gr_rd_fail(r, GR_E_CORRUPT, r->at,
                   "the %s of %" PRIu64 " bytes makes the metadata longer than %" PRIu64 " bytes",
                   what, n, r->limit);
    else if (r->at + n > r->have)
        grow(r, r->at + n);
    return !r->rc;
}

uint32_t gr_rd_u32(struct gr_rd *r, const char *what)
{
    if (!need(r, 4, what))
        return 0;
    r->at += 4;
    return gr_le32(r->p + r->at - 4);
}

uint64_t gr_rd_u64(struct gr_rd *r, const char *what)
{
    if (!need(r, 8, what))
        return 0;
    r->at += 8;
    return gr_le64(r->p + r->at - 8);
}

bool gr_rd_skip(struct gr_rd *r, uint64_t n, const char *what)
{
    if (!need(r, n, what))
        return false;
    r->at += n;
    return true;
}

uint64_t gr_rd_count(struct gr_rd *r, uint64_t min_bytes, uint64_t max, const char *what)
{
    uint64_t at = r->at, n = gr_rd_u64(r, what), fits = (r->size - r->at) / min_bytes;
    if (r->rc || (n <= max && n <= fits))
        return n;
    if (n > max)
        gr_rd_fail(r, GR_E_CORRUPT, at, "%s: expected at most %" PRIu64 ", found %" PRIu64, what,
                   max, n);
    else
        gr_rd_fail(r, GR_E_CORRUPT, at,
                   "%s: expected at most %" PRIu64
                   " (what the rest of the file can hold), found %" PRIu64,
                   what, fits, n);
    return 0;
}
