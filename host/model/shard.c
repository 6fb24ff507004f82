#include "model/shard.h"

#include <string.h>

#include "base/checked.h"
#include "gr/dtype.h"
#include "gr/status.h"

/* ---- shares ---- */

/* Divided dimensions that matrices can have as columns. */
enum kind { HEADS, FF, FF_EXP, FF_SHEXP, N_KIND };

static enum kind kind_of(enum gr_dim columns)
{
    switch (columns) {
    case GR_D_O:
    case GR_D_O_MLA:
        return HEADS;
    case GR_D_FF:
        return FF;
    case GR_D_FF_EXP:
        return FF_EXP;
    case GR_D_FF_SHEXP:
        return FF_SHEXP;
    default:
        return N_KIND;
    }
}

/* Matrices with columns of a kind: the layers that have them, and their largest block size. Block
 * sizes are powers of two. */
struct columns {
    bool there[GR_MAX_LAYER];
    int32_t block; /* 0: there are none */
};

static void find_columns(const struct gr_model *m, struct columns columns[N_KIND])
{
    memset(columns, 0, N_KIND * sizeof *columns);
    for (int i = 0; i < m->arch->n_spec; i++) {
        const struct gr_tensor_spec *spec = &m->arch->spec[i];
        enum kind kind = kind_of(spec->dim[0]);
        for (int32_t il = 0; il < m->hp.n_layer && kind < N_KIND; il++) {
            const struct gr_ten *w = &m->weight[(size_t)(il + 1) * GR_N_SLOT + spec->slot];
            bool attends = kind != HEADS || m->hp.attn.n_head_kv[il] > 0;
            if (!gr_ten_is(w) || !attends || !gr_spec_applies(&m->hp, spec, il))
                continue;
            columns[kind].there[il] = true;
            columns[kind].block =
                GR_MAX(columns[kind].block, (int32_t)gr_dtype_find(w->dtype)->block);
            for (int32_t k = 0; k < m->n_lora; k++) { /* A has the same columns */
                const struct gr_ten *a = &m->lora[k].a[(size_t)(il + 1) * GR_N_SLOT + spec->slot];
                if (gr_ten_is(a))
                    columns[kind].block =
                        GR_MAX(columns[kind].block, (int32_t)gr_dtype_find(a->dtype)->block);
            }
        }
    }
}

/* Share i of n_share of n items, in units of `unit` items, the last of which may be smaller; if
 * units do not divide evenly, the first shares have one more. */
static struct gr_extent share_of(int32_t n, int32_t unit, int32_t n_share, int32_t i)
{
    int32_t units = (n + unit - 1) / unit, each = units / n_share, more = units % n_share;
    int32_t lo = i * each + GR_MIN(i, more), hi = lo + each + (i < more);
    return (struct gr_extent){GR_MIN(lo * unit, n), GR_MIN(hi * unit, n)};
}

/* The largest possible number of shares. */
static int32_t most_shares(int32_t n, int32_t unit)
{
    return (n + unit - 1) / unit;
}

static int refuse(const struct gr_shard *s, int il, const char *what, int32_t most)
{
    return gr_fail(GR_E_UNSUPPORTED,
                   "architecture %s, layer %d: %s can be split by tensors among %d at most, not "
                   "%d; a smaller --shards, or -sm layer",
                   s->model->arch->name, il, what, most, s->share.n_shard);
}

