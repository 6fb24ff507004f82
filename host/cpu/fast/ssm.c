/* SSM_CONV and SSM_SCAN: a thread takes VL columns through all tokens of a sequence, with their
 * state in registers or in a tile. Lanes are columns, so nothing is summed over lanes. */
#include <math.h>

#include "cpu/fast/fast.h"

enum { MAX_KERNEL = 4 };

/* ---- the convolution ---- */

/* Columns [c, c + n) of one sequence; n_kernel is a constant where this is called. */
GR_INLINE void conv_block(const struct gr_args_ssm_conv *a, const struct gr_cpu_seq *q, int64_t c,
                          int64_t n, int n_kernel)
{
    float turned[MAX_KERNEL][VL] = {{0}};
    vf w[MAX_KERNEL], x[MAX_KERNEL];
    vf bias = gr_ten_is(&a->b) ? vf_load_n(gr_cpu_f32(&a->b, 0) + c, n) : vf_set(0);
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < n_kernel; j++)
            turned[j][i] = gr_cpu_f32(&a->w, c + i)[j];
    GR_UNROLL
    for (int j = 0; j < n_kernel; j++)
        w[j] = vf_load(turned[j]);
    GR_UNROLL
    for (int j = 1; j < n_kernel; j++)
        x[j] = q->from ? vf_load_n(q->from + (j - 1) * a->x.cols + c, n) : vf_set(0);
    for (int64_t t = q->lo; t < q->lo + q->n; t++) {
        vf sum = vf_set(0);
        GR_UNROLL
        for (int j = 0; j + 1 < n_kernel; j++)
            x[j] = x[j + 1];
        x[n_kernel - 1] = vf_load_n(gr_cpu_f32(&a->x, t) + c, n);
        GR_UNROLL
        for (int j = 0; j < n_kernel; j++)
            sum = vf_fma(w[j], x[j], sum);
        sum = sum + bias;
        if (a->kind == GR_SILU)
            sum = sum * vf_sigmoid(sum);
        vf_store_n(gr_cpu_f32(&a->y, t) + c, sum, n);
    }
    GR_UNROLL
    for (int j = 1; j < n_kernel; j++)
        vf_store_n(q->to + (j - 1) * a->x.cols + c, x[j], n);
}

static void conv_columns(const struct gr_args_ssm_conv *a, const struct gr_cpu_seq *q, int64_t c,
                         int64_t n)
{
    switch (a->w.cols) {
    case 2:
        conv_block(a, q, c, n, 2);
        break;
    case 3:
        conv_block(a, q, c, n, 3);
        break;
    default:
        conv_block(a, q, c, n, 4);
    }
}

static void ssm_conv(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_ssm_conv *a = &node->a.ssm_conv;
    struct gr_cpu_share s = gr_cpu_share(a->x.cols, GR_CPU_LINE, work);
    for (int64_t i = 0; i < a->src.cols; i++) {
        struct gr_cpu_seq q = gr_cpu_seq(&a->state, &a->src, &a->dst, a->x.rows, i);
        for (int64_t c = s.lo; c < s.hi; c += VL)
            conv_columns(a, &q, c, GR_MIN(VL, s.hi - c));
    }
}

static bool takes_conv(const struct gr_node *node)
{
    const struct gr_args_ssm_conv *a = &node->a.ssm_conv;
    return a->w.cols >= 2 && a->w.cols <= MAX_KERNEL &&
           (a->kind == GR_SILU || a->kind == GR_LINEAR);
}

const struct gr_cpu_impl FN(ssm_conv) = {ssm_conv, NULL, takes_conv};

/* ---- the scan ---- */

/* n <= VL columns from `first` on, of one group. */
struct block {
    const struct gr_args_ssm_scan *a;
    int64_t first, n, group;
    int64_t head[VL]; /* head of each lane; lanes beyond n have that of the first */
    vf d, bias;
    float *h;    /* [n_state, VL] */
    float *rate; /* [a.cols, VL] */
};

/* Gathers one number per lane, by its head. */
static vf by_head(const struct block *k, const float *of)
{
    float x[VL];
    for (int i = 0; i < VL; i++)
        x[i] = of[k->head[i]];
    return vf_load(x);
}

