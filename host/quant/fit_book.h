/* Least-squares fits for codebook types: each element is one of a few values times a scale. */
#ifndef GR_QUANT_FIT_BOOK_H
#define GR_QUANT_FIT_BOOK_H

#include <stdint.h>

#include "gr/quant_blocks.h"

struct gr_book {
    int n;
    float value[16]; /* ascending */
    float reach[2];  /* trial scales map the largest element to between reach[0] and reach[1] times
                        the outermost value */
};

/* q[i] = index of the value nearest to x[i] / scale (the lower one of a tie); with scale 0, of the
 * value nearest to 0. */
void gr_book_levels(const struct gr_book *b, const float *x, int n, float scale, uint8_t *q);

/* Returns sum w (x - scale * value)^2 with the nearest values; n is a multiple of 8. */
float gr_book_error(const struct gr_book *b, const float *x, const float *w, int n, float scale);

/* Returns a scale (of either sign) with a small error. */
float gr_fit_book(const struct gr_book *b, const float *x, const float *w, int n);

/* A super-block of 8 groups of 32: x = d * scale * value, scale in -32 .. 31. */
struct gr_book_block {
    gr_half d;
    int8_t scale[8];
    uint8_t q[GR_QK_K];
};
void gr_fit_books(const struct gr_book *b, const float *x, const float *w,
                  struct gr_book_block *out);

#endif
