/* A session over several devices: where its layers, caches and constants are. */
#include "engine/session_devices.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "engine/memory.h"
#include "engine/session.h"
#include "gr/status.h"

#define ALIGN 256 /* alignment of every tensor in device memory, bytes */

/* ---- options ---- */

struct gr_device_opt gr_session_device_opt(const struct gr_session *s)
{
    const struct gr_session_params *p = &s->params;
    return (struct gr_device_opt){.no_graphs = p->no_graphs,
                                  .nvtx = (int)p->nvtx,
                                  .matmul = (enum gr_device_matmul)p->matmul,
                                  .no_pdl = p->no_pdl,
                                  .no_sm90 = p->no_sm90,
                                  .no_fuse = p->no_fuse,
                                  .check_counters = p->check_counters};
}

/* ---- caches ---- */

int32_t gr_tensor_device(const struct gr_session *s, const struct gr_ten *t)
{
    size_t n = (size_t)s->rank_model->hp.n_layer, i = (size_t)(t - s->tensors);
    if (s->env.stage && s->env.stage[i % n] != s->env.own_stage)
        return -1;
    return i / n >= GR_T_CONV ? s->env.device[i % n] : s->cache_device[i % n];
}

static uint64_t padded(const struct gr_ten *t)
{
    return GR_PAD((uint64_t)(t->rows * t->row_bytes), (uint64_t)ALIGN);
}

/* Returns whether a layer uses the keys and values of an earlier layer. */
static bool is_shared(const struct gr_hparams *hp, size_t il)
{
    int32_t of = hp->attn.kv_of[il];
    return of >= 0 && of < (int32_t)il;
}

void gr_session_place(struct gr_session *s, const struct gr_weights *weights)
{
    const struct gr_hparams *hp = &s->rank_model->hp;
    const struct gr_ten *t = s->tensors;
    size_t n = (size_t)hp->n_layer;
    s->env.weight = weights->weight, s->env.bias = weights->bias,
    s->env.host = s->rank_model->weight;
    s->env.lora = weights->lora, s->env.n_lora = weights->n_lora;
    s->env.lora_scale = s->params.adapter_scale;
    s->env.scale = s->rank_model->model->scale;
    s->env.device = weights->place.layer, s->env.cache_device = s->cache_device;
    s->env.embd_device = weights->place.layer[0];
    s->env.apart = weights->apart;
    s->env.stage = weights->place.n_stage > 1 ? weights->place.stage : NULL;
    s->env.own_stage = s->rank_model->stage, s->env.n_stage = weights->place.n_stage;
    s->env.k_cache = t + GR_T_K * n, s->env.v_cache = t + GR_T_V * n;
    s->env.k_far = t + GR_T_K_FAR * n;
    s->env.conv_state = t + GR_T_CONV * n, s->env.ssm_state = t + GR_T_SSM * n;
    for (size_t il = 0; il < n; il++)
        s->cache_device[il] = s->params.no_kv_offload ? 0
                              : is_shared(hp, il)     ? s->cache_device[hp->attn.kv_of[il]]
                                                      : weights->place.layer[il];
    for (int32_t d = 0; d < GR_MAX_DEVICE; d++)
        s->device[d].has.cache = 0;
    for (size_t i = 0; i < n * GR_N_CACHE_TENSOR; i++) {
        int32_t d = gr_tensor_device(s, &t[i]);
        if (d >= 0 && !is_shared(hp, i % n))
            s->device[d].has.cache += padded(&t[i]);
    }
}

void gr_session_cache_by_layer(const struct gr_session *s, int32_t device,
                               struct gr_layer_cost *cost)
{
    size_t n = (size_t)s->rank_model->hp.n_layer;
    for (size_t il = 0; il < n; il++)
        cost[il].cache = 0;
    for (size_t i = 0; i < n * GR_N_CACHE_TENSOR; i++)
        if (!is_shared(&s->rank_model->hp, i % n) &&
            (!device || i / n >= GR_T_CONV || !s->params.no_kv_offload))
            cost[i % n].cache += padded(&s->tensors[i]);
}

/* Gives layers that attend to another layer's keys and values the same tensors. */
static void share_tensors(struct gr_session *s)
{
    size_t n = (size_t)s->rank_model->hp.n_layer;
    for (size_t i = 0; i < n * GR_N_CACHE_TENSOR; i++)
        if (is_shared(&s->rank_model->hp, i % n))
            s->tensors[i] = s->tensors[i / n * n + (size_t)s->rank_model->hp.attn.kv_of[i % n]];
}

static int no_memory(const struct gr_session *s, int32_t d)
{
    double mib = gr_to_mib(s->device[d].has.cache);
    if (gr_error_status() == GR_E_DEVICE)
        return GR_E_DEVICE;
    if (d == 0)
        return gr_fail(
            GR_E_NOMEM_HOST,
            "not enough memory for a KV cache of %u cells: %.2f MiB needed; a smaller -c, "
            "or -ctk q8_0 -ctv q8_0, takes less",
            s->params.n_ctx, mib);
    return gr_fail(
        GR_E_NOMEM_DEV,
        "%s: not enough memory for a KV cache of %u cells: %.2f MiB needed; a smaller -c, "
        "-ctk q8_0 -ctv q8_0 or a smaller -ngl takes less",
        s->device[d].name, s->params.n_ctx, mib);
}

