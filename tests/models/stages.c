/* Models cut into stages: sessions of the stages, one after the other in one thread, give what a
 * session of the whole model gives, byte for byte, wherever it is cut. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/rng.h"
#include "engine/session.h"
#include "engine/session_devices.h"
#include "gr/status.h"
#include "models/fake.h"
#include "placement/fit.h"
#include "ranks/boundary.h"
#include "support/tiny.h"

enum { N_VOCAB = 96, MOST_ROWS = 120, MOST = 8, PLENTY = 64 << 20 };

/* ---- cutting ---- */

/* Stages, and on which of their devices the layers are. */
struct split {
    struct gr_placement place;
    struct gr_devices devices[MOST];
};

/* Stages of random layers, some of them empty, all on the CPU; false where none may begin. */
static bool cut_at(struct split *p, const struct gr_hparams *hp, const int32_t *first, int32_t n)
{
    *p = (struct split){.place = {.n_device = 1, .n_stage = n}};
    for (int32_t il = 0; il <= hp->n_layer; il++)
        for (int32_t k = 1; k < n; k++)
            p->place.stage[il] += first[k - 1] <= il;
    for (int32_t k = 1; k < n; k++)
        if (!gr_place_may_cut(hp, first[k - 1]))
            return false;
    return true;
}

static void choose(struct gr_devices *d, const char *name)
{
    struct gr_model_params p = gr_model_params_default();
    p.device = name;
    cr_assert_eq(gr_devices_choose(d, &p), 0, "%s", gr_error());
}

/* Random stages on random devices. */
static void cut_anywhere(struct split *p, const struct gr_hparams *hp, struct gr_rng *r, bool fake)
{
    static const char *const names[] = {"none", "FAKE0", "FAKE2", "FAKE1,FAKE0"};
    int32_t first[MOST], n;
    do {
        n = 2 + (int32_t)gr_rng_below(r, MOST - 1);
        for (int32_t k = 0; k < n; k++)
            first[k] = (int32_t)gr_rng_below(r, (uint32_t)hp->n_layer + 1);
    } while (!cut_at(p, hp, first, n));
    for (int32_t k = 0; k < n; k++)
        choose(&p->devices[k], names[fake ? gr_rng_below(r, GR_COUNT(names)) : 0]);
    for (int32_t il = 0; il <= hp->n_layer; il++) {
        uint32_t n_device = (uint32_t)p->devices[p->place.stage[il]].n + 1;
        p->place.layer[il] = (uint8_t)gr_rng_below(r, n_device);
    }
}

/* ---- running ---- */

/* Boundaries on their way to a stage, the first one first. */
struct queue {
    struct boundary {
        struct boundary *next;
        uint32_t n;
        uint32_t value[8];
        int64_t bytes[8];
        char *data;
    } * first, **end;
};

struct line {
    struct gr_model *m;
    int32_t n; /* sessions */
    struct gr_session *s[MOST];
    struct flow {
        struct line *line;
        int32_t stage;
        struct gr_flow api;
        struct queue queue; /* to this stage */
    } flow[MOST];
    struct gr_rng gap;
};

static int64_t bytes_of(const struct gr_plan *p, uint32_t v)
{
    return ((const struct gr_value *)p->value.data)[v].bytes;
}

static void describe(struct boundary *b, const struct gr_plan *p, const struct gr_vec *values)
{
    cr_assert(values->n <= GR_COUNT(b->value));
    b->n = (uint32_t)values->n;
    for (uint32_t i = 0; i < b->n; i++) {
        b->value[i] = ((const uint32_t *)values->data)[i];
        b->bytes[i] = bytes_of(p, b->value[i]);
    }
}

static int come(struct gr_session *s, const struct gr_plan *p, void *user)
{
    struct flow *f = user;
    struct boundary want = {0}, *b = f->queue.first;
    describe(&want, p, &p->in);
    if (f->stage == 0) {
        cr_assert_eq(p->in.n, 0);
        return 0;
    }
    cr_assert_not_null(b, "stage %d: nothing came", f->stage);
    cr_assert(want.n == b->n && !memcmp(want.value, b->value, sizeof want.value) &&
                  !memcmp(want.bytes, b->bytes, sizeof want.bytes),
              "stage %d expects other values", f->stage);
    int rc = gr_boundary_in(s, p, b->data);
    f->queue.first = b->next;
    if (!b->next)
        f->queue.end = &f->queue.first;
    gr_free(b->data);
    gr_free(b);
    return rc;
}

