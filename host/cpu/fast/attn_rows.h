/* Rows of K and V in a cache, read for attention: converted to f32, or multiplied in place. */
#ifndef GR_CPU_FAST_ATTN_ROWS_H
#define GR_CPU_FAST_ATTN_ROWS_H

#include "cpu/fast/rows.h"
#include "cpu/impl/impl.h"
#include "gr/planes.h"
#include "gr/tensor.h"

/* Items of the list, n from `list` on: columns from byte `at` of each row, steps of planes from
 * byte `step`, and the number of bytes of both. */
struct place {
    const int32_t *list;
    int64_t n, at, step, n_at, n_step;
};

/* d columns of a head in a cache, and columns of all heads of the item that are read later. */
struct part {
    const struct gr_ten *cache;
    int64_t d;
    struct place now, next;
};

/* The next line to ask for: of row `row`, at byte `at` of what is read of it. */
struct asked {
    int64_t n, row, at;
};

/* Asks for the lines of step `step` of n: evenly, in the order of memory. */
GR_INLINE void ask_at(const struct part *p, int64_t step, int64_t n, struct asked *a)
{
    const struct place *next = &p->next;
    int64_t n_line = next->n * ((next->n_at + next->n_step + 63) / 64);
    for (int64_t until = n_line * (step + 1) / n; a->n < until; a->n++) {
        const char *row = gr_ten_row(p->cache, 0, next->list[a->row]);
        int64_t step_at = next->step + a->at - next->n_at;
        _mm_prefetch(row + (a->at < next->n_at ? next->at + a->at : step_at), _MM_HINT_T1);
        a->at += 64;
        if (a->at >= next->n_at + next->n_step)
            a->at = 0, a->row++;
    }
}

/* Converts the rows to f32, padded with zero rows to a multiple of VL, and asks for later ones.
 * With `check`: false when a row is not finite. */
GR_INLINE bool load_rows_of(uint32_t dtype, const struct part *p, int64_t ld, bool check,
                            float *rows)
{
    const struct place *now = &p->now;
    vf bad = vf_set(0);
    struct asked asked = {0};
    for (int64_t c = 0; c < now->n; c++) {
        const char *src = gr_ten_row(p->cache, 0, now->list[c]);
        float *row = rows + c * ld;
        ask_at(p, c, now->n, &asked);
        row_to_f32(dtype, src + now->at, src + now->step, p->d, row);
        for (int64_t k = 0; check && k < p->d; k += VL)
            bad = vf_fma(vf_load(row + k), vf_set(0), bad); /* 0 times infinity or NaN is NaN */
    }
    for (int64_t c = now->n; c < GR_PAD(now->n, VL); c++)
        memset(rows + c * ld, 0, (size_t)ld * sizeof *rows);
    return !check || vf_sum(bad) == 0;
}

static bool load_rows(const struct part *p, int64_t ld, bool check, float *rows)
{
    switch (p->cache->dtype) {
    case GR_F16:
        return load_rows_of(GR_F16, p, ld, check, rows);
    case GR_BF16:
        return load_rows_of(GR_BF16, p, ld, check, rows);
    case GR_Q8_0:
        return load_rows_of(GR_Q8_0, p, ld, check, rows);
    case GR_Q4_0:
        return load_rows_of(GR_Q4_0, p, ld, check, rows);
    case GR_Q4_1:
        return load_rows_of(GR_Q4_1, p, ld, check, rows);
    case GR_Q5_0:
        return load_rows_of(GR_Q5_0, p, ld, check, rows);
    case GR_Q5_1:
        return load_rows_of(GR_Q5_1, p, ld, check, rows);
    case GR_IQ4_NL:
        return load_rows_of(GR_IQ4_NL, p, ld, check, rows);
    default:
        return load_rows_of(GR_F32, p, ld, check, rows);
    }
}

/* ---- few queries ---- */

/* For few queries a conversion to f32 in memory costs more than the products: rows of f16 are
 * multiplied as they are loaded. The sums are those of gemm.c, to the bit: a block of the output of
 * FEW_MR queries by FEW_NR vectors stays in registers, or the logits of VL cells. */
enum {
    FEW = 8, /* queries at most */
    FEW_MR = 4,
    FEW_NR = VL == 16 ? 4 : 2,
};

/* Returns whether few_logits and few_outputs take these columns of a cache. */
GR_INLINE bool few_take(const struct part *p, int64_t n_query)
{
    return p->cache->dtype == GR_F16 && p->d % VL == 0 && n_query <= FEW;
}

GR_INLINE const gr_half *few_row(const struct part *p, int64_t c)
{
    const char *row = gr_ten_row(p->cache, 0, p->now.list[c]);
    return (const gr_half *)(const void *)(row + p->now.at);
}

/* logits [n_query, ld] = queries times the keys of VL cells at a time, transposed in registers.
 * Logits of missing cells are those of the last one. */
GR_INLINE void few_logits_of(const struct part *p, const float *const *q, int n_query,
                             float *logits, int64_t ld)
{
    int64_t n_part = p->d / VL, n_step = (p->now.n + VL - 1) / VL * n_part, step = 0;
    struct asked asked = {0};
    for (int64_t c = 0; c < p->now.n; c += VL) {
        const gr_half *row[VL];
        vf sum[FEW];
        for (int i = 0; i < VL; i++)
            row[i] = few_row(p, GR_MIN(c + i, p->now.n - 1));
        GR_UNROLL
        for (int k = 0; k < n_query; k++)
            sum[k] = vf_set(0);
        for (int64_t j = 0; j < p->d; j += VL, step++) {
            vf x[VL];
            vi t[VL];
            GR_UNROLL
            for (int i = 0; i < VL; i++)
                x[i] = vf_half(row[i] + j);
            memcpy(t, x, sizeof t);
            vi_transpose(t);
            memcpy(x, t, sizeof x);
            GR_UNROLL
            for (int i = 0; i < VL; i++)
                GR_UNROLL
            for (int k = 0; k < n_query; k++)
                sum[k] = vf_fma(vf_set(q[k][j + i]), x[i], sum[k]);
            ask_at(p, step, n_step, &asked);
        }
        GR_UNROLL
        for (int k = 0; k < n_query; k++)
            vf_store(logits + k * ld + c, sum[k]);
    }
}

