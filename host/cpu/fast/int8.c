#include "cpu/fast/int8.h"

#include <string.h>

#include "cpu/fast/lanes.h"

/* Approximate bytes of panels made at a time: a part of L2. */
enum { PANEL_BYTES = 256 * 1024 };

/* ---- activations ---- */

/* Quantises 32 columns; returns the step. Values all below 2^-120 become 0; with NaN or infinity
 * the step is NaN. */
GR_INLINE float quantize_32(const float *x, int8_t *q)
{
    vf max = vf_set(0), bad = vf_set(0);
    for (int i = 0; i < 32; i += VL) {
        vf v = vf_load(x + i);
        max = vf_max(max, vf_abs(v));
        bad = vf_fma(v, vf_set(0), bad);
    }
    float top = vf_largest(max), inv = top > 0x1p-120f ? 127 / top : 0;
    for (int i = 0; i < 32; i += VL)
        vf_store_s8(q + i, vf_load(x + i) * vf_set(inv));
    return (inv > 0 ? top / 127 : 0) + vf_sum(bad);
}

static int32_t sum_16(const int8_t *q)
{
    int32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += q[i];
    return sum;
}

void FN(int8_quantize)(const float *x, int64_t n, int64_t cols, int8_t *q, float *step,
                       int32_t *sum)
{
    for (int64_t i = 0; i < n; i += 32)
        step[i / 32] = quantize_32(x + i, q + i);
    memset(q + n, 0, (size_t)(cols - n));
    memset(step + n / 32, 0, (size_t)(cols - n) / 32 * sizeof *step);
    for (int64_t i = 0; i < cols; i += 16)
        sum[i / 16] = sum_16(q + i);
}

/* A row of x quantised, in local memory. */
struct row {
    int8_t *q;
    float *step;
    int32_t *sum;
};

static struct row row_of(const struct int8_shape *s, void *local)
{
    int8_t *q = local;
    float *step = (float *)(void *)(q + s->cols);
    return (struct row){q, step, (int32_t *)(void *)(step + s->cols / 32)};
}

/* Returns the sum of the quants of group g. */
static int32_t group_sum(const struct int8_shape *s, const struct row *r, int64_t g)
{
    return s->kind.group == 16 ? r->sum[g] : r->sum[2 * g] + r->sum[2 * g + 1];
}

static float group_step(const struct int8_shape *s, const struct row *r, int64_t g)
{
    return r->step[g * s->kind.group / 32];
}

/* Returns which 16 columns of a row are at place i. */
static int64_t piece_at(const struct int8_shape *s, int64_t i)
{
    return i / 16 * 16 + lane_piece(s->dtype, (int)(i % 16));
}

static void put_few(const struct int8_shape *s, const struct row *r, char *x)
{
    struct int8_few f = int8_few(s, x);
    float *step = (float *)f.step, *sum = (float *)f.sum;
    for (int64_t i = 0; i < s->cols / 16; i++)
        memcpy(x + 16 * i, r->q + 16 * piece_at(s, i), 16);
    for (int64_t g = 0; g < s->cols / s->kind.group; g++) {
        float of_group = group_step(s, r, g), q = (float)group_sum(s, r, g);
        if (lane_joined(s->dtype)) {
            step[g / 8 * 16 + lane_d(s->dtype, (int)(g % 8))] = of_group;
            step[g / 8 * 16 + lane_m(s->dtype, (int)(g % 8))] = of_group * q;
        } else {
            step[g] = of_group;
            sum[g] = q * (s->kind.min ? of_group : (float)-s->kind.zero);
        }
    }
}

/* Stores entry t of a tile. */
static void put_many(const struct int8_shape *s, const struct row *r, char *x, int64_t tile,
                     int64_t t)
{
    struct int8_many f = int8_many(s, x, tile);
    float *step = (float *)f.step;
    int64_t group = s->kind.group;
    for (int64_t g = 0; g < s->cols / 32; g++) {
        memcpy(x + (g * tile + t) * 32, r->q + 32 * g, 32);
        step[g * tile + t] = r->step[g];
    }
    for (int64_t g = 0; g < s->cols / group; g++) {
        int32_t sum = group_sum(s, r, g);
        float scaled = group_step(s, r, g) * (float)sum;
        sum *= -s->kind.zero;
        memcpy((char *)f.extra + (g * tile + t) * 4, s->kind.min ? (void *)&scaled : (void *)&sum,
               4);
    }
}

