#include <criterion/criterion.h>
#include <math.h>

#include "base/checked.h"
#include "ops/ops.h"

struct shape {
    int kind;
    int64_t n_tok, n_group, group, n_w; /* n_w rows of weights, 0 = none */
    bool bias, res, in_place;
};

/* Fast: sums in f64, then one f32 rounding each of x - mean, of the factor, and after every step.
 */
static void expect(struct ops_case *c, const struct gr_args_norm *a)
{
    int64_t n = a->x.cols, group = a->group;
    const double *x = ops_values(c, &a->x),
                 *res = gr_ten_is(&a->res) ? ops_values(c, &a->res) : NULL;
    const double *w = gr_ten_is(&a->w) ? ops_values(c, &a->w) : NULL;
    const double *b = gr_ten_is(&a->b) ? ops_values(c, &a->b) : NULL;
    struct ops_out *o = ops_expect(c, &a->y);
    double *terms = ops_doubles(c, ops_count(&a->y));
    double mean = 0, var = 0, largest = 0; /* of the group */
    for (int64_t i = 0; i < ops_count(&a->y); i++) {
        int64_t first = i - i % n + i % n / group * group, col = i - first;
        int64_t wi = w ? i % n / group % a->w.rows * group + col : 0;
        if (col == 0)
            mean = var = largest = 0;
        for (int64_t k = i; k < i + group && col == 0 && a->kind == GR_NORM_LAYER; k++)
            mean += x[k] / (double)group;
        for (int64_t k = i; k < i + group && col == 0; k++) {
            var += (x[k] - mean) * (x[k] - mean) / (double)group;
            largest = fmax(largest, fabs(x[k]));
        }
        double f = 1 / sqrt(var + (double)a->eps) * (w ? w[wi] : 1);
        o->want[i] = (x[i] - mean) * f + (b ? b[wi] : 0) + (res ? res[i] : 0);
        terms[i] = (fabs(x[i]) + fabs(mean)) * fabs(f) + (b ? fabs(b[wi]) : 0) +
                   (res ? fabs(res[i]) : 0) + largest * fabs(f) * 1e-7;
    }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&a->y); i++) {
        o->tol_ref[i] += terms[i] * 1e-12;
        o->tol_fast[i] += 6 * 0x1p-24 * terms[i];
    }
}

static void norm_case(struct shape s, enum ops_data data)
{
    struct ops_case c;
    int64_t n = s.n_group * s.group;
    ops_case_init(&c, GR_OP_NORM, 3, "kind %d, [%lld, %lld x %lld], %lld rows of weights, data %d",
                  s.kind, (long long)s.n_tok, (long long)s.n_group, (long long)s.group,
                  (long long)s.n_w, data);
    struct gr_args_norm *a = &c.node.a.norm;
    *a = (struct gr_args_norm){.x = ops_random(&c, GR_F32, 1, s.n_tok, n, data),
                               .group = s.group,
                               .eps = 1e-5f,
                               .kind = s.kind};
    if (s.n_w)
        a->w = ops_random(&c, GR_F32, 1, s.n_w, s.group, OPS_NORMAL);
    if (s.n_w && s.bias)
        a->b = ops_random(&c, GR_F32, 1, s.n_w, s.group, OPS_NORMAL);
    if (s.res)
        a->res = ops_random(&c, GR_F32, 1, s.n_tok, n, OPS_NORMAL);
    a->y = s.in_place ? a->x : ops_new(&c, GR_F32, 1, s.n_tok, n);
    expect(&c, a);
    ops_check(&c);
    ops_case_fini(&c);
}

static const struct shape shapes[] = {
    {GR_NORM_RMS, 1, 1, 1, 1, false, false, false},
    {GR_NORM_RMS, 1, 1, 2048, 1, false, false, false},
    {GR_NORM_RMS, 3, 1, 77, 1, false, true, false},
    {GR_NORM_RMS, 5, 1, 96, 1, true, true, true},
    {GR_NORM_RMS, 4, 8, 64, 1, false, false, true},  /* one weight for all heads */
    {GR_NORM_RMS, 3, 6, 80, 2, false, false, false}, /* weights repeat over the groups */
    {GR_NORM_RMS, 2, 3, 33, 0, false, false, false}, /* no weight */
    {GR_NORM_LAYER, 1, 1, 2, 1, false, false, false},
    {GR_NORM_LAYER, 3, 1, 768, 1, true, false, false},
    {GR_NORM_LAYER, 2, 4, 31, 4, true, true, true},
    {GR_NORM_LAYER, 2, 1, 5120, 1, true, true, false}, /* a block's, and beyond what it holds */
    {GR_NORM_RMS, 1, 1, 16640, 1, false, true, true},
    {GR_NORM_LAYER, 1, 1, 16641, 1, true, false, false},
};

Test(norm, all)
{
    for (size_t i = 0; i < GR_COUNT(shapes); i++)
        for (enum ops_data data = 0; data < OPS_N_DATA; data++)
            norm_case(shapes[i], data);
}
