/* Shared by the files of host/graph that record plans; families see graph/build.h only. */
#ifndef GR_GRAPH_BUILD_IMPL_H
#define GR_GRAPH_BUILD_IMPL_H

#include "graph/build.h"
#include "graph/graph.h"

enum { GR_MAX_KEPT = 64 };

struct gr_build {
    struct gr_plan *plan;
    const struct gr_graph_env *env;
    int at;         /* the layer being recorded; -1: embeddings, n_layer: output */
    gr_t cs[2];     /* rope tables of full and windowed layers, created on first use */
    gr_t rel;       /* relative position biases of the layers that share the first one's */
    gr_t cs_far[2]; /* rope tables of grouped positions: for queries, for keys */
    gr_t carried[GR_N_CARRIED];
    gr_t kept[GR_MAX_KEPT]; /* by gr_keep */
    int n_kept;
    gr_t temper; /* factor of each token's queries */
    int err;
};

/* The weight bound to a slot, and its bias; gr_require fails the plan when there is none. */
gr_t gr_weight(const struct gr_build *b, int il, enum gr_slot slot);
gr_t gr_bias(const struct gr_build *b, int il, enum gr_slot slot);
gr_t gr_require(struct gr_build *b, int il, enum gr_slot slot);
/* The device with the keys and values that layer il attends to. */
int32_t gr_cache_device(const struct gr_build *b, int il);
/* Returns whether that is another device than the layer's. */
bool gr_keeps_elsewhere(const struct gr_build *b, int il);

/* Returns whether a slot's matrix has only this shard's columns, so that its product is a partial
 * sum; for a vector: whether it has only this shard's elements. */
bool gr_is_sharded(const struct gr_build *b, int il, enum gr_slot slot);

/* res + the adapters' additions to x W^T of a slot, or to rows [first, first + n) of W alone. */
gr_t gr_lora_apply(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res, int64_t first,
                   int64_t n);
/* y + the adapters' additions to y, rows of the token embeddings. */
gr_t gr_lora_apply_rows(struct gr_build *b, enum gr_slot slot, gr_t tokens, float scale, gr_t y);
/* y + the adapters' additions to y, the product with the experts' matrices of a slot. */
gr_t gr_lora_apply_id(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t ids, gr_t y);
/* Rows [first, first + n) of a single matrix, in the file's layout or a GPU's packed layout. */
gr_t gr_rows_of(gr_t w, int64_t first, int64_t n);

gr_t gr_new(struct gr_build *b, int64_t rows, int64_t cols, uint32_t dtype);
void gr_emit(struct gr_build *b, int il, const struct gr_node *node);
/* An array of the step block as [1, rows, count / rows] i32. */
gr_t gr_step_array(const struct gr_build *b, enum gr_step_array a, int64_t rows);

/* The rows of x whose logits are wanted; x itself if it has no others. */
gr_t gr_out_rows(struct gr_build *b, gr_t x);

gr_t gr_act_ab(struct gr_build *b, enum gr_act_kind kind, gr_t x, float p, float q);
/* gr_act_ab into y. */
void gr_act_to(struct gr_build *b, enum gr_act_kind kind, gr_t x, float p, float q, gr_t y);
gr_t gr_binary(struct gr_build *b, enum gr_binary_kind kind, gr_t x, gr_t c);
/* Allocates a value for this shard's partial sum or rows; where the exchange runs on the same
 * device, inside a value that holds those of all shards. */
gr_t gr_partial(struct gr_build *b, int64_t rows, int64_t cols);
/* Exchanges x, a value from gr_partial: every shard gets those of all, [n_shard * rows, n]. */
gr_t gr_exchange(struct gr_build *b, int il, gr_t x);
/* Exchanges x, a partial sum in a value from gr_partial; returns the sum over all shards + res. */
gr_t gr_join(struct gr_build *b, int il, gr_t x, gr_t res);
/* gr_mm without the exchange: a partial sum where this shard has only part of the columns. */
gr_t gr_mm_partial(struct gr_build *b, int il, enum gr_slot slot, gr_t x);
/* gr_mm into y, which may have more columns than the matrix has rows. */
void gr_mm_to(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t y);
/* Rows [first, first + y.cols) of a slot's matrix times x, into y. */
void gr_mm_rows(struct gr_build *b, int il, enum gr_slot slot, gr_t x, int64_t first, gr_t y);
/* gr_norm into y. */
void gr_norm_to(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t y);
/* HEAD_MATMUL with a slot's matrices. */
gr_t gr_head_mm(struct gr_build *b, int il, enum gr_slot slot, gr_t x);
gr_t gr_matmul_id(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t ids);
/* y = sum_j weights[t, j] * x[t, j] + res. Returns y. */
gr_t gr_expert_sum(struct gr_build *b, int il, gr_t x, gr_t weights, gr_t res, gr_t y);
/* cos and sin of the angles at positions pos. section absent: each pair uses pos's first row. */
gr_t gr_rope_table(struct gr_build *b, gr_t pos, const struct gr_rope_freqs *f, gr_t section,
                   float mag);

/* ---- recurrent layers ---- */

/* The numbers of the state rows that the sequences read (STATE_SRC) or write (STATE_DST). */
gr_t gr_state_rows(struct gr_build *b, enum gr_step_array a);
/* Columns [first, first + n) of a layer's state. */
gr_t gr_state_cols(gr_t state, int64_t first, int64_t n);
/* A small weight flattened to one row. */
gr_t gr_row_of(gr_t w);

#endif
