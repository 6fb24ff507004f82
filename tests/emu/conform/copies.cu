// Conformance of mbarriers, the copy engine, setmaxnreg and dependent launches.
#include "kernels/ptx.cuh"

#include "tests/emu/conform/args.h"

GR_DEV void init_one(uint32_t bar, uint32_t count)
{
    if (threadIdx.x == 0) {
        mbar_init(bar, count);
        fence_mbar_init();
    }
    __syncthreads();
}

// Four phases of a barrier of as many arrivals as threads: in each a thread writes a word, arrives,
// waits and reads its neighbour's; words alternate between two buffers. out: [4][threads], then
// result of try_wait for a barrier without arrivals (0), and for the phase before it (1).
GR_KERNEL(conform_mbar_arrive, conform_args, 128, 1)
{
    GR_SMEM;
    const uint32_t i = threadIdx.x, n = blockDim.x;
    const uint32_t bar = smem_u32(smem), fresh = bar + 8;
    uint32_t *words = (uint32_t *)(smem + 128), *out = (uint32_t *)a.out;
    if (i == 0)
        mbar_init(fresh, 1);
    init_one(bar, n);
    if (i == 0) {
        out[4 * n] = mbar_try_wait(fresh, 0);
        mbar_wait(fresh, 1);
        out[4 * n + 1] = 1;
    }
    for (uint32_t phase = 0; phase < 4; phase++) {
        uint32_t *buffer = words + phase % 2 * n;
        buffer[i] = phase * 1000 + i;
        mbar_arrive(bar);
        mbar_wait(bar, phase % 2);
        out[phase * n + i] = buffer[(i + 1) % n];
    }
}

// One barrier lived through, given up, and made again with another count.
GR_KERNEL(conform_mbar_inval, conform_args, 64, 1)
{
    GR_SMEM;
    const uint32_t bar = smem_u32(smem), i = threadIdx.x;
    uint32_t *words = (uint32_t *)(smem + 128);
    init_one(bar, 32);
    if (i < 32) {
        words[i] = i;
        mbar_arrive(bar);
    } else {
        mbar_wait(bar, 0);
        words[i] = words[i - 32] * 3;
    }
    __syncthreads();
    if (i == 0)
        mbar_inval(bar);
    __syncthreads();
    init_one(bar, 64);
    mbar_arrive(bar);
    mbar_wait(bar, 0);
    ((uint32_t *)a.out)[i] = words[63 - i];
}

// Every thread copies a word by cp.async and lets the barrier know; each reads its neighbour's.
GR_KERNEL(conform_cp_async_mbar_arrive, conform_args, 64, 1)
{
    GR_SMEM;
    const uint32_t bar = smem_u32(smem), i = threadIdx.x, n = blockDim.x;
    const uint32_t *words = (const uint32_t *)(smem + 128);
    init_one(bar, n);
    cp_async<4>(smem_u32(smem + 128) + 4 * i, (const uint32_t *)a.in + i);
    cp_async_mbar_arrive(bar);
    mbar_wait(bar, 0);
    ((uint32_t *)a.out)[i] = words[(i + 1) % n];
}

// p[0] bytes through shared memory by the copy engine, in two loads of one phase (the second is
// expected apart from the arrival) and two stores of two groups. Shared memory is used again after
// the stores have read it.
GR_KERNEL(conform_bulk, conform_args, 64, 1)
{
    GR_SMEM;
    const uint32_t bar = smem_u32(smem), data = smem_u32(smem + 128), half = (uint32_t)a.p[0] / 2;
    char *out = (char *)a.out;
    init_one(bar, 1);
    if (threadIdx.x == 0) {
        bulk_prefetch(a.in, half);
        mbar_expect_tx(bar, half);
        bulk_load(data, a.in, half, bar);
        mbar_arrive_expect_tx(bar, half);
        bulk_load(data + half, (const char *)a.in + half, half, bar);
    }
    mbar_wait(bar, 0);
    for (uint32_t i = threadIdx.x; i < 2 * half; i += blockDim.x)
        smem[128 + i] ^= 0x5a;
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out, data, half);
        bulk_commit();
        bulk_store(out + half, data + half, half);
        bulk_commit();
        bulk_wait_read<1>();
        smem[128] = 1; // the first group has read it
        bulk_wait_read<0>();
        smem[128 + half] = 1;
        bulk_wait<0>();
    }
}

