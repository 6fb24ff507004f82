/* Many entries: VL rows of weights are unpacked to a panel whose lanes are rows; it is multiplied
 * with a tile of entries by one dot product of four columns for each register of weights and entry,
 * the entry's four columns being broadcast from memory, once for two panels with 512 bits.
 *
 * Within a group of 16 or 32 columns the sums are integers; then they are converted, scaled by d *
 * step and added to f32 sums in registers: 3 more instructions (4 with minima) for 4 or 8
 * products. */
#include "cpu/fast/int8.h"

#include <string.h>

/* ---- panels ---- */

/* One unit of each of VL rows. */
struct rows {
    uint8_t q[VL][256];
    float d[VL][16], m[VL][16];
};

GR_INLINE void unpack_row(uint32_t dtype, const char *w, struct rows *r, vi off, int64_t i)
{
    struct unit u;
    unpack(dtype, w, &u);
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++)
        vi_store(r->q[i] + k * VL * 4, vi_sub8(u.q[k], off));
    GR_UNROLL
    for (int k = 0; k < unit_factors(unit_kind(dtype)); k++) {
        vf_store(r->d[i] + k * VL, u.d[k]);
        if (unit_kind(dtype).min)
            vf_store(r->m[i] + k * VL, u.m[k]);
    }
}

/* Unpacks a unit of each of VL rows, then transposes the results. */
GR_INLINE void unpack_rows(uint32_t dtype, const struct panel_rows *from, const struct panel *p)
{
    struct unit_kind kind = unit_kind(dtype);
    struct rows r;
    for (int64_t i = 0; i < VL; i++)
        unpack_row(dtype, from->p + i * from->stride, &r, p->off, i);
    FN(transpose)(r.q, 64, VL, 64, p->q, VL);
    FN(transpose)(r.d, 16, VL, 256 / kind.group, p->d, VL);
    if (kind.min)
        FN(transpose)(r.m, 16, VL, 256 / kind.group, p->m, VL);
}

