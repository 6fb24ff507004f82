/* Adapters: every architecture with random ones gives what it gives with W + scale * B A for W, on
 * every device, stage and shard; what is wrong with a file is named. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/adapter.h"
#include "support/held.h"
#include "support/tiny.h"

enum { N_TOK = 24, N_VOCAB = 96, N_ADAPTER = 2, PLENTY = 64 << 20 };

/* Sums of f32 in another order, and merged weights rounded to f32: some units of 2^-24 of each
 * term, which exponentials and gates of recurrent layers make larger, squared, over as many layers
 * as a family needs. An adapter that is applied wrongly shows at 1e-4 and more. */
#define SAME 1e-9

TestSuite(lora, .init = held_begin, .fini = held_end);

/* ---- models that are made of them ---- */

/* x += scale * B A, [batch, out, in]. */
static void merge(const struct adapter_pair *p, double scale, float *x)
{
    for (int64_t e = 0; e < p->batch; e++)
        for (int64_t o = 0; o < p->out; o++)
            for (int64_t i = 0; i < p->in; i++) {
                double sum = 0;
                for (int64_t k = 0; k < p->rank; k++) {
                    int64_t a = p->rows ? o * p->rank + k : (e * p->rank + k) * p->in + i;
                    int64_t b = p->rows ? i * p->rank + k : (e * p->out + o) * p->rank + k;
                    sum += (double)p->b[b] * (double)p->a[a];
                }
                x[(e * p->out + o) * p->in + i] += (float)(scale * sum);
            }
}

/* The model in `from` with the adapters in its weights. */
static void write_merged(const char *path, const char *from, const struct adapter *a, int n)
{
    struct gr_gguf *g;
    struct gr_gguf_writer *w;
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
        float *x = gr_calloc(t->bytes, 1);
        memcpy(x, t->data, t->bytes);
        for (int k = 0; k < n; k++)
            for (int j = 0; j < a[k].n; j++) {
                const struct adapter_pair *p = &a[k].pair[j];
                double alpha = a[k].alpha != 0 ? (double)a[k].alpha / (double)p->rank : 1;
                if (gr_str_is(t->name, p->name))
                    merge(p, alpha * (double)a[k].scale, x);
            }
        cr_assert_eq(gr_gguf_write(w, x, t->bytes), 0);
        gr_free(x);
    }
    cr_assert_eq(gr_gguf_commit(w), 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
    gr_gguf_close(&g);
}

/* ---- running ---- */

static struct gr_model *open_with(const char *path, const struct adapter *a, int n,
                                  struct gr_model_params p)
{
    struct gr_adapter list[N_ADAPTER];
    struct gr_model *m;
    for (int i = 0; i < n; i++)
        list[i] = (struct gr_adapter){a[i].path, a[i].scale};
    p.adapters = list, p.n_adapter = n;
    return gr_model_open(&m, path, &p) ? NULL : m;
}

/* Logits of a prompt, in two batches, and of two single tokens. */
static void play(struct gr_model *m, const float *scales, float *out)
{
    static const int lengths[] = {N_TOK - 7, 5, 1, 1};
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1, p.type_k = "f32", p.type_v = "f32";
    if (m->arch->no_logits)
        p.pooling = GR_POOLING_NONE;
    for (int i = 0; scales && i < N_ADAPTER; i++)
        p.adapter_scale[i] = scales[i];
    struct gr_session *s = tiny_session(m, &p);
    int at = 0;
    for (int k = 0; k < 4; at += lengths[k++]) {
        int32_t id[N_TOK];
        int8_t want[N_TOK];
        for (int i = 0; i < lengths[k]; i++)
            id[i] = (5 + 37 * (at + i)) % N_VOCAB, want[i] = 1;
        struct gr_batch b = {.n_tok = lengths[k], .token = id, .logits = want};
        cr_assert_eq(gr_decode(s, &b), 0, "%s: %s", m->arch->name, gr_error());
        for (int i = 0; i < lengths[k]; i++) {
            const float *row = m->arch->no_logits ? gr_embeddings(s, i) : gr_logits(s, i);
            int n = m->arch->no_logits ? GR_MIN(m->hp.n_embd, N_VOCAB) : N_VOCAB;
            cr_assert(row, "%s", m->arch->name);
            memcpy(out + (at + i) * N_VOCAB, row, (size_t)n * sizeof *out);
        }
    }
    gr_session_close(&s);
}

