/* What an architecture is: a table of the tensors it has, options read from the file, and a graph
 * function.
 *
 * A family is one file in host/models that defines one `struct gr_arch` (or several) and nothing
 * else names it; the list stands in models.def. The table is the only validator of shapes: a
 * dimension is a symbol whose value comes from the hyper-parameters, and the graph may use what the
 * table binds. */
#ifndef GR_MODEL_ARCH_H
#define GR_MODEL_ARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "gpurun.h"
#include "gr/op.h"

#define GR_MAX_LAYER 512
#define GR_REL_FAR 128 /* distances beyond it are like it (T5) */

enum gr_slot {
#define SLOT(NAME, name) GR_W_##NAME,
#include "model/slot.def"
#undef SLOT
    GR_N_SLOT
};

/* Symbols for dimensions of weights; the values are those of the layer that is being bound. */
enum gr_dim {
    GR_D_NONE,
    GR_D_VOCAB,
    GR_D_EMBD,
    GR_D_CTX,   /* training context */
    GR_D_Q,     /* n_head * d_k */
    GR_D_K,     /* n_head_kv * d_k */
    GR_D_V,     /* n_head_kv * d_v */
    GR_D_QKV,   /* the three side by side */
    GR_D_QKV_3, /* in a matrix of 3 * GR_D_Q rows, of which the last are not used where there are
                   fewer KV heads than heads */
    GR_D_O,     /* n_head * d_v; n_embd where a matrix stands for attention */
    GR_D_HEAD,  /* d_k */
    GR_D_HEADS, /* n_head */
    GR_D_HEADS_KV,
    GR_D_ROT_2, /* n_rot / 2 of the layers that turn most */
    GR_D_FF,
    GR_D_FF_2, /* gate and up side by side */
    GR_D_EXPERT,
    GR_D_FF_EXP,
    GR_D_FF_EXP_2,   /* gate and up side by side */
    GR_D_FF_SHEXP,   /* the shared experts, side by side */
    GR_D_FF_SHEXP_2, /* gate and up of these side by side */
    GR_D_LATENT,     /* columns that experts see */
    GR_D_ADJUGATE,   /* n_expert / n_adjugate */
    GR_D_FF_ADJ,
    /* latent attention: heads of d_k_mla and d_v_mla, whose keys and values are made of a latent */
    GR_D_LORA_Q,
    GR_D_LORA_KV,
    GR_D_KV_A,  /* the latent and the roped columns */
    GR_D_Q_MLA, /* n_head * d_k_mla */
    GR_D_O_MLA, /* n_head * d_v_mla */
    GR_D_NOPE,  /* d_k_mla - n_rot */
    GR_D_V_MLA, /* d_v_mla */
    GR_D_KV_B,  /* n_head * (d_k_mla - n_rot + d_v_mla) */
    GR_D_GATE,  /* n_head * d_gate */
    GR_D_ONE,
    GR_D_BUCKET,  /* of relative positions */
    GR_D_TYPES,   /* token types */
    GR_D_FF_UP,   /* n_ff, or gate and up side by side */
    GR_D_CLS,     /* scores of a classifier */
    GR_D_DENSE_2, /* rows of the first matrix behind pooling */
    GR_D_DENSE_3, /* columns of the second one */
    GR_D_EMBD_3,
    GR_D_Q_2, /* queries and their gates */
    /* recurrent layers */
    GR_D_KERNEL,
    GR_D_CHANNEL,
    GR_D_INNER,
    GR_D_INNER_2, /* two of them side by side */
    GR_D_INNER_3,
    GR_D_STATE,
    GR_D_RANK,
    GR_D_DT,      /* n_dt */
    GR_D_DT_BC,   /* B, C and n_dt side by side */
    GR_D_RANK_2,  /* beta and alpha side by side */
    GR_D_RANK_BC, /* time step, B and C side by side (Mamba 1) */
    GR_D_SSM_IN,  /* gate, what is convolved, time steps (Mamba 2) */
    GR_D_GROUP,
    GR_D_IN_GROUP, /* n_inner / n_group */
    GR_D_KV_INNER, /* n_group * n_state */
    /* mixing with the token before */
    GR_D_LERP,  /* n_lerp */
    GR_D_MIX,   /* ranks of small matrices: n_lora_mix, .. */
    GR_D_MIX_5, /* .. five of them side by side */
    GR_D_MIX_DECAY,
    GR_D_MIX_RATE,
    GR_D_MIX_VALUE, /* in the first layer, where nobody reads it, n_lora_rate */
    GR_D_MIX_GATE,
    GR_N_DIM
};

