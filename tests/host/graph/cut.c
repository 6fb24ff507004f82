/* Plans cut into stages: whatever is cut where, the stages one after the other compute what the
 * whole plan computes. Plans are random, and run on a machine that knows no numbers: a value is a
 * hash of what it was made from, kept in every 256 bytes of its place. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "graph/plan.h"

enum { N = 48, N_TABLE = 2, GRAIN = 256, MOST = 8, N_DEVICE = 3 };

/* ---- random plans ---- */

/* Inputs of a plan, so that every stage can record it. */
struct recipe {
    struct gr_node node[2 * N];
    struct gr_ten shape[2 * N];
    int n_node, n_value;
    struct gr_ten result;
    int32_t n_stage;
};

/* A value that the recipe's plans will have: gr_plan_value numbers them from 1. */
static struct gr_ten value(struct recipe *q, int64_t rows)
{
    struct gr_ten t = {.batch = 1, .rows = rows, .cols = 16, .row_bytes = 64};
    t.value = (uint32_t)q->n_value + 1, t.dtype = GR_F32;
    return q->shape[q->n_value++] = t;
}

static struct gr_ten everywhere(uint32_t value)
{
    return (struct gr_ten){.batch = 1, .rows = 1, .cols = 8, .row_bytes = 32, .value = value};
}

/* One of the last that were made. */
static struct gr_ten one_of(struct gr_rng *r, const struct gr_ten *made, int n)
{
    return made[n - 1 - (int)gr_rng_below(r, n < 12 ? (uint32_t)n : 12)];
}

static void add(struct recipe *q, struct gr_node n, int32_t stage, int32_t device)
{
    n.layer = q->n_node, n.stage = stage, n.device = device;
    q->node[q->n_node++] = n;
}

/* Sums of two earlier values, rotations by a table, and stores into a cache, which are of use
 * whether there is a result or not. Stages begin at random nodes; some have none. */
static void make(struct recipe *q, struct gr_rng *r, int32_t n_stage, bool result)
{
    struct gr_ten made[N], table[N_TABLE], none = {0}, cache = {.rows = 1, .cols = 16};
    int32_t at[MOST] = {0}, stage = 0;
    *q = (struct recipe){.n_stage = n_stage};
    for (int32_t k = 1; k < n_stage; k++)
        at[k] = (int32_t)gr_rng_below(r, N + 1);
    made[0] = value(q, 3);
    add(q,
        (struct gr_node){
            .op = GR_OP_EMBED,
            .a.embed = {.tokens = everywhere(GR_VALUE_STEP), .table = cache, .y = made[0]}},
        0, 0);
    for (int i = 0; i < N_TABLE; i++) {
        table[i] = value(q, 2);
        add(q,
            (struct gr_node){.op = GR_OP_ROPE_TABLE,
                             .a.rope_table = {.pos = everywhere(GR_VALUE_STEP),
                                              .freq = everywhere(GR_VALUE_CONST),
                                              .cs = table[i]}},
            0, 0);
    }
    for (int i = 1; i < N; i++) {
        stage = 0;
        for (int32_t k = 1; k < n_stage; k++)
            stage += at[k] <= i;
        int32_t device = (int32_t)gr_rng_below(r, N_DEVICE);
        uint32_t kind = gr_rng_below(r, 4);
        struct gr_ten x = one_of(r, made, i), y = value(q, 1 + gr_rng_below(r, 9));
        struct gr_node n = {.op = GR_OP_BINARY,
                            .a.binary = {.a = x, .b = one_of(r, made, i), .y = y}};
        if (kind == 0)
            n = (struct gr_node){.op = GR_OP_ROPE,
                                 .a.rope = {.x = x, .cs = table[gr_rng_below(r, N_TABLE)], .y = y}};
        add(q, n, stage, device);
        if (kind == 1)
            add(q,
                (struct gr_node){.op = GR_OP_KV_STORE,
                                 .a.kv_store = {.k = y, .k_cache = cache, .v_cache = none}},
                stage, device);
        made[i] = y;
    }
    q->result = result ? made[N - 1] : none;
}

