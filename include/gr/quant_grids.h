/* The grids of the IQ types: their points of 8 or 4 elements, and the values of levels.
 *
 * gr/grid/NAME.inc lists the points in order of their index as GRID(code), the levels of a point
 * packed: 2 bits for each of 8 elements (IQ1, IQ2) or 4 bits for each of 4 (IQ3), the first lowest.
 * The file that includes it defines GRID as the entry of its table: the code itself, or one of the
 * expansions below, which make a byte for each element. */
#ifndef GR_QUANT_GRIDS_H
#define GR_QUANT_GRIDS_H

#include <stdint.h>

#define GR_GRID_N_IQ1 2048 /* iq1.inc, of IQ1_S and IQ1_M */
#define GR_GRID_N_IQ2_XXS 256
#define GR_GRID_N_IQ2_XS 512
#define GR_GRID_N_IQ2_S 1024
#define GR_GRID_N_IQ3_XXS 256
#define GR_GRID_N_IQ3_S 512

/* Values of levels. */
#define GR_GRID_IQ1(level) ((level)-1)                               /* -1 0 1 */
#define GR_GRID_IQ2(level) ((0x2b1908 >> (8 * (level))) & 255)       /* 8 25 43 */
#define GR_GRID_IQ3_XXS(level) ((level) == 7 ? 62 : 8 * (level) + 4) /* 4 12 20 .. 52 62 */
#define GR_GRID_IQ3_S(level) (2 * (level) + 1)                       /* 1 3 5 .. 15 */

/* A point as 8 (IQ1: signed) or 4 bytes of a little-endian word: value is one of the macros above.
 */
#define GR_GRID_BYTE(code, width, i, value)                                                        \
    ((uint64_t)(value(((code) >> ((width) * (i))) & ((1 << (width)) - 1)) & 255) << (8 * (i)))
#define GR_GRID_BYTES_4(code, width, i, value)                                                     \
    (GR_GRID_BYTE(code, width, i, value) | GR_GRID_BYTE(code, width, (i) + 1, value) |             \
     GR_GRID_BYTE(code, width, (i) + 2, value) | GR_GRID_BYTE(code, width, (i) + 3, value))
#define GR_GRID_8(code, value)                                                                     \
    (GR_GRID_BYTES_4(code, 2, 0, value) | GR_GRID_BYTES_4(code, 2, 4, value))
#define GR_GRID_4(code, value) ((uint32_t)GR_GRID_BYTES_4(code, 4, 0, value))

#endif
