// Faults, each beside a kernel without it. All of them write y[i] = x[n - 1 - i] or such, with a
// block of n = 256 threads.
#include "kernels/ptx.cuh"
#include "test/kernels/basic.h"

namespace
{
template <bool right> GR_DEV void reverse(const fault_args &a)
{
    __shared__ float row[256];
    row[threadIdx.x] = a.x[threadIdx.x];
    if (right)
        __syncthreads();
    a.y[threadIdx.x] = row[a.n - 1 - threadIdx.x];
}

template <bool right> GR_DEV void reuse(const fault_args &a)
{
    __shared__ float row[256];
    float sum = 0;
    for (int turn = 0; turn < 3; turn++) {
        row[threadIdx.x] = a.x[threadIdx.x] + (float)turn;
        __syncthreads();
        sum += row[a.n - 1 - threadIdx.x];
        if (right)
            __syncthreads();
    }
    a.y[threadIdx.x] = sum - 2 * a.x[a.n - 1 - threadIdx.x] - 3.0f;
}

// Within a warp: x of the lane beside.
template <bool right> GR_DEV void beside(const fault_args &a)
{
    __shared__ float row[256];
    row[threadIdx.x ^ 1] = a.x[a.n - 1 - threadIdx.x];
    if (right)
        __syncwarp();
    float v = row[threadIdx.x];
    a.y[threadIdx.x ^ 1] = v;
}

// The first half of the block hands to the second: a named barrier that it does not wait at.
template <bool right> GR_DEV void hand_over(const fault_args &a)
{
    __shared__ float row[256];
    if (threadIdx.x < 128) {
        row[threadIdx.x] = a.x[threadIdx.x];
        row[threadIdx.x + 128] = a.x[threadIdx.x + 128];
        bar_arrive(1, right ? 256 : 192);
    } else {
        bar_sync(1, right ? 256 : 192);
        for (uint32_t i = threadIdx.x - 128; i < 256; i += 128)
            a.y[i] = row[a.n - 1 - i];
    }
}

template <bool right> GR_DEV void dynamic(const fault_args &a)
{
    GR_SMEM;
    float *row = (float *)smem + (right ? 0 : 1);
    row[threadIdx.x] = a.x[threadIdx.x];
    __syncthreads();
    a.y[threadIdx.x] = row[a.n - 1 - threadIdx.x];
}

template <bool right> GR_DEV void copied(const fault_args &a)
{
    __shared__ __align__(16) float row[256];
    cp_async<4>(smem_u32(&row[threadIdx.x]), a.x + threadIdx.x);
    cp_async_commit();
    if (right)
        cp_async_wait<0>();
    __syncthreads();
    a.y[threadIdx.x] = row[a.n - 1 - threadIdx.x];
}

// Sums over a word of shared memory; the faulty one forgets to set it to zero.
template <bool right> GR_DEV void counted(const fault_args &a)
{
    __shared__ int sum;
    if (right && threadIdx.x == 0)
        sum = 0;
    __syncthreads();
    atomicAdd(&sum, 1);
    __syncthreads();
    a.y[threadIdx.x] = a.x[a.n - 1 - threadIdx.x] + (float)(sum - (int)a.n);
}
} // namespace

