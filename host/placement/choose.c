#include "placement/choose.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "engine/open.h"
#include "engine/vectors.h"
#include "gr/status.h"
#include "placement/measure.h"
#include "placement/search.h"
#include "placement/suggest.h"

/* Appends "0-10 on CUDA0, "; for threads that share layers "0-10 on CUDA0 to CUDA3, "; for
 * processes, or CPUs, "0-10 on CUDA0 of rank 0, ". */
static void append_range(const struct gr_choice *c, int32_t k, char *p, size_t n)
{
    const struct gr_rank_device *dev = gr_choice_first(c, k);
    const struct gr_rank_device *last = gr_choice_device(c, &c->layers, k, c->n_member - 1);
    char whose[40] = "";
    size_t at = strlen(p);
    if ((c->m->world || !dev->device) && last > dev)
        snprintf(whose, sizeof whose, " of ranks %d-%d", dev->rank, last->rank);
    else if (c->m->world || !dev->device)
        snprintf(whose, sizeof whose, " of rank %d", dev->rank);
    else if (last > dev)
        snprintf(whose, sizeof whose, " to %s", last->name);
    snprintf(p + at, n - at, "%d-%d on %s%s, ", c->cut[k], c->cut[k + 1] - 1, dev->name, whose);
}

/* Describes which layers are where, if there is more than one place; of many places only the first
 * few and the last. */
static void describe_places(const struct gr_choice *c, char *p, size_t n)
{
    enum { MOST = 4 };
    int32_t n_used = 0, i = 0;
    *p = 0;
    bool experts = c->place.n_cpu_experts && c->m->has_experts;
    if (c->n_place * c->n_member == 1 && !experts)
        return;
    for (int32_t k = 0; k < c->n_place; k++)
        n_used += c->cut[k] < c->cut[k + 1];
    snprintf(p, n, "layers ");
    if (c->cut[0])
        snprintf(p, n, "layers 0-%d on CPU, ", c->cut[0] - 1);
    for (int32_t k = 0; k < c->n_place; k++) {
        if (c->cut[k] == c->cut[k + 1])
            continue;
        i++;
        if (n_used > MOST && i == MOST)
            snprintf(p + strlen(p), n - strlen(p), ".. ");
        if (n_used <= MOST || i < MOST || i == n_used)
            append_range(c, k, p, n);
    }
    if (experts)
        snprintf(p + strlen(p), n - strlen(p), "experts of 0-%d on CPU, ",
                 c->place.n_cpu_experts - 1);
    p[strlen(p) - 2] = 0;
}

static void log_choice(const struct gr_choice *c, int32_t n_gpu)
{
    char a[16], b[16], others[32] = "", experts[48] = "";
    const struct gr_rank_device *dev = gr_choice_device(c, &c->taken, 0, 0);
    if (c->n_place * c->n_member > 1)
        snprintf(others, sizeof others, " and %d more", c->n_place * c->n_member - 1);
    if (c->n_cpu_experts && c->m->has_experts)
        snprintf(experts, sizeof experts, ", experts of the first %d on the CPU", c->n_cpu_experts);
    gr_log(GR_LOG_INFO, "-ngl auto: %d of %d layers on %s%s%s, %s of %s free", n_gpu,
           c->m->hp.n_layer + 1, dev->name, others, experts,
           gr_mib(a, gr_rank_device_needs(c, dev)), gr_mib(b, gr_rank_device_available(c, dev)));
}

/* Finds how many layers fit on GPUs beside the memory for offloading the others; without it when
 * that leaves no room for a layer. */
static int choose_most(struct gr_choice *c, struct gr_session_params *asked, int32_t *n_gpu)
{
    int32_t most = c->m->hp.n_layer + 1;
    int rc = gr_choice_most(c, most, n_gpu);
    if (rc || *n_gpu || asked->offload_from < 0)
        return rc;
    asked->offload_from = -1;
    c->has_costs = false;
    return gr_choice_most(c, most, n_gpu);
}

/* The same with experts on the CPU before whole layers: those of as few layers as let all layers be
 * on GPUs, otherwise all of them where that brings more layers there. */
