/* Hyper-parameters: the keys that every architecture shares, their checks, and the reader that
 * families use. */
#include "arch/hparams.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "gguf/gguf.h"
#include "gr/status.h"

struct gr_hp_source {
    const struct gr_gguf *g;
    const char *arch;
};

static const char *key_of(const struct gr_hp_source *s, const char *key, char *buf, size_t n)
{
    snprintf(buf, n, "%s.%s", s->arch, key);
    return buf;
}

int gr_hp_f32(struct gr_hp_source *s, const char *key, float *out)
{
    char k[128];
    float v = *out;
    int rc = gr_gguf_opt_f32(s->g, key_of(s, key, k, sizeof k), *out, &v);
    if (!rc && !isfinite(v))
        rc = gr_fail(GR_E_CORRUPT, "key %s: a finite number expected, %g found", k, (double)v);
    if (!rc)
        *out = v;
    return rc;
}

int gr_hp_need_f32(struct gr_hp_source *s, const char *key, float *out)
{
    char k[128];
    float v;
    int rc = gr_gguf_f32(s->g, key_of(s, key, k, sizeof k), &v);
    return rc ? rc : gr_hp_f32(s, key, out);
}

/* Fails unless v, the value of the key, is above 0 and finite. */
static int check_positive(const struct gr_hp_source *s, const char *key, float v)
{
    if (v > 0 && isfinite(v))
        return 0;
    return gr_fail(GR_E_CORRUPT, "key %s.%s: a number above 0 expected, %g found", s->arch, key,
                   (double)v);
}

static int in_range(const char *key, int64_t v, int32_t lo, int32_t hi, int32_t *out)
{
    if (v < lo || v > hi)
        return gr_fail(GR_E_CORRUPT, "key %s: a number from %d to %d expected, %lld found", key, lo,
                       hi, (long long)v);
    *out = (int32_t)v;
    return 0;
}

int gr_hp_i32(struct gr_hp_source *s, const char *key, int32_t lo, int32_t hi, int32_t *out)
{
    char k[128];
    int64_t v;
    if (!gr_gguf_find(s->g, key_of(s, key, k, sizeof k)))
        return 0;
    int rc = gr_gguf_i64(s->g, k, &v);
    return rc ? rc : in_range(k, v, lo, hi, out);
}

int gr_hp_bool(struct gr_hp_source *s, const char *key, bool *out)
{
    char k[128];
    return gr_gguf_opt_bool(s->g, key_of(s, key, k, sizeof k), *out, out);
}

int gr_hp_need_i32(struct gr_hp_source *s, const char *key, int32_t lo, int32_t hi, int32_t *out)
{
    char k[128];
    int64_t v;
    int rc = gr_gguf_i64(s->g, key_of(s, key, k, sizeof k), &v);
    return rc ? rc : in_range(k, v, lo, hi, out);
}

bool gr_hp_has(struct gr_hp_source *s, const char *key)
{
    char k[128];
    return gr_gguf_find(s->g, key_of(s, key, k, sizeof k)) != NULL;
}

int gr_hp_each(struct gr_hp_source *s, const char *key, int32_t lo, int32_t hi, int32_t n,
               int32_t *out)
{
    char k[128];
    uint32_t v[GR_MAX_LAYER];
    int rc = gr_gguf_u32_each(s->g, key_of(s, key, k, sizeof k), v, (uint64_t)n);
    for (int32_t i = 0; i < n && !rc; i++)
        rc = in_range(k, v[i], lo, hi, &out[i]);
    return rc;
}

/* Reads n numbers >= lo: the key's single value for all, or each item of an array. kv: of the key,
 * NULL = it is missing. */
static int f32_each(const struct gr_gguf_kv *kv, const char *key, float lo, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i++) {
        double v = NAN;
        uint64_t at = kv && kv->type == GR_GGUF_ARRAY ? (uint64_t)i : 0;
        if (kv && (kv->type != GR_GGUF_ARRAY || at < kv->n) && !gr_gguf_item_f64(kv, at, &v))
            v = NAN;
        if (!(v >= (double)lo && v <= (double)FLT_MAX))
            return gr_fail(GR_E_CORRUPT,
                           "key %s: a number%s, or one for each of %d layers, expected", key,
                           lo == 0 ? " of at least 0" : "", n);
        out[i] = (float)v;
    }
    return 0;
}

int gr_hp_f32_each(struct gr_hp_source *s, const char *key, int32_t n, float *out)
{
    char k[128];
    const struct gr_gguf_kv *kv = gr_gguf_find(s->g, key_of(s, key, k, sizeof k));
    return kv ? f32_each(kv, k, 0, n, out) : 0;
}

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

