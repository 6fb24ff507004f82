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
            cr_assert(v[i].offset + v[i].bytes <= p.arena_bytes[0]);
            for (int j = i + 1; j <= N; j++) {
                bool together = v[i].first <= v[j].last && v[j].first <= v[i].last;
                bool overlap = v[i].offset < v[j].offset + v[j].bytes &&
                               v[j].offset < v[i].offset + v[i].bytes;
                cr_assert_not(together && overlap, "seed %llu: %d and %d", (unsigned long long)seed,
                              i, j);
            }
        }
        cr_assert(p.arena_bytes[0] < sum / 2, "memory is used again: %lld of %lld",
                  (long long)p.arena_bytes[0], (long long)sum);
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

/* A chain over devices 0 1 2 0 with a second reader on each: what is moved goes through the CPU and
 * once only, and every part has its nodes. */
Test(plan, values_are_moved_once_between_devices)
{
    static const int32_t device[] = {0, 1, 1, 2, 0, 2};
    struct gr_step_shape shape = {.n_tok = 1, .n_pos = 1};
    struct gr_plan p;
    struct gr_ten t[7];
    gr_plan_init(&p, &shape);
    for (int i = 0; i < 7; i++)
        t[i] = gr_plan_value(&p, 1, 16, GR_F32);
    for (int i = 0; i < 6; i++) { /* each reads the value before it and the first */
        struct gr_node n = add(t[i], i ? t[1] : t[0], t[i + 1]);
        n.device = device[i];
        cr_assert_eq(gr_plan_add(&p, &n), 0);
    }
    p.result = t[6];
    cr_assert_eq(gr_plan_tap(&p, "one", 0, &t[1]) | gr_plan_finish(&p), 0);
    const struct gr_plan_segment *seg = p.segment.data;
    const struct gr_move *move = p.move.data;
    const struct gr_value *v = p.value.data;
    static const int32_t want[][3] = {{0, 1, 0}, {1, 2, 1}, {2, 1, 3}, {0, 1, 1}, {2, 1, 1}};
    cr_assert_eq(p.segment.n, 5);
    for (size_t i = 0; i < p.segment.n; i++) {
        cr_expect(seg[i].device == want[i][0] && seg[i].run.n_node == want[i][1]);
        cr_expect_eq(seg[i].n_move, want[i][2], "segment %zu: %d", i, seg[i].n_move);
    }
    cr_expect_eq(seg[0].run.n_tap, 1);
    for (size_t i = 0; i < p.move.n; i++) {
        cr_expect_neq(v[move[i].src].device == 0, v[move[i].dst].device == 0);
        for (size_t j = 0; j < i; j++)
            cr_expect_neq(move[i].dst, move[j].dst);
    }
    const struct gr_node *node = p.node.data;
    for (size_t i = 0; i < p.segment.n; i++)
        for (int32_t k = seg[i].node; k < seg[i].node + seg[i].run.n_node; k++)
            cr_expect(v[node[k].a.binary.a.value].device == seg[i].device &&
                      v[node[k].a.binary.b.value].device == seg[i].device &&
                      v[node[k].a.binary.y.value].device == seg[i].device);
    cr_expect_eq(v[p.result.value].device, 2);
    gr_plan_fini(&p);
}

