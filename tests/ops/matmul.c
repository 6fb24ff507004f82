#include <criterion/criterion.h>
#include <math.h>

#include "base/checked.h"
#include "gr/pack.h"
#include "ops/ops.h"

/* Error bound of a product of x [n_in] and a row w [n_in] on a fast level.
 *
 * Float weights: f32 products and sums: each of the n_in additions rounds a partial sum, whose
 * magnitude the sum of |x w| bounds. BF16 weights may round x to bf16 too (2^-9 of each product).
 * Quantised weights: x is rounded to s8 in groups of 32 columns, step = largest / 127, so each
 * product is off by half a step of its w at most; integer sums are exact, and the scaled sums of
 * the n_in / 16 groups add up in f32, whose terms d * q . x and m * sum(x) may each be larger than
 * the product itself: |w|'s two parts are below 3 times the largest |w| of the group.
 *
 * That is the worst case. Rounding errors are random, so that squared errors add up to their
 * variances: step^2 / 12 of each x, at most (2^-9 x)^2 for bf16. This finds a column that is
 * missing, which the worst case would hide. */
struct bound {
    double exact, terms, error, variance;
    double device_error, device_variance;
};

/* On a GPU x is rounded to f16 after its row was multiplied by a power of two that brings the
 * largest to 2^10 or so: 2^-11 of each, and 2^-34 of the largest. A weight may be rounded to f16
 * when it is multiplied with its scale, and its two parts meet x one by one, as above. Tensor cores
 * may cut sums where an FMA rounds them. BF16 weights: as above; F32 weights: f32 sums. */
static void bound_device(struct bound *b, uint32_t type, const double *x, const double *w,
                         int64_t n)
{
    double x_max = 0, w_sum = 0;
    b->device_error = 2 * b->error, b->device_variance = 2 * b->variance;
    if (type == GR_F32 || type == GR_BF16)
        return;
    b->device_error = b->terms * (double)(n + 8) * 0x1p-22, b->device_variance = 0;
    for (int64_t g = 0; g < n; g += 32) {
        double w_max = 0, x_sum = 0;
        for (int64_t i = g; i < GR_MIN(g + 32, n); i++) {
            x_max = GR_MAX(x_max, fabs(x[i])), w_max = GR_MAX(w_max, fabs(w[i]));
            x_sum += fabs(x[i]), w_sum += fabs(w[i]);
        }
        b->device_error += 3 * w_max * x_sum * 0x1p-10;
        b->device_variance +=
            w_max * w_max * x_sum * x_sum / (double)(GR_MIN(g + 32, n) - g) * 0x1p-22;
    }
    b->device_error += w_sum * x_max * 0x1p-34;
}

static struct bound bound_of(uint32_t type, const double *x, const double *w, int64_t n)
{
    struct bound b = {0, 0, 0, 0, 0, 0};
    bool quantised = type != GR_F32 && type != GR_F16 && type != GR_BF16;
    for (int64_t g = 0; g < n; g += 32) {
        int64_t end = GR_MIN(g + 32, n);
        double x_max = 0, w_max = 0, x_sum = 0, w_sum = 0, w_sq = 0;
        for (int64_t i = g; i < end; i++) {
            x_max = GR_MAX(x_max, fabs(x[i]));
            w_max = GR_MAX(w_max, fabs(w[i]));
            x_sum += fabs(x[i]), w_sum += fabs(w[i]);
            w_sq += w[i] * w[i];
            b.exact += x[i] * w[i];
            b.variance += type == GR_BF16 ? x[i] * w[i] * x[i] * w[i] * 0x1p-18 : 0;
            b.terms += fabs(x[i] * w[i]);
        }
        if (!quantised)
            continue;
        b.error += w_sum * x_max / 127 * 0.501 + 3 * w_max * x_sum * 0x1p-24 * (double)(n / 16 + 8);
        b.variance += w_sq * x_max * x_max / (127 * 127 * 12);
    }
    if (type == GR_BF16)
        b.error += b.terms * 0x1p-8;
    b.error += b.terms * (double)(n + 8) * 0x1p-24;
    bound_device(&b, type, x, w, n);
    return b;
}

