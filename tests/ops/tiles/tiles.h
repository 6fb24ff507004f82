/* Tile registers as plain C, for host/cpu/fast/tiles.h: what each instruction does and refuses by
 * Intel's SDM (volume 2, LDTILECFG to TILEZERO). What a processor would raise a fault for, and what
 * could make a result depend on something undefined, ends the process. */
#ifndef TESTS_OPS_TILES_TILES_H
#define TESTS_OPS_TILES_TILES_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/fast/tile_config.h"

enum { TILES = 8, TILE_ROWS = 16, TILE_BYTES = 64 };

static _Thread_local struct {
    struct tile_config config; /* palette 0: none */
    uint8_t tile[TILES][TILE_ROWS][TILE_BYTES];
} tiles;

#define TILES_FAULT_IF(condition)                                                                  \
    do {                                                                                           \
        if (condition) {                                                                           \
            fprintf(stderr, "%s: fault: %s\n", __func__, #condition);                              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline bool tiles_usable(void)
{
    return true;
}

static inline void tiles_end(void)
{
    memset(&tiles, 0, sizeof tiles);
}

static inline void tiles_begin(const struct tile_config *c)
{
    TILES_FAULT_IF(c->palette > 1 || c->start_row);
    for (int i = 0; i < 14; i++)
        TILES_FAULT_IF(c->reserved[i]);
    for (int i = 0; i < 16; i++) {
        TILES_FAULT_IF(!c->n_row[i] != !c->n_byte[i]);
        TILES_FAULT_IF(i >= TILES && c->n_row[i]);
        TILES_FAULT_IF(c->n_row[i] > TILE_ROWS || c->n_byte[i] > TILE_BYTES);
    }
    tiles_end();
    tiles.config = *c;
}

/* A tile of the configuration. */
static inline void tile_check(int t)
{
    TILES_FAULT_IF(!tiles.config.palette);
    TILES_FAULT_IF(t < 0 || t >= TILES || !tiles.config.n_row[t]);
}

static inline void tile_zero(int t)
{
    tile_check(t);
    memset(tiles.tile[t], 0, sizeof tiles.tile[t]);
}

static inline void tile_load(int t, const void *from, int64_t stride)
{
    tile_zero(t); /* elements outside the shape */
    for (int i = 0; i < tiles.config.n_row[t]; i++)
        memcpy(tiles.tile[t][i], (const char *)from + i * stride, tiles.config.n_byte[t]);
}

static inline void tile_store(int t, void *to, int64_t stride)
{
    tile_check(t);
    for (int i = 0; i < tiles.config.n_row[t]; i++)
        memcpy((char *)to + i * stride, tiles.tile[t][i], tiles.config.n_byte[t]);
}

/* Shapes of c [m, n] += a [m, k] b [k, n], in words of 32 bits. What a tile holds outside its shape
 * is 0 since its configuration. */
struct tile_shapes {
    int m, n, k;
};

static inline struct tile_shapes tile_shapes(int c, int a, int b)
{
    const struct tile_config *s = &tiles.config;
    tile_check(c), tile_check(a), tile_check(b);
    TILES_FAULT_IF(c == a || c == b || a == b);
    TILES_FAULT_IF(s->n_byte[c] % 4 || s->n_byte[a] % 4 || s->n_byte[b] % 4);
    TILES_FAULT_IF(s->n_row[c] != s->n_row[a] || s->n_byte[c] != s->n_byte[b]);
    TILES_FAULT_IF(s->n_byte[a] / 4 != s->n_row[b]);
    return (struct tile_shapes){s->n_row[c], s->n_byte[c] / 4, s->n_byte[a] / 4};
}

/* Sums wrap around. */
static inline void tile_dot_s8(int c, int a, int b)
{
    struct tile_shapes s = tile_shapes(c, a, b);
    for (int m = 0; m < s.m; m++) {
        uint32_t sum[TILE_BYTES / 4] = {0};
        memcpy(sum, tiles.tile[c][m], (size_t)s.n * 4);
        for (int k = 0; k < s.k; k++)
            for (int n = 0; n < s.n; n++)
                for (int i = 0; i < 4; i++)
                    sum[n] += (uint32_t)((int8_t)tiles.tile[a][m][4 * k + i] *
                                         (int8_t)tiles.tile[b][k][4 * n + i]);
        memcpy(tiles.tile[c][m], sum, (size_t)s.n * 4);
    }
}

/* 0 of the same sign for what is subnormal (DAZ and FTZ). */
static inline float tile_flushed(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (!(bits & 0x7f800000))
        bits &= 0x80000000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float tile_bf16(const uint8_t *p)
{
    float x;
    uint8_t bytes[4] = {0, 0, p[0], p[1]};
    memcpy(&x, bytes, sizeof x);
    return tile_flushed(x);
}

/* Products of first and of second columns are added up apart, rounded once a product, then these
 * two sums to each other, then to c. */
static inline void tile_dot_bf16(int c, int a, int b)
{
    struct tile_shapes s = tile_shapes(c, a, b);
    for (int m = 0; m < s.m; m++) {
        float part[TILE_BYTES / 4][2] = {{0}}, sum[TILE_BYTES / 4] = {0};
        memcpy(sum, tiles.tile[c][m], (size_t)s.n * 4);
        for (int k = 0; k < s.k; k++)
            for (int n = 0; n < s.n; n++)
                for (int i = 0; i < 2; i++)
                    part[n][i] = tile_flushed(
                        __builtin_fmaf(tile_bf16(&tiles.tile[a][m][4 * k + 2 * i]),
                                       tile_bf16(&tiles.tile[b][k][4 * n + 2 * i]), part[n][i]));
        for (int n = 0; n < s.n; n++) {
            float both = tile_flushed(part[n][0] + part[n][1]);
            sum[n] = tile_flushed(tile_flushed(sum[n]) + both);
        }
        memcpy(tiles.tile[c][m], sum, (size_t)s.n * 4);
    }
}

#endif
