/* Whole models on a GPU (t_device_emu: on the emulated one) against the CPU: every architecture,
 * every number of layers there, graphs on and off, storage types, caches. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "cuda/runtime.h"
#include "engine/session.h"
#include "gr/dtype.h"
#include "gr/pack.h"
#include "gr/status.h"
#include "models/golden.h"
#include "support/cuda_words.h"

enum { N_VOCAB = 96, N_PROMPT = 21, MAX_ROW = N_PROMPT + 8 };

struct run {
    int32_t n_gpu_layers;
    int32_t n_virtual; /* the GPU, named so many times: a rank each; 0 = once */
    const char *tensor_split;
    const char *type_k, *type_v; /* NULL = f32 */
    bool no_graphs, no_kv_offload;
    int32_t group_n;
    uint32_t n_ubatch;
    enum gr_pooling pooling; /* of the texts of two sequences; MODEL: logits, of one */
};

struct rows {
    int n, n_layer;
    float row[MAX_ROW][N_VOCAB];
};

/* Skips the test where there is no GPU. */
static bool have_device(void)
{
    const char *why;
    bool broken;
    int n = gr_cuda_devices.count(&why, &broken);
    gr_cuda_load_slot = 1 << 20; /* the models are small, and there are hundreds */
    cr_assert(n > 0 || strcmp(gr_cuda_devices.name, "EMU") != 0, "%s", why);
    if (n == 0)
        cr_skip_test("%s", why);
    return true;
}

static void decode(struct gr_session *s, int n, int first, const int32_t *pos, const int32_t *seq,
                   struct rows *out)
{
    int32_t id[N_PROMPT];
    int8_t all[N_PROMPT];
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * (first + i)) % N_VOCAB, all[i] = 1;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = pos, .seq = seq, .logits = all};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    for (int i = 0; i < n; i++)
        memcpy(out->row[out->n++], tiny_row(s, i), sizeof out->row[0]);
}

/* A prompt, a copied sequence, both together, a range removed and what follows it moved, as far as
 * the model allows each. */
static void script(struct gr_session *s, struct rows *out)
{
    decode(s, N_PROMPT, 0, NULL, NULL, out);
    if (s->model->hp.no_cache)
        return;
    cr_assert_eq(gr_kv_seq_cp(s, 0, 1, -1, -1), 0, "%s", gr_error());
    decode(s, 2, 30, (int32_t[]){N_PROMPT, N_PROMPT}, (int32_t[]){0, 1}, out);
    int32_t next = N_PROMPT + 1;
    if (gr_kv_seq_rm(s, 0, 2, 5) == 0) {
        cr_assert_eq(gr_kv_defrag(s), 0, "%s", gr_error());
        next -= gr_kv_seq_add(s, 0, 5, -1, -3) == 0 ? 3 : 0;
    }
    decode(s, 1, 40, &next, NULL, out);
    next++;
    decode(s, 1, 41, &next, NULL, out);
}

/* 13 tokens of sequence 0, 8 of sequence 1: their vectors. */
static void pooled(struct gr_session *s, struct rows *out)
{
    int32_t id[N_PROMPT], pos[N_PROMPT], seq[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++) {
        id[i] = (5 + 37 * i) % N_VOCAB, seq[i] = i >= 13;
        pos[i] = i - 13 * seq[i];
    }
    struct gr_batch b = {.n_tok = N_PROMPT, .token = id, .pos = pos, .seq = seq};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    for (int q = 0; q < 2; q++) {
        size_t n = (size_t)gr_session_n_embd(s);
        const float *x = gr_embeddings_seq(s, q);
        cr_assert(x && n <= N_VOCAB);
        memset(out->row[out->n], 0, sizeof out->row[0]);
        memcpy(out->row[out->n++], x, n * sizeof *x);
    }
}

/* "CUDA0,CUDA0,CUDA0". */
static void name_devices(int32_t n, char *names, size_t size)
{
    *names = 0;
    for (int32_t i = 0; i < GR_MAX(n, 1); i++)
        snprintf(names + strlen(names), size - strlen(names), "%s%s0", i ? "," : "",
                 gr_cuda_devices.name);
}

