/* Texts beside others. With `deterministic` the judge of a text's logits is the text alone, decoded
 * at once by one thread, to the bit; without it, the same steps beside neighbours of other
 * contents. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "cpu/cpu.h"
#include "engine/session.h"
#include "gr/pack.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/texts.h"
#include "support/tiny.h"

/* Attention with and without windows, experts, MLA, learned positions, ALiBi, sinks, recurrent
 * layers. */
static const char *const archs[] = {"llama", "gemma3", "qwen3moe", "mamba",   "jamba", "deepseek2",
                                    "gpt2",  "rwkv6",  "mpt",      "gpt-oss", "llama4"};
static const char *const types[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K"};
static const char *const caches[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q5_1"};

/* The i-th type of cache for an architecture; rows of MLA are no whole blocks. */
static const char *cache_of(const char *arch, uint64_t i)
{
    return caches[i % (strcmp(arch, "deepseek2") == 0 ? 3 : GR_COUNT(caches))];
}

static struct gr_model *model_at(const char *arch, const char *type, enum gr_cpu_level level)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    struct gr_model_params mp = gr_model_params_default();
    struct gr_model *m;
    t.dtype = type, t.n_swa = 6;
    if (strchr(type, 'K')) /* rows of whole super-blocks, which take their time to fit */
        t.n_embd = t.n_ff = 256, t.d_head = 64, t.n_layer = 1;
    else
        t.d_head = 32;
    mp.cpu_level = gr_cpu_level_name(level), mp.device = "cpu";
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    unlink(path);
    return m;
}

static struct texts alone, beside;

static struct gr_session_params params(const char *cache, bool deterministic, int threads)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = TEXTS * 256, p.n_seq_max = TEXTS, p.type_k = p.type_v = cache;
    p.n_threads = p.n_threads_batch = threads, p.deterministic = deterministic;
    return p;
}

static void try_model(const char *arch, const char *type, enum gr_cpu_level level, uint64_t seed)
{
    struct gr_rng r = gr_rng_new(seed);
    struct gr_model *m = model_at(arch, type, level);
    for (int i = 0; i < 3; i++) {
        const char *cache = cache_of(arch, gr_rng_below(&r, GR_COUNT(caches)));
        struct gr_session_params p = params(cache, true, 1 + i);
        char of[160];
        texts_new_ids(&alone, &r, 0);
        p.n_ubatch = i ? 1 + gr_rng_below(&r, TEXTS_TOKENS) : 512;
        p.kv_unified = i != 1;
        snprintf(of, sizeof of, "%s %s, %s, cache %s, %d threads, -ub %u", arch, type,
                 gr_cpu_level_name(level), cache, p.n_threads, p.n_ubatch);
        texts_alone(m, p, &alone);
        texts_beside(m, &p, &r, &alone, &beside);
        texts_compare(&alone, &beside, TEXTS, of);
    }
    gr_model_close(&m);
}

Test(deterministic, a_text_beside_others_is_the_text_alone)
{
    uint64_t seed = 1;
    for (enum gr_cpu_level l = GR_CPU_REF; l < GR_CPU_N_LEVEL; l++)
        for (size_t a = 0; a < GR_COUNT(archs); a++)
            for (size_t k = 0; k < 2 && gr_cpu_has(l); k++, seed++)
                try_model(archs[a], types[(2 * a + k + l) % 5], l, seed);
}

Test(deterministic, every_storage_type)
{
    for (enum gr_cpu_level l = GR_CPU_REF + 1; l < GR_CPU_N_LEVEL; l++)
        for (size_t k = 0; k < GR_COUNT(types) && gr_cpu_has(l); k++) {
            try_model("llama", types[k], l, 100 + k);
            try_model("qwen3moe", types[k], l, 200 + k);
        }
}

/* More cells than a thread takes at once. */
Test(deterministic, long_texts_in_pieces)
{
    enum { N = 1100, LAST = 3 };
    static float want[LAST][TEXTS_VOCAB];
    for (int a = 0; a < 2; a++) {
        struct gr_rng r = gr_rng_new(7);
        struct gr_model *m = model_at(archs[a], "f16", GR_CPU_AUTO);
        int32_t id[N];
        for (int i = 0; i < N; i++)
            id[i] = (int32_t)gr_rng_below(&r, TEXTS_VOCAB);
        for (int way = 0; way < 4; way++) {
            struct gr_session_params p = params("f16", true, 1 + way % 3);
            p.n_ctx = 4096;
            struct gr_session *s = tiny_session(m, &p);
            for (int at = 0, k; at < N; at += k) {
                k = way ? 1 + (int)gr_rng_below(&r, 300) : N;
                k = GR_MIN(k, at < N - LAST ? N - LAST - at : 1);
                struct gr_batch b = {.n_tok = k, .token = id + at};
                cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
                if (at >= N - LAST && !way)
                    memcpy(want[at - N + LAST], tiny_row(s, 0), sizeof want[0]);
                else if (at >= N - LAST)
                    cr_assert_eq(memcmp(want[at - N + LAST], tiny_row(s, 0), sizeof want[0]), 0,
                                 "%s, way %d, token %d", archs[a], way, at);
            }
            gr_session_close(&s);
        }
        gr_model_close(&m);
    }
}

