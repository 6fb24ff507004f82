// A ring of boxes and products of a warpgroup, right and with faults; and small kernels, each with
// one thing that the copy engine, mbarriers or wgmma forbid.
#include "kernels/wgmma.cuh"
#include "test/kernels/engine.h"

namespace
{
enum Fault {
#define F(name) name,
    ENGINE_FAULTS(F)
#undef F
};

constexpr uint32_t tile_bytes = 64 * 128, n_stage = 2, at_bars = n_stage * 2 * tile_bytes;

struct Ring {
    uint32_t data, full, empty; // shared addresses
    uint32_t a(uint32_t stage) const
    {
        return data + stage * 2 * tile_bytes;
    }
    uint32_t b(uint32_t stage) const
    {
        return a(stage) + tile_bytes;
    }
};

template <Fault fault> GR_DEV Ring make_ring(unsigned char *smem)
{
    const uint32_t at = smem_u32(smem);
    const Ring r = {at, at + at_bars, at + at_bars + 8 * n_stage};
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < n_stage; s++) {
            mbar_init(r.full + 8 * s, 1);
            mbar_init(r.empty + 8 * s, fault == many_arrivals ? 1
                                       : fault == one_of_warp ? 4
                                       : fault == one_arrival ? 129
                                                              : 128);
        }
        if (fault != no_mbar_fence)
            fence_mbar_init();
    }
    if (fault != no_mbar_sync)
        __syncthreads();
    return r;
}

template <Fault fault> GR_DEV void produce(const engine_args &a, const Ring &r)
{
    for (int i = 0; i < a.n_tile; i++) {
        const uint32_t s = (uint32_t)i % n_stage, parity = (uint32_t)i / n_stage % 2;
        mbar_wait(r.empty + 8 * s, parity ^ 1);
        mbar_arrive_expect_tx(r.full + 8 * s, fault == half_expected ? tile_bytes : 2 * tile_bytes);
        tma_load_2d(r.a(s) + (fault == misaligned_box ? 128 : 0), &a.map_a, 64 * i, 0,
                    r.full + 8 * s);
        tma_load_2d(r.b(s), &a.map_b, 64 * i, 0, r.full + 8 * s);
    }
}

template <Fault fault> GR_DEV void consume(const engine_args &a, const Ring &r)
{
    float d[32], early = 0;
    for (int i = 0; i < a.n_tile; i++) {
        const uint32_t s = (uint32_t)i % n_stage, parity = (uint32_t)i / n_stage % 2;
        if (fault == one_waits ? threadIdx.x < 32 : fault != no_wait)
            mbar_wait(r.full + 8 * s, parity);
        if (fault != no_wgmma_fence)
            wgmma_fence();
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t other = fault == another_tile && threadIdx.x >= 96 ? 1 : 0;
            const uint64_t x = fault == wrong_swizzle ? wgmma_desc(r.a(s), 16, 512, 64)
                                                      : wgmma_desc_k(r.a((s + other) % n_stage));
            wgmma_f16<64>(d, wgmma_step(x, fault == wrong_swizzle ? k % 2 * 32 : k * 32),
                          wgmma_step(wgmma_desc_k(r.b(s)), 32 * k), i || k);
        }
        if (fault != no_commit)
            wgmma_commit();
        if (fault == released_early)
            mbar_arrive(r.empty + 8 * s);
        if (fault == read_early)
            early += d[0];
        if (fault != no_wgmma_wait || i + 1 < a.n_tile)
            wgmma_wait<0>(d);
        if (fault != released_early && (fault != one_of_warp || threadIdx.x % 32 == 9))
            mbar_arrive(r.empty + 8 * s);
    }
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
        a.c[row * 64 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] =
            d[i] + (fault == read_early ? early : 0);
    }
}

template <Fault fault> GR_DEV void ring(const engine_args &a)
{
    GR_SMEM;
    const Ring r = make_ring<fault>(smem);
    if (threadIdx.x < 128)
        consume<fault>(a, r);
    else if (threadIdx.x == 128)
        produce<fault>(a, r);
}

// The first tiles alone, a put into shared memory by ordinary stores in the swizzled layout.
template <bool fenced> GR_DEV void stored(const engine_args &a)
{
    GR_SMEM;
    const Ring r = make_ring<none>(smem);
    for (uint32_t i = threadIdx.x; i < 64 * 64; i += 128) {
        const uint32_t row = i / 64, at = i * 2;
        *(uint16_t *)(smem + (at ^ row % 8 * 16)) = a.a[row * 64 * (uint32_t)a.n_tile + i % 64];
    }
    if (fenced)
        fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        mbar_arrive_expect_tx(r.full, tile_bytes);
        tma_load_2d(r.b(0), &a.map_b, 0, 0, r.full);
    }
    mbar_wait(r.full, 0);
    float d[32];
    wgmma_fence();
    for (uint32_t k = 0; k < 4; k++)
        wgmma_f16<64>(d, wgmma_step(wgmma_desc_k(r.a(0)), 32 * k),
                      wgmma_step(wgmma_desc_k(r.b(0)), 32 * k), k);
    wgmma_commit();
    wgmma_wait<0>(d);
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
        a.c[row * 64 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
    }
}