static void convert(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                    void *shared, void *local)
{
    struct int8_shape s = int8_shape(m);
    struct row r = row_of(&s, local);
    char *x = (char *)shared + (g->at + lo) * s.stride;
    int64_t tile = int8_tile(lo, g->n);
    for (int64_t i = 0; i < hi - lo; i++) {
        FN(int8_quantize)(mm_x(m, g, lo + i), s.n_in, s.cols, r.q, r.step, r.sum);
        if (int8_in_place(m))
            put_few(&s, &r, x + i * s.stride);
        else
            put_many(&s, &r, x, tile, i);
    }
    if (int8_in_place(m))
        return;
    memset(r.q, 0, (size_t)s.cols);
    memset(r.step, 0, (size_t)(s.cols / 32 + s.cols / 16) * 4);
    for (int64_t i = hi - lo; i < tile; i++)
        put_many(&s, &r, x, tile, i);
}

/* ---- products ---- */

static void few(const struct mm *m, const struct int8_shape *s, const struct mm_group *g,
                int64_t lo, int64_t hi, const char *x)
{
    float sum[INT8_FEW][INT8_ROWS];
    for (int64_t i = 0; i < g->n; i += INT8_FEW) {
        int64_t n = GR_MIN(INT8_FEW, g->n - i);
        FN(int8_dot)
        (s, gr_ten_row(m->w, g->expert, 0), m->w->row_bytes, lo, hi, x + i * s->stride, n, sum[0],
         INT8_ROWS);
        for (int64_t t = 0; t < n; t++)
            FN(mm_finish)(m, g, i + t, lo, hi - lo, sum[t]);
    }
}

/* Unpacks rows [lo, hi) to panels, as many as fit a part of L2, then multiplies each tile with all
 * of them. */
static void many(const struct mm *m, const struct int8_shape *s, const struct mm_group *g,
                 int64_t lo, int64_t hi, const char *x, char *local, int8_tile_fn *meet)
{
    struct int8_panel panel[INT8_PANELS];
    float sum[INT8_TILE][INT8_ROWS];
    int64_t n_panel = (hi - lo + VL - 1) / VL;
    for (int64_t p = 0; p < n_panel; p++)
        panel[p] = FN(int8_pack)(s, gr_ten_row(m->w, g->expert, lo + p * VL), m->w->row_bytes,
                                 GR_MIN(VL, hi - lo - p * VL),
                                 local + (size_t)p * FN(int8_panel_bytes)(s));
    for (int64_t i = 0, tile; i < g->n; i += tile) {
        tile = int8_tile(i, g->n);
        meet(s, panel, n_panel, x + i * s->stride, tile, sum[0]);
        for (int64_t t = 0; t < tile && i + t < g->n; t++)
            FN(mm_finish)(m, g, i + t, lo, hi - lo, sum[t]);
    }
}

/* Returns the number of rows unpacked to panels at a time. */
static int64_t panel_rows(const struct int8_shape *s)
{
    int64_t n = (int64_t)(PANEL_BYTES / FN(int8_panel_bytes)(s));
    return GR_MIN(INT8_ROWS, GR_MAX(1, n) * VL);
}

void FN(int8_multiply)(const struct mm *m, const struct int8_shape *s, const struct mm_group *g,
                       int64_t lo, int64_t hi, const void *shared, void *local, int8_tile_fn *tile)
{
    const char *x = (const char *)shared + g->at * s->stride;
    if (int8_in_place(m)) {
        few(m, s, g, lo, hi, x);
        return;
    }
    int64_t step = panel_rows(s);
    for (int64_t o = lo; o < hi; o += step)
        many(m, s, g, o, GR_MIN(o + step, hi), x, local, tile);
}

static void multiply(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                     const void *shared, void *local)
{
    struct int8_shape s = int8_shape(m);
    FN(int8_multiply)(m, &s, g, lo, hi, shared, local, FN(int8_tile));
}

static int64_t chunk(const struct mm *m)
{
    (void)m;
    return INT8_ROWS;
}

static size_t shared_bytes(const struct mm *m, int64_t n_place)
{
    return (size_t)(n_place * int8_shape(m).stride);
}

static size_t local_bytes(const struct mm *m)
{
    struct int8_shape s = int8_shape(m);
    size_t row = (size_t)(s.cols * 3 / 2),
           panels = (size_t)(panel_rows(&s) / VL) * FN(int8_panel_bytes)(&s);
    return GR_MAX(row, panels);
}

const struct mm_engine FN(mm_int8) = {.convert = convert,
                                      .grain = INT8_TILE,
                                      .multiply = multiply,
                                      .chunk = chunk,
                                      .shared_bytes = shared_bytes,
                                      .local_bytes = local_bytes};
