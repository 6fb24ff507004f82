/* Parsing one file: the whole model, or a part of a split one. Its structure is parsed twice: the
 * first pass reads (growing the buffer) and counts, so that counts in the file are trusted only
 * after the items have been seen; the second fills tables of exactly that size. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "gguf/gguf_impl.h"
#include "gr/dtype.h"
#include "gr/status.h"

/* Smallest size of an entry: a name of 1 byte; then type and a value of 1 byte, or 1 dimension,
 * type and offset. */
#define MIN_KV_BYTES (8 + 1 + 4 + 1)
#define MIN_TENSOR_BYTES (8 + 1 + 4 + 8 + 4 + 8)

/* Guesses the format of a file that is not GGUF, for the message. */
static const char *looks_like(const uint8_t *p, size_t n)
{
    static const struct {
        const char *head, *text;
    } known[] = {
        {"version https://git-lfs", "a Git LFS pointer: fetch the file itself with 'git lfs pull'"},
        {"<!DOCTYPE", "an HTML page: the download was probably refused"},
        {"<!doctype", "an HTML page: the download was probably refused"},
        {"<html", "an HTML page: the download was probably refused"},
        {"<?xml", "an XML page: the download was probably refused"},
        {"PK\003\004", "a zip file or PyTorch checkpoint: convert it to GGUF"},
        {"\x80\x02", "a Python pickle or PyTorch checkpoint: convert it to GGUF"},
        {"\x89HDF", "an HDF5 file: convert it to GGUF"},
        {"\x1f\x8b", "gzip: decompress it first"},
        {"\x28\xb5\x2f\xfd", "zstd: decompress it first"},
        {"lmgg", "GGML, the format before GGUF: convert it"},
        {"tjgg", "GGJT, the format before GGUF: convert it"},
        {"fmgg", "GGMF, the format before GGUF: convert it"},
        {"\x7f"
         "ELF",
         "a program"},
        {"{", "JSON"},
    };
    bool zeros = n >= 16;
    for (size_t i = 0; i < GR_COUNT(known); i++)
        if (n >= strlen(known[i].head) && memcmp(p, known[i].head, strlen(known[i].head)) == 0)
            return known[i].text;
    for (size_t i = 0; i < n; i++)
        zeros = zeros && p[i] == 0;
    if (n >= 9 && p[8] == '{' && gr_le64(p) < (1u << 30))
        return "safetensors: convert it to GGUF";
    return zeros ? "an unfinished download, all zeros" : NULL;
}

static void read_magic(struct gr_rd *r)
{
    uint8_t head[32] = {0};
    size_t n = (size_t)GR_MIN(r->size, sizeof head);
    if (n == 0) {
        gr_rd_fail(r, GR_E_CORRUPT, 0, "not a GGUF file: it is empty");
        return;
    }
    if (gr_rd_skip(r, n, "magic"))
        memcpy(head, r->p, n);
    r->at = GR_MIN(r->at, 4u);
    if (r->rc || memcmp(head, "GGUF", 4) == 0)
        return;
    const char *like = looks_like(head, n);
    gr_rd_fail(r, GR_E_CORRUPT, 0, "not a GGUF file: expected 'GGUF', found %s%s%s",
               gr_quote((const char *)head, GR_MIN(n, 16u)), like ? ", which looks like " : "",
               like ? like : "");
}

static uint32_t read_version(struct gr_rd *r)
{
    uint32_t v = gr_rd_u32(r, "version");
    if (r->rc || v == 2 || v == 3)
        return v;
    if ((v & 0xffff) == 0 && v)
        gr_rd_fail(r, GR_E_UNSUPPORTED, 4,
                   "big-endian file: expected version 2 or 3, found 0x%08" PRIx32, v);
    else
        gr_rd_fail(r, GR_E_UNSUPPORTED, 4, "expected version 2 or 3, found %" PRIu32, v);
    return 0;
}

/* Reads the name of the current record. The view is valid until the buffer is reallocated. */
static struct gr_str read_name(struct gr_rd *r)
{
    uint64_t at = r->at, n = gr_rd_u64(r, "length of the name");
    if (!r->rc && (n == 0 || n > GR_GGUF_MAX_NAME))
        gr_rd_fail(r, GR_E_CORRUPT, at, "length of the name: expected 1 to %u, found %" PRIu64,
                   GR_GGUF_MAX_NAME, n);
    if (!gr_rd_skip(r, n, "name"))
        return (struct gr_str){"", 0};
    r->name_at = r->at - n, r->name_n = n;
    return (struct gr_str){(const char *)r->p + r->name_at, n};
}

static enum gr_gguf_type read_type(struct gr_rd *r, const char *what)
{
    uint32_t type = gr_rd_u32(r, what);
    if (!r->rc && type >= GR_GGUF_N_TYPE)
        gr_rd_fail(r, GR_E_UNSUPPORTED, r->at - 4, "unknown %s: expected 0 to %d, found %" PRIu32,
                   what, GR_GGUF_N_TYPE - 1, type);
    return r->rc ? GR_GGUF_U8 : (enum gr_gguf_type)type;
}

