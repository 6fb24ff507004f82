/* ACT, GLU, BINARY, EXPERT_SUM, SUM and POOL. exp is vf_exp; tanh(u) = 1 - 2 / (exp(2 u) + 1), with
 * a series below 1/8. GELU_ERF stays with the reference. */
#include <string.h>

#include "cpu/fast/fast.h"

/* |x| < 1/8: x - x^3/3 + 2 x^5/15 - 17 x^7/315, next term below 2^-28 of x. */
GR_INLINE vf tanh_of(vf x)
{
    vf one = vf_set(1), a = vf_abs(x), x2 = x * x;
    vf big = one - vf_set(2) / (vf_exp(a + a) + one);
    vf p = vf_fma(vf_set(-17.0f / 315), x2, vf_set(2.0f / 15));
    p = vf_fma(p, x2, vf_set(-1.0f / 3));
    vf small = vf_fma(p * x2, a, a);
    vf y = vf_where_less(a, vf_set(0.125f), small, big);
    return vf_where_less(x, vf_set(0), vf_set(0) - y, y);
}

GR_INLINE vf act_of(int kind, vf x, vf a, vf b)
{
    const float sqrt_8_over_pi = 1.5957691216f, cubic = 0.044715f;
    switch ((enum gr_act_kind)kind) {
    case GR_SILU:
        return x * vf_sigmoid(x);
    case GR_GELU: /* 0.5 (1 + tanh u) = vf_sigmoid(2 u) */
        return x * vf_sigmoid(vf_set(sqrt_8_over_pi) * x * vf_fma(vf_set(cubic), x * x, vf_set(1)));
    case GR_GELU_QUICK:
        return x * vf_sigmoid(vf_set(1.702f) * x);
    case GR_RELU:
        return vf_max(vf_set(0), x);
    case GR_RELU2:
        return vf_max(vf_set(0), x) * vf_max(vf_set(0), x);
    case GR_SIGMOID:
        return vf_sigmoid(x);
    case GR_TANH:
        return tanh_of(x);
    case GR_SOFTCAP:
        return a * tanh_of(x / a);
    case GR_LINEAR:
        return a * x + b;
    case GR_CLAMP:
        return vf_min(b, vf_max(a, x));
    case GR_SOFTPLUS:
        return vf_softplus(x);
    case GR_GELU_ERF:
    case GR_SWIGLU_OAI: /* handled as a gated activation */
        break;
    }
    return x;
}

GR_INLINE vf glu_of(int kind, vf gate, vf up, vf a, vf b)
{
    const vf limit = vf_set(7), one = vf_set(1);
    if (kind != GR_SWIGLU_OAI)
        return act_of(kind, gate, a, b) * up;
    up = act_of(GR_CLAMP, up, vf_set(0) - limit, limit);
    return act_of(GR_GELU_QUICK, vf_min(limit, gate), a, b) * (up + one);
}

/* One loop per kind, so that the choice is outside of the loop. `up` NULL: no factor. */
GR_INLINE void act_loop(int kind, const float *x, const float *up, int64_t n, float a, float b,
                        float *y)
{
    for (int64_t i = 0; i < n; i += VL) {
        int64_t k = GR_MIN(VL, n - i);
        vf v = vf_load_n(x + i, k);
        vf_store_n(y + i,
                   up ? glu_of(kind, v, vf_load_n(up + i, k), vf_set(a), vf_set(b))
                      : act_of(kind, v, vf_set(a), vf_set(b)),
                   k);
    }
}

static void act_row(int kind, const float *x, const float *up, int64_t n, float a, float b,
                    float *y)
{
#define KIND(name)                                                                                 \
    case name:                                                                                     \
        act_loop(name, x, up, n, a, b, y);                                                         \
        break;
    switch ((enum gr_act_kind)kind) {
        KIND(GR_SILU)
        KIND(GR_GELU)
        KIND(GR_GELU_QUICK)
        KIND(GR_RELU)
        KIND(GR_RELU2)
        KIND(GR_SIGMOID)
        KIND(GR_TANH)
        KIND(GR_SOFTCAP)
        KIND(GR_LINEAR)
        KIND(GR_CLAMP)
        KIND(GR_SOFTPLUS)
        KIND(GR_SWIGLU_OAI)
    case GR_GELU_ERF:
        break;
    }
#undef KIND
}

void FN(act_row)(int kind, const float *x, int64_t n, float a, float b, float *y)
{
    act_row(kind, x, NULL, n, a, b, y);
}

static void act(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_act *a = &node->a.act;
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, w);
    int64_t each = a->y.rows / a->x.rows;
    for (int64_t r = 0; r < a->y.rows; r++)
        act_row(a->kind, gr_cpu_f32(&a->x, r / each) + s.lo, NULL, s.hi - s.lo, a->a, a->b,
                gr_cpu_f32(&a->y, r) + s.lo);
}