static int go(struct gr_session *s, const struct gr_plan *p, const void *rows, size_t n, void *user)
{
    (void)rows, (void)n;
    struct flow *f = user;
    bool last = f->stage == f->line->n - 1;
    cr_assert_eq(gr_ten_is(&p->result), last && p->shape.n_out > 0);
    if (last) {
        cr_assert_eq(p->out.n, 0);
        return 0;
    }
    struct boundary *b = gr_calloc(1, sizeof *b);
    struct queue *q = &f[1].queue;
    cr_assert_not_null(b);
    describe(b, p, &p->out);
    b->data = gr_calloc(gr_boundary_bytes(p, &p->out), 1);
    cr_assert_not_null(b->data);
    *q->end = b, q->end = &b->next;
    return gr_boundary_out(s, p, b->data);
}

static void open_line(struct line *l, struct gr_model *m, const struct split *p,
                      const struct gr_session_params *params)
{
    *l = (struct line){.m = m, .n = p->place.n_stage};
    for (int32_t k = 0; k < l->n; k++) {
        struct gr_rank_model *rank_model = gr_rank_model_add(m, &p->devices[k]);
        struct gr_placement place = p->place;
        struct flow *f = &l->flow[k];
        cr_assert_not_null(rank_model);
        rank_model->rank = rank_model->stage = k, rank_model->n_stage = l->n;
        memcpy(rank_model->hp.attn.kv_of, m->rank_model[0]->hp.attn.kv_of,
               sizeof rank_model->hp.attn.kv_of);
        place.n_device = p->devices[k].n + 1;
        cr_assert_eq(gr_rank_model_load(rank_model, &place), 0, "%s", gr_error());
        cr_assert_eq(gr_session_open_rank(&l->s[k], rank_model, params), 0, "%s: %s", m->arch->name,
                     gr_error());
        *f = (struct flow){.line = l, .stage = k, .api = {come, go, f}};
        f->queue.end = &f->queue.first;
        l->s[k]->flow = &f->api;
    }
    for (int32_t k = 0; k < l->n; k++)
        tiny_encode(l->s[k]);
}

static void close_line(struct line *l)
{
    for (int32_t k = 0; k < l->n; k++) {
        cr_expect_null(l->flow[k].queue.first, "what was sent did not arrive");
        gr_session_close(&l->s[k]);
    }
    while (l->m->n_rank_model > 1)
        gr_rank_model_free(&l->m->rank_model[--l->m->n_rank_model]);
}

/* The whole model in one session. */
static void open_alone(struct line *l, struct gr_model *m, const struct gr_session_params *params)
{
    *l = (struct line){.m = m, .n = 1, .s = {tiny_session(m, params)}};
}

struct play {
    struct line line;
    float out[MOST_ROWS * N_VOCAB];
    int n;
};

#define EACH(p, call)                                                                              \
    for (int32_t k_ = 0; k_ < (p)->line.n; k_++) {                                                 \
        struct gr_session *s = (p)->line.s[k_];                                                    \
        cr_assert_eq(call, 0, "%s: %s", (p)->line.m->arch->name, gr_error());                      \
    }

static void decode(struct play *p, const struct gr_batch *b)
{
    EACH(p, gr_decode(s, b));
    for (int32_t i = 0; i < b->n_tok; i++) {
        const float *row = tiny_row(p->line.s[p->line.n - 1], i);
        cr_assert_eq(row != NULL, b->logits[i] != 0);
        if (row)
            memcpy(p->out + (size_t)p->n++ * N_VOCAB, row, N_VOCAB * sizeof(float));
        cr_assert(p->n <= MOST_ROWS);
    }
}

/* n tokens of a sequence, of which each `every`-th one has logits; 0: none has. */
static void prompt(struct play *p, int32_t seq, int32_t pos, int n, int every)
{
    int32_t id[32], at[32], of[32];
    int8_t want[32];
    for (int i = 0; i < n; i++) {
        id[i] = (5 + 37 * (pos + i) + seq) % N_VOCAB, at[i] = pos + i, of[i] = seq;
        want[i] = every && i % every == every - 1;
    }
    decode(p, &(struct gr_batch){.n_tok = n, .token = id, .pos = at, .seq = of, .logits = want});
}

/* One token of each of three sequences. */
static void generate(struct play *p, int32_t a, int32_t b, int32_t c)
{
    int32_t id[] = {a % 90, b % 80, c % 70}, at[] = {a, b, c}, of[] = {0, 1, 2};
    int8_t all[] = {1, 1, 1};
    decode(p, &(struct gr_batch){.n_tok = 3, .token = id, .pos = at, .seq = of, .logits = all});
}

/* Prompts in micro-batches, some without any logits, single tokens, several sequences at once, and
 * everything that moves cells. */
