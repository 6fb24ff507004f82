/* Builds a finished plan from a model and a shape. The engine says where weights, caches and the
 * step block are. */
#ifndef GR_GRAPH_GRAPH_H
#define GR_GRAPH_GRAPH_H

#include "arch/arch.h"
#include "graph/plan.h"

/* Rotary frequencies of one kind of layer. */
struct gr_rope_freqs {
    struct gr_ten freq; /* [1, 1, n_rot / 2] f64 radians per position, in the session's constants */
    struct gr_rope_mag mag;
};

/* Inputs of a graph. All pointers must outlive the plans. */
struct gr_graph_env {
    const struct gr_hparams *hp;
    /* NULL: the layers are whole; otherwise `hp` describes this shard. Partial sums are exchanged
     * between shards then, and every shard records the same operations. */
    const struct gr_share *share;
    bool deterministic; /* nodes get by_row */
    bool transport;     /* shards exchange directly between devices; otherwise through the CPU */
    const struct gr_arch *arch;
    /* [n_layer + 1][GR_N_SLOT]; row 0: outside the layers, row il + 1: layer il. weight and bias
     * are on the device of their layer; `host`: in CPU memory. */
    const struct gr_ten *weight, *bias, *host;
    /* [n_lora] adapters, with matrices on the devices of the weights, and their scales. lora_used:
     * NULL, or [n_layer + 1][GR_N_SLOT], receives for which weights an adapter was applied. */
    const struct gr_lora *lora;
    const float *lora_scale;
    int32_t n_lora;
    bool *lora_used;
    const float *scale; /* [n_layer + 1][GR_N_SLOT] factors of products with a matrix */
    /* Devices of a session, 0 = the CPU; NULL: everything on the CPU. device [n_layer + 1]: of each
     * layer, and of the output. cache_device [n_layer]: of the cache that each layer stores to or
     * attends to. */
    const uint8_t *device, *cache_device;
    uint8_t embd_device; /* device of the token embeddings */
    bool apart; /* some weights may be on other devices than their layer: see gr_ten.home */
    /* The offloaded ones of `weight`, `bias` and `lora`; none: {0}. */
    struct gr_offload_items offload_items;
    /* [n_layer + 1] stage of each layer and of the output when there are several stages: plans
     * contain the part of own_stage. NULL: one stage. */
    const uint8_t *stage;
    int32_t own_stage, n_stage;
    /* [n_layer], each [1, n_cell, n]; absent where a layer has none. Layers that share keys and
     * values have the same tensors. k_far: K by grouped positions; absent without them. */
    const struct gr_ten *k_cache, *v_cache, *k_far;
    /* [n_layer], each [1, n_row, n] f32: recurrent states; STATE_SRC and STATE_DST select rows */
    const struct gr_ten *conv_state, *ssm_state;
    struct gr_rope_freqs rope[2]; /* full layers, windowed layers */
    /* [1, 1, 2 * GR_REL_MAX_DISTANCE + 1] i32 each, in the constants: the bucket of each distance,
     * for layers that see both sides and for causal layers; absent without relative positions. */
    struct gr_ten rel_rows[2];
    bool vectors;          /* the result is the input of the output matrix .. */
    bool classify;         /* .. or a classifier's scores of it */
    struct gr_ten section; /* [1, 1, n_rot / 2] i32 of M-RoPE, in the constants, or absent */
};

/* Records a plan and lays out its memory; *p is not bound yet. GR_E_CORRUPT when the file lacks a
 * tensor that the graph needs. */
int gr_graph_build(struct gr_plan *p, const struct gr_graph_env *env,
                   const struct gr_step_shape *shape);

/* The plan of the encoder's layers, whose output the cross-attention layers store as keys and
 * values. No result. */
int gr_graph_build_encode(struct gr_plan *p, const struct gr_graph_env *env,
                          const struct gr_step_shape *shape);

/* The plan that rotates the cached K of every layer by the deltas in the step block: in the first
 * shape->n_delta cells, for the grouped K in shape->n_delta_far cells, for windowed layers in
 * shape->n_delta_swa cells. */
int gr_graph_build_shift(struct gr_plan *p, const struct gr_graph_env *env,
                         const struct gr_step_shape *shape);

/* The plan that copies rows COPY_SRC to COPY_DST of every tensor of the full or the windowed
 * layers' caches. */
int gr_graph_build_copy(struct gr_plan *p, const struct gr_graph_env *env,
                        const struct gr_step_shape *shape, bool swa);

#endif
