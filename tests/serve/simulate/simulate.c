#include "simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "gpurun.h"
#include "session.h"
#include "tools/serve/scheduler.h"

/* ---- requests ---- */

/* Lengths at these parts of all requests, of the Azure LLM inference trace of 2023-11-16 (Patel et
 * al., Splitwise, ISCA 2024; github.com/Azure/AzurePublicDataset, CC-BY): 19,366 conversations and
 * 8,819 of code. Prompt and answer are drawn apart: the logarithms' correlation is 0.09 and 0.00.
 */
#define N_POINT 18
static const double part_of_all[N_POINT] = {0,  .01, .05, .1, .2, .25, .3,  .4,   .5,
                                            .6, .7,  .75, .8, .9, .95, .99, .999, 1};
static const int32_t lengths[SIM_N_TRACE][2][N_POINT] = {
    [SIM_CONVERSATION] = {{2, 29, 181, 207, 387, 396, 403, 703, 1020, 1071, 1130, 1189, 1315, 2735,
                           4083, 4142, 6212, 14050},
                          {7, 16, 41, 54, 77, 85, 91, 103, 129, 177, 384, 395, 400, 424, 451, 601,
                           954, 1000}},
    [SIM_CODE] = {{3, 17, 75, 147, 385, 578, 770, 1075, 1469, 1909, 2433, 2745, 3193, 5194, 7315,
                   7436, 7437, 7437},
                  {6, 6, 6, 7, 8, 9, 9, 11, 13, 16, 20, 24, 29, 55, 90, 252, 831, 1899}}};

static int32_t draw(struct gr_rng *rng, const int32_t *length)
{
    double u = gr_rng_double(rng);
    int i = 1;
    while (i < N_POINT - 1 && part_of_all[i] < u)
        i++;
    double x = part_of_all[i - 1], part = (u - x) / (part_of_all[i] - x);
    return length[i - 1] + (int32_t)lround(part * (length[i] - length[i - 1]));
}

static void make_requests(struct sim_run *r, const struct sim_params *p)
{
    struct gr_rng rng = gr_rng_new((uint64_t)p->seed);
    double now = 0;
    for (int32_t i = 0; i < r->n_request; i++) {
        struct sim_request *q = &r->request[i];
        now += -log(1 - gr_rng_double(&rng)) / p->rate * 1e9;
        *q = (struct sim_request){.arrival = now};
        q->text.n_prompt = draw(&rng, lengths[p->trace][0]);
        q->text.n_answer = draw(&rng, lengths[p->trace][1]);
        q->text.n_most = lengths[p->trace][1][N_POINT - 1];
        bool other = gr_rng_double(&rng) >= p->heavy && p->n_owner > 1;
        uint32_t owner = gr_rng_below(&rng, (uint32_t)(p->n_owner > 1 ? p->n_owner - 1 : 1));
        q->owner = other ? 1 + owner : 0;
    }
}

/* ---- what is told of them ---- */

/* A scheduler or policy with its cells; all groups share the machine. */
struct group {
    struct gr_session *session;
    struct gr_scheduler *scheduler;
    struct sim_queue *queue;
    double now;
    bool busy;
    int32_t n_live; /* requests that have not ended */
};

/* The simulation that runs, for callbacks that are told the request alone. */
static struct {
    struct sim_run *run;
    struct group *group;
    int32_t n_first;
} sim;

#define GAP_LEAST 1e4 /* ns; each place of gaps is 2 % longer than the one before */
#define GAP_STEP 1.02

double sim_gap(const struct sim_run *r, double q)
{
    int64_t all = 0, sum = 0;
    int n = (int)(sizeof r->gaps / sizeof *r->gaps), i = 0;
    for (int k = 0; k < n; k++)
        all += r->gaps[k];
    while (i < n - 1 && (double)(sum += r->gaps[i]) < q * (double)all)
        i++;
    return GAP_LEAST * pow(GAP_STEP, i + 1);
}

