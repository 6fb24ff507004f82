/* A device of a rank, on which layers are placed. Every rank reports the memory of its own devices
 * and what layers would take there; rank 0 decides for all (placement/choose.h). */
#ifndef GR_MODEL_RANK_DEVICE_H
#define GR_MODEL_RANK_DEVICE_H

#include "arch/arch.h"
#include "base/alloc.h"
#include "gpurun.h"

/* Bytes that a layer takes; [n_layer]: the output. arena, scratch: of a step that runs this layer
 * alone; the layers of a device reuse the same memory in turn. */
struct gr_layer_cost {
    uint64_t weights, cache, arena, scratch;
};

/* Device number 0 is the CPU. Plain data that is sent between ranks unchanged. Layers go to GPUs,
 * and to the CPUs of ranks without GPUs. */
struct gr_rank_device {
    int32_t rank, device;
    int32_t cc, n_sm;
    char name[16], description[128];
    char unit[128]; /* machine and address on it; devices of the same unit share its memory */
    uint64_t free_bytes, total_bytes; /* of the whole unit */
    /* with a placement: bytes for the layers placed here */
    uint64_t weights, cache, work;
    /* without one: bytes that do not depend on the layers; bytes of embeddings that are also the
     * output matrix and were counted twice; costs of each layer */
    uint64_t fixed, tied;
    struct gr_layer_cost layer[GR_MAX_LAYER + 1];
};

struct gr_placement;

/* Asks every rank in turn about its devices for such a session: appends the results of
 * gr_rank_devices_survey (placement/measure.h) to a vector of struct gr_rank_device. */
typedef int gr_survey_fn(void *user, const struct gr_session_params *params,
                         const struct gr_placement *place, struct gr_vec *devices);

#endif
