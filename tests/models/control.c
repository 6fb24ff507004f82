/* Control vectors: a vector of layer N is added to what layer N makes, in every architecture and
 * wherever layers are; the logits are those of a model with the vector in a bias. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/rng.h"
#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

enum { N_TOK = 12, N_VOCAB = 96, MOST_EMBD = 256, N_LAYER = 3, PLENTY = 64 << 20 };

/* ---- files ---- */

struct vector {
    char name[24];
    uint32_t dtype;
    int n;
    float x[MOST_EMBD];
};

/* Writes a file of vectors; arch NULL: no key for it. */
static void write_vectors(const char *path, const char *arch, const struct vector *v, int n)
{
    struct gr_gguf_writer *w;
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    if (arch)
        cr_assert_eq(gr_gguf_set_str(w, "general.architecture", arch), 0);
    for (int i = 0; i < n; i++)
        cr_assert_eq(gr_gguf_add_tensor(w, (struct gr_str){v[i].name, strlen(v[i].name)},
                                        v[i].dtype, 1, &(uint64_t){(uint64_t)v[i].n}),
                     0);
    cr_assert_eq(gr_gguf_begin(w, path), 0, "%s", gr_error());
    for (int i = 0; i < n; i++)
        cr_assert_eq(gr_gguf_write(w, v[i].x, (size_t)v[i].n * (v[i].dtype == GR_F32 ? 4 : 2)), 0);
    cr_assert_eq(gr_gguf_commit(w), 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
}

static struct vector draw(struct gr_rng *r, int32_t layer, int32_t n)
{
    struct vector v = {.dtype = GR_F32, .n = n};
    cr_assert(n <= MOST_EMBD);
    snprintf(v.name, sizeof v.name, "direction.%d", layer);
    for (int32_t i = 0; i < n; i++)
        v.x[i] = gr_rng_normal(r);
    return v;
}

static const char *in_tmp(const char *name)
{
    static char path[16][96];
    static int turn;
    char *p = path[turn++ % 16];
    snprintf(p, sizeof path[0], "/tmp/control-%d-%s.gguf", (int)getpid(), name);
    return p;
}

/* ---- running ---- */

static struct gr_model_params params_with(const struct gr_adapter *v, int n)
{
    struct gr_model_params p = gr_model_params_default();
    p.device = "none";
    p.control_vectors = v, p.n_control_vector = n;
    return p;
}

struct seen {
    int32_t layer; /* whose results are kept */
    int n;
    float x[N_TOK * MOST_EMBD];
    float out[N_TOK * N_VOCAB];
};

static void see(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                void *user)
{
    struct seen *s = user;
    int64_t n = rows * cols;
    (void)name;
    if (layer != s->layer || n > (int64_t)GR_COUNT(s->x))
        return;
    memcpy(s->x, data, (size_t)n * sizeof *data);
    s->n = (int)n;
}

static void play(struct gr_model *m, struct seen *s, bool tapped)
{
    struct gr_session_params p = gr_session_params_default();
    int32_t id[N_TOK];
    int8_t all[N_TOK];
    p.n_ctx = 256, p.n_threads = 1, p.type_k = "f32", p.type_v = "f32";
    if (m->arch->no_logits)
        p.pooling = GR_POOLING_NONE;
    struct gr_session *session = tiny_session(m, &p);
    if (tapped)
        cr_assert_eq(gr_session_tap(session, "layer", see, s), 0, "%s", gr_error());
    for (int i = 0; i < N_TOK; i++)
        id[i] = (5 + 37 * i) % N_VOCAB, all[i] = 1;
    struct gr_batch b = {.n_tok = N_TOK, .token = id, .logits = all};
    s->n = 0;
    cr_assert_eq(gr_decode(session, &b), 0, "%s", gr_error());
    int n = m->arch->no_logits ? GR_MIN(m->hp.n_embd, N_VOCAB) : N_VOCAB;
    for (int i = 0; i < N_TOK; i++) {
        const float *row = m->arch->no_logits ? gr_embeddings(session, i) : gr_logits(session, i);
        cr_assert(row, "%s", m->arch->name);
        memcpy(s->out + i * N_VOCAB, row, (size_t)n * sizeof *row);
    }
    gr_session_close(&session);
}

static struct seen base, with;

static struct gr_model *must_open(const char *path, struct gr_model_params p)
{
    struct gr_model *m;
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s", gr_error());
    return m;
}

/* ---- what is added ---- */

/* The results of layer 1 are what they were, plus the scaled vector, to the bit. */
static void adds(const struct gr_arch *arch)
{
    struct tiny t = tiny_default(arch);
    struct gr_rng r = gr_rng_new(3);
    char path[256];
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    struct gr_model *m = must_open(path, params_with(NULL, 0));
    int32_t n = m->hp.n_embd;
    base.layer = with.layer = 1;
    bool refused = m->hp.enc.n_layer > 0 || m->hp.loop.n_low;
    if (!refused)
        play(m, &base, true);
    gr_model_close(&m);
    struct vector v = draw(&r, 1, n);
    write_vectors(in_tmp("one"), "controlvector", &v, 1);
    const struct gr_adapter one = {in_tmp("one"), 0.5f};
    struct gr_model_params p = params_with(&one, 1);
    int rc = gr_model_open(&m, path, &p);
    cr_assert_eq(rc, refused ? GR_E_UNSUPPORTED : 0, "%s: %s", arch->name, gr_error());
    if (!rc) {
        play(m, &with, true);
        cr_assert(with.n == base.n && base.n, "%s: %d, %d", arch->name, with.n, base.n);
        for (int i = 0; i < base.n; i++)
            cr_assert_eq(with.x[i], base.x[i] + 0.5f * v.x[i % n], "%s: %d", arch->name, i);
    }
    gr_model_close(&m);
    unlink(one.path), unlink(path);
}

Test(control, is_added_to_a_layer)
{
    for (int i = 0; gr_arch_at(i); i++)
        adds(gr_arch_at(i));
}

/* Adds to the bias of the last product of a layer, in a copy of the model. */
static void write_biased(const char *path, const char *from, int32_t layer, const float *x)
{
    struct gr_gguf *g;
    struct gr_gguf_writer *w;
    char name[48];
    int found = 0;
    snprintf(name, sizeof name, "blk.%d.ffn_down.bias", layer);
    cr_assert_eq(gr_gguf_open(&g, from, true), 0, "%s", gr_error());
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_copy_all(w, g), 0);
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
        cr_assert_eq(gr_gguf_add_tensor(w, t->name, t->dtype, t->n_dim, t->ne), 0);
    }
    cr_assert_eq(gr_gguf_begin(w, path), 0, "%s", gr_error());
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
        float *y = gr_calloc(t->bytes, 1);
        memcpy(y, t->data, t->bytes);
        bool hit = gr_str_is(t->name, name);
        for (uint64_t k = 0; hit && k < t->ne[0]; k++)
            y[k] += x[k];
        found += hit;
        cr_assert_eq(gr_gguf_write(w, y, t->bytes), 0);
        gr_free(y);
    }
    cr_assert_eq(gr_gguf_commit(w), 0, "%s", gr_error());
    cr_assert_eq(found, 1, "%s", name);
    gr_gguf_writer_free(&w);
    gr_gguf_close(&g);
}

