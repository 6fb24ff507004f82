// Preparation of products of packed matrices.
//
// gr_matmul_x: rows of f32 activations to packed x (gr/kernel/matmul.h). Traffic: a row once
//   from memory (again from L1), 2.25 bytes a column back. Grid: rows of packed x.
// gr_matmul_x_level: groups of columns of packed x to one factor a row. Traffic: a byte a group,
// and
//   twice the groups that differ, which are few. Grid: rows of packed x.
// gr_matmul_x_group: pairs (token, expert) in the order of experts. Grid: experts; each block reads
//   all ids. The order within an expert is that of the pairs, whatever the schedule.
// gr_matmul_x_pass: columns that HEAD_MATMUL hands on. Grid: (head, token).
#include "kernels/packed_x.cuh"

#define WARPS PACKED_X_WARPS

GR_DEV int warp_sum(int v)
{
    for (int o = 16; o; o /= 2)
        v += __shfl_xor_sync(0xffffffff, v, o);
    return v;
}

GR_KERNEL(gr_matmul_x, struct gr_matmul_x_args, GR_PACKED_X_THREADS, 1)
{
    int64_t i = blockIdx.x;
    write_packed_row<2>(a, i, a.order ? a.order[i] / a.div : i % a.n_row);
}

GR_KERNEL(gr_matmul_x_level, struct gr_packed_x_groups, GR_LEVEL_THREADS, 1)
{
    packed_x_level(a, blockIdx.x);
}

GR_DEV int id_of(const struct gr_matmul_group_args &a, int i)
{
    return ((const int32_t *)(a.ids + i / a.n_used * a.ids_row_bytes))[i % a.n_used];
}

// Sum of v over the block, in every thread; `of_warp` is free before and after a barrier.
GR_DEV int block_sum(int v, int *of_warp)
{
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    int sum = 0;
    for (int w = 0; w < WARPS; w++)
        sum += of_warp[w];
    __syncthreads();
    return sum;
}

GR_KERNEL(gr_matmul_x_group, struct gr_matmul_group_args, 32 * WARPS, 1)
{
    GR_SMEM;
    int *count = (int *)smem; // [n_expert]
    __shared__ int of_warp[WARPS];
    int me = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int e = threadIdx.x; e < a.n_expert; e += 32 * WARPS)
        count[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < a.n; i += 32 * WARPS)
        atomicAdd(&count[id_of(a, i)], 1); // integers: any order
    __syncthreads();
    int pairs = 0, tiles = 0;
    for (int e = threadIdx.x; e < me; e += 32 * WARPS)
        pairs += count[e], tiles += (count[e] + a.tile - 1) / a.tile;
    int first = block_sum(pairs, of_warp), tile = block_sum(tiles, of_warp), mine = count[me];
    for (int j = threadIdx.x; j * a.tile < mine; j += 32 * WARPS) {
        int32_t *to = a.tiles + 1 + 3 * (tile + j);
        to[0] = me, to[1] = first + j * a.tile, to[2] = min(a.tile, mine - j * a.tile);
    }
    if (me == a.n_expert - 1 && threadIdx.x == 0)
        a.tiles[0] = tile + (mine + a.tile - 1) / a.tile;
    for (int base = 0; base < a.n; base += 32 * WARPS) {
        int i = base + threadIdx.x;
        bool is = i < a.n && id_of(a, i) == me;
        uint32_t mask = __ballot_sync(0xffffffff, is);
        if (lane == 0)
            of_warp[warp] = __popc(mask);
        __syncthreads();
        int before = 0, all = 0;
        for (int w = 0; w < WARPS; w++)
            before += w < warp ? of_warp[w] : 0, all += of_warp[w];
        if (is)
            a.order[first + before + __popc(mask & ((1u << lane) - 1))] = i;
        first += all;
        __syncthreads();
    }
}

GR_KERNEL(gr_matmul_x_pass, struct gr_matmul_pass_args, 128, 1)
{
    const float *x =
        (const float *)(a.x + blockIdx.y * a.x_row_bytes + blockIdx.x * a.x_head_bytes);
    float *y = (float *)(a.y + blockIdx.y * a.y_row_bytes + blockIdx.x * a.y_head_bytes);
    for (int i = threadIdx.x; i < a.n; i += 128)
        y[i] = x[i];
}