/* Leaves out weights that the graph uses otherwise than by multiplying; the message names them. */
static struct gr_model *open_what_can_be(const char *path, struct adapter *a,
                                         struct gr_model_params p)
{
    for (;;) {
        adapter_write(a);
        struct gr_model *m = open_with(path, a, 1, p);
        int before = a->n;
        for (int i = 0; !m && i < a->n; i++)
            if (strstr(gr_error(), " does not multiply with ") &&
                strstr(gr_error(), a->pair[i].name))
                adapter_drop(a, i);
        cr_assert(m || a->n < before, "%s: %s", a->arch, gr_error());
        if (m)
            return m;
    }
}

static float want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB], base[N_TOK * N_VOCAB];

struct both {
    struct tiny t;
    char path[512];
    struct adapter adapter[N_ADAPTER];
};

/* A tiny model and two adapters for it, in files. */
static void prepare(struct both *x, const struct gr_arch *arch, bool fused)
{
    struct gr_model_params p = gr_model_params_default();
    p.device = "none";
    *x = (struct both){.t = tiny_default(arch)};
    x->t.fused = fused;
    x->t.n_layer = arch->n_spec ? x->t.n_layer : 0;
    snprintf(x->path, sizeof x->path, "%s", tiny_write(&x->t, NULL));
    struct gr_model *m = open_with(x->path, NULL, 0, p);
    cr_assert(m, "%s", gr_error());
    for (int i = 0; i < N_ADAPTER; i++) {
        char path[64];
        snprintf(path, sizeof path, "/tmp/lora-%d-%d.gguf", (int)getpid(), i);
        x->adapter[i].half = i;
        adapter_make(&x->adapter[i], m, (uint64_t)(11 + i), (uint32_t)(1 + i), path);
    }
    gr_model_close(&m);
    x->adapter[0].alpha = 3, x->adapter[0].scale = 0.75f;
    x->adapter[1].alpha = 0, x->adapter[1].scale = -0.5f;
    for (int i = 0; i < N_ADAPTER; i++) {
        m = open_what_can_be(x->path, &x->adapter[i], p);
        gr_model_close(&m);
    }
}

static void discard(struct both *x)
{
    for (int i = 0; i < N_ADAPTER; i++)
        adapter_release(&x->adapter[i]);
    unlink(x->path);
}

static void equals_merged(const struct gr_arch *arch, bool fused)
{
    static struct both x;
    struct gr_model_params p = gr_model_params_default();
    char merged[64];
    p.device = "none";
    prepare(&x, arch, fused);
    cr_assert_gt(x.adapter[0].n, 3, "%s", arch->name);
    snprintf(merged, sizeof merged, "/tmp/lora-%d-merged.gguf", (int)getpid());
    write_merged(merged, x.path, x.adapter, N_ADAPTER);
    struct gr_model *m = open_with(merged, NULL, 0, p);
    cr_assert(m, "%s", gr_error());
    play(m, NULL, want);
    gr_model_close(&m);
    m = open_with(x.path, NULL, 0, p);
    play(m, NULL, base);
    gr_model_close(&m);
    cr_assert_gt(tiny_nmse(want, base, N_TOK * N_VOCAB), 1e-4, "%s: they change little",
                 arch->name);
    m = open_with(x.path, x.adapter, N_ADAPTER, p);
    cr_assert(m, "%s", gr_error());
    play(m, NULL, got);
    double e = tiny_nmse(want, got, N_TOK * N_VOCAB);
    cr_expect_leq(e, SAME, "%s%s: %g", arch->name, fused ? ", fused" : "", e);
    play(m, (const float[]){0, 0}, got); /* switched off: to the bit */
    cr_expect(!memcmp(base, got, sizeof got), "%s: adapters that are off change something",
              arch->name);
    gr_model_close(&m);
    unlink(merged);
    discard(&x);
}

