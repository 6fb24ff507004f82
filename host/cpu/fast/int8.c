#include "cpu/fast/int8.h"

#include <math.h>
#include <string.h>

/* ---- activations ---- */

/* Quantises 32 columns; returns the step. Values all below 2^-120 become 0; with NaN or infinity
 * the step is NaN. */
GR_INLINE float quantize_32(const float *x, int8_t *q)
{
    const int32_t infinity = 0x7f800000;
    vi magnitude = vi_set(0);
    for (int i = 0; i < 32; i += VL)
        magnitude = vi_max(magnitude, vi_and(vi_load(x + i), vi_set(INT32_MAX)));
    const int32_t bits = vi_largest(magnitude);
    float top, inv;
    memcpy(&top, &bits, sizeof top);
    inv = bits < infinity && top > 0x1p-120f ? 127 / top : 0;
    for (int i = 0; i < 32; i += VL)
        vf_store_s8(q + i, vf_load(x + i) * vf_set(inv));
    return bits >= infinity ? NAN : inv > 0 ? top / 127 : 0;
}

/* Stores the sums of the two halves of 32 quants. Sums of bytes are of u8: 128 is added to each. */
GR_INLINE void sums_of_16(const int8_t *q, int32_t sum[2])
{
    const __m256i bytes = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)q),
                                           _mm256_set1_epi8(-128)),
                  eights = _mm256_sad_epu8(bytes, _mm256_setzero_si256()),
                  all = _mm256_add_epi32(eights, _mm256_unpackhi_epi64(eights, eights));
    sum[0] = _mm256_extract_epi32(all, 0) - 16 * 128;
    sum[1] = _mm256_extract_epi32(all, 4) - 16 * 128;
}

void FN(int8_quantize)(const float *x, int64_t n, int64_t cols, int8_t *q, float *step,
                       int32_t *sum)
{
    for (int64_t i = 0; i < n; i += 32)
        step[i / 32] = quantize_32(x + i, q + i);
    memset(q + n, 0, (size_t)(cols - n));
    memset(step + n / 32, 0, (size_t)(cols - n) / 32 * sizeof *step);
    for (int64_t i = 0; i < cols; i += 32)
        sums_of_16(q + i, sum + i / 16);
}

enum { COLUMNS = 512 }; /* quantised together, whole units */

static struct int8_row row_of(void *local)
{
    int8_t *q = local;
    float *step = (float *)(void *)(q + COLUMNS);
    return (struct int8_row){q, step, (int32_t *)(void *)(step + COLUMNS / 32), 0, 0};
}

/* Stores columns of entry t of a tile. */
static void put_many(const struct int8_shape *s, const struct int8_row *r, char *x, int64_t tile,
                     int64_t t)
{
    struct int8_many f = int8_many(s, x, tile);
    float *step = (float *)f.step;
    int64_t group = s->kind.group, first = r->col / 32, first_group = r->col / group;
    for (int64_t g = 0; g < r->cols / 32; g++) {
        memcpy(x + ((first + g) * tile + t) * 32, r->q + 32 * g, 32);
        step[(first + g) * tile + t] = r->step[g];
    }
    for (int64_t g = 0; g < r->cols / group; g++) {
        int32_t sum = int8_sum(s, r, g);
        float scaled = int8_step(s, r, g) * (float)sum;
        sum *= -s->kind.zero;
        memcpy((char *)f.extra + ((first_group + g) * tile + t) * 4,
               s->kind.min ? (void *)&scaled : (void *)&sum, 4);
    }
}

static void convert(const struct mm *m, const struct mm_group *g, int64_t lo, int64_t hi,
                    int64_t col, void *shared, void *local)
{
    struct int8_shape s = int8_shape(m);
    struct int8_row r = row_of(local);
    char *x = (char *)shared + (g->at + lo) * s.stride;
    int64_t tile = int8_tile(lo, g->n);
    r.col = col, r.cols = GR_MIN(COLUMNS, s.cols - col);
    for (int64_t i = 0; i < hi - lo; i++) {
        FN(int8_quantize)
        (mm_x(m, g, lo + i) + col, GR_MIN(COLUMNS, s.n_in - col), r.cols, r.q, r.step, r.sum);
        if (int8_in_place(m))
            FN(int8_put)(&s, &r, x + i * s.stride);
        else
            put_many(&s, &r, x, tile, i);
    }
    if (int8_in_place(m))
        return;
    memset(r.q, 0, COLUMNS);
    memset(r.step, 0, (COLUMNS / 32 + COLUMNS / 16) * 4);
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
        FN(int8_dot)(m, s, g, lo, hi, x + i * s->stride, n, sum[0]);
        for (int64_t t = 0; t < n; t++)
            FN(mm_finish)(m, g, i + t, lo, hi - lo, sum[t]);
    }
}

