/* Sessions over several devices: wherever layers and caches are, batches give the same bits. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

#define N_VOCAB 96
#define MOST_ROWS 80
#define PLENTY (64u << 20)

/* Placement of a model's layers. */
struct way {
    const char *device;
    int32_t n_gpu; /* -2: half */
    bool no_kv_offload;
    int32_t n_rank; /* threads that share them; 0 = one for each device */
    const char *split;
    int32_t offload; /* from how many tokens on layers of the CPU run on a device; 0: none do */
};
/* Matrices apart from their layer. */
struct homes {
    const struct gr_weight_home *list;
    int32_t n, n_cpu_experts;
};
static const struct way on_cpu = {.device = "none"};
static const struct way ways[] = {
    {"FAKE", 0, false, 1, NULL, 0},
    {"FAKE", 1, false, 1, NULL, 0},
    {"FAKE", -2, false, 1, NULL, 0},
    {"FAKE", 99, false, 1, NULL, 0},
    {"FAKE", -2, true, 1, NULL, 0},
    {"FAKE", 99, true, 1, NULL, 0},
    {"auto", -1, false, 1, NULL, 0},
    {"FAKE0,FAKE1", 99, false, 1, NULL, 0},
    {"FAKE1,FAKE2", -2, false, 1, NULL, 0},
    {"fake2,FAKE0", 99, true, 1, NULL, 0},
    {"FAKE", 1, false, 1, NULL, 4},
    {"FAKE", -2, true, 1, NULL, 2},
    /* several ranks; the number of those before is ONE_RANK */
    {"none", 0, false, 2, NULL, 0},
    {"none", 0, false, 3, "5,1,2", 0},
    {"none", 0, false, 8, NULL, 0},
    {"FAKE0,FAKE1,FAKE2", 99, false, 3, NULL, 0},
    {"FAKE0,FAKE1", -2, false, 2, "1,3", 0},
    {"FAKE0,FAKE1", -2, false, 2, "1,3", 4},
    {"FAKE0,FAKE1,FAKE2", 99, true, 2, NULL, 0},
    {"FAKE0,FAKE1,FAKE0", -1, false, 0, NULL, 0},
};
enum { ONE_RANK = 12 };

static struct gr_model *open_apart(const char *path, const struct tiny *t, const struct way *w,
                                   const struct homes *h)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    p.device = w->device, p.n_gpu_layers = w->n_gpu == -2 ? (t->n_layer + 1) / 2 : w->n_gpu;
    p.n_rank = w->n_rank, p.tensor_split = w->split;
    p.weight_homes = h->list, p.n_weight_home = h->n, p.n_cpu_experts = h->n_cpu_experts;
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s: %s", t->arch->name, gr_error());
    return m;
}

static struct gr_model *open_file(const char *path, const struct tiny *t, const struct way *w)
{
    return open_apart(path, t, w, &(struct homes){NULL, 0, -1});
}

static struct gr_model *open_model(const struct tiny *t, const struct way *w)
{
    const char *path = tiny_write(t, NULL);
    struct gr_model *m = open_file(path, t, w);
    unlink(path);
    return m;
}

static struct gr_session *open_session(struct gr_model *m, const struct way *w)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1, p.n_ubatch = m->hp.no_cache ? 32 : 7, p.n_seq_max = 3;
    p.type_v = "f32", p.no_kv_offload = w->no_kv_offload;
    p.offload_from = w->offload ? w->offload : -1;
    return tiny_session(m, &p);
}

struct play {
    struct gr_session *s;
    float out[MOST_ROWS * N_VOCAB];
    int n;
};

static void decode(struct play *p, int32_t seq, int32_t pos, int n)
{
    int32_t id[32], at[32], of[32];
    int8_t all[32];
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * (pos + i) + seq) % N_VOCAB, at[i] = pos + i, of[i] = seq, all[i] = 1;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = at, .seq = of, .logits = all};
    cr_assert_eq(gr_decode(p->s, &b), 0, "%s", gr_error());
    for (int i = 0; i < n; i++)
        memcpy(p->out + (size_t)p->n++ * N_VOCAB, tiny_row(p->s, i), N_VOCAB * sizeof(float));
}