Test(lora, every_architecture_equals_the_merged_model)
{
    for (int i = 0; gr_arch_at(i); i++) {
        equals_merged(gr_arch_at(i), false);
        if (tiny_has(gr_arch_at(i), GR_W_ATTN_QKV) && tiny_has(gr_arch_at(i), GR_W_ATTN_Q))
            equals_merged(gr_arch_at(i), true);
    }
}

/* ---- devices, stages, shards ---- */

static const struct gr_arch *arch_of(const char *name)
{
    const struct gr_arch *a = gr_arch_find((struct gr_str){name, strlen(name)});
    cr_assert(a, "%s", name);
    return a;
}

static struct gr_model_params way(const char *device, int32_t n_gpu, int32_t n_rank,
                                  enum gr_split_mode mode)
{
    struct gr_model_params p = gr_model_params_default();
    p.device = device, p.n_gpu_layers = n_gpu, p.n_rank = n_rank, p.split_mode = mode;
    return p;
}

/* Wherever layers are the bits are the same; shards add up in another order. */
static void on_every_way(const char *name)
{
    static struct both x;
    const struct gr_model_params ways[] = {way("none", 0, 0, GR_SPLIT_MODE_LAYER),
                                           way("FAKE0", 99, 0, GR_SPLIT_MODE_LAYER),
                                           way("FAKE0", 1, 0, GR_SPLIT_MODE_LAYER),
                                           way("FAKE0,FAKE1", 99, 0, GR_SPLIT_MODE_LAYER),
                                           way("none", 0, 2, GR_SPLIT_MODE_LAYER),
                                           way("none", 0, 2, GR_SPLIT_MODE_TENSOR),
                                           way("FAKE0,FAKE1", 99, 2, GR_SPLIT_MODE_TENSOR)};
    prepare(&x, arch_of(name), false);
    for (size_t i = 0; i < GR_COUNT(ways); i++) {
        bool shards = ways[i].split_mode == GR_SPLIT_MODE_TENSOR;
        struct gr_model *m = open_with(x.path, x.adapter, N_ADAPTER, ways[i]);
        cr_assert(m, "%s, way %zu: %s", name, i, gr_error());
        play(m, NULL, i ? got : want);
        gr_model_close(&m);
        double e = i ? tiny_nmse(want, got, N_TOK * N_VOCAB) : 0;
        cr_expect_leq(e, shards ? SAME : 0, "%s, way %zu: %g", name, i, e);
    }
    discard(&x);
}

Test(lora, devices_stages_and_shards)
{
    fake_use(2, PLENTY);
    on_every_way("llama");
    on_every_way("qwen3moe");
    on_every_way("phi3");
    on_every_way("gpt2");
}

/* ---- memory and states ---- */

Test(lora, memory_is_counted)
{
    static struct both x;
    struct gr_fit without, with;
    fake_use(1, PLENTY);
    prepare(&x, arch_of("llama"), false);
    struct gr_model_params p = way("FAKE0", 99, 0, GR_SPLIT_MODE_LAYER);
    struct gr_model *m = open_with(x.path, NULL, 0, p);
    cr_assert_eq(gr_model_fit(m, NULL, &without), 0, "%s", gr_error());
    gr_model_close(&m);
    m = open_with(x.path, x.adapter, N_ADAPTER, p);
    cr_assert_eq(gr_model_fit(m, NULL, &with), 0, "%s", gr_error());
    gr_model_close(&m);
    uint64_t bytes = 0, more = 0;
    for (int k = 0; k < N_ADAPTER; k++)
        for (int i = 0; i < x.adapter[k].n; i++) {
            const struct adapter_pair *q = &x.adapter[k].pair[i];
            bytes += (uint64_t)(q->batch * q->rank * (q->in + q->out)) * (k ? 2 : 4);
        }
    for (int32_t d = 0; d < with.n_device; d++)
        more += with.device[d].weights - without.device[d].weights;
    cr_assert(more >= bytes, "%d bytes more, %d expected", (int)more, (int)bytes);
    discard(&x);
}

