/* A tensor as an operation sees it: a batch of matrices whose rows hold whole storage blocks.
 *
 * Shapes are written outermost first: [batch, rows, cols]. Activations are [1, n_tok, n], weights
 * [1, n_out, n_in], stacked experts [n_expert, n_out, n_in], a layer's K cache [1, n_cell,
 * n_head_kv * d_head]. A view (some columns, some rows) is arithmetic on this struct and costs
 * nothing. While a plan is recorded, `data` is NULL and (value, offset) name its place; the
 * memory plan fills `data` in. An absent optional operand is all zero (rows == 0). */
#ifndef GR_TENSOR_H
#define GR_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

/* A function for the host and, under a CUDA compiler, for the device too. */
#ifdef __CUDACC__
#define GR_FN static __host__ __device__ __forceinline__
#else
#define GR_FN static inline
#endif

struct gr_ten {
    void *data; /* memory of the device that runs the node; owned by model, cache, step block or
                   plan arena */
    int64_t batch, rows, cols;
    int64_t row_bytes; /* from one row to the next; a batch step is rows * row_bytes */
    int64_t offset;    /* of this view in its value, bytes */
    uint32_t value;    /* index in the plan's value table, 0 = none */
    uint32_t dtype;    /* enum gr_dtype */
    uint32_t packed;   /* 1: a matrix in a GPU's layout (gr/pack.h): data is the tile of 16 rows
                          that holds the first row, offset the number of rows before it in the tile,
                          row_bytes 0 */
    uint16_t planes;   /* 1: rows of a cache of quants (gr/planes.h) */
    uint16_t home;     /* 1 + the device of a weight that is not with its layer; 0: it is */
};

GR_FN bool gr_ten_is(const struct gr_ten *t)
{
    return t->rows != 0;
}

/* First byte of row r of matrix m. */
GR_FN void *gr_ten_row(const struct gr_ten *t, int64_t m, int64_t r)
{
    return (char *)t->data + (m * t->rows + r) * t->row_bytes;
}

#endif
