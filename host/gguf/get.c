/* Lookup of entries by name and of values by type. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "gguf/gguf_impl.h"
#include "gr/status.h"

static const struct {
    const char *name;
    size_t bytes;
} types[GR_GGUF_N_TYPE] = {
    [GR_GGUF_U8] = {"u8", 1},       [GR_GGUF_I8] = {"i8", 1},     [GR_GGUF_U16] = {"u16", 2},
    [GR_GGUF_I16] = {"i16", 2},     [GR_GGUF_U32] = {"u32", 4},   [GR_GGUF_I32] = {"i32", 4},
    [GR_GGUF_F32] = {"f32", 4},     [GR_GGUF_BOOL] = {"bool", 1}, [GR_GGUF_STR] = {"string", 0},
    [GR_GGUF_ARRAY] = {"array", 0}, [GR_GGUF_U64] = {"u64", 8},   [GR_GGUF_I64] = {"i64", 8},
    [GR_GGUF_F64] = {"f64", 8},
};

const char *gr_gguf_type_name(enum gr_gguf_type type)
{
    return (unsigned)type < GR_GGUF_N_TYPE ? types[type].name : "?";
}

size_t gr_gguf_type_bytes(enum gr_gguf_type type)
{
    return (unsigned)type < GR_GGUF_N_TYPE ? types[type].bytes : 0;
}

bool gr_str_is(struct gr_str s, const char *text)
{
    return strlen(text) == s.n && memcmp(s.p, text, s.n) == 0;
}

int gr_str_compare(struct gr_str a, struct gr_str b)
{
    int c = memcmp(a.p, b.p, GR_MIN(a.n, b.n));
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

const char *gr_gguf_path(const struct gr_gguf *g, uint32_t part)
{
    return g->part[part]->rd.name;
}

uint32_t gr_gguf_n_part(const struct gr_gguf *g)
{
    return g->n_part;
}

uint32_t gr_gguf_version(const struct gr_gguf *g)
{
    return g->part[0]->version;
}

uint64_t gr_gguf_alignment(const struct gr_gguf *g)
{
    return g->part[0]->alignment;
}

uint64_t gr_gguf_bytes(const struct gr_gguf *g)
{
    uint64_t n = 0;
    for (uint32_t k = 0; k < g->n_part; k++)
        n += g->part[k]->rd.size;
    return n;
}

uint64_t gr_gguf_meta_bytes(const struct gr_gguf *g)
{
    uint64_t n = 0;
    for (uint32_t k = 0; k < g->n_part; k++)
        n += g->part[k]->meta_bytes;
    return n;
}

uint64_t gr_gguf_n_kv(const struct gr_gguf *g)
{
    return g->part[0]->n_kv;
}

const struct gr_gguf_kv *gr_gguf_kv_at(const struct gr_gguf *g, uint64_t i)
{
    return &g->part[0]->kv[i];
}

uint64_t gr_gguf_n_tensor(const struct gr_gguf *g)
{
    return g->n_tensor;
}

const struct gr_gguf_tensor *gr_gguf_tensor_at(const struct gr_gguf *g, uint64_t i)
{
    return &g->tensor[i];
}

const struct gr_gguf_kv *gr_gguf_part_find(const struct gr_gguf_part *p, const char *key)
{
    struct gr_str want = {key, strlen(key)};
    for (uint64_t lo = 0, hi = p->n_kv; lo < hi;) {
        uint64_t mid = lo + (hi - lo) / 2;
        const struct gr_gguf_kv *kv = &p->kv[p->kv_order[mid]];
        int c = gr_str_compare(want, kv->key);
        if (c == 0)
            return kv;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const struct gr_gguf_kv *gr_gguf_find(const struct gr_gguf *g, const char *key)
{
    return gr_gguf_part_find(g->part[0], key);
}

const struct gr_gguf_tensor *gr_gguf_find_tensor(const struct gr_gguf *g, const char *name)
{
    struct gr_str want = {name, strlen(name)};
    for (uint64_t lo = 0, hi = g->n_tensor; lo < hi;) {
        uint64_t mid = lo + (hi - lo) / 2;
        const struct gr_gguf_tensor *t = &g->tensor[g->tensor_order[mid]];
        int c = gr_str_compare(want, t->name);
        if (c == 0)
            return t;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

bool gr_gguf_item_i64(const struct gr_gguf_kv *kv, uint64_t i, int64_t *out)
{
    size_t bytes = gr_gguf_type_bytes(kv->item);
    const uint8_t *p = (const uint8_t *)kv->data + i * bytes;
    switch (kv->item) {
    case GR_GGUF_U8:
        return *out = *p, true;
    case GR_GGUF_I8:
        return *out = (int8_t)*p, true;
    case GR_GGUF_U16:
        return *out = (uint16_t)(p[0] | p[1] << 8), true;
    case GR_GGUF_I16:
        return *out = (int16_t)(p[0] | p[1] << 8), true;
    case GR_GGUF_U32:
        return *out = gr_le32(p), true;
    case GR_GGUF_I32:
        return *out = (int32_t)gr_le32(p), true;
    case GR_GGUF_I64:
    case GR_GGUF_U64:
        *out = (int64_t)gr_le64(p);
        return kv->item == GR_GGUF_I64 || *out >= 0;
    default:
        return false;
    }
}

bool gr_gguf_item_f64(const struct gr_gguf_kv *kv, uint64_t i, double *out)
{
    const uint8_t *p = (const uint8_t *)kv->data + i * gr_gguf_type_bytes(kv->item);
    float f;
    if (kv->item == GR_GGUF_F32)
        return memcpy(&f, p, 4), *out = (double)f, true;
    if (kv->item == GR_GGUF_F64)
        return memcpy(out, p, 8), true;
    return false;
}

bool gr_gguf_item_bool(const struct gr_gguf_kv *kv, uint64_t i)
{
    return kv->item == GR_GGUF_BOOL && ((const uint8_t *)kv->data)[i];
}

struct gr_gguf_strs gr_gguf_strs(const struct gr_gguf_kv *kv)
{
    return (struct gr_gguf_strs){kv->data, kv->item == GR_GGUF_STR ? kv->n : 0};
}

bool gr_gguf_str_next(struct gr_gguf_strs *it, struct gr_str *out)
{
    if (it->left == 0)
        return false;
    *out = (struct gr_str){(const char *)it->p + 8, gr_le64(it->p)};
    it->p += 8 + out->n;
    it->left--;
    return true;
}

/* Fails with a message that names the value found instead of `want`. */
static int mismatch(const struct gr_gguf_part *p, const struct gr_gguf_kv *kv, const char *key,
                    const char *want)
{
    char found[64];
    int64_t x;
    if (!kv)
        return gr_fail(GR_E_CORRUPT, "%s: key %s: expected %s, found no such key", p->rd.name,
                       gr_quote(key, strlen(key)), want);
    if (kv->type == GR_GGUF_ARRAY)
        snprintf(found, sizeof found, "an array of %" PRIu64 " %s", kv->n,
                 gr_gguf_type_name(kv->item));
    else if (gr_gguf_item_i64(kv, 0, &x))
        snprintf(found, sizeof found, "%s %" PRId64, gr_gguf_type_name(kv->type), x);
    else
        snprintf(found, sizeof found, "type %s", gr_gguf_type_name(kv->type));
    return gr_fail(GR_E_CORRUPT, "%s: key %s: expected %s, found %s (byte %" PRIu64 ")", p->rd.name,
                   gr_quote(key, strlen(key)), want, found, kv->offset);
}

