#include <criterion/criterion.h>
#include <math.h>

#include "base/checked.h"
#include "ops/ops.h"

static const int64_t shapes[][2] = {{1, 1}, {1, 33}, {3, 15}, {2, 64}, {5, 100}, {1, 2048}};

static double logistic(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

static double tangent(double x)
{
    double e = exp(-2 * fabs(x));
    return copysign(-expm1(-2 * fabs(x)) / (1 + e), x);
}

/* Written apart from the reference: tanh forms by the logistic function, erf by erfc. */
static double want_act(int kind, double x, double a, double b)
{
    switch (kind) {
    case GR_SILU:
        return x * logistic(x);
    case GR_GELU:
        return x * logistic(2 * sqrt(2 / M_PI) * x * (1 + 0.044715 * x * x));
    case GR_GELU_ERF:
        return x * erfc(-x / sqrt(2)) / 2;
    case GR_GELU_QUICK:
        return x * logistic(1.702 * x);
    case GR_RELU:
        return fmax(x, 0);
    case GR_RELU2:
        return fmax(x, 0) * fmax(x, 0);
    case GR_SIGMOID:
        return logistic(x);
    case GR_TANH:
        return tangent(x);
    case GR_SOFTCAP:
        return a * tangent(x / a);
    case GR_LINEAR:
        return a * x + b;
    case GR_CLAMP:
        return fmin(fmax(x, a), b);
    case GR_SOFTPLUS:
        return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
    default:
        return NAN;
    }
}

/* Cancellation of the textbook forms: 0.5 x (1 + tanh) and 0.5 x (1 + erf) lose what is below 2^-53
 * of x. */
static double slack_ref(int kind, double x, double a, double b)
{
    (void)b;
    return kind == GR_LINEAR ? fabs(a * x) * 1e-15 : fabs(x) * 1e-15 + 1e-15 * (kind >= GR_SIGMOID);
}

/* Fast: exp and the argument of it in f32. The argument's rounding error, up to 4 roundings of
 * |arg|, is the result's relative error; a little more for the polynomial. Only where the result is
 * not yet 0 or saturated (|arg| < 88). */
static double slack_fast(int kind, double x, double a, double b, double want)
{
    double arg = kind == GR_GELU      ? 2 * x * (1 + 0.044715 * x * x)
                 : kind == GR_TANH    ? 2 * x
                 : kind == GR_SOFTCAP ? 2 * x / a
                                      : 2 * x;
    double rel = (8 + 4 * fmin(fabs(arg), 88)) * 0x1p-24, scale = fabs(want);
    switch (kind) {
    case GR_RELU:
    case GR_CLAMP:
        return 0;
    case GR_LINEAR:
        return (fabs(a * x) + fabs(b)) * 0x1p-24;
    case GR_TANH:
        return 12 * 0x1p-24 * fmin(1, fabs(x));
    case GR_SOFTCAP:
        return 12 * 0x1p-24 * fmin(a, fabs(x));
    case GR_SOFTPLUS: /* of exp(-|x|), and the sum of two parts */
        return (8 + 4 * fmin(fabs(x), 88)) * 0x1p-24 * fmin(scale, exp(-fabs(x))) +
               4 * 0x1p-24 * scale + 1e-36;
    case GR_GELU_ERF: /* an absolute error of the erf */
        return fabs(x) * 0x1p-22 * (x > -15);
    default:
        return rel * scale + 1e-36;
    }
}

static struct gr_ten wide(struct ops_case *c, int64_t rows, int64_t cols, enum ops_data data)
{
    struct gr_ten x = ops_random(c, GR_F32, 1, rows, cols, data);
    for (int64_t i = 0; i < rows * cols && data == OPS_NORMAL; i++)
        *((float *)gr_ten_row(&x, 0, i / cols) + i % cols) *= (float)(1 + i % 7 * 4); /* to +-150 */
    return x;
}

static void act_case(int kind, const int64_t *shape, enum ops_data data, bool in_place)
{
    struct ops_case c;
    double a = 2.5, b = kind == GR_CLAMP ? 4 : -0.75;
    ops_case_init(&c, GR_OP_ACT, 4, "kind %d, [%lld, %lld], data %d", kind, (long long)shape[0],
                  (long long)shape[1], data);
    struct gr_args_act *n = &c.node.a.act;
    *n = (struct gr_args_act){
        .x = wide(&c, shape[0], shape[1], data), .a = (float)a, .b = (float)b, .kind = kind};
    n->y = in_place ? n->x : ops_new(&c, GR_F32, 1, shape[0], shape[1]);
    const double *x = ops_values(&c, &n->x);
    struct ops_out *o = ops_expect(&c, &n->y);
    for (int64_t i = 0; i < ops_count(&n->y); i++)
        o->want[i] = want_act(kind, x[i], a, b);
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&n->y); i++) {
        o->tol_ref[i] += slack_ref(kind, x[i], a, b);
        o->tol_fast[i] += slack_fast(kind, x[i], a, b, o->want[i]);
    }
    ops_check(&c);
    ops_case_fini(&c);
}