static struct tiny with_biases(void)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"gpt2", 4}));
    t.n_layer = N_LAYER;
    return t;
}

/* Two files with vectors for layers 1, 2 and one beyond the last; the sum of both at their scales
 * is in the bias. With a range one layer has them. On devices, as stages and as shards too. */
Test(control, equals_a_bias_wherever_layers_are)
{
    static const struct {
        const char *device;
        int32_t n_gpu, n_rank;
        enum gr_split_mode mode;
    } ways[] = {
        {"none", 0, 0, GR_SPLIT_MODE_LAYER},         {"FAKE0", 99, 0, GR_SPLIT_MODE_LAYER},
        {"FAKE0", 2, 0, GR_SPLIT_MODE_LAYER},        {"FAKE0,FAKE1", 99, 0, GR_SPLIT_MODE_LAYER},
        {"none", 0, 2, GR_SPLIT_MODE_LAYER},         {"none", 0, 2, GR_SPLIT_MODE_TENSOR},
        {"FAKE0,FAKE1", 99, 2, GR_SPLIT_MODE_TENSOR}};
    struct tiny t = with_biases();
    struct gr_rng r = gr_rng_new(4);
    char path[256];
    float sum[2][MOST_EMBD];
    fake_use(2, PLENTY);
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    const struct vector a[] = {draw(&r, 1, t.n_embd), draw(&r, 2, t.n_embd)},
                        b[] = {draw(&r, 9, t.n_embd), draw(&r, 2, t.n_embd)};
    write_vectors(in_tmp("a"), "controlvector", a, 2);
    write_vectors(in_tmp("b"), NULL, b, 2);
    const struct gr_adapter both[] = {{in_tmp("a"), 0.25f}, {in_tmp("b"), -0.5f}};
    for (int i = 0; i < t.n_embd; i++)
        sum[0][i] = a[0].x[i] * 0.25f, sum[1][i] = a[1].x[i] * 0.25f - b[1].x[i] * 0.5f;
    for (int range = 0; range < 2; range++) {
        char first[256], merged[256];
        snprintf(first, sizeof first, "%s", in_tmp("first"));
        snprintf(merged, sizeof merged, "%s", in_tmp("merged"));
        write_biased(first, path, 2, sum[1]);
        write_biased(merged, first, 1, sum[0]);
        struct gr_model *m = must_open(range ? first : merged, params_with(NULL, 0));
        play(m, &base, false);
        gr_model_close(&m);
        for (size_t k = 0; k < GR_COUNT(ways); k++) {
            struct gr_model_params p = params_with(both, 2);
            p.device = ways[k].device, p.n_gpu_layers = ways[k].n_gpu;
            p.n_rank = ways[k].n_rank, p.split_mode = ways[k].mode;
            p.control_first = range ? 2 : 0, p.control_last = range ? 5 : 0;
            m = must_open(path, p);
            play(m, &with, false);
            gr_model_close(&m);
            double e = tiny_nmse(base.out, with.out, N_TOK * N_VOCAB);
            cr_expect(e < 1e-10, "way %zu, range %d: %g", k, range, e);
        }
        struct gr_model *plain = must_open(path, params_with(NULL, 0));
        play(plain, &with, false);
        gr_model_close(&plain);
        cr_expect(tiny_nmse(base.out, with.out, N_TOK * N_VOCAB) > 1e-3);
        unlink(first), unlink(merged);
    }
    unlink(both[0].path), unlink(both[1].path), unlink(path);
}