enum gr_spec_flag {
    GR_OPTIONAL = 1,
    GR_BIAS = 2,         /* a bias is required */
    GR_BIAS_MAYBE = 4,   /* a bias may be there */
    GR_IN_STATE = 8,     /* only in layers with a state .. */
    GR_IN_KV = 16,       /* .. or with keys and values */
    GR_IN_HEADS = 32,    /* .. or with heads, which may have no keys and values */
    GR_IN_FF = 64,       /* .. or with a feed-forward part */
    GR_FIRST = 2048,     /* optional but in the first layer */
    GR_BUT_FIRST = 256,  /* optional in the first layer alone */
    GR_AS_F32 = 128,     /* small: f32 in memory whatever the file has, as vectors are */
    GR_SPREAD = 512,     /* the file has one number a row, which is repeated; with GR_AS_F32 */
    GR_IN_ENC = 4096,    /* only in the encoder's layers .. */
    GR_IN_DEC = 8192,    /* .. or in those behind it that attend to their own past .. */
    GR_IN_CROSS = 16384, /* .. or in those that attend to what the encoder gave */
    GR_EACH = 1024       /* outside the layers in the file, and part of every layer */
};

/* One weight: its slot, flags, and shape innermost dimension first, as GGUF prints it. */
struct gr_tensor_spec {
    enum gr_slot slot;
    int flags;
    enum gr_dim dim[3];
};

/* Q, K and V as files have them: one fused matrix or three; with GR_BIAS_MAYBE, biases or none. */
/* clang-format off */
#define GR_SPEC_QKV(bias)                                                                          \
    {GR_W_ATTN_QKV, GR_OPTIONAL | (bias), {GR_D_EMBD, GR_D_QKV}},                                  \
    {GR_W_ATTN_Q, GR_OPTIONAL | (bias), {GR_D_EMBD, GR_D_Q}},                                  \
    {GR_W_ATTN_K, GR_OPTIONAL | (bias), {GR_D_EMBD, GR_D_K}},                                  \
    {GR_W_ATTN_V, GR_OPTIONAL | (bias), {GR_D_EMBD, GR_D_V}}
#define GR_SPEC_EMBD                                                                               \
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}}, {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},             \
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}}
/* Feed-forward parts with gates: dense, of experts behind a router, of what experts share. */
#define GR_SPEC_GLU(flags)                                                                         \
    {GR_W_FFN_GATE, flags, {GR_D_EMBD, GR_D_FF}},                                                  \
    {GR_W_FFN_UP, flags, {GR_D_EMBD, GR_D_FF}},                                                    \
    {GR_W_FFN_DOWN, flags, {GR_D_FF, GR_D_EMBD}}
#define GR_SPEC_EXPERTS(flags)                                                                     \
    {GR_W_FFN_GATE_INP, flags, {GR_D_EMBD, GR_D_EXPERT}},                                          \
    {GR_W_FFN_GATE_EXPS, flags, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}},                            \
    {GR_W_FFN_UP_EXPS, flags, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}},                              \
    {GR_W_FFN_DOWN_EXPS, flags, {GR_D_FF_EXP, GR_D_EMBD, GR_D_EXPERT}}
#define GR_SPEC_SHARED_EXPERT(flags)                                                               \
    {GR_W_FFN_GATE_SHEXP, flags, {GR_D_EMBD, GR_D_FF_SHEXP}},                                      \
    {GR_W_FFN_UP_SHEXP, flags, {GR_D_EMBD, GR_D_FF_SHEXP}},                                        \
    {GR_W_FFN_DOWN_SHEXP, flags, {GR_D_FF_SHEXP, GR_D_EMBD}}
