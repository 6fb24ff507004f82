// Conformance of the tensor cores: fragments as the runner laid them out, raw results.
#include "kernels/mma.cuh"

#include "tests/emu/conform/args.h"

// in: a [lane][4], b [lane][2], c [lane][4]; out: d [lane][4].
#define MMA(name, wrapper, Number)                                                                 \
    GR_KERNEL(name, conform_args, 32, 1)                                                           \
    {                                                                                              \
        const uint32_t lane = threadIdx.x, *in = (const uint32_t *)a.in;                           \
        uint32_t x[4], y[2];                                                                       \
        Number d[4];                                                                               \
        for (int i = 0; i < 4; i++) {                                                              \
            x[i] = in[4 * lane + i];                                                               \
            d[i] = ((const Number *)in)[192 + 4 * lane + i];                                       \
        }                                                                                          \
        for (int i = 0; i < 2; i++)                                                                \
            y[i] = in[128 + 2 * lane + i];                                                         \
        wrapper(d, x, y);                                                                          \
        for (int i = 0; i < 4; i++)                                                                \
            ((Number *)a.out)[4 * lane + i] = d[i];                                                \
    }
MMA(conform_mma_f16, mma_f16, float)
MMA(conform_mma_bf16, mma_bf16, float)
MMA(conform_mma_s8, mma_s8, int32_t)

// in: 64 rows of 16 bytes, then for each lane the row it points at. out: r [lane][4].
#define LOAD(name, wrapper)                                                                        \
    GR_KERNEL(name, conform_args, 32, 1)                                                           \
    {                                                                                              \
        GR_SMEM;                                                                                   \
        const uint32_t lane = threadIdx.x, *in = (const uint32_t *)a.in;                           \
        uint32_t r[4];                                                                             \
        for (int i = 0; i < 8; i++)                                                                \
            ((uint32_t *)smem)[i * 32 + lane] = in[i * 32 + lane];                                 \
        __syncwarp();                                                                              \
        wrapper(r, smem_u32(smem) + 16 * in[256 + lane]);                                          \
        for (int i = 0; i < 4; i++)                                                                \
            ((uint32_t *)a.out)[4 * lane + i] = r[i];                                              \
    }
LOAD(conform_ldmatrix_x4, ldmatrix_x4)
LOAD(conform_ldmatrix_x4_trans, ldmatrix_x4_trans)

// in: r [lane][4], then for each lane the row it points at; out: 64 rows of 16 bytes, 0 before.
#define STORE(name, wrapper)                                                                       \
    GR_KERNEL(name, conform_args, 32, 1)                                                           \
    {                                                                                              \
        GR_SMEM;                                                                                   \
        const uint32_t lane = threadIdx.x, *in = (const uint32_t *)a.in;                           \
        uint32_t r[4];                                                                             \
        for (int i = 0; i < 4; i++)                                                                \
            r[i] = in[4 * lane + i];                                                               \
        for (int i = 0; i < 8; i++)                                                                \
            ((uint32_t *)smem)[i * 32 + lane] = 0;                                                 \
        __syncwarp();                                                                              \
        wrapper(smem_u32(smem) + 16 * in[128 + lane], r);                                          \
        __syncwarp();                                                                              \
        for (int i = 0; i < 8; i++)                                                                \
            ((uint32_t *)a.out)[i * 32 + lane] = ((uint32_t *)smem)[i * 32 + lane];                \
    }
STORE(conform_stmatrix_x4, stmatrix_x4)
STORE(conform_stmatrix_x4_trans, stmatrix_x4_trans)
