/* Layers shared by several ranks: sessions of the shards, each in a thread of its own, give what a
 * session of the whole model gives but for the order of sums, and the same bits every time; with
 * stages as well, of which each shard sends to its twin in the next one. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"
#include "link/tp_group.h"
#include "models/fake.h"
#include "placement/fit.h"
#include "ranks/boundary.h"
#include "ranks/pipeline.h"
#include "ranks/team.h"
#include "support/tiny.h"

enum { N_VOCAB = 96, MOST_ROWS = 64, MOST = 8, PLENTY = 64 << 20 };

/* Sums of f32 in another order: each is off by some units of 2^-24 of its terms, and what a layer
 * gets from it by no more than a small multiple. Where a model makes more of them, two results with
 * errors of one size differ by twice that, four times the square. */
#define SAME 1e-11

struct results {
    float row[MOST_ROWS * N_VOCAB];
    int n;
};

/* ---- what is done ---- */

static int decode(struct gr_session *s, struct results *r, const struct gr_batch *b)
{
    int rc = gr_decode(s, b);
    for (int32_t i = 0; i < b->n_tok && !rc; i++) {
        const float *row = b->logits[i] ? tiny_row(s, i) : NULL;
        if (row && r->n < MOST_ROWS)
            memcpy(r->row + (size_t)r->n++ * N_VOCAB, row, N_VOCAB * sizeof *row);
    }
    return rc;
}

/* n tokens of a sequence, of which each `every`-th one has logits. */
static int prompt(struct gr_session *s, struct results *r, int32_t seq, int32_t pos, int n,
                  int every)
{
    int32_t id[32], at[32], of[32];
    int8_t want[32];
    for (int i = 0; i < n; i++) {
        id[i] = (5 + 37 * (pos + i) + seq) % N_VOCAB, at[i] = pos + i, of[i] = seq;
        want[i] = i % every == every - 1;
    }
    return decode(
        s, r, &(struct gr_batch){.n_tok = n, .token = id, .pos = at, .seq = of, .logits = want});
}

/* Prompts in micro-batches of which some give nothing, single tokens, a shift, copies. */
static int play(struct gr_session *s, struct results *r)
{
    bool moves = !tiny_keeps_states(s->model) && !tiny_learned_positions(s->model);
    r->n = 0;
    int rc = prompt(s, r, 0, 0, 16, 3);
    if (rc || s->rank_model->hp.no_cache)
        return rc;
    rc = prompt(s, r, 1, 0, 9, 32);
    if (!rc)
        rc = prompt(s, r, 0, 16, 1, 1);
    if (!rc && moves)
        rc = gr_kv_seq_rm(s, 0, 2, 5);
    if (!rc && moves)
        rc = gr_kv_seq_add(s, 0, 5, -1, -3);
    if (!rc && moves)
        rc = gr_kv_seq_dup(s, 0, 2, -1, -1);
    if (!rc && moves)
        rc = prompt(s, r, 2, 14, 3, 1);
    return rc ? rc : prompt(s, r, 1, 9, 2, 1);
}

/* ---- who does it ---- */

/* A rank: stage * n_shard + shard. */
struct rank {
    struct gr_world *world;
    struct gr_rank_model *rank_model;
    const struct gr_session_params *params;
    struct results results;
    struct gr_link *from, *to; /* the twins in the stages beside it */
    char *data;
    int rc;
    char error[300];
};

static int come(struct gr_session *s, const struct gr_plan *p, void *user)
{
    struct rank *r = user;
    struct gr_request q = {0};
    size_t n = gr_boundary_bytes(p, &p->in);
    if (!r->from)
        return 0;
    int rc = gr_link_recv(r->from, r->data, n, &q);
    if (!rc)
        rc = gr_link_wait(r->from, &q, INT64_MAX);
    return rc ? rc : gr_boundary_in(s, p, r->data);
}

