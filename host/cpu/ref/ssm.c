/* SSM_CONV and SSM_SCAN: Gu, Dao 2023 (arXiv 2312.00752); Dao, Gu 2024 (arXiv 2405.21060). Columns
 * are independent, so they are divided among the threads. The state is rounded to f32 after every
 * token, so that results do not depend on how a sequence is divided into steps. */
#include <math.h>

#include "cpu/ref/ref.h"

double gr_ref_softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

/* Column c of the input at token t of a sequence; t < 0: from the state. */
static float input_at(const struct gr_args_ssm_conv *a, const struct gr_cpu_seq *q, int64_t t,
                      int64_t c)
{
    if (t >= 0)
        return gr_cpu_f32(&a->x, q->lo + t)[c];
    return q->from ? q->from[(a->w.cols - 1 + t) * a->x.cols + c] : 0;
}

static void conv_column(const struct gr_args_ssm_conv *a, const struct gr_cpu_seq *q, int64_t c)
{
    int64_t past = a->w.cols - 1;
    const float *w = gr_cpu_f32(&a->w, c);
    for (int64_t t = 0; t < q->n; t++) {
        double sum = 0;
        for (int64_t j = 0; j <= past; j++)
            sum += (double)w[j] * (double)input_at(a, q, t - past + j, c);
        if (gr_ten_is(&a->b))
            sum += (double)gr_cpu_f32(&a->b, 0)[c];
        gr_cpu_f32(&a->y, q->lo + t)[c] = (float)gr_ref_act_of(a->kind, sum, 1, 0);
    }
    for (int64_t i = 0; i < past; i++) /* ascending, since it may overwrite what it reads */
        q->to[i * a->x.cols + c] = input_at(a, q, q->n - past + i, c);
}

static void ssm_conv(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_ssm_conv *a = &node->a.ssm_conv;
    struct gr_cpu_share s = gr_cpu_share(a->x.cols, GR_CPU_LINE, work);
    for (int64_t i = 0; i < a->src.cols; i++) {
        struct gr_cpu_seq q = gr_cpu_seq(&a->state, &a->src, &a->dst, a->x.rows, i);
        for (int64_t c = s.lo; c < s.hi; c++)
            conv_column(a, &q, c);
    }
}

const struct gr_cpu_impl gr_ref_ssm_conv = {ssm_conv, NULL, NULL};

/* Processes row t of column i: h[s] is to[s * n + i]. */
static void scan_token(const struct gr_args_ssm_scan *a, float *to, int64_t t, int64_t i)
{
    int64_t n = a->x.cols, n_head = a->dt.cols, head = i / (n / n_head);
    int64_t group = head / (n_head / (a->b.cols / a->n_state));
    const float *b = gr_cpu_f32(&a->b, t) + group * a->n_state;
    const float *c = gr_cpu_f32(&a->c, t) + group * a->n_state, *rate = gr_cpu_f32(&a->a, head);
    double x = (double)gr_cpu_f32(&a->x, t)[i], dt = (double)gr_cpu_f32(&a->dt, t)[head], sum = 0;
    if (gr_ten_is(&a->dt_bias))
        dt += (double)gr_cpu_f32(&a->dt_bias, 0)[head];
    dt = gr_ref_softplus(dt);
    for (int64_t s = 0; s < a->n_state; s++) {
        double decay = exp(dt * (double)rate[s < a->a.cols ? s : 0]);
        float *h = &to[s * n + i];
        *h = (float)(decay * (double)*h + dt * (double)b[s] * x);
        sum += (double)c[s] * (double)*h;
    }
    if (gr_ten_is(&a->d))
        sum += (double)gr_cpu_f32(&a->d, 0)[head] * x;
    if (gr_ten_is(&a->z))
        sum *= gr_ref_act_of(GR_SILU, (double)gr_cpu_f32(&a->z, t)[i], 0, 0);
    gr_cpu_f32(&a->y, t)[i] = (float)sum;
}

static void ssm_scan(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_ssm_scan *a = &node->a.ssm_scan;
    struct gr_cpu_share s = gr_cpu_share(a->x.cols, GR_CPU_LINE, work);
    for (int64_t k = 0; k < a->src.cols; k++) {
        struct gr_cpu_seq q = gr_cpu_seq(&a->state, &a->src, &a->dst, a->x.rows, k);
        for (int64_t i = s.lo; i < s.hi; i++) {
            for (int64_t j = i; j < a->state.cols; j += a->x.cols)
                q.to[j] = q.from ? q.from[j] : 0;
            for (int64_t t = 0; t < q.n; t++)
                scan_token(a, q.to, q.lo + t, i);
        }
    }
}

const struct gr_cpu_impl gr_ref_ssm_scan = {ssm_scan, NULL, NULL};
