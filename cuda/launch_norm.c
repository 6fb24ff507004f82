/* NORM: which kernel takes which groups. */
#include "cuda/grid.h"

/* Threads, and the columns that they hold at most, as in kernels/norm.cu. */
enum { WARPS = 8, WARP_COLS = 32 * 32, BLOCK = 512, BLOCK_COLS = 512 * 32, ANY = 256 };

int gr_cuda_norm(struct gr_launcher *l, const struct gr_args_norm *a)
{
    int64_t n = a->x.rows * (a->x.cols / a->group);
    bool vec4 = a->group % 4 == 0 && gr_ten_vec4(&a->x) && gr_ten_vec4(&a->w) &&
                gr_ten_vec4(&a->b) && gr_ten_vec4(&a->res) && gr_ten_vec4(&a->y);
    if (vec4 && a->group <= WARP_COLS)
        return gr_launch_items(l, "gr_norm_warp", n, WARPS, WARPS * 32, 0, a, sizeof *a);
    if (vec4 && a->group <= BLOCK_COLS)
        return gr_launch_items(l, "gr_norm_block", n, 1, BLOCK, 0, a, sizeof *a);
    return gr_launch_items(l, "gr_norm_any", n, 1, ANY, 0, a, sizeof *a);
}
