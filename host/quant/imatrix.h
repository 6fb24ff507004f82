/* Importances: for every column of a matrix the sum of squares of what it was multiplied with, and
 * how many rows went into it; of matrices of experts, for each expert. The functions for users are
 * in gpurun.h.
 *
 * Files are llama.cpp's: GGUF with tensors NAME.in_sum2 [n_matrix, n_in] and NAME.counts [n_matrix,
 * 1] in f32, keys imatrix.datasets, imatrix.chunk_count and imatrix.chunk_size. Its older form,
 * which is read too, is binary: i32 number of entries; each with a name (i32 length), i32 calls,
 * i32 number of values and as many f32, means times calls; then i32 chunks and a dataset's name,
 * which may be missing. */
#ifndef GR_QUANT_IMATRIX_H
#define GR_QUANT_IMATRIX_H

#include "gguf/gguf.h"
#include "gpurun.h"

/* Adds rows of x, [n_row] `stride` floats apart, each n_in long, to matrix i of n_matrix of the
 * tensor `name`. GR_E_INVALID when the tensor had another shape before. GR_E_CHECK: not all are
 * finite. */
int gr_imatrix_add(struct gr_imatrix *m, const char *name, int32_t i, int32_t n_matrix,
                   const float *x, int64_t n_row, int64_t n_in, int64_t stride);

/* Mean squares for all elements of a tensor's rows, *n of them: n_in for each matrix; NULL when
 * there is no such entry. An expert that saw nothing has ones. Free with gr_free. GR_E_NOMEM_HOST.
 */
int gr_imatrix_means(const struct gr_imatrix *m, struct gr_str name, float **out, uint64_t *n);

bool gr_imatrix_has(const struct gr_imatrix *m, struct gr_str name);

/* Facts for the file that is made with it. */
uint64_t gr_imatrix_n_entry(const struct gr_imatrix *m);
uint32_t gr_imatrix_n_chunk(const struct gr_imatrix *m);
const char *gr_imatrix_dataset(const struct gr_imatrix *m); /* the first one, or NULL */

#endif
