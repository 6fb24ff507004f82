#include <criterion/criterion.h>
#include <math.h>

#include "base/checked.h"
#include "ops/ops.h"

#define U 0x1p-24 /* half a unit in the last place of 1 */

struct shape {
    int64_t rows, n;
    bool first, last;
};

/* The score of a row. *off: in units of U, what its own rounding makes of it: a dot product and a
 * sum of n squares, each step off by one. */
static double score(const double *x, const double *w, int64_t n, double eps, double *off)
{
    double dot = 0, size = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        dot += x[i] * w[i], size += fabs(x[i] * w[i]), squares += x[i] * x[i];
    double rms = sqrt(squares / (double)n + eps);
    *off = ((double)n + 8) * (size + fabs(dot)) / rms;
    return dot / rms;
}

/* exp turns an error of its exponent into a relative one; weights are products of up to four such
 * numbers, quotients and sums. The reference rounds its result only. */
static void expect(struct ops_case *c, const struct gr_args_blend *a)
{
    int64_t n = a->x.cols;
    const double *x = ops_values(c, &a->x), *w = ops_values(c, &a->w);
    const double *acc = gr_ten_is(&a->acc) ? ops_values(c, &a->acc) : NULL;
    const double *stat = acc ? ops_values(c, &a->stat) : NULL;
    struct ops_out *o = ops_expect(c, &a->y), *st = ops_expect(c, &a->stat_y);
    double *tol = ops_doubles(c, a->x.rows * n), *stat_tol = ops_doubles(c, a->x.rows * 2);
    for (int64_t r = 0; r < a->x.rows; r++) {
        double off, s = score(x + r * n, w, n, (double)a->eps, &off), most = s, before = 0, sum = 0;
        if (acc) {
            most = fmax(s, stat[2 * r]);
            before = exp(stat[2 * r] - most), sum = before * stat[2 * r + 1];
        }
        double own = exp(s - most), f,
               units = 24 + 2 * off + fabs(s - most) + (acc ? fabs(stat[2 * r] - most) : 0);
        sum += own, f = a->last ? 1 / sum : 1;
        st->want[2 * r] = most, st->want[2 * r + 1] = sum;
        stat_tol[2 * r] = off, stat_tol[2 * r + 1] = units * sum;
        for (int64_t i = 0; i < n; i++) {
            double was = acc ? before * acc[r * n + i] : 0, now = own * x[r * n + i];
            o->want[r * n + i] = f * (was + now);
            tol[r * n + i] = f * (fabs(was) + fabs(now));
        }
        for (int64_t i = 0; i < n; i++)
            tol[r * n + i] *= units;
    }
    ops_round_to_f32(o), ops_round_to_f32(st);
    for (int64_t i = 0; i < a->x.rows * n; i++)
        o->tol_ref[i] += 1e-11 * tol[i], o->tol_fast[i] += U * tol[i] + 0x1p-126;
    for (int64_t i = 0; i < a->x.rows * 2; i++)
        st->tol_ref[i] += 1e-11 * stat_tol[i], st->tol_fast[i] += U * stat_tol[i];
}

static void run(const struct shape *s)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_BLEND, 27, "%lld x %lld, first %d, last %d", (long long)s->rows,
                  (long long)s->n, s->first, s->last);
    struct gr_args_blend *a = &c.node.a.blend;
    *a = (struct gr_args_blend){.x = ops_random(&c, GR_F32, 1, s->rows, s->n, OPS_NORMAL),
                                .w = ops_random(&c, GR_F32, 1, 1, s->n, OPS_NORMAL),
                                .eps = 1e-5f,
                                .last = s->last};
    for (int64_t i = 0; i < s->n; i++) /* so that scores are small enough to tell sources apart */
        ((float *)a->w.data)[i] /= sqrtf((float)s->n);
    if (!s->first) {
        a->acc = ops_random(&c, GR_F32, 1, s->rows, s->n, OPS_NORMAL);
        a->stat = ops_random(&c, GR_F32, 1, s->rows, 2, OPS_NORMAL);
        for (int64_t r = 0; r < s->rows; r++) {
            float *sum = (float *)gr_ten_row(&a->stat, 0, r) + 1;
            *sum = 1 + fabsf(*sum);
        }
    }
    a->y = ops_new(&c, GR_F32, 1, s->rows, s->n);
    a->stat_y = ops_new(&c, GR_F32, 1, s->rows, 2);
    expect(&c, a);
    ops_check(&c);
    ops_case_fini(&c);
}

Test(blend, all)
{
    static const struct shape shapes[] = {{1, 1, true, false},   {3, 64, true, false},
                                          {3, 64, false, false}, {2, 300, false, true},
                                          {5, 7, false, true},   {1, 1024, true, true}};
    for (size_t i = 0; i < GR_COUNT(shapes); i++)
        run(&shapes[i]);
}