// The box of the map at p[0 ..] as it stands in shared memory: p[3] dimensions, p[4] bytes.
GR_KERNEL(conform_tma_load, conform_args, 128, 1)
{
    GR_SMEM;
    const uint32_t bar = smem_u32(smem), data = smem_u32(smem + 1024);
    const uint32_t bytes = (uint32_t)a.p[4];
    init_one(bar, 1);
    if (threadIdx.x == 0) {
        tma_prefetch_map(&a.map);
        mbar_arrive_expect_tx(bar, bytes);
        if (a.p[3] == 2)
            tma_load_2d(data, &a.map, a.p[0], a.p[1], bar);
        else
            tma_load_3d(data, &a.map, a.p[0], a.p[1], a.p[2], bar);
    }
    mbar_wait(bar, 0);
    for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x)
        ((unsigned char *)a.out)[i] = smem[1024 + i];
}

// `in`, p[4] bytes, as it stands in shared memory, goes to the box at p[0 ..] of the map.
GR_KERNEL(conform_tma_store, conform_args, 128, 1)
{
    GR_SMEM;
    const uint32_t data = smem_u32(smem), bytes = (uint32_t)a.p[4];
    for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x)
        smem[i] = ((const unsigned char *)a.in)[i];
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        if (a.p[3] == 2)
            tma_store_2d(&a.map, a.p[0], a.p[1], data);
        else
            tma_store_3d(&a.map, a.p[0], a.p[1], a.p[2], data);
        bulk_commit();
        bulk_wait<0>();
    }
}

// A ring of two stages: warp 0 asks for boxes along y, p[0] of them, the others wait for each, add
// up what they read and give the stage back. A box is p[4] bytes, p[1] rows. out: the sum of each
// 16-bit column over all boxes, [64]. p[2]: as the only block of a cluster.
GR_KERNEL(conform_tma_ring, conform_args, 96, 1)
{
    GR_SMEM;
    const uint32_t bars = smem_u32(smem), data = smem_u32(smem + 1024);
    const uint32_t bytes = (uint32_t)a.p[4];
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < 2; s++) {
            mbar_init(bars + 8 * s, 1);
            mbar_init(bars + 16 + 8 * s, 64);
        }
        fence_mbar_init();
    }
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    const uint32_t empty = cluster_address(bars + 16, opaque(0));
    uint32_t sum = 0;
    for (int k = 0; k < a.p[0]; k++) {
        const uint32_t s = (uint32_t)k % 2, parity = (uint32_t)k / 2 % 2;
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0) {
                mbar_wait(bars + 16 + 8 * s, parity ^ 1);
                mbar_arrive_expect_tx(bars + 8 * s, bytes);
                if (a.p[2])
                    tma_load_2d_cluster(data + s * bytes, &a.map, 0, k * a.p[1], bars + 8 * s, 1);
                else
                    tma_load_2d(data + s * bytes, &a.map, 0, k * a.p[1], bars + 8 * s);
            }
        } else {
            mbar_wait(bars + 8 * s, parity);
            const uint16_t *box = (const uint16_t *)(smem + 1024 + s * bytes);
            for (int y = 0; y < a.p[1]; y++)
                sum += box[y * 64 + (int)threadIdx.x - 32];
            if (a.p[2])
                mbar_arrive_cluster(empty + 8 * s);
            else
                mbar_arrive(bars + 16 + 8 * s);
        }
    }
    if (threadIdx.x >= 32)
        ((uint32_t *)a.out)[threadIdx.x - 32] = sum;
}

// Registers move from the first warpgroup, of 168 a thread at launch, to the two others, and what
// they hold stays.
GR_KERNEL(conform_setmaxnreg, conform_args, 384, 1)
{
    uint32_t v = ((const uint32_t *)a.in)[threadIdx.x];
    if (threadIdx.x < 128) {
        setmaxnreg_dec<24>();
        v = v * 3 + 1;
    } else {
        setmaxnreg_inc<240>();
        v = v * 5 + 2;
    }
    ((uint32_t *)a.out)[threadIdx.x] = v;
}

// Two launches, the second allowed to begin early: out[i] = in[i] + 1, then out[n + i] = 2 out[i].
GR_KERNEL_EARLY(conform_griddep_launch, conform_args, 128, 1)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    griddep_begin();
    griddep_launch(); // once more is nothing
    ((uint32_t *)a.out)[i] = ((const uint32_t *)a.in)[i] + 1;
}
GR_KERNEL_EARLY(conform_griddep_wait, conform_args, 128, 1)
{
    const uint32_t n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t *out = (uint32_t *)a.out;
    griddep_wait();
    out[n + i] = 2 * out[n - 1 - i];
}