static void play(struct play *p)
{
    bool states = tiny_keeps_states(p->line.m), learned = tiny_learned_positions(p->line.m);
    p->n = 0;
    prompt(p, 0, 0, 20, 1);
    if (p->line.s[0]->rank_model->hp.no_cache)
        return;
    prompt(p, 1, 0, 9, 0);
    prompt(p, 0, 20, 1, 1);
    prompt(p, 2, 0, 16, 5);
    generate(p, 21, 9, 16);
    if (states)
        return generate(p, 22, 10, 17);
    EACH(p, gr_kv_seq_rm(s, 1, 3, -1));
    EACH(p, gr_kv_seq_rm(s, 2, -1, -1));
    EACH(p, gr_kv_seq_dup(s, 0, 2, -1, -1));
    EACH(p, gr_kv_defrag(s));
    generate(p, 22, 3, 22);
    if (!learned) {
        EACH(p, gr_kv_seq_add(s, 2, 0, -1, 3));
        EACH(p, gr_kv_seq_add(s, 0, 5, -1, -2));
    }
    EACH(p, gr_kv_seq_rm(s, 1, -1, -1));
    EACH(p, gr_kv_seq_cp(s, 0, 1, -1, -1));
    prompt(p, 1, learned ? 23 : 21, 6, 3);
    generate(p, learned ? 23 : 21, learned ? 29 : 27, learned ? 23 : 26);
}

/* ---- byte for byte ---- */

static struct gr_session_params params(const struct gr_model *m, uint32_t way)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1, p.n_seq_max = 3;
    p.n_ubatch = m->rank_model[0]->hp.no_cache ? 32 : 7;
    p.kv_unified = way % 2 == 0;
    p.no_kv_offload = way % 3 == 2;
    p.type_k = way % 3 == 1 ? "q8_0" : "f16", p.type_v = "f32";
    if (m->rank_model[0]->hp.attn.d_k % 32)
        p.type_k = "f16";
    return p;
}

static struct gr_model *open_model(const struct tiny *t)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    p.device = "none";
    const char *path = tiny_write(t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s: %s", t->arch->name, gr_error());
    unlink(path);
    return m;
}

static struct play want, got;

static void expect_same(struct gr_model *m, const struct split *p,
                        const struct gr_session_params *params)
{
    open_line(&got.line, m, p, params);
    play(&got);
    close_line(&got.line);
    cr_assert_eq(got.n, want.n);
    cr_expect_eq(memcmp(got.out, want.out, (size_t)got.n * N_VOCAB * sizeof(float)), 0,
                 "%s in %d stages: nmse %g", m->arch->name, p->place.n_stage,
                 tiny_nmse(want.out, got.out, (size_t)got.n * N_VOCAB));
}

/* More layers where the table does not say what each is. */
static struct tiny tiny_of(const struct gr_arch *a)
{
    struct tiny t = tiny_default(a);
    if (!t.heads && !t.heads_kv && !t.ffs)
        t.n_layer = 5;
    return t;
}

Test(stages, same_bytes_wherever_a_model_is_cut, .timeout = 300)
{
    fake_use(3, PLENTY);
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_of(gr_arch_at(i));
        struct gr_rng r = gr_rng_new((uint64_t)i);
        struct gr_model *m = open_model(&t);
        struct split p;
        for (uint32_t way = 0; way < 3; way++) {
            struct gr_session_params of_way = params(m, way);
            open_alone(&want.line, m, &of_way);
            play(&want);
            close_line(&want.line);
            for (int32_t il = 0; il <= m->hp.n_layer && way == 0; il++)
                if (cut_at(&p, &m->hp, &il, 2))
                    expect_same(m, &p, &of_way);
            cut_anywhere(&p, &m->hp, &r, way > 0);
            expect_same(m, &p, &of_way);
        }
        gr_model_close(&m);
    }
    for (int i = 0; i < FAKE_MAX; i++)
        cr_expect_eq(fake_used(i, NULL), 0, "FAKE%d keeps memory", i);
}

