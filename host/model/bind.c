/* Binding: finds the tensor of the file for every row of an architecture's table. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/dtype.h"
#include "gr/pack.h"
#include "gr/status.h"
#include "model/model.h"
#include "quant/quant.h"

static int wrong_shape(const struct gr_gguf_tensor *t, const int64_t *want, int n_want)
{
    char expected[96], found[96];
    int e = 0, f = 0;
    for (int i = 0; i < n_want; i++)
        e += snprintf(expected + e, sizeof expected - (size_t)e, "%s%" PRId64, i ? ", " : "",
                      want[i]);
    for (unsigned i = 0; i < t->n_dim; i++)
        f += snprintf(found + f, sizeof found - (size_t)f, "%s%" PRIu64, i ? ", " : "", t->ne[i]);
    return gr_fail(GR_E_CORRUPT, "tensor %s: shape [%s] expected, [%s] found (offset %" PRIu64 ")",
                   gr_quote(t->name.p, t->name.n), expected, found, t->offset);
}

/* Compares shapes, ignoring dimensions of 1, which some files leave out. */
static bool is_shape(const struct gr_gguf_tensor *t, const int64_t *want, int n_want)
{
    int k = 0;
    for (int i = 0; i < 4; i++) {
        while (k < n_want && want[k] == 1)
            k++;
        if (t->ne[i] != 1 && (k == n_want || (int64_t)t->ne[i] != want[k++]))
            return false;
    }
    while (k < n_want && want[k] == 1)
        k++;
    return k == n_want;
}

static int check_shape(const struct gr_gguf_tensor *t, const int64_t *want, int n_want)
{
    if (!is_shape(t, want, n_want))
        return wrong_shape(t, want, n_want);
    if (!gr_pack_is(t->dtype))
        return gr_fail(GR_E_UNSUPPORTED,
                       "tensor %s: storage type %s cannot be computed with in this version",
                       gr_quote(t->name.p, t->name.n), gr_dtype_name(t->dtype));
    return 0;
}

static void *keep(struct gr_model *m, size_t bytes)
{
    void **slot = gr_vec_push(&m->owned, sizeof(void *));
    return slot ? *slot = gr_calloc(1, bytes) : NULL;
}

/* Sets *out to the tensor's bytes: in the mapping, or read into memory. */
static int bytes_of(struct gr_model *m, const struct gr_gguf *g, const struct gr_gguf_tensor *t,
                    const void **out)
{
    *out = t->data;
    if (t->data)
        return 0;
    void *p = keep(m, t->bytes);
    *out = p;
    return p ? gr_gguf_read_tensor(g, t, p) : GR_E_NOMEM_HOST;
}

static int check_finite(const struct gr_gguf_tensor *t, const void *data)
{
    float row[2048];
    const struct gr_dtype_info *info = gr_dtype_find(t->dtype);
    uint64_t n = t->bytes / info->block_bytes * info->block,
             step = GR_COUNT(row) / info->block * info->block;
    for (uint64_t i = 0; i < n; i += step) {
        uint64_t k = GR_MIN(step, n - i);
        gr_quant_find(t->dtype)->dequantize(
            (const char *)data + i / info->block * info->block_bytes, row, k);
        for (uint64_t j = 0; j < k; j++)
            if (!isfinite(row[j]))
                return gr_fail(GR_E_CHECK, "tensor %s: element %" PRIu64 " is not finite",
                               gr_quote(t->name.p, t->name.n), i + j);
    }
    return 0;
}

/* Converts a small tensor to f32, which every kernel reads. */
static int as_f32(struct gr_model *m, struct gr_ten *w)
{
    float *p = keep(m, (size_t)(w->rows * w->cols) * 4);
    if (!p)
        return GR_E_NOMEM_HOST;
    gr_quant_find(w->dtype)->dequantize(w->data, p, (size_t)(w->rows * w->cols));
    w->data = p, w->dtype = GR_F32, w->row_bytes = w->cols * 4;
    return 0;
}

