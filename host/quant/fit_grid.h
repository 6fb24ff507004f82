/* Least-squares fits for the IQ1, IQ2 and IQ3 types, whose groups of 8 or 4 elements are points of
 * a grid. */
#ifndef GR_QUANT_FIT_GRID_H
#define GR_QUANT_FIT_GRID_H

#include <stddef.h>
#include <stdint.h>

#include "gr/quant_blocks.h"

/* Storage of signs: none (the points are signed); one bit per element; 7 bits for 8 elements, an
 * even number of which is negative. */
enum gr_grid_signs { GR_SIGNS_NONE, GR_SIGNS_FREE, GR_SIGNS_EVEN };

/* Parameters of a type. */
struct gr_grid_kind {
    const uint16_t *codes; /* levels of each point (gr/quant_grids.h), ascending */
    int n_codes;
    int dims;          /* elements of a point: 8 with 3 levels, or 4 with 8 levels */
    float value[2][8]; /* value of each level; [1] where points may be shifted: [0] up, [1] down */
    int span;          /* points that share a shift; 0: no shifts */
    enum gr_grid_signs signs;
    int group;   /* elements per scale: 16 or 32 */
    int n_scale; /* scales are the odd multiples 1, 3 .. 2 n_scale - 1 .. */
    float unit;  /* .. of this times d */
};

/* A super-block. */
struct gr_grid_block {
    gr_half d;
    uint8_t scale[16];  /* 0 .. n_scale - 1, of each group */
    uint16_t index[64]; /* of each point */
    uint8_t shift[64];  /* of each point; 1: down */
    uint8_t signs[32];  /* bits of 8 elements each */
};

/* Stores a super-block in a type's format; dst is zeroed. */
typedef void gr_grid_store(void *dst, const struct gr_grid_block *f);

/* Quantises n elements (whole super-blocks) into blocks of `bytes` bytes, making sum w (x - x')^2
 * of each small; importance as in gr_quantize_fn. */
void gr_quantize_grid(const struct gr_grid_kind *kind, gr_grid_store *put, size_t bytes,
                      const float *src, void *dst, size_t n, const float *importance);

#endif