// Its rows through shared memory: c[i] = a[i] as words, 2,048 of them, in two parts.
template <bool fenced, bool waited> GR_DEV void copied(const engine_args &a)
{
    GR_SMEM;
    uint32_t *words = (uint32_t *)smem;
    for (uint32_t part = 0; part < 2; part++) {
        for (uint32_t i = threadIdx.x; i < 1024; i += 128)
            words[i] = ((const uint32_t *)a.a)[part * 1024 + i];
        if (fenced)
            fence_proxy_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_store(a.c + part * 1024, smem_u32(smem), 4096);
            bulk_commit();
            if (waited || part)
                bulk_wait_read<0>();
        }
        __syncthreads();
    }
}
} // namespace

#define F(name)                                                                                    \
    GR_KERNEL(test_ring_##name, engine_args, 160, 1)                                               \
    {                                                                                              \
        ring<name>(a);                                                                             \
    }
ENGINE_FAULTS(F)
#undef F
GR_KERNEL(test_stored, engine_args, 128, 1)
{
    stored<true>(a);
}
GR_KERNEL(test_stored_wrong, engine_args, 128, 1)
{
    stored<false>(a);
}
GR_KERNEL(test_copied_out, engine_args, 128, 1)
{
    copied<true, true>(a);
}
GR_KERNEL(test_copied_unfenced, engine_args, 128, 1)
{
    copied<false, true>(a);
}
GR_KERNEL(test_copied_unwaited, engine_args, 128, 1)
{
    copied<true, false>(a);
}

// --- what ends a launch, alone; one thread does it, or a warpgroup ---

#define ALONE(name)                                                                                \
    GR_DEV void name##_alone(const engine_args &a, unsigned char *smem, uint32_t bar);             \
    GR_KERNEL(test_##name, engine_args, 128, 1)                                                    \
    {                                                                                              \
        GR_SMEM;                                                                                   \
        const uint32_t bar = smem_u32(smem) + at_bars;                                             \
        if (threadIdx.x == 0) {                                                                    \
            mbar_init(bar, 1);                                                                     \
            fence_mbar_init();                                                                     \
            name##_alone(a, smem, bar);                                                            \
        }                                                                                          \
    }                                                                                              \
    GR_DEV void name##_alone([[maybe_unused]] const engine_args &a,                                \
                             [[maybe_unused]] unsigned char *smem, [[maybe_unused]] uint32_t bar)

ALONE(no_barrier)
{
    mbar_arrive(bar + 8);
}
ALONE(barrier_overwritten)
{
    *(uint32_t *)(smem + at_bars) = 0;
    mbar_arrive(bar);
}
ALONE(barrier_twice)
{
    mbar_init(bar, 1);
}
ALONE(barrier_of_none)
{
    mbar_init(bar + 8, 0);
}
ALONE(arrivals)
{
    mbar_expect_tx(bar, 16);
    mbar_arrive(bar);
    mbar_arrive(bar);
}
ALONE(never)
{
    mbar_wait(bar, 0);
}
ALONE(still_flying)
{
    mbar_arrive_expect_tx(bar, 64);
    bulk_load(smem_u32(smem), a.a, 64, bar);
}
ALONE(bytes_missing)
{
    mbar_arrive_expect_tx(bar, 128);
    bulk_load(smem_u32(smem), a.a, 64, bar);
    mbar_wait(bar, 0);
}
ALONE(bytes_left)
{
    mbar_expect_tx(bar, 64);
}
ALONE(odd_bytes)
{
    bulk_load(smem_u32(smem), a.a, 40, bar);
}
ALONE(odd_source)
{
    bulk_load(smem_u32(smem), (const char *)a.a + 8, 64, bar);
}
ALONE(bulk_behind)
{
    mbar_arrive_expect_tx(bar, 64);
    bulk_load(smem_u32(smem), a.a + 64 * 64 * a.n_tile - 16, 64, bar);
    mbar_wait(bar, 0);
}
ALONE(into_flight)
{
    mbar_arrive_expect_tx(bar, 128);
    bulk_load(smem_u32(smem), a.a, 64, bar);
    bulk_load(smem_u32(smem) + 48, a.a, 64, bar);
}
ALONE(not_a_map)
{
    tma_load_2d(smem_u32(smem), (const struct gr_tensor_map *)(&a.map_a.opaque[8]), 0, 0, bar);
}
ALONE(other_rank)
{
    tma_load_3d(smem_u32(smem), &a.map_a, 0, 0, 0, bar);
}
ALONE(half_a_group)
{
    wgmma_fence();
    wgmma_wait<0>();
    float d[4];
    wgmma_f16<8>(d, wgmma_desc_k(smem_u32(smem)), wgmma_desc_k(smem_u32(smem)), false);
    wgmma_commit();
    wgmma_wait<0>(d);
}
ALONE(unaligned_tile)
{
    float d[4];
    wgmma_fence();
    wgmma_f16<8>(d, wgmma_desc_k(smem_u32(smem) + 128), wgmma_desc_k(smem_u32(smem)), false);
}
ALONE(tile_behind)
{
    float d[4];
    wgmma_fence();
    wgmma_f16<8>(d, wgmma_desc_k(smem_u32(smem)), wgmma_desc_k(smem_u32(smem) + 4 * tile_bytes),
                 false);
}
ALONE(bits_set)
{
    float d[4];
    wgmma_fence();
    wgmma_f16<8>(d, wgmma_desc_k(smem_u32(smem)) | 1ull << 49, wgmma_desc_k(smem_u32(smem)), false);
}
ALONE(unread_store)
{
    fence_proxy_async();
    bulk_store(a.c, smem_u32(smem), 64);
    bulk_commit();
}
ALONE(parity)
{
    mbar_wait(bar, 2);
}

// Three warpgroups share 504 registers of a lane each: 24 + 2 * 240 are enough, 40 + 2 * 240 not.
GR_KERNEL(test_registers, engine_args, 384, 1)
{
    if (threadIdx.x < 128)
        setmaxnreg_dec<24>();
    else
        setmaxnreg_inc<240>();
}
GR_KERNEL(test_registers_wrong, engine_args, 384, 1)
{
    if (threadIdx.x < 128)
        setmaxnreg_dec<40>();
    else
        setmaxnreg_inc<240>();
}
GR_KERNEL(test_registers_fewer, engine_args, 384, 1)
{
    setmaxnreg_inc<160>();
}

// Launched early behind another that has written c: c[i] + 1, after waiting or not.
GR_KERNEL_EARLY(test_dependent, engine_args, 128, 1)
{
    griddep_wait();
    a.c[threadIdx.x] += 1;
}
GR_KERNEL_EARLY(test_dependent_all, engine_args, 128, 1)
{
    if (threadIdx.x == 0)
        griddep_wait();
    __syncthreads();
    a.c[threadIdx.x] += 1;
}
GR_KERNEL_EARLY(test_dependent_wrong, engine_args, 128, 1)
{
    const float v = a.c[threadIdx.x];
    griddep_wait();
    a.c[threadIdx.x] = v + 1;
}

GR_KERNEL_EARLY(test_dependent_writes, engine_args, 128, 1)
{
    a.c[threadIdx.x] = 1;
    griddep_wait();
}
GR_KERNEL_EARLY(test_dependent_never, engine_args, 128, 1)
{
    griddep_launch();
}

// The next launch is let begin: by threads that have waited, or some that have not; and one that
// reads before it waits.
GR_KERNEL_EARLY(test_passes, engine_args, 128, 1)
{
    griddep_begin();
}
GR_KERNEL_EARLY(test_passes_all, engine_args, 128, 1)
{
    if (threadIdx.x == 0)
        griddep_wait();
    __syncthreads();
    griddep_launch();
}
GR_KERNEL_EARLY(test_passes_on, engine_args, 128, 1)
{
    griddep_launch();
    griddep_wait();
}
GR_KERNEL_EARLY(test_passes_half, engine_args, 128, 1)
{
    if (threadIdx.x >= 64)
        griddep_wait();
    griddep_launch();
    if (threadIdx.x < 64)
        griddep_wait();
}
GR_KERNEL_EARLY(test_peeks, engine_args, 128, 1)
{
    const float v = ((const volatile float *)a.c)[threadIdx.x];
    griddep_wait();
    if (v != v)
        a.c[threadIdx.x] = v;
}

// Two blocks store to the same rows; what the second one writes is another row of a.
GR_KERNEL(test_stores_meet, engine_args, 128, 1)
{
    GR_SMEM;
    smem[threadIdx.x] = ((const unsigned char *)a.a)[threadIdx.x + blockIdx.x];
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(a.c, smem_u32(smem), 128);
        bulk_commit();
        bulk_wait<0>();
    }
}
