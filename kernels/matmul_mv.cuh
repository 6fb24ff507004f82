// MATMUL, MATMUL_ID and HEAD_MATMUL for few tokens: a stream of weights through tensor cores.
//
// Traffic: each weight once (16 rows at a time), activations once a tile, from L1 after the first
// tile of a multiprocessor. Bound: bandwidth, up to about 16 tokens.
// Grid: as many blocks as the device holds at once (2 of 8 warps a multiprocessor), each with an
// equal run of tiles of 16 rows, of all products and items. The warps of a block take turns at the
// chunks of a tile's columns, so that a tile is read by all of them at once, and their partial sums
// are added in the order of the warps through shared memory. Reasons: tokens are the 8 columns of
// mma.m16n8k16, so 8 cost as much as one. A warp has a ring of slots for its chunks (mv_ring.cuh),
// across tiles too, so it does not wait where a tile ends; a slot is asked for again as soon as its
// codes are in registers, so that all of them are under way during the arithmetic. The first ones
// are requested before the preceding launch is over: no launch of this stream writes weights, and
// offloaded ones arrive before a segment's first launch, which waits for all preceding work. Up to
// 8 tokens, the last block of a slice, or of all, does the small operations behind the products
// (epilogue.cuh). One token has kernels of its own for types whose instructions would take longer
// than their bytes (mv_one.cuh).
//
// A tile a block would leave every round without loads where it begins and ends; a run of tiles
// does so once a launch. Columns are not cut into segments, whose sums would be written, counted
// and read again: a microsecond, more than is won even where tiles are few, as loads of half the
// device's blocks fill the memory, and instructions take less time than bytes. scripts/bench/step
// predicts each launch of a step (kernels/README.md).
#pragma once

#include "kernels/epilogue.cuh"
#include "kernels/mv_one.cuh"
#include "kernels/mv_ring.cuh"

// Words of activations of this lane, for one step. Lanes without a row of x read the last one's;
// their results are not stored.
template <class S, int NT> struct mv_x {
    const uint8_t *x, *sums; // of the lane's first row
    int last, chunks, step;  // row of the item; of a row

    GR_METHOD mv_x(const struct gr_matmul_args &a, const struct mm_item &item)
    {
        chunks = (a.x.units + 7) / 8, last = item.n - 1;
        int64_t first = item.x_row + row(0);
        x = a.x.x + first * chunks * 512 + threadIdx.x % 4 * 16;
        sums = a.x.sums + first * chunks * 64 + threadIdx.x % 4 * 16;
    }
    GR_METHOD int row(int i) const
    {
        return min(8 * i + (int)threadIdx.x % 32 / 4, last);
    }
    // Codes and x are zeros behind a row's units. Where registers are short, branches keep the
    // compiler from unpacking all units at once.
    GR_METHOD bool over(int u, int n) const
    {
        return (NT > 1 || ((S::SUMS || S::B1 || S::B0 == 4) && !S::BY_16 && u % 2 == 0)) && u >= n;
    }
    GR_METHOD void enter(int) const
    {
    }
    GR_METHOD uint4 unit(int u, int i) const // one address for all units
    {
        uint32_t at = (i ? row(i) - row(0) : 0) * chunks * 8 + step * S::UNITS;
        return *(const uint4 *)(x + (uint64_t)at * 64 + u * 64);
    }
    GR_METHOD uint4 sum(int i) const
    {
        uint32_t at = (i ? row(i) - row(0) : 0) * chunks + (uint32_t)step / S::STEPS;
        return *(const uint4 *)(sums + (uint64_t)at * 64);
    }
};

// acc += the products of a chunk, or of a part of it, times its factors for the columns 2 t and 2 t
// + 1 of each group of tokens.
template <class S, int NT>
GR_DEV void mv_add(float (&acc)[1][NT][4], const float (&part)[1][NT][4],
                   const struct gr_matmul_args &a, const struct mm_item &item, int chunk)
{
    const float *f = a.x.factor + (chunk * gr_packed_x_pitch(a.x.n) + (int)item.x_row +
                                   (int)threadIdx.x % 4 * 2);
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float even = f[8 * i] * S::AFTER, odd = f[8 * i + 1] * S::AFTER;
#pragma unroll
        for (int k = 0; k < 4; k++)
            acc[0][i][k] = fmaf(k % 2 ? odd : even, part[0][i][k], acc[0][i][k]);
    }
}

