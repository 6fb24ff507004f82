/* Requests of a random load through the scheduler, or a policy beside it, in virtual time. */
#ifndef GR_TESTS_SIMULATE_H
#define GR_TESTS_SIMULATE_H

#include "machine.h"
#include "policies.h"

enum sim_trace { SIM_CONVERSATION, SIM_CODE, SIM_N_TRACE };

struct sim_params {
    struct sim_machine machine; /* as it is at the beginning */
    struct sim_limits limits;   /* n_cell: of one stage; n_active: of a group */
    enum sim_policy policy;
    enum sim_trace trace;
    int32_t n_group;  /* groups of texts, each with a scheduler or policy, whose steps are in flight
                       at once; the cells of all stages are divided among them */
    int32_t n_flight; /* steps of a scheduler that are in flight at once */
    double rate;      /* requests a second */
    double heavy; /* part of the requests that owner 0 sends; the others have one each of n_owner */
    int32_t n_owner;
    int32_t n_request;
    int32_t seed;
    double step_ns, late_ns; /* step_ns and first_ns of gr_scheduler_params */
    double first_ns,
        token_ns; /* bounds of a good request: to the first token, mean between tokens */
};

/* A request: what is given, and what became of it. Times in ns. */
struct sim_request {
    struct sim_text text; /* first */
    double arrival;
    uint64_t owner;
    double first, last, longest; /* tokens of the answer; longest time between two */
    int32_t n_token;             /* that were told */
    int32_t n_result;            /* times that its end was told */
    int32_t rank;                /* place in the order of first tokens */
    int group;
};

struct sim_run {
    struct sim_request *request; /* [n_request] by arrival */
    int32_t n_request;
    struct sim_machine machine; /* after it */
    int64_t n_preempted;
    int64_t host_ns;    /* of the scheduler or policy, this processor's time */
    double end;         /* of the last token */
    int32_t gaps[1024]; /* times between tokens: see sim_gap */
    int status;
};

/* The time between two tokens below which are a part q of all. */
double sim_gap(const struct sim_run *r, double q);

/* Runs until all requests have ended; GR_E_NOMEM_HOST, or GR_E_CHECK when nothing goes on. */
int sim_run(struct sim_run *r, const struct sim_params *p);
void sim_free(struct sim_run *r);

/* Computes the time that the machine takes for a request alone. */
double sim_alone(const struct sim_params *p, const struct sim_request *q);

#endif
