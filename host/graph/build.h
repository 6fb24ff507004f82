/* The functions with which a family describes its layers. Each call records operations into a plan;
 * nothing runs.
 *
 * A `gr_t` is a tensor of that plan (gr/tensor.h), by value; views are pointer arithmetic. Errors
 * are sticky: after the first one every call returns an absent tensor and the plan is refused, so
 * graph code has no checks. Builders look at bound weights and options, never at names. Weights are
 * identified by slot and layer; il is ignored for weights outside the layers. All activations are
 * [1, n_tok, n] f32. */
#ifndef GR_GRAPH_BUILD_H
#define GR_GRAPH_BUILD_H

#include "arch/arch.h"

typedef struct gr_ten gr_t;

struct gr_build;

const struct gr_hparams *gr_hp(const struct gr_build *b);

/* Returns whether the file has this weight. */
bool gr_has(const struct gr_build *b, int il, enum gr_slot slot);

/* Names a result for taps; returns it. Only f32 results can be named. */
gr_t gr_name(struct gr_build *b, const char *name, int il, gr_t t);

/* Columns [first, first + n) of x: a view. */
gr_t gr_cols(gr_t x, int64_t first, int64_t n);

/* Reshapes x [n_tok, n] to rows of `cols` columns, [n_tok * n / cols, cols], or back: a view. The
 * rows of x must be contiguous: a whole result, or norm or glu of one. */
gr_t gr_fold(struct gr_build *b, gr_t x, int64_t cols);
/* The rows of x that y has: all of them, or the wanted ones if y has only those. */
gr_t gr_match(struct gr_build *b, gr_t x, gr_t y);

/* norm(x) of the family's kind, with the slot's weight and, when there is one, bias. Groups are as
 * long as the weight: n_embd, or d_head for norms of heads. gr_norm_add adds `res` last. */
gr_t gr_norm(struct gr_build *b, int il, enum gr_slot slot, gr_t x);
gr_t gr_norm_add(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res);
/* Norm of whole rows, without weight and bias. */
gr_t gr_norm_plain(struct gr_build *b, int il, gr_t x);
/* Divides every group of `group` columns by its root mean square. */
gr_t gr_rms(struct gr_build *b, int il, gr_t x, int64_t group);

/* x W^T + bias, with the slot's bias if there is one; gr_mm_add adds `res`. */
gr_t gr_mm(struct gr_build *b, int il, enum gr_slot slot, gr_t x);
gr_t gr_mm_add(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res);

gr_t gr_act(struct gr_build *b, enum gr_act_kind kind, gr_t x);
/* xIELU with the layer's coefficients (hp->ff.xielu). */
gr_t gr_xielu(struct gr_build *b, int il, gr_t x);
/* act(a) * c */
gr_t gr_glu(struct gr_build *b, enum gr_act_kind kind, gr_t a, gr_t c);
/* scale * x */
gr_t gr_scale(struct gr_build *b, gr_t x, float scale);
/* x + y; y may be a single row that is added to all. */
gr_t gr_add_t(struct gr_build *b, gr_t x, gr_t y);
/* x * w + res, with a slot's vector w. */
gr_t gr_mul_add(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res);
/* The vector of a slot, as one row. */
gr_t gr_row(struct gr_build *b, int il, enum gr_slot slot);

/* Values passed from layer to layer in addition to their results: number i of GR_N_CARRIED, absent
 * until it is set. */
#define GR_N_CARRIED 2
void gr_carry(struct gr_build *b, int i, gr_t x);
gr_t gr_carried(const struct gr_build *b, int i);

/* Queries, keys and values of a layer: [n_tok, n_head * d_k], [n_tok, n_head_kv * d_k], [n_tok,
 * n_head_kv * d_v]. */
struct gr_qkv {
    gr_t q, k, v;
};
/* Projects x to Q, K and V by one fused matrix or three, clamped to +-clamp_kqv if that is set. */
struct gr_qkv gr_qkv_proj(struct gr_build *b, int il, gr_t x);
/* Norms of Q and K where the slots are bound: of each head, or of the whole row. Where norms follow
 * the rotation (norm_roped), gr_attn does the rest of them. */
