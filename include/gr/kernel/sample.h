/* Arguments of the kernels of SAMPLE (kernels/sample.cu), and what one launch of them leaves for
 * the next one. */
#ifndef GR_KERNEL_SAMPLE_H
#define GR_KERNEL_SAMPLE_H

#include "gr/op.h"
#include "gr/sample.h"

enum {
    GR_SAMPLE_SLICE = 2048, /* entries of a row that a block reads */
    GR_SAMPLE_SLICES = GR_SAMPLE_VOCAB / GR_SAMPLE_SLICE,
    GR_SAMPLE_BINS = 2048, /* of a histogram, the first for the entries that rank first */
    GR_SAMPLE_FEW = 2048   /* entries that one block has room for */
};

/* In place of a rank: the logits that edits and mask leave are -inf, though not all were. */
#define GR_SAMPLE_LEFT_NONE ((uint64_t)1)

/* Results for a slice of a row. */
struct gr_sample_slice {
    uint64_t first; /* the largest rank above -inf; GR_SAMPLE_LEFT_NONE; 0: all logits are -inf; ~0:
                       one is not a number */
    uint64_t sum;   /* weights at the row's temperature of entries above the listed ones */
    uint32_t at, n; /* its run of the list */
};

/* Intermediate results for a row, in scratch memory. */
struct gr_sample_work {
    uint64_t weight[GR_SAMPLE_BINS]; /* sums of the weights of each bin's entries */
    uint32_t count[GR_SAMPLE_BINS];
    uint64_t list[GR_SAMPLE_FEW]; /* ranks of entries, a slice's run in the order of ids */
    uint32_t n_list, n_done;      /* entries of list; slices that are done with it */
    struct gr_sample_slice slice[GR_SAMPLE_SLICES];
};

struct gr_kernel_sample {
    struct gr_args_sample a;
    struct gr_sample_work *work; /* [rows of logits] */
    float *edited;               /* [rows of logits][stride] those that have edits or a mask */
    uint32_t n_slice, stride;    /* slices of a row; floats */
};

#endif
