/* Which layer is on which device, and the weights there. */
#ifndef GR_MODEL_PLACE_H
#define GR_MODEL_PLACE_H

#include "base/alloc.h"
#include "model/arch.h"
#include "model/devices.h"
#include "model/spot.h"

struct gr_slice;

/* Devices are numbered from 0, the CPU; the others are those of the list of the slice whose stage
 * the layer is in. */
struct gr_placement {
    int32_t n_device; /* of this slice */
    int32_t n_stage;
    uint8_t layer[GR_MAX_LAYER + 1]; /* of each layer; [n_layer]: of the output */
    uint8_t stage[GR_MAX_LAYER + 1]; /* the same; never falls from one layer to the next */
};

/* Layers that are not on the CPU, the output counted. */
int32_t gr_place_n_gpu(const struct gr_placement *p, int32_t n_layer);

/* Whether stages may meet before layer il: no layer from there on attends to what an earlier one
 * keeps. il from 0 to n_layer, the output. */
bool gr_place_may_cut(const struct gr_hparams *hp, int32_t il);

/* A slice's weights where a placement wants them: the CPU's are those on the host. Those of other
 * stages are on the host as well, and count nowhere. */
struct gr_weights {
    struct gr_placement place;
    struct gr_ten *weight, *bias; /* [n_layer + 1][GR_N_SLOT], as the slice's */
    struct gr_lora *lora;         /* [n_lora], likewise */
    int32_t n_lora;
    uint64_t bytes[GR_MAX_DEVICE]; /* [0]: on the host, that the CPU reads */
    void *memory[GR_MAX_DEVICE];   /* one piece a device */
};

/* What it would be: tensors without data, and bytes. The slice's devices are open. */
int gr_weights_describe(struct gr_weights *out, const struct gr_slice *l,
                        const struct gr_placement *p);
/* The same weights as a plan has them in which some layers of the CPU run on a GPU: of those layers
 * they are offloaded. */
struct gr_streamed {
    struct gr_ten *weight, *bias; /* as of gr_weights */
    struct gr_lora *lora;
    int32_t n_lora;
    struct gr_vec item; /* struct gr_distant: what is offloaded */
    uint8_t *device;    /* [n_layer + 1] where each layer runs */
    int64_t bytes;      /* of the file: what goes over the link for all of it */
    int64_t n_mul;      /* multiplications that it takes for a token, about */
};

/* Of placed weights: the CPU's layers in this stage run on `device`, but for recurrent ones, which
 * stay where their states are; out->item is empty when there are none. GR_E_UNSUPPORTED when the
 * device cannot compute with one of the weights. The slice's devices are open. */
int gr_weights_stream(struct gr_streamed *out, const struct gr_slice *l,
                      const struct gr_weights *placed, int32_t device);
void gr_streamed_fini(struct gr_streamed *s);

/* Bytes of the weights that go with each layer, cost [n_layer + 1], if they were on this device of
 * an open slice; *tied: those of a matrix that is counted with the first layer and with the output,
 * and is there once when both are. */
void gr_weights_by_layer(const struct gr_slice *l, int32_t device, struct gr_layer_cost *cost,
                         uint64_t *tied);
/* Takes the memory and moves the weights. GR_E_NOMEM_DEV when there is not enough. */
int gr_weights_upload(struct gr_weights *w, const struct gr_slice *l);
/* The device where weight number i is used; -1: none of this slice. */
int gr_weights_device(struct gr_weights *w, const struct gr_slice *l, size_t i);
void gr_weights_fini(struct gr_weights *w, const struct gr_slice *l);

#endif
