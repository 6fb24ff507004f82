/* From a model and a shape to a finished plan. The engine says where weights, caches and the step
 * block are. */
#ifndef GR_GRAPH_GRAPH_H
#define GR_GRAPH_GRAPH_H

#include "graph/plan.h"
#include "model/arch.h"

/* Rotary frequencies of one kind of layer. */
struct gr_rope_freqs {
    struct gr_ten freq; /* [1, 1, n_rot / 2] f64 radians a position, in the session's constants */
    struct gr_rope_mag mag;
};

/* What a graph is built over; all pointers outlive the plans. */
struct gr_graph_env {
    const struct gr_hparams *hp;
    /* NULL: the layers are whole; otherwise `hp` is what this shard has. What it has of a sum is
     * exchanged for all shards' then, and every shard records the same operations. */
    const struct gr_share *share;
    bool transport; /* shards exchange from device to device; otherwise on the CPU */
    const struct gr_arch *arch;
    /* [n_layer + 1][GR_N_SLOT]; row 0 is outside the layers, row il + 1 layer il. Each where its
     * layer runs; `host`: in memory of the CPU. */
    const struct gr_ten *weight, *bias, *host;
    /* [n_lora] adapters, their matrices where the weights are, and how much each counts. lora_used:
     * NULL, or receives which weights' were multiplied with, [n_layer + 1][GR_N_SLOT]. */
    const struct gr_lora *lora;
    const float *lora_scale;
    int32_t n_lora;
    bool *lora_used;
    const float
        *scale; /* [n_layer + 1][GR_N_SLOT]: what products with a matrix are multiplied by */
    /* Devices of a session, 0 = the CPU; NULL: all of it on the CPU. [n_layer + 1]: of each layer,
     * of the output. [n_layer]: of the cache that each layer stores to or attends to. */
    const uint8_t *device, *cache_device;
    uint8_t embd_device; /* where tokens are looked up */
    /* Of `weight`, `bias` and `lora` those that are offloaded; none: {0}. */
    struct gr_distants distant;
    /* [n_layer + 1] stages of each layer and of the output, when there are several: plans are what
     * stage own_stage runs of the whole. NULL: all of it. */
    const uint8_t *stage;
    int32_t own_stage, n_stage;
    /* [n_layer], each [1, n_cell, n]; absent where a layer has none. Layers that share keys and
     * values have the same tensors. k_far: K by grouped positions, absent without. */
    const struct gr_ten *k_cache, *v_cache, *k_far;
    /* [n_layer], each [1, n_row, n] f32: recurrent state; rows by STATE_SRC and STATE_DST */
    const struct gr_ten *conv_state, *ssm_state;
    struct gr_rope_freqs rope[2]; /* full layers, windowed layers */
    struct gr_ten rel_rows[2]; /* [1, 1, 2 * GR_REL_FAR + 1] i32 each, in the constants: the bucket
                                  of each distance, in layers that see both sides and in those
                                  that see the past; absent without relative positions */
    bool vectors;              /* the result is what the output's matrix would be given .. */
    bool classify;             /* .. or the scores that a classifier makes of it */
    struct gr_ten section;     /* [1, 1, n_rot / 2] i32 of M-RoPE, in the constants, or absent */
};

/* Records, plans memory and leaves *p unbound. GR_E_CORRUPT when the file lacks a tensor that the
 * graph needs. */
int gr_graph_build(struct gr_plan *p, const struct gr_graph_env *env,
                   const struct gr_step_shape *shape);

/* The encoder's layers, and what those that attend to them keep of what they give: no result. */
int gr_graph_build_encode(struct gr_plan *p, const struct gr_graph_env *env,
                          const struct gr_step_shape *shape);

/* The plan that rotates the cached K of every layer by the deltas in the step block: of the first
 * shape->n_delta cells, of the grouped K of shape->n_delta_far, and of shape->n_delta_swa cells of
 * the windowed layers. */
int gr_graph_build_shift(struct gr_plan *p, const struct gr_graph_env *env,
                         const struct gr_step_shape *shape);

/* The plan that copies rows COPY_SRC to COPY_DST of every tensor of the full or the windowed
 * layers' caches. */
int gr_graph_build_copy(struct gr_plan *p, const struct gr_graph_env *env,
                        const struct gr_step_shape *shape, bool swa);

/* "blk.3.attn_q.weight"; `bias` gives the companion's name. Returns buf. */
const char *gr_slot_name(enum gr_slot slot, int il, bool bias, char *buf, size_t n);

#endif
