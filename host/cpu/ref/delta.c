/* DELTA_RULE: Yang, Kautz, Hatamizadeh 2024 (arXiv 2412.06464). A head's state S [d_k, d_v] maps
 * keys to values; beta is the fraction of S's previous value for k that is replaced by v. */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"

struct head {
    const struct gr_args_delta_rule *a;
    int64_t h, d_k, d_v;
    float *s;      /* [d_k, d_v] */
    double *q, *k; /* [d_k], normalised */
    double *decay; /* [d_k] */
};

static void unit(const struct head *h, const struct gr_ten *x, int64_t t, double *y)
{
    const struct gr_args_delta_rule *a = h->a;
    int64_t head = a->tiled ? h->h % a->n_head_k : h->h / (a->n_head / a->n_head_k);
    const float *v = gr_cpu_f32(x, t) + head * h->d_k;
    double length = sqrt(gr_ref_dot(v, v, h->d_k) + (double)a->eps);
    for (int64_t i = 0; i < h->d_k; i++)
        y[i] = (double)v[i] / length;
}

/* The exponent of a decay. */
static double exponent(const struct head *h, double x)
{
    const struct gr_args_delta_rule *a = h->a;
    double rate = (double)gr_cpu_f32(&a->a, 0)[h->h];
    if (a->bound == 0)
        return rate * gr_ref_softplus(x);
    return (double)a->bound * gr_ref_act_of(GR_SIGMOID, (double)a->slope * rate * x, 0, 0);
}

static void decays(const struct head *h, int64_t t)
{
    const struct gr_args_delta_rule *a = h->a;
    int64_t per = a->alpha.cols / a->n_head; /* 1 or d_k */
    for (int64_t i = 0; i < h->d_k; i++) {
        int64_t at = h->h * per + i % per;
        double x = (double)gr_cpu_f32(&a->alpha, t)[at];
        if (gr_ten_is(&a->dt_bias))
            x += (double)gr_cpu_f32(&a->dt_bias, 0)[at];
        h->decay[i] = exp(exponent(h, x));
    }
}

/* Updates column j of the state: decay, then value v; returns its product with q. */
static double column(const struct head *h, int64_t j, double v, double beta)
{
    double known = 0, y = 0;
    for (int64_t i = 0; i < h->d_k; i++)
        known += h->decay[i] * (double)h->s[i * h->d_v + j] * h->k[i];
    for (int64_t i = 0; i < h->d_k; i++) {
        float *s = &h->s[i * h->d_v + j];
        *s = (float)(h->decay[i] * (double)*s + h->k[i] * beta * (v - known));
        y += (double)*s * h->q[i];
    }
    return y / sqrt((double)h->d_k);
}

static void run_head(const struct head *h, const struct gr_cpu_seq *q)
{
    const struct gr_args_delta_rule *a = h->a;
    size_t bytes = (size_t)(h->d_k * h->d_v) * sizeof(float);
    if (!q->from)
        memset(h->s, 0, bytes);
    else if (q->from != q->to)
        memcpy(h->s, q->from + h->h * h->d_k * h->d_v, bytes);
    for (int64_t t = q->lo; t < q->lo + q->n; t++) {
        const float *v = gr_cpu_f32(&a->v, t) + h->h * h->d_v;
        float *y = gr_cpu_f32(&a->y, t) + h->h * h->d_v;
        double beta = gr_ref_act_of(GR_SIGMOID, (double)gr_cpu_f32(&a->beta, t)[h->h], 0, 0);
        unit(h, &a->q, t, h->q);
        unit(h, &a->k, t, h->k);
        decays(h, t);
        for (int64_t j = 0; j < h->d_v; j++)
            y[j] = (float)column(h, j, (double)v[j], beta);
    }
}

static void delta_rule(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_delta_rule *a = &node->a.delta_rule;
    int64_t d_k = a->q.cols / a->n_head_k, d_v = a->v.cols / a->n_head;
    double *local = work->local;
    struct head h = {
        .a = a, .d_k = d_k, .d_v = d_v, .q = local, .k = local + d_k, .decay = local + 2 * d_k};
    struct gr_cpu_share s = gr_cpu_share(a->src.cols * a->n_head, 1, work);
    for (int64_t i = s.lo; i < s.hi; i++) {
        struct gr_cpu_seq q = gr_cpu_seq(&a->state, &a->src, &a->dst, a->v.rows, i / a->n_head);
        h.h = i % a->n_head;
        h.s = q.to + h.h * d_k * d_v;
        run_head(&h, &q);
    }
}

static struct gr_cpu_need delta_rule_need(const struct gr_node *node)
{
    const struct gr_args_delta_rule *a = &node->a.delta_rule;
    return (struct gr_cpu_need){0, 3 * (size_t)(a->q.cols / a->n_head_k) * sizeof(double)};
}

const struct gr_cpu_impl gr_ref_delta_rule = {delta_rule, delta_rule_need, NULL};