/* One element: what it must be, and how far off it may be; `rest` are terms that are added. */
static void expect_one(struct ops_out *o, int64_t i, const struct bound *b, double scale,
                       double rest_sum, double rest)
{
    double terms = b->terms * fabs(scale) + rest;
    double round = terms * 0x1p-22 + 0x1p-126;
    o->want[i] = b->exact * scale + rest_sum;
    double f32 = fabs(o->want[i]) * (0x1p-24 + 1e-12) + 0x1p-149; /* ops_round_to_f32 */
    o->tol_ref[i] = f32 + terms * 1e-13;
    o->tol_fast[i] = f32 + b->error * fabs(scale) + round;
    o->tol_device[i] = f32 + b->device_error * fabs(scale) + round;
    o->squares += b->variance * scale * scale;
    o->squares_device += b->device_variance * scale * scale;
}

struct mm {
    uint32_t type;
    int64_t n_tok, n_out, n_in;
    bool bias, res, in_place;
    float scale;
};

static void expect(struct ops_case *c, const struct gr_args_matmul *a, enum ops_data data)
{
    int64_t n_in = a->w.cols, n_out = a->w.rows;
    const double *x = ops_values(c, &a->x), *w = ops_values(c, &a->w);
    const double *b = gr_ten_is(&a->b) ? ops_values(c, &a->b) : NULL;
    const double *res = gr_ten_is(&a->res) ? ops_values(c, &a->res) : NULL;
    struct ops_out *o = ops_expect(c, &a->y);
    ops_device_tolerance(c, o);
    for (int64_t i = 0; i < ops_count(&a->y); i++) {
        double bias = b ? b[i % n_out] : 0, r = res ? res[i] : 0;
        struct bound k = bound_of(a->w.dtype, x + i / n_out * n_in, w + i % n_out * n_in, n_in);
        expect_one(o, i, &k, (double)a->scale, bias + r, fabs(bias) + fabs(r));
    }
    if (data != OPS_NORMAL) /* few of the errors count */
        o->squares = o->squares_device = 0;
}

static void matmul_case(struct mm s, enum ops_data data)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_MATMUL, 14,
                  "type %s, [%lld, %lld] x [%lld, %lld], bias %d, res %d, data %d",
                  gr_dtype_name(s.type), (long long)s.n_tok, (long long)s.n_in, (long long)s.n_out,
                  (long long)s.n_in, s.bias, s.res, data);
    struct gr_args_matmul *a = &c.node.a.matmul;
    bool wide = s.type == GR_F32 || s.type == GR_BF16;
    enum ops_data w_data = wide || data == OPS_SPIKES || data == OPS_ZERO ? data : OPS_NORMAL;
    *a = (struct gr_args_matmul){.x = ops_random(&c, GR_F32, 1, s.n_tok, s.n_in, data),
                                 .w = ops_random(&c, s.type, 1, s.n_out, s.n_in, w_data),
                                 .scale = s.scale};
    if (s.bias)
        a->b = ops_random(&c, GR_F32, 1, 1, s.n_out, OPS_NORMAL);
    if (s.res)
        a->res = ops_random(&c, GR_F32, 1, s.n_tok, s.n_out, OPS_NORMAL);
    a->y = s.res && s.in_place ? a->res : ops_new(&c, GR_F32, 1, s.n_tok, s.n_out);
    expect(&c, a, data);
    ops_check(&c);
    ops_case_fini(&c);
}

Test(matmul, all_types)
{
    for (uint32_t id = 0; id < 64; id++) {
        bool listed = false;
        for (const int *type = ops_weight_types; *type >= 0; type++)
            listed |= (uint32_t)*type == id;
        cr_assert_eq(gr_pack_is(id), listed, "type %s", gr_dtype_name(id));
    }
}

/* A few tokens, some and many, in more than one block of every type. */
Test(matmul, every_type)
{
    static const int64_t n_tok[] = {1, 3, 12, 35};
    for (const int *type = ops_weight_types; *type >= 0; type++)
        for (size_t i = 0; i < GR_COUNT(n_tok); i++)
            matmul_case((struct mm){(uint32_t)*type, n_tok[i], 19, 512, false, false, false, 1},
                        OPS_NORMAL);
}