/* Grouped keys are caches as well. */
Test(stages, with_grouped_positions)
{
    fake_use(3, PLENTY);
    struct tiny t = tiny_of(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_rng r = gr_rng_new(1);
    struct gr_model *m = open_model(&t);
    struct gr_session_params of_way = params(m, 0);
    struct split p;
    of_way.self_extend_n = 2, of_way.self_extend_w = 8;
    open_alone(&want.line, m, &of_way);
    play(&want);
    close_line(&want.line);
    for (int i = 0; i < 6; i++) {
        cut_anywhere(&p, &m->hp, &r, i % 2);
        expect_same(m, &p, &of_way);
    }
    gr_model_close(&m);
}

/* ---- what is where ---- */

/* Stages have the memory of their own layers: together they have what one session has, with the
 * output's matrix once more where it is the embeddings' and they are apart. */
Test(stages, weights_and_caches_are_those_of_the_layers)
{
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_of(gr_arch_at(i));
        struct gr_model *m = open_model(&t);
        struct gr_session_params of_way = params(m, 0);
        struct split p;
        uint64_t cache = 0, weights = 0, everywhere = 0;
        static const enum gr_slot slots[] = {GR_W_ROPE_FREQS, GR_W_ROPE_LONG, GR_W_ROPE_SHORT};
        for (unsigned k = 0; k < GR_COUNT(slots); k++)
            everywhere += (uint64_t)(m->weight[slots[k]].rows * m->weight[slots[k]].row_bytes);
        const struct gr_ten *out = &m->weight[GR_W_OUTPUT];
        bool tied = out->data == m->weight[GR_W_TOKEN_EMBD].data;
        open_alone(&want.line, m, &of_way);
        cr_assert(cut_at(&p, &m->hp, (const int32_t[]){1, m->hp.n_layer}, 3));
        open_line(&got.line, m, &p, &of_way);
        for (int32_t k = 0; k < 3; k++) {
            cache += got.line.s[k]->device[0].has.cache;
            weights += got.line.s[k]->rank_model->placed.bytes[0];
        }
        for (size_t k = 0; k < (size_t)m->hp.n_layer * GR_N_CACHE_TENSOR; k++)
            for (int32_t stage = 0; stage < 3; stage++) {
                const struct gr_session *s = got.line.s[stage];
                bool own = p.place.stage[k % (size_t)m->hp.n_layer] == stage;
                cr_expect_eq(gr_tensor_device(s, &s->tensors[k]), own ? 0 : -1);
                cr_expect_eq(s->tensors[k].data != NULL, own && gr_ten_is(&s->tensors[k]));
            }
        cr_expect_eq(cache, want.line.s[0]->device[0].has.cache, "%s", t.arch->name);
        uint64_t all = m->rank_model[0]->placed.bytes[0] + 2 * everywhere;
        all += tied ? (uint64_t)(out->rows * out->row_bytes) : 0;
        cr_expect_eq(weights, all, "%s: %llu of %llu", t.arch->name, (unsigned long long)weights,
                     (unsigned long long)all);
        close_line(&got.line);
        close_line(&want.line);
        gr_model_close(&m);
    }
}

struct seen {
    int n[8];
};

static void count(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                  void *user)
{
    struct seen *s = user;
    cr_expect_str_eq(name, "layer");
    s->n[layer]++;
    cr_expect(rows == 7 && cols == 64 && data[0] == data[0]);
}

/* Each layer's tap fires once, in its stage. */
Test(stages, taps_are_those_of_the_layers)
{
    struct tiny t = tiny_of(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_model *m = open_model(&t);
    struct gr_session_params of_way = params(m, 0);
    struct seen seen[3] = {{{0}}};
    struct split p;
    cr_assert(cut_at(&p, &m->hp, (const int32_t[]){2, 3}, 3));
    open_line(&got.line, m, &p, &of_way);
    got.n = 0;
    for (int32_t k = 0; k < 3; k++)
        cr_assert_eq(gr_session_tap(got.line.s[k], "layer", count, &seen[k]), 0);
    prompt(&got, 0, 0, 7, 1);
    for (int32_t k = 0; k < 3; k++)
        for (int32_t il = 0; il < m->hp.n_layer; il++)
            cr_expect_eq(seen[k].n[il], p.place.stage[il] == k, "stage %d, layer %d", k, il);
    close_line(&got.line);
    gr_model_close(&m);
}

/* ---- layers that share keys and values ---- */

/* The third layer attends to the second one's. They stay together, or no session opens. */
Test(stages, what_shares_a_cache_stays_together)
{
    struct tiny t = tiny_of(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_model *m = open_model(&t);
    struct gr_hparams *hp = &m->rank_model[0]->hp;
    struct gr_session_params of_way = params(m, 0);
    struct split p;
    hp->attn.kv_of[2] = 1;
    open_alone(&want.line, m, &of_way);
    play(&want);
    close_line(&want.line);
    for (int32_t il = 0; il <= hp->n_layer; il++) {
        cr_expect_eq(gr_place_may_cut(hp, il), il != 2, "before layer %d", il);
        if (cut_at(&p, hp, &il, 2)) {
            expect_same(m, &p, &of_way);
            continue;
        }
        struct gr_rank_model *rank_model = gr_rank_model_add(m, &p.devices[0]);
        struct gr_session *s;
        cr_assert_not_null(rank_model);
        rank_model->n_stage = 2;
        rank_model->hp.attn.kv_of[2] = 1;
        cr_assert_eq(gr_rank_model_load(rank_model, &p.place), 0, "%s", gr_error());
        cr_expect_eq(gr_session_open_rank(&s, rank_model, &of_way), GR_E_INTERNAL);
        cr_expect(strstr(gr_error(), "attn, layer 2"), "%s", gr_error());
        gr_rank_model_free(&m->rank_model[--m->n_rank_model]);
    }
    gr_model_close(&m);
}
