// MATMUL, MATMUL_ID and HEAD_MATMUL with F32 weights (routers, small models): f32 products and sums
// on the ordinary cores, activations as they are.
//
// gr_matmul_f32_mv: traffic as kernels/matmul_mv.cuh; a lane multiplies its 2 x 8 weights of a unit
//   with 8 tokens. Grid: (tile of each item, times n_split parts of the columns; group of
//   8 tokens). A router has few rows: of 128 x 2048 there are 8 tiles, and 8 multiprocessors alone
//   would bring 128 KB each, some 16 KB at a time, in 6 us; 4 parts of each, all of whose weights
//   are requested before the preceding launch is over, in none. The rest takes latencies: x, the
//   parts' sums, their addition by the last block, ROUTE by that too. The result does not depend
//   on which block is the last: parts are added in their order. Bound: bandwidth up to 8 tokens.
// gr_matmul_f32_tile: grid (64 tokens, 64 rows, head); 256 threads with 4 x 4 numbers each, a unit
//   of both operands at a time in shared memory. Bound: f32 multipliers. Each sum is one chain over
//   the columns, in their order but for the 8 of a lane.
#include "gr/kernel/epilogue.h"
#include "kernels/last.cuh"
#include "kernels/matmul.cuh"
#include "kernels/route.cuh"

// Word i of row r among the 16 of this lane's unit u, in a chunk of a tile.
GR_DEV uint4 f32_weights(const uint8_t *tile, int u, int lane, int r, int half)
{
    return load_once(tile + (int64_t)u * 2048 + (2 * r + half) * 512 + lane * 16);
}

// The weights of a lane in a unit: 8 columns of two rows.
struct f32_unit {
    float w[2][8];

    GR_METHOD void load(const uint8_t *tile, int u, int lane)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 v = f32_weights(tile, u, lane, i / 2, i % 2);
            float *to = w[i / 2] + i % 2 * 4;
            to[0] = __uint_as_float(v.x), to[1] = __uint_as_float(v.y);
            to[2] = __uint_as_float(v.z), to[3] = __uint_as_float(v.w);
        }
    }
    // acc += these times columns of x [n rows, row_bytes apart], of which there are `cols`.
    template <int N>
    GR_METHOD void multiply(const uint8_t *x, int64_t row_bytes, int n, int64_t cols,
                            float (&acc)[2][8]) const
    {
#pragma unroll
        for (int t = 0; t < N; t++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float v = t < n && j < cols ? ((const float *)(x + t * row_bytes))[j] : 0;
                acc[0][t] = fmaf(w[0][j], v, acc[0][t]);
                acc[1][t] = fmaf(w[1][j], v, acc[1][t]);
            }
    }
};

// Place of a block in the grid, and of its sums.
struct f32_place {
    uint32_t n_tile, tile, split; // tiles of all items

    GR_METHOD f32_place(const struct gr_matmul_f32_args &all)
    {
        n_tile = gridDim.x / all.n_split;
        tile = blockIdx.x % n_tile, split = blockIdx.x / n_tile;
    }
    GR_METHOD uint32_t sums(uint32_t s, uint32_t t) const // of part s of tile t: 128 floats
    {
        return ((s * gridDim.y + blockIdx.y) * n_tile + t) * 128;
    }
};

// Stores a sum: row and token of tile t.
GR_DEV void f32_store(const struct gr_matmul_args &a, uint32_t t, int row, int tok, float v)
{
    struct mm_block b = mm_block(a, t);
    struct mm_item item = mm_item(a, b.item, blockIdx.y * 8, 8);
    mm_store(a, item, b.tile * GR_PACK_ROWS + row - a.w.offset, tok, v);
}

// Adds up the parts of tiles [lo, hi), n tokens.
GR_DEV void f32_add_up(const struct gr_matmul_f32_args &all, const struct f32_place &at,
                       uint32_t lo, uint32_t hi, int n)
{
    uint32_t n_row = (hi - lo) * 16;
    for (uint32_t e = threadIdx.x; e < n * n_row; e += blockDim.x) {
        uint32_t tok = e / n_row, row = e - tok * n_row, tile = lo + row / 16;
        const float *part = all.part + tok * 16 + row % 16;
        float v = 0;
#pragma unroll 8
        for (uint32_t s = 0; s < all.n_split; s++)
            v += part[at.sums(s, tile)];
        f32_store(all.m, tile, row % 16, tok, v);
    }
}

// Work after a block has stored its sums.
GR_DEV void f32_behind(const struct gr_matmul_f32_args &all, const struct f32_place &at, int n)
{
    GR_SMEM;
    bool whole = all.n_router;
    if (!whole && all.n_split == 1)
        return;
    if (!last_of(all.count + (whole ? 0 : blockIdx.y * at.n_tile + at.tile),
                 whole ? gridDim.x : all.n_split))
        return;
    if (all.n_split > 1)
        f32_add_up(all, at, whole ? 0 : at.tile, whole ? at.n_tile : at.tile + 1, n);
    if (!whole)
        return;
    __syncthreads();
    uint32_t warp = threadIdx.x / WARP;
    for (uint32_t t = warp; warp < all.n_router && t < all.route.logits.rows; t += all.n_router) {
        route_token(all.route, t, (double *)smem + warp * 3 * all.route.logits.cols);
        __syncwarp();
    }
}

