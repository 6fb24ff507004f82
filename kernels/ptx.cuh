// Wrappers of all inline PTX but that of tensor cores (mma.cuh), and the form of a kernel.
// Semantics: PTX ISA 9, the section named at each group. An emulated device supplies a file of the
// same name and interface (include path), so kernels hold no other inline assembly, no
// __CUDA_ARCH__ and no NVIDIA header. Every wrapper is declared for every architecture; one that
// the target lacks traps.
#pragma once

#include <stdint.h>

#include "gr/kernel/tensor_map.h"
#include "gr/op.h"

// The one place that depends on the architecture: GR_SM90(asm) is code for compute capability 9.0
// and later, and traps elsewhere; GR_SM90_HINT(asm) is left out elsewhere; GR_SM90A(asm) is code
// for the target sm_90a alone.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GR_SM90(...) __VA_ARGS__
#define GR_SM90_HINT(...) __VA_ARGS__
#define GR_MBARRIER_WAIT "mbarrier.try_wait"
#else
#define GR_SM90(...) __trap()
#define GR_SM90_HINT(...)
#define GR_MBARRIER_WAIT "mbarrier.test_wait"
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GR_SM90A(...) __VA_ARGS__
#else
#define GR_SM90A(...) __trap()
#endif

// GR_KERNEL(name, argument struct, threads of a block, blocks a multiprocessor should hold) { body
// } defines the kernel `name`, whose body reads its arguments from `a`. Dynamic shared memory is
// `smem`, aligned to 1024 bytes: declare it by GR_SMEM inside the function. The launch may have
// begun before the one in front of it was over: GR_KERNEL waits for that first, GR_KERNEL_EARLY
// leaves it to the body, which calls griddep_begin before it touches memory that a launch writes.
#define GR_KERNEL_EARLY(name, Args, threads, blocks)                                               \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                                  \
        name(const __grid_constant__ Args a)
#define GR_KERNEL(name, Args, threads, blocks)                                                     \
    GR_DEV void name##_body(const Args &a);                                                        \
    GR_KERNEL_EARLY(name, Args, threads, blocks)                                                   \
    {                                                                                              \
        griddep_begin();                                                                           \
        name##_body(a);                                                                            \
    }                                                                                              \
    GR_DEV void name##_body(const Args &a)
#define GR_DEV static __device__ __forceinline__
#define GR_ONCE [[maybe_unused]] static __device__ __noinline__ // where inlining is too much code
#define GR_SMEM unsigned char *const smem = gr_smem()

GR_DEV unsigned char *gr_smem() // declared in one place: kernels have C linkage, templates do not
{
    extern __shared__ __align__(1024) unsigned char gr_dynamic_smem[];
    return gr_dynamic_smem;
}

// --- numbers: f16 and bf16 as bits, pairs in a register with the first element low ---

GR_DEV float f16_to_f32(uint16_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
GR_DEV uint16_t f32_to_f16(float f) // nearest even; beyond the range: infinity
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
GR_DEV float bf16_to_f32(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}
GR_DEV uint16_t f32_to_bf16(float f)
{
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
GR_DEV uint32_t f16x2(float lo, float hi)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
GR_DEV uint32_t bf16x2(float lo, float hi)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
GR_DEV uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) // a * b + c, one rounding
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
GR_DEV uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
GR_DEV uint32_t sub_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
GR_DEV uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
// (a & b) | c in one instruction.
GR_DEV uint32_t and_or(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
// The bits of a where mask has them, and of b elsewhere.
GR_DEV uint32_t select_bits(uint32_t a, uint32_t b, uint32_t mask)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
    return d;
}
// Byte i of the result is byte (s >> 4 i & 7) of the eight of b:a, or its sign eight times where
// s >> 4 i & 8 is set. The upper half of s is not used. (__byte_perm clears these bits first.)
GR_DEV uint32_t permute(uint32_t a, uint32_t b, uint32_t s)
{
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(s));
    return d;
}
// 2^x, a few units in the last place off; 2^-inf = 0.
GR_DEV float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// --- global memory: loads that do not stay in L1, for data that is read once ---

GR_DEV uint4
load_once(const void *p) // 16 bytes, aligned; memory that no thread of the launch writes
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
// Acquire and release on a word that blocks of one launch share (counters, flags). A loop that
// waits must go through load_acquire.
GR_DEV uint32_t load_acquire(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
GR_DEV void store_release(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
GR_DEV uint32_t add_acq_rel(uint32_t *p, uint32_t v) // returns the old value
{
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(v)
                 : "memory");
    return old;
}

// --- shared memory addresses ---

GR_DEV uint32_t smem_u32(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// --- cp.async ("Data Movement and Conversion Instructions: cp.async") ---
// The copy is visible in shared memory after cp_async_wait and a barrier.

// 16 bytes; the first src_bytes of them from src, zeros for the rest (src is not read when 0).
GR_DEV void cp_async_16(uint32_t dst, const void *src, uint32_t src_bytes = 16)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(src_bytes)
                 : "memory");
}
// 4 or 8 bytes.
template <int N> GR_DEV void cp_async(uint32_t dst, const void *src, uint32_t src_bytes = N)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(N),
                 "r"(src_bytes)
                 : "memory");
}
GR_DEV void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most N of this thread's newest groups are pending.
template <int N> GR_DEV void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// --- named barriers ("bar, barrier") : ids 1 .. 15, n threads, a multiple of 32 ---

