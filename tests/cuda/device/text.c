/* The first thing to know of a device: whether the built-in model says what it says on the CPU. Its
 * suite is called so that it runs first. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "device.h"
#include "engine/session.h"
#include "gr/status.h"
#include "support/cuda_words.h"

enum { N_MAX = 64, N_NEW = 32 };

TestSuite(built_in, .fini = device_release);

static int32_t largest(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* Greedy tokens behind the prompt that id begins with. */
static int generate(const struct gr_model *m, struct gr_session *s, int32_t *id, int32_t n_prompt)
{
    for (int32_t n = n_prompt, done = 0; n < n_prompt + N_NEW; done = n++) {
        struct gr_batch b = {.n_tok = n - done, .token = id + done};
        if (gr_decode(s, &b))
            return device_wrong("token %d: %s", n, gr_error());
        const float *logits = gr_logits(s, -1);
        if (!logits)
            return device_wrong("token %d: no logits: %s", n, gr_error());
        id[n] = largest(logits, m->hp.n_vocab);
    }
    return 0;
}

/* The prompt's ids; their number, 0 when there is something wrong. */
static int32_t tokenize(const struct gr_model *m, int32_t *id)
{
    static const char prompt[] = "Once upon a time";
    int32_t *ids;
    size_t n;
    if (gr_text_tokenize(m, prompt, strlen(prompt), true, false, &ids, &n))
        return device_wrong("%s", gr_error()), 0;
    cr_assert(n > 0 && n <= N_MAX - N_NEW);
    memcpy(id, ids, n * sizeof *id);
    gr_free_ids(ids);
    return (int32_t)n;
}

static int run(int32_t n_gpu_layers, int32_t *id, int32_t *n)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params p = gr_session_params_default();
    cuda_words_session(&p);
    struct gr_model *m = NULL;
    struct gr_session *s = NULL;
    char name[16] = "cpu";
    if (n_gpu_layers)
        device_names(1, name, sizeof name);
    mp.n_gpu_layers = n_gpu_layers, mp.device = name;
    p.n_ctx = 256, p.n_threads = 1;
    cuda_words_session(&p);
    if (gr_model_open(&m, NULL, &mp))
        return device_wrong("%s", gr_error());
    *n = tokenize(m, id);
    int rc = *n ? device_session(&s, m, &p) : 1;
    if (!rc)
        rc = generate(m, s, id, *n);
    gr_session_close(&s);
    gr_model_close(&m);
    return rc;
}

Test(built_in, text)
{
    static int32_t cpu[N_MAX], gpu[N_MAX];
    int32_t n_cpu = 0, n_gpu = 0, i = 0;
    if (!device_begin("%d greedy tokens", N_NEW))
        return;
    if (!run(0, cpu, &n_cpu) && !run(99, gpu, &n_gpu)) {
        while (i < N_MAX && cpu[i] == gpu[i])
            i++;
        if (i < N_MAX)
            device_wrong("token %d is %d, on the CPU %d", i - n_gpu, gpu[i], cpu[i]);
    }
    device_end();
}
