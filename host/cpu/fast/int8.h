/* The int8 engine: activations quantised to s8 with a step for every 32 columns, and integer dot
 * products with the quants of weights.
 *
 * The converted x of an entry takes `stride` bytes of shared memory, columns padded with zeros to a
 * multiple of 256, in one of two forms:
 *
 * few:  each by itself, as int8_few.c and int8_lanes.c lay it out.
 * many: a tile of T entries together, T as in int8_tile: q [cols / 32][T][32]; step [cols / 32][T];
 * then -zero * sum of q as i32, or step * sum of q as f32 [cols / group][T]. */
#ifndef GR_CPU_FAST_INT8_H
#define GR_CPU_FAST_INT8_H

#include "cpu/fast/matmul.h"
#include "cpu/fast/panel.h"

/* Entries per tile, and panels that are multiplied together. */
enum { INT8_TILE = VL == 16 ? 12 : 4, INT8_PAD = 2, INT8_PANELS = VL == 16 ? 2 : 1 };

/* Entries of a tile that are multiplied together: limited by the registers for their sums with all
 * these panels. */
enum { INT8_PART = VL == 16 ? 6 : 4 };

/* Entries that are dotted with rows in place together at most. */
enum { INT8_FEW = VL == 16 ? 16 : 7 };

/* Returns from how many entries for each group on panels are quicker than dot products with rows in
 * place. With 512 bits an entry costs less from a panel where groups have 32 columns, with minima
 * most; the panel costs more to unpack, most with bytes or without panel_unpack(). Measured. */
GR_INLINE int64_t int8_panels_from(uint32_t dtype)
{
    const struct unit_kind kind = unit_kind(dtype);
    if (VL < 16)
        return 4;
    if (kind.group == 16 || !panel_type(dtype) || dtype == GR_Q8_0)
        return INT8_FEW;
    return kind.min ? 6 : 10;
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
                               unit_kind(m->w->dtype)};
}

/* Returns the size of the tile that begins with entry i of n: INT8_TILE, or the remainder rounded
 * up to INT8_PAD. */
static inline int64_t int8_tile(int64_t i, int64_t n)
{
    return GR_MIN(INT8_TILE, GR_PAD(n - i, INT8_PAD));
}

/* Columns [col, col + cols) of a row of x quantised, whole units. */
struct int8_row {
    int8_t *q;    /* [cols] */
    float *step;  /* [cols / 32] */
    int32_t *sum; /* [cols / 16] of q */
    int64_t col, cols;
};

/* Returns the step of group g of them, and the sum of its quants. */
static inline float int8_step(const struct int8_shape *s, const struct int8_row *r, int64_t g)
{
    return r->step[g * s->kind.group / 32];
}

static inline int32_t int8_sum(const struct int8_shape *s, const struct int8_row *r, int64_t g)
{
    return s->kind.group == 16 ? r->sum[g] : r->sum[2 * g] + r->sum[2 * g + 1];
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

/* Stores columns of a row of x in the form `few`. */
void FN(int8_put)(const struct int8_shape *s, const struct int8_row *r, char *x);

/* sum[t * INT8_ROWS + o - lo] = x[t] . row o for rows [lo, hi) of a group's matrix and n <=
 * INT8_FEW entries in the form `few`. */
void FN(int8_dot)(const struct mm *m, const struct int8_shape *s, const struct mm_group *g,
                  int64_t lo, int64_t hi, const char *x, int64_t n, float *sum);

/* Units [u, u + n_unit) of n_panel * VL rows of weights, unpacked to panels of VL rows, a multiple
 * of INT8_PANELS: q [n_panel][n_unit * 64][VL][4] with offset s->kind.zero, the type's own or 0
 * (then q is s8); d and m [n_panel][n_unit * 256 / group][VL]. */
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

/* Weights that will be needed: `bytes` at p, asked for evenly between other work, `step` bytes
 * further each time. Processors have few requests to memory under way, and wait with one more. */
struct int8_ahead {
    const char *p;
    int64_t asked, due, bytes, step;
};

enum { INT8_AHEAD = 8192 }; /* bytes between what is asked for and what is used */

/* Returns n_row rows from `row` on, as far as they exist, in n_step steps. */
static inline struct int8_ahead int8_ahead(const struct mm *m, const struct mm_group *g,
                                           int64_t row, int64_t n_row, int64_t n_step)
{
    if (row >= m->n_out)
        return (struct int8_ahead){0};
    const int64_t bytes = GR_MIN(n_row, m->n_out - row) * m->w->row_bytes;
    return (struct int8_ahead){.p = gr_ten_row(m->w, g->expert, row),
                               .bytes = bytes,
                               .step = (bytes + n_step - 1) / n_step};
}

/* Returns the first row of the item that this thread probably takes after the one from row lo on.
 */
static inline int64_t int8_next(const struct mm *m, int64_t lo)
{
    return lo + m->n_thread * INT8_ROWS;
}

/* One line in eight is asked for 1 KiB early, too: processors then fetch lines between on their
 * own, where a page of memory ends as well. Measured with one to four entries: 3 to 6 % quicker. */
GR_INLINE void int8_ask(struct int8_ahead *a)
{
    a->due += a->step;
    for (const int64_t to = GR_MIN(a->due, a->bytes); a->asked < to; a->asked += 64) {
        _mm_prefetch(a->p + a->asked, _MM_HINT_T1);
        if (a->asked % 512 == 0)
            _mm_prefetch(a->p + a->asked + 1024, _MM_HINT_T1);
    }
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