/* Every token count that a tile or its edge can have, on odd numbers of rows. */
Test(matmul, tokens)
{
    static const int64_t n_tok[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33};
    for (const int *type = ops_layout_types; *type >= 0; type++)
        for (size_t i = 0; i < GR_COUNT(n_tok); i++)
            matmul_case((struct mm){(uint32_t)*type, n_tok[i], 37, 256, i % 2, i % 3 == 0,
                                    i % 4 < 2, i % 2 ? 1 : 0.5f},
                        OPS_NORMAL);
}

Test(matmul, rows)
{
    static const int64_t n_out[] = {1, 2, 15, 16, 31, 32, 48, 65};
    for (const int *type = ops_layout_types; *type >= 0; type++)
        for (size_t i = 0; i < GR_COUNT(n_out); i++) {
            matmul_case((struct mm){(uint32_t)*type, 1, n_out[i], 512, false, false, false, 1},
                        OPS_NORMAL);
            matmul_case((struct mm){(uint32_t)*type, 11, n_out[i], 768, true, true, true, 1},
                        OPS_NORMAL);
        }
}

/* Shapes at the ends of a GPU's tiles of tokens and rows, and rows that end inside a block of
 * 256. */
Test(matmul, tiles)
{
    static const int64_t n_tok[] = {40, 64, 65, 130}, n_out[] = {17, 128, 145, 16};
    static const int64_t n_in[] = {320, 64, 416, 288};
    for (const int *type = ops_layout_types; *type >= 0; type++)
        for (size_t i = 0; i < GR_COUNT(n_tok); i++) {
            int64_t block = gr_dtype_find((uint32_t)*type)->block;
            int64_t cols = n_in[i] % block ? 256 + 512 * (int64_t)(i % 2) : n_in[i];
            matmul_case((struct mm){(uint32_t)*type, n_tok[i], n_out[i], cols, i % 2, i % 2 == 0,
                                    i == 2, i % 2 ? 1 : 0.5f},
                        OPS_NORMAL);
        }
}

/* F32 weights of few rows and many columns, whose columns a GPU divides among blocks. */
Test(matmul, routers)
{
    static const int64_t n_tok[] = {1, 2, 8, 20}, n_out[] = {3, 128, 512, 40};
    static const int64_t n_in[] = {2048, 1100, 544, 1025};
    for (size_t i = 0; i < GR_COUNT(n_tok); i++)
        for (size_t k = i % 2; k < GR_COUNT(n_out); k += 2)
            matmul_case((struct mm){GR_F32, n_tok[i], n_out[k], n_in[(i + k) % GR_COUNT(n_in)],
                                    k % 2, k > 1, i % 2, k % 2 ? 1 : 0.5f},
                        OPS_NORMAL);
}

/* Every width that wgmma multiplies packed x in, to its edges; columns cut into segments that are
 * not alike: 9, 5 and 7 chunks in 4, 2 and 3 of them, with a last chunk that is not whole. */
Test(matmul, widths)
{
    static const int64_t n_tok[] = {25, 33,  49,  63,  64,  65,  80,  81, 96,
                                    97, 112, 113, 120, 121, 127, 128, 129};
    static const struct {
        uint32_t type;
        int64_t n_in;
    } w[] = {{GR_Q4_K, 2304}, {GR_Q8_0, 1056}, {GR_BF16, 1602}};
    for (size_t t = 0; t < GR_COUNT(w); t++)
        for (size_t i = 0; i < GR_COUNT(n_tok); i++)
            matmul_case((struct mm){w[t].type, n_tok[i], i == 5 ? 145 : 21, w[t].n_in, i % 2,
                                    i % 2 == 0, i == 2, i % 2 ? 1 : 0.5f},
                        OPS_NORMAL);
}

/* Every width of the narrow kernels of wgmma; twice rows for 34 pieces of 256, one more than are
 * cut into halves of the tokens. */