static int32_t gcd(int32_t a, int32_t b)
{
    while (b) {
        int32_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* Divides the heads of a layer whose results are multiplied by columns in blocks of `block`. Query
 * heads stay with their key/value head. */
static int share_heads(struct gr_shard *s, int il, int32_t block)
{
    const struct gr_hparams *hp = &s->model->hp;
    struct gr_share *share = &s->share;
    int32_t n = share->n_shard, n_kv = hp->attn.n_head_kv[il], group = hp->attn.n_head[il] / n_kv;
    int32_t d = hp->mla.d_v > 0 ? hp->mla.d_v : hp->attn.d_v, unit = block / gcd(block, d);
    if (n <= n_kv) {
        int32_t unit_kv = unit / gcd(unit, group), most = most_shares(n_kv, unit_kv);
        struct gr_extent kv = share_of(n_kv, unit_kv, n, share->shard);
        share->head_kv[il] = kv;
        share->head[il] = (struct gr_extent){kv.lo * group, kv.hi * group};
        return n > most ? refuse(s, il, "heads", most) : 0;
    }
    if (n_kv > 1 && group % unit)
        return refuse(s, il, "heads", most_shares(n_kv, unit / gcd(unit, group)));
    int32_t g = 0;
    while (share_of(n, 1, n_kv, g).hi <= share->shard)
        g++;
    struct gr_extent mates = share_of(n, 1, n_kv, g); /* shards with this key/value head */
    if (mates.hi - mates.lo > most_shares(group, unit))
        return refuse(s, il, "heads", n_kv * most_shares(group, unit));
    struct gr_extent q = share_of(group, unit, mates.hi - mates.lo, share->shard - mates.lo);
    share->head_kv[il] = (struct gr_extent){g, g + 1};
    share->head[il] = (struct gr_extent){g * group + q.lo, g * group + q.hi};
    return 0;
}

/* Divides the n columns of a feed-forward part; all n if no matrix of the layer has them. */
static int share_columns(struct gr_shard *s, int il, const char *what, int32_t n,
                         const struct columns *c, struct gr_extent *out)
{
    const struct gr_share *share = &s->share;
    *out = (struct gr_extent){0, n};
    if (c->block == 0 || !c->there[il])
        return 0;
    if (most_shares(n, c->block) < share->n_shard)
        return refuse(s, il, what, most_shares(n, c->block));
    *out = share_of(n, c->block, share->n_shard, share->shard);
    return 0;
}

static int32_t length(struct gr_extent r)
{
    return r.hi - r.lo;
}

static int share_layer(struct gr_shard *s, int il, const struct columns columns[N_KIND])
{
    const struct gr_hparams *hp = &s->model->hp;
    struct gr_share *share = &s->share;
    struct gr_extent exp, shexp;
    share->head[il] = (struct gr_extent){0, hp->attn.n_head[il]};
    share->head_kv[il] = (struct gr_extent){0, hp->attn.n_head_kv[il]};
    int rc = columns[HEADS].there[il] ? share_heads(s, il, columns[HEADS].block) : 0;
    if (!rc)
        rc = share_columns(s, il, "the feed-forward part", hp->ff.n_ff[il], &columns[FF],
                           &share->ff[il]);
    if (!rc)
        rc = share_columns(s, il, "the experts", hp->moe.n_ff_exp, &columns[FF_EXP], &exp);
    if (!rc)
        rc = share_columns(s, il, "the shared experts", hp->moe.n_ff_shexp, &columns[FF_SHEXP],
                           &shexp);
    if (rc)
        return rc;
    if (columns[FF_EXP].there[il])
        share->ff_exp = exp;
    if (columns[FF_SHEXP].there[il])
        share->ff_shexp = shexp;
    s->hp.attn.n_head[il] = length(share->head[il]);
    s->hp.attn.n_head_kv[il] = length(share->head_kv[il]);
    s->hp.ff.n_ff[il] = length(share->ff[il]);
    return 0;
}

static int share_vocab(struct gr_shard *s)
{
    int32_t n = s->model->hp.n_vocab, each = (n + s->share.n_shard - 1) / s->share.n_shard;
    int32_t lo = s->share.shard * each;
    s->share.vocab = (struct gr_extent){lo, GR_MIN(lo + each, n)};
    if ((s->share.n_shard - 1) * each < n)
        return 0;
    return gr_fail(GR_E_UNSUPPORTED, "a vocabulary of %d tokens cannot be split among %d", n,
                   s->share.n_shard);
}

static int make_shares(struct gr_shard *s)
{
    const struct gr_model *m = s->model;
    struct columns columns[N_KIND];
    int rc = 0;
    find_columns(m, columns);
    bool any = columns[HEADS].block || columns[FF].block || columns[FF_EXP].block;
    if (!any)
        return gr_fail(GR_E_UNSUPPORTED, "architecture %s cannot be split by tensors; -sm layer",
                       m->arch->name);
    s->share.ff_exp = (struct gr_extent){0, m->hp.moe.n_ff_exp};
    s->share.ff_shexp = (struct gr_extent){0, m->hp.moe.n_ff_shexp};
    for (int32_t il = 0; il < m->hp.n_layer && !rc; il++)
        rc = share_layer(s, il, columns);
    s->hp.moe.n_ff_exp = length(s->share.ff_exp);
    s->hp.moe.n_ff_shexp = length(s->share.ff_shexp);
    return rc ? rc : share_vocab(s);
}

/* Computes the shares of all shards, this one last. */
static int make_all_shares(struct gr_shard *s)
{
    int32_t own = s->share.shard, n = s->share.n_shard, n_layer = s->model->hp.n_layer;
    int rc = 0;
    s->kv = gr_calloc((size_t)n * (size_t)n_layer, sizeof *s->kv);
    if (!s->kv)
        return GR_E_NOMEM_HOST;
    for (int32_t k = 1; k <= n && !rc; k++) {
        s->share.shard = (own + k) % n;
        s->hp = s->model->hp;
        rc = make_shares(s);
        memcpy(s->kv + s->share.shard * n_layer, s->share.head_kv, (size_t)n_layer * sizeof *s->kv);
    }
    return rc;
}

static struct gr_extent columns_of(const struct gr_shard *s, int32_t i, int il, int32_t width)
{
    struct gr_extent h = s->kv[i * s->model->hp.n_layer + il];
    return (struct gr_extent){h.lo * width, h.hi * width};
}

struct gr_extent gr_shard_k(const struct gr_shard *s, int32_t i, int il)
{
    return columns_of(s, i, il, s->model->hp.attn.d_k);
}

struct gr_extent gr_shard_v(const struct gr_shard *s, int32_t i, int il)
{
    return columns_of(s, i, il, s->model->hp.attn.d_v);
}

/* ---- pieces ---- */

/* A shard's part of a dimension of a weight: ranges of the file's, to be concatenated. */
struct pieces {
    int n;
    struct {
        int64_t lo, hi;
    } at[3];
};

static void add(struct pieces *p, struct gr_extent r, int64_t width, int64_t offset)
{
    p->at[p->n].lo = offset + r.lo * width, p->at[p->n].hi = offset + r.hi * width;
    p->n++;
}

static int64_t count(const struct pieces *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->n; i++)
        n += p->at[i].hi - p->at[i].lo;
    return n;
}

static void add_qkv(struct pieces *p, const struct gr_share *s, int il)
{
    const struct gr_hparams *hp = s->whole;
    int64_t q = (int64_t)hp->attn.n_head[il] * hp->attn.d_k;
    int64_t k = (int64_t)hp->attn.n_head_kv[il] * hp->attn.d_k;
    int64_t apart = hp->attn.qkv_apart;
    add(p, s->head[il], hp->attn.d_k, 0);
    add(p, s->head_kv[il], hp->attn.d_k, apart ? apart : q);
    add(p, s->head_kv[il], hp->attn.d_v, apart ? 2 * apart : q + k);
}

/* The part of dimension d of a weight; dimensions other than those listed are whole. */
static struct pieces pieces_of(const struct gr_share *s, enum gr_dim d, int il)
{
    const struct gr_hparams *hp = s->whole;
    struct gr_extent head = s->head[il], kv = s->head_kv[il], ff = s->ff[il];
    struct pieces p = {0};
    if (d == GR_D_Q || d == GR_D_Q_2)
        add(&p, head, d == GR_D_Q ? hp->attn.d_k : 2 * (int64_t)hp->attn.d_k, 0);
    else if (d == GR_D_Q_MLA)
        add(&p, head, hp->mla.d_k, 0);
    else if (d == GR_D_KV_B)
        add(&p, head, hp->mla.d_k - hp->rope.n_rot + hp->mla.d_v, 0);
    else if (d == GR_D_GATE)
        add(&p, head, hp->attn.d_gate, 0);
    else if (d == GR_D_O && hp->attn.n_head_kv[il] > 0)
        add(&p, head, hp->attn.d_v, 0);
    else if (d == GR_D_O_MLA)
        add(&p, head, hp->mla.d_v, 0);
    else if (d == GR_D_HEADS)
        add(&p, head, 1, 0);
    else if (d == GR_D_K || d == GR_D_V)
        add(&p, kv, d == GR_D_K ? hp->attn.d_k : hp->attn.d_v, 0);
    else if (d == GR_D_HEADS_KV)
        add(&p, kv, 1, 0);
    else if (d == GR_D_QKV || d == GR_D_QKV_3)
        add_qkv(&p, s, il);
    else if (d == GR_D_FF || d == GR_D_FF_2)
        add(&p, ff, 1, 0);
    else if (d == GR_D_FF_EXP || d == GR_D_FF_EXP_2)
        add(&p, s->ff_exp, 1, 0);
    else if (d == GR_D_FF_SHEXP || d == GR_D_FF_SHEXP_2)
        add(&p, s->ff_shexp, 1, 0);
    else
        add(&p, (struct gr_extent){0, 1}, gr_dim_value(hp, d, il), 0);
    if (d == GR_D_FF_2) /* gate and up */
        add(&p, ff, 1, hp->ff.n_ff[il]);
    if (d == GR_D_FF_EXP_2)
        add(&p, s->ff_exp, 1, hp->moe.n_ff_exp);
    if (d == GR_D_FF_SHEXP_2)
        add(&p, s->ff_shexp, 1, hp->moe.n_ff_shexp);
    return p;
}

/* A shard's part of a tensor: cols, rows, batch. */
struct part {
    struct pieces dim[3];
};

/* The part of a tensor with dimensions dim[0 .. n_dim). */
static struct part part_of(const struct gr_share *s, const enum gr_dim *dim, int n_dim, int il)
{
    struct part p;
    for (int i = 0; i < 3; i++)
        p.dim[i] = i < n_dim ? pieces_of(s, dim[i], il) : (struct pieces){.n = 1, .at[0] = {0, 1}};
    return p;
}

/* ---- weights ---- */

static int64_t bytes_of(const struct gr_ten *t, int64_t cols)
{
    return (int64_t)gr_row_bytes(t->dtype, (uint64_t)cols);
}

/* Returns whether a part can be a view: every dimension is one range, and matrices follow each
 * other whole. */
static bool is_view(const struct gr_ten *from, const struct part *p)
{
    const struct pieces *d = p->dim;
    return d[0].n == 1 && d[1].n == 1 && d[2].n == 1 &&
           (count(&d[1]) == from->rows || count(&d[2]) == 1);
}

static void describe(const struct gr_ten *from, const struct part *p, struct gr_ten *to)
{
    const struct pieces *d = p->dim;
    *to = *from;
    to->cols = count(&d[0]), to->rows = count(&d[1]), to->batch = count(&d[2]);
    to->data = NULL;
    if (is_view(from, p))
        to->data =
            (char *)gr_ten_row(from, d[2].at[0].lo, d[1].at[0].lo) + bytes_of(from, d[0].at[0].lo);
    else
        to->row_bytes = bytes_of(from, to->cols);
}

/* Copies a shard's part of a row; returns the end of the copy. */
static char *copy_row(const struct gr_ten *from, const struct pieces *cols, const char *row,
                      char *to)
{
    for (int i = 0; i < cols->n; i++) {
        int64_t lo = bytes_of(from, cols->at[i].lo), n = bytes_of(from, cols->at[i].hi) - lo;
        memcpy(to, row + lo, (size_t)n);
        to += n;
    }
    return to;
}

static int fill(struct gr_shard *s, const struct gr_ten *from, const struct part *p,
                struct gr_ten *to)
{
    const struct pieces *batch = &p->dim[2], *rows = &p->dim[1];
    void **slot = gr_vec_push(&s->owned, sizeof *slot);
    char *at = slot ? gr_calloc((size_t)(to->batch * to->rows), (size_t)to->row_bytes) : NULL;
    if (slot)
        *slot = at;
    if (!at)
        return GR_E_NOMEM_HOST;
    to->data = at;
    for (int64_t b = batch->at[0].lo; b < batch->at[0].hi; b++)
        for (int i = 0; i < rows->n; i++)
            for (int64_t r = rows->at[i].lo; r < rows->at[i].hi; r++)
                at = copy_row(from, &p->dim[0], gr_ten_row(from, b, r), at);
    return 0;
}

/* Function called with each tensor of the model, the shard's part of it, and the shard's tensor. */
typedef int visit_fn(struct gr_shard *s, const struct gr_ten *from, const struct part *p,
                     struct gr_ten *to);

static int visit_describe(struct gr_shard *s, const struct gr_ten *from, const struct part *p,
                          struct gr_ten *to)
{
    (void)s;
    describe(from, p, to);
    return 0;
}

static int visit_fill(struct gr_shard *s, const struct gr_ten *from, const struct part *p,
                      struct gr_ten *to)
{
    return gr_ten_is(to) && !to->data ? fill(s, from, p, to) : 0;
}

static struct pieces whole(int64_t n)
{
    return (struct pieces){.n = 1, .at[0] = {0, n}};
}

/* Visits the adapters' matrices: A is divided by the weight's columns, B by its rows. */
static int visit_lora(struct gr_shard *s, const struct part *weight, size_t at, visit_fn *visit)
{
    int rc = 0;
    for (int32_t i = 0; i < s->model->n_lora && !rc; i++) {
        const struct gr_lora *from = &s->model->lora[i];
        struct part a = *weight, b = *weight;
        if (!gr_ten_is(&from->a[at]))
            continue;
        a.dim[1] = whole(from->a[at].rows), b.dim[0] = whole(from->b[at].cols);
        rc = visit(s, &from->a[at], &a, &s->lora[i].a[at]);
        if (!rc)
            rc = visit(s, &from->b[at], &b, &s->lora[i].b[at]);
    }
    return rc;
}

static int visit_spec(struct gr_shard *s, const struct gr_tensor_spec *spec, int il,
                      visit_fn *visit)
{
    size_t at = (size_t)(il + 1) * GR_N_SLOT + spec->slot;
    const struct gr_ten *weight = &s->model->weight[at], *bias = &s->model->bias[at];
    int n_dim = 0;
    while (n_dim < 3 && spec->dim[n_dim] != GR_D_NONE)
        n_dim++;
    if (!gr_ten_is(weight) || !gr_spec_applies(&s->model->hp, spec, il))
        return 0;
    struct part p = part_of(&s->share, spec->dim, n_dim, il);
    int rc = visit(s, weight, &p, &s->weight[at]);
    if (!rc)
        rc = visit_lora(s, &p, at, visit);
    if (rc || !gr_ten_is(bias))
        return rc;
    /* one number per row, or per element of a vector */
    bool of_sum = n_dim > 1 && count(&p.dim[0]) != weight->cols;
    p = part_of(&s->share, spec->dim + (n_dim > 1), n_dim > 1 ? n_dim - 1 : n_dim, il);
    if (of_sum && s->share.shard > 0)
        s->bias[at] = (struct gr_ten){0};
    else
        rc = visit(s, bias, &p, &s->bias[at]);
    return rc;
}

static int visit_layers(struct gr_shard *s, int32_t lo, int32_t hi, visit_fn *visit)
{
    const struct gr_arch *arch = s->model->arch;
    int rc = 0;
    for (int i = 0; i < arch->n_spec; i++)
        for (int32_t il = lo; il < hi && !rc; il++)
            rc = visit_spec(s, &arch->spec[i], il, visit);
    return rc;
}

/* Divides the output matrix by tokens. */
static void share_output(struct gr_shard *s)
{
    struct pieces one = {.n = 1, .at[0] = {0, 1}}, rows = {0};
    struct gr_ten *w = &s->weight[GR_W_OUTPUT], *b = &s->bias[GR_W_OUTPUT];
    add(&rows, s->share.vocab, 1, 0);
    struct part p = {.dim = {{.n = 1, .at[0] = {0, w->cols}}, rows, one}};
    describe(&s->model->weight[GR_W_OUTPUT], &p, w);
    p = (struct part){.dim = {rows, one, one}};
    if (gr_ten_is(b))
        describe(&s->model->bias[GR_W_OUTPUT], &p, b);
    for (int32_t i = 0; i < s->model->n_lora; i++) {
        const struct gr_ten *from = &s->model->lora[i].b[GR_W_OUTPUT];
        p = (struct part){.dim = {whole(from->cols), rows, one}};
        if (gr_ten_is(from))
            describe(from, &p, &s->lora[i].b[GR_W_OUTPUT]);
    }
}

static int take_weights(struct gr_shard *s)
{
    const struct gr_model *m = s->model;
    size_t n = (size_t)(m->hp.n_layer + 1) * GR_N_SLOT;
    s->weight = gr_calloc(n, sizeof *s->weight);
    s->bias = gr_calloc(n, sizeof *s->bias);
    s->lora = m->n_lora ? gr_lora_new(m->n_lora, m->hp.n_layer) : NULL;
    if (!s->weight || !s->bias || (m->n_lora && !s->lora))
        return GR_E_NOMEM_HOST;
    for (int32_t i = 0; i < m->n_lora; i++) {
        s->lora[i].alpha = m->lora[i].alpha;
        memcpy(s->lora[i].a, m->lora[i].a, n * sizeof *s->lora[i].a);
        memcpy(s->lora[i].b, m->lora[i].b, n * sizeof *s->lora[i].b);
    }
    memcpy(s->weight, m->weight, n * sizeof *s->weight);
    memcpy(s->bias, m->bias, n * sizeof *s->bias);
    share_output(s);
    return visit_layers(s, 0, m->hp.n_layer, visit_describe);
}

int gr_shard_new(struct gr_shard **out, const struct gr_model *m, int32_t shard, int32_t n_shard)
{
    struct gr_shard *s = *out = gr_calloc(1, sizeof *s);
    if (!s)
        return GR_E_NOMEM_HOST;
    s->model = m;
    s->share.shard = shard, s->share.n_shard = n_shard, s->share.whole = &m->hp;
    int rc = make_all_shares(s);
    if (!rc)
        rc = take_weights(s);
    if (!rc)
        rc = gr_model_try_graph(m, &s->hp, &s->share, s->weight, s->bias, s->lora);
    if (rc)
        gr_shard_free(out);
    return rc;
}

int gr_shard_fill(struct gr_shard *s, int32_t lo, int32_t hi)
{
    return visit_layers(s, lo, GR_MIN(hi, s->model->hp.n_layer), visit_fill);
}

void gr_shard_free(struct gr_shard **shard)
{
    struct gr_shard *s = *shard;
    if (!s)
        return;
    for (size_t i = 0; i < s->owned.n; i++)
        gr_free(((void **)s->owned.data)[i]);
    gr_vec_fini(&s->owned);
    gr_free(s->kv);
    gr_free(s->weight);
    gr_free(s->bias);
    gr_lora_free(&s->lora, s->model->n_lora);
    gr_free(s);
    *shard = NULL;
}
