/* NORM. Moments are summed in f64 (VL / 2 lanes a register), to avoid overflow and cancellation;
 * the rest is f32. */
#include <math.h>

#include "cpu/fast/fast.h"

/* sum of (x - mean)^power over n columns, power 1 or 2. Plain C with eight partial sums, so that
 * the compiler can vectorise. */
GR_INLINE double sum_of(const float *x, int64_t n, double mean, int power)
{
    double part[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) {
            double v = (double)x[i + k] - mean;
            part[k] += power == 1 ? v : v * v;
        }
    for (int k = 0; i + k < n; k++) {
        double v = (double)x[i + k] - mean;
        part[k] += power == 1 ? v : v * v;
    }
    return (part[0] + part[1] + part[2] + part[3]) + (part[4] + part[5] + part[6] + part[7]);
}

struct row {
    const float *x, *w, *b, *res;
    float *y;
};

static void scale_row(const struct row *r, int64_t n, double mean, double inv)
{
    float m = (float)mean, f = (float)inv;
    for (int64_t i = 0; i < n; i += VL) {
        int64_t k = GR_MIN(VL, n - i);
        vf y = (vf_load_n(r->x + i, k) - vf_set(m)) * vf_set(f);
        if (r->w)
            y = y * vf_load_n(r->w + i, k);
        if (r->b)
            y = y + vf_load_n(r->b + i, k);
        if (r->res)
            y = y + vf_load_n(r->res + i, k);
        vf_store_n(r->y + i, y, k);
    }
}

static void norm(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_norm *a = &node->a.norm;
    int64_t per_row = a->x.cols / a->group;
    struct gr_cpu_share s = gr_cpu_share(a->x.rows * per_row, 1, work);
    for (int64_t i = s.lo; i < s.hi; i++) {
        int64_t t = i / per_row, g = i % per_row, first = g * a->group;
        struct row r = {.x = gr_cpu_f32(&a->x, t) + first,
                        .w = gr_ten_is(&a->w) ? gr_cpu_f32(&a->w, g % a->w.rows) : NULL,
                        .b = gr_ten_is(&a->b) ? gr_cpu_f32(&a->b, g % a->b.rows) : NULL,
                        .res = gr_ten_is(&a->res) ? gr_cpu_f32(&a->res, t) + first : NULL,
                        .y = gr_cpu_f32(&a->y, t) + first};
        double n = (double)a->group;
        double mean = a->kind == GR_NORM_LAYER ? sum_of(r.x, a->group, 0, 1) / n : 0;
        double var = sum_of(r.x, a->group, mean, 2) / n;
        scale_row(&r, a->group, mean, 1 / sqrt(var + (double)a->eps));
    }
}

const struct gr_cpu_impl FN(norm) = {norm, NULL, NULL};
