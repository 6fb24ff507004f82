// Shared parts of the tiles of products on mma.sync (kernels/matmul_tile.cu): a block of 4 warps
// has 64 tokens and 128 rows, a warp 32 of these.
#pragma once

#include "kernels/matmul.cuh"

#define TOKENS 64
#define ROWS 128
#define STAGES 4
#define STAGE_BYTES (TOKENS * 128)
#define SUM_BYTES (TOKENS * 64)

// The activations of a block, and its position in them.
template <class S> struct tile_x {
    uint32_t ring;           // shared memory
    const uint8_t *x, *sums; // next copies of this thread
    int x_bytes, sum_bytes;
    int n, pairs; // tokens; pairs of units in all
    int step;     // of S::UNITS units

    // Begins to copy pair q of units; pairs are copied one after another.
    GR_METHOD void fetch(int q)
    {
        int tok = threadIdx.x / 8, piece = threadIdx.x % 8;
        uint32_t to = ring + q % STAGES * STAGE_BYTES + tok * 128 + (piece ^ (tok & 7)) * 16;
        const uint8_t *from = x;
        x += 128;
#pragma unroll
        for (int k = 0; k < TOKENS && q < pairs; k += 16) {
            cp_async_16(to + k * 128, from, tok + k < n ? 16 : 0);
            from += 16 * x_bytes;
        }
        if (S::SUMS && q % 4 == 0 && q < pairs) { // a chunk's, to the slot of its parity
            tok = threadIdx.x / 4, piece = threadIdx.x % 4 * 16;
            to = ring + STAGES * STAGE_BYTES + q / 4 % 2 * SUM_BYTES + tok * 64 + piece;
            cp_async_16(to, sums, tok < n ? 16 : 0);
            cp_async_16(to + SUM_BYTES / 2, sums + 32 * sum_bytes, tok + 32 < n ? 16 : 0);
            sums += 64;
        }
        cp_async_commit();
    }
    GR_METHOD void begin(const struct gr_matmul_args &a, const struct mm_item &item)
    {
        GR_SMEM;
        int64_t chunks = gr_packed_x_chunks(a.x.units), tid = threadIdx.x;
        ring = smem_u32(smem), x_bytes = a.x.units * 64, sum_bytes = chunks * 64;
        x = a.x.x + (item.x_row + tid / 8) * (int64_t)x_bytes + tid % 8 * 16;
        sums = a.x.sums + (item.x_row + tid / 4) * (int64_t)sum_bytes + tid % 4 * 16;
        n = item.n, pairs = a.x.units / 2, step = 0;
        for (int q = 0; q < STAGES - 1; q++)
            fetch(q);
    }
    GR_METHOD bool over(int u, int n) const
    {
        return u >= n;
    }
    GR_METHOD void enter(int u)
    {
        if (u % 2)
            return;
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        fetch((step * S::UNITS + u) / 2 + STAGES - 1);
    }
    GR_METHOD uint4 unit(int u, int i) const
    {
        int lane = threadIdx.x % 32, q = (step * S::UNITS + u) / 2, piece = u % 2 * 4 + lane / 8;
        uint32_t b[4];
        ldmatrix_x4(b, ring + q % STAGES * STAGE_BYTES + (8 * i + lane % 8) * 128 +
                           (piece ^ lane % 8) * 16);
        return {b[0], b[1], b[2], b[3]};
    }
    GR_METHOD uint4 sum(int i) const
    {
        GR_SMEM;
        return *(const uint4 *)(smem + STAGES * STAGE_BYTES + step / S::STEPS % 2 * SUM_BYTES +
                                i * 512 + threadIdx.x % 32 * 16);
    }
};

// Work of the block; n = 0: none.
GR_DEV struct mm_item tile_item(const struct gr_matmul_args &a)
{
    return a.tiles ? mm_tile(a, blockIdx.x) : mm_item(a, blockIdx.z, blockIdx.x * TOKENS, TOKENS);
}

// Stores sums, times `after`, by way of shared memory, so that whole rows of y are written.
template <int M, int NT>
GR_DEV void tile_store(const struct gr_matmul_args &a, const struct mm_item &item,
                       const float (&acc)[M][NT][4], float after = 1)
{
    GR_SMEM;
    float *sum = (float *)smem; // [token][ROWS + 4]
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * M * 16 + lane / 4;
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                sum[(8 * i + lane % 4 * 2 + k % 2) * (ROWS + 4) + row + m * 16 + k / 2 * 8] =
                    acc[m][i][k];
    __syncthreads();
    for (int e = threadIdx.x; e < ROWS * item.n; e += 128)
        mm_store(a, item, (int64_t)blockIdx.y * ROWS + e % ROWS - a.w.offset, e / ROWS,
                 sum[e / ROWS * (ROWS + 4) + e % ROWS] * (mm_factor(a, item, e / ROWS) * after));
}