/* Opens the model of a file with these layers on the GPU, runs the script. */
static void run_file(const char *path, const struct run *r, struct rows *out)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params p = gr_session_params_default();
    struct gr_model *m;
    struct gr_session *s;
    mp.n_gpu_layers = r->n_gpu_layers;
    char names[64] = "cpu";
    if (r->n_gpu_layers)
        name_devices(r->n_virtual, names, sizeof names);
    mp.device = names, mp.tensor_split = r->tensor_split;
    p.n_ctx = 256, p.n_seq_max = 2, p.n_threads = 1;
    p.type_k = r->type_k ? r->type_k : "f32", p.type_v = r->type_v ? r->type_v : "f32";
    p.no_graphs = r->no_graphs, p.no_kv_offload = r->no_kv_offload;
    p.group_n = r->group_n, p.group_w = r->group_n ? 8 : 0;
    p.n_ubatch = r->n_ubatch ? r->n_ubatch : 512;
    p.embeddings = r->pooling != GR_POOLING_MODEL, p.pooling = r->pooling;
    cuda_words_session(&p);
    out->n = 0;
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    s = tiny_session(m, &p);
    struct gr_model_info info;
    gr_model_info(m, &info);
    out->n_layer = info.n_layer;
    cr_assert_eq(info.n_gpu_layers, GR_MIN(r->n_gpu_layers, info.n_layer + 1));
    if (r->pooling == GR_POOLING_MODEL)
        script(s, out);
    else
        pooled(s, out);
    gr_session_close(&s);
    gr_model_close(&m);
}

static void same(const char *what, const char *name, const struct run *r, const struct rows *want,
                 const struct rows *got, double most)
{
    cr_assert_eq(want->n, got->n);
    for (int i = 0; i < want->n; i++) {
        double e = tiny_nmse(want->row[i], got->row[i], N_VOCAB);
        cr_expect(e <= most, "%s, %s, %d layers: row %d: %g", name, what, r->n_gpu_layers, i, e);
    }
}

static struct rows cpu, gpu, again;

/* F32 throughout: sums of at most some hundred terms in another order, functions a few units in the
 * last place off, squared, over two layers. */
#define SAME_F32 1e-9

/* Every architecture with the output layer, all but the first layer, and everything there. */
Test(device, architectures)
{
    const struct gr_arch *a;
    for (int i = 0; have_device() && (a = gr_arch_at(i)) != NULL; i++) {
        struct tiny t = tiny_default(a);
        char path[256];
        snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
        run_file(path, &(struct run){.n_gpu_layers = 0}, &cpu);
        for (int32_t n = 1; n <= cpu.n_layer + 1; n++) {
            struct run r = {.n_gpu_layers = n};
            run_file(path, &r, &gpu);
            same("CPU", a->name, &r, &cpu, &gpu, SAME_F32);
        }
        unlink(path);
    }
}

/* Texts to vectors, by mean, first and last token, with any number of layers there; T5 adds biases
 * by distance. */
Test(device, encoders)
{
    static const char *const arch[] = {"bert", "t5encoder"};
    for (size_t i = 0; have_device() && i < GR_COUNT(arch); i++) {
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch[i], strlen(arch[i])}));
        char path[256];
        snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
        for (int p = GR_POOLING_MEAN; p <= GR_POOLING_LAST; p++)
            for (int32_t n = 1; n <= t.n_layer + 1; n++) {
                struct run r = {.pooling = (enum gr_pooling)p};
                run_file(path, &r, &cpu);
                r.n_gpu_layers = n;
                run_file(path, &r, &gpu);
                same(gr_pooling_name(r.pooling), arch[i], &r, &cpu, &gpu, SAME_F32);
            }
        unlink(path);
    }
}

