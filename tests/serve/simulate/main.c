/* Simulates a scheduler under load and prints its figures as a line of JSON; scripts/bench/simulate
 * runs it. Arguments are KEY=VALUE by the tables here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simulate.h"

static struct sim_params params = {
    .machine = {.n_ubatch = 512, .n_stage = 1},
    .limits = {.n_active = 256, .n_step = 2048, .n_cell = 1 << 19},
    .n_group = 1,
    .rate = 1,
    .heavy = 1,
    .n_owner = 1,
    .n_request = 10000,
    .seed = 1,
    .step_ns = 1e8,
    .first_ns = 1e9,
    .token_ns = 1e8,
};
static int32_t policy, trace;

static const struct {
    const char *name;
    int32_t *value;
} numbers[] = {
    {"policy", &policy},                  /* enum sim_policy */
    {"trace", &trace},                    /* enum sim_trace */
    {"active", &params.limits.n_active},  /* texts at once, of a group */
    {"step", &params.limits.n_step},      /* most tokens of a step */
    {"cells", &params.limits.n_cell},     /* of a stage */
    {"ubatch", &params.machine.n_ubatch}, /* tokens of a micro-batch */
    {"stages", &params.machine.n_stage},  /* at most SIM_STAGES */
    {"groups", &params.n_group},          /* of texts, with a scheduler each */
    {"flight", &params.n_flight},         /* steps of a scheduler at once, at most SIM_STAGES */
    {"owners", &params.n_owner},          /* who send requests */
    {"requests", &params.n_request},      /* in all */
    {"seed", &params.seed},
};

static const struct {
    const char *name;
    double *value, scale;
} reals[] = {
    {"rate", &params.rate, 1},                   /* requests a second */
    {"heavy", &params.heavy, 1},                 /* part of them that owner 0 sends */
    {"step-ms", &params.step_ns, 1e6},           /* of a step that prompts may fill */
    {"late-ms", &params.late_ns, 1e6},           /* from which a first token is late */
    {"first-ms", &params.first_ns, 1e6},         /* bound to the first token */
    {"token-ms", &params.token_ns, 1e6},         /* bound between tokens */
    {"hop-us", &params.machine.hop_ns, 1e3},     /* between stages */
    {"cell-ns", &params.machine.law.cell_ns, 1}, /* struct sim_law */
    {"pair-ns", &params.machine.law.pair_ns, 1},
};

/* Reads points "tokens:ms,.."; false: they are none. */
static bool read_law(struct sim_law *law, const char *s)
{
    int used = 1;
    for (law->n_point = 0; law->n_point < SIM_POINTS && used; law->n_point++, s += used) {
        double n, ms;
        used = 0;
        if (sscanf(s, "%lf:%lf%n", &n, &ms, &used) < 2)
            return false;
        law->point[law->n_point].n = n, law->point[law->n_point].ns = ms * 1e6;
        used = s[used] == ',' ? used + 1 : 0;
    }
    return law->n_point > 1;
}

static bool read_option(const char *argument)
{
    const char *equal = strchr(argument, '=');
    size_t n = equal ? (size_t)(equal - argument) : 0;
    bool found = false;
    if (n == 3 && !strncmp(argument, "law", n))
        return read_law(&params.machine.law, equal + 1);
    for (size_t i = 0; n && i < sizeof numbers / sizeof *numbers; i++) {
        if (strlen(numbers[i].name) == n && !strncmp(argument, numbers[i].name, n))
            *numbers[i].value = (int32_t)atoi(equal + 1), found = true;
    }
    for (size_t i = 0; n && i < sizeof reals / sizeof *reals; i++) {
        if (strlen(reals[i].name) == n && !strncmp(argument, reals[i].name, n))
            *reals[i].value = atof(equal + 1) * reals[i].scale, found = true;
    }
    return found;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times to the first token (or between tokens, the mean of each request) of the requests of an
 * owner, -1: of all but the first; -2: of all. Returns how many; they are ascending. */
static int32_t times(const struct sim_run *r, bool between, int owner, double *time)
{
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_request; i++) {
        const struct sim_request *q = &r->request[i];
        bool wanted = owner == -2 || (owner == -1 ? q->owner > 0 : q->owner == (uint64_t)owner);
        if (wanted)
            time[n++] = between ? (q->last - q->first) / (q->n_token > 1 ? q->n_token - 1 : 1)
                                : q->first - q->arrival;
    }
    qsort(time, (size_t)n, sizeof *time, ascending);
    return n;
}

