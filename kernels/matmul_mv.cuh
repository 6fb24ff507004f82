// MATMUL, MATMUL_ID and HEAD_MATMUL for few tokens: a stream of weights through tensor cores.
//
// Traffic: each weight once (16 rows at a time), activations once a tile, from L1 after the first
// tile of a multiprocessor. Bound: bandwidth, up to about 16 tokens.
// Grid: (tile of 16 rows and item, group of 8 NT tokens); 8 warps of a block take turns at the
// steps of the tile's columns, so that a tile is read by all of them at once, and their partial
// sums are added in the order of the warps through shared memory. Why: tokens are the 8 columns of
// mma.m16n8k16, so up to 8 cost what one does; a lane's weights are 16-byte loads of what no one
// else needs, one step ahead of the one that is multiplied.
#pragma once

#include "kernels/matmul.cuh"

// This lane's words of activations, for one step.
struct mv_x {
    const uint8_t *x, *sums;
    int64_t line_bytes, sums_bytes;
    int n; // lines from this lane's on

    GR_METHOD void enter(int) const
    {
    }
    GR_METHOD uint4 unit(int u, int i) const
    {
        return line(x + u * 64, i, line_bytes);
    }
    GR_METHOD uint4 sum(int i) const
    {
        return line(sums, i, sums_bytes);
    }
    GR_METHOD uint4 line(const uint8_t *p, int i, int64_t bytes) const
    {
        uint4 zero = {0, 0, 0, 0};
        return 8 * i < n ? *(const uint4 *)(p + 8 * i * bytes) : zero;
    }
};

template <int NT>
GR_DEV void mv_store(const struct gr_matmul_args &a, int64_t row0, const struct mm_item &item,
                     const float (&acc)[1][NT][4])
{
    GR_SMEM;
    float *sum = (float *)smem; // [warp][NT][4][32]
    int n_warp = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum[((warp * NT + i) * 4 + k) * 32 + lane] = acc[0][i][k];
    __syncthreads();
    for (int e = threadIdx.x; e < NT * 128; e += blockDim.x) {
        float v = 0;
        for (int w = 0; w < n_warp; w++)
            v += sum[w * NT * 128 + e];
        int l = e % 32, k = e / 32 % 4; // whose accumulator it was
        int64_t row = row0 + l / 4 + k / 2 * 8 - a.w.offset;
        mm_store(a, item, row, e / 128 * 8 + l % 4 * 2 + k % 2, v);
    }
}

template <uint32_t T, int U, int NT> GR_DEV void matmul_mv(const struct gr_matmul_args &a)
{
    using S = pack_step<T, U>;
    int n_warp = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int units = a.x.units, n_step = (units + S::UNITS - 1) / S::UNITS;
    int64_t tile_bytes = gr_pack_tile_bytes(T, a.w.cols);
    struct mm_block block = mm_block(a);
    struct mm_item item = mm_item(a, block.item, blockIdx.y * NT * 8, NT * 8);
    const uint8_t *tile = mm_tile_at(a, item, block.tile, tile_bytes);
    int64_t line = item.line + lane / 4, chunks = gr_lines_chunks(units);

    float acc[1][NT][4] = {};
    auto multiply = [&](S(&w)[1], int i) {
        struct mv_x x = {a.x.x + (line * units + i * S::UNITS) * 64 + lane % 4 * 16,
                         a.x.sums + (line * chunks + i / S::STEPS) * 64 + lane % 4 * 16, units * 64,
                         chunks * 64, item.n - lane / 4};
        w[0].arrived();
        product<T, U, 1, NT>(w, units - i * S::UNITS, x, acc);
    };
    S w[2][1]; // one is on its way while the other is multiplied
    if (warp < n_step)
        w[0][0].load(tile, warp, units);
    for (int i = warp; i < n_step; i += 2 * n_warp) {
        if (i + n_warp < n_step)
            w[1][0].load(tile, i + n_warp, units);
        multiply(w[0], i);
        if (i + n_warp >= n_step)
            break;
        if (i + 2 * n_warp < n_step)
            w[0][0].load(tile, i + 2 * n_warp, units);
        multiply(w[1], i + n_warp);
    }
    mv_store<NT>(a, block.tile * GR_PACK_ROWS, item, acc);
}
