/* Shapes of a thread's tile registers (tiles.h). */
#ifndef GR_CPU_FAST_TILE_CONFIG_H
#define GR_CPU_FAST_TILE_CONFIG_H

#include <stdint.h>

/* Operand of LDTILECFG (Intel SDM, volume 1, chapter 18). Tiles with no rows are unused. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t n_byte[16]; /* bytes per row */
    uint8_t n_row[16];
};

#endif
