/* The bf16 engine: bf16 weights, x rounded to bf16, pairs of columns multiplied by vdpbf16ps and
 * summed in f32.
 *
 * Both methods round x in the same way, so that results with few and many entries differ only by
 * the order of sums. Few: dot products with rows of weights in place. Many: PANEL rows, SLICE
 * columns at a time, whose pairs of columns are transposed into L1 or L2; blocks of MR entries by
 * NR registers of rows stay in registers. */
#include "cpu/fast/bf16.h"

#if defined(GR_LEVEL_avx512) && defined(__x86_64__)
#include <cpuid.h>
#include <string.h>

#define BF16 __attribute__((target("avx512bf16")))

bool FN(mm_has_bf16)(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & 1u << 5;
}

enum { PANEL = BF16_PANEL, SLICE = 512, ROWS_FEW = 64, FEW = 4, MR = 6, NR = PANEL / VL };

/* Returns the padded columns of a row of x in bf16: an odd number of vectors, so that neighbouring
 * rows map to different cache sets. */
static int64_t padded(const struct mm *m)
{
    return GR_PAD(m->n_in, 2 * VL) | 2 * VL;
}

static BF16 void round_row(const float *x, int64_t n, gr_bf16 *y)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf v = i + VL <= n ? vf_load(x + i) : vf_load_n(x + i, n - i);
        __m256bh h = _mm512_cvtneps_pbh(v);
        memcpy(y + i, &h, sizeof h);
    }
}

static void convert(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                    int64_t col, void *shared, void *local)
{
    int64_t ld = padded(m);
    (void)col, (void)local;
    for (int64_t i = lo; i < hi; i++) {
        gr_bf16 *y = (gr_bf16 *)shared + (g->at + i) * ld;
        if (m->n_in % (2 * VL))
            memset(y + m->n_in / (2 * VL) * (2 * VL), 0, 2 * VL * sizeof *y);
        round_row(mm_x(m, g, i), m->n_in, y);
    }
}

static const gr_bf16 *x_of(const struct mm *m, const struct mm_group *g, const void *shared,
                           int64_t i)
{
    return (const gr_bf16 *)shared + (g->at + i) * padded(m);
}