static int go(struct gr_session *s, const struct gr_plan *p, const void *rows, size_t n_row,
              void *user)
{
    struct rank *r = user;
    struct gr_request q = {0};
    size_t n = gr_boundary_bytes(p, &p->out);
    (void)rows, (void)n_row;
    int rc = r->to ? gr_boundary_out(s, p, r->data) : 0;
    if (!rc && r->to)
        rc = gr_link_send(r->to, r->data, n, &q);
    return rc || !r->to ? rc : gr_link_wait(r->to, &q, INT64_MAX);
}

static int open_twins(struct rank *r)
{
    int32_t me = r->world->rank, n = r->rank_model->n_shard;
    int rc = 0;
    if (r->rank_model->stage > 0)
        rc = r->world->api->link(r->world, GR_LANE_DATA, me - n, me, &r->from);
    if (!rc && r->rank_model->stage < r->rank_model->n_stage - 1)
        rc = r->world->api->link(r->world, GR_LANE_DATA, me, me + n, &r->to);
    r->data = gr_calloc(1, 1 << 20);
    return rc;
}

static int run(struct rank *r)
{
    struct gr_session *s = NULL;
    struct gr_tp_group *group = NULL;
    const struct gr_flow flow = {come, go, r};
    int rc = open_twins(r);
    if (!rc)
        rc = gr_tp_group_open(&group, r->world, r->rank_model->n_shard);
    r->rank_model->tp_group = group;
    if (!rc)
        rc = gr_session_open_rank(&s, r->rank_model, r->params);
    if (!rc) {
        s->flow = &flow;
        rc = play(s, &r->results);
    }
    snprintf(r->error, sizeof r->error, "%s", rc ? gr_error() : "");
    if (rc) /* the others wait for this one */
        gr_world_lose(r->world, r->world->rank, r->error);
    gr_session_close(&s);
    gr_tp_group_close(&group);
    gr_link_close(&r->from);
    gr_link_close(&r->to);
    gr_free(r->data);
    return rc;
}

static void *run_thread(void *user)
{
    struct rank *r = user;
    r->rc = run(r);
    return NULL;
}

/* Division of a model: stages, shards, and on devices of the ranks' own the layers from this one on
 * (device 0), or none (-1). */
struct split {
    int32_t n_stage, n_shard, first;
};

/* Layers in two halves, or all in one. */
static struct gr_placement placement(const struct gr_hparams *hp, const struct split *split)
{
    struct gr_placement p = {.n_device = split->first < 0 ? 1 : 2, .n_stage = split->n_stage};
    int32_t half = hp->n_layer / 2;
    while (split->n_stage > 1 && !gr_place_may_cut(hp, half))
        half++;
    for (int32_t il = 0; il <= hp->n_layer; il++) {
        p.stage[il] = split->n_stage > 1 && il >= half;
        p.layer[il] = split->first >= 0 && il >= split->first;
    }
    return p;
}

/* The devices of a rank: each has one of its own. */
static struct gr_devices devices_of(const struct split *split, int32_t rank)
{
    static const char names[][8] = {"FAKE0", "FAKE1", "FAKE2"};
    struct gr_devices d = {0};
    struct gr_model_params p = gr_model_params_default();
    if (split->first < 0)
        return d;
    p.device = names[rank];
    cr_assert_eq(gr_devices_choose(&d, &p), 0, "%s", gr_error());
    return d;
}

static struct rank ranks[MOST];