Test(act, all_kinds)
{
    for (int kind = GR_SILU; kind <= GR_SOFTPLUS; kind++)
        for (size_t s = 0; s < GR_COUNT(shapes); s++)
            for (enum ops_data data = 0; data < OPS_N_DATA; data++)
                act_case(kind, shapes[s], data, (s + (size_t)data) % 2);
}

/* Each row of x stands for three of y. */
Test(act, rows_repeat)
{
    for (size_t s = 0; s < GR_COUNT(shapes); s++) {
        struct ops_case c;
        int64_t rows = shapes[s][0], cols = shapes[s][1];
        ops_case_init(&c, GR_OP_ACT, 4, "[%lld, %lld] three times", (long long)rows,
                      (long long)cols);
        struct gr_args_act *n = &c.node.a.act;
        *n = (struct gr_args_act){.x = ops_random(&c, GR_F32, 1, rows, cols, OPS_NORMAL),
                                  .y = ops_new(&c, GR_F32, 1, 3 * rows, cols),
                                  .a = 1,
                                  .kind = GR_LINEAR};
        const double *x = ops_values(&c, &n->x);
        struct ops_out *o = ops_expect(&c, &n->y);
        for (int64_t i = 0; i < 3 * rows * cols; i++)
            o->want[i] = x[i / cols / 3 * cols + i % cols];
        ops_check(&c);
        ops_case_fini(&c);
    }
}

/* For x <= 0 the terms are far larger than what is left of them near 0. */
static void xielu_case(const int64_t *shape, enum ops_data data, bool in_place)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_XIELU, 4, "[%lld, %lld], data %d", (long long)shape[0],
                  (long long)shape[1], data);
    struct gr_args_xielu *a = &c.node.a.xielu;
    *a = (struct gr_args_xielu){.x = wide(&c, shape[0], shape[1], data),
                                .positive = 0.75f,
                                .negative = 1.25f,
                                .linear = 0.5f,
                                .below = -0.0625f};
    a->y = in_place ? a->x : ops_new(&c, GR_F32, 1, shape[0], shape[1]);
    const double *x = ops_values(&c, &a->x);
    struct ops_out *o = ops_expect(&c, &a->y);
    for (int64_t i = 0; i < ops_count(&a->y); i++)
        o->want[i] = x[i] > 0 ? x[i] * (0.75 * x[i] + 0.5)
                              : 1.25 * (exp(fmin(x[i], -0.0625)) - 1) - 0.75 * x[i];
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&a->y); i++) {
        double terms = x[i] > 0 ? x[i] * (x[i] + 1) : 2 * (1 + fabs(x[i]));
        o->tol_ref[i] += terms * 1e-15;
        o->tol_fast[i] += terms * 4 * 0x1p-24;
    }
    ops_check(&c);
    ops_case_fini(&c);
}