/* Recurrent layers; `flags`: GR_IN_STATE where other layers have none. */
#define GR_SPEC_MAMBA(flags)                                                                       \
    {GR_W_SSM_IN, flags, {GR_D_EMBD, GR_D_INNER_2}},                                               \
    {GR_W_SSM_CONV, (flags) | GR_BIAS | GR_AS_F32, {GR_D_KERNEL, GR_D_CHANNEL}},                   \
    {GR_W_SSM_X, flags, {GR_D_INNER, GR_D_RANK_BC}},                                               \
    {GR_W_SSM_DT, (flags) | GR_BIAS, {GR_D_RANK, GR_D_INNER}},                                     \
    {GR_W_SSM_A, (flags) | GR_AS_F32, {GR_D_STATE, GR_D_INNER}},                                   \
    {GR_W_SSM_D, flags, {GR_D_INNER}},                                                             \
    {GR_W_SSM_OUT, flags, {GR_D_INNER, GR_D_EMBD}}
/* `maybe`: GR_OPTIONAL where the convolution's bias and the norm may be left out. */
#define GR_SPEC_MAMBA2(flags, maybe)                                                               \
    {GR_W_SSM_IN, flags, {GR_D_EMBD, GR_D_SSM_IN}},                                                \
    {GR_W_SSM_CONV, (flags) | ((maybe) ? GR_BIAS_MAYBE : GR_BIAS) | GR_AS_F32,                     \
     {GR_D_KERNEL, GR_D_CHANNEL}},                                                                 \
    {GR_W_SSM_DT_BIAS, flags, {GR_D_RANK}},                                                        \
    {GR_W_SSM_A, (flags) | GR_AS_F32, {GR_D_ONE, GR_D_RANK}},                                      \
    {GR_W_SSM_D, (flags) | GR_AS_F32, {GR_D_ONE, GR_D_RANK}},                                      \
    {GR_W_SSM_NORM, (flags) | (maybe) | GR_AS_F32, {GR_D_IN_GROUP, GR_D_GROUP}},                   \
    {GR_W_SSM_OUT, flags, {GR_D_INNER, GR_D_EMBD}}
#define GR_SPEC_SHORT_CONV(flags)                                                                  \
    {GR_W_SHORTCONV_IN, flags, {GR_D_EMBD, GR_D_EMBD_3}},                                          \
    {GR_W_SHORTCONV, (flags) | GR_AS_F32, {GR_D_KERNEL, GR_D_EMBD}},                               \
    {GR_W_SHORTCONV_OUT, flags, {GR_D_EMBD, GR_D_EMBD}}
#define GR_SPEC_DELTA(flags)                                                                       \
    {GR_W_SSM_CONV, (flags) | GR_AS_F32, {GR_D_KERNEL, GR_D_CHANNEL}},                             \
    {GR_W_SSM_DT_BIAS, flags, {GR_D_RANK}},                                                        \
    {GR_W_SSM_A, flags, {GR_D_RANK}},                                                              \
    {GR_W_SSM_NORM, flags, {GR_D_STATE}},                                                          \
    {GR_W_SSM_OUT, flags, {GR_D_INNER, GR_D_EMBD}}
/* Delta rule with a decay for every row of K: convolutions of their own for Q, K and V. */
#define GR_SPEC_KDA(flags)                                                                         \
    {GR_W_ATTN_QKV, (flags) | GR_OPTIONAL, {GR_D_EMBD, GR_D_INNER_3}},                             \
    {GR_W_ATTN_Q, (flags) | GR_OPTIONAL, {GR_D_EMBD, GR_D_INNER}},                                 \
    {GR_W_ATTN_K, (flags) | GR_OPTIONAL, {GR_D_EMBD, GR_D_INNER}},                                 \
    {GR_W_ATTN_V, (flags) | GR_OPTIONAL, {GR_D_EMBD, GR_D_INNER}},                                 \
    {GR_W_SSM_CONV_Q, (flags) | GR_AS_F32, {GR_D_KERNEL, GR_D_INNER}},                             \
    {GR_W_SSM_CONV_K, (flags) | GR_AS_F32, {GR_D_KERNEL, GR_D_INNER}},                             \
    {GR_W_SSM_CONV_V, (flags) | GR_AS_F32, {GR_D_KERNEL, GR_D_INNER}},                             \
    {GR_W_SSM_BETA, flags, {GR_D_EMBD, GR_D_RANK}},                                                \
    {GR_W_SSM_A, flags, {GR_D_RANK}},                                                              \
    {GR_W_SSM_DT_BIAS, flags, {GR_D_INNER}},                                                       \
    {GR_W_SSM_NORM, flags, {GR_D_STATE}},                                                          \
    {GR_W_ATTN_OUT, flags, {GR_D_INNER, GR_D_EMBD}}