/* Plays on the ranks of a split; ranks[].results. False: it cannot be split so. */
static bool play_split(struct gr_model *m, const struct gr_session_params *params,
                       const struct split *split)
{
    int32_t n_stage = split->n_stage, n_shard = split->n_shard;
    struct gr_world *world[MOST];
    pthread_t thread[MOST];
    int32_t n = n_stage * n_shard;
    struct gr_placement p = placement(&m->hp, split);
    int rc = 0;
    for (int32_t i = 0; i < n && !rc; i++) {
        struct gr_devices devices = devices_of(split, i);
        struct gr_rank_model *rm = gr_rank_model_add(m, &devices);
        ranks[i] = (struct rank){.rank_model = rm, .params = params};
        rm->rank = i, rm->stage = i / n_shard, rm->n_stage = n_stage;
        rc = gr_rank_model_shard(rm, i % n_shard, n_shard);
        cr_assert(!rc || (rc == GR_E_UNSUPPORTED && i == 0), "%s", gr_error());
        cr_assert(rc || !gr_rank_model_load(rm, &p), "%s", gr_error());
    }
    if (!rc)
        cr_assert_eq(gr_world_threads(world, n), 0);
    for (int32_t i = 0; i < n && !rc; i++) {
        ranks[i].world = world[i];
        cr_assert_eq(pthread_create(&thread[i], NULL, run_thread, &ranks[i]), 0);
    }
    for (int32_t i = 0; i < n && !rc; i++)
        pthread_join(thread[i], NULL);
    for (int32_t i = 0; i < n && !rc; i++)
        cr_expect_eq(ranks[i].rc, 0, "%s, %d x %d, rank %d: %s", m->arch->name, n_stage, n_shard, i,
                     ranks[i].error);
    for (int32_t i = 0; i < n && !rc; i++)
        world[i]->api->close(&world[i]);
    while (m->n_rank_model > 1)
        gr_rank_model_free(&m->rank_model[--m->n_rank_model]);
    return !rc;
}

static struct gr_session_params params_of(const struct gr_model *m, const char *type)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1, p.n_seq_max = 3;
    p.n_ubatch = m->hp.no_cache ? 32 : 7;
    p.type_k = p.type_v = type;
    return p;
}

/* ---- tests ---- */

static struct results whole;

static void play_whole(struct gr_model *m, const struct gr_session_params *params)
{
    struct gr_session *s = tiny_session(m, params);
    cr_assert_eq(play(s, &whole), 0, "%s: %s", m->arch->name, gr_error());
    gr_session_close(&s);
}

/* The error of the whole model's results by their distance from the reference's. */
static double rounding(struct gr_model *m, const struct gr_session_params *params)
{
    static struct results reference;
    struct gr_session *s = tiny_session_at(m, GR_CPU_REF, params);
    cr_assert_eq(play(s, &reference), 0, "%s: %s", m->arch->name, gr_error());
    gr_session_close(&s);
    cr_assert_eq(reference.n, whole.n);
    return tiny_nmse(reference.row, whole.row, (size_t)whole.n * N_VOCAB);
}

/* The largest error of the shards of a way to split; -1: it is not possible. */
static double compare(struct gr_model *m, const struct gr_session_params *params,
                      const struct split *split)
{
    int32_t n = split->n_stage * split->n_shard;
    double worst = 0;
    if (!play_split(m, params, split))
        return -1;
    for (int32_t i = n - split->n_shard; i < n; i++) {
        const struct results *r = &ranks[i].results;
        cr_assert_eq(r->n, whole.n);
        double nmse = tiny_nmse(whole.row, r->row, (size_t)r->n * N_VOCAB);
        worst = nmse <= worst ? worst : nmse; /* NaN stays */
        cr_expect_arr_eq(r->row, ranks[n - 1].results.row, (size_t)r->n * N_VOCAB * sizeof *r->row,
                         "all shards have the results");
    }
    return worst;
}