int gr_gguf_part_int(const struct gr_gguf_part *p, const char *key, const char *want, int64_t lo,
                     int64_t hi, int64_t *out)
{
    const struct gr_gguf_kv *kv = gr_gguf_part_find(p, key);
    int64_t x;
    if (!kv || kv->type == GR_GGUF_ARRAY || !gr_gguf_item_i64(kv, 0, &x) || x < lo || x > hi)
        return mismatch(p, kv, key, want);
    *out = x;
    return 0;
}

int gr_gguf_u32(const struct gr_gguf *g, const char *key, uint32_t *out)
{
    int64_t x = 0;
    int rc = gr_gguf_part_int(g->part[0], key, "an integer from 0 to 2^32-1", 0, UINT32_MAX, &x);
    if (!rc)
        *out = (uint32_t)x;
    return rc;
}

int gr_gguf_i64(const struct gr_gguf *g, const char *key, int64_t *out)
{
    return gr_gguf_part_int(g->part[0], key, "an integer of 64 bits", INT64_MIN, INT64_MAX, out);
}

int gr_gguf_f32(const struct gr_gguf *g, const char *key, float *out)
{
    const struct gr_gguf_kv *kv = gr_gguf_find(g, key);
    double x = 0;
    if (!kv || kv->type == GR_GGUF_ARRAY || !gr_gguf_item_f64(kv, 0, &x) ||
        (isfinite(x) && fabs(x) > (double)FLT_MAX))
        return mismatch(g->part[0], kv, key, "a number of type f32");
    *out = (float)x;
    return 0;
}

