/* LINEAR_ATTN, by columns. */
#include <math.h>

#include "cpu/fast/columns.h"

/* A block of columns of head h. */
struct block {
    const struct gr_args_linear_attn *a;
    int64_t h, d_k;
    float *s; /* [d_k, VL] */
    /* of a token, [d_k], room for whole vectors: query, key, decay, erased key, rate of erasure,
     * and the factor of k v in the token's own output */
    float *q, *k, *decay, *erase, *rate, *seen;
};

static vf decay_of(const struct block *b, vf x)
{
    const struct gr_args_linear_attn *a = b->a;
    switch ((enum gr_decay_kind)a->decay) {
    case GR_DECAY_SLOPE:
        return vf_set(expf(-a->slope * exp2f(-8 * (float)(b->h + 1) / (float)a->n_head)));
    case GR_DECAY_EXP:
        return vf_exp(vf_set(0) - vf_exp(x));
    case GR_DECAY_SIGMOID:
        break;
    }
    return vf_exp(vf_set(-0.606531F) * vf_sigmoid(x));
}

static void erasure(const struct block *b, int64_t t)
{
    const struct gr_args_linear_attn *a = b->a;
    const float *e = gr_cpu_f32(&a->erase, t) + b->h * b->d_k;
    const float *rate = gr_cpu_f32(&a->rate, t) + b->h * b->d_k;
    vf f = vf_set((float)(1 / sqrt(squares(e, b->d_k) + 1e-24)));
    for (int64_t i = 0; i < b->d_k; i += VL) {
        int64_t n = GR_MIN(VL, b->d_k - i);
        vf unit = vf_load_n(e + i, n) * f;
        vf_store(b->erase + i, unit);
        vf_store(b->rate + i, unit * vf_load_n(rate + i, n));
    }
}

static void prepare(const struct block *b, int64_t t, int64_t kv)
{
    const struct gr_args_linear_attn *a = b->a;
    int64_t col = b->h * b->d_k;
    const float *q = gr_cpu_f32(&a->q, t) + col, *k = gr_cpu_f32(&a->k, t) + kv * b->d_k;
    for (int64_t i = 0; i < b->d_k; i += VL) {
        int64_t n = GR_MIN(VL, b->d_k - i);
        vf x = gr_ten_is(&a->w) ? vf_load_n(gr_cpu_f32(&a->w, t) + col + i, n) : vf_set(0);
        if (gr_ten_is(&a->w_bias))
            x = x + vf_load_n(gr_cpu_f32(&a->w_bias, 0) + col + i, n);
        vf decay = decay_of(b, x), key = vf_load_n(k + i, n);
        if (a->rest)
            key = key * (vf_set(1) - decay);
        vf_store(b->decay + i, decay);
        vf_store(b->k + i, key);
        vf_store(b->q + i, vf_load_n(q + i, n) * vf_set(a->scale));
        if (gr_ten_is(&a->first))
            vf_store(b->seen + i, key * vf_load_n(gr_cpu_f32(&a->first, 0) + col + i, n));
    }
    if (gr_ten_is(&a->erase))
        erasure(b, t);
}

/* Returns the columns' product with the erased key. Four partial sums hide the latency of
 * additions. */
static vf known(const struct block *b)
{
    vf sum[4] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
    for (int64_t i = 0; i < b->d_k; i++)
        sum[i % 4] = vf_fma(vf_load(b->s + i * VL), vf_set(b->erase[i]), sum[i % 4]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Updates row i of the columns with v; returns the value that the query is multiplied with. */
GR_INLINE vf row(const struct block *b, int64_t i, vf v, bool erases, vf gone, bool first)
{
    float *at = b->s + i * VL;
    vf before = vf_load(at), s = vf_fma(vf_set(b->decay[i]), before, vf_set(b->k[i]) * v);
    if (erases)
        s = s - vf_set(b->rate[i]) * gone;
    vf_store(at, s);
    return first ? vf_fma(vf_set(b->seen[i]), v, before) : s;
}

GR_INLINE vf take_in(const struct block *b, vf v, bool erases, bool first)
{
    vf y[4] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
    vf gone = erases ? known(b) : vf_set(0);
    for (int64_t i = 0; i < b->d_k; i += 4)
        GR_UNROLL
    for (int j = 0; j < 4; j++) {
        if (i + j >= b->d_k)
            break;
        y[j] = vf_fma(row(b, i + j, v, erases, gone, first), vf_set(b->q[i + j]), y[j]);
    }
    return (y[0] + y[1]) + (y[2] + y[3]);
}

static void run_block(const struct block *b, const struct columns_of *u, const struct columns *c)
{
    const struct gr_args_linear_attn *a = b->a;
    int64_t kv = b->h / (a->n_head / a->n_head_kv);
    bool erases = gr_ten_is(&a->erase), first = gr_ten_is(&a->first);
    columns_load(u, c, b->s);
    for (int64_t t = c->seq.lo; t < c->seq.lo + c->seq.n; t++) {
        vf v = vf_load_n(gr_cpu_f32(&a->v, t) + kv * u->d_v + c->first, c->n);
        prepare(b, t, kv);
        vf y = erases  ? take_in(b, v, true, first)
               : first ? take_in(b, v, false, true)
                       : take_in(b, v, false, false);
        vf_store_n(gr_cpu_f32(&a->y, t) + b->h * u->d_v + c->first, y, c->n);
    }
    columns_store(u, c, b->s);
}

static void linear_attn(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_linear_attn *a = &node->a.linear_attn;
    struct columns_of u = {&a->state,
                           &a->src,
                           &a->dst,
                           a->v.rows,
                           a->n_head,
                           a->q.cols / a->n_head,
                           a->v.cols / a->n_head_kv};
    int64_t pad = GR_PAD(u.d_k, VL);
    float *local = work->local;
    struct block b = {.a = a,
                      .d_k = u.d_k,
                      .q = local,
                      .k = local + pad,
                      .decay = local + 2 * pad,
                      .erase = local + 3 * pad,
                      .rate = local + 4 * pad,
                      .seen = local + 5 * pad,
                      .s = local + 6 * pad};
    struct gr_cpu_share s = columns_share(&u, work);
    for (int64_t i = s.lo; i < s.hi; i++) {
        struct columns c = columns_at(&u, i);
        b.h = c.h;
        run_block(&b, &u, &c);
    }
}

static struct gr_cpu_need linear_attn_need(const struct gr_node *node)
{
    const struct gr_args_linear_attn *a = &node->a.linear_attn;
    int64_t d_k = a->q.cols / a->n_head;
    return (struct gr_cpu_need){0, (size_t)(6 * GR_PAD(d_k, VL) + d_k * VL) * sizeof(float)};
}

const struct gr_cpu_impl FN(linear_attn) = {linear_attn, linear_attn_need, NULL};
