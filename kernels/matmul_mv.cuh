// MATMUL, MATMUL_ID and HEAD_MATMUL for few tokens: a stream of weights through tensor cores.
//
// Traffic: each weight once (16 rows at a time), activations once a tile, from L1 after the first
// tile of a multiprocessor. Bound: bandwidth, up to about 16 tokens.
// Grid: (tile of 16 rows and item of each product, group of 8 NT tokens); 8 warps of a block take
// turns at the steps of the tile's columns, so that a tile is read by all of them at once, and
// their partial sums are added in the order of the warps through shared memory. Why: tokens are the
// 8 columns of mma.m16n8k16, so up to 8 cost what one does; a lane's weights are 16-byte loads of
// what no one else needs, one step ahead of the one that is multiplied. The first two are asked for
// before the launch in front is over: no launch of this stream writes weights, and those that are
// brought are there before a segment's first launch, which waits for all in front. Up to 8 tokens,
// the last block of a slice, or of all, does what is small behind the products (tail.cuh).
#pragma once

#include "kernels/matmul.cuh"
#include "kernels/tail.cuh"

// This lane's words of activations, for one step. Lanes whose lines there are not read the last
// one's: what comes of it is not stored.
template <class S, int NT> struct mv_x {
    const uint8_t *x, *sums; // of the item's first line
    int last, units, step;   // line of them

    GR_METHOD mv_x(const struct gr_matmul_args &a, const struct mm_item &item)
    {
        int lane = threadIdx.x % 32;
        units = a.x.units;
        x = a.x.x + item.line * units * 64 + lane % 4 * 16;
        sums = a.x.sums + item.line * gr_lines_chunks(units) * 64 + lane % 4 * 16;
        last = item.n - 1;
    }
    GR_METHOD int line(int i) const
    {
        return min(8 * i + (int)threadIdx.x % 32 / 4, last);
    }
    GR_METHOD bool over(int u, int n) const
    {
        return (NT > 1 || u % 2 == 0) && u >= n; // units come in pairs; registers are short with NT
    }
    GR_METHOD void enter(int) const
    {
    }
    GR_METHOD uint4 unit(int u, int i) const
    {
        return *(const uint4 *)(x + (line(i) * units + step * S::UNITS + u) * 64);
    }
    GR_METHOD uint4 sum(int i) const
    {
        return *(const uint4 *)(sums +
                                (line(i) * (int)gr_lines_chunks(units) + step / S::STEPS) * 64);
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

// The product that a block belongs to, and its number in it.
GR_DEV int mv_part(const struct gr_matmul_mv_args &all, uint32_t &block)
{
    int p = 0;
    for (block = blockIdx.x; p + 1 < all.n; p++) {
        uint32_t n = mm_tiles(all.part[p]) * all.n_item;
        if (block < n)
            break;
        block -= n;
    }
    return p;
}

// The block has stored its tile.
GR_DEV void mv_tail(const struct gr_matmul_mv_args &all)
{
    uint32_t number;
    const struct gr_matmul_args &a = all.part[mv_part(all, number)];
    tail_behind(all.tail, (uint32_t)mm_block(a, number).tile / (mm_tiles(a) / all.tail.n_slice));
}

template <uint32_t T, int U, int NT> GR_DEV void matmul_mv(const struct gr_matmul_mv_args &all)
{
    uint32_t number;
    const struct gr_matmul_args &a = all.part[mv_part(all, number)];
    using S = pack_step<T, U>;
    int n_warp = blockDim.x / 32, warp = threadIdx.x / 32;
    int units = a.x.units, n_step = (units + S::UNITS - 1) / S::UNITS;
    int64_t tile_bytes = gr_pack_tile_bytes(T, a.w.cols);
    struct mm_block block = mm_block(a, number);
    if (a.ids)
        griddep_wait();
    struct mm_item item = mm_item(a, block.item, blockIdx.y * NT * 8, NT * 8);
    const uint8_t *tile = mm_tile_at(a, item, block.tile, tile_bytes);

    float acc[1][NT][4] = {};
    struct mv_x<S, NT> x(a, item);
    auto multiply = [&](S(&w)[1], int i) {
        x.step = i;
        w[0].arrived();
        product<T, U, 1, NT>(w, units - i * S::UNITS, x, acc);
    };
    S w[2][1]; // one is on its way while the other is multiplied
    auto load = [&](S(&w)[1], int i) {
        if (i < n_step)
            w[0].load(tile, i, units);
    };
    load(w[0], warp);
    load(w[1], warp + n_warp);
    griddep_begin(); // weights are there from the start, all else may be on its way
    for (int i = warp; i < n_step; i += 2 * n_warp) {
        multiply(w[0], i);
        load(w[0], i + 2 * n_warp);
        if (i + n_warp >= n_step)
            break;
        multiply(w[1], i + n_warp);
        load(w[1], i + 3 * n_warp);
    }
    mv_store<NT>(a, block.tile * GR_PACK_ROWS, item, acc);
    if (NT == 1 && all.tail.n_block)
        mv_tail(all);
}
