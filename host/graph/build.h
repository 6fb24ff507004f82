/* The vocabulary in which a family writes its layers down. Each call records operations into a
 * plan; nothing runs.
 *
 * A `gr_t` is a tensor of that plan (gr/tensor.h), by value; views are arithmetic. Errors are
 * sticky: after the first one every call returns an absent tensor and the plan is refused, so graph
 * code has no checks. Builders look at bound weights and options, never at names. Weights are named
 * by slot and layer; il is ignored for weights outside the layers. All activations are [1, n_tok,
 * n] f32. */
#ifndef GR_GRAPH_BUILD_H
#define GR_GRAPH_BUILD_H

#include "model/arch.h"

typedef struct gr_ten gr_t;

struct gr_build;

const struct gr_hparams *gr_hp(const struct gr_build *b);

/* Whether the file has this weight. */
bool gr_has(const struct gr_build *b, int il, enum gr_slot slot);

/* Names a result for taps; returns it. Only f32 results can be named. */
gr_t gr_name(struct gr_build *b, const char *name, int il, gr_t t);

/* Columns [first, first + n) of x: a view. */
gr_t gr_cols(gr_t x, int64_t first, int64_t n);

/* x [n_tok, n] with rows of `cols` columns, [n_tok * n / cols, cols], and back: a view. x is a
 * whole result, or norm or glu of one. */
gr_t gr_fold(struct gr_build *b, gr_t x, int64_t cols);
/* The rows of x that y has: all of them, or those that the last layer goes on with. */
gr_t gr_match(struct gr_build *b, gr_t x, gr_t y);

/* norm(x) with the family's kind, the slot's weight and, when there is one, bias. The weight's
 * length is the group: n_embd, or d_head for norms of heads. gr_norm_add adds `res` last. */
gr_t gr_norm(struct gr_build *b, int il, enum gr_slot slot, gr_t x);
gr_t gr_norm_add(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res);
/* The same of whole rows, without weight and bias. */
gr_t gr_norm_plain(struct gr_build *b, int il, gr_t x);
/* Every group of `group` columns divided by its root mean square. */
gr_t gr_rms(struct gr_build *b, int il, gr_t x, int64_t group);

/* x W^T + bias, with the slot's bias if there is one; gr_mm_add adds `res`. */
gr_t gr_mm(struct gr_build *b, int il, enum gr_slot slot, gr_t x);
gr_t gr_mm_add(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res);

gr_t gr_act(struct gr_build *b, enum gr_act_kind kind, gr_t x);
/* xIELU with the layer's coefficients (hp->xielu). */
gr_t gr_xielu(struct gr_build *b, int il, gr_t x);
/* act(a) * b */
gr_t gr_glu(struct gr_build *b, enum gr_act_kind kind, gr_t a, gr_t c);
/* scale * x */
gr_t gr_scale(struct gr_build *b, gr_t x, float scale);
/* x + y, where y may be one row for all. */
gr_t gr_add_t(struct gr_build *b, gr_t x, gr_t y);
/* x * w + res, with a slot's vector w. */
gr_t gr_mul_add(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res);
/* A slot's vector, as one row. */
gr_t gr_row(struct gr_build *b, int il, enum gr_slot slot);

/* What goes from layer to layer beside their results, number i of GR_N_CARRIED; absent until it was
 * set. */
#define GR_N_CARRIED 2
void gr_carry(struct gr_build *b, int i, gr_t x);
gr_t gr_carried(const struct gr_build *b, int i);

/* Queries, keys, values of a layer: [n_tok, n_head * d_k], [n_tok, n_head_kv * d_k], [n_tok,
 * n_head_kv * d_v]. */
struct gr_qkv {
    gr_t q, k, v;
};
/* From one fused matrix or three, clamped to +-clamp_kqv when the model says so. */
struct gr_qkv gr_qkv_proj(struct gr_build *b, int il, gr_t x);
/* Norms of Q and K where the slots are bound: of each head, or of the whole row. Where they
 * follow the rotation, the rest of them is in gr_attn. */
struct gr_qkv gr_qk_norm(struct gr_build *b, int il, struct gr_qkv p);

/* Rope, store in the layer's cache, attention over its cells: [n_tok, n_head * d_v]. Window,
 * soft-cap, ALiBi, sinks, scale and frequencies are the layer's. The last layer gives only the rows
 * whose logits are wanted; what is added to them afterwards is cut to the same rows by the
 * builders. */
gr_t gr_attn(struct gr_build *b, int il, struct gr_qkv p);
/* The same with biases by distance: a row of `table` for each bucket, of the first layer where a
 * layer has none of its own. */
gr_t gr_attn_near(struct gr_build *b, int il, struct gr_qkv p, enum gr_slot table);
/* Attention of a layer's queries to what it has kept of the encoder's output: k and v of the
 * micro-batch's tokens, stored when that is computed. */
gr_t gr_attn_cross(struct gr_build *b, int il, gr_t q);
void gr_cross_keep(struct gr_build *b, int il, gr_t k, gr_t v);
/* What attention found for x, times act of a gate for each column or each head (ATTN_GATE). */
gr_t gr_gated(struct gr_build *b, int il, enum gr_act_kind kind, gr_t x, gr_t y);
/* Queries times what their positions make of them (hp->temper). */
gr_t gr_temper(struct gr_build *b, gr_t q);
/* The whole of it: projection, head norms, gr_temper, attention, output projection + bias + res. A
 * bound ATTN_GATE weighs each column or head of what attention found. */
gr_t gr_attn_block(struct gr_build *b, int il, gr_t x, gr_t res);

