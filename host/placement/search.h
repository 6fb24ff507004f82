/* The search for a placement: the places for layers, the request, and a placement with the memory
 * it takes. */
#ifndef GR_PLACEMENT_SEARCH_H
#define GR_PLACEMENT_SEARCH_H

#include "engine/memory.h"
#include "model/layer_split.h"
#include "model/model.h"

struct gr_choice {
    struct gr_model *m;
    const struct gr_session_params *params;
    const struct gr_split_request *request;
    gr_survey_fn *survey;
    void *user;
    struct gr_session_params full; /* params with defaults filled in */
    struct gr_memory memory;       /* the caches of such a session */
    bool loaded;                   /* weights are loaded: only the session has to fit */
    bool has_costs;                /* `layers` has the costs of single layers */
    struct gr_vec layers, taken; /* of gr_rank_device: costs of layers; memory that `place` takes */
    /* Places for layers, in the layers' order: each is a device, or one device of each rank that
     * shares the layers. */
    int32_t n_place, n_member;
    int16_t device_index[GR_MAX_RANK_DEVICE]; /* [n_place][n_member], index into layers and taken */
    bool any_gpu;                             /* a place is a GPU */
    int64_t off[GR_MAX_RANK_DEVICE];          /* measured bytes minus the sum of layers */
    int32_t n_gpu, cut[GR_MAX_RANK_DEVICE + 1]; /* place k has the layers [cut[k], cut[k + 1]) */
    int32_t n_cpu_experts; /* layers, from the first one, whose experts are on the CPU */
    struct gr_placement place;
};

/* Finds the places. The caller has set the fields from m to user. gr_choice_fini frees what this
 * and the search allocate, also after a failure. */
int gr_choice_begin(struct gr_choice *c);
void gr_choice_fini(struct gr_choice *c);
/* Places the last n_gpu layers (without a GPU: all layers) as the model's parameters divide them,
 * and measures; *fits: whether every GPU has enough memory. with_margin: leaving some free. */
int gr_choice_try(struct gr_choice *c, int32_t n_gpu, bool with_margin, bool *fits);
/* Finds and places the largest number of layers, at most `most`, that fits with a margin. */
int gr_choice_most(struct gr_choice *c, int32_t most, int32_t *n_gpu);
/* Sets n_cpu_experts for what is tried next. */
void gr_choice_set_experts(struct gr_choice *c, int32_t n_cpu_experts);
/* Finds the fewest layers, at least one, whose experts have to be on the CPU for n_gpu layers to
 * fit with them there, and places them; *n_cpu: 0 when not even all of them are enough. */
int gr_choice_least_experts(struct gr_choice *c, int32_t n_gpu, bool with_margin, int32_t *n_cpu);
/* Measures the memory that c->place takes. */
int gr_choice_measure(struct gr_choice *c, bool with_margin, bool *fits);
/* Index in c->taken of the first GPU with too little memory; -1 = none. */
int32_t gr_choice_too_small(const struct gr_choice *c, bool with_margin);
/* Bytes that a device needs, and that it has free: its share where several ranks use it. */
uint64_t gr_rank_device_needs(const struct gr_choice *c, const struct gr_rank_device *dev);
uint64_t gr_rank_device_available(const struct gr_choice *c, const struct gr_rank_device *dev);

/* The device of a member of place k, and the first one, which represents the place. */
static inline struct gr_rank_device *
gr_choice_device(const struct gr_choice *c, const struct gr_vec *devices, int32_t k, int32_t member)
{
    return (struct gr_rank_device *)devices->data + c->device_index[k * c->n_member + member];
}
static inline struct gr_rank_device *gr_choice_first(const struct gr_choice *c, int32_t k)
{
    return gr_choice_device(c, &c->layers, k, 0);
}

#endif
