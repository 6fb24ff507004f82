/* Vectors in place of tokens on the emulated device: a prompt, and single ones through a captured
 * graph, give what the tokens give that they stand for. */
#include "support/token_vectors.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gr/status.h"
#include "registry/registry.h"

enum { N_TOK = 20, N_PROMPT = 14, N_VOCAB = 96 };

static int32_t id[N_TOK];
static float vector[N_TOK * TOKEN_VECTORS_EMBD], want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB];

/* Logits of a prompt in micro-batches and of what follows one by one. */
static void play(struct gr_model *m, bool given, float *out)
{
    struct gr_session_params p = gr_session_params_default();
    int8_t all[N_TOK];
    memset(all, 1, sizeof all);
    p.n_ctx = 256, p.n_ubatch = 8, p.n_threads = 1, p.type_k = p.type_v = "f32";
    struct gr_session *s = tiny_session(m, &p);
    for (int i = 0, n = N_PROMPT; i < N_TOK; i += n, n = 1) {
        struct gr_batch b = {.n_tok = n,
                             .token = given ? NULL : id + i,
                             .embd = given ? vector + i * m->hp.n_embd : NULL,
                             .logits = all};
        cr_assert_eq(gr_decode(s, &b), 0, "%s: %s", m->arch->name, gr_error());
        for (int k = 0; k < n; k++)
            memcpy(out + (i + k) * N_VOCAB, gr_logits(s, k), N_VOCAB * sizeof *out);
    }
    gr_session_close(&s);
}

static void compare(const char *arch, int32_t n_gpu_layers)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    struct gr_model_params p = gr_model_params_default();
    const char *path = tiny_write(&t, NULL);
    struct gr_model *host, *m;
    p.device = "none";
    for (int i = 0; i < N_TOK; i++)
        id[i] = (5 + 37 * i) % N_VOCAB;
    cr_assert_eq(gr_model_open(&host, path, &p), 0, "%s", gr_error());
    token_vectors(host, id, N_TOK, vector);
    gr_model_close(&host);
    p.device = "emu", p.n_gpu_layers = n_gpu_layers;
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s", gr_error());
    unlink(path);
    play(m, false, want);
    play(m, true, got);
    double e = tiny_nmse(got, want, N_TOK * N_VOCAB);
    if (m->arch == gr_arch_find((struct gr_str){"gpt2", 4})) /* a learned position is added later */
        cr_expect_lt(e, 1e-12, "%s: %g", arch, e);
    else
        cr_expect_eq(memcmp(got, want, sizeof got), 0, "%s: %g", arch, e);
    gr_model_close(&m);
}

Test(embd, on_the_device)
{
    static const char *const arch[] = {"llama", "gemma3", "gpt2", "mamba", "qwen3moe"};
    for (size_t i = 0; i < sizeof arch / sizeof *arch; i++)
        compare(arch[i], 99);
}

Test(embd, some_layers_on_the_device)
{
    compare("llama", 2);
}
