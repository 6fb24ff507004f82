// MATMUL, MATMUL_ID and HEAD_MATMUL for many tokens on mma.sync.
//
// Traffic: weights once for 64 tokens, activations once for 128 rows, mostly from L2. Bound: tensor
// cores; on sm_80 a unit of 32 columns takes a warp 32 products, 256 cycles, beside some 150 other
// instructions and a quarter of shared memory's bandwidth.
// Grid: (tile of 64 tokens, 128 rows, item), or for experts (tile of pairs, 128 rows). Tokens run
// fastest, so that weights come from memory once.
// Reasons: 4 warps have 32 rows each and all tokens: a weight is decoded once a block, in the
// registers that it is multiplied from. Activations (packed x by_step) come by cp.async, 4 stages
// of 64 columns; the 16-byte pieces of a token change places with its number, so that ldmatrix has
// no bank conflicts.
#include "kernels/matmul_tile.cuh"

template <uint32_t T> GR_DEV void matmul_tile(const struct gr_matmul_args &a)
{
    constexpr int U = 4, M = 2, NT = TOKENS / 8;
    using S = pack_step<T, U>;
    constexpr bool AHEAD = S::IS_FLOAT; // registers for the next step's weights
    struct mm_item item = tile_item(a);
    if (item.n == 0)
        return;
    int units = a.x.units, n_step = (units + S::UNITS - 1) / S::UNITS;
    int64_t tile_bytes = gr_pack_tile_bytes(T, a.w.cols);
    int64_t tile = (int64_t)blockIdx.y * (ROWS / 16) + threadIdx.x / 32 * M;
    const uint8_t *at[M];
    S w[M], next[M];
    float acc[M][NT][4] = {};
    struct tile_x<S> x;
    x.begin(a, item);
#pragma unroll
    for (int m = 0; m < M; m++) {
        at[m] = mm_tile_at(a, item, tile + m, tile_bytes);
        if constexpr (AHEAD)
            next[m].load(at[m], 0, units);
    }
    for (int i = 0; i < n_step; i++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            if constexpr (!AHEAD) {
                w[m].load(at[m], i, units);
            } else {
                w[m] = next[m];
                if (i + 1 < n_step)
                    next[m].load(at[m], i + 1, units);
            }
            w[m].arrived();
        }
        x.step = i;
        product<T, U, M, NT>(w, units - i * S::UNITS, x, acc);
    }
    tile_store<M, NT>(a, item, acc, S::AFTER);
}

#define KERNEL(T, name)                                                                            \
    GR_KERNEL(gr_matmul_tile_##name, struct gr_matmul_args, 128, 2)                                \
    {                                                                                              \
        matmul_tile<T>(a);                                                                         \
    }
GR_MATMUL_TYPES(KERNEL)