// mv_x that loads the words of a step ahead of its products, for up to 8 tokens.
template <class S, int NT> struct mv_x_ahead : mv_x<S, NT> {
    using X = mv_x<S, NT>;
    uint4 words[NT == 1 ? S::UNITS : 1], words_of_sums;

    GR_METHOD mv_x_ahead(const struct gr_matmul_args &a, const struct mm_item &item) : X(a, item)
    {
    }
    GR_METHOD void ask(int i) // goes to step i
    {
        X::step = i;
        if constexpr (NT == 1)
#pragma unroll
            for (int u = 0; u < S::UNITS; u++)
                words[u] = X::unit(u, 0);
        if constexpr (NT == 1 && S::SUMS)
            words_of_sums = X::sum(0);
    }
    GR_METHOD uint4 unit(int u, int i) const
    {
        return NT == 1 ? words[u] : X::unit(u, i);
    }
    GR_METHOD uint4 sum(int i) const
    {
        return NT == 1 ? words_of_sums : X::sum(i);
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

// The work of a warp for 8 NT tokens: activations, and sums of the lane.
template <uint32_t T, int U, int NT> struct mv_some {
    using S = pack_step<T, U>;
    static constexpr bool EPILOGUE = NT == 1;
    static constexpr int TOKENS = 8 * NT, SUMS = NT * 128; // of a warp, in shared memory
    struct mv_x_ahead<S, NT> x;
    // Constants stay in registers, as copies would be instructions, where 8.0 has any left.
    static constexpr bool KEPT = S::IQ4 && (NT == 3 || T == GR_IQ4_NL);
    iq4_values<KEPT> iq4;
    float acc[1][NT][4] = {}, part[1][NT][4];

    GR_METHOD mv_some(const struct gr_matmul_args &a, const struct mm_item &item) : x(a, item)
    {
    }
    GR_METHOD void go(const struct gr_matmul_args &a, const struct mm_item &item) // to another one
    {
        x = mv_x_ahead<S, NT>(a, item);
    }
    GR_METHOD void begin() // a slot
    {
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                part[0][i][k] = 0;
    }
    GR_METHOD void ask(int step)
    {
        x.ask(step);
    }
    GR_METHOD void add(S (&w)[1], int n) // n units are left
    {
        w[0].arrived();
        product<T, U, 1, NT>(w, n, x, part, iq4);
    }
    GR_METHOD void end(const struct gr_matmul_args &a, const struct mm_item &item, int chunk)
    {
        mv_add<S, NT>(acc, part, a, item, chunk);
    }
    GR_METHOD void store(const struct gr_matmul_args &a, int64_t row0, const struct mm_item &item,
                         uint32_t odd)
    {
        mv_store<NT>(a, row0, item, acc, odd);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                acc[0][i][k] = 0;
    }
};

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

// Work: mv_some or mv_one.
template <uint32_t T, int U, class Work> GR_DEV void matmul_mv(const struct gr_matmul_mv_args &all)
{
    using S = pack_step<T, U>;
    constexpr int UNITS = gr_mv_slot_units(T), STEPS = UNITS / U; // of a slot
    constexpr uint32_t SLOT = gr_mv_slot_bytes(T, UNITS);
    const struct gr_matmul_args &first = all.part[0]; // columns, packed x and ids are all parts'
    const int n_warp = blockDim.x / 32, units = first.x.units;
    const int lane = threadIdx.x % 32;
    // by a shuffle: the compiler knows that it is the warp's, and has addresses once for all lanes
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    const int n_slot = (units + UNITS - 1) / UNITS; // of a tile; a warp has one at least
    const uint32_t last = gr_mv_slot_bytes(T, units - (n_slot - 1) * UNITS);
    const int64_t tile_bytes = gr_pack_tile_bytes(T, first.w.cols);
    const struct mv_range work(all.epilogue);
    auto item_at = [&](const struct mv_place &p) {
        return mm_item(all.part[p.part], p.item, 0, Work::TOKENS);
    };
    auto tile_at = [&](const struct mv_place &p) {
        return mm_tile_at(all.part[p.part], item_at(p), p.tile, tile_bytes);
    };
    struct mv_ring<SLOT> ring(2 * n_warp * (uint32_t)sizeof(float) * Work::SUMS, all.n_slot,
                              all.copy_engine, warp, lane);
    if (first.ids)
        griddep_wait();

    struct mv_place ahead(all, work.lo), at = ahead;
    const uint8_t *tile = tile_at(ahead);
    int ahead_slot = warp;
    auto ask = [&] { // for the warp's next slot of weights
        if (ahead.number < work.hi) {
            const bool whole = S::K_BLOCK || ahead_slot + 1 < n_slot;
            ring.fetch(tile + (int64_t)ahead_slot * (int)SLOT, whole ? SLOT : last);
            ahead_slot += n_warp;
            if (ahead_slot >= n_slot) {
                ahead_slot = warp;
                tile = ahead.next(all, work.hi) ? tile_at(ahead) : tile + tile_bytes;
            }
        }
        ring.next();
    };
    for (int i = 0; i < all.n_slot; i++)
        ask();
    griddep_begin(); // weights are complete from the start, other inputs may not be

    if (Work::EPILOGUE && all.epilogue.count)
        epilogue_begin(all.epilogue);
    struct mm_item item = item_at(at);
    Work sums(first, item);
    while (at.number < work.hi) {
        for (int i = warp; i < n_slot; i += n_warp) {
            const int n = min(UNITS, units - i * UNITS);
            const uint8_t *codes = nullptr;
            sums.begin();
#pragma unroll
            for (int k = 0; k < STEPS && (k == 0 || k * U < n); k++) {
                S w[1];
                sums.ask(i * STEPS + k);
                if (k == 0)
                    codes = ring.wait();
                w[0].template load_chunk<from_shared>(codes, k * U, n == UNITS ? 8 : n, lane);
                if (k == STEPS - 1 || (k + 1) * U >= n) {
                    ring.release();
                    ask();
                }
                sums.add(w, n - k * U);
            }
            sums.end(first, Work::EPILOGUE ? item : item_at(at), i * UNITS / 8);
        }
        sums.store(all.part[at.part], at.tile * GR_PACK_ROWS, Work::EPILOGUE ? item : item_at(at),
                   (at.number - work.lo) % 2);
        if (at.next(all, work.hi)) {
            item = item_at(at);
            sums.go(first, item);
        }
    }
    if (Work::EPILOGUE && all.epilogue.count)
        epilogue_behind_all(work.lo, work.hi);
}
