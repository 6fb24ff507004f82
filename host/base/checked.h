/* Arithmetic that reports overflow. gcc 12 and clang 14 have no <stdckdint.h>. */
#ifndef GR_BASE_CHECKED_H
#define GR_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* True when a + b (a * b) fits in *r. */
#define gr_add(r, a, b) (!__builtin_add_overflow((a), (b), (r)))
#define gr_mul(r, a, b) (!__builtin_mul_overflow((a), (b), (r)))

/* *r = x rounded up to a multiple of the power of two `a`; false when `a` is not a power of two or
 * the sum overflows. */
static inline bool gr_align_up(uint64_t *r, uint64_t x, uint64_t a)
{
    uint64_t t;
    return a && !(a & (a - 1)) && gr_add(&t, x, a - 1) && (*r = t & ~(a - 1), true);
}

/* True when [off, off + len) lies inside [0, size). */
static inline bool gr_in(uint64_t off, uint64_t len, uint64_t size)
{
    return off <= size && len <= size - off;
}

#define GR_MIN(a, b) ((a) < (b) ? (a) : (b))
#define GR_MAX(a, b) ((a) > (b) ? (a) : (b))
#define GR_PAD(x, n) (((x) + (n)-1) / (n) * (n))
#define GR_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