Test(lora, states_belong_to_their_adapters)
{
    static struct both x;
    struct gr_session_params p = gr_session_params_default();
    struct gr_batch b = {.n_tok = 2, .token = (const int32_t[]){1, 2}};
    void *state, *note;
    size_t n, n_note;
    p.n_ctx = 256, p.n_threads = 1;
    prepare(&x, arch_of("llama"), false);
    struct gr_model *m =
        open_with(x.path, x.adapter, N_ADAPTER, way("none", 0, 0, GR_SPLIT_MODE_LAYER));
    struct gr_session *s = tiny_session(m, &p);
    cr_assert_eq(gr_decode(s, &b), 0);
    cr_assert_eq(gr_state_save(s, -1, NULL, 0, &state, &n), 0, "%s", gr_error());
    cr_assert_eq(gr_state_load(s, -1, state, n, &note, &n_note), 0, "%s", gr_error());
    gr_state_free(note);
    gr_session_close(&s);
    p.adapter_scale[1] = 0.25f;
    s = tiny_session(m, &p);
    cr_assert_eq(gr_state_load(s, -1, state, n, &note, &n_note), GR_E_INVALID);
    cr_assert(strstr(gr_error(), "adapter: "), "%s", gr_error());
    gr_session_close(&s);
    gr_model_close(&m);
    m = open_with(x.path, NULL, 0, way("none", 0, 0, GR_SPLIT_MODE_LAYER));
    s = tiny_session(m, &p);
    cr_assert_eq(gr_state_load(s, -1, state, n, &note, &n_note), GR_E_INVALID);
    gr_session_close(&s);
    gr_model_close(&m);
    gr_state_free(state);
    discard(&x);
}

/* Sets strengths in an empty session, and expects the logits of a new one that has them from the
 * beginning, to the bit. */
static void expect_as_fresh(struct gr_session *s, struct gr_model *m, struct gr_session_params p,
                            const float strength[N_ADAPTER], int n_decode)
{
    const int32_t id[] = {3, 1, 4, 1, 5};
    struct gr_batch b = {.n_tok = 5, .token = id};
    memset(p.adapter_scale, 0, sizeof p.adapter_scale);
    memcpy(p.adapter_scale, strength, N_ADAPTER * sizeof *strength);
    cr_assert_eq(gr_session_set_adapters(s, p.adapter_scale), 0, "%s", gr_error());
    gr_kv_clear(s);
    struct gr_session *fresh = tiny_session(m, &p);
    for (int k = 0; k < n_decode; k++) {
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        cr_assert_eq(gr_decode(fresh, &b), 0);
        cr_expect_arr_eq(gr_logits(s, -1), gr_logits(fresh, -1), N_VOCAB * sizeof(float), "%g, %g",
                         (double)strength[0], (double)strength[1]);
    }
    gr_session_close(&fresh);
}

/* Opens a model with two adapters, and a session of 256 cells in which their strength is 0. */
static struct gr_session *open_session(struct both *x, struct gr_model **m,
                                       struct gr_session_params *p)
{
    *p = gr_session_params_default();
    p->n_ctx = 256, p->n_threads = 1;
    prepare(x, arch_of("llama"), false);
    *m = open_with(x->path, x->adapter, N_ADAPTER, way("none", 0, 0, GR_SPLIT_MODE_LAYER));
    memset(p->adapter_scale, 0, sizeof p->adapter_scale);
    return tiny_session(*m, p);
}

/* Strengths that change in a session, there and back: logits are those of a session that has them
 * from the beginning, to the bit. */