static bool takes_act(const struct gr_node *node)
{
    return node->a.act.kind != GR_GELU_ERF;
}

const struct gr_cpu_impl FN(act) = {act, NULL, takes_act};

static void glu(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_glu *a = &node->a.glu;
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, w);
    for (int64_t r = 0; r < a->y.rows; r++)
        act_row(a->kind, gr_cpu_f32(&a->a, r) + s.lo, gr_cpu_f32(&a->b, r) + s.lo, s.hi - s.lo, 0,
                0, gr_cpu_f32(&a->y, r) + s.lo);
}

static bool takes_glu(const struct gr_node *node)
{
    return node->a.glu.kind != GR_GELU_ERF;
}

const struct gr_cpu_impl FN(glu) = {glu, NULL, takes_glu};

static void binary(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_binary *n = &node->a.binary;
    struct gr_cpu_share s = gr_cpu_share(n->y.cols, GR_CPU_LINE, w);
    for (int64_t r = 0; r < n->y.rows; r++) {
        const float *a = gr_cpu_f32(&n->a, r), *b = gr_cpu_f32(&n->b, n->b.rows == 1 ? 0 : r);
        float *y = gr_cpu_f32(&n->y, r);
        for (int64_t i = s.lo; i < s.hi; i += VL) {
            int64_t k = GR_MIN(VL, s.hi - i);
            vf u = vf_load_n(a + i, k), v = vf_load_n(b + i, k);
            vf_store_n(y + i, n->kind == GR_MUL ? u * v : n->kind == GR_DIV ? u / v : u + v, k);
        }
    }
}

const struct gr_cpu_impl FN(binary) = {binary, NULL, NULL};

static void expert_sum(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_expert_sum *a = &node->a.expert_sum;
    int64_t n_used = a->weights.cols;
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, work);
    for (int64_t t = 0; t < a->y.rows; t++) {
        const float *w = gr_cpu_f32(&a->weights, t);
        const float *res = gr_ten_is(&a->res) ? gr_cpu_f32(&a->res, t) : NULL;
        for (int64_t i = s.lo; i < s.hi; i += VL) {
            int64_t k = GR_MIN(VL, s.hi - i);
            vf sum = vf_set(0);
            for (int64_t j = 0; j < n_used; j++)
                sum =
                    vf_fma(vf_set(w[j]), vf_load_n(gr_cpu_f32(&a->x, t * n_used + j) + i, k), sum);
            if (res)
                sum = sum + vf_load_n(res + i, k);
            vf_store_n(gr_cpu_f32(&a->y, t) + i, sum, k);
        }
    }
}

const struct gr_cpu_impl FN(expert_sum) = {expert_sum, NULL, NULL};

static void sum(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_sum *a = &node->a.sum;
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, work);
    for (int64_t t = 0; t < a->y.rows; t++) {
        const float *res = gr_ten_is(&a->res) ? gr_cpu_f32(&a->res, t) : NULL;
        for (int64_t i = s.lo; i < s.hi; i += VL) {
            int64_t k = GR_MIN(VL, s.hi - i);
            vf all = vf_load_n(gr_cpu_f32(&a->parts, t) + i, k);
            for (int64_t r = t + a->y.rows; r < a->parts.rows; r += a->y.rows)
                all = all + vf_load_n(gr_cpu_f32(&a->parts, r) + i, k);
            if (res)
                all = all + vf_load_n(res + i, k);
            vf_store_n(gr_cpu_f32(&a->y, t) + i, all, k);
        }
    }
}

const struct gr_cpu_impl FN(sum) = {sum, NULL, NULL};

static void pool(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_pool *a = &node->a.pool;
    const int32_t *list = gr_cpu_i32(&a->list, 0), *at = gr_cpu_i32(&a->at, 0);
    struct gr_cpu_share s = gr_cpu_share(a->y.cols, GR_CPU_LINE, work);
    for (int64_t q = 0; q < a->y.rows; q++) {
        vf n = vf_set((float)GR_MAX(at[q + 1] - at[q], 1));
        for (int64_t c = s.lo; c < s.hi; c += VL) {
            int64_t k = GR_MIN(VL, s.hi - c);
            vf all = vf_set(0);
            for (int32_t i = at[q]; i < at[q + 1]; i++)
                all = all + vf_load_n(gr_cpu_f32(&a->x, list[i]) + c, k);
            vf_store_n(gr_cpu_f32(&a->y, q) + c, all / n, k);
        }
    }
}

const struct gr_cpu_impl FN(pool) = {pool, NULL, NULL};
