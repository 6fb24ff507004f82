/* Bit fields of the block formats. Every format stores fields in planes: `stride` bytes hold 8 /
 * bits runs of `stride` elements each, the first run in the lowest bits, the next above it, and so
 * on; then come the next `stride` bytes. */
#ifndef GR_QUANT_BITS_H
#define GR_QUANT_BITS_H

#include <stdint.h>

/* Elements q[0 .. n_bytes * 8 / bits) |= field << up. */
static inline void gr_bits_get(uint8_t *restrict q, int up, const uint8_t *restrict src,
                               int n_bytes, int stride, int bits)
{
    for (int c = 0; c < n_bytes; c += stride)
        for (int shift = 0; shift < 8; shift += bits, q += stride)
            for (int i = 0; i < stride; i++)
                q[i] = (uint8_t)(q[i] | ((src[c + i] >> shift) & ((1 << bits) - 1)) << up);
}

/* The reverse: stores `bits` bits of each element from bit `up` on. dst must be zeroed. */
static inline void gr_bits_put(uint8_t *restrict dst, int n_bytes, int stride, int bits,
                               const uint8_t *restrict q, int up)
{
    for (int c = 0; c < n_bytes; c += stride)
        for (int shift = 0; shift < 8; shift += bits, q += stride)
            for (int i = 0; i < stride; i++)
                dst[c + i] = (uint8_t)(dst[c + i] | ((q[i] >> up) & ((1 << bits) - 1)) << shift);
}

#endif