struct gr_qkv gr_qk_norm(struct gr_build *b, int il, struct gr_qkv p);

/* Rope, store in the layer's cache, attention over its cells: [n_tok, n_head * d_v]. Window,
 * soft-cap, ALiBi, sinks, scale and frequencies are those of the layer. The last layer returns only
 * the rows whose logits are wanted; builders reduce what is added to them later to the same
 * rows. */
gr_t gr_attn(struct gr_build *b, int il, struct gr_qkv p);
/* gr_attn with relative position biases: `table` has a row for each bucket of distances; layers
 * without a table of their own use the first layer's. */
gr_t gr_attn_near(struct gr_build *b, int il, struct gr_qkv p, enum gr_slot table);
/* Cross-attention: gr_attn_cross attends from a layer's queries to the k and v of the encoder's
 * tokens, which gr_cross_keep stores in the layer's cache when a text is encoded. */
gr_t gr_attn_cross(struct gr_build *b, int il, gr_t q);
void gr_cross_keep(struct gr_build *b, int il, gr_t k, gr_t v);
/* y * act(gate(x)): the attention result y times a gate per column or per head (ATTN_GATE). */
gr_t gr_gated(struct gr_build *b, int il, enum gr_act_kind kind, gr_t x, gr_t y);
/* Queries times a factor that depends on their positions (hp->attn.temper). */
gr_t gr_temper(struct gr_build *b, gr_t q);
/* Whole attention block: projection, head norms, gr_temper, attention, output projection + bias +
 * res. A bound ATTN_GATE multiplies each column or head of the attention result. */
gr_t gr_attn_block(struct gr_build *b, int il, gr_t x, gr_t res);

/* Attention block with latent attention (MLA): rows of K are [roped columns | latent], V is the
 * latent; ATTN_K_B maps queries to the latent and ATTN_V_B maps results back. Models without these
 * have ATTN_KV_B, which makes keys and values of every head; these are cached instead
 * (hp->mla.v_in_k false). DeepSeek-AI 2024 (arXiv 2405.04434). With the latent, a bound ATTN_GATE
 * multiplies each column or head of the result. */
gr_t gr_mla_block(struct gr_build *b, int il, gr_t x, gr_t res);
/* Recurrent layers, for micro-batches of sequences of equal length. Each reads the layer's state,
 * writes the new one, and returns out(..) + res, in the last layer only the wanted rows. */
gr_t gr_mamba(struct gr_build *b, int il, gr_t x, gr_t res);
gr_t gr_mamba2(struct gr_build *b, int il, gr_t x, gr_t res);
/* Mamba 1 with the heads of Mamba 2: a head's gate and columns are adjacent, B and C come first. */
gr_t gr_mamba_heads(struct gr_build *b, int il, gr_t x, gr_t res);
/* C * conv(B * X), where one matrix gives B, C and X side by side. */
gr_t gr_short_conv(struct gr_build *b, int il, gr_t x, gr_t res);
/* Gated delta rule; tiled: head i of V uses head i % n_group of K, else i / (n_rank / n_group). */
struct gr_delta_opt {
    bool tiled;
    enum gr_act_kind gate; /* activation of the gate on the result */
};
gr_t gr_delta_net(struct gr_build *b, int il, gr_t x, gr_t res, const struct gr_delta_opt *opt);
/* Gated delta rule with a decay for every row of K, and separate convolutions for Q, K and V. Kimi
 * Team 2025 (arXiv 2510.26692). */
gr_t gr_kda(struct gr_build *b, int il, gr_t x, gr_t res);

/* Linear attention with a decay that depends on head and layer only. MiniMax 2025 (arXiv
 * 2501.08313), Qin et al. 2024 (arXiv 2401.04658). */
