#include "model/place.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "model/model.h"
#include "model/weight_homes.h"

int32_t gr_place_n_gpu(const struct gr_placement *p, int32_t n_layer)
{
    int32_t n = 0;
    for (int32_t il = 0; il <= n_layer; il++)
        n += p->layer[il] > 0;
    return n;
}

bool gr_place_may_cut(const struct gr_hparams *hp, int32_t il)
{
    for (int32_t i = il; i < hp->n_layer; i++)
        if (hp->attn.kv_of[i] >= 0 && hp->attn.kv_of[i] < il)
            return false;
    return true;
}

/* ---- weights ---- */

#define ELSEWHERE (-1)

/* A pass over all weights. */
struct pass {
    struct gr_weights *placed;
    const struct gr_placement *place;
    const struct gr_rank_model *rm;
    bool matrix[GR_N_SLOT];
    int32_t n_cpu_experts;
    uint64_t used[GR_MAX_DEVICE];
    struct gr_progress *told; /* progress of the upload, or NULL */
};

/* Finds the slots of matrices: weights of two or more dimensions, except small ones, which are f32
 * rows on every device. */
static void find_matrices(struct pass *w)
{
    const struct gr_arch *arch = w->rm->model->arch;
    for (int i = 0; i < arch->n_spec; i++) {
        const struct gr_tensor_spec *s = &arch->spec[i];
        w->matrix[s->slot] = s->dim[1] != GR_D_NONE && !(s->flags & GR_AS_F32);
    }
    w->matrix[GR_W_OUTPUT] = true;
}

/* The layer that a weight is used with; n_layer: the output. Tables looked up by tokens belong to
 * the first layer, sinks to the layer that has the keys. */
static int32_t layer_of(const struct gr_hparams *hp, int32_t il, int slot)
{
    switch (slot) {
    case GR_W_TOKEN_EMBD:
    case GR_W_TOKEN_EMBD_NORM:
    case GR_W_TOKEN_TYPES:
    case GR_W_POS_EMBD:
        return 0;
    case GR_W_ATTN_SINKS:
        return il >= 0 && hp->attn.kv_of[il] >= 0 ? hp->attn.kv_of[il] : GR_MAX(il, 0);
    default:
        return il < 0 ? hp->n_layer : il;
    }
}

/* Returns whether a weight stays on the host: divisors of rope frequencies, read by every host. */
static bool is_on_host(int slot)
{
    return slot == GR_W_ROPE_FREQS || slot == GR_W_ROPE_LONG || slot == GR_W_ROPE_SHORT;
}

/* The device of a weight that is not with its layer, otherwise GR_HOME_LAYER. */
static int32_t home_of(const struct pass *w, int32_t il, int slot)
{
    return w->matrix[gr_weight_leader(slot)] ? gr_weight_home(w->rm, il, slot, w->n_cpu_experts)
                                             : GR_HOME_LAYER;
}

/* The device on which a weight is used; ELSEWHERE if in another stage. *apart: whether its layer is
 * on another one. */
static int device_of(const struct pass *w, int32_t il, int slot, bool *apart)
{
    const struct gr_placement *p = w->place;
    *apart = false;
    if (is_on_host(slot))
        return 0;
    int32_t at = layer_of(&w->rm->hp, il, slot), home = home_of(w, il, slot);
    if (p->stage[at] != w->rm->stage)
        return ELSEWHERE;
    *apart = home >= 0 && home != p->layer[at];
    return *apart ? home : p->layer[at];
}

static uint64_t bytes_on(const struct pass *w, const struct gr_ten *host, bool matrix, int device)
{
    struct gr_backend *b = w->rm->backend[device];
    return device ? b->api->weight_bytes(b, host, matrix)
                  : (uint64_t)(host->batch * host->rows) *
                        gr_row_bytes(host->dtype, (uint64_t)host->cols);
}

static int place_one(struct pass *w, const struct gr_ten *host, bool matrix, int device, bool apart,
                     struct gr_ten *out)
{
    *out = *host;
    if (!gr_ten_is(host) || device == ELSEWHERE)
        return 0;
    out->home = apart ? (uint16_t)(device + 1) : 0;
    w->placed->apart |= apart;
    w->placed->place.n_device = GR_MAX(w->placed->place.n_device, device + 1);
    uint64_t at = w->used[device];
    if (!gr_add(&w->used[device], at, bytes_on(w, host, matrix, device)))
        return gr_fail(GR_E_TOO_LARGE, "the weights are too large");
    struct gr_backend *b = w->rm->backend[device];
    char *memory = w->placed->memory[device];
    if (!device)
        return 0;
    int rc = b->api->weight_upload(b, host, matrix, memory ? memory + at : NULL, out);
    out->home = apart ? (uint16_t)(device + 1) : 0;
    return rc || !w->told ? rc : gr_progress_add(w->told, w->used[device] - at);
}

