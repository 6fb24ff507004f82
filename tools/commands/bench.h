/* gpurun bench: measurements, their output and comparison. */
#ifndef GR_TOOLS_BENCH_H
#define GR_TOOLS_BENCH_H

#include <jansson.h>

#include "gpurun.h"

struct gr_options;

/* A test: a prompt (n_prompt), generated tokens (n_gen) of n_seq texts at once, or both in
 * sequence; before it each text has n_depth tokens in the cache, and one more text has n_other. */
struct gr_bench_test {
    int32_t n_prompt, n_gen, n_seq, n_depth, n_other;
};

struct gr_bench_result {
    struct gr_bench_test test;
    const struct gr_options *o; /* options of this setting */
    const struct gr_model_info *info;
    const struct gr_fit_device *device; /* the first GPU in use, or the CPU */
    bool on_gpu;
    int32_t n_threads;
    int64_t load_ns; /* opening model and session */
    int64_t start_s; /* wall clock, when the first measurement began */
    int32_t n_rep;
    const int64_t *ns;       /* [n_rep] */
    const int64_t *first_ns; /* [n_rep] until the logits after the prompt */
    const int64_t *step_ns;  /* [n_step] times between a text's tokens, ascending */
    int32_t n_step;
    int64_t cpu_ns; /* CPU time of all threads in all measurements */
    double was_ts;  /* tokens per second in the file of --compare; 0: none */
};

/* The settings that lists of values ask for: the number of models to open, and of sessions of each.
 * Setting model or session i replaces the options that have lists by one value each; the lists
 * stay. */
int gr_bench_n_model(const struct gr_options *o);
int gr_bench_n_session(const struct gr_options *o);
void gr_bench_set_model(struct gr_options *o, int i);
void gr_bench_set_session(struct gr_options *o, int i);

/* "pp512", "tg128x8 @ d4096", "pp512+tg128 @ d0 o8192". Returns buf. */
const char *gr_bench_name(const struct gr_bench_test *t, char *buf, size_t n);
/* Returns the tokens per second of measurement i. */
double gr_bench_speed(const struct gr_bench_result *r, int32_t i);
/* Returns the mean speed of the measurements; *deviation receives their standard deviation. */
double gr_bench_mean(const struct gr_bench_result *r, double *deviation);

/* Makes a row with the field names of llama-bench, followed by fields that it lacks; durations in
 * nanoseconds, 0 where there is none. NULL: no memory. */
json_t *gr_bench_json(const struct gr_bench_result *r);
/* Prints the row; `first`: preceded by the header. 0 or an exit code, after printing the error. */
int gr_bench_print(const struct gr_bench_result *r, bool first);
/* Prints the end of the output. */
void gr_bench_print_end(const struct gr_options *o, bool any);

/* Rows of an earlier result. */
struct gr_bench_old;
int gr_bench_old_read(struct gr_bench_old **out, const char *path); /* 0 or an exit code, error
                                                                       printed */
void gr_bench_old_free(struct gr_bench_old *old);
/* Sets r->was_ts: the speed of the row of the same test, model and cache types that agrees with
 * most of the other settings. */
void gr_bench_old_find(struct gr_bench_old *old, struct gr_bench_result *r);
/* Prints the result of the comparison after all measurements; returns 0, or an exit code when a
 * test is slower or none is in the file. */
int gr_bench_old_judge(const struct gr_bench_old *old);

#endif