/* Nodes that need the step block and constants alone are computed on each device. */
Test(plan, tables_are_repeated_and_not_moved)
{
    struct gr_step_shape shape = {.n_tok = 2, .n_pos = 1};
    struct gr_plan p;
    gr_plan_init(&p, &shape);
    struct gr_ten x = gr_plan_value(&p, 2, 16, GR_F32), cs = gr_plan_value(&p, 2, 8, GR_F32);
    struct gr_ten y = gr_plan_value(&p, 2, 16, GR_F32), z = gr_plan_value(&p, 2, 16, GR_F32);
    struct gr_ten pos = {
        .batch = 1, .rows = 1, .cols = 2, .row_bytes = 8, .value = GR_VALUE_STEP, .dtype = GR_I32};
    struct gr_ten freq = {.batch = 1,
                          .rows = 1,
                          .cols = 4,
                          .row_bytes = 32,
                          .value = GR_VALUE_CONST,
                          .dtype = GR_F64};
    struct gr_node table = {.op = GR_OP_ROPE_TABLE,
                            .a.rope_table = {.pos = pos, .freq = freq, .cs = cs, .mag = 1}};
    struct gr_node a = {.op = GR_OP_ROPE, .device = 1, .a.rope = {.x = x, .cs = cs, .y = y}};
    struct gr_node b = {.op = GR_OP_ROPE, .device = 2, .a.rope = {.x = y, .cs = cs, .y = z}};
    cr_assert_eq(gr_plan_add(&p, &table) | gr_plan_add(&p, &a) | gr_plan_add(&p, &b), 0);
    p.result = z;
    cr_assert_eq(gr_plan_finish(&p), 0);
    const struct gr_node *node = p.node.data;
    static const struct {
        enum gr_op op;
        int32_t device;
    } want[] = {{GR_OP_ROPE_TABLE, 1}, {GR_OP_ROPE, 1}, {GR_OP_ROPE_TABLE, 2}, {GR_OP_ROPE, 2}};
    cr_assert_eq(p.node.n, 4);
    for (int i = 0; i < 4; i++)
        cr_expect(node[i].op == want[i].op && node[i].device == want[i].device, "node %d", i);
    cr_expect_eq(p.move.n, 2, "y, through the CPU");
    struct gr_plan_memory memory[GR_MAX_DEVICE] = {{0}};
    char step[3], constants[3];
    for (int d = 1; d < 3; d++)
        memory[d].step = step + d, memory[d].constants = constants + d;
    gr_plan_bind(&p, memory);
    for (int i = 0; i < 4; i += 2) {
        cr_expect_eq(node[i].a.rope_table.pos.data, step + node[i].device);
        cr_expect_eq(node[i].a.rope_table.freq.data, constants + node[i].device);
    }
    gr_plan_fini(&p);
}

/* y = 2 x on a device, exchanged among two shards on `by`, added up on the first again. */
static void check_exchange(int32_t device, int32_t by)
{
    struct gr_step_shape shape = {.n_tok = 2, .n_pos = 1};
    struct gr_plan p;
    gr_plan_init(&p, &shape);
    struct gr_ten x = gr_plan_value(&p, 2, 16, GR_F32), y = gr_plan_value(&p, 2, 16, GR_F32);
    struct gr_ten parts = gr_plan_value(&p, 4, 16, GR_F32), z = gr_plan_value(&p, 2, 16, GR_F32);
    struct gr_ten unused = gr_plan_value(&p, 4, 16, GR_F32);
    struct gr_node twice = add(x, x, y);
    struct gr_node exchange = {
        .op = GR_OP_EXCHANGE, .device = by, .a.exchange = {.x = y, .parts = parts}};
    struct gr_node for_nothing = exchange;
    for_nothing.a.exchange.parts = unused;
    struct gr_node sum = {
        .op = GR_OP_SUM, .device = device, .a.sum = {.parts = parts, .res = x, .y = z}};
    twice.device = device;
    cr_assert_eq(gr_plan_add(&p, &twice) | gr_plan_add(&p, &exchange) |
                     gr_plan_add(&p, &for_nothing) | gr_plan_add(&p, &sum),
                 0);
    p.result = z;
    cr_assert_eq(gr_plan_finish(&p), 0);
    const struct gr_plan_segment *seg = p.segment.data;
    const struct gr_node *node = p.node.data;
    cr_assert_eq(p.segment.n, 3);
    cr_assert_eq(p.node.n, 3, "the exchange that nobody needs is dropped");
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(seg[i].run.n_node, 1);
        cr_expect_eq(seg[i].exchange, i == 1);
        cr_expect_eq(seg[i].device, i == 1 ? by : device);
        cr_expect_eq(seg[i].n_move, i > 0 && by != device);
        cr_expect_eq(gr_plan_find(&p, gr_node_ten((struct gr_node *)&node[i],
                                                  gr_op_info(node[i].op)->operands))
                         ->device,
                     seg[i].device);
    }
    gr_plan_fini(&p);
}

Test(plan, an_exchange_is_a_part_of_its_own)
{
    check_exchange(0, 0);
    check_exchange(1, 1);
    check_exchange(1, 0);
}
