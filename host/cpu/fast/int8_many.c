/* Many entries: VL rows of weights are unpacked to a panel whose lanes are rows; it is multiplied
 * with a tile of entries by one dot product of four columns for each register of weights and entry,
 * the entry's four columns being broadcast from memory.
 *
 * Within a group of 16 or 32 columns the sums are integers; then they are converted, scaled by d *
 * step and added to f32 sums in registers: 3 more instructions (4 with minima) for 4 or 8
 * products. */
#include "cpu/fast/int8.h"

#include <string.h>

/* ---- panels ---- */

size_t FN(int8_panel_bytes)(const struct int8_shape *s)
{
    size_t d = (size_t)(s->cols / 16 * VL) * sizeof(float),
           rows = VL * (256 + 2 * 16 * sizeof(float));
    return (size_t)(s->cols * VL) + 2 * d + rows;
}

/* Scratch memory: one unit of each of VL rows. */
struct rows {
    uint8_t *q;   /* [VL, 256] */
    float *d, *m; /* [VL, 16] */
    vi off;       /* offset subtracted from each of q */
};

GR_INLINE void unpack_row(uint32_t dtype, const char *w, size_t n_bytes, const struct rows *r,
                          int64_t i)
{
    struct unit u;
    if (n_bytes >= unit_bytes(dtype))
        unpack(dtype, w, &u);
    else
        unpack_tail(dtype, w, n_bytes, &u);
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++)
        vi_store(r->q + i * 256 + k * VL * 4, vi_sub8(u.q[k], r->off));
    GR_UNROLL
    for (int k = 0; k < unit_factors(unit_kind(dtype)); k++) {
        vf_store(r->d + i * 16 + k * VL, u.d[k]);
        if (unit_kind(dtype).min)
            vf_store(r->m + i * 16 + k * VL, u.m[k]);
    }
}

/* Unpacks unit u of the rows, and asks for that of the next VL ones. */
GR_INLINE void unpack_rows(uint32_t dtype, const struct int8_shape *s, const char *w,
                           int64_t row_bytes, int64_t n_rows, int64_t u, const struct rows *r)
{
    size_t at = (size_t)u * unit_bytes(dtype);
    size_t row_size = gr_row_bytes(dtype, (uint64_t)s->n_in);
    for (int64_t i = 0; i < n_rows; i++) {
        const char *row = w + i * row_bytes + at;
        GR_UNROLL
        for (size_t line = 0; line < unit_bytes(dtype); line += 64)
            _mm_prefetch(row + VL * row_bytes + line, _MM_HINT_T1);
        unpack_row(dtype, row, row_size - at, r, i);
    }
}

