/* gpurun bench: what is measured, and how it is printed and compared. */
#ifndef GR_TOOLS_BENCH_H
#define GR_TOOLS_BENCH_H

#include <jansson.h>

#include "flags.h"

/* A prompt (n_prompt), generated tokens (n_gen) of n_seq texts at once, or one after the other;
 * before it each text has n_depth tokens in the cache, and one more text has n_other. */
struct gr_bench_test {
    int32_t n_prompt, n_gen, n_seq, n_depth, n_other;
};

struct gr_bench_result {
    struct gr_bench_test test;
    const struct gr_options *o; /* of this setting */
    const struct gr_model_info *info;
    const struct gr_fit_device *device; /* the first GPU in use, or the CPU */
    bool on_gpu;
    int32_t n_threads;
    int64_t load_ns; /* from nothing to a session */
    int64_t start_s; /* wall clock, when the first measurement began */
    int32_t n_rep;
    const int64_t *ns;       /* [n_rep] */
    const int64_t *first_ns; /* [n_rep] until the logits behind the prompt were there */
    const int64_t *step_ns;  /* [n_step] between one text's tokens, in rising order */
    int32_t n_step;
    int64_t cpu_ns; /* of all threads, of all measurements */
    double was_ts;  /* tokens a second of the file of --compare; 0 = none */
};

/* "pp512", "tg128x8 @ d4096", "pp512+tg128 @ d0 o8192". Returns buf. */
const char *gr_bench_name(const struct gr_bench_test *t, char *buf, size_t n);
/* Tokens a second of measurement i. */
double gr_bench_speed(const struct gr_bench_result *r, int32_t i);
/* Mean of the measurements, and their standard deviation. */
double gr_bench_mean(const struct gr_bench_result *r, double *deviation);

/* A row in the names of llama-bench, with those that it has not behind them; durations in
 * nanoseconds, 0 where there is none. NULL: no memory. */
json_t *gr_bench_json(const struct gr_bench_result *r);
/* Prints the row; `first`: what comes before it too. 0 or an exit code, said. */
int gr_bench_print(const struct gr_bench_result *r, bool first);
/* What ends the output. */
void gr_bench_print_end(const struct gr_options *o, bool any);

/* Rows of an earlier result. */
struct gr_bench_old;
int gr_bench_old_read(struct gr_bench_old **out, const char *path); /* 0 or an exit code, said */
void gr_bench_old_free(struct gr_bench_old *old);
/* Sets r->was_ts: the speed of the row of the same test, model and cache types that agrees with
 * most of the other settings. */
void gr_bench_old_find(struct gr_bench_old *old, struct gr_bench_result *r);
/* What is to be said when all was measured; 0, or the exit code when a test is slower, or none is
 * in the file. */
int gr_bench_old_judge(const struct gr_bench_old *old);

#endif