/* Latent attention; `flags`: GR_IN_KV where other layers have none. */
#define GR_SPEC_MLA(flags)                                                                         \
    {GR_W_ATTN_Q, (flags) | GR_OPTIONAL, {GR_D_EMBD, GR_D_Q_MLA}},                                 \
    {GR_W_ATTN_Q_A, (flags) | GR_OPTIONAL, {GR_D_EMBD, GR_D_LORA_Q}},                              \
    {GR_W_ATTN_Q_A_NORM, (flags) | GR_OPTIONAL, {GR_D_LORA_Q}},                                    \
    {GR_W_ATTN_Q_B, (flags) | GR_OPTIONAL, {GR_D_LORA_Q, GR_D_Q_MLA}},                             \
    {GR_W_ATTN_KV_A, flags, {GR_D_EMBD, GR_D_KV_A}},                                               \
    {GR_W_ATTN_KV_A_NORM, flags, {GR_D_LORA_KV}},                                                  \
    {GR_W_ATTN_K_B, flags, {GR_D_NOPE, GR_D_LORA_KV, GR_D_HEADS}},                                 \
    {GR_W_ATTN_V_B, flags, {GR_D_LORA_KV, GR_D_V_MLA, GR_D_HEADS}},                                \
    {GR_W_ATTN_OUT, flags, {GR_D_O_MLA, GR_D_EMBD}}
/* clang-format on */

enum gr_scaling { GR_SCALE_NONE, GR_SCALE_LINEAR, GR_SCALE_YARN, GR_SCALE_LONGROPE };