#define PAIR(name)                                                                                 \
    GR_KERNEL(test_##name, fault_args, 256, 1)                                                     \
    {                                                                                              \
        name<true>(a);                                                                             \
    }                                                                                              \
    GR_KERNEL(test_##name##_wrong, fault_args, 256, 1)                                             \
    {                                                                                              \
        name<false>(a);                                                                            \
    }
PAIR(reverse)
PAIR(reuse)
PAIR(beside)
PAIR(hand_over)
PAIR(dynamic)
PAIR(copied)
PAIR(counted)

// --- faults that end a launch, alone ---

GR_KERNEL(test_store_behind, fault_args, 256, 1)
{
    a.y[threadIdx.x + 1] = a.x[threadIdx.x];
}
GR_KERNEL(test_load_behind, fault_args, 256, 1)
{
    a.y[threadIdx.x] = a.x[threadIdx.x + a.n];
}
GR_KERNEL(test_null, fault_args, 256, 1)
{
    a.y[threadIdx.x] = (float)*a.word;
}
GR_KERNEL(test_shared_far, fault_args, 256, 1)
{
    GR_SMEM;
    smem[threadIdx.x * 4096] = 0;
}
GR_KERNEL(test_two_barriers, fault_args, 256, 1)
{
    if (threadIdx.x < 128)
        __syncthreads();
    else
        __syncthreads();
}
GR_KERNEL(test_half_warps, fault_args, 256, 1)
{
    if (threadIdx.x % 32 < 16)
        __syncthreads();
}
GR_KERNEL(test_stuck, fault_args, 256, 1)
{
    float v = 0;
    if (threadIdx.x % 32 < 16)
        v = __shfl_xor_sync(0xffffffff, a.x[threadIdx.x], 1);
    __syncthreads();
    a.y[threadIdx.x] = v;
}
GR_KERNEL(test_not_named, fault_args, 256, 1)
{
    a.y[threadIdx.x] = __shfl_sync(0x0000ffff, a.x[threadIdx.x], 0);
}
GR_KERNEL(test_poll, fault_args, 256, 1)
{
    while (load_acquire(a.word) != 1)
        continue;
}
GR_KERNEL(test_misaligned, fault_args, 256, 1)
{
    GR_SMEM;
    cp_async_16(smem_u32(smem + 8), a.x);
}
GR_KERNEL(test_copy_behind, fault_args, 256, 1)
{
    GR_SMEM;
    cp_async_16(smem_u32(smem) + threadIdx.x * 16, a.x + threadIdx.x * 4);
}

namespace
{
__noinline__ float deep(const volatile float *x, int n)
{
    volatile float local[256];
    local[n % 256] = x[n % 256];
    return n ? deep(local, n - 1) + local[n % 256] : local[0];
}
} // namespace
GR_KERNEL(test_deep, fault_args, 256, 1)
{
    a.y[threadIdx.x] = deep(a.x, 1000);
}

// --- blocks that meet: a.word[0] counts them, a.word[1 + b] holds what each has to say ---

namespace
{
enum class Meet { counted, fenced, unordered };

// The last block adds up what all have written. `unordered`: nothing orders that.
template <Meet how> GR_DEV void last_block(const fault_args &a)
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        a.word[1 + blockIdx.x] = blockIdx.x + 1;
        uint32_t before = 0;
        if (how == Meet::counted)
            before = add_acq_rel(a.word, 1);
        if (how == Meet::fenced)
            __threadfence();
        if (how != Meet::counted)
            before = atomicAdd(a.word, 1u);
        if (how == Meet::fenced)
            __threadfence();
        last = before == gridDim.x - 1;
    }
    __syncthreads();
    if (!last)
        return;
    uint32_t sum = 0;
    for (uint32_t b = 0; b < gridDim.x; b++)
        sum += a.word[1 + b];
    a.y[threadIdx.x] = a.x[a.n - 1 - threadIdx.x] + (float)(sum - gridDim.x * (gridDim.x + 1) / 2);
}
} // namespace
GR_KERNEL(test_blocks_counted, fault_args, 256, 1)
{
    last_block<Meet::counted>(a);
}
GR_KERNEL(test_blocks_fenced, fault_args, 256, 1)
{
    last_block<Meet::fenced>(a);
}
GR_KERNEL(test_blocks_unordered, fault_args, 256, 1)
{
    last_block<Meet::unordered>(a);
}
// Halves of words are their own; the last element is written by every block.
GR_KERNEL(test_blocks_halves, fault_args, 256, 1)
{
    ((uint16_t *)a.word)[2 * threadIdx.x + blockIdx.x % 2] = 1;
}
GR_KERNEL(test_blocks_overlap, fault_args, 256, 1)
{
    a.y[threadIdx.x + blockIdx.x * 255] = a.x[threadIdx.x];
}
// One block writes data that the next one reads: before a synchronisation of both, and behind it.
GR_KERNEL(test_blocks_read, fault_args, 256, 1)
{
    const float v = *(const volatile float *)(a.y + threadIdx.x);
    if (blockIdx.x == gridDim.x - 1)
        a.y[threadIdx.x] = v > 0 ? 2.0f : 1.0f;
}
GR_KERNEL(test_blocks_read_first, fault_args, 256, 1)
{
    __shared__ uint32_t before;
    const float v = *(const volatile float *)(a.y + threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0)
        before = add_acq_rel(a.word, 1);
    __syncthreads();
    if (before == gridDim.x - 1)
        a.y[threadIdx.x] = v > 0 ? 2.0f : 1.0f;
}
GR_KERNEL(test_blocks_count, fault_args, 256, 1)
{
    atomicAdd(a.word, 1u);
}

namespace
{
// All threads write one word: the same value, or a value of their own.
template <bool right> GR_DEV void agreed(const fault_args &a)
{
    __shared__ uint32_t word;
    word = right ? a.n : threadIdx.x;
    __syncthreads();
    a.y[threadIdx.x] = a.x[a.n - 1 - threadIdx.x] + (word <= a.n ? 0.0f : 1.0f);
}
} // namespace
PAIR(agreed)

// Addresses that vectors, and copies that read nothing, must not have.
GR_KERNEL(test_misaligned_load, fault_args, 256, 1)
{
    a.y[threadIdx.x] = (*(const float4 *)(a.x + threadIdx.x % 2)).y;
}
GR_KERNEL(test_misaligned_store, fault_args, 256, 1)
{
    __shared__ __align__(16) float row[4];
    if (threadIdx.x == 0)
        *(float2 *)(row + 1) = make_float2(1, 2);
    a.y[threadIdx.x] = a.x[threadIdx.x];
}
GR_KERNEL(test_misaligned_nothing, fault_args, 256, 1)
{
    GR_SMEM;
    cp_async_16(smem_u32(smem), a.x + 1, 0);
}
