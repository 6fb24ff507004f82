#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "ops/state.h"

#define U 0x1p-24 /* half a unit in the last place of 1 */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* ---- the convolution ---- */

/* Fast: each product and sum rounded, then the bias; SILU's slope is below 1.1, its own error below
 * 6 units. */
static void expect_conv(struct ops_case *c, const struct gr_args_ssm_conv *a)
{
    int64_t n = a->x.cols, k = a->w.cols, n_seq = a->src.cols, per = a->x.rows / n_seq;
    const double *x = ops_values(c, &a->x), *w = ops_values(c, &a->w);
    const double *b = gr_ten_is(&a->b) ? ops_values(c, &a->b) : NULL;
    double *all = ops_doubles(c, (k - 1 + per) * n), *none = ops_doubles(c, (k - 1) * n);
    struct ops_out *state = state_expect(c, &a->state), *o = ops_expect(c, &a->y);
    double *terms = ops_doubles(c, ops_count(&a->y));
    for (int64_t q = 0; q < n_seq; q++) {
        const double *past = state_from(c, &a->state, ((const int32_t *)a->src.data)[q]);
        memcpy(all, past, (size_t)((k - 1) * n) * sizeof *all);
        memcpy(all + (k - 1) * n, x + q * per * n, (size_t)(per * n) * sizeof *all);
        for (int64_t i = 0; i < per * n; i++) {
            double sum = b ? b[i % n] : 0, abs = fabs(sum);
            for (int64_t j = 0; j < k; j++) {
                sum += w[i % n * k + j] * all[i + j * n];
                abs += fabs(w[i % n * k + j] * all[i + j * n]);
            }
            o->want[q * per * n + i] = a->kind == GR_SILU ? silu(sum) : sum;
            terms[q * per * n + i] = abs;
        }
        state_set(state, ((const int32_t *)a->dst.data)[q], all + per * n, none, none);
    }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&a->y); i++) {
        o->tol_ref[i] += 1e-12 * terms[i];
        o->tol_fast[i] += U * (1.1 * (double)(k + 1) * terms[i] + 6 * fabs(o->want[i]));
    }
}

static void conv_case(int first, int n_seq, int64_t per, int64_t n, int64_t n_kernel, bool bias,
                      int kind, enum ops_data data)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_SSM_CONV, 21, "%d x %lld tokens, %lld columns, kernel %lld, data %d",
                  n_seq, (long long)per, (long long)n, (long long)n_kernel, data);
    struct gr_args_ssm_conv *a = &c.node.a.ssm_conv;
    *a = (struct gr_args_ssm_conv){
        .x = ops_random(&c, GR_F32, 1, n_seq * per, n, data),
        .w = ops_random(&c, GR_F32, 1, n, n_kernel, OPS_NORMAL),
        .src = state_array(&c, state_src, first, n_seq),
        .dst = state_array(&c, state_dst, first, n_seq),
        .state = ops_random(&c, GR_F32, 1, STATE_ROWS, (n_kernel - 1) * n, data),
        .y = ops_new(&c, GR_F32, 1, n_seq * per, n),
        .kind = kind};
    if (bias)
        a->b = ops_random(&c, GR_F32, 1, 1, n, OPS_NORMAL);
    expect_conv(&c, a);
    ops_check(&c);
    ops_case_fini(&c);
}

Test(ssm_conv, all)
{
    for (enum ops_data data = 0; data < OPS_N_DATA; data++) {
        conv_case(0, 1, 1, 1, 4, true, GR_SILU, data);
        conv_case(1, 1, 1, 33, 4, false, GR_SILU, data);
        conv_case(0, 3, 2, 96, 4, true, GR_SILU, data); /* fewer tokens than the kernel remembers */
        conv_case(0, 3, 9, 47, 3, false, GR_LINEAR, data);
        conv_case(2, 1, 5, 130, 2, true, GR_LINEAR, data);
        conv_case(0, 2, 4, 20, 7, true, GR_SILU, data);
    }
}

/* ---- the scan ---- */

struct scan {
    int first, n_seq;
    int64_t per, n_head, d_head, n_group, n_state;
    bool each; /* a rate for each number of the state (Mamba 1) */
    bool bias, d, z;
};

/* One token and column, with bounds of what the state is off by. ref rounds the state to f32; fast
 * dt' by 8 units and by what the rounding of dt + bias makes of it, the exponent by one more and
 * exp by 4, each product and sum by one. Its silu is 0 below -87. */
struct cell {
    double h, ref, fast;
};

