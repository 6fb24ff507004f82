// kernels/ptx.cuh for the emulated device: the same interface, each instruction a model.
#pragma once

#include <stdint.h>

#include "builtins.hpp"
#include "emu.h"
#include "gr/op.h"

// A kernel tells the emulated device its name as the library is loaded.
#define GR_KERNEL_EARLY(name, Args, threads, blocks) GR_KERNEL_FORM(name, Args, threads, blocks, )
#define GR_KERNEL(name, Args, threads, blocks)                                                     \
    GR_KERNEL_FORM(name, Args, threads, blocks, griddep_begin())
#define GR_KERNEL_FORM(name, Args, threads, blocks, first)                                         \
    static void name##_body(const Args &a);                                                        \
    static void name##_run(const void *args)                                                       \
    {                                                                                              \
        first;                                                                                     \
        name##_body(*static_cast<const Args *>(args));                                             \
    }                                                                                              \
    static const struct emu_kernel name##_kernel = {                                               \
        #name, name##_run, __BASE_FILE__, threads, blocks, sizeof(Args),                           \
        0,     nullptr,    nullptr,       0,       nullptr};                                       \
    __attribute__((constructor)) static void name##_register()                                     \
    {                                                                                              \
        emu_register(&name##_kernel);                                                              \
    }                                                                                              \
    static void name##_body([[maybe_unused]] const Args &a)
#define GR_SMEM [[maybe_unused]] unsigned char *const smem = ::emu::dynamic_smem
#define GR_DEV static inline
#define GR_ONCE [[maybe_unused]] static

// --- numbers ---

namespace emu
{
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
// a * b + c, rounded once
uint16_t fma_f16(uint16_t a, uint16_t b, uint16_t c);
uint16_t fma_bf16(uint16_t a, uint16_t b, uint16_t c);
} // namespace emu

GR_DEV float f16_to_f32(uint16_t h)
{
#ifdef __F16C__
    float f;
    __asm__("vmovd %1, %0\n\tvcvtph2ps %0, %0" : "=x"(f) : "r"((uint32_t)h));
    return f;
#else
    return emu::f16_to_f32(h);
#endif
}
GR_DEV uint16_t f32_to_f16(float f)
{
#ifdef __F16C__
    uint32_t h;
    __asm__("vcvtps2ph $0, %1, %1\n\tvmovd %1, %0" : "=r"(h), "+x"(f));
    return (uint16_t)h;
#else
    return emu::f32_to_f16(f);
#endif
}
GR_DEV float bf16_to_f32(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}
GR_DEV uint16_t f32_to_bf16(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff; // cvt.rn.bf16 makes every NaN this one
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
GR_DEV uint32_t f16x2(float lo, float hi)
{
    return f32_to_f16(lo) | (uint32_t)f32_to_f16(hi) << 16;
}
GR_DEV uint32_t bf16x2(float lo, float hi)
{
    return f32_to_bf16(lo) | (uint32_t)f32_to_bf16(hi) << 16;
}
GR_DEV uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    return emu::fma_f16((uint16_t)a, (uint16_t)b, (uint16_t)c) |
           (uint32_t)emu::fma_f16((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16))
               << 16;
}
// Products and differences of two f16 in f32 round to f16 as the exact ones do (24 >= 2 * 11 + 2).
GR_DEV uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    return f16x2(f16_to_f32((uint16_t)a) * f16_to_f32((uint16_t)b),
                 f16_to_f32((uint16_t)(a >> 16)) * f16_to_f32((uint16_t)(b >> 16)));
}
GR_DEV uint32_t sub_f16x2(uint32_t a, uint32_t b)
{
    return f16x2(f16_to_f32((uint16_t)a) - f16_to_f32((uint16_t)b),
                 f16_to_f32((uint16_t)(a >> 16)) - f16_to_f32((uint16_t)(b >> 16)));
}
GR_DEV uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    return emu::fma_bf16((uint16_t)a, (uint16_t)b, (uint16_t)c) |
           (uint32_t)emu::fma_bf16((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16))
               << 16;
}
GR_DEV uint32_t and_or(uint32_t a, uint32_t b, uint32_t c)
{
    return (a & b) | c;
}
GR_DEV uint32_t select_bits(uint32_t a, uint32_t b, uint32_t mask)
{
    return (a & mask) | (b & ~mask);
}
GR_DEV uint32_t permute(uint32_t a, uint32_t b, uint32_t s)
{
    uint32_t v = __byte_perm(a, b, s), r = 0;
    for (int i = 0; i < 32; i += 8) {
        uint32_t byte = v >> i & 255;
        r |= (s >> i / 2 & 8 ? (byte >> 7) * 255 : byte) << i;
    }
    return r;
}
GR_DEV float exp2_fast(float x)
{
    float y = exp2f(x);
    return fabsf(y) < 0x1p-126f ? 0.0f : y; // .ftz
}

GR_DEV uint32_t opaque(uint32_t v)
{
    return v;
}

// --- global memory ---

namespace emu
{
void check_aligned(const void *p, uint32_t bytes, const char *what, Site site);
}

GR_DEV uint4 load_once(const void *p, EMU_SITE)
{
    if ((uintptr_t)p & 15)
        emu::check_aligned(p, 16, "load_once", site);
    return *(const uint4 *)p;
}
GR_DEV uint32_t load_acquire(const uint32_t *p, EMU_SITE)
{
    emu::poll("load_acquire", site);
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
GR_DEV void store_release(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
GR_DEV uint32_t add_acq_rel(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

// --- shared memory addresses ---

GR_DEV uint32_t smem_u32(const void *p, EMU_SITE)
{
    return emu::shared_address(p, site);
}

// --- cp.async ---

namespace emu
{
void cp_async(uint32_t dst, const void *src, uint32_t bytes, uint32_t src_bytes, Site site);
void cp_async_commit();
void cp_async_wait(uint32_t pending);
} // namespace emu

GR_DEV void cp_async_16(uint32_t dst, const void *src, uint32_t src_bytes = 16, EMU_SITE)
{
    emu::cp_async(dst, src, 16, src_bytes, site);
}
template <int N>
GR_DEV void cp_async(uint32_t dst, const void *src, uint32_t src_bytes = N, EMU_SITE)
{
    static_assert(N == 4 || N == 8, "cp.async copies 4, 8 or 16 bytes");
    emu::cp_async(dst, src, N, src_bytes, site);
}
GR_DEV void cp_async_commit()
{
    emu::cp_async_commit();
}
template <int N> GR_DEV void cp_async_wait()
{
    emu::cp_async_wait(N);
}

// --- named barriers ---

namespace emu
{
void bar_sync(int id, int n, Site site);
void bar_arrive(int id, int n, Site site);
} // namespace emu

GR_DEV void bar_sync(int id, int n, EMU_SITE)
{
    emu::bar_sync(id, n, site);
}
GR_DEV void bar_arrive(int id, int n, EMU_SITE)
{
    emu::bar_arrive(id, n, site);
}

#include "engine.cuh"
