/* Whole models on a GPU (t_device_emu: on the emulated one) against the CPU: every architecture,
 * every number of layers there, graphs on and off, storage types, caches. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "device.h"
#include "engine/session.h"
#include "gr/dtype.h"
#include "gr/pack.h"
#include "gr/status.h"
#include "registry/registry.h"
#include "support/cuda_words.h"
#include "support/golden.h"

enum { N_VOCAB = 96, N_PROMPT = 21, MAX_ROW = N_PROMPT + 8 };

struct run {
    int32_t n_gpu_layers;
    int32_t n_virtual; /* the GPU, named so many times: a rank each; 0 = once */
    const char *tensor_split;
    const char *type_k, *type_v; /* NULL = f32 */
    bool no_graphs, no_kv_offload;
    int32_t self_extend_n;
    uint32_t n_ubatch;
    enum gr_pooling pooling; /* of the texts of two sequences; MODEL: logits, of one */
    const struct gr_weight_home *homes;
    int32_t n_home, offload_from;
    const char *control; /* a control vector's file */
};

struct rows {
    int n, n_layer;
    float row[MAX_ROW][N_VOCAB];
};

TestSuite(device, .fini = device_release);

static int decode(struct gr_session *s, int n, int first, const int32_t *pos, const int32_t *seq,
                  struct rows *out)
{
    int32_t id[N_PROMPT];
    int8_t all[N_PROMPT];
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * (first + i)) % N_VOCAB, all[i] = 1;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = pos, .seq = seq, .logits = all};
    if (gr_decode(s, &b))
        return device_wrong("%s", gr_error());
    for (int i = 0; i < n; i++)
        memcpy(out->row[out->n++], tiny_row(s, i), sizeof out->row[0]);
    return 0;
}

/* A prompt, a copied sequence, both together, a range removed and what follows it moved, as far as
 * the model allows each. */
static int script(struct gr_session *s, struct rows *out)
{
    if (decode(s, N_PROMPT, 0, NULL, NULL, out))
        return 1;
    if (s->model->hp.no_cache)
        return 0;
    if (gr_kv_seq_cp(s, 0, 1, -1, -1))
        return device_wrong("%s", gr_error());
    if (decode(s, 2, 30, (int32_t[]){N_PROMPT, N_PROMPT}, (int32_t[]){0, 1}, out))
        return 1;
    int32_t next = N_PROMPT + 1;
    if (gr_kv_seq_rm(s, 0, 2, 5) == 0) {
        if (gr_kv_defrag(s))
            return device_wrong("%s", gr_error());
        next -= gr_kv_seq_add(s, 0, 5, -1, -3) == 0 ? 3 : 0;
    }
    if (decode(s, 1, 40, &next, NULL, out))
        return 1;
    next++;
    return decode(s, 1, 41, &next, NULL, out);
}

/* 13 tokens of sequence 0, 8 of sequence 1: their vectors. */
static int pooled(struct gr_session *s, struct rows *out)
{
    int32_t id[N_PROMPT], pos[N_PROMPT], seq[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++) {
        id[i] = (5 + 37 * i) % N_VOCAB, seq[i] = i >= 13;
        pos[i] = i - 13 * seq[i];
    }
    struct gr_batch b = {.n_tok = N_PROMPT, .token = id, .pos = pos, .seq = seq};
    if (gr_decode(s, &b))
        return device_wrong("%s", gr_error());
    for (int q = 0; q < 2; q++) {
        size_t n = (size_t)gr_session_n_embd(s);
        const float *x = gr_embeddings_seq(s, q);
        if (!x || n > N_VOCAB)
            return device_wrong("no vector of text %d", q);
        memset(out->row[out->n], 0, sizeof out->row[0]);
        memcpy(out->row[out->n++], x, n * sizeof *x);
    }
    return 0;
}

static struct gr_session_params params_of(const struct run *r)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_seq_max = 2, p.n_threads = 1;
    p.type_k = r->type_k ? r->type_k : "f32", p.type_v = r->type_v ? r->type_v : "f32";
    p.no_graphs = r->no_graphs, p.no_kv_offload = r->no_kv_offload;
    p.offload_from = r->offload_from;
    p.self_extend_n = r->self_extend_n, p.self_extend_w = r->self_extend_n ? 8 : 0;
    p.n_ubatch = r->n_ubatch ? r->n_ubatch : 512;
    p.embeddings = r->pooling != GR_POOLING_MODEL, p.pooling = r->pooling;
    cuda_words_session(&p);
    return p;
}