int gr_model_bind_tensor(struct gr_model *m, const struct gr_gguf *g,
                         const struct gr_gguf_tensor *t, const int64_t *want, int n_want, bool f32,
                         bool check, struct gr_ten *w)
{
    const void *data;
    int rc = check_shape(t, want, n_want);
    if (!rc)
        rc = bytes_of(m, g, t, &data);
    if (rc)
        return rc;
    *w = (struct gr_ten){.data = (void *)(uintptr_t)data,
                         .batch = n_want > 2 ? want[2] : 1,
                         .rows = n_want > 1 ? want[1] : 1,
                         .cols = want[0],
                         .row_bytes = (int64_t)gr_row_bytes(t->dtype, (uint64_t)want[0]),
                         .dtype = t->dtype};
    if (check)
        rc = check_finite(t, data);
    if (!rc && (check || !t->data))
        rc = gr_progress_add(&m->progress, t->bytes);
    if (!rc && f32 && t->dtype != GR_F32)
        rc = as_f32(m, w);
    return rc;
}

static int bind_bias(struct gr_model *m, const struct gr_tensor_spec *s, int il, const int64_t *dim,
                     int n_dim, bool check)
{
    char name[96];
    const struct gr_gguf_tensor *t = gr_gguf_find_tensor(
        m->gguf, gr_slot_name(s->slot, gr_file_layer(&m->hp, il), true, name, sizeof name));
    if (!t && (s->flags & GR_BIAS))
        return gr_fail(GR_E_CORRUPT, "tensor %s is missing: architecture %s needs it", name,
                       m->arch->name);
    if (!t)
        return 0;
    /* one number per output: the weight's second dimension, or a vector's only one */
    const int64_t *want = n_dim > 1 ? dim + 1 : dim;
    int n_want = n_dim > 1 ? n_dim - 1 : 1;
    struct gr_ten *w = &m->bias[(size_t)(il + 1) * GR_N_SLOT + s->slot];
    return gr_model_bind_tensor(m, m->gguf, t, want, n_want, true, check, w);
}

bool gr_model_is_tied(const struct gr_model *m)
{
    const struct gr_ten *out = &m->weight[GR_W_OUTPUT], *in = &m->weight[GR_W_TOKEN_EMBD];
    return out->data == in->data && out->rows == in->rows;
}

/* Finds the tensor of a slot and writes its name to `name`. Some files leave ".weight" or ".bias"
 * out of some names. */
static const struct gr_gguf_tensor *find(const struct gr_model *m, enum gr_slot slot, int il,
                                         char name[96])
{
    char bare[96];
    const struct gr_gguf_tensor *t = gr_gguf_find_tensor(
        m->gguf, gr_slot_name(slot, gr_file_layer(&m->hp, il), false, name, 96));
    const char *weight = strstr(name, ".weight"), *end = weight ? weight : strstr(name, ".bias");
    if (t || !end)
        return t;
    snprintf(bare, sizeof bare, "%.*s", (int)(end - name), name);
    return gr_gguf_find_tensor(m->gguf, bare);
}

/* Binds the scale of a matrix, "attn_q.scale" of "attn_q.weight", which formats of a narrow range
 * need: one number, or one per expert. (".input_scale", a range for 4-bit activations, is not used:
 * activations are not stored so.) */
static int bind_scale(struct gr_model *m, enum gr_slot slot, int il, int64_t n_expert, bool check)
{
    char name[96];
    size_t row = (size_t)(il + 1) * GR_N_SLOT;
    enum gr_slot to = gr_scale_slot(slot);
    if (to == GR_N_SLOT)
        return 0;
    gr_slot_name(slot, gr_file_layer(&m->hp, il), false, name, sizeof name);
    snprintf(strstr(name, ".weight"), sizeof ".weight", ".scale");
    const struct gr_gguf_tensor *t = gr_gguf_find_tensor(m->gguf, name);
    if (!t)
        return 0;
    if (to != slot)
        return gr_model_bind_tensor(m, m->gguf, t, &n_expert, 1, true, check, &m->weight[row + to]);
    struct gr_ten one = {0};
    int rc = gr_model_bind_tensor(m, m->gguf, t, &(int64_t){1}, 1, true, true, &one);
    if (!rc)
        m->scale[row + slot] = *(const float *)one.data;
    return rc;
}

/* Repeats the single number of each row n times. */
static int repeat(struct gr_model *m, struct gr_ten *w, int64_t n)
{
    const float *from = w->data;
    float *to = keep(m, (size_t)(w->rows * n) * sizeof *to);
    if (!to)
        return GR_E_NOMEM_HOST;
    for (int64_t i = 0; i < w->rows * n; i++)
        to[i] = from[i / n];
    w->data = to, w->cols = n, w->row_bytes = n * 4;
    return 0;
}

