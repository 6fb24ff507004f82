/* Properties of every model that the reader accepts, for tests and for the fuzzer. */
#ifndef TESTS_SUPPORT_MODEL_FAULT_H
#define TESTS_SUPPORT_MODEL_FAULT_H

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "gguf/gguf.h"
#include "gr/dtype.h"
#include "gr/status.h"

#define PROMISED(x)                                                                                \
    do {                                                                                           \
        if (!(x))                                                                                  \
            return #x;                                                                             \
    } while (0)

static inline bool same_str(struct gr_str a, struct gr_str b)
{
    return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

/* Asks for the key under every type; the answer is a value or GR_E_CORRUPT. */
static inline const char *getter_fault(const struct gr_gguf *g, const char *key)
{
    uint32_t u, each[2];
    int64_t i;
    float f;
    bool t;
    struct gr_str s;
    const struct gr_gguf_kv *kv;
    int rc[] = {gr_gguf_u32(g, key, &u),
                gr_gguf_i64(g, key, &i),
                gr_gguf_f32(g, key, &f),
                gr_gguf_bool(g, key, &t),
                gr_gguf_str(g, key, &s),
                gr_gguf_u32_each(g, key, each, 2),
                gr_gguf_array(g, key, GR_GGUF_STR, &kv),
                gr_gguf_opt_array(g, key, GR_GGUF_I32, &kv)};
    for (size_t k = 0; k < GR_COUNT(rc); k++)
        PROMISED(rc[k] == 0 || rc[k] == GR_E_CORRUPT);
    return NULL;
}

static inline const char *key_fault(const struct gr_gguf *g, uint64_t index, uint64_t n_byte)
{
    const struct gr_gguf_kv *kv = gr_gguf_kv_at(g, index);
    uint64_t walked = 0;
    int64_t i;
    double d;
    struct gr_str s;
    char key[128];
    PROMISED(kv->key.n > 0 && kv->key.n <= GR_GGUF_MAX_NAME);
    PROMISED(gr_in(kv->offset, kv->bytes, n_byte));
    PROMISED((unsigned)kv->type < GR_GGUF_N_TYPE && (unsigned)kv->item < GR_GGUF_N_TYPE);
    PROMISED(kv->item != GR_GGUF_ARRAY);
    PROMISED(kv->type == GR_GGUF_ARRAY || (kv->type == kv->item && kv->n == 1));
    for (struct gr_gguf_strs it = gr_gguf_strs(kv); gr_gguf_str_next(&it, &s);) {
        PROMISED((const char *)kv->data <= s.p && s.p + s.n <= (const char *)kv->data + kv->bytes);
        walked += 8 + s.n;
    }
    PROMISED(walked + kv->n * gr_gguf_type_bytes(kv->item) == kv->bytes);
    for (uint64_t k = 0; k < kv->n && kv->item != GR_GGUF_STR; k++) {
        bool is_int = gr_gguf_item_i64(kv, k, &i), is_float = gr_gguf_item_f64(kv, k, &d);
        PROMISED(!(is_int && is_float));
        PROMISED(is_int || is_float || kv->item == GR_GGUF_U64 || kv->item == GR_GGUF_BOOL);
    }
    for (uint64_t k = 0; k < index; k++)
        PROMISED(!same_str(gr_gguf_kv_at(g, k)->key, kv->key));
    snprintf(key, sizeof key, "%.*s", (int)kv->key.n, kv->key.p);
    if (strlen(key) != kv->key.n)
        return NULL;
    PROMISED(gr_gguf_find(g, key) == kv);
    return getter_fault(g, key);
}

static inline const char *tensor_fault(const struct gr_gguf *g, uint64_t index, uint64_t n_byte)
{
    const struct gr_gguf_tensor *t = gr_gguf_tensor_at(g, index);
    uint64_t bytes, sum = 0;
    PROMISED(gr_tensor_bytes(t->dtype, t->ne, t->n_dim, &bytes) && bytes == t->bytes);
    PROMISED(t->n_dim == 4 || t->ne[3] == 1);
    PROMISED(gr_in(t->offset, t->bytes, n_byte) && t->offset % gr_gguf_alignment(g) == 0);
    for (uint64_t k = 0; t->data && k < t->bytes; k++)
        sum += ((const uint8_t *)t->data)[k];
    PROMISED(sum < 256 * n_byte);
    for (uint64_t k = 0; k < index; k++) {
        const struct gr_gguf_tensor *o = gr_gguf_tensor_at(g, k);
        PROMISED(o->offset + o->bytes <= t->offset || t->offset + t->bytes <= o->offset);
        PROMISED(!same_str(o->name, t->name));
    }
    return NULL;
}

/* The promise that the model, opened from one file of n_byte, does not keep, or NULL. */
static inline const char *model_fault(const struct gr_gguf *g, uint64_t n_byte)
{
    const char *fault = NULL;
    for (uint64_t i = 0; i < gr_gguf_n_kv(g) && !fault; i++)
        fault = key_fault(g, i, n_byte);
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g) && !fault; i++)
        fault = tensor_fault(g, i, n_byte);
    return fault;
}

#endif
