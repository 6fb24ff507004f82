#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "ops/state.h"

#define U 0x1p-24 /* half a unit in the last place of 1 */

struct shape {
    int first, n_seq;
    int64_t per, n_head, n_head_k, d_k, d_v;
    bool each, bias, tiled; /* each: a decay for every row of the state */
    float bound, slope;
};

/* A head of one sequence as it goes: S [d_k][d_v] and, for each of its columns, bounds of the
 * length of what it is off by. */
struct head {
    const struct gr_args_delta_rule *a;
    int64_t h, d_k, d_v;
    double *s, *q, *k, *decay, *ref, *fast;
};

static double unit(const double *x, int64_t n, double eps, double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum + eps);
    return sqrt(sum / (sum + eps));
}

/* Column j. D (I - beta k k^T) lengthens nothing by more than the largest decay, so an error of
 * length e becomes at most largest * e, and the rounding of this step comes on top: ref rounds the
 * state; fast the decays (by `power` and 5 units: 9 of the exponent, and what
 * the rounding of alpha + bias makes of it), sums of d_k products and a few single
 * operations. */
static void column(struct head *h, int64_t j, double v, double beta, double largest, double power,
                   double q_length, double *y, double *tol)
{
    double known = 0, before = 0, after = 0;
    for (int64_t i = 0; i < h->d_k; i++) {
        double s = h->s[i * h->d_v + j] *= h->decay[i];
        known += s * h->k[i];
        before += s * s;
    }
    *y = 0;
    for (int64_t i = 0; i < h->d_k; i++) {
        double s = h->s[i * h->d_v + j] += beta * (v - known) * h->k[i];
        *y += s * h->q[i];
        after += s * s;
    }
    double scale = 1 / sqrt((double)h->d_k), size = sqrt(before) + fabs(v) + sqrt(after);
    h->ref[j] = largest * h->ref[j] + U * sqrt(after) + 1e-12 * size;
    h->fast[j] = largest * h->fast[j] + U * (power + (double)h->d_k + 24) * size + 0x1p-126 * size;
    *y *= scale;
    tol[0] = scale * q_length * (h->ref[j] + 1e-12 * sqrt(after));
    tol[1] = scale * q_length * (h->fast[j] + U * ((double)h->d_k + 12) * sqrt(after));
}

static void decays(struct head *h, const double *alpha, const double *bias, const double *rate,
                   double *largest, double *power)
{
    int64_t per = h->a->alpha.cols / h->a->n_head;
    *largest = *power = 0;
    for (int64_t i = 0; i < h->d_k; i++) {
        int64_t at = h->h * per + (per == 1 ? 0 : i);
        double x = alpha[at] + (bias ? bias[at] : 0), e = rate[h->h] * log1p(exp(x));
        if (h->a->bound != 0)
            x *= (double)h->a->slope * rate[h->h], e = (double)h->a->bound / (1 + exp(-x));
        h->decay[i] = exp(e);
        *largest = fmax(*largest, exp(e)), *power = fmax(*power, (9 + 3 * fabs(x)) * fabs(e));
    }
}

static void expect(struct ops_case *c, const struct gr_args_delta_rule *a)
{
    int64_t d_k = a->q.cols / a->n_head_k, d_v = a->v.cols / a->n_head, n = a->state.cols;
    int64_t n_seq = a->src.cols, per = a->v.rows / n_seq, size = d_k * d_v;
    const double *q = ops_values(c, &a->q), *k = ops_values(c, &a->k), *v = ops_values(c, &a->v);
    const double *alpha = ops_values(c, &a->alpha), *beta = ops_values(c, &a->beta);
    const double *bias = gr_ten_is(&a->dt_bias) ? ops_values(c, &a->dt_bias) : NULL;
    const double *rate = ops_values(c, &a->a);
    struct ops_out *state = state_expect(c, &a->state), *o = ops_expect(c, &a->y);
    double *tol = ops_doubles(c, 2 * ops_count(&a->y));
    struct head h = {
        a,    0,   d_k, d_v, NULL, ops_doubles(c, d_k), ops_doubles(c, d_k), ops_doubles(c, d_k),
        NULL, NULL};
    for (int64_t r = 0; r < n_seq; r++) {
        double *all = state_from(c, &a->state, ((const int32_t *)a->src.data)[r]);
        double *ref = ops_doubles(c, n), *fast = ops_doubles(c, n);
        for (h.h = 0; h.h < a->n_head; h.h++) {
            int64_t hk = a->tiled ? h.h % a->n_head_k : h.h * a->n_head_k / a->n_head;
            h.s = all + h.h * size;
            h.ref = ops_doubles(c, d_v), h.fast = ops_doubles(c, d_v);
            for (int64_t t = r * per; t < (r + 1) * per; t++) {
                double largest, power, b = 1 / (1 + exp(-beta[t * a->n_head + h.h]));
                double length = unit(q + t * a->q.cols + hk * d_k, d_k, (double)a->eps, h.q);
                unit(k + t * a->q.cols + hk * d_k, d_k, (double)a->eps, h.k);
                decays(&h, alpha + t * a->alpha.cols, bias, rate, &largest, &power);
                for (int64_t j = 0; j < d_v; j++) {
                    int64_t at = t * a->v.cols + h.h * d_v + j;
                    column(&h, j, v[at], b, largest, power, length, &o->want[at], &tol[2 * at]);
                }
            }
            for (int64_t i = 0; i < size; i++)
                ref[h.h * size + i] = h.ref[i % d_v] + 0x1p-149,
                                 fast[h.h * size + i] = h.fast[i % d_v] + 0x1p-149;
        }
        state_set(state, ((const int32_t *)a->dst.data)[r], all, ref, fast);
    }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&a->y); i++)
        o->tol_ref[i] += tol[2 * i], o->tol_fast[i] += tol[2 * i + 1];
}

