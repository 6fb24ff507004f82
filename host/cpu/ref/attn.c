/* ATTN: softmax over the cells that a token sees. Rows of K and V whose mask bit is clear are never
 * read. */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"

static bool visible(const struct gr_args_attn *a, int64_t t, int64_t j)
{
    return (uint32_t)gr_cpu_i32(&a->mask, t)[j / 32] >> j % 32 & 1;
}

/* The logit of cell j for head h of token t. `k` holds a head of K. */
static double logit(const struct gr_args_attn *a, int64_t t, int64_t h, int64_t j, float *k)
{
    int64_t h_kv = h / (a->n_head / a->n_head_kv);
    gr_ref_load(&a->k, 0, j, h_kv * a->d_k, a->d_k, k);
    double x = gr_ref_dot(gr_cpu_f32(&a->q, t) + h * a->d_k, k, a->d_k) * (double)a->scale;
    if (a->softcap > 0)
        x = (double)a->softcap * tanh(x / (double)a->softcap);
    if (a->max_alibi > 0) {
        double slope = (double)gr_alibi_slope(a->max_alibi, a->n_head, h);
        x -= slope *
             fabs((double)gr_cpu_i32(&a->pos, 0)[t] - (double)gr_cpu_i32(&a->cell_pos, 0)[j]);
    }
    return x;
}

/* p[j] of every visible cell: exp(logit - largest). Returns their sum, 0 when none is visible. */
static double weigh(const struct gr_args_attn *a, int64_t t, int64_t h, double *p, float *k)
{
    double max = gr_ten_is(&a->sinks) ? (double)gr_cpu_f32(&a->sinks, 0)[h] : -INFINITY, sum = 0;
    for (int64_t j = 0; j < a->k.rows; j++)
        if (visible(a, t, j)) {
            p[j] = logit(a, t, h, j, k);
            max = fmax(max, p[j]);
        }
    for (int64_t j = 0; j < a->k.rows; j++)
        if (visible(a, t, j))
            sum += p[j] = exp(p[j] - max);
    return gr_ten_is(&a->sinks) ? sum + exp((double)gr_cpu_f32(&a->sinks, 0)[h] - max) : sum;
}

static void attn(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_attn *a = &node->a.attn;
    double *p = w->local, *acc = p + a->k.rows;
    float *row = (float *)(acc + a->d_v); /* a head of K, then of V */
    struct gr_cpu_share s = gr_cpu_share(a->q.rows * a->n_head, 1, w);
    for (int64_t i = s.lo; i < s.hi; i++) {
        int64_t t = i / a->n_head, h = i % a->n_head, h_kv = h / (a->n_head / a->n_head_kv);
        double sum = weigh(a, t, h, p, row);
        memset(acc, 0, (size_t)a->d_v * sizeof *acc);
        for (int64_t j = 0; j < a->k.rows; j++) {
            if (!visible(a, t, j))
                continue;
            gr_ref_load(&a->v, 0, j, h_kv * a->d_v, a->d_v, row);
            for (int64_t c = 0; c < a->d_v; c++)
                acc[c] += p[j] * (double)row[c];
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
    return (struct gr_cpu_need){0, (size_t)(a->k.rows + a->d_v) * sizeof(double) +
                                       head * sizeof(float)};
}

const struct gr_cpu_impl gr_ref_attn = {attn, attn_need, NULL};
