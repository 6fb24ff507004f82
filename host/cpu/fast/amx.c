/* The AMX level: products of many entries by tiles (tiles.h). Everything else is shared with the
 * AVX-512 level.
 *
 * int8: A is a group's columns of a tile of entries, B those of a panel, both in place (int8.h); A
 * is multiplied by two panels at a time. The integer sums go through memory (L1) to be converted,
 * scaled and added to f32 sums in registers, which takes longer than the products: 12 x 16 sums of
 * a group take 36 instructions of two vector units (48 with minima) and about as many loads of 64
 * bytes, two a cycle, beside 12 to 16 cycles of one tile product. Two groups at a time, so that
 * products run while sums are scaled.
 *
 * bf16: sums stay in tiles for all columns of a panel, 2 x 2 of them over two tiles of x and two of
 * the panel: four products of 16 cycles for 64 rows loaded, two a cycle.
 *
 * A thread configures its tiles at the start of a multiply and releases them at its end.
 *
 * Tested with a model of the instructions (tests/ops/tiles), not yet on a processor that has them:
 * cycle counts are predictions, from one TDPBSSD or TDPBF16PS per 16 cycles. */
#include "cpu/fast/bf16.h"
#include "cpu/fast/int8.h"
#include "cpu/fast/tiles.h"

_Static_assert(VL == 16 && INT8_PANELS == 2, "a row of a tile is a vector; two share one of x");

bool gr_amx_usable(void)
{
    return tiles_usable();
}

static void shape(struct tile_config *c, int tile, int64_t n_row, int64_t n_byte)
{
    c->n_row[tile] = (uint8_t)n_row, c->n_byte[tile] = (uint16_t)n_byte;
}

/* ---- int8 ---- */

/* Tile numbers: sums of an even and an odd group with two panels, columns of x of these groups,
 * rows of the panels. */
#define SUM_00 0
#define SUM_01 1
#define SUM_10 2
#define SUM_11 3
#define X_0 4
#define X_1 5
#define W_0 6
#define W_1 7

/* Tiles have the rows of the largest tile of entries; for smaller ones the excess rows hold the
 * next columns, or what follows the quants, and their sums are not used. */
static struct tile_config int8_config(int group)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 4; i++)
        shape(&c, SUM_00 + i, INT8_TILE, VL * 4);
    for (int i = 0; i < 2; i++) {
        shape(&c, X_0 + i, INT8_TILE, group);
        shape(&c, W_0 + i, group / 4, VL * 4);
    }
    return c;
}

/* Integer sums of a group. */
struct group_sums {
    int32_t of[2][INT8_TILE * VL]; /* panels */
};

#define PRODUCT(sum, columns, rows, from, to)                                                      \
    do {                                                                                           \
        tile_zero(sum);                                                                            \
        tile_load(rows, from, VL * 4);                                                             \
        tile_dot_s8(sum, columns, rows);                                                           \
        tile_store(sum, to, VL * 4);                                                               \
    } while (0)