static void save_and_load(struct play *p)
{
    void *data;
    size_t n;
    cr_assert_eq(gr_state_save(p->s, -1, NULL, 0, &data, &n), 0, "%s", gr_error());
    gr_kv_clear(p->s);
    cr_assert_eq(gr_state_load(p->s, -1, data, n, NULL, NULL), 0, "%s", gr_error());
    gr_state_free(data);
}

/* Prompts, single tokens, everything that moves cells, and a state that is saved and restored. */
static void play(struct play *p, struct gr_model *m)
{
    p->n = 0;
    decode(p, 0, 0, 20);
    if (m->hp.no_cache)
        return;
    decode(p, 0, 20, 1);
    decode(p, 1, 0, 9);
    if (!tiny_keeps_states(m)) {
        cr_assert_eq(gr_kv_seq_dup(p->s, 0, 2, -1, -1), 0, "%s", gr_error());
        cr_assert_eq(gr_kv_seq_rm(p->s, 1, 3, -1), 0, "%s", gr_error());
        cr_assert_eq(gr_kv_defrag(p->s), 0, "%s", gr_error());
        decode(p, 2, 21, 2);
        if (!tiny_learned_positions(m))
            cr_assert_eq(gr_kv_seq_add(p->s, 2, 0, -1, 3), 0, "%s", gr_error());
    }
    save_and_load(p);
    decode(p, 0, 21, 8);
    if (!gr_ten_is(&m->weight[GR_W_ROPE_LONG])) /* another length would turn otherwise */
        cr_assert_eq(gr_session_resize(p->s, 512), 0, "%s", gr_error());
    decode(p, 0, 29, 1);
    if (!tiny_keeps_states(m))
        decode(p, 2, tiny_learned_positions(m) ? 23 : 26, 3);
}

static struct play want, got;

/* True when there are nodes behind the last layer. */
static bool has_output(const struct gr_arch *a)
{
    return !a->no_logits || tiny_has(a, GR_W_OUTPUT_NORM) || tiny_has(a, GR_W_ENC_OUTPUT_NORM);
}

/* True when one of the first n layers is not recurrent. */
static bool can_be_offloaded(const struct gr_hparams *hp, int32_t n)
{
    int32_t il = 0;
    while (il < n && hp->ssm.layer[il])
        il++;
    return il < n;
}

Test(devices, C16_same_bits_wherever_layers_are, .timeout = 300)
{
    fake_use(3, PLENTY);
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        const char *path = tiny_write(&t, NULL);
        struct gr_model *m = open_file(path, &t, &on_cpu);
        want.s = open_session(m, &on_cpu);
        play(&want, m);
        gr_session_close(&want.s);
        gr_model_close(&m);
        for (size_t k = 0; k < GR_COUNT(ways); k++) {
            int64_t runs[3] = {fake_runs(0), fake_runs(1), fake_runs(2)},
                    offloads = fake_offloads(0);
            m = open_file(path, &t, &ways[k]);
            got.s = open_session(m, &ways[k]);
            struct gr_model_info info;
            gr_model_info(m, &info);
            play(&got, m);
            int32_t n = m->hp.n_layer + 1;
            cr_expect_eq(info.n_gpu_layers,
                         ways[k].n_gpu == -2  ? (t.n_layer + 1) / 2
                         : ways[k].n_gpu == 0 ? 0
                         : ways[k].n_gpu == 1 ? 1
                                              : n,
                         "%s, way %zu: %d", t.arch->name, k, info.n_gpu_layers);
            bool ran = fake_runs(0) + fake_runs(1) + fake_runs(2) > runs[0] + runs[1] + runs[2];
            cr_expect_eq(ran, ways[k].offload || info.n_gpu_layers > !has_output(t.arch),
                         "%s, way %zu", t.arch->name, k);
            cr_expect_eq(fake_offloads(0) > offloads,
                         ways[k].offload && can_be_offloaded(&m->hp, n - info.n_gpu_layers),
                         "%s, way %zu", t.arch->name, k);
            cr_assert_eq(got.n, want.n);
            cr_expect_eq(memcmp(got.out, want.out, (size_t)got.n * N_VOCAB * sizeof(float)), 0,
                         "%s, way %zu", t.arch->name, k);
            gr_session_close(&got.s);
            gr_model_close(&m);
        }
        unlink(path);
    }
    for (int i = 0; i < FAKE_MAX; i++)
        cr_expect_eq(fake_used(i, NULL), 0, "FAKE%d keeps memory", i);
}