/* The plan of a stage, or all of it (-1), before it is finished. */
static void record(struct gr_plan *p, const struct recipe *q, int32_t stage)
{
    struct gr_step_shape shape = {.n_tok = 1, .n_pos = 1};
    gr_plan_init(p, &shape);
    for (int i = 0; i < q->n_value; i++) {
        struct gr_ten t = gr_plan_value(p, q->shape[i].rows, 16, GR_F32);
        cr_assert_eq(t.value, q->shape[i].value);
    }
    for (int i = 0; i < q->n_node; i++)
        cr_assert_eq(gr_plan_add(p, &q->node[i]), 0);
    p->result = q->result;
    if (stage >= 0)
        p->stage = stage, p->n_stage = q->n_stage;
}

static void finish(struct gr_plan *p, const struct recipe *q, int32_t stage)
{
    record(p, q, stage);
    cr_assert_eq(gr_plan_finish(p), 0, "%s", gr_error());
}

/* ---- the machine ---- */

struct machine {
    const struct gr_plan *p;
    uint64_t *arena[GR_MAX_DEVICE]; /* [arena_bytes / GRAIN] */
    uint64_t stored[2 * N];         /* by each node into its cache */
};

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static const struct gr_value *place(const struct machine *m, uint32_t v)
{
    const struct gr_value *all = m->p->value.data;
    cr_assert(all[v].offset + all[v].bytes <= m->p->arena_bytes[all[v].device]);
    return &all[v];
}

static uint64_t load(const struct machine *m, uint32_t v)
{
    const struct gr_value *at = place(m, v);
    const uint64_t *grain = m->arena[at->device] + at->offset / GRAIN;
    for (int64_t i = 0; i < at->bytes / GRAIN; i++)
        cr_assert(grain[i] && grain[i] == grain[0], "value %u was overwritten", v);
    return grain[0];
}

static void store(struct machine *m, uint32_t v, uint64_t hash)
{
    const struct gr_value *at = place(m, v);
    for (int64_t i = 0; i < at->bytes / GRAIN; i++)
        m->arena[at->device][at->offset / GRAIN + i] = hash;
}

static void run_node(struct machine *m, struct gr_node n, int32_t device)
{
    const struct gr_operand *o;
    uint64_t h = mix((uint64_t)n.op + 1, (uint64_t)n.layer);
    cr_assert_eq(n.device, device);
    for (o = gr_op_info(n.op)->operands; o->role; o++) {
        const struct gr_ten *t = gr_node_ten(&n, o);
        if (!gr_plan_find(m->p, t))
            continue;
        cr_assert_eq(place(m, t->value)->device, device);
        if (o->role == GR_ROLE_IN)
            h = mix(h, load(m, t->value));
    }
    for (o = gr_op_info(n.op)->operands; o->role; o++)
        if (o->role == GR_ROLE_OUT)
            store(m, gr_node_ten(&n, o)->value, h);
        else if (o->role == GR_ROLE_INOUT)
            m->stored[n.layer] = h;
}

/* Runs a plan on memory full of nothing; in [p->in.n], out [p->out.n]. Returns the result, 0 where
 * there is none. */
static uint64_t run(const struct gr_plan *p, const uint64_t *in, uint64_t *out,
                    uint64_t stored[2 * N])
{
    struct machine m = {.p = p};
    const uint32_t *come = p->in.data, *go = p->out.data;
    const struct gr_plan_segment *seg = p->segment.data;
    const struct gr_move *move = p->move.data;
    const struct gr_node *node = p->node.data;
    for (int d = 0; d < GR_MAX_DEVICE; d++)
        m.arena[d] = gr_calloc((size_t)p->arena_bytes[d] / GRAIN + 1, sizeof *m.arena[d]);
    for (size_t i = 0; i < p->in.n; i++)
        store(&m, come[i], in[i]);
    for (size_t i = 0; i < p->segment.n; i++) {
        for (int32_t k = seg[i].move; k < seg[i].move + seg[i].n_move; k++)
            store(&m, move[k].dst, load(&m, move[k].src));
        for (int32_t k = seg[i].node; k < seg[i].node + seg[i].run.n_node; k++)
            run_node(&m, node[k], seg[i].device);
    }
    for (size_t i = 0; i < p->out.n; i++)
        out[i] = load(&m, go[i]);
    uint64_t result = gr_ten_is(&p->result) ? load(&m, p->result.value) : 0;
    for (int i = 0; i < 2 * N; i++)
        stored[i] = m.stored[i] ? m.stored[i] : stored[i];
    for (int d = 0; d < GR_MAX_DEVICE; d++)
        gr_free(m.arena[d]);
    return result;
}

