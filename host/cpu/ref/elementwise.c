/* ACT, XIELU, GLU, BINARY, EXPERT_SUM, SUM and POOL: elements of a row are independent, so columns
 * are divided among the threads. */
#include <math.h>

#include "cpu/ref/ref.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

double gr_ref_act_of(int kind, double x, double a, double b)
{
    const double sqrt_2_over_pi = 0.79788456080286535588, sqrt_half = 0.70710678118654752440;
    switch ((enum gr_act_kind)kind) {
    case GR_SILU:
        return x * sigmoid(x);
    case GR_GELU:
        return 0.5 * x * (1 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
    case GR_GELU_ERF:
        return 0.5 * x * (1 + erf(x * sqrt_half));
    case GR_GELU_QUICK:
        return x * sigmoid(1.702 * x);
    case GR_RELU:
        return x > 0 ? x : 0;
    case GR_RELU2:
        return x > 0 ? x * x : 0;
    case GR_SIGMOID:
        return sigmoid(x);
    case GR_TANH:
        return tanh(x);
    case GR_SOFTCAP:
        return a * tanh(x / a);
    case GR_LINEAR:
        return a * x + b;
    case GR_CLAMP:
        return x < a ? a : x > b ? b : x;
    case GR_SOFTPLUS:
        return gr_ref_softplus(x);
    case GR_SWIGLU_OAI: /* a gated activation, handled elsewhere */
        break;
    }
    return NAN;
}

static double glu_of(int kind, double gate, double up)
{
    const double limit = 7;
    if (kind != GR_SWIGLU_OAI)
        return gr_ref_act_of(kind, gate, 0, 0) * up;
    gate = gate > limit ? limit : gate;
    up = gr_ref_act_of(GR_CLAMP, up, -limit, limit);
    return gr_ref_act_of(GR_GELU_QUICK, gate, 0, 0) * (up + 1);
}

static void act(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_act *a = &node->a.act;
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, w);
    int64_t each = a->y.rows / a->x.rows;
    for (int64_t r = 0; r < a->y.rows; r++) {
        const float *x = gr_cpu_f32(&a->x, r / each);
        float *y = gr_cpu_f32(&a->y, r);
        for (int64_t i = s.lo; i < s.hi; i++)
            y[i] = (float)gr_ref_act_of(a->kind, (double)x[i], (double)a->a, (double)a->b);
    }
}

const struct gr_cpu_impl gr_ref_act = {act, NULL, NULL};

static void xielu(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_xielu *a = &node->a.xielu;
    double positive = (double)a->positive, negative = (double)a->negative;
    double linear = (double)a->linear, below = (double)a->below;
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, w);
    for (int64_t r = 0; r < a->y.rows; r++) {
        const float *row = gr_cpu_f32(&a->x, r);
        float *y = gr_cpu_f32(&a->y, r);
        for (int64_t i = s.lo; i < s.hi; i++) {
            double x = (double)row[i];
            double part = x > 0 ? positive * x * x : negative * (expm1(x < below ? x : below) - x);
            y[i] = (float)(part + linear * x);
        }
    }
}

const struct gr_cpu_impl gr_ref_xielu = {xielu, NULL, NULL};

static void glu(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_glu *a = &node->a.glu;
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, w);
    for (int64_t r = 0; r < a->y.rows; r++) {
        const float *gate = gr_cpu_f32(&a->a, r), *up = gr_cpu_f32(&a->b, r);
        float *y = gr_cpu_f32(&a->y, r);
        for (int64_t i = s.lo; i < s.hi; i++)
            y[i] = (float)glu_of(a->kind, (double)gate[i], (double)up[i]);
    }
}

const struct gr_cpu_impl gr_ref_glu = {glu, NULL, NULL};

static float combine(int kind, float a, float b)
{
    return kind == GR_MUL ? a * b : kind == GR_DIV ? a / b : a + b;
}

static void binary(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_binary *n = &node->a.binary;
    struct gr_cpu_share s = gr_cpu_share(n->y.cols, GR_CPU_LINE, w);
    for (int64_t r = 0; r < n->y.rows; r++) {
        const float *a = gr_cpu_f32(&n->a, r), *b = gr_cpu_f32(&n->b, n->b.rows == 1 ? 0 : r);
        float *y = gr_cpu_f32(&n->y, r);
        for (int64_t i = s.lo; i < s.hi; i++)
            y[i] = combine(n->kind, a[i], b[i]);
    }
}

const struct gr_cpu_impl gr_ref_binary = {binary, NULL, NULL};

static void expert_sum(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_expert_sum *a = &node->a.expert_sum;
    int64_t n_used = a->weights.cols;
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, work);
    for (int64_t t = 0; t < a->y.rows; t++) {
        const float *w = gr_cpu_f32(&a->weights, t);
        float *y = gr_cpu_f32(&a->y, t);
        for (int64_t i = s.lo; i < s.hi; i++) {
            double sum = 0;
            for (int64_t j = 0; j < n_used; j++)
                sum += (double)w[j] * (double)gr_cpu_f32(&a->x, t * n_used + j)[i];
            if (gr_ten_is(&a->res))
                sum += (double)gr_cpu_f32(&a->res, t)[i];
            y[i] = (float)sum;
        }
    }
}

const struct gr_cpu_impl gr_ref_expert_sum = {expert_sum, NULL, NULL};

static void sum(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_sum *a = &node->a.sum;
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, work);
    for (int64_t t = 0; t < a->y.rows; t++) {
        float *y = gr_cpu_f32(&a->y, t);
        for (int64_t i = s.lo; i < s.hi; i++) {
            double all = 0;
            for (int64_t r = t; r < a->parts.rows; r += a->y.rows)
                all += (double)gr_cpu_f32(&a->parts, r)[i];
            if (gr_ten_is(&a->res))
                all += (double)gr_cpu_f32(&a->res, t)[i];
            y[i] = (float)all;
        }
    }
}

const struct gr_cpu_impl gr_ref_sum = {sum, NULL, NULL};

static void pool(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_pool *a = &node->a.pool;
    const int32_t *list = gr_cpu_i32(&a->list, 0), *at = gr_cpu_i32(&a->at, 0);
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, work);
    for (int64_t q = 0; q < a->y.rows; q++) {
        float *y = gr_cpu_f32(&a->y, q);
        int32_t n = at[q + 1] - at[q];
        for (int64_t c = s.lo; c < s.hi; c++) {
            double all = 0;
            for (int32_t i = at[q]; i < at[q + 1]; i++)
                all += (double)gr_cpu_f32(&a->x, list[i])[c];
            y[c] = n ? (float)(all / n) : 0;
        }
    }
}

const struct gr_cpu_impl gr_ref_pool = {pool, NULL, NULL};