Test(matmul, narrow)
{
    static const uint32_t type[] = {GR_Q4_0, GR_Q2_K, GR_Q3_K,  GR_Q4_K,
                                    GR_Q5_K, GR_Q6_K, GR_IQ4_XS};
    for (size_t i = 0; i < GR_COUNT(type); i++)
        matmul_case((struct mm){type[i], 65 + 8 * (int64_t)i + (int64_t)i % 3 * 3,
                                (i == 3 ? 33 : 1) * 256 + 17, i == 3 ? 512 : 256, i % 2, i % 2 == 0,
                                i == 2, 1},
                    OPS_NORMAL);
    matmul_case((struct mm){GR_Q4_K, 120, 33 * 256 + 17, 256, false, false, false, 1}, OPS_NORMAL);
}

/* Few tokens whose packed x a multiprocessor's L1 holds, and one more, which wgmma takes; one of
 * rows that it does not hold. */
Test(matmul, few_of_long_rows)
{
    static const struct {
        uint32_t type;
        int64_t n_tok, n_in;
    } of[] = {{GR_Q4_K, 4, 14336}, {GR_Q4_K, 5, 14336}, {GR_Q6_K, 9, 8192},
              {GR_F16, 24, 4096},  {GR_BF16, 15, 4096}, {GR_Q8_0, 1, 61440}};
    for (size_t i = 0; i < GR_COUNT(of); i++)
        matmul_case((struct mm){of[i].type, of[i].n_tok, 21, of[i].n_in, i % 2, i % 2 == 0, i == 2,
                                i % 2 ? 1 : 0.5f},
                    OPS_NORMAL);
}

/* Rows of x that are longer than a block packs from registers. */
Test(matmul, long_rows)
{
    matmul_case((struct mm){GR_Q4_0, 25, 17, 16384 + 4096 + 288, false, false, false, 1},
                OPS_NORMAL);
    matmul_case((struct mm){GR_BF16, 26, 16, 8192 + 4096 + 258, true, false, false, 1}, OPS_NORMAL);
}

/* More pieces of work on wgmma than 66 clusters have at once: the 67th is cut into two segments, or
 * halves of its tokens; its second block has copies of rows alone. */
Test(matmul, left_pieces)
{
    static const struct {
        int64_t n_tok, n_in;
    } of[] = {{25, 2048}, {70, 288}};
    for (size_t i = 0; i < GR_COUNT(of) && !ops_on_cpu(); i++)
        matmul_case(
            (struct mm){GR_Q4_0, of[i].n_tok, 66 * 256 + 100, of[i].n_in, true, true, false, 1},
            OPS_NORMAL);
}

/* Residuals of whole tiles of rows, of one tile of tokens or two, and of types with small chunks.
 */
Test(matmul, residuals)
{
    static const uint32_t type[] = {GR_Q4_K, GR_Q8_0, GR_F16, GR_Q2_K};
    static const int64_t n_tok[] = {40, 100, 130};
    for (size_t t = 0; t < GR_COUNT(type); t++)
        for (size_t i = 0; i < GR_COUNT(n_tok); i++)
            for (int64_t rows = 384; rows <= 512;
                 rows += 128) /* an odd number of tiles, an even one */
                matmul_case((struct mm){type[t], n_tok[i], rows, 512, i == 1, true, i > 0, 1},
                            OPS_NORMAL);
}

/* More entries than the CPU multiplies with rows at a time (int8.c), not a multiple of any tile. */
Test(matmul, slabs)
{
    static const uint32_t type[] = {GR_Q4_K, GR_Q8_0, GR_Q6_K, GR_IQ3_S};
    for (size_t t = 0; t < GR_COUNT(type) && ops_on_cpu(); t++)
        matmul_case((struct mm){type[t], 1021, 19, 512, t % 2, t % 2, false, 1}, OPS_NORMAL);
}

Test(matmul, data)
{
    for (const int *type = ops_layout_types; *type >= 0; type++)
        for (enum ops_data data = 0; data < OPS_N_DATA; data++) {
            matmul_case((struct mm){(uint32_t)*type, 1, 19, 256, false, false, false, 1}, data);
            matmul_case((struct mm){(uint32_t)*type, 12, 35, 512, false, true, false, 1}, data);
            matmul_case((struct mm){(uint32_t)*type, 35, 20, 512, false, true, false, 1}, data);
        }
}