static void scan_one(const struct gr_args_ssm_scan *a, struct cell *h, double x, double raw,
                     const double *rate, const double *b, const double *c, double *y, double *terms)
{
    double dt = log1p(exp(raw)), off = 8 + fabs(raw);
    for (int64_t s = 0; s < a->n_state; s++) {
        double r = rate[a->a.cols == 1 ? 0 : s], decay = exp(dt * r), in = dt * b[s] * x;
        double out = decay * h[s].h + in, large = fabs(decay * h[s].h) + fabs(in);
        h[s].ref = decay * h[s].ref + (U + 1e-12) * large;
        h[s].fast = decay * h[s].fast +
                    U * (fabs(decay * h[s].h) * ((off + 1) * fabs(dt * r) + 5) +
                         (off + 4) * fabs(in) + large) +
                    0x1p-126 * (fabs(h[s].h) + 1);
        h[s].h = out;
        *y += c[s] * out;
        terms[0] += fabs(c[s]) * (h[s].ref + 1e-12 * fabs(out));
        terms[1] += fabs(c[s]) * (h[s].fast + U * ((double)a->n_state / 4 + 6) * fabs(out));
    }
}

static void expect_scan(struct ops_case *c, const struct gr_args_ssm_scan *a)
{
    int64_t n = a->x.cols, n_head = a->dt.cols, n_seq = a->src.cols, per = a->x.rows / n_seq;
    int64_t n_group = a->b.cols / a->n_state, ns = a->n_state;
    const double *x = ops_values(c, &a->x), *dt = ops_values(c, &a->dt), *b = ops_values(c, &a->b);
    const double *cc = ops_values(c, &a->c), *rate = ops_values(c, &a->a);
    const double *bias = gr_ten_is(&a->dt_bias) ? ops_values(c, &a->dt_bias) : NULL;
    const double *d = gr_ten_is(&a->d) ? ops_values(c, &a->d) : NULL;
    const double *z = gr_ten_is(&a->z) ? ops_values(c, &a->z) : NULL;
    struct ops_out *state = state_expect(c, &a->state), *o = ops_expect(c, &a->y);
    double *tol[2] = {ops_doubles(c, ops_count(&a->y)), ops_doubles(c, ops_count(&a->y))};
    double *want = ops_doubles(c, ns * n), *ref = ops_doubles(c, ns * n),
           *fast = ops_doubles(c, ns * n);
    for (int64_t q = 0; q < n_seq; q++) {
        const double *from = state_from(c, &a->state, ((const int32_t *)a->src.data)[q]);
        for (int64_t i = 0; i < n; i++) {
            struct cell h[512] = {{0, 0, 0}};
            int64_t head = i * n_head / n, group = head * n_group / n_head;
            for (int64_t s = 0; s < ns; s++)
                h[s].h = from[s * n + i];
            for (int64_t t = q * per; t < (q + 1) * per; t++) {
                double raw = dt[t * n_head + head] + (bias ? bias[head] : 0);
                double y = 0, terms[2] = {0, 0}, u = x[t * n + i];
                double gate = z ? silu(z[t * n + i]) : 1;
                scan_one(a, h, u, raw, rate + head * a->a.cols, b + t * a->b.cols + group * ns,
                         cc + t * a->b.cols + group * ns, &y, terms);
                y += d ? d[head] * u : 0;
                o->want[t * n + i] = y * gate;
                tol[0][t * n + i] = fabs(gate) * (terms[0] + (d ? fabs(d[head] * u) * 1e-12 : 0));
                tol[1][t * n + i] = fabs(gate) * (terms[1] + U * (d ? 3 * fabs(d[head] * u) : 0)) +
                                    9 * U * fabs(y * gate) + 1e-36 * fabs(y);
            }
            for (int64_t s = 0; s < ns; s++)
                want[s * n + i] = h[s].h, ref[s * n + i] = h[s].ref, fast[s * n + i] = h[s].fast;
        }
        state_set(state, ((const int32_t *)a->dst.data)[q], want, ref, fast);
    }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&a->y); i++)
        o->tol_ref[i] += tol[0][i], o->tol_fast[i] += tol[1][i];
}

/* Rates are negative, between -10 and 0. */
static struct gr_ten rates(struct ops_case *c, int64_t rows, int64_t cols)
{
    struct gr_ten t = ops_random(c, GR_F32, 1, rows, cols, OPS_NORMAL);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            float *v = (float *)gr_ten_row(&t, 0, r) + i;
            *v = -fminf(expf(*v), 10);
        }
    return t;
}