/* Every way to split an architecture; how many there are. */
static int check_arch(const struct gr_arch *arch, bool fused)
{
    static const struct split ways[] = {{1, 2, -1}, {1, 3, -1}, {1, 4, -1}, {2, 2, -1}};
    struct tiny t = tiny_default(arch);
    int n_way = 0;
    double worst = 0;
    t.fused = fused;
    struct gr_model *m = tiny_open(&t);
    struct gr_session_params params = params_of(m, "f32");
    play_whole(m, &params);
    for (unsigned i = 0; i < GR_COUNT(ways); i++) {
        double nmse = compare(m, &params, &ways[i]);
        double limit = nmse <= SAME ? SAME : SAME + 4 * rounding(m, &params);
        cr_expect_leq(nmse, limit, "%s, %d x %d: nmse %g", arch->name, ways[i].n_stage,
                      ways[i].n_shard, nmse);
        worst = nmse > worst ? nmse : worst;
        n_way += nmse >= 0;
    }
    cr_log_info("%-14s %s %d ways, nmse %g\n", arch->name, fused ? "fused" : "     ", n_way, worst);
    gr_model_close(&m);
    return n_way;
}

/* Architectures that cannot be split are recurrent throughout, or have norms over all heads. */
Test(tensor, shards_give_what_the_whole_model_gives, .timeout = 300)
{
    int n_refused = 0;
    for (int i = 0; gr_arch_at(i); i++) {
        int n = check_arch(gr_arch_at(i), false) + check_arch(gr_arch_at(i), true);
        cr_expect_eq(n > 0, tiny_can_be_split(gr_arch_at(i)), "%s", gr_arch_at(i)->name);
        n_refused += n == 0;
    }
    cr_expect_gt(n_refused, 0);
}

static const char *const families[] = {"llama",   "qwen2moe", "gemma3", "phi3", "deepseek2",
                                       "gpt-oss", "qwen35",   "bloom",  "llada"};

static struct gr_model *open_family(unsigned i)
{
    struct gr_model_params p = gr_model_params_default();
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){families[i], strlen(families[i])}));
    struct gr_model *m;
    const char *path = tiny_write(&t, NULL);
    p.device = "none";
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s: %s", families[i], gr_error());
    unlink(path);
    return m;
}

/* Sums are in the order of the ranks, whoever comes first. */
Test(tensor, the_same_bits_every_time)
{
    for (unsigned i = 0; i < GR_COUNT(families); i++) {
        struct gr_model *m = open_family(i);
        struct gr_session_params params = params_of(m, "f16");
        cr_assert(play_split(m, &params, &(struct split){1, 3, -1}));
        whole = ranks[0].results;
        for (int k = 0; k < 3; k++) {
            cr_assert(play_split(m, &params, &(struct split){1, 3, -1}));
            cr_expect_arr_eq(ranks[k].results.row, whole.row,
                             (size_t)whole.n * N_VOCAB * sizeof *whole.row, "%s", families[i]);
        }
        gr_model_close(&m);
    }
}

/* Layers on devices, all or some: what is exchanged passes through the host, and changes no bit. */
Test(tensor, on_devices)
{
    fake_use(3, PLENTY);
    for (unsigned i = 0; i < GR_COUNT(families); i++) {
        struct gr_model *m = open_family(i);
        struct gr_session_params params = params_of(m, "f16");
        cr_assert(play_split(m, &params, &(struct split){1, 3, -1}));
        whole = ranks[0].results;
        for (int32_t first = 0; first < 3; first++)
            cr_expect_eq(compare(m, &params, &(struct split){1, 3, first}), 0, "%s, from %d",
                         families[i], first);
        gr_model_close(&m);
    }
    for (int i = 0; i < FAKE_MAX; i++)
        cr_expect_eq(fake_used(i, NULL), 0, "FAKE%d keeps memory", i);
}

Test(tensor, one_shard_is_the_whole)
{
    struct gr_model *m = open_family(0);
    struct gr_session_params params = params_of(m, "f16");
    play_whole(m, &params);
    cr_assert_eq(compare(m, &params, &(struct split){1, 1, -1}), 0);
    gr_model_close(&m);
}

/* Weights in blocks and rounded caches. Where activations are rounded before a product, or keys and
 * values as they are stored, what differs in its last bit may become another step, and then so does
 * all that follows: both results are off by as much as rounding costs anyway. A step of s8 is 3
 * sigma / 127 of its block, of bf16 2^-8 and of f16 2^-11 of the value; its square over 12, times
 * the products of two layers and the output, in both results. */
