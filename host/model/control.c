#include "model/control.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "gguf/gguf.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "model/model.h"

/* A file of directions. */
struct file {
    struct gr_model *m;
    const char *path;
    struct gr_gguf *g;
    float scale;
    int32_t first, last; /* layers that count */
};

/* The layer of "direction.7"; -1: another name. */
static int32_t layer_of(struct gr_str name)
{
    static const char head[] = "direction.";
    size_t n = sizeof head - 1;
    int32_t il = 0;
    if (name.n <= n || name.n > n + 4 || memcmp(name.p, head, n) != 0)
        return -1;
    for (size_t i = n; i < name.n; i++) {
        if (name.p[i] < '0' || name.p[i] > '9')
            return -1;
        il = il * 10 + name.p[i] - '0';
    }
    return il;
}

/* The sum of a layer's vectors, zeros at first; NULL: out of memory. */
static float *sum_of(struct gr_model *m, int32_t il)
{
    struct gr_ten *w = &m->weight[(size_t)(il + 1) * GR_N_SLOT + GR_W_DIRECTION];
    void **slot = gr_ten_is(w) ? NULL : gr_vec_push(&m->owned, sizeof(void *));
    if (slot)
        *slot = gr_calloc((size_t)m->hp.n_embd, sizeof(float));
    if (slot && *slot)
        *w = (struct gr_ten){.data = *slot,
                             .batch = 1,
                             .rows = 1,
                             .cols = m->hp.n_embd,
                             .row_bytes = m->hp.n_embd * 4,
                             .dtype = GR_F32};
    return w->data;
}

static int add_one(const struct file *f, const struct gr_gguf_tensor *t)
{
    const char *name = gr_quote(t->name.p, t->name.n);
    int32_t il = layer_of(t->name), n = f->m->hp.n_embd;
    if (il < 1)
        return gr_fail(GR_E_UNSUPPORTED, "%s: tensor %s: direction.N expected, N from 1 on",
                       f->path, name);
    if (t->dtype != GR_F32 || t->n_dim != 1 || t->ne[0] != (uint64_t)n)
        return gr_fail(GR_E_UNSUPPORTED,
                       "%s: tensor %s: %d numbers as f32 expected, %" PRIu64
                       " as %s found; is it another model's?",
                       f->path, name, n, t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3],
                       gr_dtype_name(t->dtype));
    if (il < f->first || il > f->last || il >= f->m->hp.n_layer)
        return 0;
    float *sum = sum_of(f->m, il), *row = gr_calloc((size_t)n, sizeof *row);
    int rc = sum && row ? gr_gguf_read_tensor(f->g, t, row) : GR_E_NOMEM_HOST;
    for (int32_t i = 0; i < n && !rc; i++) {
        sum[i] += row[i] * f->scale;
        if (!isfinite(sum[i]))
            rc = gr_fail(GR_E_CORRUPT, "%s: tensor %s: element %d is not finite", f->path, name, i);
    }
    gr_free(row);
    return rc;
}

static int add_file(const struct file *from, const struct gr_adapter *a)
{
    struct file f = *from;
    struct gr_str type = {"", 0};
    f.path = a->path, f.scale = a->scale;
    if (!a->path || !isfinite(a->scale))
        return gr_fail(GR_E_INVALID, "control vectors: a file and a finite scale expected");
    int rc = gr_gguf_open(&f.g, a->path, false);
    if (!rc)
        rc = gr_gguf_opt_str(f.g, "general.architecture", "controlvector", &type);
    if (!rc && !gr_str_is(type, "controlvector"))
        rc = gr_fail(GR_E_UNSUPPORTED,
                     "%s: general.architecture is %s, controlvector expected; adapters are given "
                     "by --lora, models by -m",
                     a->path, gr_quote(type.p, type.n));
    if (!rc && !gr_gguf_n_tensor(f.g))
        rc = gr_fail(GR_E_CORRUPT, "%s: it has no tensor direction.N", a->path);
    for (uint64_t i = 0; !rc && i < gr_gguf_n_tensor(f.g); i++)
        rc = add_one(&f, gr_gguf_tensor_at(f.g, i));
    gr_gguf_close(&f.g);
    return rc;
}

int gr_control_open(struct gr_model *m, const struct gr_model_params *p)
{
    int32_t n = p->n_control_vector;
    struct file f = {.m = m,
                     .first = p->control_first > 0 ? p->control_first : 1,
                     .last = p->control_last > 0 ? p->control_last : m->hp.n_layer};
    int rc = 0;
    if (n < 0 || n > GR_MAX_ADAPTER || (n && !p->control_vectors))
        return gr_fail(GR_E_INVALID, "%d control vectors: 0 to %d are possible", n, GR_MAX_ADAPTER);
    if (n && f.first > f.last)
        return gr_fail(GR_E_INVALID, "control vectors: layers %d to %d are none", f.first, f.last);
    if (n && m->hp.enc.n_layer)
        return gr_fail(GR_E_UNSUPPORTED,
                       "control vectors: the model has an encoder, whose layers they do not tell "
                       "from the decoder's");
    if (n && m->hp.loop.n_low)
        return gr_fail(GR_E_UNSUPPORTED,
                       "control vectors: layers of this model pass on other values than their "
                       "results");
    for (int32_t i = 0; i < n && !rc; i++)
        rc = add_file(&f, &p->control_vectors[i]);
    return rc;
}
