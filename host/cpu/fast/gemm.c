/* The f32 matrix product used for float weights and attention: C [m, n] += A [m, k] B [k, n].
 *
 * B's rows are vectors, A's elements are broadcast. A block of C of MR rows by NR vectors stays in
 * registers; each step of k loads NR vectors and broadcasts MR elements for MR * NR multiply-adds,
 * so 6 x 4 (6 x 2 with 16 registers) keeps the multipliers busy from L1 and L2. Every sum runs in
 * order of k. */
#include "cpu/fast/fast.h"

enum { MR = 6, NR = VL == 16 ? 4 : 2 };

GR_INLINE void block(const float *const *a, const float *b, int64_t ldb, int64_t k, float *c,
                     int64_t ldc, int mr, int nr)
{
    vf acc[MR][NR];
    GR_UNROLL
    for (int i = 0; i < mr; i++)
        GR_UNROLL
    for (int j = 0; j < nr; j++)
        acc[i][j] = vf_load(c + i * ldc + j * VL);
    for (int64_t p = 0; p < k; p++, b += ldb) {
        vf w[NR];
        GR_UNROLL
        for (int j = 0; j < nr; j++)
            w[j] = vf_load(b + j * VL);
        GR_UNROLL
        for (int i = 0; i < mr; i++) {
            vf x = vf_set(a[i][p]);
            GR_UNROLL
            for (int j = 0; j < nr; j++)
                acc[i][j] = vf_fma(x, w[j], acc[i][j]);
        }
    }
    GR_UNROLL
    for (int i = 0; i < mr; i++)
        GR_UNROLL
    for (int j = 0; j < nr; j++)
        vf_store(c + i * ldc + j * VL, acc[i][j]);
}

typedef void block_fn(const float *const *a, const float *b, int64_t ldb, int64_t k, float *c,
                      int64_t ldc);
#define BLOCK(m, n)                                                                                \
    static void block_##m##_##n(const float *const *a, const float *b, int64_t ldb, int64_t k,     \
                                float *c, int64_t ldc)                                             \
    {                                                                                              \
        block(a, b, ldb, k, c, ldc, m, n);                                                         \
    }
#define BLOCKS(n) BLOCK(1, n) BLOCK(2, n) BLOCK(3, n) BLOCK(4, n) BLOCK(5, n) BLOCK(6, n)
#define NAMES(n)                                                                                   \
    {                                                                                              \
        block_1_##n, block_2_##n, block_3_##n, block_4_##n, block_5_##n, block_6_##n               \
    }
BLOCKS(1)
BLOCKS(2)
#ifdef GR_LEVEL_avx512
BLOCKS(3)
BLOCKS(4)
static block_fn *const blocks[NR][MR] = {NAMES(1), NAMES(2), NAMES(3), NAMES(4)};
#else
static block_fn *const blocks[NR][MR] = {NAMES(1), NAMES(2)};
#endif

void FN(gemm)(const float *const *a, int64_t m, const float *b, int64_t ldb, int64_t k, int64_t n,
              float *c, int64_t ldc)
{
    for (int64_t j = 0; j < n; j += NR * VL) {
        int64_t nr = GR_MIN(NR, (n - j) / VL);
        for (int64_t i = 0; i < m; i += MR)
            blocks[nr - 1][GR_MIN(MR, m - i) - 1](a + i, b + j, ldb, k, c + i * ldc + j, ldc);
    }
}

void FN(transpose)(const void *src, int64_t ld, int64_t n_rows, int64_t n_cols, void *dst,
                   int64_t ld_dst)
{
    const int32_t *s = src;
    int32_t *d = dst;
    for (int64_t j = 0; j < n_cols; j += VL) {
        vi r[VL];
        for (int i = 0; i < VL; i++)
            r[i] = i < n_rows ? vi_load(s + i * ld + j) : vi_set(0);
        vi_transpose(r);
        GR_UNROLL
        for (int i = 0; i < VL; i++)
            vi_store(d + (j + i) * ld_dst, r[i]);
    }
}
