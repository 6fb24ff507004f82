/* Writing a file. Metadata is built in memory and passes the reader's own checks before a byte is
 * written, so that writer and reader cannot disagree about validity. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/output.h"
#include "base/sort.h"
#include "gguf/gguf_impl.h"
#include "gr/dtype.h"
#include "gr/status.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they are");

/* A key and its value in file format: type; for an array item type and length; items. */
struct entry {
    char *key;
    size_t key_n;
    struct gr_vec value; /* bytes */
};

struct out_tensor {
    char *name;
    size_t name_n;
    uint32_t dtype, n_dim;
    uint64_t ne[4], bytes, offset;
};

struct gr_gguf_writer {
    struct gr_vec entry, tensor;
    struct gr_output *file;
    bool begun;
    uint64_t alignment;
    size_t current; /* tensor whose data is written next */
    uint64_t done;  /* bytes of it written so far */
};

int gr_gguf_writer_new(struct gr_gguf_writer **out)
{
    *out = gr_calloc(1, sizeof **out);
    return *out ? 0 : GR_E_NOMEM_HOST;
}

static struct entry *entry_at(const struct gr_gguf_writer *w, size_t i)
{
    return (struct entry *)w->entry.data + i;
}

static struct out_tensor *tensor_at(const struct gr_gguf_writer *w, size_t i)
{
    return (struct out_tensor *)w->tensor.data + i;
}

void gr_gguf_writer_free(struct gr_gguf_writer **w)
{
    struct gr_gguf_writer *m = *w;
    if (!m)
        return;
    gr_output_abort(&m->file);
    for (size_t i = 0; i < m->entry.n; i++) {
        gr_free(entry_at(m, i)->key);
        gr_vec_fini(&entry_at(m, i)->value);
    }
    for (size_t i = 0; i < m->tensor.n; i++)
        gr_free(tensor_at(m, i)->name);
    gr_vec_fini(&m->entry);
    gr_vec_fini(&m->tensor);
    gr_free(m);
    *w = NULL;
}

/* Takes ownership of the value, also on failure. Duplicate keys are resolved by settle_keys when
 * the file is begun. */
static int set(struct gr_gguf_writer *w, struct gr_str key, struct gr_vec *value, int rc)
{
    struct entry *e = NULL;
    char *copy = NULL;
    if (!rc && w->begun)
        rc = gr_fail(GR_E_INVALID, "key %s: set after the file was begun", gr_quote(key.p, key.n));
    if (!rc && (!(copy = gr_strndup(key.p, key.n)) || !(e = gr_vec_push(&w->entry, sizeof *e))))
        rc = GR_E_NOMEM_HOST;
    if (rc) {
        gr_free(copy);
        gr_vec_fini(value);
        return rc;
    }
    *e = (struct entry){copy, key.n, *value};
    return 0;
}

static struct gr_str key_of(const struct entry *e)
{
    return (struct gr_str){e->key, e->key_n};
}

/* Orders entries by key, then by the order in which they were set. */
static bool less_entry(const void *items, uint32_t a, uint32_t b)
{
    const struct entry *e = items;
    int c = gr_str_compare(key_of(e + a), key_of(e + b));
    return c ? c < 0 : a < b;
}

/* Keeps one entry per key: at its first position, with the value set last. */
static int settle_keys(struct gr_gguf_writer *w)
{
    uint32_t *order = gr_sorted(w->entry.data, w->entry.n, less_entry);
    size_t kept = 0, n = w->entry.n;
    if (!order)
        return GR_E_NOMEM_HOST;
    for (size_t i = 1, first = 0; i < n; i++) {
        struct entry *e = entry_at(w, order[first]), *later = entry_at(w, order[i]);
        if (gr_str_compare(key_of(e), key_of(later)) != 0) {
            first = i;
            continue;
        }
        gr_vec_fini(&e->value);
        e->value = later->value;
        gr_free(later->key);
        *later = (struct entry){0};
    }
    for (size_t i = 0; i < n; i++)
        if (entry_at(w, i)->key)
            *entry_at(w, kept++) = *entry_at(w, i);
    w->entry.n = kept;
    gr_free(order);
    return 0;
}

static int put(struct gr_vec *v, const void *p, size_t n)
{
    return gr_vec_append(v, p, n, 1);
}

static int put_u32(struct gr_vec *v, uint32_t x)
{
    return put(v, &x, sizeof x);
}

static int put_u64(struct gr_vec *v, uint64_t x)
{
    return put(v, &x, sizeof x);
}

static int put_str(struct gr_vec *v, const char *p, size_t n)
{
    int rc = put_u64(v, n);
    return rc ? rc : put(v, p, n);
}

/* Appends the header of an array: type, item type, length. */
static int put_array(struct gr_vec *v, enum gr_gguf_type item, uint64_t n)
{
    int rc = put_u32(v, GR_GGUF_ARRAY);
    if (!rc)
        rc = put_u32(v, (uint32_t)item);
    return rc ? rc : put_u64(v, n);
}

static struct gr_str str_of(const char *s)
{
    return (struct gr_str){s, strlen(s)};
}

