/* Grids of one dimension, and what alignment allows: shared by launchers of kernels over rows. */
#ifndef CUDA_GRID_H
#define CUDA_GRID_H

#include "base/checked.h"
#include "cuda/launch.h"
#include "gr/planes.h"
#include "gr/status.h"

/* Notes a launch of as many blocks as n items need, `per_block` each; nothing for none. */
static inline int gr_launch_items(struct gr_launcher *l, const char *kernel, int64_t n,
                                  int64_t per_block, uint32_t threads, uint32_t smem,
                                  const void *args, size_t args_bytes)
{
    if (n == 0)
        return 0;
    if (n > UINT32_MAX - 1024)
        return gr_fail(GR_E_UNSUPPORTED,
                       "%s: expected fewer than 2^32 pieces of work in a launch, found %lld; use a "
                       "smaller micro-batch",
                       kernel, (long long)n);
    struct gr_grid grid = {(uint32_t)((n + per_block - 1) / per_block), 1, 1};
    return gr_launch(l, kernel, grid, threads, smem, args, args_bytes);
}

/* Number of segments into which the columns (n_part pieces) of n_block products, a block each, are
 * cut so that most of a device has work: `least` pieces each or more, 8 segments at most, whose
 * sums one block adds. It is computed for 132 multiprocessors on every device, so that sums do not
 * depend on their number. */
enum { GR_NOMINAL_SM = 132 };
static inline int64_t gr_launch_segments(int64_t n_block, int64_t n_part, int64_t least)
{
    int64_t n = GR_MIN(GR_NOMINAL_SM / n_block, n_part / least);
    return GR_MAX(1, GR_MIN(n, 8));
}

/* True when every row of f32 or i32 can be read 16 bytes at a time, and for an absent tensor. */
static inline bool gr_ten_vec4(const struct gr_ten *t)
{
    return !gr_ten_is(t) ||
           ((uintptr_t)t->data % 16 == 0 && t->row_bytes % 16 == 0 && t->cols % 4 == 0);
}

/* True when NORM, GLU and EXPERT_SUM can go 16 bytes at a time. */
static inline bool gr_norm_vec4(const struct gr_args_norm *a)
{
    return a->group % 4 == 0 && gr_ten_vec4(&a->x) && gr_ten_vec4(&a->w) && gr_ten_vec4(&a->b) &&
           gr_ten_vec4(&a->res) && gr_ten_vec4(&a->y);
}
static inline bool gr_glu_vec4(const struct gr_args_glu *a)
{
    return gr_ten_vec4(&a->a) && gr_ten_vec4(&a->b) && gr_ten_vec4(&a->y);
}
static inline bool gr_expert_sum_vec4(const struct gr_args_expert_sum *a)
{
    return gr_ten_vec4(&a->x) && gr_ten_vec4(&a->res) && gr_ten_vec4(&a->y);
}

/* Bytes of shared memory that a warp takes for a token's ROUTE, and the number of warps, up to
 * `most`, of a block that does not ask for more. */
static inline int64_t gr_route_bytes(const struct gr_args_route *a)
{
    return a->logits.cols * 3 * (int64_t)sizeof(double);
}
static inline int64_t gr_route_warps(const struct gr_args_route *a, int64_t most)
{
    int64_t n = 48 * 1024 / gr_route_bytes(a);
    return n < 1 ? 1 : n < most ? n : most;
}

/* Types that a cache can have. */
static inline bool gr_cache_type(uint32_t type)
{
    return type == GR_F32 || type == GR_F16 || type == GR_BF16 || gr_planes_are(type);
}

/* True when ROPE's kernel can take 4 pairs a thread; and the number of threads it then has. */
static inline bool gr_rope_vec4(const struct gr_args_rope *a)
{
    return a->d_head % 8 == 0 && a->cs.cols % 8 == 0 && gr_ten_vec4(&a->x) && gr_ten_vec4(&a->y) &&
           gr_ten_vec4(&a->cs);
}
static inline int64_t gr_rope_runs(const struct gr_args_rope *a)
{
    return a->x.rows * (a->x.cols / a->d_head) * (a->d_head / 8);
}

/* Notes a launch with 4 columns a thread or with one: kernels `name_4` and `name_1`, 256 threads a
 * block, a thread an item; n counts columns. */
#define GR_LAUNCH_COLUMNS(l, name, vec4, n, args)                                                  \
    ((vec4) ? gr_launch_items(l, name "_4", (n) / 4, 256, 256, 0, args, sizeof *(args))            \
            : gr_launch_items(l, name "_1", n, 256, 256, 0, args, sizeof *(args)))

#endif
