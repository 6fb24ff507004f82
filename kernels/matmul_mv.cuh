// MATMUL, MATMUL_ID and HEAD_MATMUL for few tokens: a stream of weights through tensor cores.
//
// Traffic: each weight once (16 rows at a time), activations once a tile, from L1 after the first
// tile of a multiprocessor. Bound: bandwidth, up to about 16 tokens.
// Grid: as many blocks as the device holds at once (2 of 8 warps a multiprocessor), each with an
// equal run of tiles of 16 rows, of all products and items. The warps of a block take turns at the
// steps of a tile's columns, so that a tile is read by all of them at once, and their partial sums
// are added in the order of the warps through shared memory. Reasons: tokens are the 8 columns of
// mma.m16n8k16, so 8 cost as much as one; a lane loads its own weights, 16 bytes at a time. A warp
// has two steps under way, across tiles too, so it does not wait where a tile ends. The first two
// are requested before the preceding launch is over: no launch of this stream writes weights, and
// offloaded ones arrive before a segment's first launch, which waits for all preceding work. Up to
// 8 tokens, the last block of a slice, or of all, does the small operations behind the products
// (epilogue.cuh).
//
// A tile a block would leave 1.5 us of every round without loads. Predicted for an H200,
// us a launch of one token, with F = start 0.4 + load 0.8 + sums 0.3 (+ counting 0.8) and x the
// longer of bytes at 4.3 TB/s and instructions: a tile a block max(F + x, R F + x / 2) in R
// rounds of two overlapping blocks, this grid F + x:
//   Llama-3-8B      gate, up 1792 tiles of 16 steps: 23.8, 17.7; Q, K, V 384 x 16: 6.3, 5.6
//   Llama-2-7B      gate, up 1376 x 16: 19.9, 14.1; Q, K, V 768 x 16: 10.2, 8.9
//   Llama-3.2-1B    gate, up 1024 x 8: 11.4, 6.7; head 8016 x 8: 71.6, 51.6
//   Qwen3-30B-A3B   gate, up 768 x 8: 8.6, 5.6; down 1024 x 3: 5.4, 4.0; Q, K, V 320 x 8: 5.4, 3.7
// Matrices of one round take the same time: 8B O 256 x 16: 4.5, down 256 x 56: 10.0; 1B O 128 x
// 8: 2.9, down 128 x 32: 4.5. Columns are not cut into segments, whose sums would be written,
// counted and read again: 1.1 more of F, and x shrinks by less even where tiles are few (8B V of a
// type of its own, 64 x 16: 3.8, in two segments 4.2; 1B down: 5.6), as loads of half the device's
// blocks fill the memory, and instructions are two thirds of the time of bytes.
#pragma once

#include "kernels/epilogue.cuh"
#include "kernels/matmul.cuh"

// Words of activations of this lane, for one step. Lanes without a row of x read the last one's;
// their results are not stored.
template <class S, int NT> struct mv_x {
    const uint8_t *x, *sums; // of the lane's first row
    int last, units, step;   // row of the item

    GR_METHOD mv_x(const struct gr_matmul_args &a, const struct mm_item &item)
    {
        units = a.x.units, last = item.n - 1;
        int64_t first = item.x_row + row(0);
        x = a.x.x + first * units * 64 + threadIdx.x % 4 * 16;
        sums = a.x.sums + first * gr_packed_x_chunks(units) * 64 + threadIdx.x % 4 * 16;
    }
    GR_METHOD int row(int i) const
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
    GR_METHOD uint4 unit(int u, int i) const // one address for all units
    {
        uint32_t at = (i ? row(i) - row(0) : 0) * units + step * S::UNITS;
        return *(const uint4 *)(x + (uint64_t)at * 64 + u * 64);
    }
    GR_METHOD uint4 sum(int i) const
    {
        uint32_t n = (uint32_t)(units + 7) / 8; // gr_packed_x_chunks, 32 bits
        uint32_t at = (i ? row(i) - row(0) : 0) * n + (uint32_t)step / S::STEPS;
        return *(const uint4 *)(sums + (uint64_t)at * 64);
    }
};

// The sums of the warps, in their order, to y. `odd` alternates from a tile of a block to the next:
// each has shared memory of its own, so that one barrier is enough, and begins at the other end of
// the threads.
template <int NT>
GR_DEV void mv_store(const struct gr_matmul_args &a, int64_t row0, const struct mm_item &item,
                     const float (&acc)[1][NT][4], uint32_t odd)
{
    GR_SMEM;
    int n_warp = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *sum = (float *)smem + odd * n_warp * NT * 128; // [warp][NT][4][32]
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum[((warp * NT + i) * 4 + k) * 32 + lane] = acc[0][i][k];
    __syncthreads();
    for (int e = odd ? blockDim.x - 1 - threadIdx.x : threadIdx.x; e < NT * 128; e += blockDim.x) {
        int l = e % 32, k = e / 32 % 4; // lane and element of the accumulator
        int tok = e / 128 * 8 + l % 4 * 2 + k % 2;
        if (tok >= item.n)
            continue;
        float v = 0;
        for (int w = 0; w < n_warp; w++)
            v += sum[w * NT * 128 + e];
        mm_store(a, item, row0 + l / 4 + k / 2 * 8 - a.w.offset, tok, v);
    }
}