gr_t gr_lightning(struct gr_build *b, int il, gr_t x, gr_t res);
/* RWKV: every token is mixed with the previous one, by fixed weights (7) or by weights computed
 * from the two (6); then linear attention with a decay of each row that is computed from the token.
 * wkv7 also removes from the state what it holds for a key. All rows are computed, also in the last
 * layer. Peng et al. 2024 (arXiv 2404.05892), 2025 (arXiv 2503.14456). */
gr_t gr_wkv6(struct gr_build *b, int il, gr_t x, gr_t res);
gr_t gr_wkv7(struct gr_build *b, int il, gr_t x, gr_t res);
/* RWKV's feed-forward part: value(relu(key(x))^2), times a gate where there is one, + res; in the
 * last layer only the wanted rows. */
gr_t gr_channel_mix(struct gr_build *b, int il, gr_t x, gr_t res);

/* down(act(gate(x)) * up(x)) + res; an `up` twice as wide as `down` holds gate and up side by side,
 * any other needs a gate matrix. */
gr_t gr_ffn_glu(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind);
/* down(act(up(x))) + res; a bound FFN_ACT divides the activations. */
gr_t gr_ffn_mlp(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind);
/* gr_ffn_glu or gr_ffn_mlp, depending on the bound matrices. */
gr_t gr_ffn_any(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind);

/* gr_keep stores x for gr_recall, which blends its x with all that was kept, weighted by the
 * softmax of the products of each normed input with the slot's weight. Without anything kept
 * gr_recall returns x. Of what was kept it uses the rows that x has. */
void gr_keep(struct gr_build *b, gr_t x);
gr_t gr_recall(struct gr_build *b, int il, enum gr_slot slot, gr_t x);

/* residual.scale * x + res */
gr_t gr_residual(struct gr_build *b, gr_t x, gr_t res);

/* Mixture of experts: sum over the chosen ones of weight * down(act(gate(x)) * up(x)), + the shared
 * expert's result where one is bound, + res. How experts are chosen and weighted is an option of
 * the model (hp->moe.gate, ..). A bound FFN_EXP_BIAS affects the choice only. Families without
 * gates have act(up(x)). With bound FFN_LATENT_DOWN and FFN_LATENT_UP, experts work on fewer
 * columns in between. */
gr_t gr_moe(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind act);
/* gr_moe with given router logits, which gr_router computes from its input. */
gr_t gr_moe_routed(struct gr_build *b, int il, gr_t logits, gr_t x, gr_t res, enum gr_act_kind act);
gr_t gr_router(struct gr_build *b, int il, gr_t x);
/* x + adjugate_scale * the weighted sum over the adjugate experts of the chosen experts + res.
 * n_adjugate neighbouring experts share an adjugate expert, which counts once for each of them that
 * is chosen, with a weight from the logit of the adjugate's own number. Wu et al. 2025 (arXiv
 * 2508.07785). */
gr_t gr_adjugates(struct gr_build *b, int il, gr_t logits, gr_t x, gr_t res);
/* gr_moe if the layer has a router, otherwise gr_ffn_glu. */
gr_t gr_ffn(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind act);

/* Layers of many families, as the `layer` of a table; the activation is hp->ff.act, and a layer
 * with a router has experts.
 *   pre-norm: x + attention(norm(x)), then x + feed-forward(norm(x))
 *   sandwich: x + norm(attention(norm(x))), then x + norm(feed-forward(norm(x)))
 *   parallel: x + attention(h) + feed-forward(h) of the same h = norm(x) */
gr_t gr_pre_norm_layer(struct gr_build *b, int il, gr_t x);
gr_t gr_sandwich_layer(struct gr_build *b, int il, gr_t x);
gr_t gr_parallel_layer(struct gr_build *b, int il, gr_t x);
/* The rest of a sandwich layer, given the result h of its attention or of what takes its place. */
gr_t gr_sandwich_rest(struct gr_build *b, int il, gr_t h, gr_t x);

#endif
