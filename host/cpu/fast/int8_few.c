/* Few entries: each unit of a row of weights is unpacked into registers and dotted with every entry
 * at once. Bound by reading the weights. One accumulator register per entry, whose lanes are added
 * at the end of the row. */
#include <string.h>

#include "cpu/fast/int8.h"
#include "cpu/fast/lanes.h"

/* Index registers kept during a row: the tables of types in lane order; for others `lane`, the
 * index of the group factor for each lane of quants register k. */
struct held {
#ifdef GR_LEVEL_avx512
    struct lane_tables lanes;
#endif
    vi lane[UNIT_Q];
};

GR_INLINE vi lane_index(int k, int group)
{
#ifdef GR_LEVEL_avx512
    const vi step = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return group == 16 ? _mm512_add_epi32(step, vi_set(4 * k))
                       : _mm512_add_epi32(_mm512_srli_epi32(step, 1), vi_set(2 * k));
#else
    const vi step = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    return group == 16 ? _mm256_add_epi32(step, vi_set(k % 4 * 2)) : vi_set(k);
#endif
}

GR_INLINE void hold(uint32_t dtype, struct held *h)
{
#ifdef GR_LEVEL_avx512
    h->lanes = lane_tables(dtype);
#endif
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++)
        h->lane[k] = vi_hold(lane_index(k, unit_kind(dtype).group));
}

