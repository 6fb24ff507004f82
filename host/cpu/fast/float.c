/* The float engine: weights of f32, f16 and bf16, products and sums in f32.
 *
 * Few entries: a row of weights is read once for up to four of them. Many: PANEL rows of weights,
 * SLICE columns at a time, are converted and transposed into L1 or L2, then multiplied with all
 * entries by the product of gemm.c, whose sums stay in a buffer of [n, PANEL] until all columns are
 * done. */
#include <string.h>

#include "cpu/fast/matmul.h"

enum { PANEL = VL == 16 ? 64 : 16, SLICE = 256, ROWS_FEW = 32, FEW = 4 };

/* ---- few ---- */

GR_INLINE vf weights_at(uint32_t dtype, const char *row, int64_t i)
{
    if (dtype == GR_F16)
        return vf_half((const gr_half *)(const void *)row + i);
    if (dtype == GR_BF16)
        return vf_bf16((const gr_bf16 *)(const void *)row + i);
    return vf_load((const float *)(const void *)row + i);
}

/* sum[t] = row . x[t] for n entries, n a constant; two partial sums each. */
GR_INLINE void dot_row(uint32_t dtype, const char *row, const float *const *x, int64_t n_in, int n,
                       float *sum)
{
    enum { PARTS = 2, STEP = 8 * VL };
    vf acc[FEW][PARTS];
    GR_UNROLL
    for (int t = 0; t < n; t++)
        GR_UNROLL
    for (int p = 0; p < PARTS; p++)
        acc[t][p] = vf_set(0);
    int64_t i = 0;
    for (; i + STEP <= n_in; i += STEP)
        GR_UNROLL
    for (int p = 0; p < STEP / VL; p++) {
        vf w = weights_at(dtype, row, i + p * VL);
        GR_UNROLL
        for (int t = 0; t < n; t++)
            acc[t][p % PARTS] = vf_fma(w, vf_load(x[t] + i + p * VL), acc[t][p % PARTS]);
    }
    for (; i < n_in; i += VL) {
        float tail[VL];
        int64_t k = GR_MIN(VL, n_in - i);
        FN(load_row)(dtype, row + gr_row_bytes(dtype, (uint64_t)i), k, tail);
        for (int t = 0; t < n; t++)
            acc[t][0] = vf_fma(vf_load(tail), vf_load_n(x[t] + i, k), acc[t][0]);
    }
    for (int t = 0; t < n; t++)
        sum[t] = vf_sum(acc[t][0] + acc[t][1]);
}

GR_INLINE void dot_row_n(uint32_t dtype, const char *row, const float *const *x, int64_t n_in,
                         int n, float *sum)
{
    switch (n) {
    case 1:
        dot_row(dtype, row, x, n_in, 1, sum);
        break;
    case 2:
        dot_row(dtype, row, x, n_in, 2, sum);
        break;
    case 3:
        dot_row(dtype, row, x, n_in, 3, sum);
        break;
    default:
        dot_row(dtype, row, x, n_in, 4, sum);
    }
}

static void dot_any_row(uint32_t dtype, const char *row, const float *const *x, int64_t n_in, int n,
                        float *sum)
{
    if (dtype == GR_F16)
        dot_row_n(GR_F16, row, x, n_in, n, sum);
    else if (dtype == GR_BF16)
        dot_row_n(GR_BF16, row, x, n_in, n, sum);
    else
        dot_row_n(GR_F32, row, x, n_in, n, sum);
}

static void few(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi)
{
    for (int64_t i = 0; i < g->n; i += FEW) {
        float sum[FEW], rows[FEW][ROWS_FEW];
        const float *x[FEW];
        int n = (int)GR_MIN(FEW, g->n - i);
        for (int t = 0; t < n; t++)
            x[t] = mm_x(m, g, i + t);
        for (int64_t o = lo; o < hi; o++) {
            dot_any_row(m->w->dtype, gr_ten_row(m->w, g->expert, o), x, m->n_in, n, sum);
            for (int t = 0; t < n; t++)
                rows[t][o - lo] = sum[t];
        }
        for (int t = 0; t < n; t++)
            FN(mm_finish)(m, g, i + t, lo, hi - lo, rows[t]);
    }
}

/* ---- many ---- */

/* panel [n_col, PANEL] = columns [first, first + n_col) of rows [lo, hi), transposed; missing rows
 * are 0. */
static void pack(const struct mm *m, int64_t expert, int64_t lo, int64_t hi, int64_t first,
                 int64_t n_col, float *rows, float *panel)
{
    size_t at = gr_row_bytes(m->w->dtype, (uint64_t)first);
    for (int64_t o = 0; o < PANEL; o += VL) {
        int64_t n = GR_MAX(0, GR_MIN(VL, hi - lo - o));
        for (int64_t r = 0; r < n; r++) {
            const char *from = (const char *)gr_ten_row(m->w, expert, lo + o + r) + at;
            mm_ask(m, expert, lo + o + r, first, n_col, PANEL);
            FN(load_row)(m->w->dtype, from, n_col, rows + r * SLICE);
        }
        FN(transpose)(rows, SLICE, n, n_col, panel + o, PANEL);
    }
}

static void many(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi, void *local)
{
    float *panel = local, *rows = panel + SLICE * PANEL, *sum = rows + VL * SLICE;
    const float **x = (const float **)(void *)(sum + GR_PAD(g->n, 2) * PANEL);
    memset(sum, 0, (size_t)(g->n * PANEL) * sizeof *sum);
    for (int64_t k = 0; k < m->n_in; k += SLICE) {
        int64_t n_col = GR_MIN(SLICE, m->n_in - k);
        pack(m, g->expert, lo, hi, k, n_col, rows, panel);
        for (int64_t i = 0; i < g->n; i++)
            x[i] = mm_x(m, g, i) + k;
        FN(gemm)(x, g->n, panel, PANEL, n_col, PANEL, sum, PANEL);
    }
    for (int64_t i = 0; i < g->n; i++)
        FN(mm_finish)(m, g, i, lo, hi - lo, sum + i * PANEL);
}

static void multiply(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                     const void *shared, void *local)
{
    int64_t step = mm_few(m) ? ROWS_FEW : PANEL;
    (void)shared;
    for (int64_t o = lo; o < hi; o += step)
        if (mm_few(m))
            few(m, g, o, GR_MIN(o + step, hi));
        else
            many(m, g, o, GR_MIN(o + step, hi), local);
}

static int64_t chunk(const struct mm *m)
{
    (void)m;
    return 64;
}

static size_t local_bytes(const struct mm *m)
{
    int64_t floats = SLICE * PANEL + VL * SLICE + (m->n_entry + 1) * PANEL;
    return (size_t)floats * sizeof(float) + (size_t)m->n_entry * sizeof(float *);
}

const struct mm_engine FN(mm_float) = {
    .multiply = multiply, .chunk = chunk, .local_bytes = local_bytes};
