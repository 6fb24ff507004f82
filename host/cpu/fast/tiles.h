/* Tile registers (AMX): eight registers of at most 16 rows of 64 bytes, whose shapes a thread
 * configures before use. This header has all tile instructions in use; GR_TILES names a header with
 * the same definitions, to test their users on any processor.
 *
 * Layout of products C [m, n] += A [m, k] B [k, n]: a row of A holds its k columns in order; a row
 * of B holds, for each of the n columns in turn, the consecutive elements of k that fill 32 bits
 * (four s8 or two bf16). Tile numbers must be constants. */
#ifndef GR_CPU_FAST_TILES_H
#define GR_CPU_FAST_TILES_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/fast/tile_config.h"

#ifdef GR_TILES
#include GR_TILES
#else
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

/* Returns whether the operating system saves tiles and their shapes: bits 17 and 18 of XCR0. */
static inline bool tiles_saved(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3) == 3;
}

/* Returns whether the processor has tiles of the size used here and products of s8 and bf16: bits
 * 22, 24 and 25 of CPUID leaf 7, palette 1 of leaf 0x1d. */
static inline bool tiles_exist(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 22 & 13) != 13)
        return false;
    return __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) && (b & 0xffff) >= 64 && b >> 16 >= 8 &&
           (c & 0xffff) >= 16;
}

/* Returns whether this process may use tiles. Requesting permission makes Linux enlarge signal
 * frames, and may fail; it is requested only where there are tiles. */
static inline bool tiles_usable(void)
{
    return tiles_exist() && tiles_saved() &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* Compilers do not know which memory LDTILECFG and TILELOADD read. */
#define TILES_MEMORY __asm__ volatile("" ::: "memory")

/* Configures this thread's tiles and clears them. A macro, since inlining requires the target's
 * options. */
#define tiles_begin(config)                                                                        \
    do {                                                                                           \
        TILES_MEMORY;                                                                              \
        _tile_loadconfig(config);                                                                  \
    } while (0)
/* Releases the tiles, so that nothing has to be saved for this thread. */
#define tiles_end() _tile_release()

#define tile_zero(tile) _tile_zero(tile)
/* Rows `stride` bytes apart. */
#define tile_load(tile, from, stride)                                                              \
    do {                                                                                           \
        TILES_MEMORY;                                                                              \
        _tile_loadd(tile, from, stride);                                                           \
    } while (0)
#define tile_store(tile, to, stride) _tile_stored(tile, to, stride)
/* c += a b: s8 into i32 (TDPBSSD), bf16 into f32 (TDPBF16PS). */
#define tile_dot_s8(c, a, b) _tile_dpbssd(c, a, b)
#define tile_dot_bf16(c, a, b) _tile_dpbf16ps(c, a, b)
#endif

#endif
