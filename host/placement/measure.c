#include "placement/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/offload.h"
#include "engine/open.h"
#include "engine/plans.h"
#include "engine/session_devices.h"
#include "gr/status.h"

/* ---- free memory ---- */

/* Adds the bytes of a line "name:   123 kB". */
static void add_line(const char *line, const char *name, uint64_t *bytes)
{
    size_t n = strlen(name);
    if (!strncmp(line, name, n))
        *bytes += (uint64_t)strtoull(line + n, NULL, 10) << 10;
}

/* Sets the host's memory: available without swapping, and in total. 0: not known. */
static void add_memory(struct gr_rank_device *dev)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    while (f && fgets(line, sizeof line, f)) {
        add_line(line, "MemTotal:", &dev->total_bytes);
        add_line(line, "MemAvailable:", &dev->free_bytes);
    }
    if (f)
        fclose(f);
}

static void set_unit(struct gr_rank_device *dev, const char *where)
{
    char host[64] = "";
    (void)gethostname(host, sizeof host - 1);
    snprintf(dev->unit, sizeof dev->unit, "%s/%.60s", host, where);
}

static struct gr_rank_device *add_rank_device(const struct gr_rank_model *rm, int32_t device,
                                              struct gr_vec *devices)
{
    struct gr_rank_device *dev = gr_vec_push(devices, sizeof *dev);
    if (dev)
        dev->rank = rm->rank, dev->device = device;
    return dev;
}

static int add_host(const struct gr_rank_model *rm, struct gr_vec *devices)
{
    struct gr_rank_device *dev = add_rank_device(rm, 0, devices);
    if (!dev)
        return GR_E_NOMEM_HOST;
    add_memory(dev);
    snprintf(dev->name, sizeof dev->name, "CPU");
    set_unit(dev, "CPU");
    return 0;
}

/* Adds a GPU, with its memory queried anew: contexts and other processes take their part. */
static int add_device(struct gr_rank_model *rm, int32_t d, struct gr_vec *devices)
{
    struct gr_device_ref *f = &rm->devices.found[d - 1];
    struct gr_device_info *info = &f->info;
    int rc = f->kind->info(f->index, info);
    if (!rc && info->unusable) /* it worked when the model was opened */
        rc = gr_fail(GR_E_DEVICE, "%s: %s", info->name, info->unusable);
    if (rc)
        return rc;
    struct gr_rank_device *dev = add_rank_device(rm, d, devices);
    if (!dev)
        return GR_E_NOMEM_HOST;
    dev->free_bytes = info->free_bytes, dev->total_bytes = info->total_bytes;
    dev->cc = info->cc, dev->n_sm = info->n_sm;
    snprintf(dev->name, sizeof dev->name, "%s", info->name);
    snprintf(dev->description, sizeof dev->description, "%s", info->description);
    set_unit(dev, *info->bus_id ? info->bus_id : info->name);
    return 0;
}

/* ---- memory of a placement ---- */

static int measure(struct gr_session *s, const struct gr_weights *w,
                   struct gr_memory_need need[GR_MAX_DEVICE])
{
    struct gr_backend *backend[GR_MAX_DEVICE];
    int32_t n_open = s->n_device;
    memcpy(backend, s->rank_model->backend, sizeof backend);
    backend[0] = s->device[0].backend;
    gr_session_place(s, w);
    s->n_device = w->place.n_device;
    memset(need, 0, GR_MAX_DEVICE * sizeof *need);
    for (int32_t d = 0; d < s->n_device; d++) {
        need[d].cache = s->device[d].has.cache;
        need[d].constants = s->device[0].has.constants;
    }
    int rc = gr_offload_begin(s, w);
    if (!rc)
        rc = gr_plan_measure(s, backend, need);
    s->n_device = n_open;
    return rc;
}

static int measure_placement(struct gr_session *s, const struct gr_placement *place,
                             struct gr_rank_device *dev)
{
    struct gr_memory_need need[GR_MAX_DEVICE];
    struct gr_weights w = {0};
    int rc = gr_weights_describe(&w, s->rank_model, place);
    if (!rc)
        rc = measure(s, &w, need);
    for (int32_t d = 0; d <= s->rank_model->devices.n && !rc; d++) {
        dev[d].weights = w.bytes[d];
        dev[d].cache = need[d].cache;
        dev[d].work = gr_memory_need_work(&need[d]);
    }
    gr_weights_fini(&w, s->rank_model);
    return rc;
}

/* ---- memory of single layers ---- */