Test(tensor, stored_types)
{
    enum { PRODUCTS = 2 * 9 };
    static const double s8 = 3.0 / 127, bf16 = 0x1p-8, f16 = 0x1p-11;
    static const struct {
        char weights[8], cache[8];
        double step;
    } types[] = {{"f16", "f32", 0},   {"bf16", "f16", bf16}, {"q8_0", "f16", s8},
                 {"q4_K", "f16", s8}, {"f32", "q8_0", s8},   {"f32", "f16", f16}};
    for (unsigned i = 0; i < GR_COUNT(types); i++) {
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
        t.n_embd = 256, t.n_head = 8, t.n_head_kv = 4, t.d_head = 64, t.n_ff = 768;
        t.n_expert = 0, t.dtype = types[i].weights;
        struct gr_model *m = tiny_open(&t);
        struct gr_session_params params = params_of(m, types[i].cache);
        double limit = SAME + PRODUCTS * types[i].step * types[i].step / 12;
        play_whole(m, &params);
        double nmse = compare(m, &params, &(struct split){1, 2, -1});
        cr_expect(nmse >= 0 && nmse <= limit, "%s, %s: nmse %g", types[i].weights, types[i].cache,
                  nmse);
        cr_log_info("%s, %s: nmse %g of %g\n", types[i].weights, types[i].cache, nmse, limit);
        gr_model_close(&m);
    }
}

/* ---- by the team ---- */

static struct gr_model *open_team(const struct tiny *t, int32_t n_rank, int32_t n_shard)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    const char *path = tiny_write(t, NULL);
    p.device = "none";
    p.n_rank = n_rank, p.n_shard = n_shard, p.split_mode = GR_SPLIT_MODE_TENSOR;
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s: %s", t->arch->name, gr_error());
    unlink(path);
    return m;
}

static struct tiny tiny_family(unsigned i)
{
    return tiny_default(gr_arch_find((struct gr_str){families[i], strlen(families[i])}));
}

/* Threads of a model, through the library's own interface: the bits that shards gave above. */
Test(tensor, threads_of_a_model)
{
    for (unsigned i = 0; i < GR_COUNT(families); i++) {
        static const struct split ways[] = {{1, 2, -1}, {1, 3, -1}, {2, 2, -1}, {2, 1, -1}};
        for (unsigned k = 0; k < GR_COUNT(ways); k++) {
            struct tiny t = tiny_family(i);
            struct gr_model *one = tiny_open(&t);
            struct gr_session_params params = params_of(one, "f16");
            cr_assert(play_split(one, &params, &(struct split){1, ways[k].n_shard, -1}));
            struct results want = ranks[0].results;
            gr_model_close(&one);
            struct gr_model *m = open_team(&t, ways[k].n_stage * ways[k].n_shard, ways[k].n_shard);
            play_whole(m, &params);
            cr_assert_eq(whole.n, want.n);
            cr_expect_arr_eq(whole.row, want.row, (size_t)want.n * N_VOCAB * sizeof *want.row,
                             "%s, %d x %d", families[i], ways[k].n_stage, ways[k].n_shard);
            gr_model_close(&m);
        }
    }
}

/* Cancels when the second micro-batch has come. */
static int cancel(struct gr_session *s, const struct gr_plan *p, void *user)
{
    int *n = user;
    if (++*n == 2)
        gr_session_cancel(s);
    return gr_stage_flow.in(s, p, gr_stage_flow.user);
}

