/* Least-squares fits of the IQ1, IQ2 and IQ3 types, whose elements are, 8 or 4 at a time, points of
 * a grid. */
#ifndef GR_QUANT_FIT_GRID_H
#define GR_QUANT_FIT_GRID_H

#include <stddef.h>
#include <stdint.h>

#include "gr/quant_blocks.h"

/* What is stored of signs: nothing, as the points have them; one bit an element; 7 bits for 8
 * elements, of which an even number is negative. */
enum gr_grid_signs { GR_SIGNS_NONE, GR_SIGNS_FREE, GR_SIGNS_EVEN };

/* How a type is made. */
struct gr_grid_kind {
    const uint16_t *codes; /* levels of each point (gr/quant_grids.h), ascending */
    int n_codes;
    int dims;          /* elements of a point: 8 with 3 levels, or 4 with 8 levels */
    float value[2][8]; /* what levels are worth; twice where points may be shifted, up and down */
    int span;          /* points that share a shift, 0: none */
    enum gr_grid_signs signs;
    int group;   /* elements of a scale: 16 or 32 */
    int n_scale; /* scales are the odd multiples 1, 3 .. 2 n_scale - 1 .. */
    float unit;  /* .. of this times d */
};

/* A super-block. */
struct gr_grid_block {
    gr_half d;
    uint8_t scale[16];  /* 0 .. n_scale - 1, of each group */
    uint16_t index[64]; /* of each point */
    uint8_t shift[64];  /* of each point, 1 for down */
    uint8_t signs[32];  /* of 8 elements each */
};

/* Stores one as a type has it; dst is zeros. */
typedef void gr_grid_store(void *dst, const struct gr_grid_block *f);

/* Quantises n elements (whole super-blocks) into blocks of `bytes`, each with a small
 * sum w (x - x')^2; importance as in gr_quantize_fn. */
void gr_quantize_grid(const struct gr_grid_kind *kind, gr_grid_store *put, size_t bytes,
                      const float *src, void *dst, size_t n, const float *importance);

#endif