static void count_gap(struct sim_request *q, double gap)
{
    int n = (int)(sizeof sim.run->gaps / sizeof *sim.run->gaps);
    double place = gap > GAP_LEAST ? log(gap / GAP_LEAST) / log(GAP_STEP) : 0;
    sim.run->gaps[place < n - 1 ? (int)place : n - 1]++;
    q->longest = gap > q->longest ? gap : q->longest;
}

static void end(struct sim_request *q)
{
    q->n_result++;
    sim.group[q->group].n_live--;
}

static void add_token(struct sim_request *q)
{
    double now = sim_clock->now;
    if (q->n_token++)
        count_gap(q, now - q->last);
    else
        q->first = now, q->rank = sim.n_first++;
    q->last = now;
    sim.run->end = now > sim.run->end ? now : sim.run->end;
}

static void on_token(struct sim_text *t)
{
    struct sim_request *q = (struct sim_request *)t;
    add_token(q);
    if (q->n_token == t->n_answer)
        end(q);
}

static void on_piece(const struct gr_piece *piece, void *user)
{
    (void)piece;
    add_token(user);
}

static void on_result(const struct gr_result *result, void *user)
{
    if (result->end == GR_FINISH_FAILED)
        sim.run->status = result->status;
    end(user);
}

/* ---- groups ---- */

static int open_group(struct group *g, const struct sim_params *p, struct sim_machine *m)
{
    struct sim_limits limits = p->limits;
    limits.n_cell = (int32_t)((int64_t)limits.n_cell * m->n_stage / p->n_group);
    if (p->policy != SIM_GPURUN) {
        g->queue = sim_queue_open(p->policy, &limits, m, on_token);
        return g->queue ? 0 : GR_E_NOMEM_HOST;
    }
    struct gr_scheduler_params sp = {.n_seq = 2 * limits.n_active,
                                     .n_active = limits.n_active,
                                     .n_ctx = limits.n_cell,
                                     .n_step = limits.n_step,
                                     .n_ubatch = m->n_ubatch,
                                     .n_flight = p->n_flight,
                                     .n_queue = p->n_request,
                                     .step_ns = (int64_t)p->step_ns,
                                     .first_ns = (int64_t)p->late_ns};
    sp.session = g->session = sim_session_open(m, (uint32_t)limits.n_cell, sp.n_seq);
    return g->session ? gr_scheduler_new(&g->scheduler, &sp) : GR_E_NOMEM_HOST;
}

static void close_group(struct group *g)
{
    if (g->scheduler)
        gr_scheduler_free(&g->scheduler);
    sim_session_close(&g->session);
    sim_queue_close(&g->queue);
}

/* Tokens are those of the request alone: no two begin alike. */
static int submit(struct group *g, struct sim_request *q, int32_t id)
{
    uint64_t ignored;
    if (g->queue) {
        sim_queue_submit(g->queue, &q->text);
        return 0;
    }
    int32_t n = q->text.n_prompt, *prompt = malloc((size_t)n * sizeof *prompt);
    struct gr_request request = {.prompt = prompt,
                                 .n_prompt = n,
                                 .n_predict = q->text.n_most,
                                 .sampler = sim_sampler_new(id + 1, q->text.n_answer),
                                 .owner = q->owner,
                                 .piece = on_piece,
                                 .result = on_result,
                                 .user = q};
    for (int32_t i = 0; prompt && i < n; i++)
        prompt[i] = id + 1;
    int rc = prompt && request.sampler ? gr_scheduler_submit(g->scheduler, &request, &ignored)
                                       : GR_E_NOMEM_HOST;
    if (rc)
        gr_sampler_free(&request.sampler);
    free(prompt);
    return rc;
}

