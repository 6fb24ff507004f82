/* Common form of MATMUL, MATMUL_ID and HEAD_MATMUL: entries (a row of x, a row of y), grouped by
 * the weight matrix that multiplies them. An engine multiplies a group with some rows of its
 * matrix; which one depends on the weights' storage type:
 *
 * - float: f32, f16, bf16; f32 products and sums.
 * - bf16: bf16, where the processor multiplies it; x is rounded to bf16, f32 sums.
 * - int8: quantised types; x becomes s8 with a step for 32 columns; sums are exact integers within
 *   16 or 32 columns, then f32.
 *
 * Weights are never rounded: w = d q + m with the file's own integers q and scales d, m as f32.
 * Each engine has two methods: for few entries, dot products with rows of weights in place (bound
 * by memory); for many, VL or more rows are unpacked into a panel, once for all entries of the
 * group. The bits of an entry depend on the method, but neither on the other entries nor otherwise
 * on their number. */
#ifndef GR_CPU_FAST_MATMUL_H
#define GR_CPU_FAST_MATMUL_H

#include "cpu/fast/fast.h"

/* Products with f32 and f16 of fewer entries for each group use the first method. BF16 and int8
 * have limits of their own. */
enum { MM_MANY = 8 };

struct mm {
    const struct gr_ten *x, *w, *s, *b, *res, *y; /* s, b and res may be absent */
    const struct gr_ten *ids;                     /* NULL: one matrix for all */
    float scale;
    int64_t n_entry; /* rows of y */
    int64_t share;   /* consecutive entries that share a row of x */
    int64_t n_in, n_out;
    int64_t n_pass; /* HEAD_MATMUL: columns of a head that are copied, not multiplied */
    bool heads;     /* every entry is multiplied by every matrix, with separate columns for each */
    /* Entries of a group on average, by which the method is chosen: a group's own number depends on
     * which matrices the neighbours of a row use, and its bits must not. INT64_MAX with
     * gr_node.by_row: always panels. */
    int64_t each;
    int64_t n_thread; /* of the node; the next item of a thread is often so many further */
};

static inline bool mm_few(const struct mm *m)
{
    return m->each < MM_MANY;
}

/* Entries of one matrix, in the order of y. */
struct mm_group {
    int64_t expert, n;
    int64_t x_at, y_at;   /* first columns */
    int64_t at;           /* index of the first entry in the engine's converted x; a multiple of
                             4 */
    const int32_t *entry; /* [n]; NULL: 0 1 2 .. */
};

struct mm_engine {
    /* Converts `columns` columns of x from `col` on, as far as they exist, of a group's entries
     * [lo, hi) into shared memory; lo is a multiple of `grain`. NULL: x is used as it is. */
    void (*convert)(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                    int64_t col, void *shared, void *local);
    int64_t grain, columns; /* entries and columns converted together */
    /* Computes y of all entries of a group for rows [lo, hi) of the matrix; lo is a multiple of
     * chunk. */
    void (*multiply)(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                     const void *shared, void *local);
    int64_t (*chunk)(const struct mm *m); /* rows per work item */
    size_t (*shared_bytes)(const struct mm *m, int64_t n_place);
    size_t (*local_bytes)(const struct mm *m);
};

extern const struct mm_engine FN(mm_float), FN(mm_bf16), FN(mm_int8);
bool FN(mm_has_bf16)(void);

/* gr_cpu_impl functions of the products. The engines are the level's own, or ones that differ only
 * in `multiply`; bf16 is used where FN(mm_has_bf16)(). */
struct mm_engines {
    const struct mm_engine *floats, *bf16, *int8;
};
void FN(mm_run)(const struct gr_node *node, const struct gr_cpu_work *w,
                const struct mm_engines *engines);
struct gr_cpu_need FN(mm_need)(const struct gr_node *node);
bool FN(mm_takes)(const struct gr_node *node);

static inline int64_t mm_entry(const struct mm_group *g, int64_t i)
{
    return g->entry ? g->entry[i] : i;
}

static inline const float *mm_x(const struct mm *m, const struct mm_group *g, int64_t i)
{
    return gr_cpu_f32(m->x, mm_entry(g, i) / m->share) + g->x_at;
}

/* Asks for the weights that follow columns [first, first + n_col) of a row when rows are read a
 * slice at a time, n_row together: the next slice, or the first one n_row rows further. Processors
 * do not see such patterns by themselves. */
GR_INLINE void mm_ask(const struct mm *m, int64_t expert, int64_t row, int64_t first, int64_t n_col,
                      int64_t n_row)
{
    bool last = first + n_col >= m->n_in;
    int64_t next = last ? row + n_row : row;
    size_t at = last ? 0 : gr_row_bytes(m->w->dtype, (uint64_t)(first + n_col));
    const char *p = next < m->w->rows ? (const char *)gr_ten_row(m->w, expert, next) + at : NULL;
    size_t n = gr_row_bytes(m->w->dtype, (uint64_t)n_col);
    for (size_t line = 0; p && line < n; line += 64)
        _mm_prefetch(p + line, _MM_HINT_T1);
}

/* y = sum * scale + b + res for columns [lo, lo + n) of entry i of a group. */
void FN(mm_finish)(const struct mm *m, const struct mm_group *g, int64_t i, int64_t lo, int64_t n,
                   const float *sum);

#endif