/* Returns whether the weight is an output matrix that is also that of the embeddings. */
static bool is_tied(const struct gr_ten *weight, int32_t il, int slot)
{
    return il < 0 && slot == GR_W_OUTPUT &&
           weight[GR_W_OUTPUT].data == weight[GR_W_TOKEN_EMBD].data &&
           weight[GR_W_OUTPUT].rows == weight[GR_W_TOKEN_EMBD].rows;
}

/* Places an adapter's matrices for a weight. */
static int place_pair(struct pass *w, const struct gr_lora *host, struct gr_lora *out, size_t at,
                      int device, bool apart)
{
    int rc = place_one(w, &host->a[at], true, device, apart, &out->a[at]);
    out->alpha = host->alpha;
    return rc ? rc : place_one(w, &host->b[at], true, device, apart, &out->b[at]);
}

static int place_row(struct pass *w, int32_t il)
{
    size_t row = (size_t)(il + 1) * GR_N_SLOT;
    const struct gr_ten *weight = w->rm->weight + row, *bias = w->rm->bias + row;
    struct gr_ten *out = w->placed->weight + row;
    int rc = 0;
    for (int slot = 0; slot < GR_N_SLOT && !rc; slot++) {
        bool apart, embd_apart;
        int device = device_of(w, il, slot, &apart);
        bool missing =
            !w->place->trial && device != ELSEWHERE && home_of(w, il, slot) == GR_HOME_MISSING;
        if (missing && gr_ten_is(&weight[slot]))
            return gr_weight_home_missing(w->rm, il, slot);
        if (is_tied(weight, il, slot) && device == device_of(w, il, GR_W_TOKEN_EMBD, &embd_apart)) {
            out[slot] = out[GR_W_TOKEN_EMBD];
            out[slot].home = apart ? (uint16_t)(device + 1) : 0;
            w->placed->apart |= apart;
        } else {
            rc = place_one(w, &weight[slot], w->matrix[slot], device, apart, &out[slot]);
        }
        if (!rc)
            rc = place_one(w, &bias[slot], false, device, apart,
                           &w->placed->bias[row + (size_t)slot]);
        for (int32_t i = 0; i < w->placed->n_lora && !rc; i++)
            rc = place_pair(w, &w->rm->lora[i], &w->placed->lora[i], row + (size_t)slot, device,
                            apart);
    }
    return rc;
}

static int place_all(struct pass *w)
{
    int rc = 0;
    find_matrices(w);
    for (int32_t il = -1; il < w->rm->hp.n_layer && !rc; il++)
        rc = place_row(w, il);
    return rc;
}

int gr_weights_describe(struct gr_weights *out, const struct gr_rank_model *rm,
                        const struct gr_placement *p)
{
    struct pass w = {.placed = out, .place = p, .rm = rm, .n_cpu_experts = p->n_cpu_experts};
    size_t n = (size_t)(rm->hp.n_layer + 1) * GR_N_SLOT;
    *out = (struct gr_weights){.place = *p};
    out->place.n_device = 1;
    for (int32_t il = 0; il <= rm->hp.n_layer; il++)
        if (p->stage[il] == rm->stage)
            out->place.n_device = GR_MAX(out->place.n_device, p->layer[il] + 1);
    out->weight = gr_calloc(n, sizeof *out->weight);
    out->bias = gr_calloc(n, sizeof *out->bias);
    out->n_lora = rm->model->n_lora;
    out->lora = out->n_lora ? gr_lora_new(out->n_lora, rm->hp.n_layer) : NULL;
    bool room = out->weight && out->bias && (out->lora || !out->n_lora);
    int rc = room ? place_all(&w) : GR_E_NOMEM_HOST;
    memcpy(out->bytes, w.used, sizeof out->bytes);
    if (rc)
        gr_weights_fini(out, rm);
    return rc;
}