static int bind_spec(struct gr_model *m, const struct gr_tensor_spec *s, int il, bool check)
{
    char name[96];
    int64_t dim[3];
    int n_dim = 0;
    while (n_dim < 3 && s->dim[n_dim] != GR_D_NONE) {
        dim[n_dim] = gr_dim_value(&m->hp, s->dim[n_dim], il);
        n_dim++;
    }
    struct gr_ten *w = &m->weight[(size_t)(il + 1) * GR_N_SLOT + s->slot];
    const struct gr_gguf_tensor *t = find(m, s->slot, il, name);
    if (!t && (s->flags & GR_OPTIONAL || (s->flags & GR_BUT_FIRST && il == 0) ||
               (s->flags & GR_FIRST && gr_file_layer(&m->hp, il) > 0)))
        return 0;
    if (!t)
        return gr_fail(GR_E_CORRUPT, "tensor %s is missing: architecture %s needs it", name,
                       m->arch->name);
    int64_t n = dim[0];
    if (s->flags & GR_REPEAT)
        dim[0] = 1;
    int rc = gr_model_bind_tensor(m, m->gguf, t, dim, n_dim, n_dim == 1 || s->flags & GR_AS_F32,
                                  check, w);
    if (!rc && n_dim > 1)
        rc = bind_scale(m, s->slot, il, m->hp.moe.n_expert, check);
    if (!rc && s->flags & GR_REPEAT)
        rc = repeat(m, w, n);
    if (!rc && (s->flags & (GR_BIAS | GR_BIAS_MAYBE)))
        rc = bind_bias(m, s, il, dim, n_dim, check);
    return rc;
}

static bool in_layers(enum gr_slot slot)
{
    char a[96], b[96];
    return strcmp(gr_slot_name(slot, 0, false, a, sizeof a),
                  gr_slot_name(slot, 1, false, b, sizeof b)) != 0;
}

/* Bytes that are read while tensors are bound: those of tensors outside mappings, or with `check`
 * of all. */
static uint64_t bytes_to_read(const struct gr_model *m, bool check)
{
    uint64_t n = gr_gguf_n_tensor(m->gguf), bytes = 0;
    for (uint64_t i = 0; i < n; i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(m->gguf, i);
        bytes += check || !t->data ? t->bytes : 0;
    }
    return bytes;
}

int gr_model_bind(struct gr_model *m, bool check)
{
    size_t n = (size_t)(m->hp.n_layer + 1) * GR_N_SLOT;
    m->weight = gr_calloc(n, sizeof *m->weight);
    m->bias = gr_calloc(n, sizeof *m->bias);
    m->scale = gr_calloc(n, sizeof *m->scale);
    if (!m->weight || !m->bias || !m->scale)
        return GR_E_NOMEM_HOST;
    int rc = gr_progress_begin(&m->progress, bytes_to_read(m, check));
    for (size_t i = 0; i < n; i++)
        m->scale[i] = 1;
    for (int i = 0; i < m->arch->n_spec && !rc; i++) {
        const struct gr_tensor_spec *s = &m->arch->spec[i];
        bool inside = s->flags & GR_EACH || in_layers(s->slot);
        if (!inside)
            rc = bind_spec(m, s, -1, check);
        for (int il = 0; inside && il < m->hp.n_layer && !rc; il++)
            if (gr_spec_applies(&m->hp, s, il))
                rc = bind_spec(m, s, il, check);
    }
    /* without an output matrix the token embeddings serve as one, and vice versa */
    if (!gr_ten_is(&m->weight[GR_W_OUTPUT]) && !m->arch->no_logits)
        m->weight[GR_W_OUTPUT] = m->weight[GR_W_TOKEN_EMBD];
    if (!gr_ten_is(&m->weight[GR_W_TOKEN_EMBD]))
        m->weight[GR_W_TOKEN_EMBD] = m->weight[GR_W_OUTPUT];
    m->hp.embd.n_learned_pos = (int32_t)m->weight[GR_W_POS_EMBD].rows;
    if (!rc)
        rc = gr_progress_end(&m->progress);
    return rc ? rc : gr_gguf_unchanged(m->gguf);
}
