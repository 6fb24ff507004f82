/* ATTN: softmax over the cells that a token sees. Rows of K and V outside spans are never read. */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"

/* Items of the list that a token sees: [lo, near) with grouped keys (Self-Extend), [near, hi) with
 * plain ones. */
struct span {
    int64_t lo, near, hi;
};

static struct span span_of(const struct gr_args_attn *a, int64_t t)
{
    const int32_t *s = gr_cpu_i32(&a->span, t);
    return (struct span){s[0], s[1], s[2]};
}

/* Returns the logit of item i for head h of token t. `k` is scratch for a head of K. */
static double logit(const struct gr_args_attn *a, int64_t t, int64_t h, int64_t i, bool far,
                    float *k)
{
    int64_t h_kv = h / (a->n_head / a->n_head_kv);
    gr_ref_load(far ? &a->k_far : &a->k, 0, gr_cpu_i32(&a->list, 0)[i], h_kv * a->d_k, a->d_k, k);
    const float *q = gr_cpu_f32(far ? &a->q_far : &a->q, t) + h * a->d_k;
    double x = gr_ref_dot(q, k, a->d_k) * (double)a->scale;
    if (a->softcap > 0)
        x = (double)a->softcap * tanh(x / (double)a->softcap);
    if (a->max_alibi > 0) {
        double slope = (double)gr_alibi_slope(a->max_alibi, a->n_head_all, a->first_head + h);
        x -=
            slope * fabs((double)gr_cpu_i32(&a->pos, 0)[t] - (double)gr_cpu_i32(&a->key_pos, 0)[i]);
    }
    if (gr_ten_is(&a->rel)) {
        int64_t n = a->rel.rows / 2;
        int64_t d = (int64_t)gr_cpu_i32(&a->key_pos, 0)[i] - gr_cpu_i32(&a->pos, 0)[t];
        x += (double)gr_cpu_f32(&a->rel, n + GR_MAX(-n, GR_MIN(n, d)))[h];
    }
    return x;
}

/* p[i - lo] = exp(logit - largest) for each item of the span. Returns the sum, 0 if it is empty. */
static double weigh(const struct gr_args_attn *a, int64_t t, int64_t h, double *p, float *k)
{
    struct span s = span_of(a, t);
    double max = gr_ten_is(&a->sinks) ? (double)gr_cpu_f32(&a->sinks, 0)[h] : -INFINITY, sum = 0;
    for (int64_t i = s.lo; i < s.hi; i++) {
        p[i - s.lo] = logit(a, t, h, i, i < s.near, k);
        max = fmax(max, p[i - s.lo]);
    }
    for (int64_t i = s.lo; i < s.hi; i++)
        sum += p[i - s.lo] = exp(p[i - s.lo] - max);
    return gr_ten_is(&a->sinks) ? sum + exp((double)gr_cpu_f32(&a->sinks, 0)[h] - max) : sum;
}

static void attn(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_attn *a = &node->a.attn;
    const struct gr_ten *v = gr_ten_is(&a->v) ? &a->v : &a->k;
    double *p = w->local, *acc = p + a->list.cols;
    float *row = (float *)(acc + a->d_v); /* a head of K, then of V */
    const int32_t *list = gr_cpu_i32(&a->list, 0);
    struct gr_cpu_share share = gr_cpu_share(a->q.rows * a->n_head, 1, w);
    for (int64_t i = share.lo; i < share.hi; i++) {
        int64_t t = i / a->n_head, h = i % a->n_head, h_kv = h / (a->n_head / a->n_head_kv);
        struct span s = span_of(a, t);
        double sum = weigh(a, t, h, p, row);
        memset(acc, 0, (size_t)a->d_v * sizeof *acc);
        for (int64_t j = s.lo; j < s.hi; j++) {
            gr_ref_load(v, 0, list[j], v->cols - (a->n_head_kv - h_kv) * a->d_v, a->d_v, row);
            for (int64_t c = 0; c < a->d_v; c++)
                acc[c] += p[j - s.lo] * (double)row[c];
        }
        float *y = gr_cpu_f32(&a->y, t) + h * a->d_v;
        for (int64_t c = 0; c < a->d_v; c++)
            y[c] = sum == 0 ? 0 : (float)(acc[c] / sum);
    }
}

static struct gr_cpu_need attn_need(const struct gr_node *node)
{
    const struct gr_args_attn *a = &node->a.attn;
    size_t head = (size_t)GR_MAX(a->d_k, a->d_v);
    return (struct gr_cpu_need){0, (size_t)(a->list.cols + a->d_v) * sizeof(double) +
                                       head * sizeof(float)};
}

const struct gr_cpu_impl gr_ref_attn = {attn, attn_need, NULL};