/* ---- matrices apart from their layer ---- */

static const struct gr_weight_home experts[] = {{"ffn_.*_exps", "CPU"}}, all[] = {{".", "cpu"}},
                                   feed_forward[] = {{"ffn_", "CPU"}},
                                   some[] = {{"_(q|gate|up|kv_b|out|k_b|in|kv_a_mqa)\\.", "CPU"},
                                             {"token_embd", "CPU"}},
                                   others[] = {{"(down|output|_v|qkv)", "CPU"}},
                                   two[] = {{"attn_[qk].*weight", "FAKE1"},
                                            {"ffn_(up|down)", "CPU"},
                                            {"^output", "FAKE1"},
                                            {"attn", "FAKE0"}},
                                   to_device[] = {{"ffn_.*(up|down|gate)", "FAKE0"}},
                                   output[] = {{"^output\\.", "CPU"}},
                                   output_first[] = {{"^output\\.", "FAKE0"}};
#define HOMES(of)                                                                                  \
    {                                                                                              \
        of, GR_COUNT(of), -1                                                                       \
    }
static const struct {
    struct way way;
    struct homes homes;
} apart[] = {
    {{"FAKE", 99, false, 1, NULL, 0}, HOMES(experts)},
    {{"FAKE", 99, false, 1, NULL, 4}, {NULL, 0, 1}},
    {{"FAKE", 99, true, 1, NULL, 0}, HOMES(all)},
    {{"FAKE", 99, false, 1, NULL, 2}, HOMES(feed_forward)},
    {{"FAKE", -2, false, 1, NULL, 0}, HOMES(some)},
    {{"FAKE", 99, false, 1, NULL, 3}, HOMES(some)},
    {{"FAKE", 99, false, 1, NULL, 0}, HOMES(others)},
    {{"FAKE0,FAKE1", 99, false, 0, NULL, 0}, HOMES(two)},
    {{"FAKE0,FAKE1", 99, false, 0, "1,1", 3}, HOMES(two)},
    {{"FAKE", 0, false, 0, NULL, 0}, HOMES(to_device)},
    {{"FAKE0,FAKE1", 99, false, 2, NULL, 0}, HOMES(feed_forward)},
    {{"none", 0, false, 2, NULL, 0}, HOMES(some)},
    {{"FAKE", 1, false, 1, NULL, 0}, HOMES(output)},
    {{"FAKE0,FAKE1", 99, false, 0, "1,1", 0}, HOMES(output_first)},
    {{"FAKE", 1, false, 1, NULL, 0}, HOMES(output)},
};

/* Matrices that patterns place on another device than their layer: the nodes that read them run
 * there, those between them where most of their inputs are, and every bit stays. */
Test(devices, same_bits_wherever_matrices_are, .timeout = 300)
{
    int n_apart = 0;
    fake_use(3, PLENTY);
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        const char *path = tiny_write(&t, NULL);
        struct gr_model *m = open_file(path, &t, &on_cpu);
        want.s = open_session(m, &on_cpu);
        play(&want, m);
        gr_session_close(&want.s);
        gr_model_close(&m);
        for (size_t k = (size_t)i % 3; k < GR_COUNT(apart); k += 3) { /* all by many of them */
            m = open_apart(path, &t, &apart[k].way, &apart[k].homes);
            got.s = open_session(m, &apart[k].way);
            n_apart += m->rank_model[0]->placed.apart;
            play(&got, m);
            cr_assert_eq(got.n, want.n);
            cr_expect_eq(memcmp(got.out, want.out, (size_t)got.n * N_VOCAB * sizeof(float)), 0,
                         "%s, way %zu", t.arch->name, k);
            gr_session_close(&got.s);
            gr_model_close(&m);
        }
        unlink(path);
    }
    cr_expect(n_apart > 200, "%d", n_apart);
    for (int i = 0; i < FAKE_MAX; i++)
        cr_expect_eq(fake_used(i, NULL), 0, "FAKE%d keeps memory", i);
}

