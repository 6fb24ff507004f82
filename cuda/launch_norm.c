/* NORM: which kernel takes which groups. */
#include "cuda/grid.h"
#include "cuda/packed_x.h"
#include "gr/kernel/norm.h"
#include "gr/kernel/packed_x.h"

/* Threads, and the columns that they hold at most, as in kernels/norm.cu. */
enum {
    WARPS = 8,
    WARP_COLS = 32 * 32,
    BLOCK = GR_PACKED_X_THREADS,
    BLOCK_COLS = BLOCK * 32,
    ANY = 256
};

static int64_t blocks(const struct gr_args_norm *a)
{
    return (a->x.rows * (a->x.cols / a->group) + WARPS - 1) / WARPS;
}

/* Norms of short groups, and of those of the next node where it is such a norm and neither needs
 * the other's result. */
static int warps(struct gr_launcher *l, const struct gr_args_norm *a)
{
    struct gr_norm_warp_args p = {.part = {*a}, .n_first = (uint32_t)blocks(a)};
    const struct gr_node *n = gr_launch_behind(l, 1);
    const struct gr_args_norm *b = n ? &n->a.norm : NULL;
    int64_t n_block = blocks(a);
    if (n && n->op == GR_OP_NORM && b->group <= WARP_COLS && gr_norm_vec4(b) &&
        !gr_ten_overlap(&a->y, &b->y) && !gr_ten_overlap(&a->y, &b->x) &&
        !gr_ten_overlap(&a->y, &b->res) && !gr_ten_overlap(&b->y, &a->x) &&
        !gr_ten_overlap(&b->y, &a->res)) {
        p.part[1] = *b;
        n_block += blocks(b);
        gr_launch_skip(l, 1);
    }
    return gr_launch_items(l, "gr_norm_warp", n_block, 1, WARPS * 32, 0, &p, sizeof p);
}

int gr_cuda_norm(struct gr_launcher *l, const struct gr_args_norm *a)
{
    int64_t n = a->x.rows * (a->x.cols / a->group);
    struct gr_norm_packed_x_args f = {.norm = *a};
    bool held = gr_norm_vec4(a) && a->group <= BLOCK_COLS;
    if (held && a->group == a->x.cols && gr_packed_x_ahead(l, 0, &a->y, &f.packed_x)) {
        const uint32_t row = (uint32_t)a->y.cols * 4;
        f.alone = gr_packed_x_alone(l, 0, &a->y) && row <= gr_launch_smem(l, "gr_norm_packed_x");
        return gr_launch_items(l, "gr_norm_packed_x", n, 1, BLOCK, f.alone ? row : 0, &f, sizeof f);
    }
    if (held && a->group <= WARP_COLS)
        return warps(l, a);
    if (held)
        return gr_launch_items(l, "gr_norm_block", n, 1, BLOCK, 0, a, sizeof *a);
    return gr_launch_items(l, "gr_norm_any", n, 1, ANY, 0, a, sizeof *a);
}