static void read_items(struct gr_rd *r, enum gr_gguf_type type, uint64_t n)
{
    if (type == GR_GGUF_STR)
        for (uint64_t i = 0; i < n && !r->rc; i++)
            gr_rd_skip(r, gr_rd_u64(r, "length of a string"), "string");
    else
        gr_rd_skip(r, n * gr_gguf_type_bytes(type),
                   "value"); /* n was checked against the rest of the file */
    if (type == GR_GGUF_BOOL)
        for (uint64_t i = r->at - n; i < r->at && !r->rc; i++)
            if (r->p[i] > 1)
                gr_rd_fail(r, GR_E_CORRUPT, i, "expected a bool of 0 or 1, found %d", r->p[i]);
}

static void read_kv(struct gr_rd *r, uint64_t index, struct gr_gguf_kv *kv)
{
    gr_rd_about(r, "key", index);
    *kv = (struct gr_gguf_kv){.key = read_name(r), .n = 1};
    kv->type = kv->item = read_type(r, "value type");
    if (kv->type == GR_GGUF_ARRAY) {
        kv->item = read_type(r, "item type");
        if (kv->item == GR_GGUF_ARRAY)
            gr_rd_fail(r, GR_E_UNSUPPORTED, r->at - 4, "arrays of arrays are not supported");
        uint64_t least = kv->item == GR_GGUF_STR ? 8 : gr_gguf_type_bytes(kv->item);
        kv->n = r->rc ? 0 : gr_rd_count(r, least, UINT64_MAX, "array length");
    }
    kv->offset = r->at;
    if (!r->rc)
        read_items(r, kv->item, kv->n);
    kv->bytes = r->at - kv->offset;
    kv->data = r->p + kv->offset;
    gr_rd_about(r, NULL, 0);
}

/* Fails with a message that says which condition of gr_tensor_bytes does not hold. */
static void fail_shape(struct gr_rd *r, uint64_t at, const struct gr_gguf_tensor *t)
{
    const struct gr_dtype_info *d = gr_dtype_find(t->dtype);
    for (uint32_t i = 0; i < t->n_dim; i++)
        if (t->ne[i] == 0)
            gr_rd_fail(r, GR_E_CORRUPT, at + 8 * i, "dimension %" PRIu32 " is 0", i);
    if (t->ne[0] % d->block)
        gr_rd_fail(r, GR_E_CORRUPT, at,
                   "dimension 0: expected a multiple of %" PRIu32 " for type %s, found %" PRIu64,
                   d->block, d->name, t->ne[0]);
    gr_rd_fail(r, GR_E_CORRUPT, at,
               "dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
               " of type %s are too large",
               t->ne[0], t->ne[1], t->ne[2], t->ne[3], d->name);
}

/* Reads one row of the tensor table; t->offset is still relative to the data section. Returns the
 * position of the offset in the file. */
static uint64_t read_tensor(struct gr_rd *r, uint64_t index, struct gr_gguf_tensor *t)
{
    gr_rd_about(r, "tensor", index);
    *t = (struct gr_gguf_tensor){.name = read_name(r), .ne = {1, 1, 1, 1}};
    t->n_dim = gr_rd_u32(r, "number of dimensions");
    if (!r->rc && (t->n_dim < 1 || t->n_dim > 4))
        gr_rd_fail(r, GR_E_CORRUPT, r->at - 4, "expected 1 to 4 dimensions, found %" PRIu32,
                   t->n_dim);
    uint64_t at = r->at;
    for (uint32_t i = 0; i < t->n_dim && !r->rc; i++)
        t->ne[i] = gr_rd_u64(r, "dimensions");
    t->dtype = gr_rd_u32(r, "storage type");
    if (!r->rc && !gr_dtype_find(t->dtype))
        gr_rd_fail(r, GR_E_UNSUPPORTED, r->at - 4, "unknown storage type %" PRIu32, t->dtype);
    if (!r->rc && !gr_tensor_bytes(t->dtype, t->ne, t->n_dim, &t->bytes))
        fail_shape(r, at, t);
    t->offset = gr_rd_u64(r, "offset");
    return r->at - 8;
}

/* Makes the offset relative to the file and checks that the data lies in the file. */
static void place_tensor(struct gr_gguf_part *p, uint64_t at, struct gr_gguf_tensor *t)
{
    struct gr_rd *r = &p->rd;
    uint64_t off;
    if (t->offset % p->alignment)
        gr_rd_fail(r, GR_E_CORRUPT, at,
                   "offset: expected a multiple of the alignment %" PRIu64 ", found %" PRIu64,
                   p->alignment, t->offset);
    else if (!gr_add(&off, t->offset, p->data_offset) || !gr_in(off, t->bytes, r->size))
        gr_rd_fail(r, GR_E_CORRUPT, at,
                   "expected %" PRIu64 " bytes at offset %" PRIu64
                   " of the data, which begins at byte %" PRIu64 "; the file has %" PRIu64
                   " bytes: it may be truncated",
                   t->bytes, t->offset, p->data_offset, r->size);
    else
        t->offset = off;
    t->data = p->base && !r->rc ? p->base + t->offset : NULL;
    gr_rd_about(r, NULL, 0);
}

