// Conformance of what kernels use of the language itself: shuffles, votes, bits, atomics, rounding.
#include "kernels/ptx.cuh"

#include "tests/emu/conform/args.h"

// out[i] = expression of x = in[3 i], y, z; p[0] elements.
#define WORDS(name, Type, expression)                                                              \
    GR_KERNEL(conform_##name, conform_args, 256, 1)                                                \
    {                                                                                              \
        const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);                                \
        if (i >= a.p[0])                                                                           \
            return;                                                                                \
        const uint32_t *in = (const uint32_t *)a.in + 3 * i;                                       \
        [[maybe_unused]] const uint32_t x = in[0], y = in[1], z = in[2];                           \
        [[maybe_unused]] const float f = __uint_as_float(x), g = __uint_as_float(y),               \
                                     h = __uint_as_float(z);                                       \
        ((Type *)a.out)[i] = expression;                                                           \
    }

WORDS(byte_perm, uint32_t, __byte_perm(x, y, z))
WORDS(dp4a, int32_t, __dp4a((int)x, (int)y, (int)z))
WORDS(dp4a_unsigned, uint32_t, __dp4a(x, y, z))
WORDS(funnelshift_l, uint32_t, __funnelshift_l(x, y, z))
WORDS(funnelshift_r, uint32_t, __funnelshift_r(x, y, z))
WORDS(mulhi, int32_t, __mulhi((int)x, (int)y))
WORDS(umulhi, uint32_t, __umulhi(x, y))
WORDS(brev, uint32_t, __brev(x))
WORDS(popc, int32_t, __popc(x &y))
WORDS(clz, int32_t, __clz((int)(x &y &z)))
WORDS(ffs, int32_t, __ffs((int)(x &y &z)))
WORDS(clzll, int32_t, __clzll((long long)((uint64_t)(x &y &z) << 32 | (y & z))))
WORDS(ffsll, int32_t, __ffsll((long long)((uint64_t)y << 32 | (x & y & z))))
WORDS(float2int_rn, int32_t, __float2int_rn(f))
WORDS(float2int_rz, int32_t, __float2int_rz(f))
WORDS(float2uint_rn, uint32_t, __float2uint_rn(f))
WORDS(int2float_rn, float, __int2float_rn((int)x))
WORDS(uint2float_rn, float, __uint2float_rn(x))
WORDS(fadd_rn, float, __fadd_rn(f, g))
WORDS(fmul_rn, float, __fmul_rn(f, g))
WORDS(fmaf, float, fmaf(f, g, h))
WORDS(fmaxf, float, fmaxf(f, g))
WORDS(fminf, float, fminf(f, g))
WORDS(sqrtf, float, sqrtf(f))
WORDS(divide, float, f / g)
WORDS(rintf, float, rintf(f))
WORDS(expf, float, expf(f))
WORDS(exp2f, float, exp2f(f))
WORDS(tanhf, float, tanhf(f))
WORDS(log1pf, float, log1pf(f))
WORDS(erfcf, float, erfcf(f))
WORDS(rsqrtf, float, rsqrtf(f))

// Two warps, of which each lane takes part in everything. in[lane]; out: [way][thread].
GR_KERNEL(conform_shuffle, conform_args, 64, 1)
{
    const uint32_t i = threadIdx.x, v = ((const uint32_t *)a.in)[i];
    uint32_t *out = (uint32_t *)a.out + i;
    const double wide = __longlong_as_double((long long)(((uint64_t)v << 32) | i));
    int n = 0;
    for (int width = 32; width >= 4; width /= 2) {
        out[64 * n++] = __shfl_sync(~0u, v, (int)(v % 64), width);
        out[64 * n++] = __shfl_up_sync(~0u, v, 3, width);
        out[64 * n++] = __shfl_down_sync(~0u, v, 5, width);
        out[64 * n++] = __shfl_xor_sync(~0u, v, 6, width);
    }
    out[64 * n++] = (uint32_t)__double_as_longlong(__shfl_xor_sync(~0u, wide, 1));
    // halves of a warp by themselves
    const uint32_t half = i % 32 < 16 ? 0xffffu : 0xffff0000u;
    if (i % 32 < 16)
        out[64 * n++] = __shfl_xor_sync(half, v, 9);
    else
        out[64 * n++] = __shfl_xor_sync(half, v, 3);
}

// in[lane]; out: [way][thread].
GR_KERNEL(conform_vote, conform_args, 64, 1)
{
    const uint32_t i = threadIdx.x, v = ((const uint32_t *)a.in)[i];
    uint32_t *out = (uint32_t *)a.out + i;
    const uint32_t odd = __ballot_sync(~0u, v & 1);
    out[0] = odd;
    out[64] = (uint32_t)__any_sync(~0u, v % 61 == 0);
    out[128] = (uint32_t)__all_sync(~0u, v % 61 != 0);
    out[192] = __match_any_sync(~0u, v % 5);
    out[256] = __reduce_add_sync(~0u, v);
    out[320] = (uint32_t)__reduce_max_sync(~0u, (int)v);
    out[384] = __reduce_min_sync(~0u, v);
    out[448] = __reduce_xor_sync(~0u, v);
    if (v & 1)
        out[512] = __ballot_sync(odd, v & 2);
    else
        out[512] = __ballot_sync(~odd, v & 4);
    out[576] = (uint32_t)__syncthreads_count(v & 1);
    out[640] = __syncthreads_and(v != 0) != 0;
    out[704] = __syncthreads_or(v % 1000 == 7) != 0;
}

// Every thread of the grid on the same words. out: sums, extremes and such, see the runner.
GR_KERNEL(conform_atomics, conform_args, 128, 1)
{
    const uint32_t v = ((const uint32_t *)a.in)[blockIdx.x * blockDim.x + threadIdx.x];
    uint32_t *out = (uint32_t *)a.out;
    atomicAdd(out, v);
    atomicMax((int *)out + 1, (int)v);
    atomicMin(out + 2, v);
    atomicAnd(out + 3, v | 0xff);
    atomicOr(out + 4, v & 0xff00ff);
    atomicXor(out + 5, v);
    atomicSub(out + 6, v);
    atomicAdd((unsigned long long *)(out + 8), (unsigned long long)v << 8);
    atomicAdd(out + 10 + atomicAdd(out + 7, 1) % 4, 1); // whoever comes, each of four as often
    uint32_t seen = 0, old;
    do { // a counter by comparison
        old = seen;
        seen = atomicCAS(out + 14, old, old + 2);
    } while (seen != old);
    atomicExch(out + 15, 5);
}
