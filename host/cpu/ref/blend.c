/* BLEND: attention of each row over several sources, one source per node. Rows are divided among
 * the threads. */
#include <math.h>

#include "cpu/ref/ref.h"

static double score(const struct gr_args_blend *a, const float *x)
{
    int64_t n = a->x.cols;
    return gr_ref_dot(x, gr_cpu_f32(&a->w, 0), n) /
           sqrt(gr_ref_dot(x, x, n) / (double)n + (double)a->eps);
}

static void blend_row(const struct gr_args_blend *a, int64_t r)
{
    const float *x = gr_cpu_f32(&a->x, r), *acc = NULL;
    float *y = gr_cpu_f32(&a->y, r), *stat = gr_cpu_f32(&a->stat_y, r);
    double s = score(a, x), most = s, before = 0, sum = 0;
    if (gr_ten_is(&a->acc)) {
        const float *old = gr_cpu_f32(&a->stat, r);
        acc = gr_cpu_f32(&a->acc, r);
        most = fmax(s, (double)old[0]);
        before = exp((double)old[0] - most), sum = before * (double)old[1];
    }
    double own = exp(s - most), f;
    sum += own;
    f = a->last ? 1 / sum : 1;
    for (int64_t i = 0; i < a->x.cols; i++)
        y[i] = (float)(f * ((acc ? before * (double)acc[i] : 0) + own * (double)x[i]));
    stat[0] = (float)most, stat[1] = (float)sum;
}

static void blend(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_blend *a = &node->a.blend;
    struct gr_cpu_share s = gr_cpu_share(a->x.rows, 1, work);
    for (int64_t r = s.lo; r < s.hi; r++)
        blend_row(a, r);
}

const struct gr_cpu_impl gr_ref_blend = {blend, NULL, NULL};