/* One function per type: in a common one constants do not stay in registers from row to row. */
#define TYPE(name)                                                                                 \
    static __attribute__((noinline)) void unpack_##name(const struct int8_shape *s, const char *w, \
                                                        int64_t row_bytes, int64_t n_rows,         \
                                                        int64_t u, const struct rows *r)           \
    {                                                                                              \
        unpack_rows(GR_##name, s, w, row_bytes, n_rows, u, r);                                     \
    }
UNIT_TYPES(TYPE)
#undef TYPE

typedef void unpack_fn(const struct int8_shape *s, const char *w, int64_t row_bytes, int64_t n_rows,
                       int64_t u, const struct rows *r);
static unpack_fn *unpack_of(uint32_t dtype)
{
    switch (dtype) {
#define TYPE(name)                                                                                 \
    case GR_##name:                                                                                \
        return unpack_##name;
        UNIT_TYPES(TYPE)
#undef TYPE
    default:
        return NULL;
    }
}

struct int8_panel FN(int8_pack)(const struct int8_shape *s, const char *w, int64_t row_bytes,
                                int64_t n_rows, void *memory)
{
    struct int8_panel p = {.q = memory};
    p.d = (float *)(void *)(p.q + s->cols * VL);
    p.m = p.d + s->cols / 16 * VL;
    struct rows r = {.d = p.m + s->cols / 16 * VL,
                     .off = vi_set8(unit_kind(s->dtype).zero - s->kind.zero)};
    r.m = r.d + VL * 16;
    r.q = (uint8_t *)(r.m + VL * 16);
    int64_t n_group = 256 / s->kind.group; /* of a unit */
    unpack_fn *unpack_unit = unpack_of(s->dtype);
    for (int64_t u = 0; u < s->cols / 256; u++) {
        unpack_unit(s, w, row_bytes, n_rows, u, &r);
        FN(transpose)(r.q, 64, n_rows, 64, p.q + u * 256 * VL, VL);
        FN(transpose)(r.d, 16, n_rows, n_group, p.d + u * n_group * VL, VL);
        if (s->kind.min)
            FN(transpose)(r.m, 16, n_rows, n_group, p.m + u * n_group * VL, VL);
    }
    return p;
}

/* ---- tiles ---- */

GR_INLINE int32_t four(const int8_t *q)
{
    int32_t x;
    memcpy(&x, q, sizeof x);
    return x;
}

/* Adds `run` dot products of four columns: w [run, VL, 4], q [n, 32]. Without VNNI sums of two
 * products are added in 16 bits, where all of a run fit. */
GR_INLINE void add_dots(const uint8_t *w, const int8_t *q, int n, int run, bool sign,
                        vi dot[INT8_TILE])
{
#ifndef GR_LEVEL_avx512
    if (run > 1) {
        vi pairs[INT8_TILE];
        GR_UNROLL
        for (int c = 0; c < run; c++)
            GR_UNROLL
        for (int t = 0; t < n; t++) {
            vi both = vi_pairs(vi_load(w + c * VL * 4), vi_set(four(q + t * 32 + c * 4)));
            pairs[t] = c ? vi_add16(pairs[t], both) : both;
        }
        GR_UNROLL
        for (int t = 0; t < n; t++)
            dot[t] = vi_add_pairs(dot[t], pairs[t]);
        return;
    }
#endif
    GR_UNROLL
    for (int c = 0; c < run; c++) {
        vi lanes = vi_load(w + c * VL * 4);
        GR_UNROLL
        for (int t = 0; t < n; t++)
            dot[t] = vi_dot_any(dot[t], lanes, vi_set(four(q + t * 32 + c * 4)), sign);
    }
}

GR_INLINE void tile_of(const struct int8_shape *s, const struct int8_panel *p, const char *x, int n,
                       struct unit_kind kind, int run, float *sum)
{
    struct int8_many e = int8_many(s, (void *)(uintptr_t)x, n);
    const int group = kind.group;
    vf acc[INT8_TILE];
    GR_UNROLL
    for (int t = 0; t < n; t++)
        acc[t] = vf_set(0);
    for (int64_t g = 0; g < s->n_in / group; g++) {
        const int8_t *q = e.q + g * group / 32 * 32 * n + g * group % 32;
        const uint8_t *w = p->q + g * group * VL;
        const float *step = e.step + g * group / 32 * n;
        vi dot[INT8_TILE];
        GR_UNROLL
        for (int t = 0; t < n; t++)
            dot[t] =
                kind.min || kind.sign ? vi_set(0) : vi_set(((const int32_t *)e.extra)[g * n + t]);
        GR_UNROLL
        for (int c = 0; c < group / 4; c += run)
            add_dots(w + c * VL * 4, q + c * 4, n, run, kind.sign, dot);
        vf d = vf_load(p->d + g * VL);
        GR_UNROLL
        for (int t = 0; t < n; t++)
            acc[t] = vf_fma(vf_of_int(dot[t]), d * vf_set(step[t]), acc[t]);
        if (kind.min) {
            vf m = vf_load(p->m + g * VL);
            GR_UNROLL
            for (int t = 0; t < n; t++)
                acc[t] = vf_fma(m, vf_set(((const float *)e.extra)[g * n + t]), acc[t]);
        }
    }
    GR_UNROLL
    for (int t = 0; t < n; t++)
        vf_store(sum + t * INT8_ROWS, acc[t]);
}

/* Returns how many sums of two products of a quant and an s8 fit 16 bits, 4 at most, as compilers
 * run out of registers then; 1 with VNNI, which has no such sums. */
static int longest_run(struct unit_kind kind)
{
    int run = 1;
    while (VL < 16 && !kind.sign && run < 4 && 2 * run * 2 * 127 * kind.most < 32768)
        run *= 2;
    return run;
}

/* Expands to KIND(sign, group, min, run) for all there are. */
#ifdef GR_LEVEL_avx512
#define KINDS(KIND)                                                                                \
    KIND(false, 32, false, 1)                                                                      \
    KIND(false, 32, true, 1)                                                                       \
    KIND(false, 16, false, 1)                                                                      \
    KIND(false, 16, true, 1)
#else
#define KINDS(KIND)                                                                                \
    KIND(true, 32, false, 1)                                                                       \
    KIND(false, 32, false, 1)                                                                      \
    KIND(false, 32, false, 4)                                                                      \
    KIND(false, 32, true, 4)                                                                       \
    KIND(false, 16, false, 1)                                                                      \
    KIND(false, 16, false, 2)                                                                      \
    KIND(false, 16, false, 4)                                                                      \
    KIND(false, 16, true, 4)
#endif

GR_INLINE void tile_n(const struct int8_shape *s, const struct int8_panel *p, const char *x, int n,
                      float *sum)
{
    const int run = longest_run(s->kind);
#define KIND(sign_, group_, min_, run_)                                                            \
    if (s->kind.sign == sign_ && s->kind.group == group_ && s->kind.min == min_ && run == run_) {  \
        const struct unit_kind kind = {.group = group_, .min = min_, .sign = sign_};               \
        tile_of(s, p, x, n, kind, run_, sum);                                                      \
    }
    KINDS(KIND)
#undef KIND
}

static void tile_any(const struct int8_shape *s, const struct int8_panel *p, const char *x,
                     int64_t tile, float *sum)
{
    switch (tile) {
#define SIZE(n)                                                                                    \
    case n:                                                                                        \
        tile_n(s, p, x, n, sum);                                                                   \
        break;
        INT8_SIZES(SIZE)
#undef SIZE
    default:
        break;
    }
}

void FN(int8_tile)(const struct int8_shape *s, const struct int8_panel *p, int64_t n, const char *x,
                   int64_t tile, float *sum)
{
    for (int64_t i = 0; i < n; i++)
        tile_any(s, p + i, x, tile, sum + i * VL);
}