/* Hyper-parameters, checked: heads divide, dimensions are in range, floats are finite. */
struct gr_hparams {
    int32_t n_vocab, n_ctx_train, n_embd, n_layer;
    int32_t n_learned_pos; /* rows of the table of learned positions, which are part of what is
                      stored; 0: there is no table */
    int32_t n_head[GR_MAX_LAYER], n_head_kv[GR_MAX_LAYER], n_ff[GR_MAX_LAYER];
    int32_t d_k, d_v; /* of a head */
    /* what is kept from step to step */
    bool no_cache; /* attention sees its own micro-batch only, past and future (encoders, diffusion)
                    */
    enum gr_pooling pooling; /* of vectors, unless the session says otherwise; NONE, not MODEL */
    enum gr_pooling pooling_cls; /* in front of a classifier: MEAN, or the first or last token */
    enum gr_act_kind cls_act;    /* between the matrices of a classifier */
    bool cls_softmax;            /* its scores sum to 1 */
    int32_t n_cls;               /* scores */
    int32_t n_bucket;            /* of relative positions, 0: none; what is GR_REL_FAR away and more
                                    is in the last one */
    int32_t n_token_type;        /* of which every token is the first; 0: not known */
    int32_t n_ff_up; /* rows of the first feed-forward matrix, where that is n_ff or twice */
    enum gr_act_kind ffn_act;     /* where files differ */
    int32_t n_dense_2, n_dense_3; /* rows and columns of the matrices behind pooling */
    bool v_in_k; /* V is the last n_head_kv * d_v columns of K's rows (MLA's latent) */
    int32_t kv_of[GR_MAX_LAYER]; /* the layer whose keys and values layer il attends to: il, or an
                                    earlier one; -1 = it has none (also where n_head_kv is 0) */
    int32_t n_enc; /* layers of an encoder in front of the others (kv_of -1), whose tokens see those
                      of their own micro-batch; 0: there is none */
    int32_t decoder_start;        /* token that gr_decode begins with behind an encoder */
    bool recurrent[GR_MAX_LAYER]; /* has a state of n_conv_state + n_ssm_state f32 a sequence */
    int32_t n_conv_state, n_ssm_state;
    /* latent attention: what a head is before it is absorbed; d_k and d_v are n_rot + n_lora_kv and
     * n_lora_kv then */
    int32_t d_k_mla, d_v_mla, n_lora_q, n_lora_kv;
    /* experts */
    int32_t n_expert, n_expert_used, n_ff_exp, n_ff_shexp;
    enum gr_gate_kind expert_gate;
    bool expert_norm;                            /* weights of the chosen experts sum to 1 */
    float expert_scale;                          /* of the weights; 0 = 1 */
    int32_t n_expert_group, n_expert_group_used; /* 1, 1 = no groups */
    bool expert_weighs_input; /* a chosen expert sees the input times its weight, instead of giving
                                 what it gives times that */
    int32_t n_latent;         /* columns that experts see and give; 0 = n_embd */
    /* adjugate experts: one for each n_adjugate experts, of n_ff_adj columns */
    int32_t n_adjugate, n_ff_adj;
    float adjugate_scale;
    int32_t n_kernel, n_channel;               /* of the convolution in front */
    int32_t n_inner, n_state, n_rank, n_group; /* columns, numbers a column, time steps (or their
                                                  rank), groups that share B and C (or K) */
    int32_t n_dt;                              /* rank of the time steps of Mamba 1 with heads */
    float decay_bound, decay_slope;    /* of the delta rule (gr_args_delta_rule); bound 0: none */
    float glu_limit[GR_MAX_LAYER];     /* of SiLU's result and of what it meets, in the feed-forward
                                          part and in shared experts .. */
    float glu_limit_exp[GR_MAX_LAYER]; /* .. and in experts; 0: none */
    int32_t n_lerp, n_lora_mix, n_lora_decay, n_lora_rate, n_lora_value, n_lora_gate; /* of mixing
                                                    with the token before */
    bool glu_limit_first; /* glu_limit is of what SiLU is taken of, instead of its result */
    int32_t n_res_block;  /* the stream is kept at layers il % this == 0; 0: it is not */
    float situ_beta, situ_linear_beta; /* of gr_glu's SITU; situ_beta 0: SiLU, no linear bound: 0 */
    int32_t halve_every; /* after so many layers each everything is halved; 0: never */
    int32_t n_ctx_dense; /* longest context in which a token sees all others before it; 0: any. What
                            is chosen in longer ones cannot be computed */
    bool norm_dt_b_c;    /* time step, B and C are normed without weights */
    int32_t qkv_apart; /* rows from Q's first to K's and from there to V's, where they do not follow
                          each other; 0 = they do */
    bool norm_embd;    /* the embeddings pass a norm without weights */
    int32_t weights_of[GR_MAX_LAYER]; /* the layer of the file whose weights layer il has */
    int32_t round, n_low; /* of models that pass layers more than once: layers of a round or stack,
                             runs of the low stack before one of the high */
    bool parallel;        /* the feed-forward does not see what attention adds */
    float eps, eps_post;  /* of norms; of those behind attention and feed-forward: 0 = the same */
    enum gr_norm_kind norm;
    float attn_scale;  /* 0: 1 / sqrt(d_k) */
    float value_scale; /* of what attention gives; 0 = 1 */
    struct { /* queries at position p times 1 + scale * ln(1 + floor((p + first) / length)) */
        float scale; /* 0: not at all */
        int32_t first, length;
    } temper;
    int32_t d_gate;      /* gates of a head: 1, or one for each of its columns */
    float attn_softcap;  /* 0: none */
    float final_softcap; /* 0: none */
    float clamp_kqv;     /* 0: none */
    float max_alibi;     /* 0: none */
    float embd_scale;    /* of the token embeddings */
    bool scales_tokens;  /* not of vectors in their place */
    bool only_tokens;    /* vectors in their place would go another way through the layers */
    struct gr_xielu {    /* gr_args_xielu */
        float positive, negative, linear, below;
    } xielu[GR_MAX_LAYER];
    float residual_scale; /* of what a part of a layer adds; 0 = 1 */
    float logit_scale;    /* the logits are divided by it; 0 = 1 */
    /* sliding window */
    int32_t n_swa; /* 0: none */
    bool swa_both; /* n_swa / 2 positions to either side are seen; for no_cache */
    bool
        chunked; /* a window begins at the last multiple of n_swa instead of going with the token */
    bool swa[GR_MAX_LAYER]; /* layers whose keys and values are in the second kind of cache: those
                               with a window or, in a model with an encoder, those that attend to
                               what it gave (gr_is_cross) */
    /* rope */
    enum gr_rope_kind rope;
    bool no_rope[GR_MAX_LAYER]; /* layers that know no positions */
    bool norm_roped;            /* norms of Q and K follow the rotation: positions themselves
                                   matter, not distances alone */
    int32_t n_rot, n_rot_swa;   /* columns of a head that are turned; in windowed layers */
    bool rot_by_kind;           /* the two differ; otherwise the first layer's counts for all */
    int32_t
        section[4];   /* M-RoPE: pairs that turn by t, y, x and not at all; all 0 = one position */
    bool interleaved; /* sections take turns (t y x t y x ..) instead of following each other */
    float freq_base, freq_base_swa; /* of the full and of the windowed layers */
    float freq_scale, freq_scale_swa;
    bool plain_swa_rope; /* no scaling of any kind is for windowed layers */
    enum gr_scaling scaling;
    int32_t n_ctx_orig; /* context length before scaling */
    float rope_attn_factor;
    float yarn_ext_factor, yarn_attn_factor, yarn_beta_fast,
        yarn_beta_slow; /* ext < 0: as the scaling says */
    bool
        yarn_scales_attn; /* YaRN's magnitude belongs to the attention's scale as well (DeepSeek) */
    float yarn_log_mul;   /* with it: that magnitude is 1 + this * ln(factor), and rope's is 1, or
                             without yarn_scales_attn YaRN's own divided by it; 0: both are YaRN's
                             own */
};

