/* The model of tile registers beside definitions of its own: products worked out element by element
 * from matrices, and numbers done by hand. And that the level which uses it is there. */
#define GR_TILES "ops/tiles/tiles.h"
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>

#include "cpu/cpu.h"
#include "cpu/fast/tiles.h"

/* Tiles 0 = c [m, n], 1 = a [m, k], 2 = b [k, n], in words. */
static struct tile_config config_of(int m, int n, int k)
{
    return (struct tile_config){
        .palette = 1,
        .n_row = {(uint8_t)m, (uint8_t)m, (uint8_t)k},
        .n_byte = {(uint16_t)(4 * n), (uint16_t)(4 * k), (uint16_t)(4 * n)}};
}

static void configure(int m, int n, int k)
{
    const struct tile_config c = config_of(m, n, k);
    tiles_begin(&c);
}

static uint32_t random_bits(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* On a machine with the vectors around them, the operations' cases beside this file ran on tiles.
 */
Test(tiles, level_is_there)
{
    cr_assert_eq(gr_cpu_has(GR_CPU_AMX), gr_cpu_has(GR_CPU_AVX512));
}

/* Only what the shape holds is read and written; the rest of a tile is 0. */
Test(tiles, loads_and_stores_shapes)
{
    uint8_t from[3][10], to[16][64], want[16][64];
    memset(from, 7, sizeof from);
    memset(to, 1, sizeof to), memset(want, 1, sizeof want);
    struct tile_config c = {.palette = 1, .n_row = {[5] = 3}, .n_byte = {[5] = 9}};
    tiles_begin(&c);
    tile_load(5, from, 10);
    tile_store(5, to, 64);
    for (int i = 0; i < 3; i++)
        memset(want[i], 7, 9);
    cr_assert_eq(memcmp(to, want, sizeof to), 0);
    tile_zero(5);
    tile_store(5, to, 64);
    for (int i = 0; i < 3; i++)
        memset(want[i], 0, 9);
    cr_assert_eq(memcmp(to, want, sizeof to), 0);
    tiles_end();
}

/* b_matrix [4 k, n] lies in words of four rows: b[r / 4][n][r % 4]. */
Test(tiles, products_of_bytes)
{
    static const int shape[][3] = {{16, 16, 16}, {12, 16, 8}, {12, 16, 4}, {1, 1, 1}, {5, 3, 7}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        int m = shape[i][0], n = shape[i][1], k = shape[i][2];
        int8_t a[16][64], matrix[64][16], b[16][16][4];
        int32_t c[16][16], got[16][16];
        for (int r = 0; r < 16; r++)
            for (int j = 0; j < 64; j++)
                a[r][j] = (int8_t)random_bits(), matrix[j][r] = (int8_t)random_bits();
        for (int j = 0; j < 64; j++)
            for (int r = 0; r < 16; r++)
                b[j / 4][r][j % 4] = matrix[j][r];
        a[0][0] = -128, matrix[0][0] = b[0][0][0] = -128;
        for (int r = 0; r < 16; r++)
            for (int j = 0; j < 16; j++)
                c[r][j] = (int32_t)random_bits() >> 4;
        memcpy(got, c, sizeof got);
        configure(m, n, k);
        tile_load(0, got, 64), tile_load(1, a, 64), tile_load(2, b, 64);
        tile_dot_s8(0, 1, 2);
        tile_store(0, got, 64);
        for (int r = 0; r < 16; r++)
            for (int j = 0; j < 16; j++) {
                int64_t want = c[r][j];
                for (int p = 0; r < m && j < n && p < 4 * k; p++)
                    want += a[r][p] * matrix[p][j];
                cr_assert_eq(got[r][j], want, "shape %zu, element %d %d", i, r, j);
            }
        tiles_end();
    }
}

/* Small integers: every sum is exact. */
Test(tiles, products_of_bf16)
{
    static const int shape[][3] = {{16, 16, 16}, {7, 16, 16}, {1, 1, 1}, {5, 3, 7}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        int m = shape[i][0], n = shape[i][1], k = shape[i][2];
        uint16_t a[16][32], b[16][16][2];
        float av[16][32], matrix[32][16], c[16][16], got[16][16];
        for (int r = 0; r < 16; r++)
            for (int j = 0; j < 32; j++) {
                av[r][j] = (float)(int)(random_bits() % 201) - 100;
                matrix[j][r] = (float)(int)(random_bits() % 201) - 100;
                a[r][j] = bf16_of(av[r][j]), b[j / 2][r][j % 2] = bf16_of(matrix[j][r]);
            }
        for (int r = 0; r < 16; r++)
            for (int j = 0; j < 16; j++)
                got[r][j] = c[r][j] = (float)(r - j);
        configure(m, n, k);
        tile_load(0, got, 64), tile_load(1, a, 64), tile_load(2, b, 64);
        tile_dot_bf16(0, 1, 2);
        tile_store(0, got, 64);
        for (int r = 0; r < 16; r++)
            for (int j = 0; j < 16; j++) {
                double want = (double)c[r][j];
                for (int p = 0; r < m && j < n && p < 2 * k; p++)
                    want += (double)av[r][p] * (double)matrix[p][j];
                cr_assert_eq((double)got[r][j], want, "shape %zu, element %d %d", i, r, j);
            }
        tiles_end();
    }
}

/* One element of k pairs. */
static float dot_bf16(float c, const float *a, const float *b, int k)
{
    uint16_t row[32], column[16][2];
    for (int i = 0; i < 2 * k; i++)
        row[i] = bf16_of(a[i]), column[i / 2][i % 2] = bf16_of(b[i]);
    configure(1, 1, k);
    tile_load(0, &c, 4), tile_load(1, row, 64), tile_load(2, column, 4);
    tile_dot_bf16(0, 1, 2);
    tile_store(0, &c, 4);
    tiles_end();
    return c;
}

/* First columns of pairs are added up apart from second ones, and c comes last; a sum is rounded to
 * the nearest, ties to even; a product with its sum is rounded once. Worked out by hand. */
Test(tiles, order_and_rounding_of_bf16)
{
    const float one[4] = {1, 1, 1, 1};
    /* each 2^-24 alone is lost in 1: together they are not, when they are added first */
    cr_assert_eq(dot_bf16(1, (float[]){0x1p-24f, 0x1p-24f}, one, 1), 1 + 0x1p-23f);
    cr_assert_eq(dot_bf16(1, (float[]){0x1p-24f, 0}, one, 1), 1);
    cr_assert_eq(dot_bf16(1 + 0x1p-23f, (float[]){0x1p-24f, 0}, one, 1), 1 + 0x1p-22f);
    /* 1 + 2^-24 is a tie that goes to 1, 2^-24 - 1 is exact; one after the other would give 0 */
    cr_assert_eq(dot_bf16(0, (float[]){1, 0x1p-24f, 0x1p-24f, -1}, one, 2), 0x1p-24f);
    cr_assert_eq(dot_bf16(0, (float[]){1, 0x1p-26f, 0, -1}, one, 2), 0);
    /* a product that would be subnormal counts in the sum */
    cr_assert_eq(dot_bf16(0, (float[]){0x1p-126f, 0, 0x1p-80f, 0}, (float[]){1, 0, 0x1p-60f, 0}, 2),
                 0x1p-126f + 0x1p-140f);
}

/* Subnormal numbers are 0 where they come in and where they would come out. */
Test(tiles, subnormals_of_bf16)
{
    const float small = 0x1p-126f; /* the smallest normal one */
    cr_assert_eq(dot_bf16(0, (float[]){small, 0}, (float[]){1, 0}, 1), small);
    cr_assert_eq(dot_bf16(0, (float[]){small / 2, 0}, (float[]){0x1p100f, 0}, 1), 0);
    cr_assert_eq(dot_bf16(0, (float[]){small, 0}, (float[]){0.5f, 0}, 1), 0);
    cr_assert_eq(dot_bf16(small / 2, (float[]){small, 0}, (float[]){1, 0}, 1), small);
    cr_assert_eq(dot_bf16(-small, (float[]){1.5f * small, 0}, (float[]){1, 0}, 1), 0);
    float minus = dot_bf16(0, (float[]){-small, 0}, (float[]){0.5f, 0}, 1);
    cr_assert(minus == 0);
    cr_assert(isnan(dot_bf16(0, (float[]){INFINITY, 0}, (float[]){0, 0}, 1)));
    cr_assert_eq(dot_bf16(1, (float[]){INFINITY, 0}, (float[]){1, 0}, 1), INFINITY);
}

/* ---- what a processor refuses ---- */

Test(tiles, refuses_use_without_configuration, .signal = SIGABRT)
{
    tile_zero(0);
}

Test(tiles, refuses_use_after_the_end, .signal = SIGABRT)
{
    configure(1, 1, 1);
    tiles_end();
    tile_zero(0);
}

Test(tiles, refuses_tiles_without_rows, .signal = SIGABRT)
{
    configure(1, 1, 1);
    tile_zero(3);
}

Test(tiles, refuses_17_rows, .signal = SIGABRT)
{
    configure(17, 1, 1);
}

Test(tiles, refuses_68_bytes, .signal = SIGABRT)
{
    configure(1, 17, 1);
}

Test(tiles, refuses_rows_without_bytes, .signal = SIGABRT)
{
    const struct tile_config c = {.palette = 1, .n_row = {1}};
    tiles_begin(&c);
}

Test(tiles, refuses_reserved_bytes, .signal = SIGABRT)
{
    struct tile_config c = config_of(1, 1, 1);
    c.reserved[13] = 1;
    tiles_begin(&c);
}

Test(tiles, refuses_unknown_palettes, .signal = SIGABRT)
{
    struct tile_config c = config_of(1, 1, 1);
    c.palette = 2;
    tiles_begin(&c);
}

Test(tiles, refuses_a_ninth_tile, .signal = SIGABRT)
{
    const struct tile_config c = {.palette = 1, .n_row = {[8] = 1}, .n_byte = {[8] = 4}};
    tiles_begin(&c);
}

Test(tiles, refuses_products_of_a_tile_with_itself, .signal = SIGABRT)
{
    configure(1, 1, 1);
    tile_dot_s8(0, 1, 1);
}

Test(tiles, refuses_other_rows_of_a, .signal = SIGABRT)
{
    struct tile_config c = config_of(2, 1, 1);
    c.n_row[1] = 1;
    tiles_begin(&c);
    tile_dot_s8(0, 1, 2);
}

Test(tiles, refuses_other_columns_of_b, .signal = SIGABRT)
{
    struct tile_config c = config_of(1, 2, 1);
    c.n_byte[2] = 4;
    tiles_begin(&c);
    tile_dot_bf16(0, 1, 2);
}

Test(tiles, refuses_other_depths, .signal = SIGABRT)
{
    struct tile_config c = config_of(1, 1, 2);
    c.n_row[2] = 1;
    tiles_begin(&c);
    tile_dot_s8(0, 1, 2);
}

Test(tiles, refuses_parts_of_words, .signal = SIGABRT)
{
    struct tile_config c = config_of(1, 1, 1);
    c.n_byte[0] = c.n_byte[2] = 3;
    tiles_begin(&c);
    tile_dot_s8(0, 1, 2);
}
