/* Storage types to f32 and back: one codec for each type that gr/quant.def marks with codec 1.
 *
 * Dequantisation is exact: the same f32 operations in the same order as the format's reference, so
 * results are equal bit for bit on every machine (only the payload of a NaN is free). Rows and
 * tensors are runs of whole blocks, so any number of rows converts in one call. Everything here is
 * a pure function of its arguments, for any thread.
 *
 * Quantisation makes sum w (x - x')^2 small, w being the importance. Without importance the types
 * of 32 elements follow their format's own rule, one pass and what caches and activations use,
 * byte for byte as the format's reference does; the K types then take w = 1. Relative error
 * sqrt(mean (x - x')^2 / mean x^2) on normal data, as tests/quant asserts it:
 *
 *     type   bits   no importance   importance all 1
 *     Q8_0    8.5          0.0053             0.0049
 *     Q5_1    6            0.0376             0.0332
 *     Q5_0    5.5          0.0422             0.0395
 *     Q4_1    5            0.0779             0.0692
 *     Q4_0    4.5          0.0853             0.0802
 *     Q6_K    6.5625       0.0169             0.0169
 *     Q5_K    5.5          0.0342             0.0342
 *     Q4_K    4.5          0.0696             0.0696
 *     Q3_K    3.4375       0.1422             0.1422
 *     Q2_K    2.625        0.2586             0.2586
 *
 * Block types turn NaN into 0 and cut what is too large, so that every block is finite; whoever
 * must know checks the input. F32, F16 and BF16 keep NaN and infinity. */
#ifndef GR_QUANT_QUANT_H
#define GR_QUANT_QUANT_H

#include <stddef.h>
#include <stdint.h>

/* n elements (a multiple of the type's block) from `src`, gr_row_bytes(type, n) bytes aligned to 2
 * (F32: 4). */
typedef void gr_dequantize_fn(const void *src, float *dst, size_t n);

/* The reverse, dst aligned as src is above. `importance` is NULL or a weight for each element,
 * finite and not negative. */
typedef void gr_quantize_fn(const float *src, void *dst, size_t n, const float *importance);

struct gr_quant {
    gr_dequantize_fn *dequantize;
    gr_quantize_fn *quantize;
};

/* The codec of a storage type (enum gr_dtype), or NULL when the type is unknown or known by id and
 * size only. */
const struct gr_quant *gr_quant_find(uint32_t dtype);

/* The functions behind the table: gr_dequantize_Q4_K, gr_quantize_Q4_K and so on. */
#define GR_QUANT_DECLARE_0(NAME)
#define GR_QUANT_DECLARE_3(NAME) gr_dequantize_fn gr_dequantize_##NAME;
#define GR_QUANT_DECLARE_1(NAME)                                                                   \
    gr_dequantize_fn gr_dequantize_##NAME;                                                         \
    gr_quantize_fn gr_quantize_##NAME;
#define QUANT(NAME, name, id, n, bytes, codec) GR_QUANT_DECLARE_##codec(NAME)
#include "gr/quant.def"
#undef QUANT

#endif