/* A batch ends before its next micro-batch, on all ranks; what follows is as if it had not been. */
Test(tensor, cancelled)
{
    struct tiny t = tiny_family(0);
    struct gr_model *m = open_team(&t, 4, 2);
    struct gr_session_params params = params_of(m, "f16");
    play_whole(m, &params);
    struct results want = whole, none = {.n = 0};
    struct gr_session *s = tiny_session(m, &params);
    int n = 0;
    const struct gr_flow flow = {cancel, gr_stage_flow.out, &n};
    s->flow = &flow;
    cr_expect_eq(prompt(s, &none, 0, 0, 16, 3), GR_E_CANCELLED, "%s", gr_error());
    cr_expect_eq(n, 2);
    cr_assert_eq(play(s, &whole), 0, "%s", gr_error());
    cr_expect_arr_eq(whole.row, want.row, (size_t)want.n * N_VOCAB * sizeof *want.row);
    gr_session_close(&s);
    gr_model_close(&m);
}

/* A division that a model does not allow is refused when it is opened. */
Test(tensor, refused)
{
    struct tiny t = tiny_family(0);
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    const char *path = tiny_write(&t, NULL);
    p.device = "none", p.n_rank = p.n_shard = 5, p.split_mode = GR_SPLIT_MODE_TENSOR;
    cr_expect_eq(gr_model_open(&m, path, &p), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error(), "heads can be split by tensors among 4 at most, not 5"), "%s",
              gr_error());
    unlink(path);
}

/* ---- states ---- */

struct state {
    void *data;
    size_t n;
};

static struct state save(struct gr_session *s)
{
    struct state x = {0};
    cr_assert_eq(gr_state_save(s, -1, NULL, 0, &x.data, &x.n), 0, "%s", gr_error());
    return x;
}

static void load(struct gr_session *s, const struct state *x)
{
    cr_assert_eq(gr_state_load(s, -1, x->data, x->n, NULL, NULL), 0, "%s", gr_error());
}

/* A state saved by one session goes into another one, which saves the same bytes, and goes on as
 * the first one does. */
static void expect_moves(struct gr_session *from, struct gr_session *to, const char *name)
{
    static struct results a, b;
    gr_kv_clear(from);
    cr_assert_eq(play(from, &a), 0, "%s", gr_error());
    struct state x = save(from);
    load(to, &x);
    struct state y = save(to);
    cr_expect(x.n == y.n && !memcmp(x.data, y.data, x.n), "%s: %zu and %zu bytes", name, x.n, y.n);
    a.n = b.n = 0;
    bool moves = !tiny_keeps_states(from->model) && !tiny_learned_positions(from->model);
    int32_t pos = moves ? 14 : 17;
    cr_assert_eq(prompt(from, &a, 0, pos, 4, 1), 0, "%s", gr_error());
    cr_assert_eq(prompt(to, &b, 0, pos, 4, 1), 0, "%s", gr_error());
    double nmse = tiny_nmse(a.row, b.row, (size_t)a.n * N_VOCAB);
    cr_expect(a.n == 4 && nmse <= SAME, "%s: nmse %g", name, nmse);
    gr_state_free(x.data);
    gr_state_free(y.data);
}

/* States are the model's, however it is split: heads that shards have, or have all, and states of
 * recurrent layers. */
Test(tensor, states_fit_any_split)
{
    for (unsigned i = 0; i < GR_COUNT(families); i++) {
        static const int32_t ways[][2] = {{2, 2}, {3, 3}, {4, 4}, {4, 2}};
        struct tiny t = tiny_family(i);
        struct gr_model *one = tiny_open(&t);
        struct gr_session_params params = params_of(one, "f32");
        params.kv_unified = i % 2;
        for (unsigned k = 0; k < GR_COUNT(ways) && !one->hp.no_cache; k++) {
            struct gr_model *m = open_team(&t, ways[k][0], ways[k][1]);
            struct gr_session *a = tiny_session(one, &params), *b = tiny_session(m, &params);
            expect_moves(a, b, families[i]);
            expect_moves(b, a, families[i]);
            cr_expect_eq(gr_session_resize(b, 192), 0, "%s", gr_error());
            expect_moves(b, a, families[i]);
            gr_session_close(&a), gr_session_close(&b);
            gr_model_close(&m);
        }
        gr_model_close(&one);
    }
}
