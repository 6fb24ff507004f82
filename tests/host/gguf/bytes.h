/* Puts GGUF files together byte by byte, right or wrong, for the tests of the reader. */
#ifndef TESTS_GGUF_BYTES_H
#define TESTS_GGUF_BYTES_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "gguf/gguf.h"
#include "gr/status.h"

/* The file so far, and where its numbers and its records (keys, then tensors) are. */
struct bytes {
    uint8_t p[65536];
    size_t n;
    struct {
        size_t at, n;
    } field[256];
    size_t n_field, record[64], n_record;
};

static inline void put(struct bytes *b, const void *p, size_t n)
{
    cr_assert(n <= sizeof b->p - b->n);
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
}

/* The `n` low bytes of v, little-endian: a number of the file. */
static inline void put_int(struct bytes *b, uint64_t v, size_t n)
{
    if (b->n_field < sizeof b->field / sizeof *b->field && n <= 8)
        b->field[b->n_field].at = b->n, b->field[b->n_field++].n = n;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)(i < 8 ? v >> 8 * i : 0);
        put(b, &c, 1);
    }
}

static inline void put_str(struct bytes *b, const char *s)
{
    put_int(b, strlen(s), 8);
    put(b, s, strlen(s));
}

static inline void put_head(struct bytes *b, uint32_t version, uint64_t n_tensor, uint64_t n_kv)
{
    put(b, "GGUF", 4);
    put_int(b, version, 4);
    put_int(b, n_tensor, 8);
    put_int(b, n_kv, 8);
}

/* A record begins here. */
static inline void put_record(struct bytes *b)
{
    if (b->n_record < sizeof b->record / sizeof *b->record)
        b->record[b->n_record++] = b->n;
}

/* A key and its type; the value follows. */
static inline void put_key(struct bytes *b, const char *key, uint32_t type)
{
    put_record(b);
    put_str(b, key);
    put_int(b, type, 4);
}

static inline void put_kv_str(struct bytes *b, const char *key, const char *value)
{
    put_key(b, key, GR_GGUF_STR);
    put_str(b, value);
}

static inline void put_kv_u32(struct bytes *b, const char *key, uint32_t value)
{
    put_key(b, key, GR_GGUF_U32);
    put_int(b, value, 4);
}

/* An array's type and length; the items follow. */
static inline void put_array(struct bytes *b, const char *key, uint32_t item, uint64_t n)
{
    put_key(b, key, GR_GGUF_ARRAY);
    put_int(b, item, 4);
    put_int(b, n, 8);
}

/* One line of the tensor table, two dimensions. */
static inline void put_tensor(struct bytes *b, const char *name, uint64_t ne0, uint64_t ne1,
                              uint32_t dtype, uint64_t offset)
{
    put_record(b);
    put_str(b, name);
    put_int(b, 2, 4);
    put_int(b, ne0, 8);
    put_int(b, ne1, 8);
    put_int(b, dtype, 4);
    put_int(b, offset, 8);
}

static inline void put_pad(struct bytes *b, size_t align)
{
    while (b->n % align)
        put_int(b, 0, 1);
}

/* Writes the bytes to a file below the build folder that no other test uses. */
static inline const char *put_file(const struct bytes *b, const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/%s", GR_BINARY_DIR, name);
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(b->p, 1, b->n, f) == b->n && fclose(f) == 0, "%s", path);
    return path;
}

/* Expects the bytes to be refused with `status` and a one-line message that contains `text`. */
static inline void refused(const struct bytes *b, int status, const char *text)
{
    struct gr_gguf *g;
    int rc = gr_gguf_open_memory(&g, b->p, b->n, "x.gguf");
    cr_assert_eq(rc, status, "status %d, expected %d (%s)", rc, status,
                 rc ? gr_error() : "accepted");
    cr_assert_null(g);
    cr_assert(strstr(gr_error(), text), "'%s' lacks '%s'", gr_error(), text);
    cr_assert(strncmp(gr_error(), "x.gguf: ", 8) == 0 && !strchr(gr_error(), '\n'), "%s",
              gr_error());
}

#endif