static void init(struct ops_case *c, const struct shape *s, enum ops_data data)
{
    ops_case_init(c, GR_OP_DELTA_RULE, 24,
                  "%d x %lld tokens, %lld/%lld heads of %lld x %lld, data %d", s->n_seq,
                  (long long)s->per, (long long)s->n_head, (long long)s->n_head_k,
                  (long long)s->d_k, (long long)s->d_v, data);
    int64_t n_tok = s->n_seq * s->per, n_alpha = s->n_head * (s->each ? s->d_k : 1);
    struct gr_args_delta_rule *a = &c->node.a.delta_rule;
    *a = (struct gr_args_delta_rule){
        .q = ops_random(c, GR_F32, 1, n_tok, s->n_head_k * s->d_k, data),
        .k = ops_random(c, GR_F32, 1, n_tok, s->n_head_k * s->d_k, data),
        .v = ops_random(c, GR_F32, 1, n_tok, s->n_head * s->d_v, data),
        .alpha = ops_random(c, GR_F32, 1, n_tok, n_alpha, OPS_NORMAL),
        .a = ops_random(c, GR_F32, 1, 1, s->n_head, OPS_NORMAL),
        .beta = ops_random(c, GR_F32, 1, n_tok, s->n_head, OPS_NORMAL),
        .src = state_array(c, state_src, s->first, s->n_seq),
        .dst = state_array(c, state_dst, s->first, s->n_seq),
        .n_head = s->n_head,
        .n_head_k = s->n_head_k,
        .eps = 1e-6f,
        .bound = s->bound,
        .slope = s->slope,
        .tiled = s->tiled};
    for (int64_t h = 0; h < s->n_head; h++)
        ((float *)a->a.data)[h] = -fabsf(((float *)a->a.data)[h]);
    if (s->bias)
        a->dt_bias = ops_random(c, GR_F32, 1, 1, n_alpha, OPS_NORMAL);
    a->state = ops_random(c, GR_F32, 1, STATE_ROWS, s->n_head * s->d_k * s->d_v, data);
    a->y = ops_new(c, GR_F32, 1, n_tok, s->n_head * s->d_v);
}

static const struct shape shapes[] = {
    {0, 1, 1, 1, 1, 1, 1, false, false, false, 0, 0},
    {0, 3, 5, 4, 2, 32, 32, false, true, true, 0, 0},
    {0, 3, 5, 4, 2, 32, 32, false, true, false, 0, 0},
    {1, 1, 13, 3, 3, 9, 21, true, true, false, 0, 0},
    {1, 2, 4, 2, 1, 64, 40, true, false, false, 0, 0},
    {1, 2, 6, 3, 3, 17, 24, true, true, false, -5, 1},
    {0, 1, 5, 2, 2, 32, 16, true, true, false, -3, -1},
    {0, 2, 3, 2, 1, 128, 20, false, true, false, 0, 0}, /* keys of each width that kernels have */
    {1, 1, 4, 1, 1, 200, 12, true, true, false, 0, 0},
    {0, 1, 3, 1, 1, 256, 8, false, false, false, 0, 0},
};

Test(delta_rule, all)
{
    for (size_t i = 0; i < GR_COUNT(shapes); i++)
        for (enum ops_data data = 0; data < OPS_N_DATA; data++) {
            struct ops_case c;
            init(&c, &shapes[i], data);
            expect(&c, &c.node.a.delta_rule);
            ops_check(&c);
            ops_case_fini(&c);
        }
}

static void cut(struct ops_case *c, int64_t lo, int64_t hi)
{
    static const struct shape whole = {2, 1, 9, 2, 1, 10, 19, false, true, false, 0, 0};
    init(c, &whole, OPS_NORMAL);
    struct gr_args_delta_rule *a = &c->node.a.delta_rule;
    a->q = state_rows(a->q, lo, hi), a->k = state_rows(a->k, lo, hi),
    a->v = state_rows(a->v, lo, hi);
    a->alpha = state_rows(a->alpha, lo, hi), a->beta = state_rows(a->beta, lo, hi);
    a->y = state_rows(a->y, 0, hi - lo);
    *(int32_t *)a->src.data = (lo ? state_dst : state_src)[2];
}

Test(delta_rule, a_cut_changes_no_bit)
{
    for (int64_t n = 1; n < 9; n++)
        state_check_cut(cut, n, 9);
}