/* Graphs replay the very launches: bit for bit. */
Test(device, graphs)
{
    for (int i = 0; have_device() && i < GOLDEN_N; i++) {
        char name[32], path[256];
        struct tiny t = golden_model(i, name);
        snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
        for (int32_t n = 2; n <= 99; n += 97) {
            run_file(path, &(struct run){.n_gpu_layers = n}, &gpu);
            run_file(path, &(struct run){.n_gpu_layers = n, .no_graphs = true}, &again);
            cr_expect(gpu.n == again.n && !memcmp(gpu.row, again.row, sizeof gpu.row), "%s", name);
        }
        unlink(path);
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
    for (int i = 0; have_device() && i < GOLDEN_N; i += 4) {
        char name[32], path[256];
        struct tiny t = golden_model(i, name);
        snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
        for (size_t k = 0; k < GR_COUNT(ways); k++) {
            struct run alone = ways[k];
            alone.n_virtual = 1, alone.tensor_split = NULL;
            run_file(path, &alone, &gpu);
            run_file(path, &ways[k], &again);
            cr_expect(gpu.n == again.n && !memcmp(gpu.row, again.row, sizeof gpu.row),
                      "%s, way %zu", name, k);
        }
        unlink(path);
    }
}

/* Attention on the CPU between layers on the GPU, of every kind of cache. */
Test(device, host_caches)
{
    static const char *const arch[] = {"llama", "gemma2", "qwen35", "deepseek2", "gpt-oss"};
    for (size_t i = 0; have_device() && i < GR_COUNT(arch); i++) {
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch[i], strlen(arch[i])}));
        char path[256];
        snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
        run_file(path, &(struct run){.n_gpu_layers = 0}, &cpu);
        struct run r = {.n_gpu_layers = 99, .no_kv_offload = true};
        run_file(path, &r, &gpu);
        same("CPU", arch[i], &r, &cpu, &gpu, SAME_F32);
        unlink(path);
    }
}

/* Weights of every type against the same numbers as f32 on the CPU: activations are rounded to f16
 * on the way into a matrix, with bf16 weights to bf16, and so may be weights times their scale;
 * each costs a relative error of the result that the NMSE squares, over some ten products in a row.
 */
Test(device, weight_types)
{
    for (uint32_t id = GR_F16; have_device() && id < 64; id++) {
        if (!gr_pack_is(id))
            continue;
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
        char as_f32[256], path[256];
        bool wide = gr_dtype_find(id)->block > 32;
        double step = id == GR_BF16 ? 0x1p-9 : 0x1p-11;
        t.dtype = gr_dtype_name(id), t.n_embd = wide ? 256 : 64, t.n_ff = wide ? 256 : 96;
        t.d_head = wide ? 64 : 16;
        if (wide) /* quantising takes its time */
            t.n_layer = 1, t.n_expert = 0;
        snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
        t.as_f32 = true;
        snprintf(as_f32, sizeof as_f32, "%s", tiny_write(&t, NULL));
        run_file(as_f32, &(struct run){.n_gpu_layers = 0}, &cpu);
        for (uint32_t n_ubatch = 4; n_ubatch <= 512; n_ubatch += 508) { /* vectors, tiles */
            struct run r = {.n_gpu_layers = 99, .n_ubatch = n_ubatch};
            run_file(path, &r, &gpu);
            same("f32", t.dtype, &r, &cpu, &gpu, 20 * step * step);
        }
        unlink(path), unlink(as_f32);
    }
}

/* Caches of every type; grouped positions. */
Test(device, caches)
{
    static const char *const types[] = {"f32", "f16", "bf16", "q8_0", "q4_0"};
    for (size_t k = 0; have_device() && k < GR_COUNT(types); k++) {
        struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
        char path[256];
        t.d_head = 32;
        snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
        for (int grouped = 0; grouped < 2; grouped++) {
            struct run r = {.type_k = types[k],
                            .type_v = types[GR_COUNT(types) - 1 - k],
                            .group_n = grouped ? 2 : 0};
            run_file(path, &r, &cpu);
            r.n_gpu_layers = 99;
            run_file(path, &r, &gpu);
            same(grouped ? "grouped" : "CPU", types[k], &r, &cpu, &gpu, 1e-4);
        }
        unlink(path);
    }
}