/* Returns the size of a fixed-size type; 0, with a message, for strings and arrays. */
static size_t fixed_bytes(const char *key, enum gr_gguf_type type)
{
    size_t n = gr_gguf_type_bytes(type);
    if (n == 0)
        (void)gr_fail(GR_E_INVALID, "key '%s': expected a type of fixed size, found %s", key,
                      gr_gguf_type_name(type));
    return n;
}

int gr_gguf_set_scalar(struct gr_gguf_writer *w, const char *key, enum gr_gguf_type type,
                       const void *value)
{
    struct gr_vec v = {0};
    size_t n = fixed_bytes(key, type);
    int rc = n ? put_u32(&v, (uint32_t)type) : GR_E_INVALID;
    if (!rc)
        rc = put(&v, value, n);
    return set(w, str_of(key), &v, rc);
}

int gr_gguf_set_u32(struct gr_gguf_writer *w, const char *key, uint32_t value)
{
    return gr_gguf_set_scalar(w, key, GR_GGUF_U32, &value);
}

int gr_gguf_set_f32(struct gr_gguf_writer *w, const char *key, float value)
{
    return gr_gguf_set_scalar(w, key, GR_GGUF_F32, &value);
}

int gr_gguf_set_bool(struct gr_gguf_writer *w, const char *key, bool value)
{
    return gr_gguf_set_scalar(w, key, GR_GGUF_BOOL, &value);
}

int gr_gguf_set_str(struct gr_gguf_writer *w, const char *key, const char *text)
{
    struct gr_vec v = {0};
    int rc = put_u32(&v, GR_GGUF_STR);
    if (!rc)
        rc = put_str(&v, text, strlen(text));
    return set(w, str_of(key), &v, rc);
}

int gr_gguf_set_array(struct gr_gguf_writer *w, const char *key, enum gr_gguf_type item,
                      const void *items, uint64_t n)
{
    struct gr_vec v = {0};
    size_t size = fixed_bytes(key, item), bytes;
    int rc = size ? put_array(&v, item, n) : GR_E_INVALID;
    if (!rc && !gr_mul(&bytes, n, size))
        rc = gr_fail(GR_E_INVALID, "key '%s': an array of %" PRIu64 " items is too long", key, n);
    if (!rc)
        rc = put(&v, items, bytes);
    return set(w, str_of(key), &v, rc);
}

int gr_gguf_set_strs(struct gr_gguf_writer *w, const char *key, const struct gr_str *items,
                     uint64_t n)
{
    struct gr_vec v = {0};
    int rc = put_array(&v, GR_GGUF_STR, n);
    for (uint64_t i = 0; i < n && !rc; i++)
        rc = put_str(&v, items[i].p, items[i].n);
    return set(w, str_of(key), &v, rc);
}

int gr_gguf_copy_kv(struct gr_gguf_writer *w, const struct gr_gguf_kv *kv)
{
    struct gr_vec v = {0};
    int rc = kv->type == GR_GGUF_ARRAY ? put_array(&v, kv->item, kv->n)
                                       : put_u32(&v, (uint32_t)kv->type);
    if (!rc)
        rc = put(&v, kv->data, kv->bytes);
    return set(w, kv->key, &v, rc);
}

int gr_gguf_copy_all(struct gr_gguf_writer *w, const struct gr_gguf *g)
{
    int rc = 0;
    for (uint64_t i = 0; i < gr_gguf_n_kv(g) && !rc; i++) {
        const struct gr_gguf_kv *kv = gr_gguf_kv_at(g, i);
        if (kv->key.n < 6 || memcmp(kv->key.p, "split.", 6) != 0)
            rc = gr_gguf_copy_kv(w, kv);
    }
    return rc;
}

int gr_gguf_add_tensor(struct gr_gguf_writer *w, struct gr_str name, uint32_t dtype, uint32_t n_dim,
                       const uint64_t *ne)
{
    struct out_tensor t = {.dtype = dtype, .n_dim = n_dim, .ne = {1, 1, 1, 1}}, *place;
    if (w->begun)
        return gr_fail(GR_E_INVALID, "tensor %s: added after the file was begun",
                       gr_quote(name.p, name.n));
    if (!gr_tensor_bytes(dtype, ne, n_dim, &t.bytes))
        return gr_fail(GR_E_INVALID,
                       "tensor %s: expected 1 to 4 dimensions that are not 0, the first a multiple "
                       "of %s's block, "
                       "found %" PRIu32 " (first %" PRIu64 ", type %" PRIu32 ")",
                       gr_quote(name.p, name.n), gr_dtype_name(dtype), n_dim, n_dim ? ne[0] : 0,
                       dtype);
    memcpy(t.ne, ne, n_dim * sizeof *ne);
    t.name_n = name.n;
    t.name = gr_strndup(name.p, name.n);
    place = t.name ? gr_vec_push(&w->tensor, sizeof t) : NULL;
    if (!place) {
        gr_free(t.name);
        return GR_E_NOMEM_HOST;
    }
    *place = t;
    return 0;
}