/* Row lengths that are whole blocks but no whole tiles, and float rows of any length. */
Test(matmul, columns)
{
    for (const int *type = ops_layout_types; *type >= 0; type++) {
        int64_t block = gr_dtype_find((uint32_t)*type)->block;
        for (int64_t k = 1; k <= 70; k += k < 20 ? 1 : 7) {
            if (k * block > 2304)
                continue;
            matmul_case((struct mm){(uint32_t)*type, 1, 18, k * block, false, false, false, 1},
                        OPS_NORMAL);
            matmul_case((struct mm){(uint32_t)*type, 10, 18, k * block, false, false, false, 1},
                        OPS_NORMAL);
        }
    }
}

/* More tiles than a small device holds blocks, of rows whose steps are more than a turn of the
 * warps of a block: the last turn is not full, and turns are odd or even. */
Test(matmul, runs)
{
    for (const int *type = ops_layout_types; *type >= 0; type++) {
        matmul_case((struct mm){(uint32_t)*type, 1, 87, 2304, true, false, false, 1}, OPS_NORMAL);
        matmul_case((struct mm){(uint32_t)*type, 9, 50, 1536, false, true, true, 1}, OPS_NORMAL);
    }
}

/* The expert of pair i: per_expert says how many pairs each has; NULL: distinct ones for a token,
 * and far from evenly spread. */
static int32_t expert_of(const int *per_expert, int64_t i, int64_t n, int64_t n_used,
                         int64_t n_expert)
{
    if (!per_expert)
        return (int32_t)((i % n_used + (i / n_used % 5 == 0 ? i / n_used : 0)) % n_expert);
    int32_t e = 0;
    for (i = i * 101 % n; i >= per_expert[e]; e++) /* the pairs of an expert stand apart */
        i -= per_expert[e];
    return e;
}

static void matmul_id_case(uint32_t type, int64_t n_tok, int64_t n_used, int64_t n_expert,
                           int64_t n_out, int64_t n_in, bool own_rows, bool bias,
                           const int *per_expert)
{
    struct ops_case c;
    int64_t n = n_tok * n_used;
    ops_case_init(&c, GR_OP_MATMUL_ID, 15,
                  "type %s, %lld tokens, %lld of %lld experts [%lld, %lld], own rows %d",
                  gr_dtype_name(type), (long long)n_tok, (long long)n_used, (long long)n_expert,
                  (long long)n_out, (long long)n_in, own_rows);
    struct gr_args_matmul_id *a = &c.node.a.matmul_id;
    *a = (struct gr_args_matmul_id){
        .x = ops_random(&c, GR_F32, 1, own_rows ? n : n_tok, n_in, OPS_NORMAL),
        .w = ops_random(&c, type, n_expert, n_out, n_in, OPS_NORMAL),
        .ids = ops_new(&c, GR_I32, 1, n_tok, n_used),
        .y = ops_new(&c, GR_F32, 1, n, n_out)};
    if (bias) {
        a->b = ops_random(&c, GR_F32, 1, n_expert, n_out, OPS_NORMAL);
        a->s = ops_random(&c, GR_F32, 1, 1, n_expert, OPS_NORMAL);
    }
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)gr_ten_row(&a->ids, 0, i / n_used))[i % n_used] =
            expert_of(per_expert, i, n, n_used, n_expert);
    const double *x = ops_values(&c, &a->x), *w = ops_values(&c, &a->w),
                 *ids = ops_values(&c, &a->ids);
    const double *b = bias ? ops_values(&c, &a->b) : NULL, *s = bias ? ops_values(&c, &a->s) : NULL;
    struct ops_out *o = ops_expect(&c, &a->y);
    ops_device_tolerance(&c, o);
    for (int64_t i = 0; i < n * n_out; i++) {
        int64_t row = i / n_out, e = (int64_t)ids[row], at = e * n_out + i % n_out;
        struct bound k =
            bound_of(type, x + (own_rows ? row : row / n_used) * n_in, w + at * n_in, n_in);
        expect_one(o, i, &k, s ? (float)s[e] : 1, b ? b[at] : 0, b ? fabs(b[at]) : 0);
    }
    ops_check(&c);
    ops_case_fini(&c);
}