Test(lora, strengths_change_in_a_session)
{
    static struct both x;
    static const float set[][N_ADAPTER] = {{1, 0}, {0, 0}, {0.5f, -1}, {1, 0}, {0, 2}, {0.5f, -1}};
    struct gr_session_params p;
    struct gr_model *m;
    float scale[GR_MAX_ADAPTER] = {0};
    struct gr_session *s = open_session(&x, &m, &p);
    for (size_t i = 0; i < GR_COUNT(set); i++)
        expect_as_fresh(s, m, p, set[i], 2);
    memcpy(scale, set[GR_COUNT(set) - 1], sizeof set[0]);
    scale[1] = INFINITY;
    cr_expect_eq(gr_session_set_adapters(s, scale), GR_E_INVALID);
    scale[1] = -1;
    cr_expect_eq(gr_session_set_adapters(s, scale), 0);
    gr_session_close(&s);
    gr_model_close(&m);
    discard(&x);
}

/* The same after the session has got another size, with strengths of adapters in turn and then at
 * once, and not while a batch is pending that uses the memory. */
Test(lora, strengths_change_in_a_session_of_another_size)
{
    static struct both x;
    static const float set[][N_ADAPTER] = {{1, 0}, {0, 2}, {1, 2}, {0, 0}};
    const int32_t id[] = {3, 1, 4, 1, 5};
    struct gr_batch b = {.n_tok = 5, .token = id};
    struct gr_session_params p;
    struct gr_model *m;
    float scale[GR_MAX_ADAPTER] = {0};
    struct gr_session *s = open_session(&x, &m, &p);
    cr_assert_eq(gr_session_resize(s, 512), 0, "%s", gr_error());
    cr_assert_eq(gr_decode_begin(s, &b), 0, "%s", gr_error());
    memcpy(scale, set[0], sizeof set[0]);
    cr_expect_eq(gr_session_set_adapters(s, scale), GR_E_INVALID);
    cr_assert_eq(gr_decode_end(s), 0, "%s", gr_error());
    p.n_ctx = 512;
    for (size_t i = 0; i < GR_COUNT(set); i++)
        expect_as_fresh(s, m, p, set[i], 1);
    gr_session_close(&s);
    gr_model_close(&m);
    discard(&x);
}

/* ---- files that are refused ---- */

static void no_type(struct gr_gguf_writer *w)
{
    gr_gguf_set_str(w, "general.type", "model");
}
static void control_vector(struct gr_gguf_writer *w)
{
    gr_gguf_set_str(w, "adapter.type", "control_vector");
}
static void other_arch(struct gr_gguf_writer *w)
{
    gr_gguf_set_str(w, "general.architecture", "qwen2");
}
static void not_finite(struct gr_gguf_writer *w)
{
    gr_gguf_set_f32(w, "adapter.lora.alpha", NAN);
}
static void activated(struct gr_gguf_writer *w)
{
    uint32_t ids[] = {1, 2};
    gr_gguf_set_array(w, "adapter.alora.invocation_tokens", GR_GGUF_U32, ids, 2);
}

static void refused(const struct both *x, int status, const char *words)
{
    struct gr_adapter a = {x->adapter[0].path, 1};
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    p.device = "none", p.adapters = &a, p.n_adapter = 1;
    adapter_write(&x->adapter[0]);
    int rc = gr_model_open(&m, x->path, &p);
    cr_assert_null(m);
    cr_assert_eq(rc, status, "%d, expected %d with \"%s\": %s", rc, status, words, gr_error());
    cr_assert(strstr(gr_error(), words) && strstr(gr_error(), a.path), "\"%s\" is not in: %s",
              words, gr_error());
}