/* Whether a layer's tokens see those of their own micro-batch, and nothing of them is kept. */
static inline bool gr_sees_itself(const struct gr_hparams *hp, int32_t il)
{
    return hp->no_cache || il < hp->n_enc;
}

/* Whether a layer attends to what the encoder gave, all of it. */
static inline bool gr_is_cross(const struct gr_hparams *hp, int32_t il)
{
    return hp->n_enc > 0 && hp->swa[il];
}

/* Whether a layer has a sliding window. */
static inline bool gr_any_window(const struct gr_hparams *hp)
{
    for (int32_t il = 0; il < hp->n_layer; il++)
        if (hp->swa[il])
            return true;
    return false;
}

/* The layer that the weights of layer il have in the file; -1: -1. */
int gr_file_layer(const struct gr_hparams *hp, int il);
/* Value of a symbolic dimension for layer il (-1: outside the layers). */
int64_t gr_dim_value(const struct gr_hparams *hp, enum gr_dim d, int il);

/* Whether layer il is of the kind that has this weight. */
bool gr_spec_applies(const struct gr_hparams *hp, const struct gr_tensor_spec *s, int il);

/* The slot of the factors, one for each expert, that products with a slot's matrices may have; the
 * slot itself when one factor is all, GR_N_SLOT when there is none. */
enum gr_slot gr_scale_slot(enum gr_slot slot);

struct gr_extent {
    int32_t lo, hi; /* [lo, hi) */
};

/* What one of the n_shard ranks that share every layer has of it. Its hyper-parameters say how much
 * of each dimension, this says which. All else is whole on every rank. */
struct gr_share {
    int32_t shard, n_shard;
    const struct gr_hparams *whole; /* the model's */
    struct gr_extent head[GR_MAX_LAYER], head_kv[GR_MAX_LAYER], ff[GR_MAX_LAYER];
    struct gr_extent ff_exp, ff_shexp;
    struct gr_extent vocab; /* of the logits: rows of the output matrix. Shard s begins at s times
                              what shard 0 has; the last one may have fewer */
};

/* What an adapter has, as the weights that it changes: [n_layer + 1][GR_N_SLOT], absent where it
 * changes nothing. W [out, in] gets A [rank, in] and B [out, rank], experts one of each; the token
 * embeddings [n_vocab, n] get A [n_vocab, rank] and B [n, rank]. */
struct gr_lora {
    struct gr_ten *a, *b;
    float alpha; /* of the file: B A counts alpha / rank times the adapter's scale; 0 = once */
};

/* Reads one key "<arch>.<key>" for a family's options. A missing key leaves *out as it is; a wrong
 * type or a value out of range (not finite; outside [lo, hi]) is GR_E_CORRUPT naming key, expected,
 * found. */
