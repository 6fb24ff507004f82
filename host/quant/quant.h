/* Storage types to f32 and back: one codec for each type that gr/quant.def marks with codec 1.
 *
 * Dequantisation is exact: the same f32 operations in the same order as the format's reference, so
 * results are equal bit for bit on every machine (only the payload of a NaN is free). Rows and
 * tensors are runs of whole blocks, so any number of rows converts in one call. Everything here is
 * a pure function of its arguments, for any thread. */
#ifndef GR_QUANT_QUANT_H
#define GR_QUANT_QUANT_H

#include <stddef.h>
#include <stdint.h>

/* n elements (a multiple of the type's block) from `src`, gr_row_bytes(type, n) bytes aligned to 2
 * (F32: 4). */
typedef void gr_dequantize_fn(const void *src, float *dst, size_t n);

struct gr_quant {
    gr_dequantize_fn *dequantize;
};

/* The codec of a storage type (enum gr_dtype), or NULL when the type is unknown or known by id and
 * size only. */
const struct gr_quant *gr_quant_find(uint32_t dtype);

/* The functions behind the table: gr_dequantize_Q4_K and so on. */
#define GR_QUANT_DECLARE_0(NAME)
#define GR_QUANT_DECLARE_1(NAME) gr_dequantize_fn gr_dequantize_##NAME;
#define QUANT(NAME, name, id, n, bytes, codec) GR_QUANT_DECLARE_##codec(NAME)
#include "gr/quant.def"
#undef QUANT

#endif
