/* Properties of the scheduler under any load, with small loads in virtual time. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "simulate.h"

TestSuite(simulate, .timeout = 120);

enum { N_REQUEST = 1000 };

/* Step times of Llama-3-8B Q4_K_M on an H200, as scripts/bench/step predicts them. */
static struct sim_params fast_machine(double rate)
{
    return (struct sim_params){
        .machine = {.law = {.point = {{1, 1.385e6},
                                      {2, 2.811e6},
                                      {64, 2.884e6},
                                      {128, 4.588e6},
                                      {256, 6.932e6},
                                      {512, 11.508e6}},
                            .n_point = 6,
                            .cell_ns = 25,
                            .pair_ns = 0.858},
                    .n_ubatch = 512,
                    .n_stage = 1,
                    .hop_ns = 3e4},
        .limits = {.n_active = 64, .n_step = 2048, .n_cell = 1 << 19},
        .n_group = 1,
        .rate = rate,
        .heavy = 1,
        .n_owner = 1,
        .n_request = N_REQUEST,
        .seed = 1,
        .step_ns = 4e7,
    };
}

static struct sim_run run_of(const struct sim_params *p)
{
    struct sim_run r;
    cr_assert_eq(sim_run(&r, p), 0);
    return r;
}

/* All requests end, once, with all tokens of their answers; what was computed is what they are made
 * of, each token once where none was stopped. */
static void check_complete(const struct sim_run *r, const char *what)
{
    int64_t n_token = 0;
    for (int32_t i = 0; i < r->n_request; i++) {
        const struct sim_request *q = &r->request[i];
        cr_expect_eq(q->n_result, 1, "%s: request %d: %d results", what, i, q->n_result);
        cr_expect_eq(q->n_token, q->text.n_answer, "%s: request %d: %d of %d tokens", what, i,
                     q->n_token, q->text.n_answer);
        cr_expect_geq(q->first, q->arrival);
        n_token += q->text.n_prompt + q->text.n_answer - 1; /* the last one is not computed */
    }
    if (r->n_preempted)
        cr_expect_gt(r->machine.n_token, n_token, "%s", what);
    else
        cr_expect_eq(r->machine.n_token, n_token, "%s", what);
}

/* No request of an owner waits longer than all that came before it and have not ended then, and
 * itself, would take one after another, and a step that had begun. */
static void check_waits(const struct sim_params *p, const struct sim_run *r)
{
    double *alone = malloc((size_t)r->n_request * sizeof *alone);
    cr_assert(alone);
    for (int32_t i = 0; i < r->n_request; i++) {
        const struct sim_request *q = &r->request[i];
        double bound = alone[i] = sim_alone(p, q);
        for (int32_t k = 0; k < i; k++)
            bound += r->request[k].last > q->arrival ? alone[k] : 0;
        bound += sim_alone(p, &(struct sim_request){.text = {p->limits.n_step, 1, 1, 0, 0, 0, 0}});
        cr_expect_leq(q->first - q->arrival, bound, "request %d waited %.0f of %.0f ms", i,
                      (q->first - q->arrival) / 1e6, bound / 1e6);
    }
    free(alone);
}

/* Returns how many requests had their first token before one of their owner that came earlier. */
static int32_t n_overtaken(const struct sim_run *r)
{
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_request; i++) {
        for (int32_t k = 0; k < i; k++)
            n += r->request[k].owner == r->request[i].owner &&
                 r->request[k].rank > r->request[i].rank;
    }
    return n;
}

/* Twice of what the machine can do: the worst waits, by time and by order. */
Test(simulate, none_starves)
{
    for (int trace = 0; trace < SIM_N_TRACE; trace++) {
        struct sim_params p = fast_machine(60);
        p.trace = (enum sim_trace)trace;
        struct sim_run r = run_of(&p);
        check_complete(&r, "overload");
        check_waits(&p, &r);
        cr_expect_eq(n_overtaken(&r), 0);
        sim_free(&r);
    }
}

/* So few cells that texts are stopped and computed again. */
Test(simulate, none_starves_where_cells_are_short)
{
    struct sim_params p = fast_machine(60);
    p.limits.n_cell = 15500; /* the longest request and little more */
    struct sim_run r = run_of(&p);
    check_complete(&r, "few cells");
    cr_expect_gt(r.n_preempted, 0);
    cr_expect_eq(n_overtaken(&r), 0);
    sim_free(&r);
}

/* One owner sends nine of ten requests, more than the machine can do: the others hardly wait. */
Test(simulate, owners_are_independent)
{
    struct sim_params p = fast_machine(40);
    p.heavy = 0.9, p.n_owner = 8;
    struct sim_run r = run_of(&p);
    double most[2] = {0};
    for (int32_t i = 0; i < r.n_request; i++) {
        const struct sim_request *q = &r.request[i];
        double wait = q->first - q->arrival, *of = &most[q->owner > 0];
        *of = wait > *of ? wait : *of;
    }
    check_complete(&r, "owners");
    cr_expect_eq(n_overtaken(&r), 0);
    cr_expect_lt(10 * most[1], most[0], "light %.0f ms, heavy %.0f ms", most[1] / 1e6,
                 most[0] / 1e6);
    sim_free(&r);
}

