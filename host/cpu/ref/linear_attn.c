/* LINEAR_ATTN: Qin et al. 2024 (arXiv 2401.04658), Peng et al. 2024 (arXiv 2404.05892), Peng et al.
 * 2025 (arXiv 2503.14456). TOKEN_SHIFT: the previous token's row. The state is rounded to f32 after
 * every token, so that results do not depend on how a sequence is divided into steps. */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"

struct head {
    const struct gr_args_linear_attn *a;
    int64_t h, d_k, d_v;
    float *s; /* [d_k, d_v] */
    /* of a token, [d_k]: query, key, decay, erased key, rate of erasure */
    double *q, *k, *decay, *erase, *rate;
};

static double decay_of(const struct gr_args_linear_attn *a, int64_t h, double x)
{
    switch ((enum gr_decay_kind)a->decay) {
    case GR_DECAY_SLOPE:
        return exp(-(double)a->slope * exp2(-8 * (double)(h + 1) / (double)a->n_head));
    case GR_DECAY_EXP:
        return exp(-exp(x));
    case GR_DECAY_SIGMOID:
        break;
    }
    return exp(-0.606531 * gr_ref_act_of(GR_SIGMOID, x, 0, 0));
}

static void erasure(const struct head *h, int64_t t)
{
    const struct gr_args_linear_attn *a = h->a;
    const float *e = gr_cpu_f32(&a->erase, t) + h->h * h->d_k;
    const float *rate = gr_cpu_f32(&a->rate, t) + h->h * h->d_k;
    double length = sqrt(gr_ref_dot(e, e, h->d_k) + 1e-24);
    for (int64_t i = 0; i < h->d_k; i++)
        h->erase[i] = (double)e[i] / length, h->rate[i] = (double)rate[i] * h->erase[i];
}

static void prepare(const struct head *h, int64_t t, int64_t kv)
{
    const struct gr_args_linear_attn *a = h->a;
    const float *q = gr_cpu_f32(&a->q, t) + h->h * h->d_k;
    const float *k = gr_cpu_f32(&a->k, t) + kv * h->d_k;
    for (int64_t i = 0; i < h->d_k; i++) {
        double x = gr_ten_is(&a->w) ? (double)gr_cpu_f32(&a->w, t)[h->h * h->d_k + i] : 0;
        if (gr_ten_is(&a->w_bias))
            x += (double)gr_cpu_f32(&a->w_bias, 0)[h->h * h->d_k + i];
        h->decay[i] = decay_of(a, h->h, x);
        h->q[i] = (double)q[i], h->k[i] = (double)k[i] * (a->rest ? 1 - h->decay[i] : 1);
        h->erase[i] = h->rate[i] = 0;
    }
    if (gr_ten_is(&a->erase))
        erasure(h, t);
}

/* Updates column j of the state with v; returns its product with q. */
static double column(const struct head *h, int64_t j, double v)
{
    const float *first =
        gr_ten_is(&h->a->first) ? gr_cpu_f32(&h->a->first, 0) + h->h * h->d_k : NULL;
    double known = 0, y = 0;
    for (int64_t i = 0; i < h->d_k; i++)
        known += (double)h->s[i * h->d_v + j] * h->erase[i];
    for (int64_t i = 0; i < h->d_k; i++) {
        float *s = &h->s[i * h->d_v + j];
        double before = (double)*s;
        *s = (float)(h->decay[i] * before + h->k[i] * v - h->rate[i] * known);
        y += h->q[i] * (first ? before + (double)first[i] * h->k[i] * v : (double)*s);
    }
    return y * (double)h->a->scale;
}

static void run_head(const struct head *h, const struct gr_cpu_seq *q)
{
    const struct gr_args_linear_attn *a = h->a;
    size_t bytes = (size_t)(h->d_k * h->d_v) * sizeof(float);
    int64_t kv = h->h / (a->n_head / a->n_head_kv);
    if (!q->from)
        memset(h->s, 0, bytes);
    else if (q->from != q->to)
        memcpy(h->s, q->from + h->h * h->d_k * h->d_v, bytes);
    for (int64_t t = q->lo; t < q->lo + q->n; t++) {
        const float *v = gr_cpu_f32(&a->v, t) + kv * h->d_v;
        float *y = gr_cpu_f32(&a->y, t) + h->h * h->d_v;
        prepare(h, t, kv);
        for (int64_t j = 0; j < h->d_v; j++)
            y[j] = (float)column(h, j, (double)v[j]);
    }
}

static void linear_attn(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_linear_attn *a = &node->a.linear_attn;
    int64_t d_k = a->q.cols / a->n_head, d_v = a->v.cols / a->n_head_kv;
    double *local = work->local;
    struct head h = {.a = a,
                     .d_k = d_k,
                     .d_v = d_v,
                     .q = local,
                     .k = local + d_k,
                     .decay = local + 2 * d_k,
                     .erase = local + 3 * d_k,
                     .rate = local + 4 * d_k};
    struct gr_cpu_share s = gr_cpu_share(a->src.cols * a->n_head, 1, work);
    for (int64_t i = s.lo; i < s.hi; i++) {
        struct gr_cpu_seq q = gr_cpu_seq(&a->state, &a->src, &a->dst, a->v.rows, i / a->n_head);
        h.h = i % a->n_head;
        h.s = q.to + h.h * d_k * d_v;
        run_head(&h, &q);
    }
}

static struct gr_cpu_need linear_attn_need(const struct gr_node *node)
{
    const struct gr_args_linear_attn *a = &node->a.linear_attn;
    return (struct gr_cpu_need){0, 5 * (size_t)(a->q.cols / a->n_head) * sizeof(double)};
}

const struct gr_cpu_impl gr_ref_linear_attn = {linear_attn, linear_attn_need, NULL};

static void token_shift(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_token_shift *a = &node->a.token_shift;
    struct gr_cpu_share s = gr_cpu_share(a->x.cols, GR_CPU_LINE, work);
    for (int64_t i = 0; i < a->src.cols; i++) {
        struct gr_cpu_seq q = gr_cpu_seq(&a->state, &a->src, &a->dst, a->x.rows, i);
        const float *before = q.from;
        for (int64_t t = q.lo; t < q.lo + q.n; t++) {
            const float *x = gr_cpu_f32(&a->x, t);
            float *y = gr_cpu_f32(&a->y, t);
            for (int64_t c = s.lo; c < s.hi; c++)
                y[c] = (before ? before[c] : 0) - x[c];
            before = x;
        }
        for (int64_t c = s.lo; c < s.hi && before != q.to; c++)
            q.to[c] = before ? before[c] : 0;
    }
}

const struct gr_cpu_impl gr_ref_token_shift = {token_shift, NULL, NULL};
