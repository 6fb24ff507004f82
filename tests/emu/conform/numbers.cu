// Conformance of numbers, global memory, cp.async and barriers: raw results of each wrapper, which
// the runner compares with what the PTX text says.
#include "kernels/ptx.cuh"

#include "tests/emu/conform/args.h"

// out[i] = expression of in[i], p[0] elements, any grid.
#define EACH(name, In, Out, expression)                                                            \
    GR_KERNEL(name, conform_args, 256, 1)                                                          \
    {                                                                                              \
        const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);                                \
        if (i >= a.p[0])                                                                           \
            return;                                                                                \
        const In *in = (const In *)a.in;                                                           \
        ((Out *)a.out)[i] = expression;                                                            \
    }

EACH(conform_f16_to_f32, uint16_t, float, f16_to_f32(in[i]))
EACH(conform_bf16_to_f32, uint16_t, float, bf16_to_f32(in[i]))
EACH(conform_f32_to_f16, float, uint16_t, f32_to_f16(in[i]))
EACH(conform_f32_to_bf16, float, uint16_t, f32_to_bf16(in[i]))
EACH(conform_f16x2, float, uint32_t, f16x2(in[2 * i], in[2 * i + 1]))
EACH(conform_bf16x2, float, uint32_t, bf16x2(in[2 * i], in[2 * i + 1]))
EACH(conform_fma_f16x2, uint32_t, uint32_t, fma_f16x2(in[3 * i], in[3 * i + 1], in[3 * i + 2]))
EACH(conform_mul_f16x2, uint32_t, uint32_t, mul_f16x2(in[3 * i], in[3 * i + 1]))
EACH(conform_sub_f16x2, uint32_t, uint32_t, sub_f16x2(in[3 * i], in[3 * i + 1]))
EACH(conform_fma_bf16x2, uint32_t, uint32_t, fma_bf16x2(in[3 * i], in[3 * i + 1], in[3 * i + 2]))
EACH(conform_and_or, uint32_t, uint32_t, and_or(in[3 * i], in[3 * i + 1], in[3 * i + 2]))
EACH(conform_select_bits, uint32_t, uint32_t, select_bits(in[3 * i], in[3 * i + 1], in[3 * i + 2]))
EACH(conform_permute, uint32_t, uint32_t, permute(in[3 * i], in[3 * i + 1], in[3 * i + 2]))
EACH(conform_exp2_fast, float, float, exp2_fast(in[i]))
EACH(conform_load_once, uint4, uint4, load_once(in + i))

// Each block writes its part of out and counts itself; the last one, and it alone, writes the sum
// of all parts behind them. out: [blocks][threads], counter (0 before), sum.
GR_KERNEL(conform_add_acq_rel, conform_args, 64, 1)
{
    GR_SMEM;
    uint32_t *out = (uint32_t *)a.out, *old = (uint32_t *)smem;
    const uint32_t n = gridDim.x * blockDim.x;
    out[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0)
        *old = add_acq_rel(out + n, 1);
    __syncthreads();
    if (*old != gridDim.x - 1 || threadIdx.x)
        return;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += out[i];
    out[n + 1] = sum;
}

// Warp 1 writes 32 values and then the flag, warp 0 waits for the flag and copies them. out: 32
// copies, 32 values, flag (0 before).
GR_KERNEL(conform_release_acquire, conform_args, 64, 1)
{
    uint32_t *out = (uint32_t *)a.out;
    const uint32_t lane = threadIdx.x % 32;
    if (threadIdx.x >= 32) {
        out[32 + lane] = lane * lane;
        __syncwarp();
        if (lane == 0)
            store_release(out + 64, 77);
    } else {
        while (load_acquire(out + 64) != 77) {
        }
        out[lane] = out[32 + lane];
    }
}

// Thread i copies N bytes of in, the first i % (N + 1) of them. out: shared memory.
template <int N> GR_DEV void copy_some(const conform_args &a)
{
    GR_SMEM;
    const uint32_t i = threadIdx.x, at = i * N, part = i % (N + 1);
    const char *src = (const char *)a.in + at;
    if (N == 16)
        cp_async_16(smem_u32(smem) + at, src, part);
    else
        cp_async<N == 16 ? 4 : N>(smem_u32(smem) + at, src, part);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int k = 0; k < N; k++)
        ((char *)a.out)[k * blockDim.x + i] = (char)smem[k * blockDim.x + i];
}
GR_KERNEL(conform_cp_async_4, conform_args, 128, 1)
{
    copy_some<4>(a);
}
GR_KERNEL(conform_cp_async_8, conform_args, 128, 1)
{
    copy_some<8>(a);
}
GR_KERNEL(conform_cp_async_16, conform_args, 128, 1)
{
    copy_some<16>(a);
}

// Four groups of one copy each; after wait<2> the thread may read the first two, after wait<0> all.
GR_KERNEL(conform_cp_async_wait, conform_args, 64, 1)
{
    GR_SMEM;
    const uint32_t i = threadIdx.x, n = blockDim.x;
    const uint32_t *mine = (const uint32_t *)smem;
    uint32_t *out = (uint32_t *)a.out;
    for (uint32_t g = 0; g < 4; g++) {
        cp_async<4>(smem_u32(smem) + (g * n + i) * 4, (const uint32_t *)a.in + g * n + i);
        cp_async_commit();
    }
    cp_async_wait<2>();
    const uint32_t first = mine[i], second = mine[n + i];
    cp_async_wait<0>();
    out[i] = first;
    out[n + i] = second;
    out[2 * n + i] = mine[2 * n + i];
    out[3 * n + i] = mine[3 * n + i];
}

// Warps 0, 1 fill a buffer of 64 words p[0] times, warps 2, 3 read it backwards: full (id 1) and
// free (id 2), each an arrival of the one side and a wait of the other. An arrival does not wait:
// the readers come to the full one when the word behind the output says that the fillers are past
// it.
GR_KERNEL(conform_bar, conform_args, 128, 1)
{
    GR_SMEM;
    volatile uint32_t *buffer = (volatile uint32_t *)smem;
    const uint32_t i = threadIdx.x % 64;
    uint32_t *past = (uint32_t *)a.out + a.p[0] * 64; // 0 at first
    for (uint32_t turn = 0; turn < (uint32_t)a.p[0]; turn++) {
        if (threadIdx.x < 64) {
            if (turn)
                bar_sync(2, 128);
            buffer[i] = ((const uint32_t *)a.in)[turn * 64 + i];
            bar_arrive(1, 128);
            if (i == 0)
                store_release(past, turn + 1);
        } else {
            while (load_acquire(past) <= turn) {
            }
            bar_sync(1, 128);
            ((uint32_t *)a.out)[turn * 64 + i] = buffer[63 - i];
            if (turn + 1 < (uint32_t)a.p[0])
                bar_arrive(2, 128);
        }
    }
}

// Each warpgroup of 64 threads has a barrier of its own: ids 3 and 4 at once.
GR_KERNEL(conform_bar_ids, conform_args, 128, 1)
{
    GR_SMEM;
    uint32_t *words = (uint32_t *)smem;
    const int half = (int)threadIdx.x / 64, i = (int)threadIdx.x % 64;
    words[threadIdx.x] = ((const uint32_t *)a.in)[threadIdx.x];
    if (half)
        bar_sync(4, 64);
    else
        bar_sync(3, 64);
    ((uint32_t *)a.out)[threadIdx.x] = words[half * 64 + 63 - i];
}