Test(xielu, shapes)
{
    for (size_t s = 0; s < GR_COUNT(shapes); s++)
        for (enum ops_data data = 0; data < OPS_N_DATA; data++)
            xielu_case(shapes[s], data, (s + (size_t)data) % 2);
}

static void glu_case(int kind, const int64_t *shape, enum ops_data data, bool in_place)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_GLU, 5, "kind %d, [%lld, %lld], data %d", kind, (long long)shape[0],
                  (long long)shape[1], data);
    struct gr_args_glu *n = &c.node.a.glu;
    *n = (struct gr_args_glu){.a = wide(&c, shape[0], shape[1], data),
                              .b = ops_random(&c, GR_F32, 1, shape[0], shape[1], OPS_SPIKES),
                              .kind = kind};
    n->y = in_place ? n->a : ops_new(&c, GR_F32, 1, shape[0], shape[1]);
    const double *gate = ops_values(&c, &n->a), *up = ops_values(&c, &n->b);
    struct ops_out *o = ops_expect(&c, &n->y);
    for (int64_t i = 0; i < ops_count(&n->y); i++)
        o->want[i] = want_act(kind, gate[i], 0, 0) * up[i];
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&n->y); i++) {
        double act = want_act(kind, gate[i], 0, 0);
        o->tol_ref[i] += slack_ref(kind, gate[i], 0, 0) * fabs(up[i]);
        o->tol_fast[i] +=
            (slack_fast(kind, gate[i], 0, 0, act) + fabs(act) * 0x1p-24 + 0x1p-149) * fabs(up[i]);
    }
    ops_check(&c);
    ops_case_fini(&c);
}

/* Clamped gate and factor: rounding errors of the gate's function and of up + 1. */
static void swiglu_oai_case(const int64_t *shape, enum ops_data data, bool in_place)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_GLU, 5, "swiglu_oai, [%lld, %lld], data %d", (long long)shape[0],
                  (long long)shape[1], data);
    struct gr_args_glu *n = &c.node.a.glu;
    *n = (struct gr_args_glu){.a = wide(&c, shape[0], shape[1], data),
                              .b = wide(&c, shape[0], shape[1], data),
                              .kind = GR_SWIGLU_OAI};
    n->y = in_place ? n->a : ops_new(&c, GR_F32, 1, shape[0], shape[1]);
    const double *gate = ops_values(&c, &n->a), *up = ops_values(&c, &n->b);
    struct ops_out *o = ops_expect(&c, &n->y);
    for (int64_t i = 0; i < ops_count(&n->y); i++)
        o->want[i] =
            want_act(GR_GELU_QUICK, fmin(gate[i], 7), 0, 0) * (fmax(fmin(up[i], 7), -7) + 1);
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&n->y); i++) {
        double x = fmin(gate[i], 7), act = want_act(GR_GELU_QUICK, x, 0, 0);
        double terms = fmin(fabs(up[i]), 7) + 1;
        o->tol_ref[i] += (slack_ref(GR_GELU_QUICK, x, 0, 0) + fabs(act) * 1e-15) * terms;
        o->tol_fast[i] +=
            (slack_fast(GR_GELU_QUICK, x, 0, 0, act) + fabs(act) * 0x1p-23 + 0x1p-149) * terms;
    }
    ops_check(&c);
    ops_case_fini(&c);
}

Test(glu, swiglu_oai)
{
    for (size_t s = 0; s < GR_COUNT(shapes); s++)
        for (enum ops_data data = 0; data < OPS_N_DATA; data++)
            swiglu_oai_case(shapes[s], data, (s + (size_t)data) % 2);
}

Test(glu, gates)
{
    static const int kinds[] = {GR_SILU, GR_GELU, GR_GELU_ERF, GR_GELU_QUICK, GR_RELU, GR_SIGMOID};
    for (size_t k = 0; k < GR_COUNT(kinds); k++)
        for (size_t s = 0; s < GR_COUNT(shapes); s++)
            for (enum ops_data data = 0; data < OPS_N_DATA; data++)
                glu_case(kinds[k], shapes[s], data, (s + (size_t)data) % 2);
}