/* The same with latent attention: K's rows are [roped columns | latent], V's the latent; queries
 * and results are taken to the latent and back by ATTN_K_B and ATTN_V_B. Without these ATTN_KV_B
 * makes keys and values of every head, which are kept instead. DeepSeek-AI 2024 (arXiv 2405.04434).
 * A bound ATTN_GATE weighs each column or head of the result. */
gr_t gr_mla_block(struct gr_build *b, int il, gr_t x, gr_t res);
/* Recurrent layers, for micro-batches of sequences of equal length. Each goes on from the layer's
 * state, leaves its own, and gives out(..) + res, in the last layer of the wanted rows only. */
gr_t gr_mamba(struct gr_build *b, int il, gr_t x, gr_t res);
gr_t gr_mamba2(struct gr_build *b, int il, gr_t x, gr_t res);
/* Mamba 1 with the heads of Mamba 2: gate and columns of a head side by side, B and C first. */
gr_t gr_mamba_heads(struct gr_build *b, int il, gr_t x, gr_t res);
/* C * conv(B * X), of B, C and X side by side. */
gr_t gr_short_conv(struct gr_build *b, int il, gr_t x, gr_t res);
/* Gated delta rule; tiled: head i of V uses head i % n_group of K, else i / (n_rank / n_group). */
struct gr_delta_opt {
    bool tiled;
    enum gr_act_kind gate; /* of what was found */
};
gr_t gr_delta_net(struct gr_build *b, int il, gr_t x, gr_t res, const struct gr_delta_opt *opt);
/* The same with a decay for every row of K, with convolutions of their own for Q, K and V. Kimi
 * Team 2025 (arXiv 2510.26692). */
gr_t gr_kda(struct gr_build *b, int il, gr_t x, gr_t res);

/* Linear attention with a decay that depends on head and layer only. MiniMax 2025 (arXiv
 * 2501.08313), Qin et al. 2024 (arXiv 2401.04658). */
gr_t gr_lightning(struct gr_build *b, int il, gr_t x, gr_t res);
/* RWKV: every token is mixed with the one before it, by weights or by what the two are; then linear
 * attention with a decay of each row that the token says. wkv7 also takes out of the state what it
 * holds for a key. All rows, also in the last layer. Peng et al. 2024 (arXiv 2404.05892), 2025
 * (arXiv 2503.14456). */
gr_t gr_wkv6(struct gr_build *b, int il, gr_t x, gr_t res);
gr_t gr_wkv7(struct gr_build *b, int il, gr_t x, gr_t res);
/* Its feed-forward part: value(relu(key(x))^2), times a gate where there is one, + res. Of the last
 * layer the wanted rows. */
gr_t gr_channel_mix(struct gr_build *b, int il, gr_t x, gr_t res);

/* down(act(gate(x)) * up(x)) + res; an `up` twice as wide as `down` holds gate and up side by side,
 * any other needs a gate matrix. */
gr_t gr_ffn_glu(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind);
/* down(act(up(x))) + res; a bound FFN_ACT divides the activations. */
gr_t gr_ffn_mlp(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind);
/* Whichever of the two the bound matrices are for. */
gr_t gr_ffn_any(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind);

/* Keeps x for gr_recall, which blends x with all that was kept, each by the softmax of how its
 * normed self meets the slot's weight; without anything kept it gives x. Of what was kept it takes
 * the rows that x has. */
void gr_keep(struct gr_build *b, gr_t x);
gr_t gr_recall(struct gr_build *b, int il, enum gr_slot slot, gr_t x);

/* residual_scale * x + res */
gr_t gr_residual(struct gr_build *b, gr_t x, gr_t res);

struct gr_moe_opt {
    enum gr_gate_kind gate;
    enum gr_act_kind act;
    bool normalise; /* weights of the chosen experts sum to 1 */
    float scale;    /* of the weights; 0 = 1 */
};
/* What the file says (gr_hp_experts). */
struct gr_moe_opt gr_moe_of(const struct gr_build *b, enum gr_act_kind act);
/* The experts' feed-forward: sum over the chosen ones of weight * down(act(gate(x)) * up(x)), + the
 * shared expert's where one is bound, + res. A bound FFN_EXP_BIAS takes part in the choice only.
 * Families without gates have act(up(x)). Between a bound FFN_LATENT_DOWN and FFN_LATENT_UP experts
 * see fewer columns. */
gr_t gr_moe(struct gr_build *b, int il, gr_t x, gr_t res, const struct gr_moe_opt *opt);
/* The same with the router's logits given: gr_router of whatever it sees. */
gr_t gr_moe_routed(struct gr_build *b, int il, gr_t logits, gr_t x, gr_t res,
                   const struct gr_moe_opt *opt);
gr_t gr_router(struct gr_build *b, int il, gr_t x);
/* x + adjugate_scale * the sum over adjugate experts of the chosen ones: an adjugate of x as often
 * as its group has chosen experts, weighed by its own number's logit; + res. Wu et al. 2025 (arXiv
 * 2508.07785). */
gr_t gr_adjugates(struct gr_build *b, int il, gr_t logits, gr_t x, gr_t res);
/* gr_moe where the layer has a router, gr_ffn_glu where not. */
gr_t gr_ffn(struct gr_build *b, int il, gr_t x, gr_t res, const struct gr_moe_opt *opt);

/* The layer of many families: x + attention(norm(x)), then x + feed-forward(norm(x)) with SiLU, by
 * experts where the layer has a router (gr_moe_of). */
gr_t gr_pre_norm_layer(struct gr_build *b, int il, gr_t x);

#endif