/* Gives the next request to the group with the fewest. */
static int arrive(struct sim_run *r, int n_group, int32_t id)
{
    struct sim_request *q = &r->request[id];
    struct group *g = sim.group;
    for (int i = 1; i < n_group; i++)
        g = sim.group[i].n_live < g->n_live ? &sim.group[i] : g;
    if (!g->busy)
        g->now = q->arrival > g->now ? q->arrival : g->now;
    g->busy = true;
    g->n_live++;
    q->group = (int)(g - sim.group);
    r->machine.now = q->arrival;
    return submit(g, q, id);
}

/* Returns the busy group whose last step ended first; NULL: none is busy. */
static struct group *first_group(int n_group)
{
    struct group *first = NULL;
    for (int i = 0; i < n_group; i++) {
        struct group *g = &sim.group[i];
        if (g->busy && (!first || g->now < first->now))
            first = g;
    }
    return first;
}

/* Runs a step of a group from its time on. */
static void step(struct sim_run *r, struct group *g)
{
    r->machine.now = g->now;
    int64_t start = sim_thread_ns();
    g->busy = g->queue ? sim_queue_step(g->queue) : gr_scheduler_step(g->scheduler);
    r->host_ns += sim_thread_ns() - start;
    g->now = r->machine.now;
}

/* Lets requests arrive and groups step in the order of time. */
static int run_all(struct sim_run *r, int n_group)
{
    enum { MOST_IDLE = 100 /* steps in which nothing is computed */ };
    int32_t next = 0;
    int64_t n_step = 0;
    for (int n_idle = 0; n_idle < MOST_IDLE && !r->status; n_idle++) {
        struct group *g = first_group(n_group);
        if (next < r->n_request && (!g || r->request[next].arrival <= g->now)) {
            int rc = arrive(r, n_group, next++);
            n_idle = -1;
            if (rc)
                return rc;
        } else if (!g) {
            return 0;
        } else {
            step(r, g);
        }
        if (r->machine.n_step > n_step)
            n_step = r->machine.n_step, n_idle = -1;
    }
    return r->status ? r->status : GR_E_CHECK;
}

static void close_groups(struct sim_run *r, int n_group)
{
    for (int i = 0; i < n_group; i++) {
        struct group *g = &sim.group[i];
        if (g->scheduler)
            r->n_preempted += gr_scheduler_stats(g->scheduler).n_preempted;
        else if (g->queue)
            r->n_preempted += sim_queue_n_preempted(g->queue);
        close_group(g);
    }
}

int sim_run(struct sim_run *r, const struct sim_params *p)
{
    int rc = 0;
    *r = (struct sim_run){.n_request = p->n_request, .machine = p->machine};
    r->request = calloc((size_t)p->n_request, sizeof *r->request);
    sim.group = calloc((size_t)p->n_group, sizeof *sim.group);
    sim.run = r, sim.n_first = 0, sim_clock = &r->machine;
    if (!r->request || !sim.group)
        rc = GR_E_NOMEM_HOST;
    if (!rc)
        make_requests(r, p);
    for (int i = 0; i < p->n_group && !rc; i++)
        rc = open_group(&sim.group[i], p, &r->machine);
    if (!rc)
        rc = run_all(r, p->n_group);
    if (sim.group)
        close_groups(r, p->n_group);
    free(sim.group);
    sim_clock = NULL;
    return rc;
}

void sim_free(struct sim_run *r)
{
    free(r->request);
    r->request = NULL;
}

double sim_alone(const struct sim_params *p, const struct sim_request *q)
{
    struct sim_machine m = p->machine;
    int32_t n = q->text.n_prompt;
    for (int32_t done = 0, k; done < n; done += k) {
        k = n - done < p->limits.n_step ? n - done : p->limits.n_step;
        sim_machine_step(&m, &(struct sim_part){k, done}, 1);
    }
    for (int32_t i = 1; i < q->text.n_answer; i++)
        sim_machine_step(&m, &(struct sim_part){1, n++}, 1);
    return m.now - p->machine.now;
}