static void binary_case(int kind, const int64_t *shape, bool one_row, enum ops_data data,
                        bool in_place)
{
    struct ops_case c;
    int64_t cols = shape[1];
    ops_case_init(&c, GR_OP_BINARY, 6, "kind %d, [%lld, %lld], one row %d, data %d", kind,
                  (long long)shape[0], (long long)cols, one_row, data);
    struct gr_args_binary *n = &c.node.a.binary;
    *n = (struct gr_args_binary){
        .a = ops_random(&c, GR_F32, 1, shape[0], cols, data),
        .b = ops_random(&c, GR_F32, 1, one_row ? 1 : shape[0], cols, OPS_NORMAL),
        .kind = kind};
    n->y = in_place ? n->a : ops_new(&c, GR_F32, 1, shape[0], cols);
    const double *a = ops_values(&c, &n->a), *b = ops_values(&c, &n->b);
    struct ops_out *o = ops_expect(&c, &n->y);
    for (int64_t i = 0; i < ops_count(&n->y); i++) {
        double y = b[one_row ? i % cols : i];
        o->want[i] = kind == GR_ADD ? a[i] + y : kind == GR_MUL ? a[i] * y : a[i] / y;
    }
    ops_round_to_f32(o);
    ops_check(&c);
    ops_case_fini(&c);
}

Test(binary, all)
{
    for (int kind = GR_ADD; kind <= GR_DIV; kind++)
        for (size_t s = 0; s < GR_COUNT(shapes); s++)
            for (enum ops_data data = 0; data < OPS_N_DATA; data++)
                binary_case(kind, shapes[s], s % 2, data, data % 2);
}

static void expert_sum_case(int64_t n_tok, int64_t n_used, int64_t n, bool with_res, bool in_place)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_EXPERT_SUM, 7, "%lld tokens, %lld experts, %lld columns, res %d",
                  (long long)n_tok, (long long)n_used, (long long)n, with_res);
    struct gr_args_expert_sum *a = &c.node.a.expert_sum;
    *a = (struct gr_args_expert_sum){.x = ops_random(&c, GR_F32, 1, n_tok * n_used, n, OPS_SPIKES),
                                     .weights =
                                         ops_random(&c, GR_F32, 1, n_tok, n_used, OPS_NORMAL)};
    if (with_res)
        a->res = ops_random(&c, GR_F32, 1, n_tok, n, OPS_NORMAL);
    a->y = with_res && in_place ? a->res : ops_new(&c, GR_F32, 1, n_tok, n);
    const double *x = ops_values(&c, &a->x), *w = ops_values(&c, &a->weights);
    const double *res = with_res ? ops_values(&c, &a->res) : NULL;
    struct ops_out *o = ops_expect(&c, &a->y);
    double *terms = ops_doubles(&c, n_tok * n);
    for (int64_t i = 0; i < n_tok * n; i++) {
        double sum = with_res ? res[i] : 0;
        terms[i] = fabs(sum);
        for (int64_t j = 0; j < n_used; j++) {
            double y = w[i / n * n_used + j] * x[(i / n * n_used + j) * n + i % n];
            sum += y, terms[i] += fabs(y);
        }
        o->want[i] = sum;
    }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < n_tok * n; i++) {
        o->tol_ref[i] += terms[i] * 1e-14;
        o->tol_fast[i] += terms[i] * (double)(n_used + 1) * 0x1p-24; /* one rounding a step */
    }
    ops_check(&c);
    ops_case_fini(&c);
}

Test(expert_sum, all)
{
    expert_sum_case(1, 1, 1, false, false);
    expert_sum_case(3, 2, 65, true, false);
    expert_sum_case(2, 8, 128, true, true);
    expert_sum_case(5, 6, 33, false, false);
}

