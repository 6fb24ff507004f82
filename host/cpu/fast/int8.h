/* The int8 engine: activations quantised to s8 with a step for every 32 columns, and integer dot
 * products with the quants of weights.
 *
 * The converted x of an entry takes `stride` bytes of shared memory, columns padded with zeros to a
 * multiple of 256, in one of two forms:
 *
 * few:  q [cols] s8, in lane order where the type has one (lanes.h); step [cols / group] f32; then
 * `sum` [cols / group] f32: of types with minima step * sum of the group's q, else -zero * that
 * sum; of types whose factors are joined (lanes.h), both together in `step`, 16 of 256 columns.
 * many: a tile of T entries together, T as in int8_tile: q [cols / 32][T][32]; step [cols / 32][T];
 * then -zero * sum of q as i32, or step * sum of q as f32 [cols / group][T]. */
#ifndef GR_CPU_FAST_INT8_H
#define GR_CPU_FAST_INT8_H

#include "cpu/fast/matmul.h"
#include "cpu/fast/panel.h"

/* Entries per tile: limited by the registers for their sums. INT8_SIZES expands to SIZE(n) for
 * every size of a tile. */
enum { INT8_TILE = VL == 16 ? 12 : 4, INT8_PAD = 2 };
#ifdef GR_LEVEL_avx512
#define INT8_SIZES(SIZE) SIZE(2) SIZE(4) SIZE(6) SIZE(8) SIZE(10) SIZE(12)
#else
#define INT8_SIZES(SIZE) SIZE(2) SIZE(4)
#endif

/* Entries that are dotted with a row together at most. */
enum { INT8_FEW = 7 };

/* Returns from how many entries for each group on panels are quicker than dot products with rows in
 * place. With 512 bits, where rows in place have lane orders, that depends on what a panel costs:
 * little with rows as lanes (panel.h), but for bytes, of which there are more to move. Measured. */
GR_INLINE int64_t int8_panels_from(uint32_t dtype)
{
    if (VL < 16)
        return 4;
    return !panel_type(dtype) ? 8 : dtype == GR_Q8_0 ? 6 : 4;
}

static inline bool int8_in_place(const struct mm *m)
{
    return m->each < int8_panels_from(m->w->dtype);
}

/* Rows of weights per work item. */
enum { INT8_ROWS = 64 };

struct int8_shape {
    int64_t n_in, cols; /* columns of a row; padded to a multiple of 256 */
    int64_t stride;     /* bytes per entry */
    size_t row, unit;   /* bytes of a row of weights, and of 256 columns */
    uint32_t dtype;     /* of the weights */
    struct unit_kind kind;
    bool one; /* entry per group on average (mm.each): each is dotted by itself */
};

static inline struct int8_shape int8_shape(const struct mm *m)
{
    int64_t cols = GR_PAD(m->n_in, 256);
    return (struct int8_shape){m->n_in,
                               cols,
                               cols * 3 / 2,
                               gr_row_bytes(m->w->dtype, (uint64_t)m->n_in),
                               gr_row_bytes(m->w->dtype, 256),
                               m->w->dtype,
                               unit_kind(m->w->dtype),
                               m->each == 1};
}

/* Returns the size of the tile that begins with entry i of n: INT8_TILE, or the remainder rounded
 * up to INT8_PAD. */
static inline int64_t int8_tile(int64_t i, int64_t n)
{
    return GR_MIN(INT8_TILE, GR_PAD(n - i, INT8_PAD));
}

struct int8_few {
    const int8_t *q;
    const float *step, *sum;
};

static inline struct int8_few int8_few(const struct int8_shape *s, void *x)
{
    char *p = (char *)x + s->cols;
    return (struct int8_few){x, (float *)(void *)p, (float *)(void *)(p + s->cols / 4)};
}

struct int8_many {
    const int8_t *q;
    const float *step;
    const void *extra; /* the sums */
};

static inline struct int8_many int8_many(const struct int8_shape *s, void *x, int64_t tile)
{
    char *p = (char *)x + s->cols * tile;
    return (struct int8_many){x, (float *)(void *)p, p + s->cols / 8 * tile};
}

/* Quantises the n columns of x: q [cols] s8, step [cols / 32], sum [cols / 16] of q over 16
 * columns. */
void FN(int8_quantize)(const float *x, int64_t n, int64_t cols, int8_t *q, float *step,
                       int32_t *sum);

/* sum[t * ld + o - lo] = x[t] . row o for rows [lo, hi) of one matrix and n <= INT8_FEW entries in
 * the form `few`. */
void FN(int8_dot)(const struct int8_shape *s, const char *w, int64_t row_bytes, int64_t lo,
                  int64_t hi, const char *x, int64_t n, float *sum, int64_t ld);

/* Units [u, u + n_unit) of n_panel * VL rows of weights, unpacked to panels of VL rows: q [n_panel]
 * [n_unit * 64][VL][4] with offset s->kind.zero, the type's own or 0 (then q is s8); d and m
 * [n_panel][n_unit * 256 / group][VL]. */
struct int8_block {
    int64_t n_panel, u, n_unit;
    uint8_t *q;
    float *d, *m;
};

/* Groups [lo, hi) of a block: fewer than its columns may be left. */
struct int8_groups {
    int64_t lo, hi;
};

GR_INLINE struct int8_groups int8_groups(const struct int8_shape *s, const struct int8_block *b,
                                         int group)
{
    return (struct int8_groups){b->u * 256 / group,
                                GR_MIN((b->u + b->n_unit) * 256, s->n_in) / group};
}

struct int8_panel {
    uint8_t *q;
    float *d, *m;
};

/* Returns panel i of a block, from its unit u on. */
GR_INLINE struct int8_panel int8_panel(const struct int8_block *b, int64_t i, int64_t u, int group)
{
    const int64_t at = (i * b->n_unit + u) * VL, factors = at * (256 / group);
    return (struct int8_panel){b->q + at * 256, b->d + factors, b->m + factors};
}

/* Unpacks unit u of n_row rows, the first of which is at w; missing rows and columns are 0. */
void FN(int8_pack)(const struct int8_shape *s, const char *w, int64_t row_bytes, int64_t n_row,
                   int64_t u, const struct int8_panel *p);

/* Weights that will be needed, asked for `step` bytes at a time between other work: processors have
 * few requests to memory under way, and wait with one more. */
struct int8_ahead {
    const char *p, *end;
    int64_t step;
};

GR_INLINE void int8_ask(struct int8_ahead *a)
{
    if (a->p >= a->end)
        return;
    const char *end = a->p + GR_MIN(a->step, a->end - a->p);
    for (; a->p < end; a->p += 64)
        _mm_prefetch(a->p, _MM_HINT_T1);
}

/* sum [tile, INT8_ROWS] += the products of a tile's entries with a block, VL columns for each
 * panel; may ask for weights between groups. */
typedef void int8_tile_fn(const struct int8_shape *s, const struct int8_block *b, const char *x,
                          int64_t tile, struct int8_ahead *a, float *sum);
int8_tile_fn FN(int8_tile);

/* The engine's `multiply`, with products of tiles and panels computed by `tile`. */
void FN(int8_multiply)(const struct mm *m, const struct int8_shape *s, const struct mm_group *g,
                       int64_t lo, int64_t hi, const void *shared, void *local, int8_tile_fn *tile);

#endif