/* Products of a group with both panels. */
#define GROUP(parity, columns, panels, at, sums)                                                   \
    do {                                                                                           \
        tile_load(X_##parity, columns, 32);                                                        \
        PRODUCT(SUM_##parity##0, X_##parity, W_0, (panels)[0].q + (at), (sums).of[0]);             \
        PRODUCT(SUM_##parity##1, X_##parity, W_1, (panels)[1].q + (at), (sums).of[1]);             \
    } while (0)

/* acc += factors of n entries times those of group g of both panels, [VL] each, times the integer
 * sums unless `dot` is NULL. */
GR_INLINE void add_group(const struct group_sums *dot, const float *const *factor, int64_t g,
                         const float *of_entry, int n, vf acc[2][INT8_TILE])
{
    vf f[2];
    GR_UNROLL
    for (int i = 0; i < 2; i++)
        f[i] = vf_load(factor[i] + g * VL);
    GR_UNROLL
    for (int t = 0; t < n; t++) {
        vf x = vf_set(of_entry[t]);
        GR_UNROLL
        for (int i = 0; i < 2; i++)
            if (dot)
                acc[i][t] = vf_fma(vf_of_int(vi_load(dot->of[i] + t * VL)), f[i] * x, acc[i][t]);
            else
                acc[i][t] = vf_fma(f[i], x, acc[i][t]);
    }
}

/* sum += the products of a tile of n entries with panels `first` and first + 1 of a block. Columns
 * are padded with zeros to whole pairs of groups. */
GR_INLINE void tile_of(const struct int8_shape *s, const struct int8_block *b, int64_t first,
                       const char *x, int n, int group, bool min, float *sum)
{
    const struct int8_many e = int8_many(s, (void *)(uintptr_t)x, n);
    const struct int8_panel p[2] = {int8_panel(b, first, 0, group),
                                    int8_panel(b, first + 1, 0, group)};
    const float *const d[2] = {p[0].d, p[1].d}, *const m[2] = {p[0].m, p[1].m};
    const struct int8_groups of = int8_groups(s, b, group);
    struct group_sums dot[2];
    vf acc[2][INT8_TILE];
    GR_UNROLL
    for (int t = 0; t < n; t++)
        GR_UNROLL
    for (int i = 0; i < 2; i++)
        acc[i][t] = vf_load(sum + t * INT8_ROWS + i * VL);
    for (int64_t g = of.lo, k = 0; g < of.hi; g += 2, k += 2) {
        const int8_t *q = e.q + g * group * n;
        const float *step = e.step + g * group / 32 * n, *sums = (const float *)e.extra + g * n;
        GROUP(0, q, p, k * group * VL, dot[0]);
        GROUP(1, q + (group == 32 ? 32 * n : 16), p, (k + 1) * group * VL, dot[1]);
        add_group(&dot[0], d, k, step, n, acc);
        add_group(&dot[1], d, k + 1, group == 32 ? step + n : step, n, acc);
        if (min) {
            add_group(NULL, m, k, sums, n, acc);
            add_group(NULL, m, k + 1, sums + n, n, acc);
        }
    }
    GR_UNROLL
    for (int t = 0; t < n; t++)
        GR_UNROLL
    for (int i = 0; i < 2; i++)
        vf_store(sum + t * INT8_ROWS + i * VL, acc[i][t]);
}

GR_INLINE void tile_n(const struct int8_shape *s, const struct int8_block *b, int64_t i,
                      const char *x, int n, float *sum)
{
    if (s->kind.group == 32 && !s->kind.min)
        tile_of(s, b, i, x, n, 32, false, sum);
    else if (s->kind.group == 32)
        tile_of(s, b, i, x, n, 32, true, sum);
    else if (!s->kind.min)
        tile_of(s, b, i, x, n, 16, false, sum);
    else
        tile_of(s, b, i, x, n, 16, true, sum);
}

#define TILES(TILE) TILE(2) TILE(4) TILE(6) TILE(8) TILE(10) TILE(12)
GR_INLINE void tile_any(const struct int8_shape *s, const struct int8_block *b, int64_t i,
                        const char *x, int64_t tile, float *sum)
{
    switch (tile) {
#define TILE(n)                                                                                    \
    case n:                                                                                        \
        tile_n(s, b, i, x, n, sum);                                                                \
        break;
        TILES(TILE)
#undef TILE
    default:
        break;
    }
}

static void int8_tile_pairs(const struct int8_shape *s, const struct int8_block *b, const char *x,
                            int64_t tile, struct int8_ahead *a, float *sum)
{
    (void)a;
    for (int64_t i = 0; i < b->n_panel; i += 2)
        tile_any(s, b, i, x, tile, sum + i * VL);
}

/* Quants are signed here: there is no offset to subtract from the sums. */
static void multiply_int8(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                          const void *shared, void *local)
{
    struct int8_shape s = int8_shape(m);
    if (int8_in_place(m)) {
        FN(mm_int8).multiply(m, g, lo, hi, shared, local);
        return;
    }
    s.kind.zero = 0;
    const struct tile_config c = int8_config(s.kind.group);
    tiles_begin(&c);
    FN(int8_multiply)(m, &s, g, lo, hi, shared, local, int8_tile_pairs);
    tiles_end();
}

/* ---- bf16 ---- */

enum { SIDE = 2 * 16 }; /* entries, and panel rows, per block of 2 x 2 tiles of sums */

#define ROWS_0 4
#define ROWS_1 5
#define COLS_0 6
#define COLS_1 7

/* Configuration for a block of n entries; for n <= 16 the second row of tiles is not used. */
static struct tile_config bf16_config(int64_t n)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 2; i++) {
        int64_t rows = GR_MIN(16, n - 16 * i);
        shape(&c, COLS_0 + i, 16, 64);
        if (rows <= 0)
            continue;
        shape(&c, ROWS_0 + i, rows, 64);
        shape(&c, SUM_00 + 2 * i, rows, 64);
        shape(&c, SUM_01 + 2 * i, rows, 64);
    }
    return c;
}

/* sum [SIDE, SIDE] += product of x and a panel, k pairs. */
GR_INLINE void block(const int32_t *x, int64_t ld, const int32_t *panel, int64_t k, float *sum,
                     bool both)
{
    const int64_t row = BF16_PANEL * 4;
    float *below = sum + 16 * BF16_PANEL;
    tile_load(SUM_00, sum, row);
    tile_load(SUM_01, sum + 16, row);
    if (both) {
        tile_load(SUM_10, below, row);
        tile_load(SUM_11, below + 16, row);
    }
    for (int64_t p = 0; p < k; p += 16) {
        tile_load(COLS_0, panel + p * BF16_PANEL, row);
        tile_load(COLS_1, panel + p * BF16_PANEL + 16, row);
        tile_load(ROWS_0, x + p, ld * 4);
        tile_dot_bf16(SUM_00, ROWS_0, COLS_0);
        tile_dot_bf16(SUM_01, ROWS_0, COLS_1);
        if (both) {
            tile_load(ROWS_1, x + 16 * ld + p, ld * 4);
            tile_dot_bf16(SUM_10, ROWS_1, COLS_0);
            tile_dot_bf16(SUM_11, ROWS_1, COLS_1);
        }
    }
    tile_store(SUM_00, sum, row);
    tile_store(SUM_01, sum + 16, row);
    if (both) {
        tile_store(SUM_10, below, row);
        tile_store(SUM_11, below + 16, row);
    }
}

static void blocks(const int32_t *x, int64_t ld, int64_t n, const int32_t *panel, int64_t k,
                   float *sum)
{
    int64_t configured = 0;
    for (int64_t i = 0; i < n; i += SIDE) {
        int64_t rows = GR_MIN(SIDE, n - i);
        const struct tile_config c = bf16_config(rows);
        if (rows != configured)
            tiles_begin(&c);
        configured = rows;
        for (int64_t o = 0; o < BF16_PANEL; o += SIDE)
            if (rows > 16)
                block(x + i * ld, ld, panel + o, k, sum + i * BF16_PANEL + o, true);
            else
                block(x + i * ld, ld, panel + o, k, sum + i * BF16_PANEL + o, false);
    }
    tiles_end();
}

static void multiply_bf16(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                          const void *shared, void *local)
{
    FN(bf16_multiply)(m, g, lo, hi, shared, local, blocks);
}

/* ---- the level ---- */

static void run(const struct gr_node *node, const struct gr_cpu_work *w)
{
    struct mm_engine bf16 = FN(mm_bf16), int8 = FN(mm_int8);
    bf16.multiply = multiply_bf16, int8.multiply = multiply_int8;
    FN(mm_run)(node, w, &(struct mm_engines){&FN(mm_float), &bf16, &int8});
}

static const struct gr_cpu_impl product = {run, FN(mm_need), FN(mm_takes)};

/* NULL: the implementation of the AVX-512 level. */
extern const struct gr_cpu_impl *const gr_amx_table[GR_N_OP];
const struct gr_cpu_impl *const gr_amx_table[GR_N_OP] = {
    [GR_OP_MATMUL] = &product, [GR_OP_MATMUL_ID] = &product, [GR_OP_HEAD_MATMUL] = &product};
