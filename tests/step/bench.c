/* bench_host [MOST_US]: CPU time of all threads in a decode step outside the device: the program's
 * own work for a step on a device that takes no time and computes nothing (pipeline/timed.h), all
 * of a model's layers on it. Copies to and from it are copies in memory. Prints a JSON object for
 * each number of texts and of cells: the mean over 200 steps, the best of 5 measurements, and what
 * was allocated meanwhile. Exit code 1 when one is above MOST_US microseconds. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "registry/registry.h"
#include "step/text.h"
#include "support/timed.h"

enum { N_LAYER = 32, MOST = 32768, N_TRY = 5, N_STEP = 200 };

static const int32_t cases[][2] = {
    {1, 0}, {1, 4096}, {1, MOST}, {TEXT_MOST, 512}}; /* texts, cells */

/* Best mean of a step, and allocations in all of them. A status. */
static int measure(struct gr_session *s, int32_t n_seq, int32_t n_cell, double *best_us,
                   uint64_t *n_alloc)
{
    int rc = 0;
    gr_kv_clear(s);
    for (int32_t q = 0; q < n_seq && !rc; q++)
        rc = text_fill(s, q, n_cell);
    for (int i = 0; i < 4 && !rc; i++)
        rc = text_step(s, n_seq); /* the plan of this shape is made */
    *best_us = 1e30, *n_alloc = 0;
    for (int k = 0; k < N_TRY && !rc; k++) {
        for (int32_t q = 0; q < n_seq && !rc; q++)
            rc = gr_kv_seq_rm(s, q, n_cell + 1, -1);
        (void)gr_alloc_fail_at(0, 0);
        double start = text_cpu_us();
        for (int i = 0; i < N_STEP && !rc; i++)
            rc = text_step(s, n_seq);
        double us = (text_cpu_us() - start) / N_STEP;
        *n_alloc += gr_alloc_fail_at(0, 0);
        *best_us = us < *best_us ? us : *best_us;
    }
    return rc;
}

static int measure_all(struct gr_session *s, double most_us)
{
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double us;
        uint64_t n_alloc;
        if (measure(s, cases[i][0], cases[i][1], &us, &n_alloc))
            return fprintf(stderr, "bench_host: %s\n", gr_error_message()), 1;
        printf("{\"n_layer\": %d, \"n_seq\": %d, \"n_depth\": %d, \"cpu_us\": %.3f, "
               "\"allocations\": %llu, \"steps\": %d}\n",
               N_LAYER, cases[i][0], cases[i][1], us, (unsigned long long)n_alloc, N_TRY * N_STEP);
        wrong |= us > most_us;
    }
    if (wrong)
        fprintf(stderr, "bench_host: a step takes more than %.1f us\n", most_us);
    return wrong;
}

int main(int argc, char **argv)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_model *m = NULL;
    struct gr_session *s = NULL;
    t.n_layer = N_LAYER, t.n_ctx = 2 * MOST;
    timed_use(1, 0, false);
    int rc = !text_open("bench_host", &t, MOST + TEXT_MOST * 1024, &m, &s);
    rc = rc ? rc : measure_all(s, argc > 1 ? atof(argv[1]) : 1e9);
    gr_session_close(&s);
    gr_model_close(&m);
    return rc;
}
