// NORM: each group of columns of a row scaled to unit root mean square, or to zero mean and unit
// variance; then weight, bias, residual.
// Memory: x, residual and y once, 8 or 12 bytes an element; weights stay in cache. Bound by it, and
// for a few rows by latency: one pass over memory and one or two reductions.
// Grid: a warp a group of up to 1,024 columns (heads, 8 warps a block), a block a longer one; the
// group is held in registers between the passes, and where a product is next its packed x is
// written as well, or in place of y where only products read it; short groups of two operations (Q
// and K) share a launch. Groups that are neither aligned to 16 bytes nor short enough are read
// again in each pass, from L1 or L2. Sums are exact to a rounding (exact_sum), the variance is that
// of x - mean. Rounded to f32: x - mean (twice), its square, sqrt and quotients of the factor, and
// every step after: an RMS is within 7 units of 2^-24 of |x f w|.
#include "gr/kernel/norm.h"
#include "kernels/norm.cuh"
#include "kernels/packed_x.cuh"

enum { WARPS = 8, WIDE = GR_PACKED_X_THREADS, ANY = 256 };

GR_KERNEL(gr_norm_warp, struct gr_norm_warp_args, WARPS *WARP, 2)
{
    bool second = blockIdx.x >= a.n_first;
    const struct gr_args_norm &p = a.part[second];
    uint32_t i = (blockIdx.x - second * a.n_first) * WARPS + threadIdx.x / WARP;
    if (i < (uint32_t)p.x.rows * (uint32_t)(p.x.cols / p.group))
        held<WARP>(p, group_at(p, i), threadIdx.x % WARP, nullptr);
}

GR_KERNEL(gr_norm_block, struct gr_args_norm, WIDE, 2)
{
    __shared__ struct exact_sum slot[2][NORM_WARPS];
    held<WIDE>(a, group_at(a, blockIdx.x), threadIdx.x, slot);
}

// A group a row, followed by a product: writes packed x as well, or alone.
GR_KERNEL(gr_norm_packed_x, struct gr_norm_packed_x_args, WIDE, 2)
{
    GR_SMEM;
    __shared__ struct exact_sum slot[2][NORM_WARPS];
    struct group g = group_at(a.norm, blockIdx.x);
    struct gr_matmul_x_args x = a.packed_x;
    if (a.alone)
        g.y = (float *)smem, x.x = smem, x.row_bytes = 0;
    held<WIDE>(a.norm, g, threadIdx.x, slot);
    __syncthreads();
    write_packed_row<2>(x, blockIdx.x, blockIdx.x);
}

GR_KERNEL(gr_norm_any, struct gr_args_norm, ANY, 4)
{
    __shared__ struct exact_sum slot[2][ANY / WARP];
    struct group g = group_at(a, blockIdx.x);
    struct exact_sum sum = {0, 0}, mean = {0, 0}, squares = {0, 0};
    if (a.kind == GR_NORM_LAYER) {
        for (uint32_t c = threadIdx.x; c < g.n; c += ANY)
            add(sum, g.x[c]);
        mean = mean_of(block_sum<ANY>(sum, slot[0]), (float)g.n);
    }
    for (uint32_t c = threadIdx.x; c < g.n; c += ANY) {
        float d = g.x[c] - mean.hi - mean.lo;
        add(squares, __fmul_rn(d, d));
    }
    float f = factor_of(block_sum<ANY>(squares, slot[1]), (float)g.n, a.eps);
    for (uint32_t c = threadIdx.x; c < g.n; c += ANY) {
        float v[1] = {g.x[c] - mean.hi - mean.lo};
        finish<1>(g, c, v, f);
    }
}