struct gr_hp_source;
int gr_hp_f32(struct gr_hp_source *s, const char *key, float *out);
int gr_hp_i32(struct gr_hp_source *s, const char *key, int32_t lo, int32_t hi, int32_t *out);
int gr_hp_bool(struct gr_hp_source *s, const char *key, bool *out);
/* The same for a required key. */
int gr_hp_need_f32(struct gr_hp_source *s, const char *key, float *out);
int gr_hp_need_i32(struct gr_hp_source *s, const char *key, int32_t lo, int32_t hi, int32_t *out);
/* One number for all layers, or one for each. */
int gr_hp_each(struct gr_hp_source *s, const char *key, int32_t lo, int32_t hi, int32_t n,
               int32_t *out);
/* n finite numbers >= 0: one for all layers, or one for each. A missing key leaves them as they
 * are.
 */
int gr_hp_f32_each(struct gr_hp_source *s, const char *key, int32_t n, float *out);
bool gr_hp_has(struct gr_hp_source *s, const char *key);
/* Which layers have a sliding window: the file's "attention.sliding_window_pattern" (one flag a
 * layer, or a period of which the last layer has none), otherwise layers il with il % period <
 * period - 1; period 0 = no layer. */
int gr_hp_swa(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period);
/* The same, but the first layer of a period is the one that has none. */
int gr_hp_swa_after(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period);
/* Fails unless the file says how many token types there are. */
int gr_hp_token_types(const struct gr_hparams *hp);
/* Whether a key holds this text. */
bool gr_hp_says(struct gr_hp_source *s, const char *key, const char *text);
/* Rows of a tensor of the file, 0 when it has none of that name. */
int64_t gr_hp_rows(struct gr_hp_source *s, const char *tensor);

/* The keys of recurrent layers, checked, and the size of their state: n_channel = n_inner (Mamba
 * 1), with B and C beside it (Mamba 2), or Q, K and V (gated delta rule; n_state wide heads, n_rank
 * of V on n_group of K). */
enum gr_recurrence { GR_MAMBA, GR_MAMBA_HEADS, GR_MAMBA_2, GR_DELTA };
int gr_hp_recurrence(struct gr_hp_source *s, struct gr_hparams *hp, enum gr_recurrence kind);
/* The delta rule with a decay for every row of K: as many heads as layer 0 has, "kda.head_dim"
 * wide.
 */
int gr_hp_kda(struct gr_hp_source *s, struct gr_hparams *hp);
/* "kda.gate_lower_bound", negative, for gr_hparams.decay_bound. `maybe`: without the key, or where
 * it says minus infinity, there is none. */
int gr_hp_decay_bound(struct gr_hp_source *s, struct gr_hparams *hp, float slope, bool maybe);
/* Linear attention where other layers attend: as many heads as layer 0 has, as wide as its keys. */
int gr_hp_linear_attn(struct gr_hp_source *s, struct gr_hparams *hp);
/* The same in every layer, with n_shift rows of the token before it: "wkv.head_size" wide heads,
 * whose K and V may have fewer. */
int gr_hp_wkv(struct gr_hp_source *s, struct gr_hparams *hp, int32_t n_shift);
/* Which layers are recurrent: a list in the file, or all but every period-th. */
int gr_hp_find_recurrent(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period);
/* Layer il has a state instead of keys and values. */
void gr_hp_set_recurrent(struct gr_hparams *hp, int32_t il);
/* The same for every layer whose count of KV heads is 0. */
void gr_hp_recurrent_without_kv(struct gr_hparams *hp);
/* The state of short convolutions over n_embd columns, from "shortconv.l_cache". */
int gr_hp_short_conv(struct gr_hp_source *s, struct gr_hparams *hp);

/* All layers `times` times, one after the other, with the same weights. */
int gr_hp_repeat(struct gr_hp_source *s, struct gr_hparams *hp, int32_t times);
/* Stacks of n layers: n_low times the first, once the second, all that n_high times. */
int gr_hp_stacks(struct gr_hp_source *s, struct gr_hparams *hp, int32_t n, int32_t n_low,
                 int32_t n_high);