/* Opens the model of a file with these layers on the GPU, runs the script. Returns 0, or 1 with
 * what is wrong. */
static int run_file(const char *path, const struct run *r, struct rows *out)
{
    struct gr_model_params mp = gr_model_params_default();
    const struct gr_session_params p = params_of(r);
    struct gr_model *m;
    struct gr_session *s;
    mp.n_gpu_layers = r->n_gpu_layers;
    char names[64] = "cpu";
    if (r->n_gpu_layers)
        device_names(r->n_virtual, names, sizeof names);
    const struct gr_adapter control = {r->control, 0.75f};
    mp.device = names, mp.tensor_split = r->tensor_split;
    mp.weight_homes = r->homes, mp.n_weight_home = r->n_home;
    mp.control_vectors = &control, mp.n_control_vector = r->control != NULL;
    out->n = 0;
    if (gr_model_open(&m, path, &mp))
        return device_wrong("%s", gr_error());
    int rc = device_session(&s, m, &p);
    struct gr_model_info info;
    gr_model_info(m, &info);
    out->n_layer = info.n_layer;
    if (!rc && info.n_gpu_layers != GR_MIN(r->n_gpu_layers, info.n_layer + 1))
        rc = device_wrong("%d layers are on the GPU, %d were asked for", info.n_gpu_layers,
                          r->n_gpu_layers);
    if (!rc)
        rc = (r->pooling == GR_POOLING_MODEL ? script : pooled)(s, out);
    gr_session_close(&s);
    gr_model_close(&m);
    return rc;
}

static int same(const char *what, const struct run *r, const struct rows *want,
                const struct rows *got, double most)
{
    if (want->n != got->n)
        return device_wrong("%s, %d layers: %d rows, expected %d", what, r->n_gpu_layers, got->n,
                            want->n);
    for (int i = 0; i < want->n; i++) {
        double e = tiny_nmse(want->row[i], got->row[i], N_VOCAB);
        if (!(e <= most))
            return device_wrong("%s, %d layers: row %d: NMSE %g, at most %g is expected", what,
                                r->n_gpu_layers, i, e, most);
    }
    return 0;
}

static int same_bits(const char *what, const struct run *r, const struct rows *want,
                     const struct rows *got)
{
    if (want->n == got->n && memcmp(want->row, got->row, sizeof got->row) == 0)
        return 0;
    return device_wrong("%s, %d layers: other bits", what, r->n_gpu_layers);
}

static struct rows cpu, gpu, again;

/* The file of a tiny model. */
static void write_model(const struct tiny *t, char path[256])
{
    snprintf(path, 256, "%s", tiny_write(t, NULL));
}

/* F32 throughout: sums of at most some hundred terms in another order, functions a few units in the
 * last place off, squared, over two layers. */
#define SAME_F32 1e-9

/* On the GPU what it is on the CPU. */
static int like_cpu(const char *path, const struct run *r, const char *what, double most)
{
    return run_file(path, r, &gpu) || same(what, r, &cpu, &gpu, most);
}

/* With the output layer, all but the first layer, and everything there. */
static void architecture(const struct gr_arch *a)
{
    struct tiny t = tiny_default(a);
    char path[256];
    write_model(&t, path);
    int rc = run_file(path, &(struct run){.n_gpu_layers = 0}, &cpu);
    for (int32_t n = 1; !rc && n <= cpu.n_layer + 1; n++)
        rc = like_cpu(path, &(struct run){.n_gpu_layers = n}, "CPU", SAME_F32);
    unlink(path);
}

Test(device, architectures)
{
    const struct gr_arch *a;
    for (int i = 0; (a = gr_arch_at(i)) != NULL; i++)
        if (device_begin("%s", a->name)) {
            architecture(a);
            device_end();
        }
}

static struct tiny tiny_of(const char *arch)
{
    return tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
}

static void encoder(const char *arch, enum gr_pooling pooling)
{
    struct tiny t = tiny_of(arch);
    struct run r = {.pooling = pooling};
    char path[256];
    write_model(&t, path);
    int rc = run_file(path, &r, &cpu);
    for (r.n_gpu_layers = 1; !rc && r.n_gpu_layers <= t.n_layer + 1; r.n_gpu_layers++)
        rc = like_cpu(path, &r, "CPU", SAME_F32);
    unlink(path);
}

/* Texts to vectors, by mean, first and last token, with any number of layers there; T5 adds biases
 * by distance. */
