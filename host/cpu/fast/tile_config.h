/* Shapes of a thread's tile registers (tiles.h). */
#ifndef GR_CPU_FAST_TILE_CONFIG_H
#define GR_CPU_FAST_TILE_CONFIG_H

#include <stdint.h>

/* What LDTILECFG reads (Intel SDM, volume 1, chapter 18). Tiles of no rows are not used. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t n_byte[16]; /* of a row */
    uint8_t n_row[16];
};

#endif