GR_DEV void bar_sync(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
GR_DEV void bar_arrive(int id, int n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}

// --- mbarriers ("Parallel Synchronization and Communication Instructions: mbarrier") ---
// An object of 8 bytes in shared memory. A phase ends when `count` threads have arrived and all
// expected bytes have come. Before its use: mbar_init by one
// thread, fence_mbar_init by that thread, then a barrier of the block.

GR_DEV void mbar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
GR_DEV void mbar_inval(uint32_t bar) // ends its use: its memory may then hold other data
{
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
GR_DEV void fence_mbar_init() // makes it known to the copy engine, which 9.0 is the first to have
{
    GR_SM90_HINT(asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"));
}
GR_DEV void mbar_arrive(uint32_t bar)
{
    asm volatile("{\n.reg .b64 s;\nmbarrier.arrive.shared::cta.b64 s, [%0];\n}" ::"r"(bar)
                 : "memory");
}
// Adds to the bytes that this phase expects; with an arrival, and without.
GR_DEV void mbar_arrive_expect_tx(uint32_t bar, uint32_t bytes)
{
    GR_SM90(
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                     : "memory"));
}
GR_DEV void mbar_expect_tx(uint32_t bar, uint32_t bytes)
{
    GR_SM90(asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar),
                         "r"(bytes)
                         : "memory"));
}
// An arrival that happens when all earlier cp.async of this thread are done; it is one of the
// count.
GR_DEV void cp_async_mbar_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
// True when the phase of this parity is over: phases count from 0, and of a fresh barrier that of
// parity 1 is over. May return false although it is.
GR_DEV bool mbar_try_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n" GR_MBARRIER_WAIT ".parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}
// Waits for the end of a phase. In a build with a watchdog (GPURUN_CUDA_WATCHDOG, seconds) a
// longer wait is a fault and ends the launch (CUDA_ERROR_MISALIGNED_ADDRESS, by a misaligned
// store; with a trap in its place ptxas spills). The clock of the device ("Special Registers:
// %globaltimer", nanoseconds) is read when the first try and each 16th after it fail.
GR_DEV void mbar_wait(uint32_t bar, uint32_t parity)
{
#ifdef GR_WATCHDOG
    uint64_t begin = 0, now;
    for (uint32_t n = 0; !mbar_try_wait(bar, parity); n++) {
        if (n % 16)
            continue;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        begin = n ? begin : now;
        if (now - begin > GR_WATCHDOG * UINT64_C(1000000000))
            asm volatile("st.shared.u32 [%0], %0;" ::"r"(1) : "memory");
    }
#else
    while (!mbar_try_wait(bar, parity)) {
    }
#endif
}

// --- the copy engine ("Data Movement and Conversion Instructions: cp.async.bulk",
// "cp.async.bulk.tensor") --- One thread issues a copy. Loads report the bytes that came to an
// mbarrier; stores are waited for in groups. The engine and wgmma see ordinary stores to shared
// memory when the writer calls fence_proxy_async after them and before the barrier that lets
// the reader go on.

