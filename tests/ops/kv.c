#include <criterion/criterion.h>
#include <math.h>

#include "base/checked.h"
#include "gr/planes.h"
#include "ops/ops.h"

double ops_storage_error(uint32_t type, double x, double m)
{
    switch (type) {
    case GR_F16:
        return fabs(x) * 0x1p-11 + 0x1p-25;
    case GR_BF16:
        return fabs(x) * 0x1p-8;
    case GR_Q8_0:
        return m / 127 * 0.5001 + fabs(x) * 0x1p-10 + 127 * 0x1p-25;
    case GR_Q4_0:
        return m / 8 * 1.0001 + fabs(x) * 0x1p-10 + 8 * 0x1p-25;
    case GR_Q4_1: /* of a range of 2 m at most, whose lower end is rounded too */
        return m / 15 * 1.0001 + m * 0x1p-10 + 16 * 0x1p-25;
    case GR_Q5_0:
        return m / 16 * 1.0001 + fabs(x) * 0x1p-10 + 16 * 0x1p-25;
    case GR_Q5_1:
        return m / 31 * 1.0001 + m * 0x1p-10 + 32 * 0x1p-25;
    case GR_IQ4_NL: /* the end at 113 of 127, and a scale that fits the squares best */
        return m * 0.19 + 127 * 0x1p-25;
    default:
        return 0;
    }
}

double ops_block_max(const double *x, int64_t col)
{
    double m = 0;
    for (int64_t i = col / 32 * 32; i < col / 32 * 32 + 32; i++)
        m = fmax(m, fabs(x[i]));
    return m;
}

void ops_rotate(const double *x, const double *cs, int64_t n, int64_t d, int64_t n_rot, int kind,
                double *y, double *terms)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t col = i % d, half = n_rot / 2;
        int64_t pair = kind == GR_ROPE_NEOX ? col % (half ? half : 1) : col / 2;
        bool second = kind == GR_ROPE_NEOX ? col >= half : col % 2;
        int64_t other = kind == GR_ROPE_NEOX ? (second ? i - half : i + half) : i ^ 1;
        if (kind == GR_ROPE_NONE || col >= n_rot) {
            y[i] = x[i], terms[i] = 0;
            continue;
        }
        double a = x[i] * cs[2 * pair], b = x[other] * cs[2 * pair + 1];
        y[i] = second ? a + b : a - b;
        terms[i] = fabs(a) + fabs(b);
    }
}

/* Rows of the cache that no token goes to keep their bytes. Fast: the rotation rounds its terms to
 * f32; a value that rounds to another quant is still within the bound of storage_error, of a step
 * that may differ as much. */
static void expect_store(struct ops_case *c, const struct gr_ten *cache, const int32_t *cells,
                         const double *rows, const double *terms, int64_t n_tok)
{
    struct ops_out *o = ops_expect(c, cache);
    int64_t n = cache->cols;
    for (int64_t i = 0; i < ops_count(cache); i++)
        o->want[i] = NAN;
    for (int64_t t = 0; t < n_tok; t++)
        for (int64_t i = 0; i < n; i++)
            o->want[cells[t] * n + i] = rows[t * n + i];
    ops_round_to_f32(o);
    for (int64_t t = 0; t < n_tok; t++)
        for (int64_t i = 0; i < n; i++) {
            int64_t at = cells[t] * n + i;
            double m = gr_planes_are(cache->dtype) ? ops_block_max(rows + t * n, i) : 0;
            double e = ops_storage_error(cache->dtype, rows[t * n + i], m);
            o->tol_ref[at] += e;
            o->tol_fast[at] += e * 1.001 + 0x1p-23 * (terms[t * n + i] + m) + 0x1p-149;
        }
}

