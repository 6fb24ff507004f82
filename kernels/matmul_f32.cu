// MATMUL, MATMUL_ID and HEAD_MATMUL with F32 weights (routers, small models): f32 products and sums
// on the ordinary cores, activations as they are.
//
// gr_matmul_f32_mv: grid, blocks and traffic as kernels/matmul_mv.cuh; a lane multiplies its 2 x 8
//   weights of a unit with 8 tokens. Bound: bandwidth up to 8 tokens.
// gr_matmul_f32_tile: grid (64 tokens, 64 rows, head); 256 threads with 4 x 4 numbers each, a unit
//   of both operands at a time in shared memory. Bound: f32 multipliers. Each sum is one chain over
//   the columns, in their order but for the 8 of a lane.
#include "kernels/matmul.cuh"

// Word i of row r among the 16 of this lane's unit u, in a chunk of a tile.
GR_DEV uint4 f32_weights(const uint8_t *tile, int u, int lane, int r, int half)
{
    return load_once(tile + (int64_t)u * 2048 + (2 * r + half) * 512 + lane * 16);
}

GR_KERNEL(gr_matmul_f32_mv, struct gr_matmul_args, 256, 2)
{
    GR_SMEM;
    float *sum = (float *)smem; // [warp][16 rows][8 tokens]
    int n_warp = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    struct mm_block block = mm_block(a, blockIdx.x);
    struct mm_item item = mm_item(a, block.item, blockIdx.y * 8, 8);
    const uint8_t *tile = mm_tile_at(a, item, block.tile, gr_pack_tile_bytes(GR_F32, a.w.cols));
    int64_t head = a.ids ? 0 : block.item, row0 = a.ids ? item.line : blockIdx.y * 8;
    const uint8_t *rows = a.x32 + head * a.x_item_bytes + row0 * a.x_row_bytes;
    float acc[2][8] = {};
    for (int u = warp; u < a.x.units; u += n_warp) {
        float w[2][8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 v = f32_weights(tile, u, lane, i / 2, i % 2);
            float *to = w[i / 2] + i % 2 * 4;
            to[0] = __uint_as_float(v.x), to[1] = __uint_as_float(v.y);
            to[2] = __uint_as_float(v.z), to[3] = __uint_as_float(v.w);
        }
        int col = u * GR_PACK_UNIT + lane % 4 * 8;
#pragma unroll
        for (int t = 0; t < 8; t++) {
            const float *x = (const float *)(rows + t * a.x_row_bytes) + col;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float v = t < item.n && col + j < a.w.cols ? x[j] : 0;
                acc[0][t] = fmaf(w[0][j], v, acc[0][t]);
                acc[1][t] = fmaf(w[1][j], v, acc[1][t]);
            }
        }
    }
#pragma unroll
    for (int e = 0; e < 16; e++) { // over the four parts of a row
        float v = acc[e / 8][e % 8];
        v += __shfl_xor_sync(0xffffffff, v, 1);
        v += __shfl_xor_sync(0xffffffff, v, 2);
        if (lane % 4 == 0)
            sum[(warp * 16 + lane / 4 + e / 8 * 8) * 8 + e % 8] = v;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 128; e += blockDim.x) {
        int row = e % 16, tok = e / 16;
        float v = 0;
        for (int w = 0; w < n_warp; w++)
            v += sum[(w * 16 + row) * 8 + tok];
        mm_store(a, item, block.tile * GR_PACK_ROWS + row - a.w.offset, tok, v);
    }
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