/* ---- taps ---- */

struct seen {
    int n;
    struct {
        char name[24];
        int layer;
        double sum;
    } t[600];
};

static void on_tap(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                   void *user)
{
    struct seen *s = user;
    cr_assert(s->n < (int)GR_COUNT(s->t));
    snprintf(s->t[s->n].name, sizeof s->t[s->n].name, "%s", name);
    s->t[s->n].layer = layer;
    for (int64_t i = 0; i < rows * cols; i++)
        s->t[s->n].sum += (double)data[i] * (double)(1 + i % 7);
    s->n++;
}

Test(devices, taps_show_the_same, .timeout = 120)
{
    static struct seen a, b;
    fake_use(3, PLENTY);
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        const char *path = tiny_write(&t, NULL);
        for (size_t k = 0; k <= ONE_RANK; k++) {
            const struct way *w = k ? &ways[k - 1] : &on_cpu;
            if (w->offload && i % 4)
                continue;
            struct gr_model *m = open_file(path, &t, w);
            struct seen *s = k ? &b : &a;
            *s = (struct seen){0};
            got.s = open_session(m, w), got.n = 0;
            cr_assert_eq(gr_session_tap(got.s, "", on_tap, s), 0);
            decode(&got, 0, 0, 5);
            gr_session_close(&got.s);
            gr_model_close(&m);
            cr_assert(a.n > 0);
            cr_expect(!k || (a.n == b.n && !memcmp(a.t, b.t, sizeof a.t)), "%s, way %zu: %d, %d",
                      t.arch->name, k, a.n, b.n);
        }
        unlink(path);
    }
}

/* ---- states ---- */

/* A state that one placement saves another restores, and continues alike. */
Test(devices, states_go_from_one_placement_to_another, .timeout = 120)
{
    static const size_t pair[][2] = {{0, 3}, {3, 5}, {7, 1}, {5, 8}, {11, 13}, {3, 12}};
    fake_use(3, PLENTY);
    for (int i = 0; gr_arch_at(i); i += 2)
        for (size_t k = 0; k < GR_COUNT(pair); k++) {
            struct tiny t = tiny_default(gr_arch_at(i));
            if (t.arch->no_cache)
                continue;
            struct gr_model *a = open_model(&t, &ways[pair[k][0]]);
            struct gr_model *b = open_model(&t, &ways[pair[k][1]]);
            void *data;
            size_t n;
            want.s = open_session(a, &ways[pair[k][0]]), want.n = 0;
            got.s = open_session(b, &ways[pair[k][1]]), got.n = 0;
            decode(&want, 0, 0, 11);
            cr_assert_eq(gr_state_save(want.s, 0, NULL, 0, &data, &n), 0, "%s", gr_error());
            cr_assert_eq(gr_state_load(got.s, 0, data, n, NULL, NULL), 0, "%s", gr_error());
            gr_state_free(data);
            want.n = 0;
            decode(&want, 0, 11, 6);
            decode(&got, 0, 11, 6);
            cr_expect_eq(memcmp(got.out, want.out, 6 * N_VOCAB * sizeof(float)), 0, "%s, %zu",
                         t.arch->name, k);
            gr_session_close(&want.s);
            gr_session_close(&got.s);
            gr_model_close(&a);
            gr_model_close(&b);
        }
}

/* ---- memory ---- */

