/* Texts on the emulated device with `deterministic`: the judge of a text's logits is the text
 * alone, to the bit. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/session.h"
#include "support/texts.h"
#include "support/tiny.h"

/* With types of weights and of the cache. */
static const char *const models[][3] = {{"llama", "q4_0", "f16"},    {"gemma3", "f16", "q8_0"},
                                        {"qwen3moe", "bf16", "f16"}, {"deepseek2", "q8_0", "bf16"},
                                        {"gpt-oss", "q4_0", "f32"},  {"jamba", "f32", "q4_0"},
                                        {"mamba", "q8_0", "f16"},    {"rwkv6", "f16", "f32"}};

static struct texts alone, beside;

static struct gr_model *model_of(const char *const *names, int32_t n_gpu)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){names[0], strlen(names[0])}));
    struct gr_model_params mp = gr_model_params_default();
    struct gr_model *m;
    t.dtype = names[1], t.n_swa = 6, t.d_head = 32;
    mp.device = "EMU0", mp.n_gpu_layers = n_gpu;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    unlink(path);
    return m;
}

static struct gr_session_params params(const char *cache)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = TEXTS * 256, p.n_seq_max = TEXTS, p.type_k = p.type_v = cache;
    p.n_threads = p.n_threads_batch = 1, p.deterministic = true;
    return p;
}

Test(deterministic, a_text_beside_others_is_the_text_alone, .timeout = 600)
{
    for (size_t i = 0; i < GR_COUNT(models); i++) {
        struct gr_rng r = gr_rng_new(i + 1);
        struct gr_model *m = model_of(models[i], i == 1 ? 1 : 99); /* one also partly on the CPU */
        struct gr_session_params p = params(models[i][2]);
        p.kv_unified = i % 2 == 0;
        texts_new_ids(&alone, &r, 0);
        texts_alone(m, p, &alone);
        texts_beside(m, &p, &r, &alone, &beside);
        texts_compare(&alone, &beside, TEXTS, models[i][0]);
        gr_model_close(&m);
    }
}

/* Without it they differ: the kernels of a step are chosen by its tokens. */
Test(deterministic, is_what_does_it)
{
    struct gr_rng r = gr_rng_new(1);
    struct gr_model *m = model_of(models[0], 99);
    struct gr_session_params p = params("f16");
    p.deterministic = false;
    texts_new_ids(&alone, &r, 0);
    texts_alone(m, p, &alone);
    texts_beside(m, &p, &r, &alone, &beside);
    cr_expect(memcmp(alone.row, beside.row, sizeof alone.row));
    gr_model_close(&m);
}

/* Appends a piece of a sequence, and copies the logits of its last token. */
static void append(struct gr_session *s, int32_t seq, int32_t pos, int n, float *row)
{
    int32_t id[64], at[64], of[64];
    int8_t wanted[64] = {0};
    for (int i = 0; i < n; i++)
        id[i] = (7 * (pos + i) + 11 * seq) % TEXTS_VOCAB, at[i] = pos + i, of[i] = seq;
    wanted[n - 1] = 1;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = at, .seq = of, .logits = wanted};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    if (row)
        memcpy(row, tiny_row(s, n - 1), TEXTS_VOCAB * sizeof *row);
}

/* Cells of a long text that lie among those of another one. */
Test(deterministic, places_of_cells_do_not_show, .timeout = 600)
{
    enum { N = 330 };
    static float want[TEXTS_VOCAB], got[TEXTS_VOCAB];
    struct gr_model *m = model_of(models[0], 99);
    struct gr_session_params p = params("f16");
    for (int others = 0; others < 2; others++) {
        struct gr_session *s = tiny_session(m, &p);
        for (int32_t at = 0, n; at < N; at += n) {
            n = 1 + at / 3 % 40;
            n = GR_MIN(n, N - at);
            append(s, 0, at, n, others ? got : want);
            if (others)
                append(s, 1, at, n, NULL);
        }
        gr_session_close(&s);
    }
    cr_expect_arr_eq(want, got, sizeof want);
    gr_model_close(&m);
}
