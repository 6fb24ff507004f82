#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "ops/ops.h"

struct ranked {
    double rank;
    int id;
};

static int better(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->rank != y->rank ? (x->rank < y->rank ? 1 : -1) : x->id - y->id;
}

static void softmax(const double *x, int64_t n, double *p)
{
    double max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = fmax(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - max);
    for (int64_t i = 0; i < n; i++)
        p[i] = exp(x[i] - max) / sum;
}

/* Ranks of experts outside the best groups become -inf: sorts groups by the sum of their two best.
 */
static void close_groups(const struct gr_args_route *a, struct ranked *all)
{
    struct ranked group[64], in[512];
    int64_t n = a->logits.cols, size = n / a->n_group;
    for (int g = 0; g < a->n_group; g++) {
        memcpy(in, all + g * size, (size_t)size * sizeof *in);
        qsort(in, (size_t)size, sizeof *in, better);
        group[g] = (struct ranked){in[0].rank + (size > 1 ? in[1].rank : 0), g};
    }
    qsort(group, (size_t)a->n_group, sizeof *group, better);
    for (int g = a->n_group_used; g < a->n_group; g++)
        for (int64_t i = 0; i < size; i++)
            all[group[g].id * size + i].rank = -INFINITY;
}

static void expect(struct ops_case *c, const struct gr_args_route *a)
{
    int64_t n = a->logits.cols, n_used = a->ids.cols;
    const double *x = ops_values(c, &a->logits);
    const double *bias = gr_ten_is(&a->bias) ? ops_values(c, &a->bias) : NULL;
    struct ops_out *ids = ops_expect(c, &a->ids), *weights = ops_expect(c, &a->weights);
    for (int64_t t = 0; t < a->logits.rows; t++) {
        struct ranked all[512];
        double gate[512], p[64], chosen[64], sum = 0;
        softmax(x + t * n, n, gate);
        for (int64_t e = 0; e < n; e++) {
            if (a->gate != GR_GATE_SOFTMAX)
                gate[e] = a->gate == GR_GATE_SIGMOID ? 1 / (1 + exp(-x[t * n + e])) : x[t * n + e];
            all[e] = (struct ranked){gate[e] + (bias ? bias[e] : 0), (int)e};
        }
        if (a->n_group > 1)
            close_groups(a, all);
        qsort(all, (size_t)n, sizeof *all, better);
        for (int64_t j = 0; j < n_used; j++) {
            all[j].id /= a->per > 1 ? a->per : 1;
            chosen[j] = gate[all[j].id];
        }
        softmax(chosen, n_used, p);
        for (int64_t j = 0; j < n_used; j++)
            sum += a->gate == GR_GATE_SOFTMAX_TOP ? p[j] : chosen[j];
        for (int64_t j = 0; j < n_used; j++) {
            double w = a->gate == GR_GATE_SOFTMAX_TOP ? p[j] : chosen[j];
            ids->want[t * n_used + j] = all[j].id;
            weights->want[t * n_used + j] =
                (a->normalise && sum > 0 ? w / sum : w) * (double)a->scale;
        }
    }
    ops_round_to_f32(weights);
    for (int64_t i = 0; i < ops_count(&a->weights); i++) { /* f64 throughout, on every level */
        weights->tol_ref[i] += fabs(weights->want[i]) * 1e-13;
        weights->tol_fast[i] += fabs(weights->want[i]) * 1e-13;
    }
}