/* y [nq, ld] = acc + weights times the values, nr vectors of columns from `col` on. */
GR_INLINE void few_outputs_of(const struct part *p, const float *const *w, int64_t col, int nq,
                              int nr, const float *acc, float *y, int64_t ld, bool ask)
{
    struct asked asked = {0};
    vf sum[FEW_MR][FEW_NR];
    GR_UNROLL
    for (int k = 0; k < nq; k++)
        GR_UNROLL
    for (int j = 0; j < nr; j++)
        sum[k][j] = vf_load(acc + k * ld + col + j * VL);
    for (int64_t c = 0; c < p->now.n; c++) {
        const gr_half *row = few_row(p, c) + col;
        vf x[FEW_NR];
        GR_UNROLL
        for (int j = 0; j < nr; j++)
            x[j] = vf_half(row + j * VL);
        GR_UNROLL
        for (int k = 0; k < nq; k++) {
            vf f = vf_set(w[k][c]);
            GR_UNROLL
            for (int j = 0; j < nr; j++)
                sum[k][j] = vf_fma(f, x[j], sum[k][j]);
        }
        if (ask)
            ask_at(p, c, p->now.n, &asked);
    }
    GR_UNROLL
    for (int k = 0; k < nq; k++)
        GR_UNROLL
    for (int j = 0; j < nr; j++)
        vf_store(y + k * ld + col + j * VL, sum[k][j]);
}

typedef void few_logits_fn(const struct part *p, const float *const *q, float *logits, int64_t ld);
typedef void few_outputs_fn(const struct part *p, const float *const *w, int64_t col,
                            const float *acc, float *y, int64_t ld, bool ask);
#define LOGITS(n)                                                                                  \
    static void few_logits_##n(const struct part *p, const float *const *q, float *logits,         \
                               int64_t ld)                                                         \
    {                                                                                              \
        few_logits_of(p, q, n, logits, ld);                                                        \
    }
#define OUTPUTS(m, n)                                                                              \
    static void few_outputs_##m##_##n(const struct part *p, const float *const *w, int64_t col,    \
                                      const float *acc, float *y, int64_t ld, bool ask)            \
    {                                                                                              \
        few_outputs_of(p, w, col, m, n, acc, y, ld, ask);                                          \
    }
#define OUTPUTS_BY(n) OUTPUTS(1, n) OUTPUTS(2, n) OUTPUTS(3, n) OUTPUTS(4, n)
#define NAMES(n)                                                                                   \
    {                                                                                              \
        few_outputs_1_##n, few_outputs_2_##n, few_outputs_3_##n, few_outputs_4_##n                 \
    }
LOGITS(1)
LOGITS(2)
LOGITS(3)
LOGITS(4)
LOGITS(5)
LOGITS(6)
LOGITS(7)
LOGITS(8)
static few_logits_fn *const few_logits_by[FEW] = {few_logits_1, few_logits_2, few_logits_3,
                                                  few_logits_4, few_logits_5, few_logits_6,
                                                  few_logits_7, few_logits_8};
OUTPUTS_BY(1)
OUTPUTS_BY(2)
#ifdef GR_LEVEL_avx512
OUTPUTS_BY(3)
OUTPUTS_BY(4)
static few_outputs_fn *const few_outputs_by[FEW_NR][FEW_MR] = {NAMES(1), NAMES(2), NAMES(3),
                                                               NAMES(4)};
#else
static few_outputs_fn *const few_outputs_by[FEW_NR][FEW_MR] = {NAMES(1), NAMES(2)};
#endif
#undef LOGITS
#undef OUTPUTS
#undef OUTPUTS_BY
#undef NAMES

/* logits [n_query, ld] = queries times the keys. */
static void few_logits(const struct part *p, const float *const *q, int64_t n_query, float *logits,
                       int64_t ld)
{
    few_logits_by[n_query - 1](p, q, logits, ld);
}

/* acc [n_query, ld] += weights times the values. False when that is not finite, or a value is not:
 * acc is as it was then. y is scratch of its size. */
static bool few_outputs(const struct part *p, const float *const *w, int64_t n_query, float *acc,
                        float *y, int64_t ld)
{
    vf bad = vf_set(0);
    for (int64_t col = 0; col < p->d; col += FEW_NR * VL) {
        few_outputs_fn *const *by = few_outputs_by[GR_MIN(FEW_NR, (p->d - col) / VL) - 1];
        for (int64_t k = 0; k < n_query; k += FEW_MR)
            by[GR_MIN(FEW_MR, n_query - k) - 1](p, w + k, col, acc + k * ld, y + k * ld, ld,
                                                col + k == 0);
    }
    for (int64_t c = 0; c < n_query * ld; c += VL)
        bad = vf_fma(vf_load(y + c), vf_set(0), bad); /* 0 times infinity or NaN is NaN */
    if (vf_sum(bad) != 0)
        return false;
    memcpy(acc, y, (size_t)(n_query * ld) * sizeof *acc);
    return true;
}

#endif
