#include "engine/fingerprint.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "arch/rope.h"
#include "base/checked.h"
#include "engine/open.h"
#include "gr/dtype.h"
#include "gr/status.h"

/* ---- the model ---- */

static void hash_str(XXH3_state_t *h, struct gr_str s)
{
    uint64_t n = s.n;
    XXH3_128bits_update(h, &n, sizeof n);
    XXH3_128bits_update(h, s.p, s.n);
}

/* Hashes the metadata, except keys about the file's split into parts. */
static void hash_metadata(XXH3_state_t *h, const struct gr_gguf *g)
{
    for (uint64_t i = 0; i < gr_gguf_n_kv(g); i++) {
        const struct gr_gguf_kv *kv = gr_gguf_kv_at(g, i);
        uint32_t type[2] = {kv->type, kv->item};
        if (kv->key.n > 6 && memcmp(kv->key.p, "split.", 6) == 0)
            continue;
        hash_str(h, kv->key);
        XXH3_128bits_update(h, type, sizeof type);
        hash_str(h, (struct gr_str){kv->data, (size_t)kv->bytes});
    }
}

/* Hashes a tensor's name, type and shape, and 64 bytes at its beginning, middle and end. */
static int hash_tensor(XXH3_state_t *h, const struct gr_gguf *g, const struct gr_gguf_tensor *t)
{
    enum { SAMPLE = 64 };
    char bytes[SAMPLE];
    size_t n = (size_t)GR_MIN(t->bytes, SAMPLE);
    uint64_t at[] = {0, (t->bytes - n) / 2, t->bytes - n};
    int rc = 0;
    hash_str(h, t->name);
    XXH3_128bits_update(h, &t->dtype, sizeof t->dtype);
    XXH3_128bits_update(h, t->ne, sizeof t->ne);
    for (unsigned i = 0; i < GR_COUNT(at) && !rc; i++) {
        rc = gr_gguf_read(g, t, at[i], bytes, n);
        XXH3_128bits_update(h, bytes, n);
    }
    return rc;
}

int gr_gguf_hash(const struct gr_gguf *g, char hex[33])
{
    XXH3_state_t h;
    XXH3_INITSTATE(&h);
    XXH3_128bits_reset(&h);
    hash_metadata(&h, g);
    int rc = 0;
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g) && !rc; i++)
        rc = hash_tensor(&h, g, gr_gguf_tensor_at(g, i));
    XXH128_hash_t sum = XXH3_128bits_digest(&h);
    if (rc)
        return rc;
    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)sum.high64,
             (unsigned long long)sum.low64);
    return 0;
}

int gr_control_hash(const struct gr_model *m, char hex[33])
{
    XXH3_state_t h;
    bool any = false;
    XXH3_INITSTATE(&h);
    XXH3_128bits_reset(&h);
    for (int32_t il = 0; il < m->hp.n_layer; il++) {
        const struct gr_ten *w = &m->weight[(size_t)(il + 1) * GR_N_SLOT + GR_W_DIRECTION];
        if (!gr_ten_is(w))
            continue;
        any = true;
        XXH3_128bits_update(&h, &il, sizeof il);
        XXH3_128bits_update(&h, w->data, (size_t)w->row_bytes);
    }
    XXH128_hash_t sum = XXH3_128bits_digest(&h);
    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)sum.high64,
             (unsigned long long)sum.low64);
    return any;
}

int gr_model_hash(const struct gr_model *m, char hex[33])
{
    return gr_gguf_hash(m->gguf, hex);
}

/* ---- the configuration ---- */

/* Adds a line for control vectors, and for each adapter with a scale other than 0. */
static int put_adapters(struct gr_session *s, char *text, size_t size)
{
    char control[33];
    size_t n = 0;
    int rc = 0;
    if (gr_control_hash(s->model, control))
        n = (size_t)snprintf(text, size, "control vectors: %s\n", control);
    for (int32_t i = 0; i < s->model->n_lora && !rc && n < size; i++) {
        char *hex = s->adapter_hash[i];
        if (s->params.adapter_scale[i] == 0)
            continue;
        rc = *hex ? 0 : gr_gguf_hash(s->model->lora_file[i].gguf, hex);
        n += (size_t)snprintf(text + n, size - n, "adapter: %s, scale %.9g\n", rc ? "" : hex,
                              (double)s->params.adapter_scale[i]);
    }
    return rc;
}

