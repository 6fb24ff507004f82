// CUDA's arithmetic on the host. Functions that are approximate on a device are exact here.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

template <class To, class From> static inline To emu_bits(From v)
{
    static_assert(sizeof(To) == sizeof(From), "");
    To r;
    __builtin_memcpy(&r, &v, sizeof r);
    return r;
}

// --- bits ---

static inline float __uint_as_float(unsigned v)
{
    return emu_bits<float>(v);
}
static inline float __int_as_float(int v)
{
    return emu_bits<float>(v);
}
static inline unsigned __float_as_uint(float v)
{
    return emu_bits<unsigned>(v);
}
static inline int __float_as_int(float v)
{
    return emu_bits<int>(v);
}
static inline double __longlong_as_double(long long v)
{
    return emu_bits<double>(v);
}
static inline long long __double_as_longlong(double v)
{
    return emu_bits<long long>(v);
}
static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static inline int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}
static inline int __clz(int v)
{
    return v ? __builtin_clz((unsigned)v) : 32;
}
static inline int __clzll(long long v)
{
    return v ? __builtin_clzll((unsigned long long)v) : 64;
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline int __ffsll(long long v)
{
    return __builtin_ffsll(v);
}
static inline unsigned __brev(unsigned v)
{
    v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
    v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
    v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(v);
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift)
{
    return (unsigned)(((uint64_t)hi << 32 | lo) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift)
{
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (shift & 31));
}
// Byte i of the result is byte (s >> 4 i & 7) of the eight of y:x. The fourth bit, with which the
// instruction prmt copies a sign, is masked.
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    uint64_t from = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= (unsigned)(from >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}

// --- integers ---

static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 4; i++)
        c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return c;
}
static inline int __mulhi(int a, int b)
{
    return (int)((int64_t)a * b >> 32);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __mul24(int a, int b)
{
    return (a << 8 >> 8) * (b << 8 >> 8);
}
static inline unsigned __vsub4(unsigned a, unsigned b) // four bytes, modulo 256 each
{
    return ((a | 0x80808080u) - (b & 0x7f7f7f7fu)) ^ ((a ^ ~b) & 0x80808080u);
}
static inline unsigned __vadd4(unsigned a, unsigned b)
{
    return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
}
static inline unsigned __vsubss4(unsigned a, unsigned b) // four signed bytes, saturating
{
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        int d = (int)(int8_t)(a >> 8 * i) - (int)(int8_t)(b >> 8 * i);
        r |= (unsigned)(uint8_t)(d < -128 ? -128 : d > 127 ? 127 : d) << 8 * i;
    }
    return r;
}

// --- minimum and maximum: of floats, NaN loses ---

#define EMU_MIN_MAX2(T, A, B)                                                                      \
    static inline T min(A a, B b)                                                                  \
    {                                                                                              \
        return (T)a < (T)b ? (T)a : (T)b;                                                          \
    }                                                                                              \
    static inline T max(A a, B b)                                                                  \
    {                                                                                              \
        return (T)a < (T)b ? (T)b : (T)a;                                                          \
    }
#define EMU_MIN_MAX(T)                                                                             \
    EMU_MIN_MAX2(T, T, T)                                                                          \
    EMU_MIN_MAX2(unsigned T, unsigned T, unsigned T)                                               \
    EMU_MIN_MAX2(unsigned T, unsigned T, T)                                                        \
    EMU_MIN_MAX2(unsigned T, T, unsigned T)
EMU_MIN_MAX(int)
EMU_MIN_MAX(long)
EMU_MIN_MAX(long long)
#undef EMU_MIN_MAX
#undef EMU_MIN_MAX2
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}

// --- floats; the C library declares some of these names itself ---

#define __expf expf
#define __exp2f exp2f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __sincosf sincosf
#define __powf powf

static inline float rsqrtf(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
static inline float __saturatef(float x) // NaN becomes 0
{
    return fminf(fmaxf(x, 0.0f), 1.0f);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frsqrt_rn(float x)
{
    return rsqrtf(x);
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
// Sum and product that are not contracted with what is around them.
static inline float __fadd_rn(float a, float b)
{
    float r = a + b;
    __asm__("" : "+m"(r));
    return r;
}
static inline float __fsub_rn(float a, float b)
{
    return __fadd_rn(a, -b);
}
static inline float __fmul_rn(float a, float b)
{
    float r = a * b;
    __asm__("" : "+m"(r));
    return r;
}
static inline double __dadd_rn(double a, double b)
{
    double r = a + b;
    __asm__("" : "+m"(r));
    return r;
}
static inline double __dsub_rn(double a, double b)
{
    return __dadd_rn(a, -b);
}
static inline double __dmul_rn(double a, double b)
{
    double r = a * b;
    __asm__("" : "+m"(r));
    return r;
}
static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
static inline double __ddiv_rn(double a, double b)
{
    return a / b;
}

// --- conversions: saturating, NaN becomes 0 (of 64 bits, 0x8000000000000000) ---

template <class Int> static inline Int emu_saturate(double whole, Int nan)
{
    constexpr bool sign = Int(-1) < Int(0);
    constexpr int bits = 8 * sizeof(Int) - sign;
    const double top = ldexp(1.0, bits);
    constexpr Int most = Int(~0ull >> (64 - bits)), least = sign ? Int(-most - 1) : Int(0);
    return whole != whole ? nan : whole >= top ? most : whole <= (double)least ? least : Int(whole);
}
#define EMU_CONVERT(From, from, Int, to, nan)                                                      \
    static inline Int __##from##2##to##_rn(From x)                                                 \
    {                                                                                              \
        return emu_saturate<Int>(nearbyint((double)x), nan);                                       \
    }                                                                                              \
    static inline Int __##from##2##to##_rz(From x)                                                 \
    {                                                                                              \
        return emu_saturate<Int>(trunc((double)x), nan);                                           \
    }                                                                                              \
    static inline Int __##from##2##to##_rd(From x)                                                 \
    {                                                                                              \
        return emu_saturate<Int>(floor((double)x), nan);                                           \
    }                                                                                              \
    static inline Int __##from##2##to##_ru(From x)                                                 \
    {                                                                                              \
        return emu_saturate<Int>(ceil((double)x), nan);                                            \
    }
EMU_CONVERT(float, float, int, int, 0)
EMU_CONVERT(float, float, unsigned, uint, 0u)
EMU_CONVERT(float, float, long long, ll, (long long)(1ull << 63))
EMU_CONVERT(double, double, int, int, 0)
EMU_CONVERT(double, double, unsigned, uint, 0u)
EMU_CONVERT(double, double, long long, ll, (long long)(1ull << 63))
#undef EMU_CONVERT
static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}
static inline float __ll2float_rn(long long x)
{
    return (float)x;
}
static inline double __int2double_rn(int x)
{
    return (double)x;
}
static inline float __double2float_rn(double x)
{
    return (float)x;
}