/* Short steps let texts go on sooner, so that under overload all end sooner too, as long as their
 * prompts are whole micro-batches. */
Test(simulate, short_steps_are_whole_micro_batches)
{
    struct sim_params p = fast_machine(60);
    p.step_ns = 2.4e7;
    struct sim_run bounded = run_of(&p);
    p.step_ns = 0;
    struct sim_run any = run_of(&p);
    cr_expect_lt(bounded.end, 0.96 * any.end, "%.2f and %.2f s", bounded.end / 1e9, any.end / 1e9);
    sim_free(&bounded);
    sim_free(&any);
}

static bool same_times(const struct sim_run *a, const struct sim_run *b)
{
    bool same = true;
    for (int32_t i = 0; i < N_REQUEST; i++)
        same = same && a->request[i].first == b->request[i].first &&
               a->request[i].last == b->request[i].last;
    return same;
}

/* A prompt that is late fills steps: where all are it is as if there were no bound, where none is
 * as if only that. */
Test(simulate, late_prompts_fill_steps)
{
    struct sim_params p = fast_machine(22);
    p.step_ns = 0;
    struct sim_run any = run_of(&p);
    p.step_ns = 1e7;
    struct sim_run bounded = run_of(&p);
    p.late_ns = 1;
    struct sim_run all = run_of(&p);
    p.late_ns = 3e8;
    struct sim_run some = run_of(&p);
    p.late_ns = 1e12;
    struct sim_run none = run_of(&p);
    cr_expect(same_times(&all, &any));
    cr_expect(same_times(&none, &bounded));
    cr_expect(!same_times(&some, &any) && !same_times(&some, &bounded));
    sim_free(&any);
    sim_free(&bounded);
    sim_free(&all);
    sim_free(&some);
    sim_free(&none);
}

/* A machine whose plain steps take longer than the bound: prompts are not cut into small pieces,
 * each of which would take the time of a whole step. */
Test(simulate, slow_machines_do_not_crawl)
{
    struct sim_params p = fast_machine(6);
    for (int i = 0; i < p.machine.law.n_point; i++)
        p.machine.law.point[i].ns *= 20;
    struct sim_run bounded = run_of(&p);
    p.step_ns = 0;
    struct sim_run any = run_of(&p);
    check_complete(&bounded, "slow");
    cr_expect_lt(bounded.end, 1.1 * any.end, "%.2f and %.2f s", bounded.end / 1e9, any.end / 1e9);
    sim_free(&bounded);
    sim_free(&any);
}

/* Policies, machines with stages, and groups in flight. */
Test(simulate, all_end_with_every_policy)
{
    for (int policy = 0; policy < SIM_N_POLICY; policy++) {
        for (int32_t stages = 1; stages <= SIM_STAGES; stages *= 8) {
            struct sim_params p = fast_machine(30);
            p.policy = (enum sim_policy)policy;
            p.machine.n_stage = p.n_group = stages;
            p.limits.n_cell = 20000;
            struct sim_run r = run_of(&p);
            check_complete(&r, "stages");
            cr_expect_leq(r.machine.busy, 1.000001 * stages * (r.end - r.request[0].arrival));
            sim_free(&r);
        }
    }
}

/* Steps in flight on stages: one scheduler's do what a scheduler for each group of texts does, and
 * much more than one step at a time. */
Test(simulate, steps_in_flight_fill_stages)
{
    struct sim_params p = fast_machine(400);
    p.machine.n_stage = p.n_group = 8;
    struct sim_run groups = run_of(&p);
    p.n_group = 1, p.limits.n_active *= 8;
    struct sim_run one = run_of(&p);
    p.n_flight = 8;
    struct sim_run flight = run_of(&p);
    check_complete(&flight, "in flight");
    cr_expect_eq(n_overtaken(&flight), 0);
    cr_expect_lt(flight.end, 1.05 * groups.end, "%.2f and %.2f s", flight.end / 1e9,
                 groups.end / 1e9);
    cr_expect_lt(2 * flight.end, one.end, "%.2f and %.2f s", flight.end / 1e9, one.end / 1e9);
    sim_free(&groups);
    sim_free(&one);
    sim_free(&flight);
}

/* Where nothing of a request's time, owner or cells is short, the scheduler is vLLM's. */
Test(simulate, as_vllm_without_bounds)
{
    struct sim_params p = fast_machine(20);
    p.step_ns = 0;
    struct sim_run ours = run_of(&p);
    p.policy = SIM_VLLM1;
    struct sim_run theirs = run_of(&p);
    cr_expect(same_times(&ours, &theirs));
    sim_free(&ours);
    sim_free(&theirs);
}

Test(simulate, same_seed_same_run)
{
    struct sim_params p = fast_machine(40);
    p.limits.n_cell = 30000, p.n_owner = 4, p.heavy = 0.5;
    struct sim_run a = run_of(&p), b = run_of(&p);
    cr_expect_eq(memcmp(a.gaps, b.gaps, sizeof a.gaps), 0);
    cr_expect(same_times(&a, &b));
    p.seed = 2;
    struct sim_run c = run_of(&p);
    cr_expect_neq(a.request[0].arrival, c.request[0].arrival);
    sim_free(&a);
    sim_free(&b);
    sim_free(&c);
}