static size_t put_rope(const struct gr_session *s, char *text, size_t size)
{
    static const char *const scaling[] = {"none", "linear", "yarn", "longrope"};
    struct gr_rope_opt o;
    if (s->model->hp.rope.kind == GR_ROPE_NONE)
        return 0;
    gr_rope_resolve(&o, &s->model->hp, &s->params);
    return (size_t)snprintf(
        text, size,
        "rope scaling: %s\nrope frequency base: %.9g\nrope frequency scale: %.9g\n"
        "rope frequency factors: %s\nyarn factors: %.9g %.9g\nyarn betas: %.9g %.9g\n"
        "original context: %d\n",
        scaling[o.scaling], (double)o.freq_base, (double)o.freq_scale, gr_rope_factors_name(s),
        (double)o.ext_factor, (double)o.attn_factor, (double)o.beta_fast, (double)o.beta_slow,
        o.n_ctx_orig);
}

int gr_fingerprint(struct gr_session *s, char text[GR_FINGERPRINT_MAX])
{
    int rc = s->model_hash[0] ? 0 : gr_model_hash(s->model, s->model_hash);
    if (rc)
        return rc;
    bool grouped = s->params.self_extend_n > 1;
    size_t n = (size_t)snprintf(
        text, GR_FINGERPRINT_MAX,
        "architecture: %s\nweights: %s\ntype of K: %s\ntype of V: %s\ngroup factor: %d\n"
        "group window: %d\n",
        s->model->arch->name, s->model_hash, gr_dtype_name(s->memory.type_k),
        gr_dtype_name(s->memory.type_v), grouped ? s->params.self_extend_n : 1,
        grouped ? s->params.self_extend_w : 0);
    n += put_rope(s, text + n, GR_FINGERPRINT_MAX - n);
    if (n < GR_FINGERPRINT_MAX)
        rc = put_adapters(s, text + n, GR_FINGERPRINT_MAX - n);
    n += n < GR_FINGERPRINT_MAX ? strlen(text + n) : 0;
    if (rc)
        return rc;
    return n < GR_FINGERPRINT_MAX ? 0
                                  : gr_fail(GR_E_INTERNAL, "state: its fingerprint is too long");
}

/* ---- comparing ---- */

/* The first line of n bytes, without its newline. */
static struct gr_str line_of(const char *p, size_t n)
{
    const char *end = n ? memchr(p, '\n', n) : NULL;
    return (struct gr_str){p, end ? (size_t)(end - p) : n};
}

static int differs(const char *name, struct gr_str want, struct gr_str found)
{
    const char *colon = memchr(want.p, ':', want.n);
    size_t key = colon ? (size_t)(colon - want.p) + 2 : 0;
    bool model = !memcmp(want.p, "architecture", GR_MIN(want.n, 12)) ||
                 !memcmp(want.p, "weights", GR_MIN(want.n, 7));
    if (key && key <= want.n && found.n >= key && !memcmp(want.p, found.p, key))
        found.p += key, found.n -= key;
    return gr_fail(GR_E_INVALID, "%s: %.*s%s expected, %s found: %s", name, (int)key, want.p,
                   gr_quote(want.p + key, want.n - key), gr_quote(found.p, found.n),
                   model ? "it belongs to another model"
                         : "open the session with the parameters that it was saved with");
}

int gr_fingerprint_check(const char *name, const char *expected, const char *found, size_t n)
{
    size_t left = strlen(expected);
    while (left || n) {
        struct gr_str a = line_of(expected, left), b = line_of(found, n);
        if (a.n != b.n || memcmp(a.p, b.p, a.n) != 0)
            return differs(name, a, b);
        bool last_a = a.n == left, last_b = b.n == n;
        expected += last_a ? a.n : a.n + 1, left -= last_a ? left : a.n + 1;
        found += last_b ? b.n : b.n + 1, n -= last_b ? n : b.n + 1;
        if (last_a != last_b)
            return differs(name, line_of(expected, left), line_of(found, n));
    }
    return 0;
}