/* One function per type: in a common one constants do not stay in registers from row to row. */
#define TYPE(name)                                                                                 \
    static __attribute__((noinline)) void pack_##name(struct panel_rows from, struct panel to)     \
    {                                                                                              \
        if (panel_type(GR_##name))                                                                 \
            panel_unpack(GR_##name, &from, &to);                                                   \
        else                                                                                       \
            unpack_rows(GR_##name, &from, &to);                                                    \
    }
UNIT_TYPES(TYPE)
#undef TYPE

static void pack_any(uint32_t dtype, struct panel_rows from, struct panel to)
{
    switch (dtype) {
#define TYPE(name)                                                                                 \
    case GR_##name:                                                                                \
        pack_##name(from, to);                                                                     \
        break;
        UNIT_TYPES(TYPE)
#undef TYPE
    default:
        break;
    }
}

void FN(int8_pack)(const struct int8_shape *s, const char *w, int64_t row_bytes, int64_t n_row,
                   int64_t u, const struct int8_panel *p)
{
    const size_t at = (size_t)u * s->unit, n = GR_MIN(s->unit, s->row - at);
    const struct panel to = {p->q, p->d, p->m, vi_set8(unit_kind(s->dtype).zero - s->kind.zero)};
    char copy[VL][UNIT_BYTES];
    struct panel_rows from = {w + at, row_bytes};
    if (n_row < VL || n < s->unit) {
        memset(copy, 0, sizeof copy);
        for (int64_t i = 0; i < n_row; i++)
            memcpy(copy[i], from.p + i * row_bytes, n);
        from = (struct panel_rows){copy[0], UNIT_BYTES};
    }
    pack_any(s->dtype, from, to);
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
                        vi dot[INT8_PART])
{
#ifndef GR_LEVEL_avx512
    if (run > 1) {
        vi pairs[INT8_PART];
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

/* Entries of a tile of `tile`, from entry `at` on. */
struct part {
    const char *x; /* of the tile */
    int64_t tile, at;
};

/* sum += the products of n entries with INT8_PANELS panels of a block from panel i on: a word of x
 * is loaded once for all panels, a register of weights once for all entries. */
GR_INLINE void part_of(const struct int8_shape *s, const struct int8_block *b, int64_t i,
                       const struct part *x, int n, struct unit_kind kind, int run,
                       struct int8_ahead *ahead, float *sum)
{
    const int group = kind.group;
    const int64_t tile = x->tile;
    const struct int8_many e = int8_many(s, (void *)(uintptr_t)x->x, tile);
    const struct int8_groups of = int8_groups(s, b, group);
    struct int8_panel p[INT8_PANELS];
    struct int8_ahead a = *ahead;
    vf acc[INT8_PANELS][INT8_PART];
    GR_UNROLL
    for (int k = 0; k < INT8_PANELS; k++) {
        p[k] = int8_panel(b, i + k, 0, group);
        GR_UNROLL
        for (int t = 0; t < n; t++)
            acc[k][t] = vf_load(sum + t * INT8_ROWS + k * VL);
    }
    for (int64_t g = of.lo, j = 0; g < of.hi; g++, j++) {
        const int8_t *q = e.q + (g * group / 32 * tile + x->at) * 32 + g * group % 32;
        const float *step = e.step + g * group / 32 * tile + x->at;
        const char *extra = (const char *)e.extra + (g * tile + x->at) * 4;
        vi dot[INT8_PANELS][INT8_PART];
        int8_ask(&a);
        GR_UNROLL
        for (int k = 0; k < INT8_PANELS; k++)
            GR_UNROLL
        for (int t = 0; t < n; t++)
            dot[k][t] = kind.min || kind.sign ? vi_set(0) : vi_set(((const int32_t *)extra)[t]);
        GR_UNROLL
        for (int c = 0; c < group / 4; c += run)
            GR_UNROLL
        for (int k = 0; k < INT8_PANELS; k++)
            add_dots(p[k].q + (j * group + c * 4) * VL, q + c * 4, n, run, kind.sign, dot[k]);
        GR_UNROLL
        for (int k = 0; k < INT8_PANELS; k++) {
            const vf d = vf_load(p[k].d + j * VL);
            GR_UNROLL
            for (int t = 0; t < n; t++)
                acc[k][t] = vf_fma(vf_of_int(dot[k][t]), d * vf_set(step[t]), acc[k][t]);
            if (kind.min) {
                const vf m = vf_load(p[k].m + j * VL);
                GR_UNROLL
                for (int t = 0; t < n; t++)
                    acc[k][t] = vf_fma(m, vf_set(((const float *)extra)[t]), acc[k][t]);
            }
        }
    }
    *ahead = a;
    GR_UNROLL
    for (int k = 0; k < INT8_PANELS; k++)
        GR_UNROLL
    for (int t = 0; t < n; t++)
        vf_store(sum + t * INT8_ROWS + k * VL, acc[k][t]);
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

GR_INLINE void part_n(const struct int8_shape *s, const struct int8_block *b, int64_t i,
                      const struct part *x, int n, struct int8_ahead *a, float *sum)
{
    const int run = longest_run(s->kind);
#define KIND(sign_, group_, min_, run_)                                                            \
    if (s->kind.sign == sign_ && s->kind.group == group_ && s->kind.min == min_ && run == run_) {  \
        const struct unit_kind kind = {.group = group_, .min = min_, .sign = sign_};               \
        part_of(s, b, i, x, n, kind, run_, a, sum);                                                \
    }
    KINDS(KIND)
#undef KIND
}

#ifdef GR_LEVEL_avx512
#define PARTS(PART) PART(2) PART(4) PART(6)
#else
#define PARTS(PART) PART(2) PART(4)
#endif
static void part_any(const struct int8_shape *s, const struct int8_block *b, int64_t i,
                     const struct part *x, int64_t n, struct int8_ahead *a, float *sum)
{
    switch (n) {
#define PART(n)                                                                                    \
    case n:                                                                                        \
        part_n(s, b, i, x, n, a, sum);                                                             \
        break;
        PARTS(PART)
#undef PART
    default:
        break;
    }
}

void FN(int8_tile)(const struct int8_shape *s, const struct int8_block *b, const char *x,
                   int64_t tile, struct int8_ahead *a, float *sum)
{
    for (int64_t i = 0; i < b->n_panel; i += INT8_PANELS)
        for (int64_t t = 0; t < tile; t += INT8_PART) {
            const struct part part = {x, tile, t};
            part_any(s, b, i, &part, GR_MIN(INT8_PART, tile - t), a, sum + t * INT8_ROWS + i * VL);
        }
}
