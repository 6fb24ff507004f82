#include "support/adapter.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/f16.h"
#include "base/rng.h"
#include "gr/status.h"
#include "graph/graph.h"

static float *numbers(struct gr_rng *r, int64_t n, int64_t cols, bool half)
{
    float *x = gr_calloc((size_t)n, sizeof *x), scale = 1 / sqrtf((float)cols);
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * gr_rng_normal(r);
    for (int64_t i = 0; half && i < n; i++)
        x[i] = gr_f16_to_f32(gr_f32_to_f16(x[i]));
    return x;
}

void adapter_make(struct adapter *a, const struct gr_model *m, uint64_t seed, uint32_t every,
                  const char *path)
{
    struct gr_rng r = gr_rng_new(seed);
    a->arch = m->arch->name;
    snprintf(a->path, sizeof a->path, "%s", path);
    for (int i = 0; i < m->arch->n_spec; i++)
        for (int il = -1; il < m->hp.n_layer; il++) {
            const struct gr_tensor_spec *s = &m->arch->spec[i];
            const struct gr_ten *w = &m->weight[(size_t)(il + 1) * GR_N_SLOT + s->slot];
            bool tied =
                gr_model_is_tied(m) && (s->slot == GR_W_OUTPUT || s->slot == GR_W_TOKEN_EMBD);
            if (!gr_ten_is(w) || s->dim[1] == GR_D_NONE || s->flags & GR_AS_F32 || tied ||
                (il >= 0 && (!gr_spec_applies(&m->hp, s, il) || m->hp.weights_of[il] != il)) ||
                gr_rng_below(&r, every))
                continue;
            struct adapter_pair *p = &a->pair[a->n++];
            cr_assert_lt(a->n, ADAPTER_MOST);
            gr_slot_name(s->slot, il, false, p->name, sizeof p->name);
            p->slot = s->slot, p->rows = s->slot == GR_W_TOKEN_EMBD;
            p->in = w->cols, p->out = w->rows, p->batch = w->batch;
            p->rank = 1 + (int64_t)gr_rng_below(&r, 5);
            int64_t in = p->rows ? p->out : p->in, out = p->rows ? p->in : p->out;
            p->a = numbers(&r, p->batch * p->rank * in, p->rows ? 4 : in, a->half);
            p->b = numbers(&r, p->batch * p->rank * out, 4 * p->rank, a->half);
        }
}

void adapter_drop(struct adapter *a, int i)
{
    gr_free(a->pair[i].a);
    gr_free(a->pair[i].b);
    a->pair[i] = a->pair[--a->n];
}

void adapter_release(struct adapter *a)
{
    while (a->n)
        adapter_drop(a, 0);
    unlink(a->path);
}

static void add(struct gr_gguf_writer *w, const struct adapter_pair *p, bool b, bool half)
{
    char name[128];
    int64_t in = p->rows ? p->out : p->in, out = p->rows ? p->in : p->out;
    uint64_t ne[3] = {(uint64_t)(b || p->rows ? p->rank : in),
                      (uint64_t)(b         ? out
                                 : p->rows ? in
                                           : p->rank),
                      (uint64_t)p->batch};
    snprintf(name, sizeof name, "%s.lora_%c", p->name, b ? 'b' : 'a');
    cr_assert_eq(gr_gguf_add_tensor(w, (struct gr_str){name, strlen(name)}, half ? GR_F16 : GR_F32,
                                    p->batch > 1 ? 3 : 2, ne),
                 0);
}

static void put(struct gr_gguf_writer *w, const float *x, int64_t n, bool half)
{
    uint16_t *h = gr_calloc((size_t)n, sizeof *h);
    for (int64_t i = 0; i < n; i++)
        h[i] = gr_f32_to_f16(x[i]);
    int rc = half ? gr_gguf_write(w, h, (size_t)n * 2) : gr_gguf_write(w, x, (size_t)n * 4);
    cr_assert_eq(rc, 0, "%s", gr_error());
    gr_free(h);
}

void adapter_write(const struct adapter *a)
{
    struct gr_gguf_writer *w;
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    gr_gguf_set_str(w, "general.type", "adapter");
    gr_gguf_set_str(w, "general.architecture", a->arch);
    gr_gguf_set_str(w, "adapter.type", "lora");
    gr_gguf_set_f32(w, "adapter.lora.alpha", a->alpha);
    if (a->edit)
        a->edit(w);
    for (int i = 0; i < 2 * a->n; i++)
        add(w, &a->pair[i / 2], i % 2, a->half);
    cr_assert_eq(gr_gguf_begin(w, a->path), 0, "%s", gr_error());
    for (int i = 0; i < a->n; i++) {
        const struct adapter_pair *p = &a->pair[i];
        int64_t in = p->rows ? p->out : p->in, out = p->rows ? p->in : p->out;
        put(w, p->a, p->batch * p->rank * in, a->half);
        put(w, p->b, p->batch * p->rank * out, a->half);
    }
    cr_assert_eq(gr_gguf_commit(w), 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
}