/* Pairs of steps of the same shapes, where only what the neighbours' tokens are differs: text 0 has
 * the same bits, without the parameter. */
static int twins(const char *arch, const char *type, enum gr_cpu_level level, uint64_t seed)
{
    struct gr_rng r = gr_rng_new(seed);
    struct gr_model *m = model_at(arch, type, level);
    int n = 0;
    for (int i = 0; i < 2; i++) {
        struct gr_session_params p = params(cache_of(arch, seed + (uint64_t)i), false, 1 + i);
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(m, &p);
        for (int round = 0; round < 3; round++) {
            int k[TEXTS];
            texts_new_ids(&alone, &r, 0);
            memcpy(beside.id, alone.id, sizeof beside.id);
            texts_new_ids(&beside, &r, 1);
            gr_kv_clear(a), gr_kv_clear(b);
            memset(alone.n, 0, sizeof alone.n), memset(beside.n, 0, sizeof beside.n);
            for (; texts_draw(&alone, &r, k); n++)
                texts_step(a, &alone, k), texts_step(b, &beside, k);
            texts_compare(&alone, &beside, 1, arch);
        }
        gr_session_close(&a);
        gr_session_close(&b);
    }
    gr_model_close(&m);
    return n;
}

Test(deterministic, neighbours_contents_do_not_show)
{
    int n = 0;
    uint64_t seed = 1000;
    for (enum gr_cpu_level l = GR_CPU_REF + 1; l < GR_CPU_N_LEVEL; l++)
        for (size_t a = 0; a < GR_COUNT(archs); a++)
            for (size_t k = 0; k < 2 && gr_cpu_has(l); k++, seed++)
                n += twins(archs[a], types[(a + 3 * k) % 5], l, seed);
    cr_assert(n >= 2000 || !gr_cpu_has(GR_CPU_AVX512), "%d pairs", n);
}

Test(deterministic, what_cannot_be_is_refused)
{
    struct gr_model *m = model_at("llama", "f32", GR_CPU_AUTO);
    struct gr_session *s;
    struct gr_session_params p = params("f16", true, 1);
    p.matmul = GR_MATMUL_CUBLAS;
    cr_expect_eq(gr_session_open(&s, m, &p), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "cuBLAS"), "%s", gr_error());
    p.matmul = GR_MATMUL_AUTO, p.offload_from = 32;
    cr_expect_eq(gr_session_open(&s, m, &p), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "op offload"), "%s", gr_error());
    gr_model_close(&m);
}

/* A device gets one token at a time; nothing with -1 where texts are computed whole. */
static void try_device(const char *path, int32_t n_gpu, bool mean, bool whole)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params p = gr_session_params_default();
    struct gr_model *m;
    struct gr_session *s;
    struct gr_fit fit;
    mp.device = "FAKE0", mp.n_gpu_layers = n_gpu;
    p.n_ctx = 256, p.deterministic = true;
    p.embeddings = mean, p.pooling = mean ? GR_POOLING_MEAN : GR_POOLING_MODEL;
    int want = whole && n_gpu > 0 ? GR_E_UNSUPPORTED : 0;
    bool on = !whole && n_gpu != 0;
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    cr_expect_eq(gr_model_fit(m, &p, &fit), want, "%s", gr_error());
    cr_expect(want || (fit.n_gpu_layers > 0) == on);
    cr_expect_eq(gr_session_open(&s, m, &p), want, "%s", gr_error());
    cr_expect(want || (s->params.n_ubatch == 1) == on, "%d layers: -ub %u", n_gpu,
              s->params.n_ubatch);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(deterministic, a_device_gets_one_token_at_a_time)
{
    const int32_t n_gpu[] = {-1, 0, 1, 99};
    static const struct {
        const char *arch;
        bool mean, whole;
    } cases[] = {{"llama", false, false}, {"llama", true, true}, {"bert", false, true}};
    fake_use(1, 64u << 20);
    for (size_t k = 0; k < GR_COUNT(cases); k++) {
        struct gr_str name = {cases[k].arch, strlen(cases[k].arch)};
        struct tiny t = tiny_default(gr_arch_find(name));
        const char *path = tiny_write(&t, NULL);
        for (size_t i = 0; i < GR_COUNT(n_gpu); i++)
            try_device(path, n_gpu[i], cases[k].mean, cases[k].whole);
        unlink(path);
    }
}

/* The layers were placed by a session without it. */
Test(deterministic, is_refused_where_layers_that_read_texts_whole_are_on_a_device)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"bert", 4}));
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params p = gr_session_params_default();
    struct gr_model *m;
    struct gr_session *s;
    fake_use(1, 64u << 20);
    mp.device = "FAKE0", p.n_ctx = 256;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    unlink(path);
    cr_assert_eq(gr_session_open(&s, m, &p), 0, "%s", gr_error());
    gr_session_close(&s);
    p.deterministic = true;
    cr_expect_eq(gr_session_open(&s, m, &p), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error(), "whole"), "%s", gr_error());
    gr_session_close(&s);
    gr_model_close(&m);
}
