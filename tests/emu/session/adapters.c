/* Adapters on the emulated device: every kernel takes matrices as thin as they are. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gr/status.h"
#include "support/adapter.h"
#include "support/tiny.h"

enum { N_TOK = 40, N_VOCAB = 96, N_ADAPTER = 2 };

/* F32 weights are multiplied in f32, those of 16 bits meet activations of 16 bits: 2^-11 of each,
 * squared, and some layers. */
#define SAME 1e-6

static float want[N_TOK * N_VOCAB], got[N_TOK * N_VOCAB];

/* Logits of a prompt and of single tokens. */
static void play(const char *path, const struct adapter *a, const char *device, float *out)
{
    struct gr_adapter list[N_ADAPTER];
    struct gr_model_params p = gr_model_params_default();
    struct gr_session_params q = gr_session_params_default();
    struct gr_model *m;
    for (int i = 0; i < N_ADAPTER; i++)
        list[i] = (struct gr_adapter){a[i].path, a[i].scale};
    p.device = device, p.n_gpu_layers = 99, p.adapters = list, p.n_adapter = N_ADAPTER;
    q.n_ctx = 256, q.n_threads = 1, q.type_k = "f32", q.type_v = "f32";
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s", gr_error());
    struct gr_session *s = tiny_session(m, &q);
    for (int i = 0, n = N_TOK - 2; i < N_TOK; i += n, n = 1) {
        int32_t id[N_TOK];
        int8_t all[N_TOK];
        for (int k = 0; k < n; k++)
            id[k] = (5 + 37 * (i + k)) % N_VOCAB, all[k] = 1;
        struct gr_batch b = {.n_tok = n, .token = id, .logits = all};
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
        for (int k = 0; k < n; k++)
            memcpy(out + (i + k) * N_VOCAB, gr_logits(s, k), N_VOCAB * sizeof *out);
    }
    gr_session_close(&s);
    gr_model_close(&m);
}

static void compare(const char *arch)
{
    static struct adapter a[N_ADAPTER];
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    struct gr_model *m = tiny_open(&t);
    char path[512], file[64];
    for (int i = 0; i < N_ADAPTER; i++) {
        snprintf(file, sizeof file, "/tmp/emu-lora-%d-%d.gguf", (int)getpid(), i);
        a[i] = (struct adapter){.half = i, .alpha = 2, .scale = i ? -0.5f : 0.75f};
        adapter_make(&a[i], m, (uint64_t)i, (uint32_t)(1 + i), file);
        adapter_write(&a[i]);
    }
    gr_model_close(&m);
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    play(path, a, "none", want);
    play(path, a, "emu", got);
    double e = tiny_nmse(want, got, N_TOK * N_VOCAB);
    cr_expect_leq(e, SAME, "%s: %g", arch, e);
    for (int i = 0; i < N_ADAPTER; i++)
        adapter_release(&a[i]);
    unlink(path);
}

Test(adapters, of_matrices_experts_and_embeddings)
{
    compare("llama");
    compare("qwen3moe");
}
