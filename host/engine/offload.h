/* Offload: weights of the CPU's layers, brought to a GPU in steps of many tokens. */
#ifndef GR_ENGINE_OFFLOAD_H
#define GR_ENGINE_OFFLOAD_H

#include "graph/graph.h"
#include "model/place.h"

struct gr_session;

/* A session's offloaded weights. */
struct gr_offloading {
    struct gr_offload_weights weights; /* in steps of `from` or more tokens .. */
    int32_t device, from;              /* .. to this device; device 0: none */
};

/* Chooses, for a placement, the CPU layers whose weights are offloaded to a GPU in steps of many
 * tokens, and from how many tokens on (after gr_session_place). Allocates no device memory. */
int gr_offload_begin(struct gr_session *s, const struct gr_weights *weights);
/* Ends offloading. Plans made with it must have been dropped. */
void gr_offload_end(struct gr_session *s);
/* Returns the weights and devices that plans of a shape are built with. */
struct gr_graph_env gr_offload_env(const struct gr_session *s, const struct gr_step_shape *shape);
/* Requests the weights whose upload is due before segment i; -1: at the plan's beginning. */
int gr_offload_request(struct gr_session *s, const struct gr_plan *p, int32_t i);

#endif
