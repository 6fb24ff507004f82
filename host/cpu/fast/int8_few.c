/* Few entries, 256 bits: each unit of a row of weights is unpacked into registers and dotted with
 * every entry at once. Bound by reading the weights. Lanes are added at the end of the row. */
#include <string.h>

#include "cpu/fast/int8.h"

#ifndef GR_LEVEL_avx512

/* x of an entry: q [cols] s8; step [cols / group] f32; sum [cols / group] f32: step * sum of the
 * group's q, or -zero * that sum. */
struct columns {
    const int8_t *q;
    const float *step, *sum;
};

static struct columns columns_of(const struct int8_shape *s, const char *x)
{
    const char *p = x + s->cols;
    return (struct columns){(const int8_t *)x, (const float *)(const void *)p,
                            (const float *)(const void *)(p + s->cols / 4)};
}

void FN(int8_put)(const struct int8_shape *s, const struct int8_row *r, char *x)
{
    struct columns c = columns_of(s, x);
    const int64_t first = r->col / s->kind.group;
    float *step = (float *)(uintptr_t)c.step + first, *sum = (float *)(uintptr_t)c.sum + first;
    memcpy(x + r->col, r->q, (size_t)r->cols);
    for (int64_t g = 0; g < r->cols / s->kind.group; g++) {
        float of_group = int8_step(s, r, g), q = (float)int8_sum(s, r, g);
        step[g] = of_group;
        sum[g] = q * (s->kind.min ? of_group : (float)-s->kind.zero);
    }
}

/* Index registers kept during a row: the index of the group's factor for each lane of quants
 * register k. */
struct held {
    vi lane[UNIT_Q];
};

GR_INLINE vi lane_index(int k, int group)
{
    const vi step = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    return group == 16 ? _mm256_add_epi32(step, vi_set(k % 4 * 2)) : vi_set(k);
}

GR_INLINE void hold(uint32_t dtype, struct held *h)
{
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++)
        h->lane[k] = vi_hold(lane_index(k, unit_kind(dtype).group));
}

/* Returns the factor of each lane of quants register k; s holds those of all groups. */
GR_INLINE vf lane_factors(const vf s[UNIT_D], const struct held *h, int k, int group)
{
    return _mm256_permutevar8x32_ps(s[group == 16 ? k / 4 : 0], h->lane[k]);
}

/* Loads one number per group of a unit, in the layout of d and m. */
GR_INLINE void load_groups(const float *p, int64_t i, int group, vf out[UNIT_D])
{
    if (group == 32)
        factors_32(_mm256_loadu_ps(p + i / 32), out);
    GR_UNROLL
    for (int k = 0; k < UNIT_D && group == 16; k++)
        out[k] = vf_load(p + i / 16 + k * VL);
}

/* Partial sums per entry, to hide the latency of additions. */
enum { PARTS = 4 };

/* s = factors of a unit's groups times the steps of columns [i, i + 256) of x. */
GR_INLINE void scaled(const struct unit *u, struct unit_kind kind, const struct columns *x,
                      int64_t i, vf s[UNIT_D])
{
    load_groups(x->step, i, kind.group, s);
    GR_UNROLL
    for (int k = 0; k < unit_factors(kind); k++)
        s[k] = s[k] * u->d[k];
}

/* Adds the contributions of minima and zero points; s as in scaled(). */
GR_INLINE void add_offsets(const struct unit *u, const vf s[UNIT_D], struct unit_kind kind,
                           const struct columns *x, int64_t i, vf acc[PARTS])
{
    vf sum[UNIT_D];
    if (!kind.min && !kind.zero)
        return;
    load_groups(x->sum, i, kind.group, sum);
    GR_UNROLL
    for (int k = 0; k < unit_factors(kind); k++)
        acc[k % PARTS] = vf_fma(kind.min ? u->m[k] : s[k], sum[k], acc[k % PARTS]);
}

/* acc += the unit's products with columns [i, i + 256) of x. */
GR_INLINE void dot_unit(const struct unit *u, struct unit_kind kind, const struct held *h,
                        const struct columns *x, int64_t i, vf acc[PARTS])
{
    vf s[UNIT_D];
    scaled(u, kind, x, i, s);
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++) {
        vi dot = vi_dot_any(vi_set(0), u->q[k], vi_load(x->q + i + 4 * VL * k), kind.sign);
        acc[k % PARTS] = vf_fma(vf_of_int(dot), lane_factors(s, h, k, kind.group), acc[k % PARTS]);
    }
    add_offsets(u, s, kind, x, i, acc);
}

/* Products of one unit of a row with all entries. */
GR_INLINE void dot_entries(uint32_t dtype, const char *w, const struct held *h,
                           const struct columns *x, int64_t i, int n, vf (*acc)[PARTS])
{
    struct unit u;
    unpack(dtype, w, &u);
    for (int t = 0; t < n; t++)
        dot_unit(&u, unit_kind(dtype), h, &x[t], i, acc[t]);
}

/* Sums of one row with n entries, lane by lane: sum[t * VL]. */
GR_INLINE void dot_row(uint32_t dtype, const char *row, int64_t n_in, const struct columns *x,
                       int n, vf *sum)
{
    vf acc[INT8_FEW][PARTS];
    struct held h;
    hold(dtype, &h);
    for (int t = 0; t < n; t++)
        GR_UNROLL
    for (int k = 0; k < PARTS; k++)
        acc[t][k] = vf_set(0);
    int64_t i = 0;
    for (; i + 256 <= n_in; i += 256, row += unit_bytes(dtype)) {
        GR_UNROLL
        for (size_t line = 0; line < unit_bytes(dtype); line += 64)
            _mm_prefetch(row + INT8_AHEAD + line, _MM_HINT_T1);
        dot_entries(dtype, row, &h, x, i, n, acc);
    }
    if (i < n_in) {
        char whole[UNIT_BYTES] = {0};
        memcpy(whole, row, unit_bytes(dtype) * (size_t)(n_in - i) / 256);
        dot_entries(dtype, whole, &h, x, i, n, acc);
    }
    for (int t = 0; t < n; t++)
        sum[t * VL] = (acc[t][0] + acc[t][1]) + (acc[t][2] + acc[t][3]);
}

/* Products of rows [lo, hi); the lanes of VL rows are summed together. */
GR_INLINE void dot_all(uint32_t dtype, const struct mm *m, const struct int8_shape *s,
                       const struct mm_group *g, int64_t lo, int64_t hi, const char *first, int n,
                       float *sum)
{
    struct columns x[INT8_FEW];
    vf lanes[INT8_FEW][VL];
    for (int t = 0; t < n; t++)
        x[t] = columns_of(s, first + t * s->stride);
    for (int64_t o = lo; o < hi; o += VL) {
        int64_t n_row = GR_MIN(VL, hi - o);
        for (int64_t r = 0; r < n_row; r++) {
            const char *row = gr_ten_row(m->w, g->expert, o + r);
            if (n == 1) /* sums in registers */
                dot_row(dtype, row, s->n_in, x, 1, &lanes[0][r]);
            else
                dot_row(dtype, row, s->n_in, x, n, &lanes[0][r]);
        }
        for (int t = 0; t < n; t++) {
            for (int64_t r = n_row; r < VL; r++)
                lanes[t][r] = vf_set(0);
            vf_store_n(sum + t * INT8_ROWS + o - lo, vf_sum_rows(lanes[t]), n_row);
        }
    }
}

#include "cpu/fast/int8_dot.inc"

#endif