/* After a session is open nothing takes memory of a device any more, nor pinned memory. */
Test(devices, a_session_takes_its_memory_when_it_opens, .timeout = 300)
{
    fake_use(3, PLENTY);
    for (int i = 0; gr_arch_at(i); i++) {
        struct tiny t = tiny_default(gr_arch_at(i));
        const char *path = tiny_write(&t, NULL);
        for (size_t k = 1; k < ONE_RANK; k++) {
            if (ways[k].offload && i % 4)
                continue;
            struct gr_model *m = open_file(path, &t, &ways[k]);
            struct gr_session *s = open_session(m, &ways[k]);
            int32_t id[250];
            for (int j = 0; j < 250; j++)
                id[j] = (5 + 37 * j) % N_VOCAB;
            int64_t before = fake_allocs();
            struct gr_batch b = {.n_tok = m->hp.no_cache ? 31 : 240, .token = id};
            cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
            b.n_tok = 1;
            cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
            if (!m->hp.no_cache && !tiny_keeps_states(m)) {
                cr_assert_eq(gr_kv_seq_rm(s, 0, 3, 100), 0);
                cr_assert_eq(gr_kv_defrag(s), 0, "%s", gr_error());
                if (!tiny_learned_positions(m))
                    cr_assert_eq(gr_kv_seq_add(s, 0, 100, -1, -5), 0, "%s", gr_error());
                cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
            }
            cr_expect_eq(fake_allocs(), before, "%s, way %zu: %d more", t.arch->name, k,
                         (int)(fake_allocs() - before));
            gr_session_close(&s);
            gr_model_close(&m);
        }
        unlink(path);
    }
}

static struct tiny larger(void)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.n_layer = 8, t.no_optional = true, t.n_expert = 0;
    return t;
}

static struct gr_session_params some_context(void)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 2048, p.n_threads = 1, p.n_ubatch = 64;
    return p;
}

/* The most memory that the first device has given is the amount computed before. */
static void taken_as_planned(const struct gr_fit *fit)
{
    const struct gr_fit_device *d = &fit->device[1];
    uint64_t planned = d->weights + d->cache + d->work, peak;
    fake_used(0, &peak);
    cr_expect(peak <= planned && planned - peak < 4096, "%llu planned, %llu taken",
              (unsigned long long)planned, (unsigned long long)peak);
}

/* As many layers as fit, whatever the memory; more memory, not fewer layers. What was worked out
 * before is what is taken. */
Test(devices, auto_takes_as_many_layers_as_fit, .timeout = 120)
{
    struct tiny t = larger();
    struct gr_session_params p = some_context();
    int32_t last = 0, seen = 0;
    for (uint64_t bytes = 64 << 10; bytes < 8 << 20; bytes += bytes / 5) {
        const struct way w = {.device = "auto", .n_gpu = -1};
        struct gr_fit fit;
        fake_use(1, bytes);
        struct gr_model *m = open_model(&t, &w);
        cr_assert_eq(gr_model_fit(m, &p, &fit), 0, "%s", gr_error());
        cr_expect_eq(fake_used(0, NULL), 0, "a plan takes nothing");
        struct gr_session *s = tiny_session(m, &p);
        struct gr_model_info info;
        gr_model_info(m, &info);
        cr_expect_eq(info.n_gpu_layers, fit.n_gpu_layers);
        cr_expect(info.n_gpu_layers >= last);
        if (info.n_gpu_layers)
            taken_as_planned(&fit);
        seen |= 1 << info.n_gpu_layers;
        last = info.n_gpu_layers;
        gr_session_close(&s);
        gr_model_close(&m);
    }
    cr_expect_eq(last, 9);
    cr_expect(__builtin_popcount((unsigned)seen) > 5, "%x", (unsigned)seen);
}

/* With little memory layers of the CPU are computed there; with more, prompts on the device. Either
 * way the session works, with the layers that were asked for. */
