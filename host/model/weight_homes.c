#include "model/weight_homes.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/checked.h"
#include "base/log.h"
#include "base/regex.h"
#include "gr/status.h"
#include "model/model.h"

/* ---- slots ---- */

enum gr_slot gr_weight_leader(int slot)
{
    if (slot == GR_W_POS_EMBD)
        return GR_W_TOKEN_EMBD;
    for (int i = 0; i < GR_N_SLOT; i++)
        if (gr_is_expert(i) && (int)gr_scale_slot((enum gr_slot)i) == slot)
            return (enum gr_slot)i;
    return (enum gr_slot)slot;
}

bool gr_is_expert(int slot)
{
    switch (slot) {
    case GR_W_FFN_GATE_EXPS:
    case GR_W_FFN_UP_EXPS:
    case GR_W_FFN_DOWN_EXPS:
    case GR_W_FFN_GATE_UP_EXPS:
    case GR_W_FFN_GATE_ADJ:
    case GR_W_FFN_UP_ADJ:
    case GR_W_FFN_DOWN_ADJ:
        return true;
    default:
        return false;
    }
}

/* ---- reading ---- */

bool gr_weight_homes_name_gpu(const struct gr_model_params *p)
{
    for (int32_t i = 0; i < p->n_weight_home && p->weight_homes; i++)
        if (p->weight_homes[i].device && strcasecmp(p->weight_homes[i].device, "CPU") != 0)
            return true;
    return false;
}

/* Returns whether a device of this name exists here. */
static bool is_device(const char *name)
{
    struct gr_device d;
    for (int32_t i = 0, n = gr_device_count(NULL); i < n; i++)
        if (!gr_device_get(i, &d) && !strcasecmp(d.name, name))
            return true;
    return !strcasecmp(name, "CPU");
}

/* Finds or adds a name; *home: 1 + its index. */
static int home_named(struct gr_model *m, const char *name, const char *what, uint8_t *home)
{
    for (int32_t i = 0; i < m->homes.n_name; i++)
        if (!strcasecmp(m->homes.name[i], name))
            return *home = (uint8_t)(i + 1), 0;
    if (!is_device(name))
        return gr_fail(GR_E_DEVICE,
                       "%s: there is no device %s; CPU, or a GPU that gpurun devices lists", what,
                       gr_quote(name, strlen(name)));
    if (m->homes.n_name == GR_MAX_DEVICE)
        return gr_fail(GR_E_INVALID, "%s: more than %d devices", what, GR_MAX_DEVICE);
    snprintf(m->homes.name[m->homes.n_name++], sizeof m->homes.name[0], "%s", name);
    return *home = (uint8_t)m->homes.n_name, 0;
}

static bool matches(const struct gr_model *m, const struct gr_regex *regex, int32_t il, int slot)
{
    char name[96];
    gr_slot_name((enum gr_slot)slot, il < 0 ? il : gr_file_layer(&m->hp, il), false, name,
                 sizeof name);
    return gr_regex_occurs(regex, name, strlen(name));
}

/* Gives the home to weights without one whose names match. Returns how many names do. */
static int32_t give(struct gr_model *m, const struct gr_regex *regex, uint8_t home)
{
    int32_t n = 0;
    for (size_t i = 0; i < (size_t)(m->hp.n_layer + 1) * GR_N_SLOT; i++) {
        int32_t il = (int32_t)(i / GR_N_SLOT) - 1;
        if (!gr_ten_is(&m->weight[i]) || !matches(m, regex, il, (int)(i % GR_N_SLOT)))
            continue;
        n++;
        m->homes.of[i] = m->homes.of[i] ? m->homes.of[i] : home;
    }
    return n;
}

/* Appends to what all ranks must agree on. */
static int append(struct gr_model *m, const char *text, const char *end)
{
    int rc = gr_vec_append(&m->homes.text, text, strlen(text), 1);
    return rc ? rc : gr_vec_append(&m->homes.text, end, strlen(end), 1);
}