/* The embeddings are multiplied by "embedding_scale", if the file has it; 0 is 1. */
int gr_hp_embd_scale(struct gr_hp_source *s, struct gr_hparams *hp);
/* The logits are multiplied by "logit_scale", if the file has it. */
int gr_hp_logit_factor(struct gr_hp_source *s, struct gr_hparams *hp);
/* Fails unless heads of V are as wide as those of K. */
int gr_hp_equal_heads(struct gr_hp_source *s, const struct gr_hparams *hp);
/* Every column of a head is turned, whatever the file says. */
int gr_hp_rope_all(struct gr_hp_source *s, struct gr_hparams *hp);
/* Fails unless V's rows are among those of GR_D_QKV_3. */
int gr_hp_qkv_fits(struct gr_hp_source *s, const struct gr_hparams *hp);
/* M-RoPE's sections, from the required "rope.dimension_sections". */
int gr_hp_sections(struct gr_hp_source *s, struct gr_hparams *hp);
/* The same; without the key, or where it says 0, there are none. */
int gr_hp_maybe_sections(struct gr_hp_source *s, struct gr_hparams *hp);
/* glu_limit and glu_limit_exp: one number for all layers, or one for each. */
int gr_hp_glu_limits(struct gr_hp_source *s, struct gr_hparams *hp);
/* The widths of latent attention. Older files have no "attention.key_length_mla" and the matrix of
 * gr_hp_latent. */
int gr_hp_mla(struct gr_hp_source *s, struct gr_hparams *hp);
/* The same where one matrix makes keys and values of every head, and these are kept. */
int gr_hp_latent(struct gr_hp_source *s, struct gr_hparams *hp);
/* How queries grow with positions, when the file says so. */
int gr_hp_temper(struct gr_hp_source *s, struct gr_hparams *hp);
/* xIELU's coefficients, one of each for all layers or one for each of them. */
int gr_hp_xielu(struct gr_hp_source *s, struct gr_hparams *hp);
/* GR_E_UNSUPPORTED: the file has this key, and what it asks for is not there. */
int gr_hp_unsupported(struct gr_hp_source *s, const char *key);
/* How experts are chosen and weighted, and the width of the shared ones. `otherwise` is the gate
 * when the file does not say. */
int gr_hp_experts(struct gr_hp_source *s, struct gr_hparams *hp, enum gr_gate_kind otherwise);

/* The adjugate experts: how many experts have one in common, its width (that of a head when the
 * file does not say), how much it counts. */
int gr_hp_adjugates(struct gr_hp_source *s, struct gr_hparams *hp);

/* What scaled frequencies multiply with: the rotated columns, the attention's scale. */
struct gr_rope_mag {
    float rope, attn;
};

struct gr_build;

/* What gpurun quantize knows of a family besides the names of its tensors (quant/recipe.def). */
struct gr_arch_mix {
    uint32_t n_layer_large; /* a model of so many layers stores V in more bits; 0: none does .. */
    bool large_if_grouped;  /* .. only where heads share K and V */
    bool plain;             /* attention's output gets no type of its own */
    bool experts_alone;     /* has matrices for each head, which are stored as other matrices are */
};

struct gr_arch {
    const char *name; /* general.architecture */
    const struct gr_tensor_spec *spec;
    int n_spec;
    enum gr_norm_kind norm;
    enum gr_rope_kind rope;
    bool no_cache; /* as in the hyper-parameters */
    struct gr_arch_mix mix;
    bool no_logits; /* it ends with the last layer, or its norm */
    bool no_attn;   /* no layer attends: counts of heads mean what the family says */
    /* Options of the family; NULL = none. Runs after the common keys are read. */
    int (*hparams)(struct gr_hparams *hp, struct gr_hp_source *s);
    /* One layer: [1, n_tok, n_embd] in, the same out. */
    struct gr_ten (*layer)(struct gr_build *b, int il, struct gr_ten x);
    /* With an encoder: x is what its last layer gives; has layer il, one that attends to it, keep
     * what it attends to (gr_cross_keep). */
    void (*encoded)(struct gr_build *b, int il, struct gr_ten x);
};

#define GR_SPEC(table) .spec = (table), .n_spec = (int)(sizeof(table) / sizeof((table)[0]))

#endif
