/* Few entries, 512 bits: each unit of four rows of weights is unpacked into registers in lane order
 * and dotted with every entry. Bound by reading the weights and by unpacking them. One accumulator
 * register per row and entry, whose lanes are added at the end of the row. */
#include "cpu/fast/int8.h"
#include "cpu/fast/lanes.h"

#ifdef GR_LEVEL_avx512

enum { ROWS = 4 }; /* rows together: they share what is loaded of x */

/* 256 columns of x in the order of lanes.h. */
struct columns {
    int8_t q[4][VL][4];
    float step[VL];
    union {
        float min[VL];    /* step * sum of the lane's q */
        int32_t zero[VL]; /* -zero * that sum */
    } sum;
};

static void put_unit(const struct int8_shape *s, const struct int8_row *r, int64_t u,
                     struct columns *x)
{
    int32_t sum[VL] = {0};
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < VL; i++) {
            const int8_t *q = r->q + u * 256 + lane_column(s->dtype, k, i);
            memcpy(x->q[k][i], q, 4);
            sum[i] += q[0] + q[1] + q[2] + q[3];
        }
    for (int i = 0; i < VL; i++) {
        const float step = r->step[u * 8 + lane_column(s->dtype, 0, i) / 32];
        x->step[i] = step * lane_step(s->dtype, i);
        if (s->kind.min)
            x->sum.min[i] = step * (float)sum[i];
        else
            x->sum.zero[i] = -s->kind.zero * sum[i];
    }
}

void FN(int8_put)(const struct int8_shape *s, const struct int8_row *r, char *x)
{
    _Static_assert(sizeof(struct columns) == 256 * 3 / 2, "int8_shape.stride");
    struct columns *c = (struct columns *)(void *)x + r->col / 256;
    for (int64_t u = 0; u < r->cols / 256; u++)
        put_unit(s, r, u, c + u);
}

/* acc [ROWS] += the products of a unit of ROWS rows with 256 columns of an entry. */
GR_INLINE void dot_columns(const struct unit w[ROWS], struct unit_kind kind,
                           const struct columns *x, vf *acc)
{
    vi dot[ROWS];
    GR_UNROLL
    for (int r = 0; r < ROWS; r++)
        dot[r] = kind.zero ? vi_load(x->sum.zero) : vi_set(0);
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++)
        GR_UNROLL
    for (int r = 0; r < ROWS; r++)
        dot[r] = vi_dot(dot[r], w[r].q[k], vi_load(x->q[k]));
    GR_UNROLL
    for (int r = 0; r < ROWS; r++) {
        acc[r] = vf_fma(vf_of_int(dot[r]), w[r].d[0] * vf_load(x->step), acc[r]);
        if (kind.min)
            acc[r] = vf_fma(w[r].m[0], vf_load(x->sum.min), acc[r]);
    }
}

/* Unit u of ROWS rows with all entries. Weights are asked for behind each row and each entry. */
GR_INLINE void dot_unit(uint32_t dtype, const struct int8_shape *s, const char *const w[ROWS],
                        const struct lane_tables *t, struct int8_ahead *a, const char *x, int64_t u,
                        int n, vf (*acc)[VL])
{
    struct unit unit[ROWS];
    GR_UNROLL
    for (int r = 0; r < ROWS; r++) {
        unpack_lanes(dtype, w[r], t, &unit[r]);
        int8_ask(a);
    }
    if (dtype == GR_Q4_K || dtype == GR_Q5_K)
        lanes_factors_6(w, t, unit);
    for (int i = 0; i < n; i++) {
        const char *of_entry = x + i * s->stride;
        dot_columns(unit, unit_kind(dtype), (const struct columns *)(const void *)of_entry + u,
                    acc[i]);
        int8_ask(a);
    }
}

/* Sums of ROWS rows with n entries, lane by lane: acc[i][0 .. ROWS]. */
GR_INLINE void dot_rows(uint32_t dtype, const struct int8_shape *s, const char *row[ROWS],
                        struct int8_ahead *a, const char *x, int n, vf (*acc)[VL])
{
    const struct lane_tables t = lane_tables(dtype);
    const int64_t n_unit = s->n_in / 256;
    for (int i = 0; i < n; i++)
        GR_UNROLL
    for (int r = 0; r < ROWS; r++)
        acc[i][r] = vf_set(0);
    for (int64_t u = 0; u < n_unit; u++) {
        dot_unit(dtype, s, row, &t, a, x, u, n, acc);
        for (int r = 0; r < ROWS; r++)
            row[r] += unit_bytes(dtype);
    }
    if (s->n_in % 256) {
        char whole[ROWS][UNIT_BYTES] = {{0}};
        for (int r = 0; r < ROWS; r++) {
            memcpy(whole[r], row[r], unit_bytes(dtype) * (size_t)(s->n_in % 256) / 256);
            row[r] = whole[r];
        }
        dot_unit(dtype, s, row, &t, a, x, n_unit, n, acc);
    }
}

/* Products of rows [lo, hi); the lanes of VL rows are summed together. Meanwhile rows that follow
 * are asked for. */
GR_INLINE void dot_all(uint32_t dtype, const struct mm *m, const struct int8_shape *s,
                       const struct mm_group *g, int64_t lo, int64_t hi, const char *x, int n,
                       float *sum)
{
    const int64_t ahead = GR_PAD(INT8_AHEAD / m->w->row_bytes + 1, ROWS);
    vf lanes[INT8_FEW][VL];
    for (int64_t o = lo; o < hi; o += VL) {
        int64_t n_row = GR_MIN(VL, hi - o);
        for (int64_t r = 0; r < n_row; r += ROWS) {
            int64_t next = o + r + ahead;
            if (next >= hi)
                next += int8_next(m, lo) - hi; /* hi may be the last row of the matrix: none */
            struct int8_ahead a = int8_ahead(m, g, next, ROWS, s->cols / 256 * (ROWS + n));
            const char *row[ROWS];
            for (int64_t k = 0; k < ROWS; k++)
                row[k] = gr_ten_row(m->w, g->expert, GR_MIN(o + r + k, hi - 1));
            dot_rows(dtype, s, row, &a, x, n, (vf(*)[VL]) & lanes[0][r]);
        }
        for (int i = 0; i < n; i++) {
            for (int64_t r = GR_PAD(n_row, ROWS); r < VL; r++)
                lanes[i][r] = vf_set(0);
            vf_store_n(sum + i * INT8_ROWS + o - lo, vf_sum_rows(lanes[i]), n_row);
        }
    }
}

#include "cpu/fast/int8_dot.inc"

#endif