/* ---- what must hold ---- */

static int64_t bytes_of(const struct gr_plan *p, uint32_t v)
{
    return ((const struct gr_value *)p->value.data)[v].bytes;
}

/* The output of one stage is the input of the next: the same values of the same sizes in the same
 * order. */
static void compare(const struct gr_plan *a, const struct gr_plan *b)
{
    const uint32_t *out = a->out.data, *in = b->in.data;
    cr_assert_eq(a->out.n, b->in.n);
    for (size_t i = 0; i < a->out.n; i++)
        cr_assert(out[i] == in[i] && bytes_of(a, out[i]) == bytes_of(b, in[i]) &&
                  (!i || out[i] > out[i - 1]));
}

Test(cut, stages_compute_what_the_whole_plan_does)
{
    static struct recipe q;
    int n_empty = 0, n_through = 0;
    for (uint64_t seed = 0; seed < 600; seed++) {
        struct gr_rng r = gr_rng_new(seed);
        struct gr_plan whole, p[MOST];
        uint64_t wire[2 * N], next[2 * N], want[2 * N] = {0}, got[2 * N] = {0}, last = 0;
        make(&q, &r, 1 + (int32_t)gr_rng_below(&r, MOST), seed % 3 > 0);
        finish(&whole, &q, -1);
        cr_assert(whole.in.n == 0 && whole.out.n == 0);
        uint64_t result = run(&whole, NULL, NULL, want);
        for (int32_t k = 0; k < q.n_stage; k++) {
            finish(&p[k], &q, k);
            if (k)
                compare(&p[k - 1], &p[k]);
            cr_assert_eq(gr_ten_is(&p[k].result), k == q.n_stage - 1 && seed % 3 > 0);
            last = run(&p[k], wire, next, got);
            memcpy(wire, next, sizeof wire);
            n_empty += p[k].node.n == 0;
            for (size_t i = 0; i < p[k].out.n; i++)
                for (size_t j = 0; j < p[k].in.n; j++)
                    n_through += ((uint32_t *)p[k].out.data)[i] == ((uint32_t *)p[k].in.data)[j];
        }
        cr_assert(p[0].in.n == 0 && p[q.n_stage - 1].out.n == 0);
        cr_expect_eq(last, result, "seed %llu", (unsigned long long)seed);
        cr_expect_eq(memcmp(got, want, sizeof got), 0, "seed %llu", (unsigned long long)seed);
        gr_plan_fini(&whole);
        for (int32_t k = 0; k < q.n_stage; k++)
            gr_plan_fini(&p[k]);
    }
    cr_expect(n_empty > 50 && n_through > 500, "%d, %d", n_empty, n_through);
}