static int choose_all(struct gr_choice *c, struct gr_session_params *asked, int32_t *n_gpu)
{
    int32_t all = c->m->hp.n_layer + 1, without, n_cpu;
    bool fits;
    int rc = choose_most(c, asked, n_gpu);
    if (rc || *n_gpu == all || !c->m->has_experts || c->m->n_cpu_experts >= 0)
        return rc;
    without = *n_gpu;
    rc = gr_choice_least_experts(c, all, true, &n_cpu);
    if (rc || n_cpu)
        return *n_gpu = all, rc;
    gr_choice_set_experts(c, all);
    rc = gr_choice_most(c, all, n_gpu);
    if (rc || *n_gpu > without)
        return rc;
    gr_choice_set_experts(c, 0);
    return gr_choice_try(c, *n_gpu = without, true, &fits);
}

static int decide(struct gr_choice *c, struct gr_session_params *asked)
{
    int32_t n = c->m->n_gpu_wanted;
    bool keeps_off = asked->deterministic && c->any_gpu && gr_vectors_whole(&c->m->hp, &c->full);
    bool automatic = n < 0 && c->any_gpu && !keeps_off, fits;
    if (keeps_off && (n > 0 || c->m->require_gpu))
        return gr_session_refuse_whole();
    if (keeps_off)
        n = 0;
    int rc = automatic ? choose_all(c, asked, &n) : gr_choice_try(c, n, false, &fits);
    if (rc)
        return rc;
    if (!automatic && !fits)
        return gr_choice_explain(c);
    if (c->m->require_gpu && gr_place_n_gpu(&c->place, c->m->hp.n_layer) == 0)
        return gr_fail(GR_E_DEVICE, "--require-gpu: not one layer fits on %s",
                       gr_choice_first(c, 0)->name);
    if (automatic)
        log_choice(c, n);
    return 0;
}

int gr_place_survey(struct gr_model *m, const struct gr_session_params *params,
                    const struct gr_placement *place, struct gr_vec *devices)
{
    int rc = 0;
    if (m->survey)
        return m->survey(m->survey_user, params, place, devices);
    for (int32_t i = 0; i < m->n_rank_model && !rc; i++)
        rc = gr_rank_devices_survey(m->rank_model[i], params, place, devices);
    return rc;
}

/* gr_survey_fn of a model. */
static int survey_all(void *user, const struct gr_session_params *params,
                      const struct gr_placement *place, struct gr_vec *devices)
{
    return gr_place_survey(user, params, place, devices);
}

/* Measures a session that offloads weights to its GPUs if that is requested and fits, otherwise
 * one that does not. */
static int add_offload(struct gr_choice *c, struct gr_session_params *asked, int32_t offload_from)
{
    bool fits;
    asked->offload_from = offload_from;
    int rc = gr_choice_measure(c, false, &fits);
    if (rc || fits)
        return rc;
    asked->offload_from = -1;
    return gr_choice_measure(c, false, &fits);
}

int gr_place_world(struct gr_placement *out, struct gr_model *m,
                   const struct gr_session_params *params, struct gr_vec *devices)
{
    struct gr_session_params asked = params ? *params : gr_session_params_default();
    struct gr_choice c = {.m = m, .params = &asked, .request = &m->split};
    if (m->n_gpu_wanted >= 0) /* requested layers go before memory for offloading others */
        asked.offload_from = -1;
    c.survey = survey_all, c.user = m;
    gr_choice_set_experts(&c, GR_MAX(m->n_cpu_experts, 0));
    int rc = gr_choice_begin(&c);
    if (!rc)
        rc = decide(&c, &asked);
    if (!rc && devices && params && asked.offload_from != params->offload_from)
        rc = add_offload(&c, &asked, params->offload_from);
    *out = c.place;
    if (!rc)
        describe_places(&c, m->where, sizeof m->where);
    if (devices) {
        *devices = c.taken;
        c.taken = (struct gr_vec){0};
    }
    gr_choice_fini(&c);
    return rc;
}