/* Returns general.alignment when it is a u32, else the default; the reader's checks validate it. */
static uint64_t alignment_of(const struct gr_gguf_writer *w)
{
    for (size_t i = 0; i < w->entry.n; i++) {
        const struct entry *e = entry_at(w, i);
        if (gr_str_is((struct gr_str){e->key, e->key_n}, "general.alignment") && e->value.n == 8 &&
            gr_le32(e->value.data) == GR_GGUF_U32)
            return gr_le32((const char *)e->value.data + 4);
    }
    return GR_GGUF_DEFAULT_ALIGN;
}

/* Assigns each tensor its offset in the data section; *end receives the size of the section. */
static int place_tensors(struct gr_gguf_writer *w, uint64_t *end)
{
    *end = 0;
    for (size_t i = 0; i < w->tensor.n; i++) {
        struct out_tensor *t = tensor_at(w, i);
        t->offset = *end;
        if (!gr_add(end, *end, t->bytes) || !gr_align_up(end, *end, w->alignment) ||
            *end > INT64_MAX / 2)
            return gr_fail(GR_E_INVALID,
                           "tensor %s: the file would be too large, or general.alignment %" PRIu64
                           " is no power of two",
                           gr_quote(t->name, t->name_n), w->alignment);
    }
    return 0;
}

static int put_meta(const struct gr_gguf_writer *w, struct gr_vec *meta)
{
    int rc = put(meta, "GGUF\3\0\0", 8);
    if (!rc)
        rc = put_u64(meta, w->tensor.n);
    if (!rc)
        rc = put_u64(meta, w->entry.n);
    for (size_t i = 0; i < w->entry.n && !rc; i++) {
        const struct entry *e = entry_at(w, i);
        rc = put_str(meta, e->key, e->key_n);
        if (!rc)
            rc = put(meta, e->value.data, e->value.n);
    }
    for (size_t i = 0; i < w->tensor.n && !rc; i++) {
        const struct out_tensor *t = tensor_at(w, i);
        rc = put_str(meta, t->name, t->name_n);
        if (!rc)
            rc = put_u32(meta, t->n_dim);
        if (!rc)
            rc = put(meta, t->ne, t->n_dim * sizeof *t->ne);
        if (!rc)
            rc = put_u32(meta, t->dtype);
        if (!rc)
            rc = put_u64(meta, t->offset);
    }
    return rc;
}

static int file_pad(struct gr_gguf_writer *w, uint64_t n)
{
    static const char zeros[4096];
    int rc = 0;
    for (uint64_t left = n; left && !rc;) {
        size_t k = (size_t)GR_MIN(left, sizeof zeros);
        rc = gr_output_put(w->file, zeros, k);
        left -= k;
    }
    return rc;
}

int gr_gguf_begin(struct gr_gguf_writer *w, const char *path)
{
    struct gr_vec meta = {0};
    uint64_t data = 0, start = 0;
    if (w->begun)
        return gr_fail(GR_E_INVALID, "%s: the file was begun before", path);
    int rc = settle_keys(w);
    if (rc)
        return rc;
    w->alignment = alignment_of(w);
    rc = place_tensors(w, &data);
    if (!rc)
        rc = put_meta(w, &meta);
    if (!rc && (!gr_align_up(&start, meta.n, w->alignment) || !gr_add(&data, data, start)))
        rc = gr_fail(GR_E_INVALID, "%s: general.alignment %" PRIu64 " is no power of two", path,
                     w->alignment);
    if (!rc)
        rc = gr_gguf_check_meta(meta.data, meta.n, data, path);
    if (!rc)
        rc = gr_output_open(&w->file, path, 0);
    if (!rc) {
        w->begun = true;
        rc = gr_output_put(w->file, meta.data, meta.n);
    }
    if (!rc)
        rc = file_pad(w, start - meta.n);
    gr_vec_fini(&meta);
    return rc;
}

int gr_gguf_write(struct gr_gguf_writer *w, const void *data, size_t n)
{
    if (!w->begun || w->current == w->tensor.n)
        return gr_fail(GR_E_INVALID, "%zu bytes of data: expected no more of them", n);
    struct out_tensor *t = tensor_at(w, w->current);
    if (n > t->bytes - w->done)
        return gr_fail(GR_E_INVALID,
                       "%s: tensor %s: expected at most %" PRIu64 " more bytes of data, found %zu",
                       w->file->path, gr_quote(t->name, t->name_n), t->bytes - w->done, n);
    int rc = gr_output_put(w->file, data, n);
    if (rc)
        return rc;
    w->done += n;
    if (w->done < t->bytes)
        return 0;
    w->current++, w->done = 0;
    return file_pad(w, GR_PAD(t->bytes, w->alignment) - t->bytes);
}

int gr_gguf_commit(struct gr_gguf_writer *w)
{
    if (!w->begun || !w->file)
        return gr_fail(GR_E_INVALID, "no file was begun");
    if (w->current < w->tensor.n) {
        const struct out_tensor *t = tensor_at(w, w->current);
        return gr_fail(GR_E_INVALID, "%s: tensor %s: expected %" PRIu64 " more bytes of data",
                       w->file->path, gr_quote(t->name, t->name_n), t->bytes - w->done);
    }
    return gr_output_commit(&w->file);
}
