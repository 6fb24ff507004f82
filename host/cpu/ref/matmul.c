/* MATMUL, MATMUL_ID and HEAD_MATMUL: each weight row dequantised to f32, products and sums in f64,
 * one rounding at the end. */
#include <string.h>

#include "cpu/ref/ref.h"

static void matmul(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_matmul *a = &node->a.matmul;
    float *w = work->local;
    struct gr_cpu_share s = gr_cpu_share(a->w.rows, GR_CPU_LINE, work);
    for (int64_t o = s.lo; o < s.hi; o++) {
        gr_ref_load(&a->w, 0, o, 0, a->w.cols, w);
        for (int64_t t = 0; t < a->x.rows; t++) {
            double y = gr_ref_dot(gr_cpu_f32(&a->x, t), w, a->w.cols) * (double)a->scale;
            if (gr_ten_is(&a->b))
                y += (double)gr_cpu_f32(&a->b, 0)[o];
            if (gr_ten_is(&a->res))
                y += (double)gr_cpu_f32(&a->res, t)[o];
            gr_cpu_f32(&a->y, t)[o] = (float)y;
        }
    }
}

static struct gr_cpu_need matmul_need(const struct gr_node *node)
{
    return (struct gr_cpu_need){0, (size_t)node->a.matmul.w.cols * sizeof(float)};
}

const struct gr_cpu_impl gr_ref_matmul = {matmul, matmul_need, NULL};

static void matmul_id(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_matmul_id *a = &node->a.matmul_id;
    int64_t n_tok = a->ids.rows, n_used = a->ids.cols;
    float *w = work->local;
    struct gr_cpu_share s = gr_cpu_share(a->w.rows, GR_CPU_LINE, work);
    for (int64_t i = 0; i < n_tok * n_used; i++) {
        int64_t e = gr_cpu_i32(&a->ids, i / n_used)[i % n_used];
        const float *x = gr_cpu_f32(&a->x, a->x.rows == n_tok ? i / n_used : i);
        for (int64_t o = s.lo; o < s.hi; o++) {
            gr_ref_load(&a->w, e, o, 0, a->w.cols, w);
            double y = gr_ref_dot(x, w, a->w.cols);
            if (gr_ten_is(&a->s))
                y *= (double)gr_cpu_f32(&a->s, 0)[e];
            if (gr_ten_is(&a->b))
                y += (double)gr_cpu_f32(&a->b, e)[o];
            gr_cpu_f32(&a->y, i)[o] = (float)y;
        }
    }
}

static struct gr_cpu_need matmul_id_need(const struct gr_node *node)
{
    return (struct gr_cpu_need){0, (size_t)node->a.matmul_id.w.cols * sizeof(float)};
}

const struct gr_cpu_impl gr_ref_matmul_id = {matmul_id, matmul_id_need, NULL};

static void head_matmul(const struct gr_node *node, const struct gr_cpu_work *work)
{
    const struct gr_args_head_matmul *a = &node->a.head_matmul;
    int64_t n_in = a->w.cols, n_out = a->w.rows, n_pass = a->x.cols / a->w.batch - n_in;
    float *w = work->local;
    struct gr_cpu_share s = gr_cpu_share(a->w.batch, 1, work);
    for (int64_t h = s.lo; h < s.hi; h++) {
        for (int64_t t = 0; t < a->x.rows; t++)
            memcpy(gr_cpu_f32(&a->y, t) + h * (n_pass + n_out),
                   gr_cpu_f32(&a->x, t) + h * (n_in + n_pass) + n_in,
                   (size_t)n_pass * sizeof(float));
        for (int64_t o = 0; o < n_out; o++) {
            gr_ref_load(&a->w, h, o, 0, n_in, w);
            for (int64_t t = 0; t < a->x.rows; t++)
                gr_cpu_f32(&a->y, t)[h * (n_pass + n_out) + n_pass + o] =
                    (float)gr_ref_dot(gr_cpu_f32(&a->x, t) + h * (n_in + n_pass), w, n_in);
        }
    }
}

static struct gr_cpu_need head_matmul_need(const struct gr_node *node)
{
    return (struct gr_cpu_need){0, (size_t)node->a.head_matmul.w.cols * sizeof(float)};
}

const struct gr_cpu_impl gr_ref_head_matmul = {head_matmul, head_matmul_need, NULL};
