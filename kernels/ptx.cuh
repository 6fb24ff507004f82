// All inline PTX but for tensor cores (mma.cuh), and the form of a kernel. Semantics: PTX ISA 9,
// the section named at each group. An emulated device supplies a file of the same name and
// interface (include path), so kernels hold no other inline assembly, no __CUDA_ARCH__ and no
// NVIDIA header. Every wrapper is declared for every architecture; one that the target lacks traps.
#pragma once

#include <stdint.h>

#include "gr/op.h"

// GR_KERNEL(name, argument struct, threads of a block, blocks a multiprocessor should hold) { body
// } defines the kernel `name`, whose body reads its arguments from `a`. Dynamic shared memory is
// `smem`, aligned to 1024 bytes: declare it by GR_SMEM inside the function.
#define GR_KERNEL(name, Args, threads, blocks)                                                     \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                                  \
        name(const __grid_constant__ Args a)
#define GR_SMEM extern __shared__ __align__(1024) unsigned char smem[]
#define GR_DEV static __device__ __forceinline__

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
// The copy shows in shared memory after cp_async_wait and a barrier.

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