static int read_one(struct gr_model *m, const struct gr_weight_home *h)
{
    char what[288];
    uint8_t home = 0;
    struct gr_regex *regex;
    if (!h->pattern || !h->device)
        return gr_fail(GR_E_INVALID, "weights apart: a pattern and a device expected");
    snprintf(what, sizeof what, "weights %s on %.16s", gr_quote(h->pattern, strlen(h->pattern)),
             h->device);
    int rc = gr_regex_new(&regex, h->pattern, strlen(h->pattern), what);
    if (!rc)
        rc = home_named(m, h->device, what, &home);
    if (!rc && !give(m, regex, home))
        gr_log(GR_LOG_WARN,
               "%s: the regular expression occurs in no weight's name; gpurun inspect lists them",
               what);
    gr_regex_free(&regex);
    if (!rc)
        rc = append(m, h->pattern, "=");
    return rc ? rc : append(m, m->homes.name[home - 1], "\n");
}

int gr_weight_homes_read(struct gr_model *m, const struct gr_model_params *p)
{
    int32_t n = p->n_weight_home;
    int rc = 0;
    m->n_cpu_experts = p->n_cpu_experts;
    for (size_t i = 0; i < (size_t)(m->hp.n_layer + 1) * GR_N_SLOT; i++)
        m->has_experts |= gr_ten_is(&m->weight[i]) && gr_is_expert((int)(i % GR_N_SLOT));
    if (m->n_cpu_experts > 0 && !m->has_experts)
        gr_log(GR_LOG_WARN, "experts on the CPU: the model has none");
    if (n < 0 || n > GR_MAX_WEIGHT_HOME || (n && !p->weight_homes))
        return gr_fail(GR_E_INVALID, "%d patterns of weights: 0 to %d are possible", n,
                       GR_MAX_WEIGHT_HOME);
    if (!n)
        return 0;
    m->homes.of = gr_calloc((size_t)(m->hp.n_layer + 1) * GR_N_SLOT, sizeof *m->homes.of);
    if (!m->homes.of)
        return GR_E_NOMEM_HOST;
    for (int32_t i = 0; i < n && !rc; i++)
        rc = read_one(m, &p->weight_homes[i]);
    return rc;
}

void gr_weight_homes_free(struct gr_model *m)
{
    gr_free(m->homes.of);
    gr_vec_fini(&m->homes.text);
}

bool gr_weight_homes_any(const struct gr_model *m, int32_t n_cpu_experts)
{
    return m->homes.of || (m->has_experts && n_cpu_experts > 0);
}

/* ---- a rank's devices ---- */

static int32_t device_named(const struct gr_rank_model *rm, const char *name)
{
    for (int32_t d = 1; d <= rm->devices.n; d++)
        if (!strcasecmp(rm->devices.found[d - 1].info.name, name))
            return d;
    return strcasecmp(name, "CPU") ? GR_HOME_MISSING : 0;
}

int32_t gr_weight_home(const struct gr_rank_model *rm, int32_t il, int slot, int32_t n_cpu_experts)
{
    const struct gr_model *m = rm->model;
    int leader = (int)gr_weight_leader(slot);
    uint8_t home = m->homes.of ? m->homes.of[(size_t)(il + 1) * GR_N_SLOT + (size_t)leader] : 0;
    if (home)
        return device_named(rm, m->homes.name[home - 1]);
    return il >= 0 && il < n_cpu_experts && gr_is_expert(leader) ? 0 : GR_HOME_LAYER;
}

int gr_weight_home_missing(const struct gr_rank_model *rm, int32_t il, int slot)
{
    const struct gr_model *m = rm->model;
    size_t at = (size_t)(il + 1) * GR_N_SLOT + (size_t)gr_weight_leader(slot);
    char name[96];
    return gr_fail(GR_E_DEVICE,
                   "weight %s: %s is none of the devices of rank %d, which has the layer; CPU%s%s, "
                   "or --ranks 1 and -sm layer with a -dev that has it",
                   gr_slot_name((enum gr_slot)slot, il < 0 ? il : gr_file_layer(&m->hp, il), false,
                                name, sizeof name),
                   m->homes.name[m->homes.of[at] - 1], rm->rank, rm->devices.n ? ", " : "",
                   rm->devices.n ? rm->devices.found[0].info.name : "");
}