GR_INLINE BF16 vf pairs(vf acc, vi a, vi b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

/* ---- few ---- */

/* sum[t] = row . x[t] for n <= FEW entries, n a constant; several partial sums, to hide the latency
 * of additions. */
GR_INLINE BF16 void dot_row_n(const gr_bf16 *row, const gr_bf16 *const *x, int64_t n_in, int n,
                              float *sum)
{
    enum { PARTS = 2, STEP = 4 * 2 * VL };
    vf acc[FEW][PARTS];
    GR_UNROLL
    for (int t = 0; t < n; t++)
        GR_UNROLL
    for (int p = 0; p < PARTS; p++)
        acc[t][p] = vf_set(0);
    int64_t i = 0;
    for (; i + STEP <= n_in; i += STEP)
        GR_UNROLL
    for (int p = 0; p < STEP / (2 * VL); p++) {
        int64_t at = i + p * 2 * VL;
        vi w = vi_load(row + at);
        GR_UNROLL
        for (int t = 0; t < n; t++)
            acc[t][p % PARTS] = pairs(acc[t][p % PARTS], w, vi_load(x[t] + at));
    }
    for (; i < n_in; i += 2 * VL) {
        gr_bf16 tail[2 * VL] = {0};
        memcpy(tail, row + i, (size_t)GR_MIN(2 * VL, n_in - i) * sizeof *row);
        GR_UNROLL
        for (int t = 0; t < n; t++)
            acc[t][0] = pairs(acc[t][0], vi_load(tail), vi_load(x[t] + i));
    }
    GR_UNROLL
    for (int t = 0; t < n; t++)
        sum[t] = vf_sum(acc[t][0] + acc[t][1]);
}

static BF16 void dot_row(const gr_bf16 *row, const gr_bf16 *const *x, int64_t n_in, int n,
                         float *sum)
{
    switch (n) {
    case 1:
        dot_row_n(row, x, n_in, 1, sum);
        break;
    case 2:
        dot_row_n(row, x, n_in, 2, sum);
        break;
    case 3:
        dot_row_n(row, x, n_in, 3, sum);
        break;
    default:
        dot_row_n(row, x, n_in, FEW, sum);
    }
}

static void few(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                const void *shared)
{
    for (int64_t i = 0; i < g->n; i += FEW) {
        float sum[FEW], rows[FEW][ROWS_FEW];
        const gr_bf16 *x[FEW];
        int n = (int)GR_MIN(FEW, g->n - i);
        for (int t = 0; t < n; t++)
            x[t] = x_of(m, g, shared, i + t);
        for (int64_t o = lo; o < hi; o++) {
            dot_row(gr_ten_row(m->w, g->expert, o), x, m->n_in, n, sum);
            for (int t = 0; t < n; t++)
                rows[t][o - lo] = sum[t];
        }
        for (int t = 0; t < n; t++)
            FN(mm_finish)(m, g, i + t, lo, hi - lo, rows[t]);
    }
}

/* ---- many ---- */

/* C [mr, PANEL] += product of pairs of x and a panel of k pairs. */
GR_INLINE BF16 void block(const int32_t *x, int64_t ld, const int32_t *panel, int64_t k, float *c,
                          int mr)
{
    vf acc[MR][NR];
    GR_UNROLL
    for (int i = 0; i < mr; i++)
        GR_UNROLL
    for (int j = 0; j < NR; j++)
        acc[i][j] = vf_load(c + i * PANEL + j * VL);
    for (int64_t p = 0; p < k; p++, panel += PANEL) {
        vi w[NR];
        GR_UNROLL
        for (int j = 0; j < NR; j++)
            w[j] = vi_load(panel + j * VL);
        GR_UNROLL
        for (int i = 0; i < mr; i++) {
            vi v = vi_set(x[i * ld + p]);
            GR_UNROLL
            for (int j = 0; j < NR; j++)
                acc[i][j] = pairs(acc[i][j], w[j], v);
        }
    }
    GR_UNROLL
    for (int i = 0; i < mr; i++)
        GR_UNROLL
    for (int j = 0; j < NR; j++)
        vf_store(c + i * PANEL + j * VL, acc[i][j]);
}

/* The same for n rows of x, ld pairs apart. */
static BF16 void blocks(const int32_t *x, int64_t ld, int64_t n, const int32_t *panel, int64_t k,
                        float *c)
{
    int64_t i = 0;
    for (; i + MR <= n; i += MR)
        block(x + i * ld, ld, panel, k, c + i * PANEL, MR);
    for (; i < n; i++)
        block(x + i * ld, ld, panel, k, c + i * PANEL, 1);
}

/* panel = transposed pairs of columns [first, first + n_col) of rows [lo, hi); missing rows and
 * columns are 0. */
static void pack(const struct mm *m, int64_t expert, int64_t lo, int64_t hi, int64_t first,
                 int64_t n_col, gr_bf16 *rows, int32_t *panel)
{
    for (int64_t o = 0; o < PANEL; o += VL) {
        int64_t n = GR_MAX(0, GR_MIN(VL, hi - lo - o));
        for (int64_t r = 0; r < n; r++) {
            gr_bf16 *to = rows + r * SLICE;
            mm_ask(m, expert, lo + o + r, first, n_col, PANEL);
            memset(to + n_col / (2 * VL) * (2 * VL), 0, n_col % (2 * VL) ? 2 * VL * sizeof *to : 0);
            memcpy(to, (const gr_bf16 *)gr_ten_row(m->w, expert, lo + o + r) + first,
                   (size_t)n_col * sizeof *to);
        }
        FN(transpose)(rows, SLICE / 2, n, (n_col + 1) / 2, panel + o, PANEL);
    }
}

static void many(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                 const void *shared, void *local, bf16_blocks_fn *meet)
{
    int32_t *panel = local;
    gr_bf16 *rows = (gr_bf16 *)(panel + SLICE / 2 * PANEL);
    float *sum = (float *)(void *)(rows + VL * SLICE);
    const int32_t *x = (const int32_t *)(const void *)x_of(m, g, shared, 0);
    memset(sum, 0, (size_t)(g->n * PANEL) * sizeof *sum);
    for (int64_t k = 0; k < m->n_in; k += SLICE) {
        int64_t n_col = GR_MIN(SLICE, m->n_in - k);
        pack(m, g->expert, lo, hi, k, n_col, rows, panel);
        meet(x + k / 2, padded(m) / 2, g->n, panel, (n_col + 1) / 2, sum);
    }
    for (int64_t i = 0; i < g->n; i++)
        FN(mm_finish)(m, g, i, lo, hi - lo, sum + i * PANEL);
}

void FN(bf16_multiply)(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                       const void *shared, void *local, bf16_blocks_fn *meet)
{
    if (m->each <= 2 * FEW) /* two passes over rows in L2 take less than a panel */
        few(m, g, lo, hi, shared);
    else
        many(m, g, lo, hi, shared, local, meet);
}

static void multiply(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                     const void *shared, void *local)
{
    FN(bf16_multiply)(m, g, lo, hi, shared, local, blocks);
}

static int64_t chunk(const struct mm *m)
{
    (void)m;
    return PANEL;
}

static size_t shared_bytes(const struct mm *m, int64_t n_place)
{
    return (size_t)(n_place * padded(m)) * sizeof(gr_bf16);
}

static size_t local_bytes(const struct mm *m)
{
    size_t panel = SLICE / 2 * PANEL * sizeof(int32_t) + VL * SLICE * sizeof(gr_bf16);
    return panel + (size_t)m->n_entry * PANEL * sizeof(float);
}

const struct mm_engine FN(mm_bf16) = {.convert = convert,
                                      .grain = 4,
                                      .columns = INT64_MAX,
                                      .multiply = multiply,
                                      .chunk = chunk,
                                      .shared_bytes = shared_bytes,
                                      .local_bytes = local_bytes};

#else

bool FN(mm_has_bf16)(void)
{
    return false;
}

const struct mm_engine FN(mm_bf16) = {.convert = NULL}; /* never called */

#endif
