/* Few entries: each unit of a row of weights is unpacked into registers and dotted with every entry
 * at once. Bound by reading the weights. One accumulator register an entry, its eight lanes added
 * at the end of the row. */
#include "cpu/fast/int8.h"

GR_INLINE __m256i dot32(__m256i acc, __m256i q, __m256i x, bool sign)
{
#ifdef GR_LEVEL_avx512
    (void)sign;
    return _mm256_dpbusd_epi32(acc, q, x);
#else
    if (sign) {
        x = _mm256_sign_epi8(x, q);
        q = _mm256_abs_epi8(q);
    }
    __m256i pairs = _mm256_maddubs_epi16(q, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

/* acc + the unit's products with columns [i, i + 256) of x, in eight lanes. */
GR_INLINE __m256 dot_unit(const struct unit *u, struct unit_kind kind, const struct int8_few *x,
                          int64_t i, __m256 acc)
{
    __m256 s[2] = {u->d[0] * _mm256_loadu_ps(x->step + i / 16),
                   u->d[1] * _mm256_loadu_ps(x->step + i / 16 + 8)};
    GR_UNROLL
    for (int k = 0; k < 8; k++) {
        __m256i sum = kind.zero ? load32(x->correction + i / 4 + 8 * k) : _mm256_setzero_si256();
        sum = dot32(sum, u->q[k], load32(x->q + i + 32 * k), kind.sign);
        __m256i lanes = _mm256_setr_epi32(k % 4 * 2, k % 4 * 2, k % 4 * 2, k % 4 * 2, k % 4 * 2 + 1,
                                          k % 4 * 2 + 1, k % 4 * 2 + 1, k % 4 * 2 + 1);
        __m256 f = _mm256_permutevar8x32_ps(s[k / 4], lanes);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), f, acc);
    }
    if (kind.min) {
        acc = _mm256_fmadd_ps(u->m[0], _mm256_loadu_ps(x->sum + i / 16), acc);
        acc = _mm256_fmadd_ps(u->m[1], _mm256_loadu_ps(x->sum + i / 16 + 8), acc);
    }
    return acc;
}

/* One row with n entries. */
GR_INLINE void dot_row(uint32_t dtype, const char *row, int64_t n_in, const struct int8_few *x,
                       int n, float *sum, int64_t ld)
{
    struct unit_kind kind = unit_kind(dtype);
    __m256 acc[MM_MANY];
    struct unit u;
    for (int t = 0; t < n; t++)
        acc[t] = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 256 <= n_in; i += 256, row += unit_bytes(dtype)) {
        unpack(dtype, row, &u);
        for (int t = 0; t < n; t++)
            acc[t] = dot_unit(&u, kind, &x[t], i, acc[t]);
    }
    if (i < n_in) {
        unpack_tail(dtype, row, unit_bytes(dtype) / 8 * (size_t)(n_in - i) / 32, &u);
        for (int t = 0; t < n; t++)
            acc[t] = dot_unit(&u, kind, &x[t], i, acc[t]);
    }
    for (int t = 0; t < n; t++)
        sum[t * ld] = sum8(acc[t]);
}

GR_INLINE void dot_rows(uint32_t dtype, const struct int8_shape *s, const char *w,
                        int64_t row_bytes, int64_t lo, int64_t hi, const struct int8_few *x, int n,
                        float *sum, int64_t ld)
{
    for (int64_t o = lo; o < hi; o++)
        if (n == 1) /* the accumulator in a register */
            dot_row(dtype, w + o * row_bytes, s->n_in, x, 1, sum + o - lo, ld);
        else
            dot_row(dtype, w + o * row_bytes, s->n_in, x, n, sum + o - lo, ld);
}

void FN(int8_dot)(const struct int8_shape *s, const char *w, int64_t row_bytes, int64_t lo,
                  int64_t hi, const char *x, int64_t n, float *sum, int64_t ld)
{
    struct int8_few few[MM_MANY];
    for (int64_t t = 0; t < n; t++)
        few[t] = int8_few(s, (void *)(uintptr_t)(x + t * s->stride));
    switch (s->dtype) {
#define TYPE(name)                                                                                 \
    case GR_##name:                                                                                \
        dot_rows(GR_##name, s, w, row_bytes, lo, hi, few, (int)n, sum, ld);                        \
        break;
        TYPE(Q4_0)
        TYPE(Q4_1)
        TYPE(Q5_0)
        TYPE(Q5_1)
        TYPE(Q8_0)
        TYPE(Q2_K)
        TYPE(Q3_K)
        TYPE(Q4_K)
        TYPE(Q5_K)
        TYPE(Q6_K)
#undef TYPE
    default:
        break;
    }
}