Test(devices, weights_are_offloaded_where_there_is_memory_for_it, .timeout = 120)
{
    struct tiny t = larger();
    struct gr_session_params p = some_context();
    const struct way w = {.device = "FAKE0", .n_gpu = 3};
    int seen[3] = {0};
    p.offload_from = 2;
    for (uint64_t bytes = 256 << 10; bytes < 4 << 20; bytes += bytes / 16) {
        struct gr_session *s;
        int64_t before = fake_offloads(0);
        fake_use(1, bytes);
        struct gr_model *m = open_model(&t, &w);
        struct gr_fit fit;
        int planned = gr_model_fit(m, &p, &fit), rc = gr_session_open(&s, m, &p);
        cr_expect_eq(rc, planned, "%s", gr_error());
        cr_assert(rc == 0 || rc == GR_E_NOMEM_DEV, "%s", gr_error());
        if (!rc) {
            want.s = s, want.n = 0;
            decode(&want, 0, 0, 20);
        }
        bool offloads = fake_offloads(0) > before;
        if (!rc)
            taken_as_planned(&fit);
        cr_expect(!seen[2] || offloads, "%llu bytes", (unsigned long long)bytes);
        seen[rc ? 0 : 1 + offloads]++;
        gr_session_close(&s);
        gr_model_close(&m);
    }
    cr_expect(seen[0] && seen[1] && seen[2], "%d refused, %d without, %d with", seen[0], seen[1],
              seen[2]);
    cr_expect_eq(fake_used(0, NULL), 0);
}

struct stop {
    struct gr_session *s;
    int n, after;
};

static void stop(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                 void *user)
{
    struct stop *c = user;
    (void)name, (void)layer, (void)data, (void)rows, (void)cols;
    if (++c->n == c->after)
        gr_session_cancel(c->s);
}

/* A prompt that is stopped while weights are being transferred: when the call returns, none is any
 * more, since the next step has other values in their memory. */
Test(devices, a_prompt_is_stopped_while_weights_come, .timeout = 120)
{
    struct tiny t = larger();
    struct gr_session_params p = some_context();
    const struct way w = {.device = "FAKE0", .n_gpu = 3};
    int32_t id[20] = {0};
    int n_stopped = 0;
    p.offload_from = 2;
    fake_use(1, 64 << 20);
    struct gr_model *m = open_model(&t, &w);
    for (int after = 1, rc = GR_E_CANCELLED; rc; after++) {
        struct stop c = {.after = after};
        cr_assert_eq(gr_session_open(&c.s, m, &p), 0, "%s", gr_error());
        cr_assert_eq(gr_session_tap(c.s, "", stop, &c), 0, "%s", gr_error());
        rc = gr_decode(c.s, &(struct gr_batch){.n_tok = GR_COUNT(id), .token = id});
        cr_assert(!rc || rc == GR_E_CANCELLED, "%s", gr_error());
        cr_expect_eq(fake_coming(0), 0, "after %d: %lld", after, (long long)fake_coming(0));
        n_stopped += rc != 0;
        gr_session_close(&c.s);
    }
    cr_expect_gt(n_stopped, 3);
    gr_model_close(&m);
}

/* ---- who waits for whom ---- */

/* One batch of sequence 0 from pos on; the last token's logits. */
static void decode_last(struct gr_session *s, int32_t pos, int n, float *out)
{
    int32_t id[32], at[32];
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * (pos + i)) % N_VOCAB, at[i] = pos + i;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = at};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    memcpy(out, tiny_row(s, n - 1), N_VOCAB * sizeof *out);
}

/* During a prompt in four pieces the host waits for the last one's logits alone: while the device
 * computes its layers for a piece the CPU computes its own for the next one. A single token
 * likewise; where the CPU has keys and values, once for each layer. */
Test(devices, nothing_is_waited_for_that_is_not_needed, .timeout = 120)
{
    static const struct {
        struct way way;
        int prompt, token;
    } cases[] = {{{.device = "FAKE0", .n_gpu = 99, .n_rank = 1}, 1, 1},
                 {{.device = "FAKE0", .n_gpu = 5, .n_rank = 1}, 1, 1},
                 {{.device = "FAKE0", .n_gpu = 99, .no_kv_offload = true, .n_rank = 1}, 33, 9}};
    struct tiny t = larger();
    float a[2][N_VOCAB], b[2][N_VOCAB];
    fake_use(1, PLENTY);
    for (size_t i = 0; i <= GR_COUNT(cases); i++) {
        const struct way *w = i ? &cases[i - 1].way : &on_cpu;
        struct gr_model *m = open_model(&t, w);
        struct gr_session *s = open_session(m, w);
        int64_t before = fake_waits(0);
        decode_last(s, 0, 28, i ? b[0] : a[0]);
        int64_t prompt = fake_waits(0);
        decode_last(s, 28, 1, i ? b[1] : a[1]);
        cr_expect(!i || prompt - before == cases[i - 1].prompt, "way %zu: %lld waits", i,
                  (long long)(prompt - before));
        cr_expect(!i || fake_waits(0) - prompt == cases[i - 1].token, "way %zu: %lld waits", i,
                  (long long)(fake_waits(0) - prompt));
        cr_expect(!i || memcmp(a, b, sizeof a) == 0, "way %zu", i);
        gr_session_close(&s);
        gr_model_close(&m);
    }
}