Test(device, encoders)
{
    static const char *const arch[] = {"bert", "t5encoder"};
    for (size_t i = 0; i < GR_COUNT(arch); i++)
        for (int p = GR_POOLING_MEAN; p <= GR_POOLING_LAST; p++)
            if (device_begin("%s, %s", arch[i], gr_pooling_name((enum gr_pooling)p))) {
                encoder(arch[i], (enum gr_pooling)p);
                device_end();
            }
}

/* Two ways of running a model that give the same bits. */
static void both_ways(const struct tiny *t, const char *what, const struct run *one,
                      const struct run *other)
{
    char path[256];
    write_model(t, path);
    if (!run_file(path, one, &gpu) && !run_file(path, other, &again))
        same_bits(what, other, &gpu, &again);
    unlink(path);
}

/* Graphs replay the very launches: bit for bit. */
Test(device, graphs)
{
    for (int i = 0; i < GOLDEN_N; i++) {
        char name[32];
        struct tiny t = golden_model(i, name);
        for (int32_t n = 2; n <= 99; n += 97)
            if (device_begin("%s, %d layers", name, n)) {
                both_ways(&t, "without graphs", &(struct run){.n_gpu_layers = n},
                          &(struct run){.n_gpu_layers = n, .no_graphs = true});
                device_end();
            }
    }
}

/* Several ranks on one GPU run the same kernels on the same shapes: bit for bit. */
Test(device, virtual_ranks)
{
    static const struct run ways[] = {
        {.n_gpu_layers = 99, .n_virtual = 2},
        {.n_gpu_layers = 99, .n_virtual = 3, .tensor_split = "2,0,1"},
        {.n_gpu_layers = 2, .n_virtual = 2, .no_kv_offload = true},
        {.n_gpu_layers = 99, .n_virtual = 2, .tensor_split = "auto", .no_graphs = true}};
    for (int i = 0; i < GOLDEN_N; i += 4) {
        char name[32];
        struct tiny t = golden_model(i, name);
        for (size_t k = 0; k < GR_COUNT(ways); k++)
            if (device_begin("%s, way %zu", name, k)) {
                struct run alone = ways[k];
                alone.n_virtual = 1, alone.tensor_split = NULL;
                both_ways(&t, "several ranks", &alone, &ways[k]);
                device_end();
            }
    }
}

/* Attention on the CPU between layers on the GPU, of every kind of cache. */
Test(device, host_caches)
{
    static const char *const arch[] = {"llama", "gemma2", "qwen35", "deepseek2", "gpt-oss"};
    static const struct run r = {.n_gpu_layers = 99, .no_kv_offload = true};
    for (size_t i = 0; i < GR_COUNT(arch); i++) {
        struct tiny t = tiny_of(arch[i]);
        char path[256];
        if (!device_begin("%s", arch[i]))
            continue;
        write_model(&t, path);
        if (!run_file(path, &(struct run){.n_gpu_layers = 0}, &cpu))
            like_cpu(path, &r, "CPU", SAME_F32);
        unlink(path);
        device_end();
    }
}

/* Matrices on the CPU between layers on the GPU; with prompts that bring them there for a step. */
static void weights_apart(const char *arch, const struct gr_weight_home *homes, int32_t n)
{
    struct tiny t = tiny_of(arch);
    struct run r = {.homes = homes, .n_home = n, .offload_from = -1};
    char path[256];
    write_model(&t, path);
    int rc = run_file(path, &r, &cpu);
    r.n_gpu_layers = 99;
    if (!rc)
        rc = like_cpu(path, &r, "CPU", SAME_F32);
    r.offload_from = 9;
    if (!rc)
        (void)like_cpu(path, &r, "CPU, offloaded", SAME_F32);
    unlink(path);
}

Test(device, weights_apart_from_their_layer)
{
    static const char *const arch[] = {"llama", "qwen3moe", "deepseek2", "gpt-oss", "qwen35"};
    static const struct gr_weight_home experts[] = {{"ffn_.*_exps", "CPU"}},
                                       most[] = {{"(attn_[qk]|down|output|kv_a)", "CPU"}};
    for (size_t i = 0; i < GR_COUNT(arch); i++) {
        if (device_begin("%s, experts", arch[i])) {
            weights_apart(arch[i], experts, 1);
            device_end();
        }
        if (device_begin("%s, most", arch[i])) {
            weights_apart(arch[i], most, 1);
            device_end();
        }
    }
}

