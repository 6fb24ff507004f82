/* EMBED and GATHER: rows picked by index. */
#include <string.h>

#include "cpu/ref/ref.h"

static void embed(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_embed *a = &node->a.embed;
    bool with_pos = gr_ten_is(&a->pos_table);
    const int32_t *token = gr_cpu_i32(&a->tokens, 0);
    float *at_pos = w->local;
    struct gr_cpu_share s = gr_cpu_share(a->y.rows, 1, w);
    for (int64_t t = s.lo; t < s.hi; t++) {
        float *y = gr_cpu_f32(&a->y, t);
        gr_ref_load(&a->table, 0, token[t], 0, a->y.cols, y);
        if (with_pos) {
            int64_t pos = GR_MIN(gr_cpu_i32(&a->pos, 0)[t], a->pos_table.rows - 1);
            gr_ref_load(&a->pos_table, 0, pos, 0, a->y.cols, at_pos);
        }
        for (int64_t i = 0; i < a->y.cols; i++)
            y[i] = (float)((double)a->scale * (double)y[i] + (with_pos ? (double)at_pos[i] : 0));
    }
}

static struct gr_cpu_need embed_need(const struct gr_node *node)
{
    return (struct gr_cpu_need){0, (size_t)node->a.embed.y.cols * sizeof(float)};
}

const struct gr_cpu_impl gr_ref_embed = {embed, embed_need, NULL};

static void gather(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_gather *a = &node->a.gather;
    const int32_t *row = gr_cpu_i32(&a->rows, 0);
    struct gr_cpu_share s = gr_cpu_share(a->y.rows, 1, w);
    for (int64_t i = s.lo; i < s.hi; i++)
        memcpy(gr_cpu_f32(&a->y, i), gr_cpu_f32(&a->x, row[i]), (size_t)a->y.cols * sizeof(float));
}

const struct gr_cpu_impl gr_ref_gather = {gather, NULL, NULL};
