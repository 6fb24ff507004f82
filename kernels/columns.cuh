// Columns of states [d_k, d_v] as DELTA_RULE and LINEAR_ATTN share them out: a block for 32 columns
// of one head of one sequence, a warp for 8 of them, 4 lanes a column; a lane holds numbers
// 16 m + 4 l .. + 3 of its column (l = 0 .. 3), so that its part of a vector [d_k] is pieces of 16
// bytes.
#ifndef GR_KERNELS_COLUMNS_CUH
#define GR_KERNELS_COLUMNS_CUH

#include "gr/kernel/ssm.h"
#include "kernels/block.cuh"

enum { WARPS = GR_DELTA_WARPS, LANES = 4, COLS = WARP / LANES };

// The part of this thread. Lanes without a column compute the last one, which is of their own
// block, but write nothing.
struct columns {
    uint32_t seq, h, j, sub; // sequence, head, column, which lane of it
    uint32_t d_k, d_v;
    int32_t from, to; // rows of the states, from < 0: zeros
    bool in;
};

GR_DEV struct columns columns_of(const struct gr_ten &src, const struct gr_ten &dst,
                                 uint32_t n_head, uint32_t d_k, uint32_t d_v)
{
    uint32_t n_part = (d_v + WARPS * COLS - 1) / (WARPS * COLS), i = blockIdx.x / n_part;
    uint32_t lane = threadIdx.x % WARP;
    uint32_t j = (blockIdx.x % n_part * WARPS + threadIdx.x / WARP) * COLS + lane % COLS;
    uint32_t seq = i / n_head;
    return {seq,    i % n_head, j < d_v ? j : d_v - 1,        lane / COLS,
            d_k,    d_v,        row_of<int32_t>(src, 0)[seq], row_of<int32_t>(dst, 0)[seq],
            j < d_v};
}

template <int S>
GR_DEV void load_column(const struct columns &c, const struct gr_ten &state, float (&s)[S])
{
    int64_t at = (int64_t)c.h * c.d_k * c.d_v + c.j;
    for (int m = 0; m < S; m++) {
        uint32_t k = m / 4 * 16 + 4 * c.sub + m % 4;
        s[m] = c.from >= 0 && k < c.d_k ? row_of<float>(state, c.from)[at + k * (int64_t)c.d_v] : 0;
    }
}

template <int S>
GR_DEV void store_column(const struct columns &c, const struct gr_ten &state, const float (&s)[S])
{
    int64_t at = (int64_t)c.h * c.d_k * c.d_v + c.j;
    for (int m = 0; m < S; m++) {
        uint32_t k = m / 4 * 16 + 4 * c.sub + m % 4;
        if (c.in && k < c.d_k)
            row_of<float>(state, c.to)[at + k * (int64_t)c.d_v] = s[m];
    }
}

// The sum over the lanes of a column, the same in all of them.
GR_DEV float column_sum(float x)
{
    for (int o = COLS; o < WARP; o *= 2)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}

#endif