Test(matmul_id, types)
{
    for (const int *type = ops_weight_types; *type >= 0; type++) {
        matmul_id_case((uint32_t)*type, 1, 2, 4, 33, 256, false, false, NULL);
        matmul_id_case((uint32_t)*type, 29, 3, 7, 20, 512, true, true, NULL);
    }
}

Test(matmul_id, shapes)
{
    static const uint32_t types[] = {GR_F32, GR_Q8_0, GR_Q4_K};
    for (size_t i = 0; i < GR_COUNT(types); i++) {
        matmul_id_case(types[i], 1, 1, 1, 1, 256, false, true, NULL);
        matmul_id_case(types[i], 2, 8, 8, 48, 256, true, false, NULL);
        matmul_id_case(types[i], 64, 2, 16, 17, 256, false, false, NULL);
        matmul_id_case(types[i], 150, 2, 3, 130, 256, false, true, NULL);
        matmul_id_case(types[i], 5, 4, 64, 64, 768, true, true, NULL);
        matmul_id_case(types[i], 2, 3, 4, 40, 2304, false, true, NULL);
    }
}

/* Experts with no token, one, and as many as a width has, less and more. */
Test(matmul_id, widths)
{
    static const int n[] = {1, 31, 0, 129, 32, 33, 64, 65, 0};
    matmul_id_case(GR_Q4_K, 355, 1, GR_COUNT(n), 37, 512, true, true, n);
    matmul_id_case(GR_F16, 355, 1, GR_COUNT(n), 130, 96, false, false, n);
}

static void head_matmul_case(uint32_t type, int64_t n_tok, int64_t n_head, int64_t n_out,
                             int64_t n_in, int64_t n_pass)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_HEAD_MATMUL, 18, "type %s, %lld tokens, %lld heads [%lld, %lld] + %lld",
                  gr_dtype_name(type), (long long)n_tok, (long long)n_head, (long long)n_out,
                  (long long)n_in, (long long)n_pass);
    struct gr_args_head_matmul *a = &c.node.a.head_matmul;
    int64_t x_head = n_in + n_pass, y_head = n_pass + n_out;
    *a = (struct gr_args_head_matmul){
        .x = ops_random(&c, GR_F32, 1, n_tok, n_head * x_head, OPS_NORMAL),
        .w = ops_random(&c, type, n_head, n_out, n_in, OPS_NORMAL),
        .y = ops_new(&c, GR_F32, 1, n_tok, n_head * y_head)};
    const double *x = ops_values(&c, &a->x), *w = ops_values(&c, &a->w);
    struct ops_out *o = ops_expect(&c, &a->y);
    ops_device_tolerance(&c, o);
    for (int64_t i = 0; i < ops_count(&a->y); i++) {
        int64_t h = i / y_head % n_head, k = i % y_head - n_pass;
        const double *head = x + i / y_head * x_head; /* rows of heads follow each other */
        struct bound b = k < 0 ? (struct bound){.exact = head[n_in + n_pass + k]}
                               : bound_of(type, head, w + (h * n_out + k) * n_in, n_in);
        expect_one(o, i, &b, 1, 0, 0);
    }
    ops_check(&c);
    ops_case_fini(&c);
}

Test(head_matmul, types)
{
    for (const int *type = ops_weight_types; *type >= 0; type++) {
        head_matmul_case((uint32_t)*type, 1, 3, 33, 256, 64);
        head_matmul_case((uint32_t)*type, 13, 5, 40, 512, 0);
    }
}

Test(head_matmul, shapes)
{
    static const uint32_t types[] = {GR_F32, GR_BF16, GR_Q8_0};
    for (size_t i = 0; i < GR_COUNT(types); i++) {
        head_matmul_case(types[i], 1, 1, 1, 32, 1);
        head_matmul_case(types[i], 2, 16, 128, 512, 0);
        head_matmul_case(types[i], 7, 2, 17, 96, 5);
        head_matmul_case(types[i], 33, 4, 64, 128, 64);
        head_matmul_case(types[i], 140, 2, 130, 96, 3);
    }
}
