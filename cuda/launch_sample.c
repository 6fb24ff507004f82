/* SAMPLE: a block a row. */
#include "cuda/grid.h"

int gr_cuda_sample(struct gr_launcher *l, const struct gr_args_sample *a)
{
    return gr_launch_items(l, "gr_sample_rows", a->logits.rows, 1, 1024, 0, a, sizeof *a);
}
