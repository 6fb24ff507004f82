/* A spot: a place for layers. Every rank says what its own spots have and what layers would take
 * there; rank 0 decides for all (engine/place.h). */
#ifndef GR_MODEL_SPOT_H
#define GR_MODEL_SPOT_H

#include "base/alloc.h"
#include "gpurun.h"
#include "model/arch.h"

/* What a layer takes; [n_layer] stands for the output. arena, scratch: of a step that runs this
 * layer alone; layers of a spot have theirs one after the other in the same memory. */
struct gr_layer_cost {
    uint64_t weights, cache, arena, scratch;
};

/* A device of a rank, the CPU being number 0. Plain bytes, which go from rank to rank as they are.
 * Layers go to GPUs, and to the CPUs of ranks without any. */
struct gr_spot {
    int32_t rank, device;
    int32_t cc, n_sm;
    char name[16], description[128];
    char unit[128]; /* the machine and the device's address there: spots with the same one share
                       its memory */
    uint64_t free_bytes, total_bytes; /* of all of the unit */
    /* with a placement: bytes for the layers that are here */
    uint64_t weights, cache, work;
    /* without one: bytes whichever layers are here; those of embeddings that are the output too and
     * were counted twice; and of each layer */
    uint64_t fixed, tied;
    struct gr_layer_cost layer[GR_MAX_LAYER + 1];
};

struct gr_placement;

/* Asks every rank about its spots for such a session, one rank after the other: appends what
 * gr_spots_survey (engine/spots.h) gives there to a vector of struct gr_spot. */
typedef int gr_survey_fn(void *user, const struct gr_session_params *params,
                         const struct gr_placement *place, struct gr_vec *spots);

#endif