/* Tables are made where they are used, and nothing of them is sent; taps stay with their nodes. */
Test(cut, tables_are_repeated_and_taps_stay)
{
    static struct recipe q;
    struct gr_ten x = value(&q, 1), cs = value(&q, 1), y = value(&q, 1), z = value(&q, 1);
    struct gr_ten table = {.rows = 1, .cols = 16};
    q.n_stage = 3, q.result = z;
    add(&q, (struct gr_node){.op = GR_OP_EMBED, .a.embed = {.table = table, .y = x}}, 0, 0);
    add(&q,
        (struct gr_node){.op = GR_OP_ROPE_TABLE,
                         .a.rope_table = {.pos = everywhere(GR_VALUE_STEP), .cs = cs}},
        0, 0);
    add(&q, (struct gr_node){.op = GR_OP_ROPE, .a.rope = {.x = x, .cs = cs, .y = y}}, 1, 0);
    add(&q, (struct gr_node){.op = GR_OP_ROPE, .a.rope = {.x = y, .cs = cs, .y = z}}, 2, 0);
    static const size_t n_node[] = {1, 2, 2};
    static const char *const name[] = {"x", "y", "z"};
    for (int32_t k = 0; k < 3; k++) {
        const struct gr_ten *named[] = {&x, &y, &z};
        struct gr_plan p;
        record(&p, &q, k);
        for (int i = 0; i < 3; i++)
            cr_assert_eq(gr_plan_tap(&p, name[i], 0, named[i]), 0);
        cr_assert_eq(gr_plan_finish(&p), 0);
        cr_expect_eq(p.node.n, n_node[k], "stage %d: %zu nodes", k, p.node.n);
        cr_expect(p.in.n == (k > 0) && p.out.n == (k < 2));
        cr_assert_eq(p.tap.n, 1);
        cr_expect_str_eq(((struct gr_tap *)p.tap.data)->name, name[k]);
        cr_expect_eq(((struct gr_tap *)p.tap.data)->node, (int32_t)n_node[k] - 1);
        gr_plan_fini(&p);
    }
}

/* Data goes forward: a stage that needs what a later one computes, or adds to it, is refused. */
Test(cut, what_goes_back_is_refused)
{
    for (int again = 0; again < 2; again++) {
        static struct recipe q;
        struct gr_ten table = {.rows = 1, .cols = 16};
        struct gr_plan p;
        q = (struct recipe){.n_stage = 2};
        struct gr_ten x = value(&q, 1), y = value(&q, 1), z = value(&q, 1);
        add(&q, (struct gr_node){.op = GR_OP_EMBED, .a.embed = {.table = table, .y = x}}, 0, 0);
        add(&q, (struct gr_node){.op = GR_OP_BINARY, .a.binary = {.a = x, .b = x, .y = y}},
            again ? 0 : 1, 0);
        add(&q,
            (struct gr_node){.op = GR_OP_BINARY,
                             .a.binary = {.a = again ? x : y, .b = x, .y = again ? y : z}},
            again ? 1 : 0, 0);
        q.result = again ? y : z;
        record(&p, &q, 0);
        cr_expect_eq(gr_plan_finish(&p), GR_E_INTERNAL);
        cr_expect(strstr(gr_error(), "binary, layer 2"), "%s", gr_error());
        gr_plan_fini(&p);
    }
}

/* Without memory a plan is not cut, and holds nothing once it is freed. */
Test(cut, runs_out_of_memory_cleanly)
{
    static struct recipe q;
    struct gr_rng r = gr_rng_new(2);
    int n_failed = 0, rc = -1;
    make(&q, &r, 4, true);
    size_t held = gr_alloc_held(NULL);
    for (uint64_t k = 1; rc; k++) {
        struct gr_plan p;
        record(&p, &q, 2);
        gr_alloc_fail_at(k, 0);
        rc = gr_plan_finish(&p);
        gr_alloc_fail_at(0, 0);
        cr_assert(rc == 0 || rc == GR_E_NOMEM_HOST, "allocation %d: %d", n_failed, rc);
        n_failed += rc != 0;
        gr_plan_fini(&p);
        cr_assert_eq(gr_alloc_held(NULL), held, "allocation %d", n_failed);
    }
    cr_expect(n_failed > 5, "%d", n_failed);
}

/* People see what comes in and what goes out. */
Test(cut, a_printed_plan_names_its_boundaries)
{
    static struct recipe q;
    struct gr_rng r = gr_rng_new(1);
    char *text = NULL;
    size_t n;
    struct gr_plan p;
    const char *const names[GR_MAX_DEVICE] = {"CPU", "CUDA0", "CUDA1", "CUDA2"};
    make(&q, &r, 3, true);
    finish(&p, &q, 1);
    FILE *f = open_memstream(&text, &n);
    cr_assert_not_null(f);
    gr_plan_print(&p, names, f);
    fclose(f);
    cr_expect(strstr(text, "stage 1 of 3, in ") && strstr(text, ", out "), "%s", text);
    free(text);
    gr_plan_fini(&p);
}