/* Returns whether two layers, neither first nor last, run the same operations on equal shapes. */
static bool is_alike(const struct gr_rank_model *rm, const struct gr_weights *w, int32_t a,
                     int32_t b)
{
    const struct gr_hparams *hp = &rm->hp;
    const struct gr_ten *pa = w->weight + (size_t)(a + 1) * GR_N_SLOT;
    const struct gr_ten *pb = w->weight + (size_t)(b + 1) * GR_N_SLOT;
    const struct gr_ten *wa = rm->weight + (size_t)(a + 1) * GR_N_SLOT;
    const struct gr_ten *wb = rm->weight + (size_t)(b + 1) * GR_N_SLOT;
    const struct gr_ten *ba = rm->bias + (size_t)(a + 1) * GR_N_SLOT;
    const struct gr_ten *bb = rm->bias + (size_t)(b + 1) * GR_N_SLOT;
    if (a == 0 || b >= hp->n_layer - 1)
        return false;
    for (int32_t k = 0; k < rm->model->n_lora; k++) { /* B's columns are the adapter's rank */
        const struct gr_ten *la = rm->lora[k].b + (size_t)(a + 1) * GR_N_SLOT;
        const struct gr_ten *lb = rm->lora[k].b + (size_t)(b + 1) * GR_N_SLOT;
        for (int i = 0; i < GR_N_SLOT; i++)
            if (la[i].cols != lb[i].cols || la[i].dtype != lb[i].dtype)
                return false;
    }
    for (int i = 0; i < GR_N_SLOT; i++)
        if (wa[i].batch != wb[i].batch || wa[i].rows != wb[i].rows || wa[i].cols != wb[i].cols ||
            wa[i].dtype != wb[i].dtype || pa[i].home != pb[i].home ||
            gr_ten_is(&ba[i]) != gr_ten_is(&bb[i]))
            return false;
    return hp->attn.n_head[a] == hp->attn.n_head[b] &&
           hp->attn.n_head_kv[a] == hp->attn.n_head_kv[b] && hp->ff.n_ff[a] == hp->ff.n_ff[b] &&
           hp->ssm.layer[a] == hp->ssm.layer[b] && hp->swa.layer[a] == hp->swa.layer[b] &&
           hp->rope.none[a] == hp->rope.none[b] &&
           (hp->attn.kv_of[a] == a) == (hp->attn.kv_of[b] == b) &&
           (hp->attn.kv_of[a] < 0) == (hp->attn.kv_of[b] < 0);
}

/* Measures layer il alone, as the second of three stages. */
static int measure_layer(struct gr_session *s, struct gr_weights *w, int32_t d, int32_t il,
                         struct gr_rank_device *dev)
{
    struct gr_memory_need need[GR_MAX_DEVICE];
    int32_t n = s->rank_model->hp.n_layer;
    for (int32_t i = 0; i <= n; i++)
        w->place.stage[i] = (uint8_t)(i < il ? 0 : i == il ? 1 : 2);
    w->place.n_stage = il < n ? 3 : 2;
    int rc = measure(s, w, need);
    dev->layer[il].arena = need[d].arena, dev->layer[il].scratch = need[d].scratch;
    dev->fixed = GR_MAX(dev->fixed, need[d].step + need[d].constants);
    return rc;
}

static int measure_layers_work(struct gr_session *s, struct gr_weights *w, int32_t d,
                               struct gr_rank_device *dev)
{
    int32_t n = s->rank_model->hp.n_layer;
    int rc = 0;
    for (int32_t il = 0; il <= n && !rc; il++) {
        int32_t same = 0;
        while (same < il && !(il < n && is_alike(s->rank_model, w, same, il)))
            same++;
        if (same == il)
            rc = measure_layer(s, w, d, il, dev);
        dev->layer[il].arena = dev->layer[same].arena;
        dev->layer[il].scratch = dev->layer[same].scratch;
    }
    return rc;
}

static int measure_layers(struct gr_session *s, int32_t d, int32_t n_cpu_experts,
                          struct gr_rank_device *dev)
{
    struct gr_placement all = {.n_stage = 3, .n_cpu_experts = n_cpu_experts, .trial = true};
    struct gr_weights w = {0};
    memset(all.layer, d, sizeof all.layer);
    memset(all.stage, 1, sizeof all.stage);
    gr_weights_by_layer(s->rank_model, d, n_cpu_experts, dev->layer, &dev->tied);
    gr_session_cache_by_layer(s, d, dev->layer);
    int rc = gr_weights_describe(&w, s->rank_model, &all);
    if (!rc)
        rc = measure_layers_work(s, &w, d, dev);
    gr_weights_fini(&w, s->rank_model);
    return rc;
}

/* Measures single layers on each device that can have layers, with a copy of the rank model as the
 * second of three stages, since stages are not assigned yet. */
static int survey_layers(const struct gr_rank_model *rm, const struct gr_session_params *params,
                         int32_t n_cpu_experts, struct gr_rank_device *dev)
{
    struct gr_rank_model *middle = gr_calloc(1, sizeof *middle);
    struct gr_session *s = NULL;
    if (!middle)
        return GR_E_NOMEM_HOST;
    *middle = *rm;
    middle->stage = 1, middle->n_stage = 3;
    int rc = gr_session_begin(&s, middle, params, true);
    for (int32_t d = rm->devices.n > 0; d <= rm->devices.n && !rc; d++)
        rc = measure_layers(s, d, n_cpu_experts, &dev[d]);
    gr_session_close(&s);
    gr_free(middle);
    return rc;
}

static int survey_placement(struct gr_rank_model *rm, const struct gr_session_params *params,
                            const struct gr_placement *place, struct gr_rank_device *dev)
{
    struct gr_session *s = NULL;
    int rc = gr_session_begin(&s, rm, params, true);
    if (!rc)
        rc = measure_placement(s, place, dev);
    gr_session_close(&s);
    return rc;
}

int gr_rank_devices_survey(struct gr_rank_model *rm, const struct gr_session_params *params,
                           const struct gr_placement *place, struct gr_vec *devices)
{
    size_t first = devices->n;
    int rc = gr_rank_model_open_devices(rm);
    if (!rc)
        rc = add_host(rm, devices);
    for (int32_t d = 1; d <= rm->devices.n && !rc; d++)
        rc = add_device(rm, d, devices);
    struct gr_rank_device *dev = (struct gr_rank_device *)devices->data + first;
    if (rc || !params)
        return rc;
    return place && place->n_stage
               ? survey_placement(rm, params, place, dev)
               : survey_layers(rm, params, place ? place->n_cpu_experts : 0, dev);
}
