/* Conversion of storage types to f32 and back: a codec for each type that gr/quant.def marks with
 * one.
 *
 * Dequantisation is exact: the same f32 operations in the same order as the format's reference, so
 * results are equal bit for bit on every machine (only the payload of a NaN is free). Rows and
 * tensors are runs of whole blocks, so any number of rows converts in one call. Everything here is
 * a pure function of its arguments, for any thread.
 *
 * Quantisation makes sum w (x - x')^2 small, where w is the importance. Without importance the
 * types with one scale per block (except IQ4_NL), MXFP4 and NVFP4 follow their format's own rule in
 * one pass (as caches and activations do), equal to the format's reference byte for byte; all
 * others use w = 1. The table, which tests/host/quant asserts, gives the relative error sqrt(sum w
 * (x - x')^2 / sum w x^2) on normal data without importance and with all importances 1; then, with
 * varying importances, the error as a multiple of that of llama.cpp's quantisers, on normal data
 * and on a matrix of the default model:
 *
 *     type       bits  no importance   all 1   of llama.cpp's: normal  real
 *     Q8_0        8.5       0.0053          0.0049           0.85   0.86
 *     Q5_1          6       0.0376          0.0332           0.98   0.98
 *     Q5_0        5.5       0.0422          0.0395           0.97   0.98
 *     Q4_1          5       0.0779          0.0692           0.98   0.99
 *     Q4_0        4.5       0.0853          0.0802           0.97   0.98
 *     Q6_K     6.5625       0.0169          0.0169           0.96   0.97
 *     Q5_K        5.5       0.0342          0.0342           0.95   0.95
 *     Q4_K        4.5       0.0696          0.0696           0.98   0.98
 *     Q3_K     3.4375       0.1422          0.1422           0.98   0.99
 *     Q2_K      2.625       0.2586          0.2586           0.95   0.96
 *     Q8_1          9       0.0053          0.0049
 *     Q8_K      9.125       0.0068          0.0066
 *     IQ4_NL      4.5       0.0729          0.0729           0.95   0.96
 *     IQ4_XS     4.25       0.0735          0.0735           0.95   0.96
 *     IQ3_S    3.4375       0.1294          0.1294           0.87   0.88
 *     IQ3_XXS  3.0625       0.1775          0.1775           0.88   0.91
 *     IQ2_S    2.5625       0.2381          0.2381           0.89   0.89
 *     IQ2_XS   2.3125       0.2854          0.2854           0.87   0.88
 *     IQ2_XXS  2.0625       0.3270          0.3270           0.79   0.89
 *     IQ1_M      1.75       0.4102          0.4102           0.91   0.87
 *     IQ1_S    1.5625       0.4411          0.4411           0.91   0.88
 *     NVFP4       4.5       0.0951          0.0811           0.71   0.75
 *     MXFP4      4.25       0.1149          0.1114           0.97   0.79
 *     Q2_0       2.25       0.7154          0.3494           0.45   0.47
 *     TQ2_0    2.0625       0.8020          0.4306           0.53   0.63
 *     TQ1_0    1.6875       0.8020          0.4306           0.53   0.63
 *     Q1_0      1.125       0.5973          0.5973           0.99   0.86
 *
 * Block types turn NaN into 0 and clamp values that are too large, so that every block is finite;
 * callers that must detect them check the input. F32, F16 and BF16 keep NaN and infinity. */
#ifndef GR_QUANT_QUANT_H
#define GR_QUANT_QUANT_H

#include <stddef.h>
#include <stdint.h>

/* Converts n elements (a multiple of the type's block) from `src`, gr_row_bytes(type, n) bytes
 * aligned to 2 (F32: 4). */
typedef void gr_dequantize_fn(const void *src, float *dst, size_t n);

/* The reverse; dst is aligned as src above. `importance` is NULL or [n], finite and not
 * negative. */
typedef void gr_quantize_fn(const float *src, void *dst, size_t n, const float *importance);

struct gr_quant {
    gr_dequantize_fn *dequantize;
    gr_quantize_fn *quantize;
};

/* Returns the codec of a storage type (enum gr_dtype), or NULL when the type is unknown or only its
 * id and size are known. */
const struct gr_quant *gr_quant_find(uint32_t dtype);

/* The functions behind the table: gr_dequantize_Q4_K, gr_quantize_Q4_K and so on. */
#define GR_QUANT_DECLARE_0(NAME)
#define GR_QUANT_DECLARE_1(NAME)                                                                   \
    gr_dequantize_fn gr_dequantize_##NAME;                                                         \
    gr_quantize_fn gr_quantize_##NAME;
#define GR_QUANT_DECLARE_3(NAME) GR_QUANT_DECLARE_1(NAME)
#define QUANT(NAME, name, id, n, bytes, codec) GR_QUANT_DECLARE_##codec(NAME)
#include "gr/quant.def"
#undef QUANT

#endif