/* The size of a block. For few tiles it stays in L1, with the columns of x that it is multiplied
 * with: of two tiles they leave room for two units. For more, sums would be loaded and stored too
 * often: it is larger, in L2. The limits are measured, with Q4_K, Q6_K and Q8_0. */
struct block_size {
    int64_t n_panel, n_unit;
};

static struct block_size block_size(int64_t n)
{
    if (n > (VL == 16 ? 5 : 2) * INT8_TILE)
        return (struct block_size){INT8_ROWS / VL, 8};
    return (struct block_size){32 / VL, VL == 16 && n <= 2 * INT8_TILE ? 2 : 1};
}

/* Entries multiplied with a block at most, whole tiles; steps of int8_ahead behind each panel. */
enum { SLAB = 84 * 12, PACK_ASKS = 3 };
_Static_assert(SLAB % INT8_TILE == 0, "whole tiles");

/* Multiplies rows [lo, hi), n_panel * VL at most, with entries [first, last), block by block; a
 * block is unpacked once for all their tiles. Meanwhile as many rows from `next` on are asked for,
 * a little with each group of a tile and more behind each panel. local: sums [last - first,
 * INT8_ROWS], then the block. */
static void many(const struct mm *m, const struct int8_shape *s, const struct mm_group *g,
                 int64_t first, int64_t last, int64_t lo, int64_t hi, int64_t next, const char *x,
                 void *local, int8_tile_fn *meet)
{
    const struct block_size size = block_size(g->n);
    const int64_t n_unit = s->cols / 256, n_sum = GR_PAD(last - first, INT8_PAD) * INT8_ROWS,
                  n_part = (last - first + INT8_PART - 1) / INT8_PART,
                  most = size.n_panel * size.n_unit * VL;
    float *sum = local;
    struct int8_block b = {.n_panel = GR_PAD((hi - lo + VL - 1) / VL, INT8_PANELS),
                           .d = sum + n_sum};
    b.m = b.d + most * 16;
    b.q = (uint8_t *)(b.m + most * 16);
    struct int8_ahead a =
        int8_ahead(m, g, next, size.n_panel * VL,
                   n_unit * b.n_panel * PACK_ASKS +
                       n_unit * b.n_panel / INT8_PANELS * n_part * 256 / s->kind.group);
    memset(sum, 0, (size_t)n_sum * sizeof *sum);
    for (; b.u < n_unit; b.u += b.n_unit) {
        b.n_unit = GR_MIN(size.n_unit, n_unit - b.u);
        for (int64_t i = 0; i < b.n_panel; i++)
            for (int64_t u = 0; u < b.n_unit; u++) {
                const struct int8_panel p = int8_panel(&b, i, u, s->kind.group);
                FN(int8_pack)
                (s, gr_ten_row(m->w, g->expert, lo + i * VL), m->w->row_bytes,
                 GR_MIN(VL, hi - lo - i * VL), b.u + u, &p);
                for (int k = 0; k < PACK_ASKS; k++)
                    int8_ask(&a);
            }
        for (int64_t i = first, tile; i < last; i += tile) {
            tile = int8_tile(i, last);
            float *of_tile = sum + (i - first) * INT8_ROWS;
            meet(s, &b, x + i * s->stride, tile, &a, of_tile);
            for (int64_t t = 0; b.u + b.n_unit == n_unit && t < GR_MIN(tile, last - i); t++)
                FN(mm_finish)(m, g, i + t, lo, hi - lo, of_tile + t * INT8_ROWS);
        }
    }
}

void FN(int8_multiply)(const struct mm *m, const struct int8_shape *s, const struct mm_group *g,
                       int64_t lo, int64_t hi, const void *shared, void *local, int8_tile_fn *tile)
{
    const char *x = (const char *)shared + g->at * s->stride;
    if (int8_in_place(m)) {
        few(m, s, g, lo, hi, x);
        return;
    }
    const int64_t step = block_size(g->n).n_panel * VL;
    for (int64_t i = 0; i < g->n; i += SLAB)
        for (int64_t o = lo; o < hi; o += step) {
            int64_t next = o + step < hi ? o + step : int8_next(m, lo);
            many(m, s, g, i, GR_MIN(i + SLAB, g->n), o, GR_MIN(o + step, hi), next, x, local, tile);
        }
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
    const struct block_size size = block_size(INT64_MAX); /* the largest */
    size_t row = COLUMNS * 3 / 2,
           sums = (size_t)(GR_PAD(GR_MIN(m->n_entry, SLAB), INT8_PAD) * INT8_ROWS) * sizeof(float);
    return GR_MAX(row, sums + (size_t)(size.n_panel * size.n_unit * VL) *
                                  (256 + 2 * 16 * sizeof(float)));
}

const struct mm_engine FN(mm_int8) = {.convert = convert,
                                      .grain = INT8_TILE,
                                      .columns = COLUMNS,
                                      .multiply = multiply,
                                      .chunk = chunk,
                                      .shared_bytes = shared_bytes,
                                      .local_bytes = local_bytes};