static void print_times(const struct sim_run *r, const char *name, bool between, int owner)
{
    double *time = malloc((size_t)r->n_request * sizeof *time);
    int32_t n = time ? times(r, between, owner, time) : 0;
    if (n)
        printf(", \"%s_p50_ms\": %.3f, \"%s_p99_ms\": %.3f, \"%s_most_ms\": %.3f", name,
               time[n / 2] / 1e6, name, time[(int64_t)n * 99 / 100] / 1e6, name, time[n - 1] / 1e6);
    free(time);
}

static void print_run(const struct sim_run *r)
{
    int32_t n_good = 0;
    int64_t n_token = 0, n_prompt = 0;
    double longest = 0;
    for (int32_t i = 0; i < r->n_request; i++) {
        const struct sim_request *q = &r->request[i];
        int32_t gaps = q->n_token > 1 ? q->n_token - 1 : 1;
        n_good += q->first - q->arrival <= params.first_ns &&
                  (q->last - q->first) / gaps <= params.token_ns;
        n_token += q->n_token, n_prompt += q->text.n_prompt;
        longest = q->longest > longest ? q->longest : longest;
    }
    double seconds = (r->end - r->request[0].arrival) / 1e9;
    double steps = (double)r->machine.n_step;
    printf("{\"rate\": %g, \"good\": %.5f, \"goodput\": %.4f, \"seconds\": %.2f, "
           "\"answer_tok_s\": %.1f, \"prompt_tok_s\": %.1f, \"busy\": %.4f, \"preempted\": %lld",
           params.rate, (double)n_good / r->n_request, n_good / seconds, seconds,
           (double)n_token / seconds, (double)n_prompt / seconds,
           r->machine.busy / 1e9 / seconds / r->machine.n_stage, (long long)r->n_preempted);
    printf(", \"steps\": %.0f, \"step_ms\": %.3f, \"step_tokens\": %.1f, \"host_us\": %.2f", steps,
           r->machine.busy / steps / 1e6, (double)r->machine.n_token / steps,
           (double)r->host_ns / steps / 1e3);
    printf(", \"gap_p50_ms\": %.3f, \"gap_p99_ms\": %.3f, \"gap_most_ms\": %.3f",
           sim_gap(r, 0.5) / 1e6, sim_gap(r, 0.99) / 1e6, longest / 1e6);
    print_times(r, "first", false, -2);
    print_times(r, "between", true, -2);
    print_times(r, "heavy_first", false, 0);
    print_times(r, "light_first", false, -1);
    printf("}\n");
}

int main(int argc, char **argv)
{
    struct sim_run run;
    for (int i = 1; i < argc; i++) {
        if (!read_option(argv[i])) {
            fprintf(stderr, "simulate: no such setting: %s\n", argv[i]);
            return 2;
        }
    }
    if (params.machine.law.n_point < 2 || params.machine.n_stage < 1 ||
        params.machine.n_stage > SIM_STAGES || params.n_group < 1 || params.n_flight > SIM_STAGES ||
        policy < 0 || policy >= SIM_N_POLICY || trace < 0 || trace >= SIM_N_TRACE ||
        params.n_request < 1) {
        fprintf(stderr, "simulate: law=, or a number that is out of range\n");
        return 2;
    }
    params.policy = (enum sim_policy)policy, params.trace = (enum sim_trace)trace;
    int rc = sim_run(&run, &params);
    if (rc)
        fprintf(stderr, "simulate: status %d\n", rc);
    else
        print_run(&run);
    sim_free(&run);
    return rc ? 1 : 0;
}