int gr_gguf_bool(const struct gr_gguf *g, const char *key, bool *out)
{
    const struct gr_gguf_kv *kv = gr_gguf_find(g, key);
    if (!kv || kv->type != GR_GGUF_BOOL)
        return mismatch(g->part[0], kv, key, "a bool");
    *out = gr_gguf_item_bool(kv, 0);
    return 0;
}

int gr_gguf_str(const struct gr_gguf *g, const char *key, struct gr_str *out)
{
    const struct gr_gguf_kv *kv = gr_gguf_find(g, key);
    if (!kv || kv->type != GR_GGUF_STR)
        return mismatch(g->part[0], kv, key, "a string");
    struct gr_gguf_strs it = gr_gguf_strs(kv);
    gr_gguf_str_next(&it, out);
    return 0;
}

int gr_gguf_array(const struct gr_gguf *g, const char *key, enum gr_gguf_type item,
                  const struct gr_gguf_kv **out)
{
    const struct gr_gguf_kv *kv = gr_gguf_find(g, key);
    char want[32];
    if (kv && kv->type == GR_GGUF_ARRAY && kv->item == item) {
        *out = kv;
        return 0;
    }
    snprintf(want, sizeof want, "an array of %s", gr_gguf_type_name(item));
    return mismatch(g->part[0], kv, key, want);
}

int gr_gguf_opt_u32(const struct gr_gguf *g, const char *key, uint32_t def, uint32_t *out)
{
    return gr_gguf_find(g, key) ? gr_gguf_u32(g, key, out) : (*out = def, 0);
}

int gr_gguf_opt_i64(const struct gr_gguf *g, const char *key, int64_t def, int64_t *out)
{
    return gr_gguf_find(g, key) ? gr_gguf_i64(g, key, out) : (*out = def, 0);
}

int gr_gguf_opt_f32(const struct gr_gguf *g, const char *key, float def, float *out)
{
    return gr_gguf_find(g, key) ? gr_gguf_f32(g, key, out) : (*out = def, 0);
}

int gr_gguf_opt_bool(const struct gr_gguf *g, const char *key, bool def, bool *out)
{
    return gr_gguf_find(g, key) ? gr_gguf_bool(g, key, out) : (*out = def, 0);
}

int gr_gguf_opt_str(const struct gr_gguf *g, const char *key, const char *def, struct gr_str *out)
{
    return gr_gguf_find(g, key) ? gr_gguf_str(g, key, out)
                                : (*out = (struct gr_str){def, strlen(def)}, 0);
}

int gr_gguf_opt_array(const struct gr_gguf *g, const char *key, enum gr_gguf_type item,
                      const struct gr_gguf_kv **out)
{
    return gr_gguf_find(g, key) ? gr_gguf_array(g, key, item, out) : (*out = NULL, 0);
}

int gr_gguf_u32_each(const struct gr_gguf *g, const char *key, uint32_t *dst, uint64_t n)
{
    const struct gr_gguf_kv *kv = gr_gguf_find(g, key);
    char want[80];
    int64_t x = 0;
    snprintf(want, sizeof want,
             "an integer or an array of at least %" PRIu64 ", each from 0 to 2^32-1", n);
    if (!kv || (kv->type == GR_GGUF_ARRAY && kv->n < n))
        return mismatch(g->part[0], kv, key, want);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t k = kv->type == GR_GGUF_ARRAY ? i : 0;
        if (kv->item == GR_GGUF_BOOL)
            x = gr_gguf_item_bool(kv, k);
        else if (!gr_gguf_item_i64(kv, k, &x) || x < 0 || x > UINT32_MAX)
            return mismatch(g->part[0], kv, key, want);
        dst[i] = (uint32_t)x;
    }
    return 0;
}