static void store_case(uint32_t type_k, uint32_t type_v, int kind, int64_t n_tok, int64_t n_head_kv,
                       int64_t d_k, int64_t d_v, int64_t n_rot, enum ops_data data)
{
    struct ops_case c;
    enum { N_CELL = 23 };
    ops_case_init(&c, GR_OP_KV_STORE, 10,
                  "types %u %u, kind %d, %lld tokens, %lld x (%lld, %lld), data %d", type_k, type_v,
                  kind, (long long)n_tok, (long long)n_head_kv, (long long)d_k, (long long)d_v,
                  data);
    c.same_bits = true;
    struct gr_args_kv_store *a = &c.node.a.kv_store;
    *a = (struct gr_args_kv_store){.k = ops_random(&c, GR_F32, 1, n_tok, n_head_kv * d_k, data),
                                   .v = ops_random(&c, GR_F32, 1, n_tok, n_head_kv * d_v, data),
                                   .cells = ops_integers(&c, n_tok, 0, 1),
                                   .k_cache = ops_cache(&c, type_k, N_CELL, n_head_kv * d_k),
                                   .v_cache = ops_cache(&c, type_v, N_CELL, n_head_kv * d_v),
                                   .d_head_k = d_k,
                                   .kind = kind};
    if (kind != GR_ROPE_NONE)
        a->cs = ops_random(&c, GR_F32, 1, n_tok, n_rot, OPS_NORMAL);
    int32_t *cells = a->cells.data;
    for (int64_t t = 0; t < n_tok; t++)
        cells[t] = (int32_t)(t * 7 + 3) % N_CELL; /* scattered, each once */
    const double *k = ops_values(&c, &a->k),
                 *cs = gr_ten_is(&a->cs) ? ops_values(&c, &a->cs) : NULL;
    double *roped = ops_doubles(&c, ops_count(&a->k)), *terms = ops_doubles(&c, ops_count(&a->k));
    double *none = ops_doubles(&c, ops_count(&a->v));
    for (int64_t t = 0, n = a->k.cols; t < n_tok; t++)
        ops_rotate(k + t * n, cs ? cs + t * n_rot : NULL, n, d_k, n_rot, kind, roped + t * n,
                   terms + t * n);
    expect_store(&c, &a->k_cache, cells, roped, terms, n_tok);
    expect_store(&c, &a->v_cache, cells, ops_values(&c, &a->v), none, n_tok);
    ops_check(&c);
    ops_case_fini(&c);
}

Test(kv_store, types_and_kinds)
{
    for (const int *k = ops_cache_types; *k >= 0; k++)
        for (const int *v = ops_cache_types; *v >= 0; v++)
            for (int kind = GR_ROPE_NONE; kind <= GR_ROPE_NEOX; kind++)
                store_case((uint32_t)*k, (uint32_t)*v, kind, 1 + (kind + *k) % 3 * 4, 1 + *v % 4,
                           64, 96, kind == GR_ROPE_NEOX ? 48 : 64,
                           *k % 2 ? OPS_SPIKES : OPS_NORMAL);
}

Test(kv_store, odd_heads_and_data)
{
    for (enum ops_data data = 0; data < OPS_N_DATA; data++) {
        store_case(GR_F32, GR_F32, GR_ROPE_NORM, 3, 3, 10, 7, 4, data);
        store_case(GR_BF16, GR_BF16, GR_ROPE_NEOX, 2, 5, 20, 33, 20, data);
        if (data == OPS_HUGE)
            continue; /* beyond f16 */
        store_case(GR_F16, GR_F16, GR_ROPE_NEOX, 23, 1, 36, 1, 30, data);
        store_case(GR_Q8_0, GR_Q4_0, GR_ROPE_NORM, 2, 2, 32, 32, 32, data);
    }
}

