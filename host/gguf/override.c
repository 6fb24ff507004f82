/* Metadata of an open file changed for this process: KEY=TYPE:VALUE. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/sort.h"
#include "gguf/gguf_impl.h"
#include "gr/status.h"

enum { MAX_TEXT = 65535 }; /* bytes of KEY=TYPE:VALUE */

struct override {
    const char *text;
    struct gr_str key, value;
    enum gr_gguf_type type; /* I64, F64, BOOL or STR */
    uint8_t number[8];
};

static int refuse(const struct override *o, const char *want)
{
    return gr_fail(GR_E_INVALID,
                   "metadata %s: %s expected, as in tokenizer.ggml.add_bos_token=bool:false",
                   gr_quote(o->text, strlen(o->text)), want);
}

static int read_type(struct override *o, const char *name, size_t n)
{
    static const struct {
        const char *name;
        enum gr_gguf_type type;
    } known[] = {
        {"int", GR_GGUF_I64}, {"float", GR_GGUF_F64}, {"bool", GR_GGUF_BOOL}, {"str", GR_GGUF_STR}};
    for (size_t i = 0; i < GR_COUNT(known); i++)
        if (strlen(known[i].name) == n && !memcmp(known[i].name, name, n))
            return o->type = known[i].type, 0;
    return refuse(o, "KEY=TYPE:VALUE, TYPE one of int, float, bool and str,");
}

static int read_number(struct override *o)
{
    char *end;
    errno = 0;
    int64_t x = strtoll(o->value.p, &end, 10);
    bool whole = o->value.n && !isspace((unsigned char)*o->value.p) && !*end && !errno;
    memcpy(o->number, &x, sizeof x);
    return whole ? 0 : refuse(o, "an integer");
}

static int read_real(struct override *o)
{
    char *end;
    double x = strtod(o->value.p, &end);
    bool whole = o->value.n && !isspace((unsigned char)*o->value.p) && !*end && isfinite(x);
    memcpy(o->number, &x, sizeof x);
    return whole ? 0 : refuse(o, "a number");
}

static int parse(struct override *o, const char *text)
{
    const char *eq = strchr(text, '='), *colon = eq ? strchr(eq, ':') : NULL;
    o->text = text;
    if (!colon || eq == text || strlen(text) > MAX_TEXT)
        return refuse(o, "KEY=TYPE:VALUE");
    o->key = (struct gr_str){text, (size_t)(eq - text)};
    o->value = (struct gr_str){colon + 1, strlen(colon + 1)};
    int rc = read_type(o, eq + 1, (size_t)(colon - eq - 1));
    if (rc || o->type == GR_GGUF_STR)
        return rc;
    if (o->type != GR_GGUF_BOOL)
        return o->type == GR_GGUF_I64 ? read_number(o) : read_real(o);
    o->number[0] = gr_str_is(o->value, "true");
    return o->number[0] || gr_str_is(o->value, "false") ? 0 : refuse(o, "true or false");
}

/* Returns whether a value of the override's type can stand for one of the file's. */
static bool is_alike(enum gr_gguf_type type, const struct gr_gguf_kv *kv)
{
    switch (kv->type) {
    case GR_GGUF_STR:
    case GR_GGUF_BOOL:
        return kv->type == type;
    case GR_GGUF_F32:
    case GR_GGUF_F64:
        return type == GR_GGUF_F64;
    default:
        return kv->type != GR_GGUF_ARRAY && type == GR_GGUF_I64;
    }
}

/* Keys that count while a file is opened, which is over. */
static bool counts_before(struct gr_str key)
{
    return (key.n > 6 && !memcmp(key.p, "split.", 6)) || gr_str_is(key, "general.alignment");
}

/* Copies key and value into memory of the file's. */
static int fill(struct gr_gguf *g, const struct override *o, struct gr_gguf_kv *kv)
{
    bool str = o->type == GR_GGUF_STR;
    size_t n = str ? 8 + o->value.n : gr_gguf_type_bytes(o->type);
    uint64_t length = o->value.n;
    char **slot = gr_vec_push(&g->owned, sizeof *slot);
    char *p = slot ? *slot = gr_calloc(o->key.n + n, 1) : NULL;
    if (!p)
        return GR_E_NOMEM_HOST;
    memcpy(p, o->key.p, o->key.n);
    memcpy(p + o->key.n, str ? (const void *)&length : o->number, str ? 8 : n);
    if (str)
        memcpy(p + o->key.n + 8, o->value.p, o->value.n);
    *kv = (struct gr_gguf_kv){.key = {p, o->key.n},
                              .type = o->type,
                              .item = o->type,
                              .n = 1,
                              .data = p + o->key.n,
                              .bytes = n,
                              .offset = kv->offset};
    return 0;
}

static bool less_key(const void *items, uint32_t a, uint32_t b)
{
    const struct gr_gguf_kv *kv = items;
    return gr_str_compare(kv[a].key, kv[b].key) < 0;
}

/* Adds a key that the file does not have. */
static int add(struct gr_gguf *g, const struct override *o)
{
    struct gr_gguf_part *p = g->part[0];
    if (p->n_kv == GR_GGUF_MAX_KV)
        return gr_fail(GR_E_INVALID, "metadata: more than %u keys", GR_GGUF_MAX_KV);
    struct gr_gguf_kv *kv = gr_realloc(p->kv, (size_t)p->n_kv + 1, sizeof *kv);
    if (!kv)
        return GR_E_NOMEM_HOST;
    p->kv = kv;
    kv[p->n_kv] = (struct gr_gguf_kv){0};
    int rc = fill(g, o, &kv[p->n_kv]);
    uint32_t *order = rc ? NULL : gr_sorted(kv, p->n_kv + 1, less_key);
    if (!order)
        return rc ? rc : GR_E_NOMEM_HOST;
    gr_free(p->kv_order);
    p->kv_order = order;
    p->n_kv++;
    gr_log(GR_LOG_WARN, "%s: it has no key %s, which is added", p->rd.name,
           gr_quote(o->key.p, o->key.n));
    return 0;
}

int gr_gguf_override(struct gr_gguf *g, const char *text)
{
    struct override o = {0};
    int rc = parse(&o, text);
    if (rc)
        return rc;
    if (counts_before(o.key))
        return gr_fail(GR_E_INVALID,
                       "metadata %s: it says how the file is read, and stays as it is there",
                       gr_quote(text, strlen(text)));
    struct gr_gguf_kv *kv = g->part[0]->kv;
    uint64_t i = 0;
    while (i < g->part[0]->n_kv && gr_str_compare(kv[i].key, o.key) != 0)
        i++;
    if (i == g->part[0]->n_kv)
        return add(g, &o);
    if (!is_alike(o.type, &kv[i]))
        return gr_fail(GR_E_INVALID, "metadata %s: the file has a value of type %s for that key",
                       gr_quote(text, strlen(text)), gr_gguf_type_name(kv[i].type));
    return fill(g, &o, &kv[i]);
}
