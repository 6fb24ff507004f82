/* ACT, XIELU, GLU, BINARY, EXPERT_SUM, SUM, POOL, EMBED, GATHER: a thread does a few columns. */
#include "cuda/grid.h"
#include "cuda/packed_x.h"
#include "gr/kernel/packed_x.h"

int gr_cuda_act(struct gr_launcher *l, const struct gr_args_act *a)
{
    bool vec4 = gr_ten_vec4(&a->x) && gr_ten_vec4(&a->y);
    return GR_LAUNCH_COLUMNS(l, "gr_elementwise_act", vec4, a->y.rows * a->y.cols, a);
}

int gr_cuda_xielu(struct gr_launcher *l, const struct gr_args_xielu *a)
{
    bool vec4 = gr_ten_vec4(&a->x) && gr_ten_vec4(&a->y);
    return GR_LAUNCH_COLUMNS(l, "gr_elementwise_xielu", vec4, a->y.rows * a->y.cols, a);
}

int gr_cuda_glu(struct gr_launcher *l, const struct gr_args_glu *a)
{
    bool vec4 = gr_glu_vec4(a);
    struct gr_glu_packed_x_args f = {.glu = *a};
    if (vec4 && gr_packed_x_ahead(l, 0, &a->y, &f.packed_x))
        return gr_launch_items(l, "gr_elementwise_glu_packed_x", a->y.rows, 1, GR_PACKED_X_THREADS,
                               0, &f, sizeof f);
    return GR_LAUNCH_COLUMNS(l, "gr_elementwise_glu", vec4, a->y.rows * a->y.cols, a);
}

int gr_cuda_binary(struct gr_launcher *l, const struct gr_args_binary *a)
{
    bool vec4 = gr_ten_vec4(&a->a) && gr_ten_vec4(&a->b) && gr_ten_vec4(&a->y);
    return GR_LAUNCH_COLUMNS(l, "gr_elementwise_binary", vec4, a->y.rows * a->y.cols, a);
}

int gr_cuda_expert_sum(struct gr_launcher *l, const struct gr_args_expert_sum *a)
{
    return GR_LAUNCH_COLUMNS(l, "gr_elementwise_expert_sum", gr_expert_sum_vec4(a),
                             a->y.rows * a->y.cols, a);
}

int gr_cuda_sum(struct gr_launcher *l, const struct gr_args_sum *a)
{
    bool vec4 = gr_ten_vec4(&a->parts) && gr_ten_vec4(&a->res) && gr_ten_vec4(&a->y);
    return GR_LAUNCH_COLUMNS(l, "gr_elementwise_sum", vec4, a->y.rows * a->y.cols, a);
}

int gr_cuda_pool(struct gr_launcher *l, const struct gr_args_pool *a)
{
    bool vec4 = gr_ten_vec4(&a->x) && gr_ten_vec4(&a->y);
    return GR_LAUNCH_COLUMNS(l, "gr_elementwise_pool", vec4, a->y.rows * a->y.cols, a);
}

int gr_cuda_embed(struct gr_launcher *l, const struct gr_args_embed *a)
{
    if (!a->table.packed || (gr_ten_is(&a->pos_table) && !a->pos_table.packed))
        return gr_fail(GR_E_INTERNAL, "embed: expected packed tables, found rows of a file");
    return gr_launch_items(l, "gr_embed_rows", a->y.rows * a->y.cols, 256, 256, 0, a, sizeof *a);
}

int gr_cuda_gather(struct gr_launcher *l, const struct gr_args_gather *a)
{
    bool vec4 = gr_ten_vec4(&a->x) && gr_ten_vec4(&a->y);
    return GR_LAUNCH_COLUMNS(l, "gr_embed_gather", vec4, a->y.rows * a->y.cols, a);
}