/* The rotation is taken of the stored value and rounded once more. */
static void shift_case(uint32_t type, int kind, int64_t n_cell, int64_t n_head_kv, int64_t d,
                       int64_t n_rot)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_KV_SHIFT, 11, "type %u, kind %d, %lld cells, %lld x %lld", type, kind,
                  (long long)n_cell, (long long)n_head_kv, (long long)d);
    /* blocks that do not turn are left alone; the reference quantises them once more */
    c.same_bits = d - n_rot < 32;
    struct gr_args_kv_shift *a = &c.node.a.kv_shift;
    int64_t n = n_head_kv * d;
    *a = (struct gr_args_kv_shift){.cs = ops_random(&c, GR_F32, 1, n_cell, n_rot, OPS_NORMAL),
                                   .delta = ops_integers(&c, n_cell, -1, 2),
                                   .k_cache = ops_random_cache(&c, type, n_cell, n),
                                   .d_head = d,
                                   .kind = kind};
    const double *cs = ops_values(&c, &a->cs), *k = ops_values(&c, &a->k_cache);
    const int32_t *delta = a->delta.data;
    double *roped = ops_doubles(&c, n_cell * n), *terms = ops_doubles(&c, n_cell * n);
    struct ops_out *o = ops_expect(&c, &a->k_cache);
    for (int64_t j = 0; j < n_cell; j++)
        ops_rotate(k + j * n, cs + j * n_rot, n, d, n_rot, kind, roped + j * n, terms + j * n);
    for (int64_t i = 0; i < n_cell * n; i++)
        o->want[i] = delta[i / n] ? roped[i] : NAN;
    ops_round_to_f32(o);
    for (int64_t i = 0; i < n_cell * n; i++) {
        double m = gr_planes_are(type) ? ops_block_max(roped + i / n * n, i % n) : 0;
        double e = ops_storage_error(type, roped[i], m);
        o->tol_ref[i] += e + 1e-15 * (fabs(roped[i]) + 1);
        o->tol_fast[i] += e * 1.001 + 0x1p-23 * (terms[i] + m);
    }
    ops_check(&c);
    ops_case_fini(&c);
}

Test(kv_shift, types_and_kinds)
{
    for (const int *type = ops_cache_types; *type >= 0; type++)
        for (int kind = GR_ROPE_NORM; kind <= GR_ROPE_NEOX; kind++) {
            shift_case((uint32_t)*type, kind, 1, 1, 32, 32);
            shift_case((uint32_t)*type, kind, 37, 3, 64, 64);
            shift_case((uint32_t)*type, kind, 9, 2, 96, 40);
            shift_case((uint32_t)*type, kind, 7, 2, 64, 12); /* pairs that make no runs of four */
        }
}

/* Rows of any type, whole and odd numbers of 16 bytes. */
static void copy_case(uint32_t type, int64_t n_cell, int64_t n_copy, int64_t n)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_KV_COPY, 12, "type %u, %lld of %lld rows of %lld", type,
                  (long long)n_copy, (long long)n_cell, (long long)n);
    struct gr_args_kv_copy *a = &c.node.a.kv_copy;
    *a = (struct gr_args_kv_copy){.src = ops_integers(&c, n_copy, 0, 1),
                                  .dst = ops_integers(&c, n_copy, 0, 1),
                                  .cache = ops_random_cache(&c, type, n_cell, n)};
    struct ops_out *o = ops_expect(&c, &a->cache); /* tolerance 0 */
    const double *x = ops_values(&c, &a->cache);
    for (int64_t i = 0; i < n_cell * n; i++)
        o->want[i] = NAN;
    for (int32_t i = 0; i < n_copy; i++) { /* some row goes to two others */
        int32_t src = 2 * (i / 2), dst = 2 * i + 1;
        ((int32_t *)a->src.data)[i] = src, ((int32_t *)a->dst.data)[i] = dst;
        for (int64_t col = 0; col < n; col++)
            o->want[dst * n + col] = x[src * n + col];
    }
    c.same_bits = true;
    ops_check(&c);
    ops_case_fini(&c);
}

Test(kv_copy, types_and_lengths)
{
    for (const int *type = ops_cache_types; *type >= 0; type++) {
        copy_case((uint32_t)*type, 2, 1, 32);
        copy_case((uint32_t)*type, 40, 20, 96);
        copy_case((uint32_t)*type, 12, 6, 1024);
    }
    copy_case(GR_F32, 6, 3, 7);
    copy_case(GR_F16, 6, 3, 7);
    copy_case(GR_BF16, 6, 3, 1);
}