static int alloc_caches(struct gr_session *s)
{
    size_t n = (size_t)s->rank_model->hp.n_layer;
    char *at[GR_MAX_DEVICE] = {0};
    for (int32_t d = 0; d < s->n_device; d++) {
        struct gr_session_device *v = &s->device[d];
        if (!v->has.cache)
            continue;
        at[d] = v->cache = v->backend->api->alloc(v->backend, v->has.cache);
        if (!v->cache)
            return no_memory(s, d);
    }
    for (size_t i = 0; i < n * GR_N_CACHE_TENSOR; i++) {
        struct gr_ten *t = &s->tensors[i];
        int32_t d = gr_tensor_device(s, t);
        if (d < 0 || !gr_ten_is(t) || is_shared(&s->rank_model->hp, i % n))
            continue;
        t->data = at[d];
        at[d] += padded(t);
    }
    share_tensors(s);
    return 0;
}

/* Sizes of the caches' part on one device. */
static void caches_on(const struct gr_session *s, int32_t device, struct gr_memory *part)
{
    const struct gr_hparams *hp = &s->rank_model->hp;
    size_t n = (size_t)hp->n_layer, state = hp->ssm.n_conv_state ? GR_T_CONV : GR_T_SSM;
    *part = s->memory;
    memset(part->bytes, 0, sizeof part->bytes);
    memset(part->n_layer, 0, sizeof part->n_layer);
    part->state_bytes = 0, part->n_recurrent = 0;
    for (size_t i = 0; i < n * GR_N_CACHE_TENSOR; i++) {
        const struct gr_ten *t = &s->tensors[i];
        size_t which = i / n, kind = hp->swa.layer[i % n] ? GR_CACHE_SWA : GR_CACHE_FULL;
        uint64_t bytes = (uint64_t)(t->rows * t->row_bytes);
        if (!gr_ten_is(t) || is_shared(hp, i % n) || gr_tensor_device(s, t) != device)
            continue;
        if (which < GR_T_CONV)
            part->bytes[kind][which] += bytes, part->n_layer[kind] += which == GR_T_K;
        else
            part->state_bytes += bytes, part->n_recurrent += which == state;
    }
}

void gr_session_log_caches(const struct gr_session *s)
{
    struct gr_memory m;
    char where[48];
    const struct gr_rank_model *rm = s->rank_model;
    bool alone = rm->placed.place.n_stage * rm->n_shard == 1;
    for (int32_t d = 0; d < s->n_device; d++) {
        int n = alone ? 0 : snprintf(where, sizeof where, "rank %d ", rm->rank);
        snprintf(where + n, sizeof where - (size_t)n, "%s", s->device[d].name);
        caches_on(s, d, &m);
        gr_memory_log_part(&m, where);
    }
    if (rm->rank == 0 && gr_memory_plan(&m, &s->model->hp, &s->params) == 0)
        gr_memory_log(&m);
}

/* ---- constants ---- */

/* Copies the constants, which are made on the CPU (open.c), to every other device. */
static int copy_constants(struct gr_session *s)
{
    const struct gr_session_device *host = &s->device[0];
    int rc = 0;
    for (int32_t d = 1; d < s->n_device && host->has.constants && !rc; d++) {
        struct gr_session_device *v = &s->device[d];
        v->has.constants = host->has.constants;
        v->memory.constants = v->backend->api->alloc(v->backend, v->has.constants);
        rc = v->memory.constants ? v->backend->api->upload(v->backend, v->memory.constants,
                                                           host->memory.constants, v->has.constants)
                                 : gr_error_status();
    }
    return rc;
}

int gr_session_alloc(struct gr_session *s)
{
    int rc = alloc_caches(s);
    return rc ? rc : copy_constants(s);
}

/* ---- all devices at once ---- */

int gr_session_wait_received(struct gr_session *s)
{
    if (!s->receiving || !s->ranks)
        return 0;
    s->receiving = false;
    return s->ranks->arrived(s);
}

int gr_session_uploaded(struct gr_session *s, int32_t except)
{
    int rc = gr_session_wait_received(s);
    for (int32_t d = 1; d < s->n_device; d++) {
        struct gr_session_device *v = &s->device[d];
        if (!v->pending || d == except)
            continue;
        int one = v->backend->api->uploaded(v->backend);
        v->pending = false;
        rc = rc ? rc : one;
    }
    return rc;
}

int gr_session_sync(struct gr_session *s)
{
    int rc = gr_session_wait_received(s);
    for (int32_t d = 1; d < s->n_device; d++) {
        struct gr_session_device *v = &s->device[d];
        int one = v->busy ? v->backend->api->sync(v->backend) : 0;
        v->busy = v->pending = false;
        rc = rc ? rc : one;
    }
    return rc;
}

void gr_session_cancellable(struct gr_session *s, bool yes)
{
    yes = yes && !s->rank_model->tp_group; /* other ranks take part in the plan: it must finish */
    for (int32_t d = 0; d < s->n_device; d++)
        s->device[d].backend->api->set_cancel(s->device[d].backend, yes ? &s->cancel : NULL);
}
