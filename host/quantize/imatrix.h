/* Importance matrix: for every column of a weight matrix the sum of squares of the activations that
 * it was multiplied with, and the number of activation rows; for stacked experts, per expert. The
 * public functions are in gpurun.h.
 *
 * Files are llama.cpp's: GGUF with tensors NAME.in_sum2 [n_matrix, n_in] and NAME.counts [n_matrix,
 * 1] in f32, keys imatrix.datasets, imatrix.chunk_count and imatrix.chunk_size. The older binary
 * format is read too: i32 number of entries; for each a name (i32 length), i32 calls, i32 number of
 * values and as many f32, means times calls; then, optionally, i32 chunks and the name of the
 * dataset. */
#ifndef GR_QUANTIZE_IMATRIX_H
#define GR_QUANTIZE_IMATRIX_H

#include "gguf/gguf.h"
#include "gpurun.h"

/* Adds the rows x [n_row, n_in], `stride` floats apart, to matrix i of n_matrix of the tensor
 * `name`. GR_E_INVALID when the tensor had another shape before; GR_E_CHECK when a sum is not
 * finite. */
int gr_imatrix_add(struct gr_imatrix *m, const char *name, int32_t i, int32_t n_matrix,
                   const float *x, int64_t n_row, int64_t n_in, int64_t stride);

/* *out receives the mean squares of a tensor, *n of them: n_in for each matrix (gr_free); NULL when
 * there is no such entry. An expert without rows has ones. 0 or GR_E_NOMEM_HOST. */
int gr_imatrix_means(const struct gr_imatrix *m, struct gr_str name, float **out, uint64_t *n);

bool gr_imatrix_has(const struct gr_imatrix *m, struct gr_str name);

/* Properties, for the metadata of a quantised file. */
uint64_t gr_imatrix_n_entry(const struct gr_imatrix *m);
uint32_t gr_imatrix_n_chunk(const struct gr_imatrix *m);
const char *gr_imatrix_dataset(const struct gr_imatrix *m); /* the first one, or NULL */

#endif
