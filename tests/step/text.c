#include "step/text.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

int text_step(struct gr_session *s, int32_t n)
{
    int32_t token[TEXT_MOST], seq[TEXT_MOST];
    int8_t logits[TEXT_MOST];
    for (int32_t i = 0; i < n; i++)
        token[i] = 1 + i, seq[i] = i, logits[i] = 1;
    return gr_decode(s,
                     &(struct gr_batch){.n_tok = n, .token = token, .seq = seq, .logits = logits});
}

int text_fill(struct gr_session *s, int32_t seq, int32_t n_cell)
{
    int32_t token[TEXT_STEP], seqs[TEXT_STEP];
    int rc = 0;
    for (int k = 0; k < TEXT_STEP; k++)
        token[k] = 1 + k % 64, seqs[k] = seq;
    for (int32_t i = 0; i < n_cell && !rc; i += TEXT_STEP)
        rc = gr_decode(s, &(struct gr_batch){.n_tok = TEXT_STEP, .token = token, .seq = seqs});
    return rc;
}

double text_cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

bool text_open(const char *program, const struct tiny *t, uint32_t n_ctx, struct gr_model **m,
               struct gr_session **s)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    char path[256];
    snprintf(path, sizeof path, "%s", tiny_write(t, NULL));
    mp.n_gpu_layers = t->n_layer + 1;
    int rc = gr_model_open(m, path, &mp);
    unlink(path);
    sp.n_ctx = n_ctx, sp.n_seq_max = TEXT_MOST, sp.n_threads = sp.n_threads_batch = 1;
    if (!rc)
        rc = gr_session_open(s, *m, &sp);
    if (rc)
        fprintf(stderr, "%s: %s\n", program, gr_error_message());
    return rc == 0;
}