static void block_start(struct block *k, int64_t first, int64_t n, int64_t group)
{
    const struct gr_args_ssm_scan *a = k->a;
    int64_t d_head = a->x.cols / a->dt.cols;
    k->first = first, k->n = n, k->group = group;
    for (int i = 0; i < VL; i++)
        k->head[i] = (first + (i < n ? i : 0)) / d_head;
    k->d = gr_ten_is(&a->d) ? by_head(k, gr_cpu_f32(&a->d, 0)) : vf_set(0);
    k->bias = gr_ten_is(&a->dt_bias) ? by_head(k, gr_cpu_f32(&a->dt_bias, 0)) : vf_set(0);
    for (int64_t s = 0; s < a->a.cols; s++)
        for (int i = 0; i < VL; i++)
            k->rate[s * VL + i] = gr_cpu_f32(&a->a, k->head[i])[s];
}

/* Updates the state of all columns with a token and returns its product with c. Four partial sums
 * hide the latency of additions. `shared`: one rate per column. */
GR_INLINE vf scan_state(const struct block *k, const float *b, const float *c, vf dt, vf dx,
                        bool shared)
{
    vf sum[4] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
    vf decay = shared ? vf_exp(dt * vf_load(k->rate)) : vf_set(0);
    int64_t n = k->a->n_state;
    for (int64_t s = 0; s < n; s += 4) {
        GR_UNROLL
        for (int j = 0; j < 4; j++) {
            if (s + j >= n)
                break;
            float *at = k->h + (s + j) * VL;
            if (!shared)
                decay = vf_exp(dt * vf_load(k->rate + (s + j) * VL));
            vf h = vf_fma(decay, vf_load(at), vf_set(b[s + j]) * dx);
            vf_store(at, h);
            sum[j] = vf_fma(vf_set(c[s + j]), h, sum[j]);
        }
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void scan_token(const struct block *k, int64_t t)
{
    const struct gr_args_ssm_scan *a = k->a;
    const float *b = gr_cpu_f32(&a->b, t) + k->group * a->n_state;
    const float *c = gr_cpu_f32(&a->c, t) + k->group * a->n_state;
    vf x = vf_load_n(gr_cpu_f32(&a->x, t) + k->first, k->n);
    vf dt = vf_softplus(by_head(k, gr_cpu_f32(&a->dt, t)) + k->bias);
    vf sum = a->a.cols == 1 ? scan_state(k, b, c, dt, dt * x, true)
                            : scan_state(k, b, c, dt, dt * x, false);
    sum = vf_fma(k->d, x, sum);
    if (gr_ten_is(&a->z)) {
        vf z = vf_load_n(gr_cpu_f32(&a->z, t) + k->first, k->n);
        sum = sum * (z * vf_sigmoid(z));
    }
    vf_store_n(gr_cpu_f32(&a->y, t) + k->first, sum, k->n);
}

static void scan_block(const struct block *k)
{
    const struct gr_args_ssm_scan *a = k->a;
    int64_t n = a->x.cols;
    for (int64_t i = 0; i < a->src.cols; i++) {
        struct gr_cpu_seq q = gr_cpu_seq(&a->state, &a->src, &a->dst, a->x.rows, i);
        for (int64_t s = 0; s < a->n_state; s++)
            vf_store(k->h + s * VL,
                     q.from ? vf_load_n(q.from + s * n + k->first, k->n) : vf_set(0));
        for (int64_t t = q.lo; t < q.lo + q.n; t++)
            scan_token(k, t);
        for (int64_t s = 0; s < a->n_state; s++)
            vf_store_n(q.to + s * n + k->first, vf_load(k->h + s * VL), k->n);
    }
}

static void ssm_scan(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_ssm_scan *a = &node->a.ssm_scan;
    int64_t n_group = a->b.cols / a->n_state, width = a->x.cols / n_group;
    int64_t per_group = (width + VL - 1) / VL;
    struct block k = {.a = a, .h = work->local, .rate = (float *)work->local + a->n_state * VL};
    struct gr_cpu_share s = gr_cpu_share(n_group * per_group, 1, work);
    for (int64_t i = s.lo; i < s.hi; i++) {
        int64_t group = i / per_group, at = i % per_group * VL;
        block_start(&k, group * width + at, GR_MIN(VL, width - at), group);
        scan_block(&k);
    }
}

static struct gr_cpu_need ssm_scan_need(const struct gr_node *node)
{
    const struct gr_args_ssm_scan *a = &node->a.ssm_scan;
    return (struct gr_cpu_need){0, (size_t)((a->n_state + a->a.cols) * VL) * sizeof(float)};
}

const struct gr_cpu_impl FN(ssm_scan) = {ssm_scan, ssm_scan_need, NULL};
