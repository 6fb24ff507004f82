/* bench_host [MOST_US]: CPU time of all threads in a decode step outside the device: the program's
 * own work for a step on a device that takes no time and computes nothing (pipeline/timed.h), all
 * of a model's layers on it. Copies to and from it are copies in memory. Prints a JSON object for
 * each number of texts and of cells: the mean over STEPS steps, best of 5 measurements, and what
 * was allocated meanwhile. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "models/tiny.h"
#include "pipeline/timed.h"

enum { N_LAYER = 32, N_SEQ = 16, MOST = 32768, N_TRY = 5, N_STEP = 200 };

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int fail(int rc)
{
    if (rc)
        fprintf(stderr, "bench_host: %s\n", gr_error_message());
    return rc;
}

/* One more token of each of n_seq texts. */
static int step(struct gr_session *s, int32_t n_seq)
{
    int32_t token[N_SEQ], seq[N_SEQ];
    int8_t logits[N_SEQ];
    for (int32_t i = 0; i < n_seq; i++)
        token[i] = 1 + i, seq[i] = i, logits[i] = 1;
    return gr_decode(
        s, &(struct gr_batch){.n_tok = n_seq, .token = token, .seq = seq, .logits = logits});
}

static int fill(struct gr_session *s, int32_t n_seq, int32_t n_cell)
{
    static int32_t token[512], seq[512];
    int rc = 0;
    gr_kv_clear(s);
    for (int32_t q = 0; q < n_seq; q++)
        for (int32_t i = 0; i < n_cell && !rc; i += 512) {
            for (int k = 0; k < 512; k++)
                token[k] = 1, seq[k] = q;
            rc = gr_decode(s, &(struct gr_batch){.n_tok = 512, .token = token, .seq = seq});
        }
    return rc;
}

/* n_cell: a multiple of 512. */
static int measure(struct gr_session *s, int32_t n_seq, int32_t n_cell, double most_us)
{
    double best = 1e30;
    uint64_t n_alloc = 0;
    int rc = fill(s, n_seq, n_cell);
    for (int i = 0; i < 4 && !rc; i++)
        rc = step(s, n_seq); /* the plan of this shape is made */
    for (int k = 0; k < N_TRY && !rc; k++) {
        for (int32_t q = 0; q < n_seq && !rc; q++)
            rc = gr_kv_seq_rm(s, q, n_cell + 1, -1);
        (void)gr_alloc_fail_at(0, 0);
        double start = cpu_us();
        for (int i = 0; i < N_STEP && !rc; i++)
            rc = step(s, n_seq);
        double us = (cpu_us() - start) / N_STEP;
        n_alloc += gr_alloc_fail_at(0, 0);
        best = us < best ? us : best;
    }
    if (!rc)
        printf("{\"n_layer\": %d, \"n_seq\": %d, \"n_depth\": %d, \"cpu_us\": %.3f, "
               "\"allocations\": %llu, \"steps\": %d}\n",
               N_LAYER, n_seq, n_cell, best, (unsigned long long)n_alloc, N_STEP);
    if (!rc && best > most_us)
        return fprintf(stderr, "bench_host: %.1f us, more than %.1f\n", best, most_us), 1;
    return fail(rc);
}

int main(int argc, char **argv)
{
    double most_us = argc > 1 ? atof(argv[1]) : 1e9;
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.n_layer = N_LAYER, t.n_ctx = 2 * MOST;
    timed_use(1, 0, false);
    char path[256];
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    struct gr_model_params mp = gr_model_params_default();
    struct gr_model *m = NULL;
    struct gr_session *s = NULL;
    mp.n_gpu_layers = N_LAYER + 1;
    int rc = fail(gr_model_open(&m, path, &mp));
    unlink(path);
    struct gr_session_params sp = gr_session_params_default();
    sp.n_ctx = MOST + N_SEQ * 1024, sp.n_seq_max = N_SEQ, sp.n_threads = sp.n_threads_batch = 1;
    rc = rc ? rc : fail(gr_session_open(&s, m, &sp));
    rc = rc ? rc : measure(s, 1, 0, most_us);
    rc = rc ? rc : measure(s, 1, 4096, most_us);
    rc = rc ? rc : measure(s, 1, MOST, most_us);
    rc = rc ? rc : measure(s, N_SEQ, 512, most_us);
    gr_session_close(&s);
    gr_model_close(&m);
    return rc != 0;
}
