/* Placement: which layer is on which device, and the weights on the devices. */
#ifndef GR_MODEL_PLACE_H
#define GR_MODEL_PLACE_H

#include "arch/arch.h"
#include "base/alloc.h"
#include "model/devices.h"
#include "model/rank_device.h"

struct gr_rank_model;

/* Devices are numbered from 0, the CPU; the others are those in the list of the rank model whose
 * stage the layer is in. */
struct gr_placement {
    int32_t n_device; /* devices of this rank model */
    int32_t n_stage;
    int32_t n_cpu_experts; /* layers, from the first one, whose experts are on the CPU */
    bool trial;            /* to measure: a weight whose device is missing stays with its layer */
    uint8_t layer[GR_MAX_LAYER + 1]; /* device of each layer; [n_layer]: of the output */
    uint8_t stage[GR_MAX_LAYER + 1]; /* stage of each layer and of the output; never decreases */
};

/* Number of layers that are not on the CPU, including the output. */
int32_t gr_place_n_gpu(const struct gr_placement *p, int32_t n_layer);

/* Returns whether a stage may begin with layer il: no layer from there on attends to the cache of
 * an earlier one. il: 0 to n_layer, the output. */
bool gr_place_may_cut(const struct gr_hparams *hp, int32_t il);

/* The weights of a rank model in a placement: those of CPU layers are the ones on the host. Those
 * of other stages are described on the host as well, and not counted. */
struct gr_weights {
    struct gr_placement place;
    struct gr_ten *weight, *bias; /* [n_layer + 1][GR_N_SLOT], as in the rank model */
    struct gr_lora *lora;         /* [n_lora], likewise */
    int32_t n_lora;
    bool apart; /* some weights may be on other devices than their layer: see gr_ten.home */
    uint64_t bytes[GR_MAX_DEVICE]; /* [0]: those on the host that the CPU reads */
    void *memory[GR_MAX_DEVICE];   /* one allocation per device */
};

/* Describes the weights in a placement: tensors without data, and bytes. The rank model's devices
 * must be open. */
int gr_weights_describe(struct gr_weights *out, const struct gr_rank_model *rm,
                        const struct gr_placement *p);
/* The weights for plans in which a GPU runs some layers of the CPU, whose weights are offloaded. */
struct gr_offload_weights {
    struct gr_ten *weight, *bias; /* as in gr_weights */
    struct gr_lora *lora;
    int32_t n_lora;
    struct gr_vec item; /* struct gr_offload_item: the offloaded weights */
    uint8_t *device;    /* [n_layer + 1] device that runs each layer */
    int64_t bytes;      /* as stored in the file: what offloading all of them transfers */
    int64_t n_mul;      /* approximate number of multiplications per token */
};

/* Describes placed weights for plans in which the CPU's layers of this stage run on `device`,
 * except recurrent ones, which stay where their states are, and so do the matrices on the CPU that
 * are apart from their layer; out->item is empty when there are none.
 * GR_E_UNSUPPORTED when the device cannot compute with one of the weights. The rank model's devices
 * must be open. */
int gr_offload_weights_describe(struct gr_offload_weights *out, const struct gr_rank_model *rm,
                                const struct gr_weights *placed, int32_t device);
void gr_offload_weights_fini(struct gr_offload_weights *w);

/* Sets cost [n_layer + 1].weights: bytes of the weights used with each layer, if it were on this
 * device of an open rank model, without those that are apart from it. *tied: bytes of a matrix that
 * is counted with the first layer and with the output, but is stored once when both are on the
 * device. */
void gr_weights_by_layer(const struct gr_rank_model *rm, int32_t device, int32_t n_cpu_experts,
                         struct gr_layer_cost *cost, uint64_t *tied);
/* Allocates the memory and uploads the weights. GR_E_NOMEM_DEV when there is not enough. */
int gr_weights_upload(struct gr_weights *w, const struct gr_rank_model *rm);
/* The device on which weight number i is used; -1: none of this rank model. */
int gr_weights_device(const struct gr_weights *w, const struct gr_rank_model *rm, size_t i);
void gr_weights_fini(struct gr_weights *w, const struct gr_rank_model *rm);

#endif