/* A state is of the vectors that it was made with. */
Test(control, states_belong_to_their_vectors)
{
    struct tiny t = with_biases();
    struct gr_rng r = gr_rng_new(5);
    struct gr_session_params p = gr_session_params_default();
    char path[256];
    void *state, *note;
    size_t n, n_note;
    p.n_ctx = 256, p.n_threads = 1;
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    const struct vector v = draw(&r, 1, t.n_embd);
    write_vectors(in_tmp("s"), "controlvector", &v, 1);
    struct gr_adapter one = {in_tmp("s"), 1};
    for (int k = 0; k < 3; k++) { /* the same, another scale, none */
        struct gr_model *m = must_open(path, params_with(&one, k < 2));
        struct gr_session *s = tiny_session(m, &p);
        struct gr_batch b = {.n_tok = 2, .token = (const int32_t[]){1, 2}};
        if (!k) {
            cr_assert_eq(gr_decode(s, &b), 0);
            cr_assert_eq(gr_state_save(s, -1, NULL, 0, &state, &n), 0, "%s", gr_error());
        }
        int rc = gr_state_load(s, -1, state, n, &note, &n_note);
        cr_expect_eq(rc, k ? GR_E_INVALID : 0, "%d: %s", k, gr_error());
        if (!rc)
            gr_state_free(note);
        else
            cr_expect(strstr(gr_error(), "control vectors: "), "%s", gr_error());
        gr_session_close(&s);
        gr_model_close(&m);
        one.scale = 2;
    }
    gr_state_free(state);
    unlink(one.path), unlink(path);
}

/* ---- files that are refused ---- */

static void refused(const char *model, const struct vector *v, const char *arch, float scale,
                    int status, const char *words)
{
    const struct gr_adapter one = {in_tmp("bad"), scale};
    struct gr_model_params p = params_with(&one, 1);
    struct gr_model *m;
    write_vectors(one.path, arch, v, v != NULL);
    int rc = gr_model_open(&m, model, &p);
    cr_expect_eq(rc, status, "%d, expected %d with \"%s\"", rc, status, words);
    cr_expect(rc && strstr(gr_error(), words), "\"%s\" is not in: %s", words, gr_error());
    gr_model_close(&m);
    unlink(one.path);
}

Test(control, bad_files_are_named)
{
    struct tiny t = with_biases();
    struct gr_rng r = gr_rng_new(6);
    char path[256];
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    const struct vector good = draw(&r, 1, t.n_embd);
    struct vector v = draw(&r, 0, t.n_embd);
    refused(path, &v, "controlvector", 1, GR_E_UNSUPPORTED, "N from 1 on");
    snprintf(v.name, sizeof v.name, "direction.x");
    refused(path, &v, "controlvector", 1, GR_E_UNSUPPORTED, "'direction.x': direction.N expected");
    v = good, v.n--;
    refused(path, &v, "controlvector", 1, GR_E_UNSUPPORTED, "another model's");
    v = good, v.dtype = GR_F16;
    refused(path, &v, "controlvector", 1, GR_E_UNSUPPORTED, "as f32 expected");
    v = good, v.x[5] = INFINITY;
    refused(path, &v, "controlvector", 1, GR_E_CORRUPT, "element 5 is not finite");
    refused(path, &good, "llama", 1, GR_E_UNSUPPORTED, "controlvector expected");
    refused(path, &good, "controlvector", NAN, GR_E_INVALID, "a finite scale");
    refused(path, NULL, "controlvector", 1, GR_E_CORRUPT, "no tensor direction.N");
    unlink(path);
}
