/* Grids of the IQ types, one byte per element, and their signs. */
#ifndef GR_QUANT_GRIDS_TABLE_H
#define GR_QUANT_GRIDS_TABLE_H

#include "gr/quant_grids.h"

extern const uint64_t gr_grid_iq1[GR_GRID_N_IQ1]; /* bytes are signed */
extern const uint64_t gr_grid_iq2_xxs[GR_GRID_N_IQ2_XXS];
extern const uint64_t gr_grid_iq2_xs[GR_GRID_N_IQ2_XS];
extern const uint64_t gr_grid_iq2_s[GR_GRID_N_IQ2_S];
extern const uint32_t gr_grid_iq3_xxs[GR_GRID_N_IQ3_XXS];
extern const uint32_t gr_grid_iq3_s[GR_GRID_N_IQ3_S];

/* Expands 7 stored bits to 8 sign bits, an even number of which is set. */
static inline uint8_t gr_grid_signs(unsigned stored)
{
    unsigned odd = stored ^ stored >> 4;
    odd ^= odd >> 2;
    return (uint8_t)(stored | ((odd ^ odd >> 1) & 1) << 7);
}

/* dst[i] = scale * byte i of point, negated where bit i of signs is set. */
static inline void gr_grid_expand(float *dst, int n, float scale, uint64_t point, unsigned signs)
{
    for (int i = 0; i < n; i++) {
        float x = scale * (float)(point >> 8 * i & 255);
        dst[i] = signs >> i & 1 ? -x : x;
    }
}

#endif