struct look {
    struct gr_session *s;
    int n_layer, n_seen;
};

static void look(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                 void *user)
{
    struct look *l = user;
    const struct gr_ten *w = l->s->rank_model->weight + (size_t)(layer + 2) * GR_N_SLOT;
    (void)name, (void)data, (void)rows, (void)cols;
    if (layer + 1 >= l->n_layer)
        return;
    cr_expect(fake_asked(l->s->device[1].backend, w[GR_W_ATTN_Q].data), "layer %d", layer + 1);
    l->n_seen++;
}

/* Attention of a layer is over: what the next one has in front of its own was asked for before. */
Test(devices, weights_are_asked_for_before_attention, .timeout = 60)
{
    const struct way w = {.device = "FAKE0", .n_gpu = 1, .n_rank = 1, .offload = 2};
    struct tiny t = larger();
    t.n_ff = 8 * t.n_embd; /* most of a layer is behind its attention */
    fake_use(1, PLENTY);
    struct gr_model *m = open_model(&t, &w);
    struct look l = {.s = open_session(m, &w), .n_layer = t.n_layer};
    float out[N_VOCAB];
    cr_assert_eq(gr_session_tap(l.s, "attn", look, &l), 0, "%s", gr_error());
    decode_last(l.s, 0, 7, out);
    cr_expect_eq(l.n_seen, t.n_layer - 1);
    gr_session_close(&l.s);
    gr_model_close(&m);
}

/* Each line of the message, pasted. */
static int paste(const char *line, struct way *w, struct gr_session_params *p)
{
    char flag[32], value[32];
    int n, known = 0;
    for (; sscanf(line, " %31s%n", flag, &n) == 1 && flag[0] == '-'; known++) {
        line += n;
        if (!strcmp(flag, "--no-kv-offload")) {
            w->no_kv_offload = p->no_kv_offload = true;
            continue;
        }
        cr_assert_eq(sscanf(line, " %31s%n", value, &n), 1);
        line += n;
        if (!strcmp(flag, "-ngl"))
            w->n_gpu = atoi(value);
        else if (!strcmp(flag, "-c"))
            p->n_ctx = (uint32_t)atoi(value);
        else if (!strcmp(flag, "-ub"))
            p->n_ubatch = (uint32_t)atoi(value);
        else if (!strcmp(flag, "-ctk") && !strcmp(value, "q8_0"))
            p->type_k = "q8_0";
        else if (!strcmp(flag, "-ctv") && !strcmp(value, "q8_0"))
            p->type_v = "q8_0";
        else
            cr_assert_fail("unknown flag %s", flag);
    }
    return known;
}

