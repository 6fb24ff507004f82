/* NORM: each group of columns of a row scaled to root mean square 1, or to mean 0, variance 1. */
#include <math.h>

#include "cpu/ref/ref.h"

/* Computes the mean to subtract and the factor to multiply by. */
static void moments(const float *x, int64_t n, int kind, double eps, double *mean, double *inv)
{
    double sum = 0, sq = 0;
    if (kind == GR_NORM_LAYER)
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i];
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        sq += ((double)x[i] - *mean) * ((double)x[i] - *mean);
    *inv = 1 / sqrt(sq / (double)n + eps);
}

static void norm(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_norm *a = &node->a.norm;
    int64_t per_row = a->x.cols / a->group;
    struct gr_cpu_share s = gr_cpu_share(a->x.rows * per_row, 1, work);
    for (int64_t i = s.lo; i < s.hi; i++) {
        int64_t t = i / per_row, g = i % per_row, first = g * a->group;
        const float *x = gr_cpu_f32(&a->x, t) + first;
        const float *w = gr_ten_is(&a->w) ? gr_cpu_f32(&a->w, g % a->w.rows) : NULL;
        const float *b = gr_ten_is(&a->b) ? gr_cpu_f32(&a->b, g % a->b.rows) : NULL;
        const float *res = gr_ten_is(&a->res) ? gr_cpu_f32(&a->res, t) + first : NULL;
        float *y = gr_cpu_f32(&a->y, t) + first;
        double mean, inv;
        moments(x, a->group, a->kind, (double)a->eps, &mean, &inv);
        for (int64_t c = 0; c < a->group; c++) {
            double v = ((double)x[c] - mean) * inv;
            v = w ? v * (double)w[c] : v;
            v = b ? v + (double)b[c] : v;
            v = res ? v + (double)res[c] : v;
            y[c] = (float)v;
        }
    }
}

const struct gr_cpu_impl gr_ref_norm = {norm, NULL, NULL};