GR_DEV void fence_proxy_async()
{
    GR_SM90(asm volatile("fence.proxy.async.shared::cta;" ::: "memory"));
}
// Sizes are multiples of 16 bytes, both addresses aligned to 16.
GR_DEV void bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    GR_SM90(asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                         "[%0], [%1], %2, [%3];" ::"r"(dst),
                         "l"(src), "r"(bytes), "r"(bar)
                         : "memory"));
}
GR_DEV void bulk_store(void *dst, uint32_t src, uint32_t bytes)
{
    GR_SM90(asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst),
                         "r"(src), "r"(bytes)
                         : "memory"));
}
// The box of the map whose first element is (x, y[, z]), x the innermost; elements outside the
// tensor come as zeros and count. dst is aligned to 128 bytes, with a swizzle to its period (1024
// bytes for the 128-byte one).
GR_DEV void tma_load_2d(uint32_t dst, const struct gr_tensor_map *map, int x, int y, uint32_t bar)
{
    GR_SM90(asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(dst),
        "l"(map), "r"(x), "r"(y), "r"(bar)
        : "memory"));
}
GR_DEV void tma_load_3d(uint32_t dst, const struct gr_tensor_map *map, int x, int y, int z,
                        uint32_t bar)
{
    GR_SM90(asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(dst),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar)
        : "memory"));
}
// The same to this place of every block of the cluster that is in `blocks` (bit i: block i), each
// of which has the bytes reported to its own mbarrier at `bar`.
GR_DEV void tma_load_2d_cluster(uint32_t dst, const struct gr_tensor_map *map, int x, int y,
                                uint32_t bar, uint16_t blocks)
{
    GR_SM90(asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                         ".mbarrier::complete_tx::bytes.multicast::cluster "
                         "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst),
                         "l"(map), "r"(x), "r"(y), "r"(bar), "h"(blocks)
                         : "memory"));
}
// Stores a box; elements outside the tensor are not written.
GR_DEV void tma_store_2d(const struct gr_tensor_map *map, int x, int y, uint32_t src)
{
    GR_SM90(asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group "
                         "[%0, {%1, %2}], [%3];" ::"l"(map),
                         "r"(x), "r"(y), "r"(src)
                         : "memory"));
}
GR_DEV void tma_store_3d(const struct gr_tensor_map *map, int x, int y, int z, uint32_t src)
{
    GR_SM90(asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group "
                         "[%0, {%1, %2, %3}], [%4];" ::"l"(map),
                         "r"(x), "r"(y), "r"(z), "r"(src)
                         : "memory"));
}
GR_DEV void bulk_commit()
{
    GR_SM90(asm volatile("cp.async.bulk.commit_group;" ::: "memory"));
}
// Waits until at most N of this thread's newest groups of stores are pending; bulk_wait_read: until
// at most N still read shared memory, which may then be overwritten.
template <int N> GR_DEV void bulk_wait()
{
    GR_SM90(asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"));
}
template <int N> GR_DEV void bulk_wait_read()
{
    GR_SM90(asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"));
}
// Prefetches, without effect on values: a map that is used soon; bytes (a multiple of 16) of
// global memory into L2.
GR_DEV void tma_prefetch_map(const struct gr_tensor_map *map)
{
    GR_SM90_HINT(asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"));
}
GR_DEV void bulk_prefetch(const void *src, uint32_t bytes)
{
    GR_SM90_HINT(asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes)));
}

// --- clusters: blocks that run at the same time and reach each other's shared memory ("barrier
// .cluster", "mapa") --- A block launched without one is a cluster by itself.

// The address, for mbar_arrive_cluster, of this place in block i of the cluster.
GR_DEV uint32_t cluster_address(uint32_t addr, uint32_t i)
{
    uint32_t at = addr;
    GR_SM90(asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(addr), "r"(i)));
    return at;
}
// Arrives at another block's mbarrier after reads, whose memory that block may then overwrite.
// Stores would need the scope of the cluster, which ptxas makes a fence of the whole device.
GR_DEV void mbar_arrive_cluster(uint32_t at)
{
    GR_SM90(asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" ::"r"(at)
                         : "memory"));
}
// The barrier of all threads of a cluster that have not returned, in two parts. Each warp that has
// arrived waits, as a whole: ptxas makes the wait bar.sync 0 in a launch without clusters.
GR_DEV void cluster_arrive()
{
    GR_SM90(asm volatile("barrier.cluster.arrive.release;" ::: "memory"));
}
GR_DEV void cluster_wait()
{
    GR_SM90(asm volatile("barrier.cluster.wait.acquire;" ::: "memory"));
}

// --- registers and launches ---

// v, which the compiler takes for another number: what it had made of v is made again of this, and
// needs no registers meanwhile.
GR_DEV uint32_t opaque(uint32_t v)
{
    asm volatile("" : "+r"(v));
    return v;
}

// Hands registers of this warp to the others, or takes some: R a multiple of 8 in 24 .. 256, the
// same in all warps of a warpgroup ("setmaxnreg"). The kernel's launch bounds must name both
// numbers.
template <int R> GR_DEV void setmaxnreg_inc()
{
    GR_SM90A(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R)));
}
template <int R> GR_DEV void setmaxnreg_dec()
{
    GR_SM90A(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R)));
}
// A launch that may begin before the preceding one is over ("griddepcontrol"): results of that
// one are read after griddep_wait only; griddep_launch lets the next one begin. Below 9.0
// launches do not overlap, and both do nothing.
GR_DEV void griddep_wait()
{
    GR_SM90_HINT(asm volatile("griddepcontrol.wait;" ::: "memory"));
}
GR_DEV void griddep_launch()
{
    GR_SM90_HINT(asm volatile("griddepcontrol.launch_dependents;" ::: "memory"));
}
// Both, in this order, so that a launch overlaps one preceding launch, not two.
GR_DEV void griddep_begin()
{
    griddep_wait();
    griddep_launch();
}