/* Returns the factor of each lane of quants register k; s holds those of all groups. */
GR_INLINE vf lane_factors(const vf s[UNIT_D], const struct held *h, int k, int group)
{
#ifdef GR_LEVEL_avx512
    (void)group;
    return _mm512_permutexvar_ps(h->lane[k], s[0]);
#else
    return _mm256_permutevar8x32_ps(s[group == 16 ? k / 4 : 0], h->lane[k]);
#endif
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

/* Partial sums per entry, to hide the latency of additions: several where entries are dotted one by
 * one (int8_shape.one); several entries at once hide it by themselves. */
enum { PARTS = 4, AHEAD = 8192 /* prefetch distance in bytes */ };

/* s = factors of a unit's groups times the steps of columns [i, i + 256) of x. */
GR_INLINE void scaled(const struct unit *u, struct unit_kind kind, const struct int8_few *x,
                      int64_t i, vf s[UNIT_D])
{
    load_groups(x->step, i, kind.group, s);
    GR_UNROLL
    for (int k = 0; k < unit_factors(kind); k++)
        s[k] = s[k] * u->d[k];
}

/* Adds the contributions of minima and zero points; s as in scaled(). */
GR_INLINE void add_offsets(const struct unit *u, const vf s[UNIT_D], struct unit_kind kind,
                           const struct int8_few *x, int64_t i, int parts, vf acc[PARTS])
{
    vf sum[UNIT_D];
    if (!kind.min && !kind.zero)
        return;
    load_groups(x->sum, i, kind.group, sum);
    GR_UNROLL
    for (int k = 0; k < unit_factors(kind); k++)
        acc[k % parts] = vf_fma(kind.min ? u->m[k] : s[k], sum[k], acc[k % parts]);
}

/* acc += the unit's products with columns [i, i + 256) of x; parts is 1 or PARTS. */
GR_INLINE void dot_unit(const struct unit *u, struct unit_kind kind, const struct held *h,
                        const struct int8_few *x, int64_t i, int parts, vf acc[PARTS])
{
    vf s[UNIT_D];
    scaled(u, kind, x, i, s);
    GR_UNROLL
    for (int k = 0; k < UNIT_Q; k++) {
        vi dot = vi_dot_any(vi_set(0), u->q[k], vi_load(x->q + i + 4 * VL * k), kind.sign);
        acc[k % parts] = vf_fma(vf_of_int(dot), lane_factors(s, h, k, kind.group), acc[k % parts]);
    }
    add_offsets(u, s, kind, x, i, parts, acc);
}

#ifdef GR_LEVEL_avx512
/* The same for a unit in lane order. */
GR_INLINE void dot_lanes(uint32_t dtype, const struct unit *u, const struct held *h,
                         const struct int8_few *x, int64_t i, int parts, vf acc[PARTS])
{
    struct unit_kind kind = unit_kind(dtype);
    const int both = lane_both(dtype), n_sum = UNIT_Q / both;
    vf s[UNIT_D];
    if (lane_joined(dtype))
        s[0] = vf_load(x->step + i / 16) * u->d[0];
    else
        scaled(u, kind, x, i, s);
    GR_UNROLL
    for (int k = 0; k < n_sum; k++) {
        vi dot = vi_set(0);
        GR_UNROLL
        for (int j = both * k; j < both * k + both; j++)
            dot = vi_dot(dot, u->q[j], vi_load(x->q + i + 4 * VL * j));
        vf d = _mm512_permutexvar_ps(h->lanes.group[k], s[0]);
        acc[k % parts] = vf_fma(vf_of_int(dot), d, acc[k % parts]);
    }
    if (lane_joined(dtype))
        acc[0] = add_minima(dtype, acc[0], s[0]);
    else
        add_offsets(u, s, kind, x, i, parts, acc);
}
#endif

/* Products of one unit of a row with all entries. */
GR_INLINE void dot_all(uint32_t dtype, const char *w, const struct held *h,
                       const struct int8_few *x, int64_t i, int n, int parts, vf (*acc)[PARTS])
{
    struct unit u;
#ifdef GR_LEVEL_avx512
    if (lane_order(dtype)) {
        unpack_lanes(dtype, w, &h->lanes, &u);
        for (int t = 0; t < n; t++)
            dot_lanes(dtype, &u, h, &x[t], i, parts, acc[t]);
        return;
    }
#endif
    unpack(dtype, w, &u);
    for (int t = 0; t < n; t++)
        dot_unit(&u, unit_kind(dtype), h, &x[t], i, parts, acc[t]);
}

/* Sums of one row with n entries, lane by lane: sum[t * VL]. n and parts are constants where n
 * is 1. */
GR_INLINE void dot_row(uint32_t dtype, const char *row, int64_t n_in, const struct int8_few *x,
                       int n, int parts, vf *sum)
{
    vf acc[INT8_FEW][PARTS];
    struct held h;
    hold(dtype, &h);
    for (int t = 0; t < n; t++)
        GR_UNROLL
    for (int k = 0; k < parts; k++)
        acc[t][k] = vf_set(0);
    int64_t i = 0;
    for (; i + 256 <= n_in; i += 256, row += unit_bytes(dtype)) {
        GR_UNROLL
        for (size_t line = 0; line < unit_bytes(dtype); line += 64)
            _mm_prefetch(row + AHEAD + line, _MM_HINT_T1);
        dot_all(dtype, row, &h, x, i, n, parts, acc);
    }
    if (i < n_in) {
        char whole[UNIT_BYTES] = {0};
        memcpy(whole, row, unit_bytes(dtype) * (size_t)(n_in - i) / 256);
        dot_all(dtype, whole, &h, x, i, n, parts, acc);
    }
    for (int t = 0; t < n; t++) {
        if (parts > 1)
            acc[t][0] = (acc[t][0] + acc[t][1]) + (acc[t][2] + acc[t][3]);
        sum[t * VL] = acc[t][0];
    }
}

/* Products of rows [lo, hi); the lanes of VL rows are summed together. */
GR_INLINE void dot_rows(uint32_t dtype, const struct int8_shape *s, const char *w,
                        int64_t row_bytes, int64_t lo, int64_t hi, const struct int8_few *x, int n,
                        float *sum, int64_t ld)
{
    vf lanes[INT8_FEW][VL];
    for (int64_t o = lo; o < hi; o += VL) {
        int64_t n_row = GR_MIN(VL, hi - o);
        for (int64_t r = 0; r < n_row; r++)
            if (!s->one)
                dot_row(dtype, w + (o + r) * row_bytes, s->n_in, x, n, 1, &lanes[0][r]);
            else
                for (int t = 0; t < n; t++)
                    dot_row(dtype, w + (o + r) * row_bytes, s->n_in, x + t, 1, PARTS, &lanes[t][r]);
        for (int t = 0; t < n; t++) {
            for (int64_t r = n_row; r < VL; r++)
                lanes[t][r] = vf_set(0);
            vf_store_n(sum + t * ld + o - lo, vf_sum_rows(lanes[t]), n_row);
        }
    }
}

/* One function per type: in a common one compilers stop keeping constants in registers. */
#define TYPE(name)                                                                                 \
    static __attribute__((noinline)) void dot_##name(                                              \
        const struct int8_shape *s, const char *w, int64_t row_bytes, int64_t lo, int64_t hi,      \
        const struct int8_few *x, int n, float *sum, int64_t ld)                                   \
    {                                                                                              \
        dot_rows(GR_##name, s, w, row_bytes, lo, hi, x, n, sum, ld);                               \
    }
UNIT_TYPES(TYPE)
#undef TYPE

void FN(int8_dot)(const struct int8_shape *s, const char *w, int64_t row_bytes, int64_t lo,
                  int64_t hi, const char *x, int64_t n, float *sum, int64_t ld)
{
    struct int8_few few[INT8_FEW];
    for (int64_t t = 0; t < n; t++)
        few[t] = int8_few(s, (void *)(uintptr_t)(x + t * s->stride));
    switch (s->dtype) {
#define TYPE(name)                                                                                 \
    case GR_##name:                                                                                \
        dot_##name(s, w, row_bytes, lo, hi, few, (int)n, sum, ld);                                 \
        break;
        UNIT_TYPES(TYPE)
#undef TYPE
    default:
        break;
    }
}
