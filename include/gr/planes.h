/* Rows of a cache of quants: planes. First the codes of all columns, those of the blocks
 * (gr/quant_blocks.h) one behind the other, then the blocks' records: what a block has beside its
 * codes, a step (f16), with q4_1 and q5_1 a minimum (f16), with q5_0 and q5_1 the fifth bits. The
 * size is that of blocks, rounded up so that rows begin at multiples of GR_PLANES_ALIGN: the codes
 * of a head of 32 columns or more are whole pieces of 16 bytes, and its records lie together.
 *
 * Rows outside a session (saved states, other ranks) are blocks: host/quant/planes.h. */
#ifndef GR_PLANES_H
#define GR_PLANES_H

#include "gr/dtype.h"
#include "gr/quant_blocks.h"
#include "gr/tensor.h"

#define GR_PLANES_ALIGN 16

/* True when a cache of this type has planes. */
GR_FN bool gr_planes_are(uint32_t dtype)
{
    return dtype == GR_Q8_0 || dtype == GR_Q4_0 || dtype == GR_Q4_1 || dtype == GR_Q5_0 ||
           dtype == GR_Q5_1 || dtype == GR_IQ4_NL;
}

/* Bytes of a block's record: its block but for the codes. */
GR_FN int64_t gr_planes_record(uint32_t dtype)
{
    return dtype == GR_Q4_1 ? 4 : dtype == GR_Q5_0 ? 6 : dtype == GR_Q5_1 ? 8 : 2;
}

/* Bytes from a row's beginning to the codes of column `col`, a multiple of GR_QK. */
GR_FN int64_t gr_planes_codes(uint32_t dtype, int64_t col)
{
    return dtype == GR_Q8_0 ? col : col / 2;
}

/* The same to the record of column `col`, which begins with its step, in rows of n columns. */
GR_FN int64_t gr_planes_step(uint32_t dtype, int64_t n, int64_t col)
{
    return gr_planes_codes(dtype, n) + col / GR_QK * gr_planes_record(dtype);
}

/* Bytes from a row of n columns to the next. */
GR_FN int64_t gr_planes_row(uint32_t dtype, int64_t n)
{
    return (gr_planes_step(dtype, n, n) + GR_PLANES_ALIGN - 1) / GR_PLANES_ALIGN * GR_PLANES_ALIGN;
}

#endif