static void scan_init(struct ops_case *c, const struct scan *s, enum ops_data data)
{
    ops_case_init(c, GR_OP_SSM_SCAN, 22,
                  "%d x %lld tokens, %lld x %lld columns, state %lld, data %d", s->n_seq,
                  (long long)s->per, (long long)s->n_head, (long long)s->d_head,
                  (long long)s->n_state, data);
    int64_t n_tok = s->n_seq * s->per, n = s->n_head * s->d_head;
    struct gr_args_ssm_scan *a = &c->node.a.ssm_scan;
    *a = (struct gr_args_ssm_scan){
        .x = ops_random(c, GR_F32, 1, n_tok, n, data),
        .dt = ops_random(c, GR_F32, 1, n_tok, s->n_head, OPS_NORMAL),
        .a = rates(c, s->n_head, s->each ? s->n_state : 1),
        .b = ops_random(c, GR_F32, 1, n_tok, s->n_group * s->n_state, OPS_NORMAL),
        .c = ops_random(c, GR_F32, 1, n_tok, s->n_group * s->n_state, OPS_NORMAL),
        .src = state_array(c, state_src, s->first, s->n_seq),
        .dst = state_array(c, state_dst, s->first, s->n_seq),
        .n_state = s->n_state};
    if (s->bias)
        a->dt_bias = ops_random(c, GR_F32, 1, 1, s->n_head, OPS_NORMAL);
    if (s->d)
        a->d = ops_random(c, GR_F32, 1, 1, s->n_head, OPS_NORMAL);
    if (s->z)
        a->z = ops_random(c, GR_F32, 1, n_tok, n, data);
    a->state = ops_random(c, GR_F32, 1, STATE_ROWS, s->n_state * n, data);
    a->y = ops_new(c, GR_F32, 1, n_tok, n);
}

static const struct scan scans[] = {
    {0, 1, 1, 1, 1, 1, 1, false, false, false, false},
    {0, 3, 4, 40, 1, 1, 16, true, false, true, true}, /* Mamba 1 */
    {1, 1, 7, 33, 1, 1, 5, true, true, true, false},
    {0, 3, 3, 4, 64, 2, 32, false, true, true, true},  /* Mamba 2 */
    {2, 1, 20, 6, 5, 3, 11, false, true, false, true}, /* heads and groups across vectors */
    {0, 2, 9, 2, 24, 1, 64, true, false, false, false},
    {0, 2, 3, 2, 6, 1, 128, true, true, true, false}, /* states of each number that kernels have */
    {0, 1, 3, 2, 5, 2, 200, false, true, true, true},
    {1, 2, 2, 3, 1, 1, 512, true, true, false, true},
};

Test(ssm_scan, all)
{
    for (size_t i = 0; i < GR_COUNT(scans); i++)
        for (enum ops_data data = 0; data < OPS_N_DATA; data++) {
            struct ops_case c;
            scan_init(&c, &scans[i], data);
            expect_scan(&c, &c.node.a.ssm_scan);
            ops_check(&c);
            ops_case_fini(&c);
        }
}

/* dt far from 0: softplus is dt, or so small that the state stays. */
Test(ssm_scan, steps_of_any_size)
{
    for (int large = 0; large < 2; large++) {
        struct ops_case c;
        scan_init(&c, &scans[3], OPS_NORMAL);
        struct gr_ten *dt = &c.node.a.ssm_scan.dt;
        for (int64_t t = 0; t < dt->rows; t++)
            for (int64_t h = 0; h < dt->cols; h++)
                ((float *)gr_ten_row(dt, 0, t))[h] *= large ? 40 : 12;
        expect_scan(&c, &c.node.a.ssm_scan);
        ops_check(&c);
        ops_case_fini(&c);
    }
}

/* ---- steps ---- */

static void cut_conv(struct ops_case *c, int64_t lo, int64_t hi)
{
    ops_case_init(c, GR_OP_SSM_CONV, 23, "tokens %lld to %lld", (long long)lo, (long long)hi);
    struct gr_args_ssm_conv *a = &c->node.a.ssm_conv;
    *a = (struct gr_args_ssm_conv){
        .x = state_rows(ops_random(c, GR_F32, 1, 11, 50, OPS_NORMAL), lo, hi),
        .w = ops_random(c, GR_F32, 1, 50, 4, OPS_NORMAL),
        .src = state_array(c, lo ? state_dst : state_src, 2, 1),
        .dst = state_array(c, state_dst, 2, 1),
        .kind = GR_SILU};
    a->state = ops_random(c, GR_F32, 1, STATE_ROWS, 3 * 50, OPS_NORMAL);
    a->y = ops_new(c, GR_F32, 1, hi - lo, 50);
}

Test(ssm_conv, a_cut_changes_no_bit)
{
    for (int64_t n = 1; n < 11; n++)
        state_check_cut(cut_conv, n, 11);
}

static void cut_scan(struct ops_case *c, int64_t lo, int64_t hi)
{
    static const struct scan whole = {2, 1, 11, 3, 20, 1, 9, false, true, true, true};
    scan_init(c, &whole, OPS_NORMAL);
    struct gr_args_ssm_scan *a = &c->node.a.ssm_scan;
    a->x = state_rows(a->x, lo, hi), a->dt = state_rows(a->dt, lo, hi),
    a->z = state_rows(a->z, lo, hi);
    a->b = state_rows(a->b, lo, hi), a->c = state_rows(a->c, lo, hi),
    a->y = state_rows(a->y, 0, hi - lo);
    *(int32_t *)a->src.data = (lo ? state_dst : state_src)[2];
}

Test(ssm_scan, a_cut_changes_no_bit)
{
    for (int64_t n = 1; n < 11; n++)
        state_check_cut(cut_scan, n, 11);
}
