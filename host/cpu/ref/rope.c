/* ROPE_TABLE, ROPE and TEMPER: effects of positions on heads. Su et al. 2021. A pair (a, b) of a
 * head becomes (a cos - b sin, a sin + b cos). */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"

/* Returns the position by which pair i of token t is rotated. */
static int32_t pos_of(const struct gr_args_rope_table *a, int64_t i, int64_t t)
{
    int32_t row = gr_ten_is(&a->section) ? gr_cpu_i32(&a->section, 0)[i] : 0;
    return row < a->pos.rows ? gr_cpu_i32(&a->pos, row)[t] : 0;
}

static void rope_table(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_rope_table *a = &node->a.rope_table;
    const double *freq = gr_ten_row(&a->freq, 0, 0);
    struct gr_cpu_share s = gr_cpu_share(a->cs.rows, 1, w);
    for (int64_t t = s.lo; t < s.hi; t++) {
        float *cs = gr_cpu_f32(&a->cs, t);
        for (int64_t i = 0; i < a->cs.cols / 2; i++) {
            double angle = pos_of(a, i, t) * freq[i];
            cs[2 * i] = (float)((double)a->mag * cos(angle));
            cs[2 * i + 1] = (float)((double)a->mag * sin(angle));
        }
    }
}

const struct gr_cpu_impl gr_ref_rope_table = {rope_table, NULL, NULL};

static void temper(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_temper *a = &node->a.temper;
    const int32_t *pos = gr_cpu_i32(&a->pos, 0);
    struct gr_cpu_share s = gr_cpu_share(a->y.rows, 1, w);
    for (int64_t t = s.lo; t < s.hi; t++) {
        double n = floor(((double)pos[t] + a->first) / a->length);
        *gr_cpu_f32(&a->y, t) = (float)(1 + (double)a->scale * log(1 + n));
    }
}

const struct gr_cpu_impl gr_ref_temper = {temper, NULL, NULL};

void gr_ref_rotate(const float *x, const float *cs, int64_t n_rot, int64_t d, int kind, float *y)
{
    for (int64_t i = 0; i < n_rot / 2; i++) {
        int64_t p = kind == GR_ROPE_NEOX ? i : 2 * i,
                q = kind == GR_ROPE_NEOX ? i + n_rot / 2 : 2 * i + 1;
        double a = (double)x[p], b = (double)x[q], c = (double)cs[2 * i], s = (double)cs[2 * i + 1];
        y[p] = (float)(a * c - b * s);
        y[q] = (float)(a * s + b * c);
    }
    if (y != x)
        memcpy(y + n_rot, x + n_rot, (size_t)(d - n_rot) * sizeof(float));
}

static void rope(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_rope *a = &node->a.rope;
    int64_t n_head = a->x.cols / a->d_head;
    struct gr_cpu_share s = gr_cpu_share(a->x.rows * n_head, 1, w);
    for (int64_t i = s.lo; i < s.hi; i++) {
        int64_t t = i / n_head, first = i % n_head * a->d_head;
        gr_ref_rotate(gr_cpu_f32(&a->x, t) + first, gr_cpu_f32(&a->cs, t), a->cs.cols, a->d_head,
                      a->kind, gr_cpu_f32(&a->y, t) + first);
    }
}

const struct gr_cpu_impl gr_ref_rope = {rope, NULL, NULL};