// A place in the work of a launch: a tile of an item of a product, the first of `left`
// consecutive ones. Places are numbered by slices of the epilogue, then by products, items and
// tiles, so that a block works on few slices.
struct mv_place {
    uint32_t number, tile, item, left;
    int part;

    GR_METHOD mv_place(const struct gr_matmul_mv_args &all, uint32_t i)
    {
        const struct gr_epilogue &t = all.epilogue;
        uint32_t slice = i / t.n_work, each = mm_tiles(all.part[0]) / t.n_slice;
        number = i, part = 0, i -= slice * t.n_work;
        while (part + 1 < all.n && i >= each * all.n_item) {
            i -= each * all.n_item;
            each = mm_tiles(all.part[++part]) / t.n_slice;
        }
        item = i / each, i -= item * each;
        tile = slice * each + i, left = each - i;
    }
    // Goes to the next place before `end`; true when its tile does not follow this one.
    GR_METHOD bool next(const struct gr_matmul_mv_args &all, uint32_t end)
    {
        number++, tile++, left--;
        if (left || number >= end)
            return false;
        *this = mv_place(all, number);
        return true;
    }
};

// The places of a block: as many as the others', or one more where the division leaves a remainder.
struct mv_range {
    uint32_t lo, hi;

    GR_METHOD mv_range(const struct gr_epilogue &t)
    {
        uint32_t n = t.n_slice * t.n_work, each = n / gridDim.x, more = n - each * gridDim.x;
        lo = blockIdx.x * each + min(blockIdx.x, more);
        hi = lo + each + (blockIdx.x < more);
    }
};

template <uint32_t T, int U, int NT> GR_DEV void matmul_mv(const struct gr_matmul_mv_args &all)
{
    using S = pack_step<T, U>;
    const struct gr_matmul_args &first = all.part[0]; // columns, packed x and ids are all parts'
    const int n_warp = blockDim.x / 32, warp = threadIdx.x / 32, units = first.x.units;
    const int n_step = (units + S::UNITS - 1) / S::UNITS, n_turn = (n_step + n_warp - 1) / n_warp;
    const int64_t tile_bytes = gr_pack_tile_bytes(T, first.w.cols);
    const struct mv_range work(all.epilogue);
    auto item_at = [&](const struct mv_place &p) {
        return mm_item(all.part[p.part], p.item, 0, NT * 8);
    };
    auto tile_at = [&](const struct mv_place &p) {
        return mm_tile_at(all.part[p.part], item_at(p), p.tile, tile_bytes);
    };
    if (first.ids)
        griddep_wait();

    struct mv_place ahead(all, work.lo), at = ahead;
    const uint8_t *tile = tile_at(ahead);
    int ahead_turn = 0, turn = 0;
    auto ask = [&](S(&w)[1]) {
        uint32_t i = ahead_turn * n_warp + warp, chunk = i / S::STEPS;
        S next;
        if ((int)i < n_step && ahead.number < work.hi)
            next.template load_chunk<from_global, NT == 1>(
                tile + (int64_t)chunk * (int)gr_pack_chunk_bytes(T, 8), i % S::STEPS * S::UNITS,
                units - 8 * chunk);
        w[0] = next; // without a step it is not used
        if (++ahead_turn < n_turn)
            return;
        ahead_turn = 0;
        tile = ahead.next(all, work.hi) ? tile_at(ahead) : tile + tile_bytes;
    };
    S w[2][1]; // one is loaded while the other is multiplied
    ask(w[0]);
    ask(w[1]);
    griddep_begin(); // weights are complete from the start, other inputs may not be

    if (NT == 1 && all.epilogue.count)
        epilogue_begin(all.epilogue);
    struct mm_item item = item_at(at);
    struct mv_x<S, NT> x(first, item);
    float acc[1][NT][4] = {};
    auto take = [&](S(&w)[1]) {
        x.step = turn * n_warp + warp;
        if (x.step < n_step) {
            w[0].arrived();
            product<T, U, 1, NT>(w, units - x.step * S::UNITS, x, acc);
        }
        ask(w);
        if (++turn < n_turn)
            return;
        mv_store<NT>(all.part[at.part], at.tile * GR_PACK_ROWS, NT == 1 ? item : item_at(at), acc,
                     (at.number - work.lo) % 2);
        turn = 0;
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                acc[0][i][k] = 0;
        if (at.next(all, work.hi)) {
            item = item_at(at);
            x = mv_x<S, NT>(first, item);
        }
    };
    while (at.number < work.hi) {
        take(w[0]);
        if (at.number < work.hi)
            take(w[1]);
    }
    if (NT == 1 && all.epilogue.count)
        epilogue_behind_all(work.lo, work.hi);
}
