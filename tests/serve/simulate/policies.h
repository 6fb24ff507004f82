/* Published policies, on the machine of the scheduler beside which they stand. */
#ifndef GR_TESTS_SIMULATE_POLICIES_H
#define GR_TESTS_SIMULATE_POLICIES_H

#include <stdbool.h>

#include "machine.h"

/* Each text is one of these. */
enum sim_policy {
    SIM_GPURUN, /* tools/serve/scheduler.c itself, which is not here */
    /* In the order of arrival; the cells of the longest answer are reserved; a prompt is computed
     * at once, beside the texts that go on (Orca, Yu et al., OSDI 2022, without its paged cache).
     */
    SIM_FCFS,
    /* vLLM until 0.7 (Kwon et al., SOSP 2023; vllm/core/scheduler.py): prompts first, in whole and
     * alone in their step; blocks of 16 cells, of which 1 % stay free for those that run; the last
     * one that began is stopped and computed again when none is left. */
    SIM_VLLM0,
    /* vLLM from 0.8 on (vllm/v1/core/sched/scheduler.py): texts that run, in the order they began,
     * then those that wait, each with as many tokens as are left of the step; stops as before. */
    SIM_VLLM1,
    SIM_N_POLICY
};

struct sim_text {
    int32_t n_prompt, n_answer, n_most; /* n_most: tokens of the answer that the client allows */
    int32_t n, n_done;                  /* tokens there are; in the cache */
    int32_t n_block;
    struct sim_text *next; /* while it waits */
};

struct sim_limits {
    int32_t n_active, n_step; /* most texts at once; tokens of a step */
    int32_t n_cell;
};

struct sim_queue;
/* A token of the text, at the machine's time. */
typedef void sim_token_fn(struct sim_text *t);

/* NULL: no memory. */
struct sim_queue *sim_queue_open(enum sim_policy policy, const struct sim_limits *limits,
                                 struct sim_machine *m, sim_token_fn *token);
void sim_queue_close(struct sim_queue **q);
void sim_queue_submit(struct sim_queue *q, struct sim_text *t);
/* Runs a step; false: there was nothing to do. */
bool sim_queue_step(struct sim_queue *q);
int64_t sim_queue_n_preempted(const struct sim_queue *q);

#endif