/* First pass: counts, structure and the end of the metadata. */
static void measure(struct gr_gguf_part *p)
{
    struct gr_rd *r = &p->rd;
    struct gr_gguf_kv kv;
    struct gr_gguf_tensor t;
    read_magic(r);
    p->version = read_version(r);
    p->n_tensor = gr_rd_count(r, MIN_TENSOR_BYTES, GR_GGUF_MAX_TENSOR, "number of tensors");
    p->n_kv = gr_rd_count(r, MIN_KV_BYTES, GR_GGUF_MAX_KV, "number of keys");
    for (uint64_t i = 0; i < p->n_kv && !r->rc; i++)
        read_kv(r, i, &kv);
    for (uint64_t i = 0; i < p->n_tensor && !r->rc; i++) {
        read_tensor(r, i, &t);
        gr_rd_about(r, NULL, 0);
    }
    p->meta_bytes = r->at;
}

static bool less_key(const void *items, uint32_t a, uint32_t b)
{
    const struct gr_gguf_kv *kv = items;
    return gr_str_compare(kv[a].key, kv[b].key) < 0;
}

static int read_keys(struct gr_gguf_part *p)
{
    p->kv = gr_calloc(p->n_kv, sizeof *p->kv);
    if (!p->kv)
        return GR_E_NOMEM_HOST;
    for (uint64_t i = 0; i < p->n_kv && !p->rd.rc; i++)
        read_kv(&p->rd, i, &p->kv[i]);
    p->kv_order = p->rd.rc ? NULL : gr_sorted(p->kv, p->n_kv, less_key);
    if (!p->kv_order)
        return p->rd.rc ? p->rd.rc : GR_E_NOMEM_HOST;
    for (uint64_t i = 1; i < p->n_kv; i++) {
        const struct gr_gguf_kv *a = &p->kv[p->kv_order[i - 1]], *b = &p->kv[p->kv_order[i]];
        if (gr_str_compare(a->key, b->key) == 0)
            return gr_fail(GR_E_CORRUPT,
                           "%s: key %s: occurs twice (values at bytes %" PRIu64 " and %" PRIu64 ")",
                           p->rd.name, gr_quote(a->key.p, a->key.n), GR_MIN(a->offset, b->offset),
                           GR_MAX(a->offset, b->offset));
    }
    return 0;
}

static int read_alignment(struct gr_gguf_part *p)
{
    const struct gr_gguf_kv *kv = gr_gguf_part_find(p, "general.alignment");
    p->alignment = kv && kv->type == GR_GGUF_U32 ? gr_le32(kv->data) : GR_GGUF_DEFAULT_ALIGN;
    if (kv && kv->type != GR_GGUF_U32)
        return gr_fail(GR_E_CORRUPT,
                       "%s: key 'general.alignment': expected a u32, found type %s (byte %" PRIu64
                       ")",
                       p->rd.name, gr_gguf_type_name(kv->type), kv->offset);
    if (p->alignment < GR_GGUF_MIN_ALIGN || p->alignment > GR_GGUF_MAX_ALIGN ||
        !gr_align_up(&p->data_offset, p->meta_bytes, p->alignment))
        return gr_fail(
            GR_E_CORRUPT,
            "%s: key 'general.alignment': expected a power of two from %u to %u, found %" PRIu64
            " (byte %" PRIu64 ")",
            p->rd.name, GR_GGUF_MIN_ALIGN, GR_GGUF_MAX_ALIGN, p->alignment, kv->offset);
    return 0;
}

int gr_gguf_part_load(struct gr_gguf_part *p)
{
    struct gr_rd *r = &p->rd;
    measure(p);
    if (r->rc)
        return r->rc;
    if (r->buf) { /* free what was read beyond the metadata */
        uint8_t *exact = gr_realloc(r->buf, p->meta_bytes, 1);
        if (!exact)
            return GR_E_NOMEM_HOST;
        r->p = r->buf = exact, r->have = p->meta_bytes;
    }
    r->at = 24; /* magic, version and counts */
    int rc = read_keys(p);
    return rc ? rc : read_alignment(p);
}

int gr_gguf_part_open(struct gr_gguf_part *p, const char *path, bool mapped)
{
    int rc = gr_file_open(&p->file, path, mapped);
    if (rc)
        return rc;
    gr_rd_init_file(&p->rd, &p->file, GR_GGUF_MAX_META);
    p->base = p->file.map;
    return gr_gguf_part_load(p);
}

int gr_gguf_part_tensors(struct gr_gguf_part *p, struct gr_gguf_tensor *t)
{
    for (uint64_t i = 0; i < p->n_tensor && !p->rd.rc; i++)
        place_tensor(p, read_tensor(&p->rd, i, &t[i]), &t[i]);
    return p->rd.rc;
}
