#include "model/lora.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "gr/status.h"
#include "graph/graph.h"
#include "model/model.h"

static const char *const ends[] = {".lora_a", ".lora_b"};

struct gr_lora *gr_lora_new(int32_t n, int32_t n_layer)
{
    struct gr_lora *l = gr_calloc((size_t)n, sizeof *l);
    size_t n_pair = (size_t)(n_layer + 1) * GR_N_SLOT;
    for (int32_t i = 0; l && i < n; i++) {
        l[i].a = gr_calloc(n_pair, sizeof *l[i].a);
        l[i].b = gr_calloc(n_pair, sizeof *l[i].b);
        if (!l[i].a || !l[i].b)
            gr_lora_free(&l, n);
    }
    return l;
}

void gr_lora_free(struct gr_lora **lora, int32_t n)
{
    for (int32_t i = 0; *lora && i < n; i++) {
        gr_free((*lora)[i].a);
        gr_free((*lora)[i].b);
    }
    gr_free(*lora);
    *lora = NULL;
}

/* ---- one file ---- */

/* An adapter file that is being bound. */
struct binding {
    struct gr_model *m;
    struct gr_lora *to;
    const struct gr_gguf *g;
    const char *path;
    bool check;
    bool *claimed; /* [tensors of the file] */
};

static int need_str(const struct binding *b, const char *key, const char *want, const char *what)
{
    struct gr_str found;
    int rc = gr_gguf_opt_str(b->g, key, "", &found);
    if (rc || gr_str_is(found, want))
        return rc;
    return gr_fail(GR_E_UNSUPPORTED, "%s: %s is %s, %s", b->path, key, gr_quote(found.p, found.n),
                   what);
}

static int check_metadata(const struct binding *b)
{
    char what[160];
    snprintf(what, sizeof what, "but the model's architecture is %s: it is another model's adapter",
             b->m->arch->name);
    int rc = need_str(b, "general.type", "adapter", "not adapter: name the model itself with -m");
    if (!rc)
        rc = need_str(b, "adapter.type", "lora", "and only lora is known");
    if (!rc)
        rc = need_str(b, "general.architecture", b->m->arch->name, what);
    if (!rc && gr_gguf_find(b->g, "adapter.alora.invocation_tokens"))
        rc = gr_fail(GR_E_UNSUPPORTED,
                     "%s: an activated LoRA (adapter.alora.invocation_tokens), which takes effect "
                     "from certain tokens on; only adapters that always do are known",
                     b->path);
    if (!rc)
        rc = gr_gguf_opt_f32(b->g, "adapter.lora.alpha", 0, &b->to->alpha);
    if (!rc && !isfinite(b->to->alpha))
        rc = gr_fail(GR_E_CORRUPT, "%s: adapter.lora.alpha is %g", b->path, (double)b->to->alpha);
    return rc;
}

static const struct gr_gguf_tensor *claim(const struct binding *b, const char *weight, int half)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", weight, ends[half]);
    const struct gr_gguf_tensor *t = gr_gguf_find_tensor(b->g, name);
    for (uint64_t i = 0; t && i < gr_gguf_n_tensor(b->g); i++)
        if (gr_gguf_tensor_at(b->g, i) == t)
            b->claimed[i] = true;
    return t;
}

/* Binds A and B of a weight. For embeddings, looked up by rows, A has one row per token. */
static int bind_pair(struct binding *b, enum gr_slot slot, int il, const char *weight)
{
    size_t at = (size_t)(il + 1) * GR_N_SLOT + slot;
    const struct gr_ten *w = &b->m->weight[at];
    const struct gr_gguf_tensor *t[2] = {claim(b, weight, 0), claim(b, weight, 1)};
    if (!t[0] && !t[1])
        return 0;
    if (!t[0] || !t[1])
        return gr_fail(GR_E_CORRUPT, "%s: tensor %s%s is missing, which belongs to %s%s", b->path,
                       weight, ends[t[0] != NULL], weight, ends[t[0] == NULL]);
    char why[512];
    bool looked_up = slot == GR_W_TOKEN_EMBD;
    int64_t in = looked_up ? w->rows : w->cols, out = looked_up ? w->cols : w->rows;
    int64_t rank = (int64_t)t[1]->ne[0];
    const int64_t a[3] = {looked_up ? rank : in, looked_up ? in : rank, w->batch};
    const int64_t other[3] = {rank, out, w->batch};
    int n_dim = w->batch > 1 ? 3 : 2;
    int rc = gr_model_bind_tensor(b->m, b->g, t[0], a, n_dim, false, b->check, &b->to->a[at]);
    if (!rc)
        rc = gr_model_bind_tensor(b->m, b->g, t[1], other, n_dim, false, b->check, &b->to->b[at]);
    snprintf(why, sizeof why, "%s", rc ? gr_error() : "");
    return rc ? gr_fail(rc, "%s: %s", b->path, why) : 0;
}

/* Binds the pair for a spec in a layer, if any. A matrix that serves as another one (tied
 * embeddings) is adapted under its own name only. */