void gr_weights_by_layer(const struct gr_rank_model *rm, int32_t device, int32_t n_cpu_experts,
                         struct gr_layer_cost *cost, uint64_t *tied)
{
    struct pass w = {.rm = rm, .n_cpu_experts = n_cpu_experts};
    const struct gr_hparams *hp = &rm->hp;
    for (int32_t il = 0; il <= hp->n_layer; il++)
        cost[il].weights = 0;
    *tied = 0;
    find_matrices(&w);
    for (size_t i = 0; i < (size_t)(hp->n_layer + 1) * GR_N_SLOT; i++) {
        int32_t il = (int32_t)(i / GR_N_SLOT) - 1;
        int slot = (int)(i % GR_N_SLOT);
        int32_t home = home_of(&w, il, slot);
        if (is_on_host(slot) || (home >= 0 && home != device))
            continue;
        uint64_t *sum = &cost[layer_of(hp, il, slot)].weights;
        if (gr_ten_is(&rm->weight[i]))
            *sum += bytes_on(&w, &rm->weight[i], w.matrix[slot], device);
        if (gr_ten_is(&rm->bias[i]))
            *sum += bytes_on(&w, &rm->bias[i], false, device);
        for (int32_t k = 0; k < rm->model->n_lora; k++)
            if (gr_ten_is(&rm->lora[k].a[i]))
                *sum += bytes_on(&w, &rm->lora[k].a[i], true, device) +
                        bytes_on(&w, &rm->lora[k].b[i], true, device);
        int32_t embd = home_of(&w, -1, GR_W_TOKEN_EMBD);
        if (is_tied(rm->weight, il, slot) && (embd < 0 || embd == device))
            *tied = bytes_on(&w, &rm->weight[i], true, device);
    }
}

int gr_weights_upload(struct gr_weights *placed, const struct gr_rank_model *rm)
{
    struct pass w = {.placed = placed,
                     .place = &placed->place,
                     .rm = rm,
                     .n_cpu_experts = placed->place.n_cpu_experts,
                     .told = rm->rank == 0 ? &rm->model->progress : NULL};
    uint64_t bytes = 0;
    int rc = 0;
    for (int32_t d = 1; d < placed->place.n_device; d++) {
        struct gr_backend *b = rm->backend[d];
        bytes += placed->bytes[d];
        if (b->api->range_begin)
            b->api->range_begin(b, GR_RANGE_LOAD, placed->bytes[d]);
        placed->memory[d] = b->api->alloc(b, GR_MAX(placed->bytes[d], 1));
        if (!placed->memory[d])
            rc = gr_error_status();
    }
    if (!rc && w.told)
        rc = gr_progress_begin(w.told, bytes);
    if (!rc)
        rc = place_all(&w);
    for (int32_t d = 1; d < placed->place.n_device; d++) {
        struct gr_backend *b = rm->backend[d];
        if (!rc)
            rc = b->api->sync(b);
        if (b->api->range_end)
            b->api->range_end(b);
    }
    return rc || !w.told ? rc : gr_progress_end(w.told);
}

int gr_weights_device(const struct gr_weights *w, const struct gr_rank_model *rm, size_t i)
{
    struct pass pass = {.place = &w->place, .rm = rm, .n_cpu_experts = w->place.n_cpu_experts};
    bool apart;
    find_matrices(&pass);
    return device_of(&pass, (int32_t)(i / GR_N_SLOT) - 1, (int)(i % GR_N_SLOT), &apart);
}

void gr_weights_fini(struct gr_weights *w, const struct gr_rank_model *rm)
{
    for (int32_t d = 1; d < w->place.n_device; d++)
        if (w->memory[d])
            rm->backend[d]->api->free(rm->backend[d], w->memory[d]);
    gr_free(w->weight);
    gr_free(w->bias);
    gr_lora_free(&w->lora, w->n_lora);
    *w = (struct gr_weights){0};
}

/* ---- weights that are offloaded ---- */

/* A pass over layers of the CPU that are to be offloaded. */
struct offload {
    struct gr_offload_weights *out;
    const struct gr_rank_model *rm;
    struct pass pass;
    int32_t device;
    uintptr_t at;
};