Test(lora, bad_files_are_named)
{
    static const struct {
        void (*edit)(struct gr_gguf_writer *w);
        int status;
        const char *words;
    } keys[] = {{no_type, GR_E_UNSUPPORTED, "general.type is 'model'"},
                {control_vector, GR_E_UNSUPPORTED, "adapter.type is 'control_vector'"},
                {other_arch, GR_E_UNSUPPORTED, "the model's architecture is llama"},
                {not_finite, GR_E_CORRUPT, "adapter.lora.alpha is nan"},
                {activated, GR_E_UNSUPPORTED, "activated LoRA"}};
    static struct both x;
    prepare(&x, arch_of("llama"), false);
    struct adapter *a = &x.adapter[0];
    for (size_t i = 0; i < GR_COUNT(keys); i++) {
        a->edit = keys[i].edit;
        refused(&x, keys[i].status, keys[i].words);
    }
    a->edit = NULL;
    struct adapter_pair *p = &a->pair[0], kept = *p;
    snprintf(p->name, sizeof p->name, "blk.7.attn_q.weight");
    refused(&x, GR_E_UNSUPPORTED, "the model has no such weight");
    snprintf(p->name, sizeof p->name, "output_norm.weight");
    refused(&x, GR_E_UNSUPPORTED, "does not multiply with that weight");
    *p = kept;
    p->rank--, p->in++; /* as many numbers or fewer */
    refused(&x, GR_E_CORRUPT, "shape [");
    *p = kept;
    discard(&x);
}

/* One half is missing; a norm is left out. */
Test(lora, halves_and_norms)
{
    static struct both x;
    static const char *const names[] = {"blk.0.attn_q.weight.lora_a", "blk.0.attn_norm.weight"};
    for (int i = 0; i < 2; i++) {
        struct gr_gguf_writer *w;
        float zeros[64 * 2] = {0};
        uint64_t ne[2] = {64, 2};
        prepare(&x, arch_of("llama"), false);
        cr_assert_eq(gr_gguf_writer_new(&w), 0);
        gr_gguf_set_str(w, "general.type", "adapter");
        gr_gguf_set_str(w, "general.architecture", "llama");
        gr_gguf_set_str(w, "adapter.type", "lora");
        struct gr_str name = {names[i], strlen(names[i])};
        cr_assert_eq(gr_gguf_add_tensor(w, name, GR_F32, 2, ne), 0);
        cr_assert_eq(gr_gguf_begin(w, x.adapter[0].path), 0);
        cr_assert_eq(gr_gguf_write(w, zeros, sizeof zeros), 0);
        cr_assert_eq(gr_gguf_commit(w), 0);
        gr_gguf_writer_free(&w);
        struct gr_model *m =
            open_with(x.path, x.adapter, 1, way("none", 0, 0, GR_SPLIT_MODE_LAYER));
        if (i)
            cr_assert(m, "%s", gr_error());
        else
            cr_assert(!m && strstr(gr_error(), "attn_q.weight.lora_b is missing"), "%s",
                      gr_error());
        gr_model_close(&m);
        discard(&x);
    }
}

Test(lora, scales_are_finite_and_adapters_few)
{
    static struct both x;
    struct gr_model *m;
    struct gr_session *s;
    prepare(&x, arch_of("llama"), false);
    struct gr_adapter a = {x.adapter[0].path, INFINITY};
    struct gr_model_params p = way("none", 0, 0, GR_SPLIT_MODE_LAYER);
    p.adapters = &a, p.n_adapter = 1;
    cr_assert_eq(gr_model_open(&m, x.path, &p), GR_E_INVALID);
    p.n_adapter = GR_MAX_ADAPTER + 1;
    cr_assert_eq(gr_model_open(&m, x.path, &p), GR_E_INVALID);
    a = (struct gr_adapter){"/tmp/there-is-no-such-adapter.gguf", 1}, p.n_adapter = 1;
    cr_assert_eq(gr_model_open(&m, x.path, &p), GR_E_NO_MODEL, "%s", gr_error());
    a.path = x.adapter[0].path;
    cr_assert_eq(gr_model_open(&m, x.path, &p), 0, "%s", gr_error());
    struct gr_session_params q = gr_session_params_default();
    q.adapter_scale[0] = -INFINITY;
    cr_assert_eq(gr_session_open(&s, m, &q), GR_E_INVALID);
    gr_model_close(&m);
    discard(&x);
}