static int bind_spec(struct binding *b, const struct gr_tensor_spec *s, int il)
{
    const struct gr_model *m = b->m;
    char name[96];
    bool matrix = s->dim[1] != GR_D_NONE && !(s->flags & GR_AS_F32);
    bool applies = il < 0 || gr_spec_applies(&m->hp, s, il);
    if (!matrix || !applies || !gr_ten_is(&m->weight[(size_t)(il + 1) * GR_N_SLOT + s->slot]))
        return 0;
    gr_slot_name(s->slot, il < 0 ? il : m->hp.weights_of[il], false, name, sizeof name);
    bool borrowed = (s->slot == GR_W_OUTPUT || s->slot == GR_W_TOKEN_EMBD) &&
                    !gr_gguf_find_tensor(m->gguf, name);
    return borrowed ? 0 : bind_pair(b, s->slot, il, name);
}

static int bind_all(struct binding *b)
{
    const struct gr_model *m = b->m;
    int rc = 0;
    for (int i = 0; i < m->arch->n_spec; i++)
        for (int il = -1; il < m->hp.n_layer && !rc; il++)
            rc = bind_spec(b, &m->arch->spec[i], il);
    return rc;
}

/* Returns whether a name ends with `end`; *n: the length of what is before it. */
static bool ends_with(struct gr_str name, const char *end, size_t *n)
{
    size_t len = strlen(end);
    *n = name.n - len;
    return name.n >= len && !memcmp(name.p + *n, end, len);
}

/* Reports why a tensor of the file matches no weight. Norms are ignored with a warning, as in other
 * programs: adapters work without them. */
static int refuse_unclaimed(const struct binding *b, const struct gr_gguf_tensor *t)
{
    size_t n;
    char weight[128];
    if (ends_with(t->name, "_norm.weight", &n)) {
        gr_log(GR_LOG_WARN, "%s: tensor %s is left out", b->path, gr_quote(t->name.p, t->name.n));
        return 0;
    }
    if (!ends_with(t->name, ends[0], &n) && !ends_with(t->name, ends[1], &n))
        return gr_fail(GR_E_UNSUPPORTED,
                       "%s: tensor %s: a name that ends with .lora_a or .lora_b expected", b->path,
                       gr_quote(t->name.p, t->name.n));
    snprintf(weight, sizeof weight, "%.*s", (int)GR_MIN(n, sizeof weight - 1), t->name.p);
    bool there = gr_gguf_find_tensor(b->m->gguf, weight) != NULL;
    return gr_fail(GR_E_UNSUPPORTED, "%s: tensor %s: %s", b->path, gr_quote(t->name.p, t->name.n),
                   there ? "the model's graph does not multiply with that weight"
                         : "the model has no such weight; is it another model's adapter?");
}

static int check_claimed(const struct binding *b)
{
    int rc = 0;
    for (uint64_t i = 0; i < gr_gguf_n_tensor(b->g) && !rc; i++)
        if (!b->claimed[i])
            rc = refuse_unclaimed(b, gr_gguf_tensor_at(b->g, i));
    return rc;
}

static int open_one(struct gr_model *m, const struct gr_adapter *a, const struct gr_model_params *p)
{
    struct gr_lora_file *f = &m->lora_file[m->n_lora];
    struct binding b = {
        .m = m, .to = &m->lora[m->n_lora], .path = a->path, .check = p->check_tensors};
    if (!a->path || !isfinite(a->scale))
        return gr_fail(GR_E_INVALID, "adapter %d: a file and a finite scale expected", m->n_lora);
    int rc = gr_gguf_open(&f->gguf, a->path, p->use_mmap);
    if (rc)
        return rc;
    m->n_lora++;
    f->scale = a->scale;
    b.g = f->gguf;
    b.claimed = gr_calloc(gr_gguf_n_tensor(b.g), sizeof *b.claimed);
    rc = b.claimed ? check_metadata(&b) : GR_E_NOMEM_HOST;
    if (!rc)
        rc = bind_all(&b);
    if (!rc)
        rc = check_claimed(&b);
    gr_free(b.claimed);
    return rc;
}

/* ---- all of a model ---- */

int gr_lora_open(struct gr_model *m, const struct gr_model_params *p)
{
    int32_t n = p->n_adapter;
    if (n < 0 || n > GR_MAX_ADAPTER || (n && !p->adapters))
        return gr_fail(GR_E_INVALID, "%d adapters: 0 to %d are possible", n, GR_MAX_ADAPTER);
    m->lora_file = n ? gr_calloc((size_t)n, sizeof *m->lora_file) : NULL;
    m->lora = n ? gr_lora_new(n, m->hp.n_layer) : NULL;
    m->n_lora_cap = m->lora ? n : 0;
    if (n && (!m->lora || !m->lora_file))
        return GR_E_NOMEM_HOST;
    int rc = 0;
    for (int32_t i = 0; i < n && !rc; i++)
        rc = open_one(m, &p->adapters[i], p);
    return rc || !n ? rc : gr_model_try_graph(m, &m->hp, NULL, m->weight, m->bias, m->lora);
}

void gr_lora_close(struct gr_model *m)
{
    for (int32_t i = 0; i < m->n_lora; i++)
        gr_gguf_close(&m->lora_file[i].gguf);
    gr_free(m->lora_file);
    gr_lora_free(&m->lora, m->n_lora_cap);
    m->n_lora = m->n_lora_cap = 0;
}