Test(devices, what_the_message_offers_works, .timeout = 120)
{
    struct tiny t = larger();
    int n_tried = 0;
    t.n_head = t.n_head_kv = 2, t.d_head = 32; /* whole blocks of q8_0 */
    for (uint64_t bytes = 256 << 10; bytes < 4 << 20; bytes += bytes / 3) {
        struct gr_session_params p = some_context();
        struct way w = {.device = "FAKE0", .n_gpu = 99};
        char message[1024];
        struct gr_session *s;
        fake_use(1, bytes);
        struct gr_model *m = open_model(&t, &w);
        int rc = gr_session_open(&s, m, &p);
        snprintf(message, sizeof message, "%s", rc ? gr_error() : "");
        gr_session_close(&s);
        gr_model_close(&m);
        if (!rc)
            continue;
        cr_assert_eq(rc, GR_E_NOMEM_DEV, "%s", message);
        cr_assert(strstr(message, "not enough memory on FAKE0") && strstr(message, "-ngl"), "%s",
                  message);
        for (char *line = strstr(message, "\n    "); line; line = strstr(line + 1, "\n    ")) {
            w = (struct way){.device = "FAKE0", .n_gpu = 99}, p = some_context();
            cr_assert(paste(line, &w, &p) > 0, "%s", line);
            m = open_model(&t, &w);
            cr_expect_eq(gr_session_open(&s, m, &p), 0, "%llu bytes:%.60s\n%s",
                         (unsigned long long)bytes, line, gr_error());
            gr_session_close(&s);
            gr_model_close(&m);
            n_tried++;
        }
    }
    cr_expect(n_tried > 10, "%d", n_tried);
    cr_expect_eq(fake_used(0, NULL), 0);
}

/* The cache that is offered beside a first session is the largest of its kind that fits there. */
Test(devices, offers_beside_a_session_are_the_largest, .timeout = 120)
{
    const struct way w = {.device = "FAKE0", .n_gpu = 99};
    const struct tiny t = larger();
    int n_tried = 0;
    for (uint64_t bytes = 1 << 20; bytes < 8 << 20; bytes += bytes / 24) {
        struct gr_session_params small = some_context(), p = small;
        struct gr_session *first = NULL, *second = NULL;
        fake_use(1, bytes);
        struct gr_model *m = open_model(&t, &w);
        small.n_ctx = 256, p.n_ctx = 4096;
        int rc = gr_session_open(&first, m, &small);
        if (!rc && gr_session_open(&second, m, &p) == GR_E_NOMEM_DEV) {
            char message[1024];
            snprintf(message, sizeof message, "%s", gr_error());
            const char *line = strstr(message, "\n    -c ");
            if (line && sscanf(line, " -c %u", &p.n_ctx) == 1 && p.n_ctx < 2048) {
                cr_expect_eq(gr_session_open(&second, m, &p), 0, "%llu bytes:%s\n%s",
                             (unsigned long long)bytes, line, gr_error());
                gr_session_close(&second);
                p.n_ctx *= 2;
                cr_expect_eq(gr_session_open(&second, m, &p), GR_E_NOMEM_DEV,
                             "%llu bytes: -c %u fits too", (unsigned long long)bytes, p.n_ctx);
                n_tried++;
            }
        }
        gr_session_close(&second);
        gr_session_close(&first);
        gr_model_close(&m);
    }
    cr_expect(n_tried > 5, "%d", n_tried);
}

/* ---- times ---- */

struct sums {
    int n_fake, n_cpu;
    int64_t end;
};

static void on_time(const struct gr_op_sample *t, void *user)
{
    struct sums *s = user;
    s->n_fake += !strcmp(t->device, "FAKE0");
    s->n_cpu += !strcmp(t->device, "CPU");
    cr_expect(t->ns >= 0 && t->bytes > 0 && t->start_ns >= s->end, "%s", t->op);
    s->end = t->start_ns + t->ns;
}

Test(devices, times_are_of_every_device)
{
    struct tiny t = larger();
    struct way w = {.device = "FAKE0", .n_gpu = 4};
    struct sums s = {0};
    fake_use(1, PLENTY);
    struct gr_model *m = open_model(&t, &w);
    got.s = open_session(m, &w), got.n = 0;
    cr_assert_eq(gr_session_time(got.s, on_time, &s), 0);
    decode(&got, 0, 0, 5);
    cr_expect(s.n_fake > 20 && s.n_cpu > 20, "%d %d", s.n_fake, s.n_cpu);
    cr_assert_eq(gr_session_time(got.s, NULL, NULL), 0);
    int n = s.n_fake;
    decode(&got, 0, 5, 1);
    cr_expect_eq(s.n_fake, n);
    gr_session_close(&got.s);
    gr_model_close(&m);
}
