/* DELTA_RULE, by columns. */
#include <math.h>

#include "cpu/fast/columns.h"

/* A block of columns of head h. */
struct block {
    const struct gr_args_delta_rule *a;
    int64_t h, d_k;
    float *s;             /* [d_k, VL] */
    float *q, *k, *decay; /* [d_k], room for whole vectors */
};

/* y = the head's row of x at token t, normalised to unit length, times `scale`. */
static void unit(const struct block *b, const struct gr_ten *x, int64_t t, float scale, float *y)
{
    const struct gr_args_delta_rule *a = b->a;
    int64_t head = a->tiled ? b->h % a->n_head_k : b->h / (a->n_head / a->n_head_k);
    const float *v = gr_cpu_f32(x, t) + head * b->d_k;
    vf f = vf_set((float)((double)scale / sqrt(squares(v, b->d_k) + (double)a->eps)));
    for (int64_t i = 0; i < b->d_k; i += VL)
        vf_store(y + i, vf_load_n(v + i, GR_MIN(VL, b->d_k - i)) * f);
}

static vf decay(const struct gr_args_delta_rule *a, vf rate, vf x)
{
    if (a->bound == 0)
        return vf_exp(rate * vf_softplus(x));
    return vf_exp(vf_set(a->bound) * vf_sigmoid(vf_set(a->slope) * rate * x));
}

static void decays(const struct block *b, int64_t t)
{
    const struct gr_args_delta_rule *a = b->a;
    int64_t per = a->alpha.cols / a->n_head, at = b->h * per;
    const float *alpha = gr_cpu_f32(&a->alpha, t) + at;
    const float *bias = gr_ten_is(&a->dt_bias) ? gr_cpu_f32(&a->dt_bias, 0) + at : NULL;
    vf rate = vf_set(gr_cpu_f32(&a->a, 0)[b->h]);
    for (int64_t i = 0; i < b->d_k; i += VL) {
        int64_t n = GR_MIN(VL, b->d_k - i);
        if (per == 1 && i > 0) {
            vf_store(b->decay + i, vf_load(b->decay));
            continue;
        }
        vf x = per == 1 ? vf_set(*alpha) : vf_load_n(alpha + i, n);
        if (bias)
            x = x + (per == 1 ? vf_set(*bias) : vf_load_n(bias + i, n));
        vf_store(b->decay + i, decay(a, rate, x));
    }
}

/* Updates the state with v and returns the output. Four partial sums each hide the latency of
 * additions. */
static vf take_in(const struct block *b, vf v, float beta)
{
    vf known[4] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
    vf y[4] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
    for (int64_t i = 0; i < b->d_k; i += 4)
        GR_UNROLL
    for (int j = 0; j < 4; j++) {
        if (i + j >= b->d_k)
            break;
        float *at = b->s + (i + j) * VL;
        vf s = vf_load(at) * vf_set(b->decay[i + j]);
        vf_store(at, s);
        known[j] = vf_fma(s, vf_set(b->k[i + j]), known[j]);
    }
    vf take = vf_set(beta) * (v - ((known[0] + known[1]) + (known[2] + known[3])));
    for (int64_t i = 0; i < b->d_k; i += 4)
        GR_UNROLL
    for (int j = 0; j < 4; j++) {
        if (i + j >= b->d_k)
            break;
        float *at = b->s + (i + j) * VL;
        vf s = vf_fma(vf_set(b->k[i + j]), take, vf_load(at));
        vf_store(at, s);
        y[j] = vf_fma(s, vf_set(b->q[i + j]), y[j]);
    }
    return (y[0] + y[1]) + (y[2] + y[3]);
}

static void run_block(const struct block *b, const struct columns_of *u, const struct columns *c)
{
    const struct gr_args_delta_rule *a = b->a;
    int64_t col = c->h * u->d_v + c->first;
    float scale = 1 / sqrtf((float)b->d_k);
    columns_load(u, c, b->s);
    for (int64_t t = c->seq.lo; t < c->seq.lo + c->seq.n; t++) {
        float beta = 1 / (1 + expf(-gr_cpu_f32(&a->beta, t)[b->h]));
        unit(b, &a->q, t, scale, b->q);
        unit(b, &a->k, t, 1, b->k);
        decays(b, t);
        vf y = take_in(b, vf_load_n(gr_cpu_f32(&a->v, t) + col, c->n), beta);
        vf_store_n(gr_cpu_f32(&a->y, t) + col, y, c->n);
    }
    columns_store(u, c, b->s);
}

static void delta_rule(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_delta_rule *a = &node->a.delta_rule;
    struct columns_of u = {&a->state,
                           &a->src,
                           &a->dst,
                           a->v.rows,
                           a->n_head,
                           a->q.cols / a->n_head_k,
                           a->v.cols / a->n_head};
    int64_t pad = GR_PAD(u.d_k, VL);
    float *local = work->local;
    struct block b = {.a = a,
                      .d_k = u.d_k,
                      .q = local,
                      .k = local + pad,
                      .decay = local + 2 * pad,
                      .s = local + 3 * pad};
    struct gr_cpu_share s = columns_share(&u, work);
    for (int64_t i = s.lo; i < s.hi; i++) {
        struct columns c = columns_at(&u, i);
        b.h = c.h;
        run_block(&b, &u, &c);
    }
}

static struct gr_cpu_need delta_rule_need(const struct gr_node *node)
{
    const struct gr_args_delta_rule *a = &node->a.delta_rule;
    int64_t d_k = a->q.cols / a->n_head_k;
    return (struct gr_cpu_need){0, (size_t)(3 * GR_PAD(d_k, VL) + d_k * VL) * sizeof(float)};
}

const struct gr_cpu_impl FN(delta_rule) = {delta_rule, delta_rule_need, NULL};