static void route_case(int gate, int normalise, bool with_bias, int64_t n_tok, int64_t n_expert,
                       int64_t n_used, int32_t n_group, int32_t n_group_used, enum ops_data data)
{
    struct ops_case c;
    ops_case_init(
        &c, GR_OP_ROUTE, 12,
        "gate %d, normalise %d, bias %d, %lld tokens, %lld of %lld, %d of %d groups, data %d", gate,
        normalise, with_bias, (long long)n_tok, (long long)n_used, (long long)n_expert,
        n_group_used, n_group, data);
    struct gr_args_route *a = &c.node.a.route;
    *a = (struct gr_args_route){.logits = ops_random(&c, GR_F32, 1, n_tok, n_expert, data),
                                .ids = ops_new(&c, GR_I32, 1, n_tok, n_used),
                                .weights = ops_new(&c, GR_F32, 1, n_tok, n_used),
                                .gate = gate,
                                .normalise = normalise,
                                .scale = 1.5f,
                                .n_group = n_group,
                                .n_group_used = n_group_used};
    if (with_bias)
        a->bias = ops_random(&c, GR_F32, 1, 1, n_expert, OPS_NORMAL);
    expect(&c, a);
    ops_check(&c);
    ops_case_fini(&c);
}

Test(route, gates)
{
    for (int gate = GR_GATE_SOFTMAX; gate <= GR_GATE_SOFTMAX_TOP; gate++)
        for (int i = 0; i < 4; i++) {
            route_case(gate, i & 1, i & 2, 1, 1, 1, 1, 1, OPS_NORMAL);
            route_case(gate, i & 1, i & 2, 5, 8, 2, 1, 1, OPS_NORMAL);
            route_case(gate, i & 1, i & 2, 33, 128, 8, 1, 1, OPS_SPIKES);
            route_case(gate, i & 1, i & 2, 9, 64, 6, 8, 3, OPS_NORMAL);
            route_case(gate, i & 1, i & 2, 2, 16, 16, 1, 1, OPS_NORMAL);
        }
}

/* An id for every three experts, whose weight is that of another expert. */
Test(route, several_of_an_id)
{
    for (int gate = GR_GATE_SOFTMAX; gate <= GR_GATE_SOFTMAX_TOP; gate++) {
        struct ops_case c;
        ops_case_init(&c, GR_OP_ROUTE, 16, "gate %d, three of an id", gate);
        struct gr_args_route *a = &c.node.a.route;
        *a = (struct gr_args_route){.logits = ops_random(&c, GR_F32, 1, 7, 48, OPS_NORMAL),
                                    .ids = ops_new(&c, GR_I32, 1, 7, 5),
                                    .weights = ops_new(&c, GR_F32, 1, 7, 5),
                                    .gate = gate,
                                    .normalise = true,
                                    .scale = 0.5f,
                                    .n_group = 1,
                                    .n_group_used = 1,
                                    .per = 3};
        expect(&c, a);
        ops_check(&c);
        ops_case_fini(&c);
    }
}

/* Equal values: the lower id first. */
Test(route, ties)
{
    for (int gate = GR_GATE_SOFTMAX; gate <= GR_GATE_SOFTMAX_TOP; gate++) {
        route_case(gate, 1, false, 3, 32, 5, 1, 1, OPS_ZERO);
        route_case(gate, 1, false, 3, 32, 4, 4, 2, OPS_ZERO);
    }
}

/* Logits that are not numbers still give distinct ids inside the range. */
Test(route, not_a_number)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_ROUTE, 13, "NaN");
    struct gr_args_route *a = &c.node.a.route;
    *a = (struct gr_args_route){.logits = ops_new(&c, GR_F32, 1, 2, 16),
                                .ids = ops_new(&c, GR_I32, 1, 2, 4),
                                .weights = ops_new(&c, GR_F32, 1, 2, 4),
                                .scale = 1,
                                .n_group = 4,
                                .n_group_used = 2};
    struct gr_backend *b;
    cr_assert_eq(gr_cpu_open(&b, 1, 1, GR_CPU_AUTO), 0);
    ops_run(&c, b);
    const struct gr_ten ids = {
        .data = c.buf[1].result, .rows = 2, .cols = 4, .row_bytes = a->ids.row_bytes};
    for (int i = 0; i < 8; i++) {
        const int32_t *row = gr_ten_row(&ids, 0, i / 4);
        cr_assert(row[i % 4] >= 0 && row[i % 4] < 16);
        for (int k = 0; k < i % 4; k++)
            cr_assert_neq(row[i % 4], row[k]);
    }
    b->api->close(&b);
    ops_case_fini(&c);
}
