/* Memory planning: values that live at the same time never share a byte; nodes that leave nothing
 * are dropped. */
#include "graph/plan.h"

#include <criterion/criterion.h>

#include "base/rng.h"
#include "gr/dtype.h"

#define N 60

static struct gr_node add(struct gr_ten a, struct gr_ten b, struct gr_ten y)
{
    return (struct gr_node){.op = GR_OP_BINARY, .a.binary = {.a = a, .b = b, .y = y}};
}

/* Random chains: each node reads two earlier values and writes a new one; the last is the result.
 */
Test(plan, lives_never_overlap)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct gr_rng r = gr_rng_new(seed);
        struct gr_step_shape shape = {.n_tok = 1, .n_pos = 1};
        struct gr_plan p;
        struct gr_ten t[N];
        gr_plan_init(&p, &shape);
        t[0] = gr_plan_value(&p, 1, 16, GR_F32);
        for (int i = 1; i < N; i++) {
            t[i] = gr_plan_value(&p, 1 + gr_rng_below(&r, 9), 16, GR_F32);
            int back = i < 6 ? i : 6;
            struct gr_node n =
                add(t[i - 1 - (int)gr_rng_below(&r, (uint32_t)back)], t[i - 1], t[i]);
            cr_assert_eq(gr_plan_add(&p, &n), 0);
        }
        p.result = t[N - 1];
        cr_assert_eq(gr_plan_finish(&p), 0);
        const struct gr_value *v = p.value.data;
        int64_t sum = 0;
        for (int i = 1; i <= N; i++) {
            sum += v[i].bytes;
            cr_assert(v[i].offset + v[i].bytes <= p.arena_bytes);
            for (int j = i + 1; j <= N; j++) {
                bool together = v[i].first <= v[j].last && v[j].first <= v[i].last;
                bool overlap = v[i].offset < v[j].offset + v[j].bytes &&
                               v[j].offset < v[i].offset + v[i].bytes;
                cr_assert_not(together && overlap, "seed %llu: %d and %d", (unsigned long long)seed,
                              i, j);
            }
        }
        cr_assert(p.arena_bytes < sum / 2, "memory is used again: %lld of %lld",
                  (long long)p.arena_bytes, (long long)sum);
        gr_plan_fini(&p);
    }
}

Test(plan, what_leaves_nothing_is_dropped)
{
    struct gr_step_shape shape = {.n_tok = 1, .n_pos = 1};
    struct gr_plan p;
    struct gr_ten t[6];
    gr_plan_init(&p, &shape);
    for (int i = 0; i < 6; i++)
        t[i] = gr_plan_value(&p, 1, 16, GR_F32);
    struct gr_node used = add(t[0], t[0], t[1]), dead = add(t[1], t[1], t[2]),
                   after = add(t[2], t[2], t[3]);
    struct gr_node last = add(t[1], t[0], t[4]);
    cr_assert_eq(gr_plan_add(&p, &used) | gr_plan_tap(&p, "used", 0, &t[1]) |
                     gr_plan_add(&p, &dead) | gr_plan_tap(&p, "dead", 0, &t[2]) |
                     gr_plan_add(&p, &after) | gr_plan_add(&p, &last) |
                     gr_plan_tap(&p, "last", 0, &t[4]),
                 0);
    p.result = t[4];
    cr_assert_eq(gr_plan_finish(&p), 0);
    cr_expect_eq(p.node.n, 2);
    cr_expect_eq(p.tap.n, 2);
    const struct gr_tap *tap = p.tap.data;
    cr_expect_str_eq(tap[0].name, "used");
    cr_expect_eq(tap[0].node, 0);
    cr_expect_str_eq(tap[1].name, "last");
    cr_expect_eq(tap[1].node, 1);
    gr_plan_fini(&p);
}

/* A name given to a value after another node was added: when only that node stays, so goes the tap,
 * or it would show memory that nobody wrote. */
Test(plan, taps_of_values_that_are_not_computed_are_dropped)
{
    struct gr_step_shape shape = {.n_tok = 1, .n_pos = 1};
    struct gr_plan p;
    gr_plan_init(&p, &shape);
    struct gr_ten x = gr_plan_value(&p, 1, 16, GR_F32), dead = gr_plan_value(&p, 1, 16, GR_F32),
                  y = gr_plan_value(&p, 1, 16, GR_F32);
    struct gr_node n_dead = add(x, x, dead), n_y = add(x, x, y);
    cr_assert_eq(gr_plan_add(&p, &n_dead) | gr_plan_add(&p, &n_y) |
                     gr_plan_tap(&p, "dead", 0, &dead) | gr_plan_tap(&p, "y", 0, &y),
                 0);
    p.result = y;
    cr_assert_eq(gr_plan_finish(&p), 0);
    cr_expect_eq(p.node.n, 1);
    cr_expect_eq(p.tap.n, 1);
    cr_expect_str_eq(((struct gr_tap *)p.tap.data)->name, "y");
    gr_plan_fini(&p);
}
