/* ROPE_TABLE, TEMPER and ROPE. */
#include "cuda/grid.h"
#include "cuda/launch_attn.h"

int gr_cuda_rope_table(struct gr_launcher *l, const struct gr_args_rope_table *a)
{
    return gr_launch_items(l, "gr_rope_table", a->cs.rows * (a->cs.cols / 2), 256, 256, 0, a,
                           sizeof *a);
}

int gr_cuda_temper(struct gr_launcher *l, const struct gr_args_temper *a)
{
    return gr_launch_items(l, "gr_rope_temper", a->y.rows, 256, 256, 0, a, sizeof *a);
}

int gr_cuda_rope(struct gr_launcher *l, const struct gr_args_rope *a)
{
    if (gr_attn_turns(l, 0))
        return gr_attn_turned(l);
    if (gr_rope_vec4(a))
        return gr_launch_items(l, "gr_rope_heads_4", gr_rope_runs(a), 256, 256, 0, a, sizeof *a);
    int64_t n_head = a->x.rows * (a->x.cols / a->d_head);
    return gr_launch_items(l, "gr_rope_heads_1", n_head * ((a->d_head + 1) / 2), 256, 256, 0, a,
                           sizeof *a);
}
