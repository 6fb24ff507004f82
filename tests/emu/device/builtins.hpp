// Names that nvcc supplies to a kernel without any header, for g++ and clang: force-included before
// every kernel of the emulated device.
#pragma once

#include "numbers.hpp"
#include "thread.hpp"
#include "vectors.hpp"

#define GPURUN_EMU 1
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __launch_bounds__(...)
// All threads of a block run in one thread of the host, whose storage is the block's.
#define __shared__ static thread_local

#define threadIdx (::emu::current->thread)
#define blockIdx (::emu::block_index)
#define blockDim (::emu::block_dim)
#define gridDim (::emu::grid_dim)
constexpr int warpSize = 32;

#define EMU_SITE ::emu::Site site = ::emu::Site::here()

// --- barriers and fences ---

static inline void __syncthreads(EMU_SITE)
{
    emu::sync_threads(emu::Join::none, 0, site);
}
static inline int __syncthreads_count(int v, EMU_SITE)
{
    return emu::sync_threads(emu::Join::count, v != 0, site);
}
static inline int __syncthreads_and(int v, EMU_SITE)
{
    return emu::sync_threads(emu::Join::and_, v != 0, site);
}
static inline int __syncthreads_or(int v, EMU_SITE)
{
    return emu::sync_threads(emu::Join::or_, v != 0, site);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_SITE)
{
    emu::sync_warp(mask, site);
}
static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block()
{
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
}

// --- warps ---

template <class T>
static inline T emu_shuffle(emu::Shuffle how, unsigned mask, T v, int arg, int width,
                            emu::Site site)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    if constexpr (sizeof(T) == 4)
        return emu_bits<T>(emu::shuffle(how, mask, emu_bits<uint32_t>(v), arg, width, site));
    else
        return emu_bits<T>(emu::shuffle(how, mask, emu_bits<uint64_t>(v), arg, width, site));
}
template <class T>
static inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, EMU_SITE)
{
    return emu_shuffle(emu::Shuffle::idx, mask, v, lane, width, site);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, EMU_SITE)
{
    return emu_shuffle(emu::Shuffle::up, mask, v, (int)delta, width, site);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, EMU_SITE)
{
    return emu_shuffle(emu::Shuffle::down, mask, v, (int)delta, width, site);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32, EMU_SITE)
{
    return emu_shuffle(emu::Shuffle::xor_, mask, v, lanes, width, site);
}
static inline unsigned __ballot_sync(unsigned mask, int v, EMU_SITE)
{
    return emu::vote(emu::Vote::ballot, mask, v, site);
}
static inline int __any_sync(unsigned mask, int v, EMU_SITE)
{
    return (int)emu::vote(emu::Vote::any, mask, v, site);
}
static inline int __all_sync(unsigned mask, int v, EMU_SITE)
{
    return (int)emu::vote(emu::Vote::all, mask, v, site);
}
static inline int __uni_sync(unsigned mask, int v, EMU_SITE)
{
    return (int)emu::vote(emu::Vote::uni, mask, v, site);
}
// Any set of lanes that holds the caller is a right answer: the smallest one.
static inline unsigned __activemask()
{
    return 1u << emu::lane();
}
static inline unsigned __match_any_sync(unsigned mask, unsigned v, EMU_SITE)
{
    return emu::match(mask, v, site);
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned v, EMU_SITE)
{
    return emu::reduce(emu::Reduce::add, mask, v, site);
}
static inline int __reduce_add_sync(unsigned mask, int v, EMU_SITE)
{
    return (int)emu::reduce(emu::Reduce::add, mask, (unsigned)v, site);
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned v, EMU_SITE)
{
    return emu::reduce(emu::Reduce::umin, mask, v, site);
}
static inline int __reduce_min_sync(unsigned mask, int v, EMU_SITE)
{
    return (int)emu::reduce(emu::Reduce::min, mask, (unsigned)v, site);
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned v, EMU_SITE)
{
    return emu::reduce(emu::Reduce::umax, mask, v, site);
}
static inline int __reduce_max_sync(unsigned mask, int v, EMU_SITE)
{
    return (int)emu::reduce(emu::Reduce::max, mask, (unsigned)v, site);
}
static inline unsigned __reduce_and_sync(unsigned mask, unsigned v, EMU_SITE)
{
    return emu::reduce(emu::Reduce::and_, mask, v, site);
}
static inline unsigned __reduce_or_sync(unsigned mask, unsigned v, EMU_SITE)
{
    return emu::reduce(emu::Reduce::or_, mask, v, site);
}
static inline unsigned __reduce_xor_sync(unsigned mask, unsigned v, EMU_SITE)
{
    return emu::reduce(emu::Reduce::xor_, mask, v, site);
}

// --- memory ---

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> static inline void __stcs(T *p, T v)
{
    *p = v;
}
template <class T> static inline void __stcg(T *p, T v)
{
    *p = v;
}

// Atomics return the old value. What is added is converted to the type of the word.
template <class T> struct emu_word {
    using type = T;
};
template <class T> using emu_like = typename emu_word<T>::type;
template <class T, class F> static inline T emu_atomic(T *p, F next)
{
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (
        !__atomic_compare_exchange_n(p, &old, next(old), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
    return old;
}
template <class T> static inline T atomicAdd(T *p, emu_like<T> v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicSub(T *p, emu_like<T> v)
{
    return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicAnd(T *p, emu_like<T> v)
{
    return __atomic_fetch_and(p, v, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicOr(T *p, emu_like<T> v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicXor(T *p, emu_like<T> v)
{
    return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicExch(T *p, emu_like<T> v)
{
    return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicMax(T *p, emu_like<T> v)
{
    return emu_atomic(p, [v](T old) { return old < v ? v : old; });
}
template <class T> static inline T atomicMin(T *p, emu_like<T> v)
{
    return emu_atomic(p, [v](T old) { return v < old ? v : old; });
}
template <class T> static inline T atomicCAS(T *p, emu_like<T> expected, emu_like<T> v)
{
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
// The wrap-around counter: back to 0 behind `top`.
static inline unsigned atomicInc(unsigned *p, unsigned top)
{
    return emu_atomic(p, [top](unsigned old) { return old >= top ? 0 : old + 1; });
}
