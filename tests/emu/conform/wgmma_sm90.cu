// Conformance of wgmma: images of a and b in shared memory as the runner laid them out, the
// descriptor's fields as it says, raw accumulators.
#include "kernels/wgmma.cuh"

#include "tests/emu/conform/args.h"

// Puts the images of a (at 0) and b (behind it, at the next multiple of 1024) into shared memory.
GR_DEV void put_images(const conform_args &a, unsigned char *smem)
{
    const int n_a = a.p[CONFORM_A_BYTES], at_b = (n_a + 1023) / 1024 * 1024;
    // images in global memory; where a comes in registers it is in front of b's image
    const int b_from = n_a ? n_a : a.p[CONFORM_STEPS] * 2048;
    const unsigned char *in = (const unsigned char *)a.in;
    for (int i = (int)threadIdx.x; i < n_a; i += 128)
        smem[i] = in[i];
    for (int i = (int)threadIdx.x; i < a.p[CONFORM_B_BYTES]; i += 128)
        smem[at_b + i] = in[b_from + i];
    fence_proxy_async();
    __syncthreads();
}

GR_DEV uint64_t desc_a(const conform_args &a, uint32_t smem, int step)
{
    return wgmma_step(wgmma_desc(smem, (uint32_t)a.p[CONFORM_A_LBO], (uint32_t)a.p[CONFORM_A_SBO],
                                 a.p[CONFORM_A_SWIZZLE]),
                      (uint32_t)(step * a.p[CONFORM_A_STEP]));
}
GR_DEV uint64_t desc_b(const conform_args &a, uint32_t smem, int step)
{
    const uint32_t at = smem + (uint32_t)(a.p[CONFORM_A_BYTES] + 1023) / 1024 * 1024;
    return wgmma_step(wgmma_desc(at, (uint32_t)a.p[CONFORM_B_LBO], (uint32_t)a.p[CONFORM_B_SBO],
                                 a.p[CONFORM_B_SWIZZLE]),
                      (uint32_t)(step * a.p[CONFORM_B_STEP]));
}

template <int N> GR_DEV void start(float (&d)[N / 2])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = (float)(((int)threadIdx.x * 7 + i) % 13);
}
template <int N> GR_DEV void put(const conform_args &a, const float (&d)[N / 2])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        ((float *)a.out)[(int)threadIdx.x * (N / 2) + i] = d[i];
}

// conform_wgmma_<type>_<N>_<majors of a and b>.
#define SHARED(type, N, form, A_MN, B_MN)                                                          \
    GR_KERNEL(conform_wgmma_##type##_##N##_##form, conform_args, 128, 1)                           \
    {                                                                                              \
        GR_SMEM;                                                                                   \
        float d[N / 2];                                                                            \
        start<N>(d);                                                                               \
        put_images(a, smem);                                                                       \
        wgmma_fence();                                                                             \
        for (int s = 0; s < a.p[CONFORM_STEPS]; s++)                                               \
            wgmma_##type<N, B_MN, A_MN>(d, desc_a(a, smem_u32(smem), s),                           \
                                        desc_b(a, smem_u32(smem), s),                              \
                                        s || a.p[CONFORM_ACCUMULATE]);                             \
        wgmma_commit();                                                                            \
        wgmma_wait<0>(d);                                                                          \
        put<N>(a, d);                                                                              \
    }
// a in registers: in [step][thread][4].
#define REGISTERS(type, N, form, B_MN)                                                             \
    GR_KERNEL(conform_wgmma_##type##_##N##_##form, conform_args, 128, 1)                           \
    {                                                                                              \
        GR_SMEM;                                                                                   \
        float d[N / 2];                                                                            \
        start<N>(d);                                                                               \
        put_images(a, smem);                                                                       \
        for (int s = 0; s < a.p[CONFORM_STEPS]; s++) {                                             \
            uint32_t x[4];                                                                         \
            for (int i = 0; i < 4; i++)                                                            \
                x[i] = ((const uint32_t *)a.in)[s * 512 + (int)threadIdx.x * 4 + i];               \
            wgmma_fence();                                                                         \
            wgmma_##type##_ra<N, B_MN>(d, x, desc_b(a, smem_u32(smem), s),                         \
                                       s || a.p[CONFORM_ACCUMULATE]);                              \
            wgmma_commit();                                                                        \
            wgmma_wait<0>(d);                                                                      \
        }                                                                                          \
        put<N>(a, d);                                                                              \
    }
#define FORMS(type, N)                                                                             \
    SHARED(type, N, k_k, 0, 0)                                                                     \
    SHARED(type, N, k_mn, 0, 1)                                                                    \
    SHARED(type, N, mn_k, 1, 0)                                                                    \
    SHARED(type, N, mn_mn, 1, 1)                                                                   \
    REGISTERS(type, N, r_k, 0)                                                                     \
    REGISTERS(type, N, r_mn, 1)
#define TYPES(N) FORMS(f16, N) FORMS(bf16, N)
TYPES(8)
TYPES(16)
TYPES(32)
TYPES(64)
TYPES(96)
TYPES(128)
TYPES(192)
TYPES(256)

// Two groups in flight: after wait<1> the first one's accumulators are read, then the second's.
// out: [2][thread][4], of the first and the second step's product.
GR_KERNEL(conform_wgmma_wait, conform_args, 128, 1)
{
    GR_SMEM;
    float d[2][4];
    put_images(a, smem);
    wgmma_fence();
    for (int s = 0; s < 2; s++) {
        wgmma_f16<8>(d[s], desc_a(a, smem_u32(smem), s), desc_b(a, smem_u32(smem), s), false);
        wgmma_commit();
    }
    wgmma_wait<1>(d[0]);
    float *out = (float *)a.out + threadIdx.x * 4;
    for (int i = 0; i < 4; i++)
        out[i] = d[0][i];
    wgmma_wait<0>();
    wgmma_pin(d[1]);
    for (int i = 0; i < 4; i++)
        out[512 + i] = d[1][i];
}

// Descriptors of address p[0], n_k p[1]. out: four of 64 bits.
GR_KERNEL(conform_wgmma_desc, conform_args, 32, 1)
{
    const uint32_t at = (uint32_t)a.p[0];
    uint64_t *out = (uint64_t *)a.out;
    if (threadIdx.x)
        return;
    out[0] = wgmma_desc_k(at);
    out[1] = wgmma_desc_mn(at, a.p[1]);
    out[2] = wgmma_desc(at, 4096, 512, 64);
    out[3] = wgmma_step(wgmma_desc_k(at), 96);
}