static void sum_case(int64_t n_tok, int64_t n_shard, int64_t n, bool with_res, bool in_place)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_SUM, 8, "%lld tokens, %lld shards, %lld columns, res %d",
                  (long long)n_tok, (long long)n_shard, (long long)n, with_res);
    struct gr_args_sum *a = &c.node.a.sum;
    a->parts = ops_random(&c, GR_F32, 1, n_shard * n_tok, n, OPS_SPIKES);
    if (with_res)
        a->res = ops_random(&c, GR_F32, 1, n_tok, n, OPS_NORMAL);
    a->y = with_res && in_place ? a->res : ops_new(&c, GR_F32, 1, n_tok, n);
    const double *x = ops_values(&c, &a->parts), *res = with_res ? ops_values(&c, &a->res) : NULL;
    struct ops_out *o = ops_expect(&c, &a->y);
    double *terms = ops_doubles(&c, n_tok * n);
    for (int64_t i = 0; i < n_tok * n; i++) {
        o->want[i] = with_res ? res[i] : 0;
        terms[i] = fabs(o->want[i]);
        for (int64_t s = 0; s < n_shard; s++)
            o->want[i] += x[s * n_tok * n + i], terms[i] += fabs(x[s * n_tok * n + i]);
    }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < n_tok * n; i++) {
        o->tol_ref[i] += terms[i] * 1e-14;
        o->tol_fast[i] += terms[i] * (double)n_shard * 0x1p-24; /* one rounding an addition */
    }
    ops_check(&c);
    ops_case_fini(&c);
}

Test(sum, all)
{
    sum_case(1, 1, 1, false, false);
    sum_case(1, 2, 64, true, false);
    sum_case(3, 3, 65, true, true);
    sum_case(5, 8, 128, false, false);
    sum_case(2, 4, 33, true, false);
}

/* lens [n_seq]: rows of each sequence, which are taken from x in an order of their own. */
static void pool_case(const int32_t *lens, int64_t n_seq, int64_t n)
{
    struct ops_case c;
    int32_t n_item = 0;
    for (int64_t s = 0; s < n_seq; s++)
        n_item += lens[s];
    ops_case_init(&c, GR_OP_POOL, 9, "%lld sequences, %d rows, %lld columns", (long long)n_seq,
                  n_item, (long long)n);
    struct gr_args_pool *a = &c.node.a.pool;
    *a = (struct gr_args_pool){.x = ops_random(&c, GR_F32, 1, n_item, n, OPS_SPIKES),
                               .list = ops_new(&c, GR_I32, 1, 1, n_item),
                               .at = ops_new(&c, GR_I32, 1, 1, n_seq + 1),
                               .y = ops_new(&c, GR_F32, 1, n_seq, n)};
    int32_t *list = a->list.data, *at = a->at.data;
    for (int32_t i = 0; i < n_item; i++)
        list[i] = n_item - 1 - i;
    at[0] = 0;
    const double *x = ops_values(&c, &a->x);
    struct ops_out *o = ops_expect(&c, &a->y);
    double *terms = ops_doubles(&c, n_seq * n);
    for (int64_t s = 0; s < n_seq; s++) {
        at[s + 1] = at[s] + lens[s];
        for (int64_t k = 0; k < n; k++) {
            double all = 0, size = 0;
            for (int32_t i = at[s]; i < at[s + 1]; i++)
                all += x[list[i] * n + k], size += fabs(x[list[i] * n + k]);
            o->want[s * n + k] = lens[s] ? all / lens[s] : 0;
            terms[s * n + k] = lens[s] ? size / lens[s] : 0;
        }
    }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < n_seq * n; i++) {
        o->tol_ref[i] += terms[i] * 1e-14;
        /* one rounding an addition, one of the division */
        o->tol_fast[i] += terms[i] * (double)(lens[i / n] + 1) * 0x1p-24;
    }
    ops_check(&c);
    ops_case_fini(&c);
}

Test(pool, all)
{
    static const int32_t some[] = {1, 7, 0, 2, 33};
    pool_case(some, 1, 1);
    pool_case(some, 5, 64);
    pool_case(some + 1, 3, 65);
    pool_case(some + 4, 1, 384);
}
