#include <criterion/criterion.h>
#include <math.h>

#include "base/checked.h"
#include "ops/ops.h"

static void table_case(int64_t n, int64_t n_rot, float mag, int32_t lo, int32_t hi)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_ROPE_TABLE, 8, "%lld positions in [%d, %d), %lld columns", (long long)n,
                  lo, hi, (long long)n_rot);
    c.same_bits = true;
    struct gr_args_rope_table *a = &c.node.a.rope_table;
    *a = (struct gr_args_rope_table){.pos = ops_integers(&c, n, lo, hi),
                                     .freq = ops_new(&c, GR_F64, 1, 1, n_rot / 2),
                                     .cs = ops_new(&c, GR_F32, 1, n, n_rot),
                                     .mag = mag};
    double *freq = a->freq.data;
    for (int64_t i = 0; i < n_rot / 2; i++)
        freq[i] = pow(10000, -2.0 * (double)i / (double)n_rot);
    struct ops_out *o = ops_expect(&c, &a->cs);
    for (int64_t i = 0; i < n * n_rot; i++) {
        double angle = ((int32_t *)a->pos.data)[i / n_rot] * freq[i % n_rot / 2];
        o->want[i] = (double)mag * (i % 2 ? sin(angle) : cos(angle));
    }
    ops_round_to_f32(o);
    ops_check(&c);
    ops_case_fini(&c);
}

Test(rope_table, angles_in_f64)
{
    table_case(1, 2, 1, 0, 1);
    table_case(7, 64, 1.25f, 0, 1000000);
    table_case(33, 10, 1, -4096, 4096); /* deltas of a shift */
    table_case(257, 128, 1, INT32_MIN / 2, INT32_MAX / 2);
}

/* f64 throughout, but the GPU's logarithm may be off by a unit. */
Test(temper, positions)
{
    static const int32_t length[] = {1, 100, 8192}, first[] = {0, 1};
    for (int k = 0; k < 6; k++) {
        struct ops_case c;
        ops_case_init(&c, GR_OP_TEMPER, 10, "length %d, first %d", length[k / 2], first[k % 2]);
        struct gr_args_temper *a = &c.node.a.temper;
        *a = (struct gr_args_temper){.pos = ops_integers(&c, 300, 0, 200000),
                                     .y = ops_new(&c, GR_F32, 1, 300, 1),
                                     .scale = 0.1f,
                                     .first = first[k % 2],
                                     .length = length[k / 2]};
        ((int32_t *)a->pos.data)[0] = length[k / 2] - 1; /* just before a step, or on it */
        struct ops_out *o = ops_expect(&c, &a->y);
        for (int64_t i = 0; i < 300; i++) {
            int32_t n = (((int32_t *)a->pos.data)[i] + a->first) / a->length;
            o->want[i] = 1 + (double)a->scale * log1p(n);
        }
        ops_round_to_f32(o);
        for (int64_t i = 0; i < 300; i++)
            o->tol_ref[i] += 1e-15, o->tol_fast[i] += 1e-14;
        ops_check(&c);
        ops_case_fini(&c);
    }
}

/* Fast: two products and a sum in f32. */
static void rope_case(int kind, int64_t n_tok, int64_t n_head, int64_t d, int64_t n_rot,
                      enum ops_data data, bool in_place)
{
    struct ops_case c;
    int64_t n = n_head * d;
    ops_case_init(&c, GR_OP_ROPE, 9, "kind %d, [%lld, %lld x %lld], %lld rotated, data %d", kind,
                  (long long)n_tok, (long long)n_head, (long long)d, (long long)n_rot, data);
    c.same_bits = true;
    struct gr_args_rope *a = &c.node.a.rope;
    *a = (struct gr_args_rope){.x = ops_random(&c, GR_F32, 1, n_tok, n, data),
                               .cs = ops_random(&c, GR_F32, 1, n_tok, n_rot, OPS_NORMAL),
                               .d_head = d,
                               .kind = kind};
    a->y = in_place ? a->x : ops_new(&c, GR_F32, 1, n_tok, n);
    const double *x = ops_values(&c, &a->x), *cs = ops_values(&c, &a->cs);
    struct ops_out *o = ops_expect(&c, &a->y);
    double *terms = ops_doubles(&c, n_tok * n);
    for (int64_t i = 0; i < n_tok * n; i++) {
        int64_t col = i % n % d, first = i - col, half = n_rot / 2;
        int64_t pair = kind == GR_ROPE_NEOX ? col % half : col / 2;
        bool second = kind == GR_ROPE_NEOX ? col >= half : col % 2;
        int64_t other =
            first + (kind == GR_ROPE_NEOX ? (second ? col - half : col + half) : col ^ 1);
        const double *t = cs + i / n * n_rot + 2 * pair;
        o->want[i] = col >= n_rot ? x[i]
                     : second     ? x[other] * t[1] + x[i] * t[0]
                                  : x[i] * t[0] - x[other] * t[1];
        terms[i] = col >= n_rot ? 0 : fabs(x[other] * t[1]) + fabs(x[i] * t[0]);
    }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < n_tok * n; i++) {
        o->tol_ref[i] += terms[i] * 1e-15;
        o->tol_fast[i] += terms[i] * 0x1p-24 + 0x1p-148;
    }
    ops_check(&c);
    ops_case_fini(&c);
}

Test(rope, kinds_and_shapes)
{
    static const int64_t shapes[][4] = {{1, 1, 2, 2},     {1, 4, 64, 64}, {3, 2, 80, 32},
                                        {5, 3, 128, 128}, {2, 1, 96, 6},  {7, 8, 32, 32}};
    for (int kind = GR_ROPE_NORM; kind <= GR_ROPE_NEOX; kind++)
        for (size_t i = 0; i < GR_COUNT(shapes); i++)
            for (enum ops_data data = 0; data < OPS_N_DATA; data++)
                rope_case(kind, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], data,
                          (i + (size_t)data) % 2);
}
