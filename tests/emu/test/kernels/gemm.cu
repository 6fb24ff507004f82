// Operation: c = a b^T in f16 with f32 sums. 128 threads compute a tile of 64 x 64: each of four
// warps 16 rows; tiles of k come by cp.async in three stages and are read by ldmatrix.
#include "kernels/mma.cuh"
#include "test/kernels/basic.h"

namespace
{
constexpr int tile = 64, depth = 32, pitch = depth + 8, stages = 3;
constexpr int stage = 2 * tile * pitch; // elements of a and b

// Rows of `from` from `row` on into shared memory; those beyond n_row are zeros.
GR_DEV void load_tile(uint16_t *to, const uint16_t *from, uint32_t row, uint32_t n_row, uint32_t k,
                      uint32_t n_k)
{
    for (uint32_t i = threadIdx.x; i < tile * depth / 8; i += blockDim.x) {
        uint32_t r = i / (depth / 8), c = i % (depth / 8) * 8;
        bool in = row + r < n_row;
        cp_async_16(smem_u32(to + r * pitch + c), from + (size_t)(in ? row + r : 0) * n_k + k + c,
                    in ? 16 : 0);
    }
}

template <int pending, bool barrier> GR_DEV void gemm(const gemm_args &a)
{
    GR_SMEM;
    uint16_t *tiles = (uint16_t *)smem;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t row = blockIdx.y * tile, col = blockIdx.x * tile, n_step = a.k / depth;
    float d[8][4] = {};
    for (uint32_t s = 0; s < stages - 1; s++) {
        if (s < n_step) {
            load_tile(tiles + s * stage, a.a, row, a.m, s * depth, a.k);
            load_tile(tiles + s * stage + tile * pitch, a.b, col, a.n, s * depth, a.k);
        }
        cp_async_commit();
    }
    for (uint32_t s = 0; s < n_step; s++) {
        cp_async_wait<pending>();
        if (barrier)
            __syncthreads();
        uint32_t next = s + stages - 1;
        if (next < n_step) {
            uint16_t *to = tiles + next % stages * stage;
            load_tile(to, a.a, row, a.m, next * depth, a.k);
            load_tile(to + tile * pitch, a.b, col, a.n, next * depth, a.k);
        }
        cp_async_commit();
        const uint16_t *ta = tiles + s % stages * stage, *tb = ta + tile * pitch;
        for (int k = 0; k < depth; k += 16) {
            uint32_t fa[4];
            ldmatrix_x4(fa, smem_u32(ta + (warp * 16 + lane % 16) * pitch + k + lane / 16 * 8));
            for (int j = 0; j < 4; j++) {
                uint32_t fb[4];
                ldmatrix_x4(fb, smem_u32(tb + (j * 16 + lane / 16 * 8 + lane % 8) * pitch + k +
                                         lane / 8 % 2 * 8));
                mma_f16(d[2 * j], fa, fb);
                mma_f16(d[2 * j + 1], fa, fb + 2);
            }
        }
    }
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 4; i++) {
            uint32_t r = row + warp * 16 + lane / 4 + i / 2 * 8,
                     c = col + j * 8 + lane % 4 * 2 + i % 2;
            if (r < a.m && c < a.n)
                a.c[(size_t)r * a.n + c] = d[j][i];
        }
}
} // namespace

GR_KERNEL(test_gemm, gemm_args, 128, 2)
{
    gemm<stages - 2, true>(a);
}
// With faults: the wait lets one group too many be in flight; no barrier stands behind it.
GR_KERNEL(test_gemm_early, gemm_args, 128, 2)
{
    gemm<stages - 1, true>(a);
}
GR_KERNEL(test_gemm_unsynced, gemm_args, 128, 2)
{
    gemm<stages - 2, false>(a);
}