/* Directions of 64 numbers for layer 1. */
static void write_control(char path[256])
{
    struct gr_gguf_writer *w;
    float x[64];
    const struct gr_str name = {"direction.1", 11};
    const uint64_t ne = 64;
    snprintf(path, 256, "/tmp/gpurun-control-%d.gguf", (int)getpid());
    for (int i = 0; i < 64; i++)
        x[i] = (float)(i * 37 % 64 - 32) / 24;
    int rc = gr_gguf_writer_new(&w);
    rc = rc ? rc : gr_gguf_set_str(w, "general.architecture", "controlvector");
    rc = rc ? rc : gr_gguf_add_tensor(w, name, GR_F32, 1, &ne);
    rc = rc ? rc : gr_gguf_begin(w, path);
    rc = rc ? rc : gr_gguf_write(w, x, sizeof x);
    rc = rc ? rc : gr_gguf_commit(w);
    cr_assert_eq(rc, 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
}

Test(device, control_vectors)
{
    static const char *const arch[] = {"llama", "qwen3moe", "gpt2"};
    char path[256], control[256];
    write_control(control);
    for (size_t i = 0; i < GR_COUNT(arch); i++) {
        struct tiny t = tiny_of(arch[i]);
        struct run r = {.control = control};
        if (!device_begin("%s", arch[i]))
            continue;
        write_model(&t, path);
        int rc = run_file(path, &(struct run){0}, &again);
        if (!rc)
            rc = run_file(path, &r, &cpu);
        if (!rc && tiny_nmse(again.row[0], cpu.row[0], N_VOCAB) < 1e-4)
            rc = device_wrong("the control vector changes nothing");
        for (r.n_gpu_layers = 1; !rc && r.n_gpu_layers <= 3; r.n_gpu_layers++)
            rc = like_cpu(path, &r, "CPU", SAME_F32);
        unlink(path);
        device_end();
    }
    unlink(control);
}

static void weight_type(uint32_t id)
{
    struct tiny t = tiny_of("llama");
    char as_f32[256], path[256];
    bool wide = gr_dtype_find(id)->block > 32;
    double step = id == GR_BF16 ? 0x1p-9 : 0x1p-11;
    t.dtype = gr_dtype_name(id), t.n_embd = wide ? 256 : 64, t.n_ff = wide ? 256 : 96;
    t.d_head = wide ? 64 : 16;
    if (wide) /* quantising takes its time */
        t.n_layer = 1, t.n_expert = 0;
    write_model(&t, path);
    t.as_f32 = true;
    write_model(&t, as_f32);
    int rc = run_file(as_f32, &(struct run){.n_gpu_layers = 0}, &cpu);
    for (uint32_t n = 4; !rc && n <= 512; n += 508) /* vectors, tiles */
        rc = like_cpu(path, &(struct run){.n_gpu_layers = 99, .n_ubatch = n},
                      n == 4 ? "vectors" : "tiles", 20 * step * step);
    unlink(path), unlink(as_f32);
}

/* Weights of every type against the same numbers as f32 on the CPU: activations are rounded to f16
 * on the way into a matrix, with bf16 weights to bf16, and so may be weights times their scale;
 * each costs a relative error of the result that the NMSE squares, over some ten products in a row.
 */
Test(device, weight_types)
{
    for (uint32_t id = GR_F16; id < 64; id++)
        if (gr_pack_is(id) && device_begin("%s", gr_dtype_name(id))) {
            weight_type(id);
            device_end();
        }
}

static void cache(const char *type_k, const char *type_v, int32_t self_extend_n)
{
    struct tiny t = tiny_of("llama");
    struct run r = {.type_k = type_k, .type_v = type_v, .self_extend_n = self_extend_n};
    char path[256];
    t.d_head = 32;
    write_model(&t, path);
    if (!run_file(path, &r, &cpu)) {
        r.n_gpu_layers = 99;
        like_cpu(path, &r, "CPU", 2e-4); /* a code of 4 bits may round the other way */
    }
    unlink(path);
}

/* Caches of every type; grouped positions. */
Test(device, caches)
{
    static const char *const types[] = {"f32",  "f16",  "bf16", "q8_0",  "q4_0",
                                        "q4_1", "q5_0", "q5_1", "iq4_nl"};
    for (size_t k = 0; k < GR_COUNT(types); k++)
        for (int grouped = 0; grouped < 2; grouped++) {
            const char *v = types[GR_COUNT(types) - 1 - k];
            if (device_begin("%s, %s%s", types[k], v, grouped ? ", grouped" : "")) {
                cache(types[k], v, grouped ? 2 : 0);
                device_end();
            }
        }
}