/* The keys of xIELU have no architecture prefix. */
int gr_hp_xielu(struct gr_hp_source *s, struct gr_hparams *hp)
{
    static const char *const key[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"};
    float v[4][GR_MAX_LAYER];
    int rc = 0;
    for (int k = 0; k < 4 && !rc; k++)
        rc = f32_each(gr_gguf_find(s->g, key[k]), key[k], -FLT_MAX, hp->n_layer, v[k]);
    for (int32_t il = 0; il < hp->n_layer && !rc; il++) {
        struct gr_xielu x = {.positive = (float)softplus((double)v[0][il]),
                             .negative = (float)((double)v[2][il] + softplus((double)v[1][il])),
                             .linear = v[2][il],
                             .below = v[3][il]};
        hp->ff.xielu[il] = x;
        if (!(fabsf(x.positive) <= FLT_MAX && fabsf(x.negative) <= FLT_MAX))
            rc = gr_fail(GR_E_CORRUPT, "keys %s, %s, %s: sums of layer %d are too large for f32",
                         key[0], key[1], key[2], il);
    }
    return rc;
}

int gr_hp_decay_bound(struct gr_hp_source *s, struct gr_hparams *hp, float slope, bool maybe)
{
    char k[128];
    float bound = -INFINITY;
    const char *key = key_of(s, "kda.gate_lower_bound", k, sizeof k);
    int rc = maybe ? gr_gguf_opt_f32(s->g, key, bound, &bound) : gr_gguf_f32(s->g, key, &bound);
    if (rc || (maybe && isinf(bound) && bound < 0))
        return rc;
    if (!(bound < 0) || isinf(bound))
        return gr_fail(GR_E_CORRUPT, "key %s: a number below 0 expected, %g found", key,
                       (double)bound);
    hp->ssm.decay_bound = bound, hp->ssm.decay_slope = slope;
    return 0;
}

int gr_hp_glu_limits(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_f32_each(s, "swiglu_clamp_shexp", hp->n_layer, hp->ff.glu_limit);
    return rc ? rc : gr_hp_f32_each(s, "swiglu_clamp_exp", hp->n_layer, hp->ff.glu_limit_exp);
}

int gr_hp_token_types(struct gr_hp_source *s, struct gr_hparams *hp)
{
    (void)s; /* the key has no architecture prefix */
    return hp->embd.n_token_type > 0
               ? 0
               : gr_fail(GR_E_CORRUPT, "key tokenizer.ggml.token_type_count: a number above 0 "
                                       "expected, 0 or none found");
}

bool gr_hp_says(struct gr_hp_source *s, const char *key, const char *text)
{
    char k[128];
    struct gr_str found;
    return gr_hp_has(s, key) && !gr_gguf_str(s->g, key_of(s, key, k, sizeof k), &found) &&
           gr_str_is(found, text);
}

int64_t gr_hp_rows(struct gr_hp_source *s, const char *tensor)
{
    const struct gr_gguf_tensor *t = gr_gguf_find_tensor(s->g, tensor);
    return t && t->n_dim > 1 ? (int64_t)t->ne[1] : 0;
}

/* Gives all layers windows except number `full` of each period. */
static void swa_period(struct gr_hparams *hp, int32_t period, int32_t full)
{
    for (int32_t il = 0; il < hp->n_layer; il++)
        hp->swa.layer[il] = hp->swa.n_swa > 0 && period > 0 && il % period != full;
}

static int read_swa(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period, bool first)
{
    char k[128];
    int rc = gr_hp_i32(s, "attention.sliding_window", 0, INT32_MAX, &hp->swa.n_swa);
    const char *key = key_of(s, "attention.sliding_window_pattern", k, sizeof k);
    const struct gr_gguf_kv *kv = gr_gguf_find(s->g, key);
    if (rc || !kv || kv->type != GR_GGUF_ARRAY) {
        if (!rc)
            rc = gr_hp_i32(s, "attention.sliding_window_pattern", 0, GR_MAX_LAYER, &period);
        swa_period(hp, period, first ? 0 : period - 1);
        return rc;
    }
    uint32_t flag[GR_MAX_LAYER];
    rc = gr_gguf_u32_each(s->g, key, flag, (uint64_t)hp->n_layer);
    for (int32_t il = 0; il < hp->n_layer && !rc; il++)
        hp->swa.layer[il] = flag[il] != 0 && hp->swa.n_swa > 0;
    return rc;
}

int gr_hp_swa(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period)
{
    return read_swa(s, hp, period, false);
}

int gr_hp_swa_after(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period)
{
    return read_swa(s, hp, period, true);
}

int gr_hp_swa_rope(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period)
{
    int rc = gr_hp_f32(s, "rope.freq_base_swa", &hp->rope.freq_base_swa);
    return rc ? rc : gr_hp_swa(s, hp, period);
}

int gr_hp_swa_unscaled(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period)
{
    hp->rope.freq_base_swa = 10000, hp->rope.freq_scale_swa = 1;
    return gr_hp_swa_rope(s, hp, period);
}

void gr_hp_rope_in_windows(struct gr_hparams *hp, int32_t first)
{
    for (int32_t il = first; il < hp->n_layer; il++)
        hp->rope.none[il] = !hp->swa.layer[il];
}

void gr_hp_no_rope(struct gr_hparams *hp, int32_t first, int32_t period)
{
    for (int32_t il = first; il < hp->n_layer; il += period)
        hp->rope.none[il] = true;
}

int gr_hp_equal_heads(struct gr_hp_source *s, const struct gr_hparams *hp)
{
    if (hp->attn.d_v == hp->attn.d_k)
        return 0;
    return gr_fail(GR_E_CORRUPT,
                   "key %s.attention.value_length: %d expected, as key_length, %d found", s->arch,
                   hp->attn.d_k, hp->attn.d_v);
}

int gr_hp_qkv_fits(struct gr_hp_source *s, const struct gr_hparams *hp)
{
    for (int32_t il = 0; il < hp->n_layer; il++) {
        int64_t q = (int64_t)hp->attn.n_head[il] * hp->attn.d_k;
        int64_t k = (int64_t)hp->attn.n_head_kv[il] * hp->attn.d_k;
        int64_t v = hp->attn.qkv_apart ? 2 * (int64_t)hp->attn.qkv_apart : q + k;
        if (v + (int64_t)hp->attn.n_head_kv[il] * hp->attn.d_v > 3 * q)
            return gr_fail(GR_E_CORRUPT,
                           "key %s.attention.value_length: %d is too much for a matrix of %d * 3 "
                           "heads of %d and an embedding length of %d",
                           s->arch, hp->attn.d_v, hp->attn.n_head[il], hp->attn.d_k, hp->n_embd);
    }
    return 0;
}

int gr_hp_sections(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->rope.kind = GR_ROPE_NEOX;
    int rc = gr_hp_each(s, "rope.dimension_sections", 0, 4096, GR_COUNT(hp->rope.section),
                        hp->rope.section);
    if (!rc && hp->rope.section[0] == 0)
        rc = gr_fail(GR_E_CORRUPT,
                     "key %s.rope.dimension_sections: a number above 0 expected first, 0 found",
                     s->arch);
    return rc;
}

int gr_hp_maybe_sections(struct gr_hp_source *s, struct gr_hparams *hp)
{
    const char *key = "rope.dimension_sections";
    int32_t n[GR_COUNT(hp->rope.section)] = {0};
    int rc = gr_hp_has(s, key) ? gr_hp_each(s, key, 0, 4096, GR_COUNT(n), n) : 0;
    return rc || n[0] == 0 ? rc : gr_hp_sections(s, hp);
}

int gr_hp_stacks(struct gr_hp_source *s, struct gr_hparams *hp, int32_t n, int32_t n_low,
                 int32_t n_high)
{
    if (n * (n_low + 1) * n_high != hp->n_layer)
        return gr_fail(GR_E_CORRUPT,
                       "key %s.block_count: %d expected for %d rounds of %d + 1 "
                       "stacks of %d layers, %d found",
                       s->arch, n * (n_low + 1) * n_high, n_high, n_low, n, hp->n_layer);
    hp->loop.round = n, hp->loop.n_low = n_low;
    for (int32_t il = 0; il < hp->n_layer; il++)
        hp->weights_of[il] = il % n + (il / n % (n_low + 1) == n_low ? n : 0);
    return 0;
}

int gr_hp_embd_scale(struct gr_hp_source *s, struct gr_hparams *hp)
{
    float scale = hp->embd.scale;
    int rc = gr_hp_f32(s, "embedding_scale", &scale);
    hp->embd.scale = scale != 0 ? scale : 1;
    return rc;
}

int gr_hp_logit_factor(struct gr_hp_source *s, struct gr_hparams *hp)
{
    float factor = 0;
    int rc = gr_hp_f32(s, "logit_scale", &factor);
    hp->logits.scale = factor != 0 ? 1 / factor : 0;
    return rc;
}

int gr_hp_repeat(struct gr_hp_source *s, struct gr_hparams *hp, int32_t times)
{
    int32_t n = hp->n_layer;
    if (times > GR_MAX_LAYER / n)
        return gr_fail(GR_E_UNSUPPORTED, "architecture %s: %d layers, %d times, are more than %d",
                       s->arch, n, times, GR_MAX_LAYER);
    for (int32_t il = n; il < n * times; il++) {
        hp->attn.n_head[il] = hp->attn.n_head[il - n];
        hp->attn.n_head_kv[il] = hp->attn.n_head_kv[il - n];
        hp->ff.n_ff[il] = hp->ff.n_ff[il - n], hp->weights_of[il] = il % n;
        hp->attn.kv_of[il] = il;
    }
    hp->n_layer = n * times;
    return 0;
}

/* Layers without attention have 0 heads, or 0 KV heads. */
static int check_heads(const struct gr_hp_source *s, const struct gr_hparams *hp)
{
    for (int32_t il = 0; il < hp->n_layer; il++) {
        int32_t n = hp->attn.n_head[il], n_kv = hp->attn.n_head_kv[il];
        if (n_kv && (n == 0 || n % n_kv))
            return gr_fail(GR_E_CORRUPT,
                           "key %s.attention.head_count_kv: layer %d has %d heads, which %d "
                           "key/value heads do not divide",
                           s->arch, il, n, n_kv);
    }
    return 0;
}

static int read_heads(struct gr_hp_source *s, struct gr_hparams *hp, bool no_attn)
{
    int32_t most = 0;
    int rc = gr_hp_each(s, "attention.head_count", 0, 65536, hp->n_layer, hp->attn.n_head);
    memcpy(hp->attn.n_head_kv, hp->attn.n_head, sizeof hp->attn.n_head);
    if (!rc && gr_hp_has(s, "attention.head_count_kv"))
        rc = gr_hp_each(s, "attention.head_count_kv", 0, 65536, hp->n_layer, hp->attn.n_head_kv);
    if (!rc && !no_attn)
        rc = check_heads(s, hp);
    if (rc)
        return rc;
    for (int32_t il = 0; il < hp->n_layer; il++)
        most = GR_MAX(most, hp->attn.n_head[il]);
    hp->attn.d_k = hp->attn.d_v = most ? hp->n_embd / most : 1;
    rc = gr_hp_i32(s, "attention.key_length", 1, 4096, &hp->attn.d_k);
    if (!rc)
        rc = gr_hp_i32(s, "attention.value_length", 1, 4096, &hp->attn.d_v);
    if (!rc && (hp->attn.d_k < 1 || hp->attn.d_v < 1 || hp->attn.d_k > 4096 || hp->attn.d_v > 4096))
        rc = gr_fail(GR_E_CORRUPT, "key %s.embedding_length: %d is not enough for %d heads",
                     s->arch, hp->n_embd, most);
    return rc;
}

static int read_scaling(struct gr_hp_source *s, struct gr_hparams *hp)
{
    static const char *const names[] = {"none", "linear", "yarn", "longrope"};
    char k[128];
    struct gr_str type;
    float factor = 0;
    int rc = gr_gguf_opt_str(s->g, key_of(s, "rope.scaling.type", k, sizeof k), "linear", &type);
    if (rc)
        return rc;
    hp->rope.scaling = GR_COUNT(names);
    for (unsigned i = 0; i < GR_COUNT(names); i++)
        if (gr_str_is(type, names[i]))
            hp->rope.scaling = (enum gr_scaling)i;
    if (hp->rope.scaling == GR_COUNT(names))
        return gr_fail(GR_E_UNSUPPORTED,
                       "key %s: none, linear, yarn or longrope expected, %s found", k,
                       gr_quote(type.p, type.n));
    rc = gr_hp_f32(s, "rope.scale_linear", &factor); /* an older name */
    if (!rc)
        rc = gr_hp_f32(s, "rope.scaling.factor", &factor);
    if (!rc && factor < 0)
        rc = gr_fail(GR_E_CORRUPT, "key %s.rope.scaling.factor: %g is negative", s->arch,
                     (double)factor);
    hp->rope.freq_scale = factor > 0 ? 1 / factor : 1;
    if (!rc && !isfinite(hp->rope.freq_scale))
        rc = gr_fail(GR_E_CORRUPT, "key %s.rope.scaling.factor: %g is too small", s->arch,
                     (double)factor);
    return rc;
}

static int check_rot(const struct gr_hp_source *s, const struct gr_hparams *hp, const char *key,
                     int32_t n)
{
    if (hp->rope.kind == GR_ROPE_NONE || (n >= 2 && n % 2 == 0 && n <= hp->attn.d_k))
        return 0;
    return gr_fail(GR_E_CORRUPT,
                   "key %s.%s: an even number from 2 to the head size %d expected, %d found",
                   s->arch, key, hp->attn.d_k, n);
}

int gr_hp_rope_all(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->rope.n_rot = hp->rope.n_rot_swa = hp->attn.d_k;
    return check_rot(s, hp, "rope.dimension_count", hp->rope.n_rot);
}

/* Reads the number of rotated columns of a head, also for windowed layers. */
static int read_rot(struct gr_hp_source *s, struct gr_hparams *hp)
{
    const char *key = "rope.dimension_count", *key_swa = "rope.dimension_count_swa";
    hp->rope.n_rot = hp->attn.d_k;
    int rc = gr_hp_i32(s, key, 0, 4096, &hp->rope.n_rot);
    if (!rc)
        rc = check_rot(s, hp, key, hp->rope.n_rot);
    hp->rope.n_rot_swa = hp->rope.n_rot;
    if (!rc)
        rc = gr_hp_i32(s, key_swa, 0, 4096, &hp->rope.n_rot_swa);
    return rc;
}

/* Chooses and checks the numbers of rotated columns. Most families use that of the first layer in
 * all layers. */
static int choose_rot(struct gr_hp_source *s, struct gr_hparams *hp)
{
    if (!hp->rope.rot_by_kind)
        hp->rope.n_rot = hp->rope.n_rot_swa =
            hp->swa.layer[0] ? hp->rope.n_rot_swa : hp->rope.n_rot;
    int rc = check_rot(s, hp, "rope.dimension_count", hp->rope.n_rot);
    return rc ? rc : check_rot(s, hp, "rope.dimension_count_swa", hp->rope.n_rot_swa);
}

static int read_rope(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->rope.freq_base = 10000;
    hp->rope.attn_factor = 1;
    hp->rope.yarn_ext_factor = -1, hp->rope.yarn_attn_factor = 1, hp->rope.yarn_beta_fast = 32;
    hp->rope.yarn_beta_slow = 1;
    hp->rope.n_ctx_orig = hp->n_ctx_train;
    int rc = read_rot(s, hp);
    if (!rc)
        rc = gr_hp_f32(s, "rope.freq_base", &hp->rope.freq_base);
    if (!rc)
        rc = check_positive(s, "rope.freq_base", hp->rope.freq_base);
    if (!rc)
        rc = read_scaling(s, hp);
    if (!rc)
        rc = gr_hp_i32(s, "rope.scaling.original_context_length", 0, INT32_MAX,
                       &hp->rope.n_ctx_orig);
    if (hp->rope.n_ctx_orig == 0)
        hp->rope.n_ctx_orig = hp->n_ctx_train;
    const struct {
        const char *key;
        float *out;
    } f[] = {{"rope.scaling.attn_factor", &hp->rope.attn_factor},
             {"rope.scaling.yarn_ext_factor", &hp->rope.yarn_ext_factor},
             {"rope.scaling.yarn_attn_factor", &hp->rope.yarn_attn_factor},
             {"rope.scaling.yarn_beta_fast", &hp->rope.yarn_beta_fast},
             {"rope.scaling.yarn_beta_slow", &hp->rope.yarn_beta_slow}};
    for (unsigned i = 0; i < GR_COUNT(f) && !rc; i++) {
        rc = gr_hp_f32(s, f[i].key, f[i].out);
        if (!rc && f[i].out != &hp->rope.yarn_ext_factor)
            rc = check_positive(s, f[i].key, *f[i].out);
    }
    hp->rope.freq_base_swa = hp->rope.freq_base, hp->rope.freq_scale_swa = hp->rope.freq_scale;
    return rc;
}

/* Reads one number, or one for each layer, equal where above 0. A missing key leaves *out. */
static int same_in_layers(struct gr_hp_source *s, const struct gr_hparams *hp, const char *key,
                          int32_t hi, int32_t *out)
{
    int32_t each[GR_MAX_LAYER], most = 0;
    if (!gr_hp_has(s, key))
        return 0;
    int rc = gr_hp_each(s, key, 0, hi, hp->n_layer, each);
    for (int32_t il = 0; il < hp->n_layer && !rc; il++)
        most = GR_MAX(most, each[il]);
    for (int32_t il = 0; il < hp->n_layer && !rc; il++)
        if (each[il] != 0 && each[il] != most)
            rc = gr_fail(GR_E_UNSUPPORTED,
                         "key %s.%s: one number for all layers expected, %d and "
                         "%d found",
                         s->arch, key, each[il], most);
    *out = most;
    return rc;
}

static int read_groups(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t n = 0, used = 0;
    int rc = gr_hp_i32(s, "expert_group_count", 0, 64, &n);
    if (!rc)
        rc = gr_hp_i32(s, "expert_group_used_count", 0, 64, &used);
    if (rc || n < 2 || hp->moe.n_expert == 0)
        return rc;
    if (hp->moe.n_expert % n || used < 1 || used > n ||
        hp->moe.n_expert_used > hp->moe.n_expert / n * used)
        return gr_fail(
            GR_E_CORRUPT,
            "key %s.expert_group_count: %d groups of which %d are used cannot give %d of "
            "%d experts",
            s->arch, n, used, hp->moe.n_expert_used, hp->moe.n_expert);
    hp->moe.n_expert_group = n, hp->moe.n_expert_group_used = used;
    return 0;
}

static int read_experts(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_i32(s, "expert_count", 0, 4096, &hp->moe.n_expert);
    if (!rc)
        rc = same_in_layers(s, hp, "expert_used_count", 256, &hp->moe.n_expert_used);
    if (!rc && hp->moe.n_expert > 0 &&
        (hp->moe.n_expert_used < 1 || hp->moe.n_expert_used > hp->moe.n_expert))
        rc = gr_fail(GR_E_CORRUPT, "key %s.expert_used_count: 1 to %d expected, %d found", s->arch,
                     hp->moe.n_expert, hp->moe.n_expert_used);
    if (!rc)
        rc = same_in_layers(s, hp, "expert_feed_forward_length", 1 << 24, &hp->moe.n_ff_exp);
    if (hp->moe.n_ff_exp == 0)
        hp->moe.n_ff_exp = hp->ff.n_ff[0];
    return rc ? rc : read_groups(s, hp);
}

int gr_hp_unsupported(struct gr_hp_source *s, const char *key)
{
    return gr_fail(GR_E_UNSUPPORTED, "key %s.%s: this version cannot compute it", s->arch, key);
}

int gr_hp_temper(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_f32(s, "attention.temperature_scale", &hp->attn.temper.scale);
    if (!rc)
        rc = gr_hp_i32(s, "attention.temperature_length", 0, INT32_MAX, &hp->attn.temper.length);
    if (!rc && hp->attn.temper.scale != 0 && hp->attn.temper.length == 0)
        rc = gr_fail(GR_E_CORRUPT,
                     "key %s.attention.temperature_length: a number above 0 expected, none found",
                     s->arch);
    return rc;
}

int gr_hp_latent(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->mla.d_k = hp->attn.d_k, hp->mla.d_v = hp->attn.d_v;
    int rc = gr_hp_need_i32(s, "attention.kv_lora_rank", 1, 4096, &hp->mla.n_lora_kv);
    if (!rc)
        rc = gr_hp_i32(s, "attention.q_lora_rank", 0, 1 << 20, &hp->mla.n_lora_q);
    for (int32_t il = 0; il < hp->n_layer && !rc; il++)
        if (hp->attn.n_head_kv[il] != hp->attn.n_head[il])
            rc = gr_fail(
                GR_E_CORRUPT,
                "key %s.attention.head_count_kv: as many as heads expected, %d for %d found",
                s->arch, hp->attn.n_head_kv[il], hp->attn.n_head[il]);
    return rc;
}

int gr_hp_mla(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_i32(s, "attention.key_length_mla", 0, 4096, &hp->mla.d_k);
    if (!rc && hp->mla.d_k == 0)
        return gr_hp_latent(s, hp);
    if (!rc)
        rc = gr_hp_need_i32(s, "attention.value_length_mla", 1, 4096, &hp->mla.d_v);
    if (!rc)
        rc = gr_hp_need_i32(s, "attention.kv_lora_rank", 1, 4096, &hp->mla.n_lora_kv);
    if (!rc)
        rc = gr_hp_i32(s, "attention.q_lora_rank", 0, 1 << 20, &hp->mla.n_lora_q);
    if (!gr_hp_has(s, "attention.value_length")) /* left out of some files */
        hp->attn.d_v = hp->mla.n_lora_kv;
    if (!rc && hp->rope.n_rot < 1)
        rc = gr_fail(GR_E_CORRUPT, "key %s.rope.dimension_count: at least 1 expected, %d found",
                     s->arch, hp->rope.n_rot);
    if (!rc &&
        (hp->attn.d_k != hp->rope.n_rot + hp->mla.n_lora_kv || hp->attn.d_v != hp->mla.n_lora_kv))
        rc = gr_fail(GR_E_CORRUPT,
                     "key %s.attention.key_length: keys of %d and values of %d expected for a "
                     "latent of %d, %d and %d found",
                     s->arch, hp->rope.n_rot + hp->mla.n_lora_kv, hp->mla.n_lora_kv,
                     hp->mla.n_lora_kv, hp->attn.d_k, hp->attn.d_v);
    if (!rc && hp->mla.d_k <= hp->rope.n_rot)
        rc = gr_fail(GR_E_CORRUPT,
                     "key %s.attention.key_length_mla: more than %d expected, %d found", s->arch,
                     hp->rope.n_rot, hp->mla.d_k);
    hp->attn.scale = 1 / sqrtf((float)hp->mla.d_k);
    hp->mla.v_in_k = true;
    return rc;
}

int gr_hp_adjugates(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.n_adjugate = 1, hp->moe.adjugate_scale = 1;
    int rc = gr_hp_i32(s, "experts_per_group", 1, 4096, &hp->moe.n_adjugate);
    if (!rc)
        rc = gr_hp_f32(s, "expert_group_scale", &hp->moe.adjugate_scale);
    if (!rc)
        rc = gr_hp_i32(s, "expert_chunk_feed_forward_length", 0, 1 << 24, &hp->moe.n_ff_adj);
    if (!rc && hp->moe.n_expert % hp->moe.n_adjugate)
        rc =
            gr_fail(GR_E_CORRUPT,
                    "key %s.experts_per_group: a number that divides %d experts expected, %d found",
                    s->arch, hp->moe.n_expert, hp->moe.n_adjugate);
    if (hp->moe.n_ff_adj == 0)
        hp->moe.n_ff_adj = hp->attn.d_k;
    return rc;
}

int gr_hp_experts(struct gr_hp_source *s, struct gr_hparams *hp, enum gr_gate_kind otherwise)
{
    const enum gr_gate_kind gate[] = {otherwise, GR_GATE_SOFTMAX, GR_GATE_SIGMOID,
                                      GR_GATE_SOFTMAX_TOP};
    int32_t kind = 0, n_shared = 0, n_ff_shared = 0;
    int rc = gr_hp_i32(s, "expert_gating_func", 0, GR_COUNT(gate) - 1, &kind);
    if (!rc)
        rc = gr_hp_bool(s, "expert_weights_norm", &hp->moe.weights_norm);
    if (!rc)
        rc = gr_hp_f32(s, "expert_weights_scale", &hp->moe.weights_scale);
    if (!rc)
        rc = gr_hp_i32(s, "expert_shared_count", 0, 64, &n_shared);
    if (!rc)
        rc = gr_hp_i32(s, "expert_shared_feed_forward_length", 0, 1 << 24, &n_ff_shared);
    if (rc)
        return rc;
    hp->moe.gate = gate[kind];
    hp->moe.n_ff_shexp = n_ff_shared ? n_ff_shared : n_shared * hp->moe.n_ff_exp; /* below 2^30 */
    return 0;
}

int gr_hp_softmax_experts(struct gr_hp_source *s, struct gr_hparams *hp)
{
    (void)s;
    hp->moe.gate = GR_GATE_SOFTMAX, hp->moe.weights_norm = true, hp->moe.weights_scale = 0;
    return 0;
}

/* Reads the epsilon of norms; some files of RMS norms have the key of layer norms. */
static int read_eps(struct gr_hp_source *s, struct gr_hparams *hp)
{
    const char *key = "attention.layer_norm_epsilon";
    if (hp->norm.kind == GR_NORM_RMS &&
        (gr_hp_has(s, "attention.layer_norm_rms_epsilon") || !gr_hp_has(s, key)))
        key = "attention.layer_norm_rms_epsilon";
    int rc = gr_hp_need_f32(s, key, &hp->norm.eps);
    if (!rc && (hp->norm.eps < 0 || hp->norm.eps > 1))
        rc = gr_fail(GR_E_CORRUPT, "key %s.%s: a number from 0 to 1 expected, %g found", s->arch,
                     key, (double)hp->norm.eps);
    return rc;
}

/* Reads a kind of pooling by the file's number; -1, also as unsigned 32 bits, means unknown. */
static int read_pooling(struct gr_hp_source *s, const char *key, int32_t *out)
{
    char k[128];
    int64_t v;
    if (!gr_gguf_find(s->g, key_of(s, key, k, sizeof k)))
        return 0;
    int rc = gr_gguf_i64(s->g, k, &v);
    return rc ? rc : in_range(k, v == UINT32_MAX ? -1 : v, -1, 4, out);
}

/* Reads how embeddings are made: pooling, classifier, token types, matrices after pooling. */
static int read_vectors(struct gr_hp_source *s, struct gr_hparams *hp)
{
    char k[128];
    int32_t pooling = 0, in_front = 0;
    int rc = read_pooling(s, "pooling_type", &pooling);
    if (!rc)
        rc = read_pooling(s, "classifier.pooling_type", &in_front);
    if (rc)
        return rc;
    /* the file's numbers: none, mean, cls, last, rank; -1 unknown */
    hp->pool.kind = pooling < 0 ? GR_POOLING_NONE : (enum gr_pooling)(GR_POOLING_NONE + pooling);
    hp->cls.pooling = in_front == 1 ? GR_POOLING_MEAN : GR_POOLING_NONE;
    hp->cls.act = GR_TANH, hp->cls.n_cls = 1;
    const struct gr_gguf_kv *labels =
        gr_gguf_find(s->g, key_of(s, "classifier.output_labels", k, sizeof k));
    if (labels && labels->type == GR_GGUF_ARRAY && labels->n > 0) {
        if (labels->n > 1 << 16)
            return gr_fail(GR_E_CORRUPT, "key %s: at most %d names expected, %llu found", k,
                           1 << 16, (unsigned long long)labels->n);
        hp->cls.n_cls = (int32_t)labels->n;
    }
    int64_t n_type;
    rc = gr_gguf_opt_i64(s->g, "tokenizer.ggml.token_type_count", 0, &n_type);
    if (!rc)
        rc =
            in_range("tokenizer.ggml.token_type_count", n_type, 0, 1 << 20, &hp->embd.n_token_type);
    if (rc)
        return rc;
    hp->pool.n_dense_2 = hp->pool.n_dense_3 = hp->n_embd;
    rc = gr_hp_i32(s, "embedding_length_out", 1, 1 << 20, &hp->pool.n_dense_2);
    if (!rc)
        rc = gr_hp_i32(s, "dense_2_feat_out", 0, 1 << 20, &hp->pool.n_dense_2);
    return rc ? rc : gr_hp_i32(s, "dense_3_feat_in", 0, 1 << 20, &hp->pool.n_dense_3);
}

/* Models with attention to later tokens ("attention.causal" is false) run without a cache, unless
 * they need one for something else, which is unsupported. */
static int read_causal(struct gr_hp_source *s, struct gr_hparams *hp)
{
    bool causal = true, keeps = hp->mla.v_in_k || hp->enc.n_layer > 0;
    int rc = gr_hp_bool(s, "attention.causal", &causal);
    if (rc || causal || hp->no_cache)
        return rc;
    for (int32_t il = 0; il < hp->n_layer; il++)
        keeps |= hp->ssm.layer[il] || (hp->attn.kv_of[il] >= 0 && hp->attn.kv_of[il] != il);
    hp->no_cache = true;
    return keeps ? gr_hp_unsupported(s, "attention.causal") : 0;
}

/* Sets the values that hold without a key. */
static void set_defaults(struct gr_hparams *hp, const struct gr_arch *arch)
{
    memset(hp, 0, sizeof *hp);
    hp->norm.kind = arch->norm, hp->no_cache = arch->no_cache, hp->rope.kind = arch->rope;
    hp->embd.scale = 1, hp->attn.d_gate = 1;
    hp->moe.n_expert_group = hp->moe.n_expert_group_used = 1;
}

int gr_hparams_read(struct gr_hparams *hp, const struct gr_gguf *g, const struct gr_arch *arch)
{
    struct gr_hp_source s = {g, arch->name};
    int32_t n_next = 0; /* layers for multi-token prediction: after the others, not used */
    set_defaults(hp, arch);
    int rc = gr_hp_need_i32(&s, "block_count", 1, GR_MAX_LAYER, &hp->n_layer);
    if (!rc)
        rc = gr_hp_i32(&s, "nextn_predict_layers", 0, hp->n_layer - 1, &n_next);
    hp->n_layer -= n_next;
    if (!rc)
        rc = gr_hp_need_i32(&s, "embedding_length", 1, 1 << 20, &hp->n_embd);
    if (!rc)
        rc = gr_hp_need_i32(&s, "context_length", 1, INT32_MAX, &hp->n_ctx_train);
    if (!rc)
        rc = gr_hp_each(&s, "feed_forward_length", 0, 1 << 24, hp->n_layer, hp->ff.n_ff);
    if (!rc)
        rc = read_heads(&s, hp, arch->no_attn);
    if (!rc)
        rc = read_rope(&s, hp);
    if (!rc)
        rc = read_experts(&s, hp);
    if (!rc)
        rc = read_eps(&s, hp);
    if (!rc)
        rc = read_vectors(&s, hp);
    for (int32_t il = 0; il < GR_MAX_LAYER; il++)
        hp->attn.kv_of[il] = hp->attn.n_head_kv[il] ? il : -1, hp->weights_of[il] = il;
    if (!rc && arch->hparams)
        rc = arch->hparams(&s, hp);
    if (!rc)
        rc = choose_rot(&s, hp);
    for (int32_t il = 0; il < hp->n_layer; il++)
        if (hp->attn.n_head_kv[il] == 0)
            hp->attn.kv_of[il] = -1;
    if (!rc)
        rc = read_causal(&s, hp);
    return rc ? rc : check_positive(&s, "rope.freq_base_swa", hp->rope.freq_base_swa);
}