GR_KERNEL_EARLY(gr_matmul_f32_mv, struct gr_matmul_f32_args, 256, 2)
{
    GR_SMEM;
    float *sum = (float *)smem; // [warp][16 rows][8 tokens]
    const struct gr_matmul_args &m = a.m;
    int n_warp = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    struct f32_place at(a);
    struct mm_block block = mm_block(m, at.tile);
    if (m.ids)
        griddep_wait();
    struct mm_item item = mm_item(m, block.item, blockIdx.y * 8, 8);
    const uint8_t *tile = mm_tile_at(m, item, block.tile, gr_pack_tile_bytes(GR_F32, m.w.cols));
    int64_t head = m.ids ? 0 : block.item, row0 = m.ids ? item.x_row : blockIdx.y * 8;
    const uint8_t *x =
        m.x32 + head * m.x_item_bytes + row0 * m.x_row_bytes + lane % 4 * 8 * sizeof(float);
    float acc[2][8] = {};
    struct f32_unit w[2]; // one is loaded while the other is multiplied
    int step = n_warp * a.n_split, first = at.split * n_warp + warp;
    auto load = [&](struct f32_unit &to, int u) {
        if (u < m.x.units)
            to.load(tile, u, lane);
    };
    auto multiply = [&](const struct f32_unit &by, int u) {
        const uint8_t *p = x + (int64_t)u * GR_PACK_UNIT * sizeof(float);
        int64_t cols = m.w.cols - u * GR_PACK_UNIT - lane % 4 * 8;
        if (item.n == 1)
            by.multiply<1>(p, m.x_row_bytes, 1, cols, acc);
        else
            by.multiply<8>(p, m.x_row_bytes, item.n, cols, acc);
    };
    load(w[0], first);
    load(w[1], first + step);
    griddep_begin(); // weights are complete from the start, other inputs may not be
    for (int u = first; u < m.x.units; u += 2 * step) {
        multiply(w[0], u);
        load(w[0], u + 2 * step);
        if (u + step >= m.x.units)
            break;
        multiply(w[1], u + step);
        load(w[1], u + 3 * step);
    }
#pragma unroll
    for (int e = 0; e < 16; e++) { // over the four parts of a row
        float v = acc[e / 8][e % 8];
        v += __shfl_xor_sync(0xffffffff, v, 1);
        v += __shfl_xor_sync(0xffffffff, v, 2);
        if (lane % 4 == 0)
            sum[(warp * 8 + e % 8) * 16 + lane / 4 + e / 8 * 8] = v;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 128; e += blockDim.x) {
        float v = 0;
        for (int i = 0; i < n_warp; i++)
            v += sum[i * 128 + e];
        if (a.n_split > 1)
            a.part[at.sums(at.split, at.tile) + e] = v;
        else
            f32_store(m, at.tile, e % 16, e / 16, v);
    }
    f32_behind(a, at, item.n);
}

#define SIDE 64 // rows and tokens of a block
#define PITCH (SIDE + 4)

GR_KERNEL(gr_matmul_f32_tile, struct gr_matmul_args, 256, 2)
{
    __align__(16) __shared__ float w[GR_PACK_UNIT][PITCH], x[GR_PACK_UNIT][PITCH];
    struct mm_item item = mm_item(a, blockIdx.z, blockIdx.x * SIDE, SIDE);
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    int64_t tile_bytes = gr_pack_tile_bytes(GR_F32, a.w.cols);
    const uint8_t *tile = mm_tile_at(a, item, blockIdx.y * (SIDE / 16) + warp / 2, tile_bytes);
    const uint8_t *rows =
        a.x32 + blockIdx.z * a.x_item_bytes + (int64_t)blockIdx.x * SIDE * a.x_row_bytes;
    float acc[4][4] = {};
    for (int u = 0; u < a.x.units; u++) {
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++) { // a warp has 8 rows of weights
            uint4 v = f32_weights(tile, u, lane, warp % 2, half);
            float *to = &w[lane % 4 * 8 + half * 4][warp * 8 + lane / 4];
            to[0] = __uint_as_float(v.x), to[PITCH] = __uint_as_float(v.y);
            to[2 * PITCH] = __uint_as_float(v.z), to[3 * PITCH] = __uint_as_float(v.w);
        }
        int col = u * GR_PACK_UNIT + lane; // and 8 tokens
        for (int t = warp; t < SIDE; t += 8)
            x[lane][t] =
                t < item.n && col < a.w.cols ? ((const float *)(rows + t * a.x_row_bytes))[col] : 0;
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < GR_PACK_UNIT; k++) {
            float4 r = *(const float4 *)&w[k][tid % 16 * 4],
                   t = *(const float4 *)&x[k][tid / 16 * 4];
            const float wr[4] = {r.x, r.y, r.z, r.w}, xt[4] = {t.x, t.y, t.z, t.w};
#pragma unroll
            for (int e = 0; e < 16; e++)
                acc[e / 4][e % 4] = fmaf(wr[e % 4], xt[e / 4], acc[e / 4][e % 4]);
        }
    }
#pragma unroll
    for (int e = 0; e < 16; e++)
        mm_store(a, item, (int64_t)blockIdx.y * SIDE + tid % 16 * 4 + e % 4 - a.w.offset,
                 tid / 16 * 4 + e / 4, acc[e / 4][e % 4]);
}
