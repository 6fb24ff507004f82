/* Conversion of rows in planes (gr/planes.h) to and from blocks and f32. `dtype` is a type that has
 * planes, `n` the columns of a row; values equal those of the blocks bit for bit. */
#ifndef GR_QUANT_PLANES_H
#define GR_QUANT_PLANES_H

#include "gr/planes.h"

/* Convert between a row in planes and its gr_row_bytes(dtype, n) bytes of blocks. */
void gr_planes_to_blocks(uint32_t dtype, int64_t n, const void *row, void *blocks);
void gr_planes_from_blocks(uint32_t dtype, int64_t n, const void *blocks, void *row);

/* Converts columns [first, first + count), whole blocks, to f32. */
void gr_planes_load(uint32_t dtype, int64_t n, const void *row, int64_t first, int64_t count,
                    float *dst);
/* Converts all columns from f32, rounding as the type's quantiser does; IQ4_NL by a faster rule. */
void gr_planes_store(uint32_t dtype, int64_t n, const float *src, void *row);

#endif
