#include "policies.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 16 /* cells */ };

struct sim_queue {
    enum sim_policy policy;
    struct sim_limits limits;
    struct sim_machine *machine;
    sim_token_fn *token;
    struct sim_text *waiting, **waiting_end;
    struct sim_text **active;  /* [n_active] in the order they began */
    int32_t n_active, n_block; /* n_block: free */
    int64_t n_preempted;
    struct sim_part *part; /* [n_part] of the step */
    struct sim_text **of;
    int32_t n_part, left; /* left: tokens of the step */
};

struct sim_queue *sim_queue_open(enum sim_policy policy, const struct sim_limits *limits,
                                 struct sim_machine *m, sim_token_fn *token)
{
    struct sim_queue *q = calloc(1, sizeof *q);
    size_t n = (size_t)limits->n_active;
    if (!q)
        return NULL;
    q->policy = policy, q->limits = *limits, q->machine = m, q->token = token;
    q->waiting_end = &q->waiting;
    q->n_block = limits->n_cell / BLOCK;
    q->active = malloc(n * sizeof *q->active);
    q->part = malloc(n * sizeof *q->part);
    q->of = malloc(n * sizeof *q->of);
    if (!q->active || !q->part || !q->of)
        sim_queue_close(&q);
    return q;
}

void sim_queue_close(struct sim_queue **q)
{
    if (!*q)
        return;
    free((*q)->active);
    free((*q)->part);
    free((*q)->of);
    free(*q);
    *q = NULL;
}

void sim_queue_submit(struct sim_queue *q, struct sim_text *t)
{
    t->n = t->n_prompt, t->n_done = t->n_block = 0, t->next = NULL;
    *q->waiting_end = t;
    q->waiting_end = &t->next;
}

int64_t sim_queue_n_preempted(const struct sim_queue *q)
{
    return q->n_preempted;
}

/* ---- cells ---- */

static int32_t blocks_of(int32_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

/* Gives a text the blocks of n cells in all; false: there are not as many. */
static bool take_blocks(struct sim_queue *q, struct sim_text *t, int32_t n)
{
    int32_t more = blocks_of(n) - t->n_block;
    if (more > q->n_block)
        return false;
    if (more > 0)
        q->n_block -= more, t->n_block += more;
    return true;
}

static void leave(struct sim_queue *q, int32_t i)
{
    q->n_block += q->active[i]->n_block;
    memmove(q->active + i, q->active + i + 1, (size_t)(--q->n_active - i) * sizeof *q->active);
}

/* Stops the text that began last; it waits before all others. */
static void stop_last(struct sim_queue *q)
{
    struct sim_text *t = q->active[q->n_active - 1];
    leave(q, q->n_active - 1);
    t->n_done = t->n_block = 0;
    t->next = q->waiting;
    if (!q->waiting)
        q->waiting_end = &t->next;
    q->waiting = t;
    q->n_preempted++;
}

/* ---- steps ---- */

static void add(struct sim_queue *q, struct sim_text *t, int32_t n)
{
    q->part[q->n_part] = (struct sim_part){n, t->n_done};
    q->of[q->n_part++] = t;
    q->left -= n;
}

static void start(struct sim_queue *q)
{
    struct sim_text *t = q->waiting;
    q->waiting = t->next;
    if (!q->waiting)
        q->waiting_end = &q->waiting;
    q->active[q->n_active++] = t;
}

/* Adds the tokens of texts that run; returns whether one had to be stopped. */
static bool add_active(struct sim_queue *q)
{
    bool stopped = false;
    for (int32_t i = 0; i < q->n_active && q->left > 0; i++) {
        struct sim_text *t = q->active[i];
        int32_t n = t->n - t->n_done < q->left ? t->n - t->n_done : q->left;
        while (i < q->n_active && !take_blocks(q, t, t->n_done + n)) {
            stop_last(q);
            stopped = true;
        }
        if (i < q->n_active)
            add(q, t, n);
    }
    return stopped;
}

/* Begins texts that wait, each with at most the tokens that are left of the step, or whole. */
static void add_waiting(struct sim_queue *q)
{
    while (q->waiting && q->n_active < q->limits.n_active && q->left > 0) {
        struct sim_text *t = q->waiting;
        bool whole = q->policy != SIM_VLLM1;
        int32_t n = whole || t->n < q->left ? t->n : q->left, cells = n;
        int32_t spare = q->policy == SIM_VLLM0 ? q->limits.n_cell / BLOCK / 100 : 0;
        if (q->policy == SIM_FCFS)
            cells = t->n_prompt + t->n_most;
        if ((q->policy == SIM_VLLM0 && n > q->left && q->n_part) ||
            (q->n_active && blocks_of(cells) + spare > q->n_block) || !take_blocks(q, t, cells))
            return;
        start(q);
        add(q, t, n);
    }
}

static void fill(struct sim_queue *q)
{
    q->n_part = 0, q->left = q->policy == SIM_FCFS ? INT32_MAX : q->limits.n_step;
    if (q->policy == SIM_VLLM0) {
        add_waiting(q);
        if (!q->n_part)
            add_active(q);
    } else if (!add_active(q)) {
        add_waiting(q);
    }
}

bool sim_queue_step(struct sim_queue *q)
{
    fill(q);
    if (!q->n_part)
        return false;
    sim_machine_step(q->machine, q->part, q->n_part);
    for (int32_t i = 0; i < q->n_part; i++) {
        struct sim_text *t = q->of[i];
        t->n_done += q->part[i].n;
        if (t->n_done < t->n)
            continue;
        t->n++;
        q->token(t);
    }
    for (int32_t i = q->n_active - 1; i >= 0; i--) {
        if (q->active[i]->n - q->active[i]->n_prompt == q->active[i]->n_answer)
            leave(q, i);
    }
    return true;
}