static int offload_one(struct offload *s, const struct gr_ten *host, bool matrix, bool apart,
                       struct gr_ten *out)
{
    struct gr_backend *b = s->rm->backend[s->device];
    if (!gr_ten_is(host))
        return 0;
    struct gr_offload_item d = {host, s->at, (int64_t)b->api->weight_bytes(b, host, matrix),
                                matrix};
    int rc = b->api->weight_upload(b, host, matrix, NULL, out);
    if (!rc)
        rc = gr_vec_append(&s->out->item, &d, 1, sizeof d);
    if (rc)
        return rc;
    out->data = (void *)d.at; /* no memory */
    out->home = apart ? (uint16_t)(s->device + 1) : 0;
    s->at += (uintptr_t)d.bytes;
    s->out->bytes +=
        host->batch * host->rows * (int64_t)gr_row_bytes(host->dtype, (uint64_t)host->cols);
    bool experts = host->batch > 1 && host->batch == s->rm->hp.moe.n_expert;
    s->out->n_mul +=
        host->rows * host->cols * (experts ? s->rm->hp.moe.n_expert_used : host->batch) * matrix;
    return 0;
}

/* Describes the weights of a layer of the CPU that are with it; of a device's layer those that are
 * on the CPU. */
static int offload_layer(struct offload *s, int32_t il)
{
    const struct gr_placement *p = s->pass.place;
    size_t row = (size_t)(il + 1) * GR_N_SLOT;
    bool whole = !p->layer[il] && !s->rm->hp.ssm.layer[il], apart;
    bool other = !whole && p->layer[il] != s->device;
    int rc = 0;
    for (size_t i = row; i < row + GR_N_SLOT && !rc; i++) {
        int slot = (int)(i - row), device = device_of(&s->pass, il, slot, &apart);
        if (is_on_host(slot) || (whole ? apart : device || !apart))
            continue;
        rc = offload_one(s, &s->rm->weight[i], s->pass.matrix[slot], other, &s->out->weight[i]);
        if (!rc)
            rc = offload_one(s, &s->rm->bias[i], false, other, &s->out->bias[i]);
        for (int32_t k = 0; k < s->out->n_lora && !rc; k++) {
            rc = offload_one(s, &s->rm->lora[k].a[i], true, other, &s->out->lora[k].a[i]);
            if (!rc)
                rc = offload_one(s, &s->rm->lora[k].b[i], true, other, &s->out->lora[k].b[i]);
        }
    }
    if (whole)
        s->out->device[il] = (uint8_t)s->device;
    return rc;
}

/* Starts with a copy of the placed weights. */
static int copy_placed(struct gr_offload_weights *out, const struct gr_rank_model *rm,
                       const struct gr_weights *placed)
{
    size_t n_layer = (size_t)rm->hp.n_layer, n = (n_layer + 1) * GR_N_SLOT;
    out->weight = gr_calloc(n, sizeof *out->weight);
    out->bias = gr_calloc(n, sizeof *out->bias);
    out->device = gr_calloc(n_layer + 1, 1);
    out->n_lora = placed->n_lora;
    out->lora = out->n_lora ? gr_lora_new(out->n_lora, rm->hp.n_layer) : NULL;
    if (!out->weight || !out->bias || !out->device || (out->n_lora && !out->lora))
        return GR_E_NOMEM_HOST;
    memcpy(out->weight, placed->weight, n * sizeof *out->weight);
    memcpy(out->bias, placed->bias, n * sizeof *out->bias);
    memcpy(out->device, placed->place.layer, n_layer + 1);
    for (int32_t k = 0; k < out->n_lora; k++) {
        out->lora[k].alpha = placed->lora[k].alpha;
        memcpy(out->lora[k].a, placed->lora[k].a, n * sizeof *out->lora[k].a);
        memcpy(out->lora[k].b, placed->lora[k].b, n * sizeof *out->lora[k].b);
    }
    return 0;
}

int gr_offload_weights_describe(struct gr_offload_weights *out, const struct gr_rank_model *rm,
                                const struct gr_weights *placed, int32_t device)
{
    struct offload s = {
        .out = out,
        .rm = rm,
        .pass = {.place = &placed->place, .rm = rm, .n_cpu_experts = placed->place.n_cpu_experts},
        .device = device,
        .at = GR_OFFLOAD_ADDRESS};
    *out = (struct gr_offload_weights){0};
    int rc = copy_placed(out, rm, placed);
    find_matrices(&s.pass);
    for (int32_t il = 0; il < rm->hp.n_layer && !rc; il++)
        if (placed->place.stage[il] == rm->stage)
            rc = offload_layer(&s, il);
    if (rc)
        gr_offload_weights_fini(out);
    return rc;
}

void gr_offload_weights_fini(struct gr_offload_weights *w)
{
    gr_free(w->weight);
    gr_free(w->bias);
    gr_lora_free(&w->lora, w->n_lora);
    gr_free(w->device);
    gr_vec_fini(&w->item);
    *w = (struct gr_offload_weights){0};
}
