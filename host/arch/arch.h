/* An architecture: a table of its tensors, options read from the file, and a graph function.
 *
 * A family is one file in host/models that defines one or several `struct gr_arch`; nothing but the
 * list in models.def names it. The table is the only validator of shapes: a dimension is a symbol
 * whose value comes from the hyper-parameters, and the graph may use what the table binds. */
#ifndef GR_ARCH_ARCH_H
#define GR_ARCH_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpurun.h"
#include "gr/op.h"

#define GR_MAX_LAYER 512
#define GR_REL_MAX_DISTANCE 128 /* larger distances count as this one (T5) */

enum gr_slot {
#define SLOT(NAME, name) GR_W_##NAME,
#include "arch/slot.def"
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
    GR_D_QKV,   /* Q, K and V side by side */
    GR_D_QKV_3, /* a matrix of 3 * GR_D_Q rows, the last of which are unused where there are fewer
                   KV heads than heads */
    GR_D_O,     /* n_head * d_v; n_embd where a matrix replaces attention */
    GR_D_HEAD,  /* d_k */
    GR_D_HEADS, /* n_head */
    GR_D_HEADS_KV,
    GR_D_ROT_2, /* n_rot / 2 of the layers that rotate the most columns */
    GR_D_FF,
    GR_D_FF_2, /* gate and up side by side */
    GR_D_EXPERT,
    GR_D_FF_EXP,
    GR_D_FF_EXP_2,   /* gate and up side by side */
    GR_D_FF_SHEXP,   /* the shared experts, side by side */
    GR_D_FF_SHEXP_2, /* gate and up of these side by side */
    GR_D_LATENT,     /* columns of an expert's input */
    GR_D_ADJUGATE,   /* n_expert / n_adjugate */
    GR_D_FF_ADJ,
    /* latent attention (MLA): heads of mla.d_k and mla.d_v columns, whose keys and values are
     * computed from a latent */
    GR_D_LORA_Q,
    GR_D_LORA_KV,
    GR_D_KV_A,  /* latent and roped columns side by side */
    GR_D_Q_MLA, /* n_head * mla.d_k */
    GR_D_O_MLA, /* n_head * mla.d_v */
    GR_D_NOPE,  /* mla.d_k - n_rot */
    GR_D_V_MLA, /* mla.d_v */
    GR_D_KV_B,  /* n_head * (mla.d_k - n_rot + mla.d_v) */
    GR_D_GATE,  /* n_head * d_gate */
    GR_D_ONE,
    GR_D_BUCKET,  /* buckets of relative positions */
    GR_D_TYPES,   /* token types */
    GR_D_FF_UP,   /* n_ff, or gate and up side by side */
    GR_D_CLS,     /* scores of a classifier */
    GR_D_DENSE_2, /* rows of the first matrix after pooling */
    GR_D_DENSE_3, /* columns of the second one */
    GR_D_EMBD_3,
    GR_D_Q_2, /* queries and their gates side by side */
    /* recurrent layers */
    GR_D_KERNEL,
    GR_D_CHANNEL,
    GR_D_INNER,
    GR_D_INNER_2, /* two such matrices side by side */
    GR_D_INNER_3,
    GR_D_STATE,
    GR_D_RANK,
    GR_D_DT,      /* n_dt */
    GR_D_DT_BC,   /* B, C and n_dt side by side */
    GR_D_RANK_2,  /* beta and alpha side by side */
    GR_D_RANK_BC, /* time step, B and C side by side (Mamba 1) */
    GR_D_SSM_IN,  /* gate, convolved columns and time steps side by side (Mamba 2) */
    GR_D_GROUP,
    GR_D_IN_GROUP, /* n_inner / n_group */
    GR_D_KV_INNER, /* n_group * n_state */
    /* mixing with the previous token */
    GR_D_LERP,  /* n_lerp */
    GR_D_MIX,   /* ranks of low-rank matrices: n_lora_mix, .. */
    GR_D_MIX_5, /* .. five of them side by side */
    GR_D_MIX_DECAY,
    GR_D_MIX_RATE,
    GR_D_MIX_VALUE, /* n_lora_value; in the first layer, where it is not used, n_lora_rate */
    GR_D_MIX_GATE,
    GR_N_DIM
};

enum gr_spec_flag {
    GR_OPTIONAL = 1,
    GR_BIAS = 2,         /* a bias is required */
    GR_BIAS_MAYBE = 4,   /* a bias is optional */
    GR_IN_STATE = 8,     /* only in layers with a recurrent state .. */
    GR_IN_KV = 16,       /* .. or with keys and values */
    GR_IN_HEADS = 32,    /* .. or with heads, which may have no keys and values */
    GR_IN_FF = 64,       /* .. or with a feed-forward part */
    GR_FIRST = 2048,     /* required in the first layer, optional in others */
    GR_BUT_FIRST = 256,  /* optional in the first layer, required in others */
    GR_AS_F32 = 128,     /* small: f32 in memory whatever its type in the file, like vectors */
    GR_REPEAT = 512,     /* one number per row in the file, repeated along it; with GR_AS_F32 */
    GR_IN_ENC = 4096,    /* only in the encoder's layers .. */
    GR_IN_DEC = 8192,    /* .. or in decoder layers with self-attention .. */
    GR_IN_CROSS = 16384, /* .. or in decoder layers with cross-attention */
    GR_EACH = 1024       /* stored outside the layers in the file, but used by every layer */
};

/* One weight: its slot, flags, and shape innermost dimension first, as GGUF prints it. */
struct gr_tensor_spec {
    enum gr_slot slot;
    int flags;
    enum gr_dim dim[3];
};

/* Q, K and V: one fused matrix or three; with GR_BIAS_MAYBE, biases are optional. */
/* clang-format off */
#define GR_SPEC_QKV(bias)                                                                          \
    {GR_W_ATTN_QKV, GR_OPTIONAL | (bias), {GR_D_EMBD, GR_D_QKV}},                                  \
    {GR_W_ATTN_Q, GR_OPTIONAL | (bias), {GR_D_EMBD, GR_D_Q}},                                  \
    {GR_W_ATTN_K, GR_OPTIONAL | (bias), {GR_D_EMBD, GR_D_K}},                                  \
    {GR_W_ATTN_V, GR_OPTIONAL | (bias), {GR_D_EMBD, GR_D_V}}
/* Attention with biases that are optional, as a pre-norm layer has it; norms of the heads. */
#define GR_SPEC_ATTN                                                                               \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}}, GR_SPEC_QKV(GR_BIAS_MAYBE),                                  \
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}}
#define GR_SPEC_HEAD_NORMS(flags)                                                                  \
    {GR_W_ATTN_Q_NORM, flags, {GR_D_HEAD}}, {GR_W_ATTN_K_NORM, flags, {GR_D_HEAD}}
/* Divisors of rope's frequencies: one set, or one for long and one for short contexts. */
#define GR_SPEC_ROPE_FACTORS                                                                       \
    {GR_W_ROPE_FREQS, GR_OPTIONAL, {GR_D_ROT_2}}, {GR_W_ROPE_LONG, GR_OPTIONAL, {GR_D_ROT_2}},     \
    {GR_W_ROPE_SHORT, GR_OPTIONAL, {GR_D_ROT_2}}
/* Token embeddings, norm of the output, and an output matrix that the embeddings may serve as. */
#define GR_SPEC_EMBD                                                                               \
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}}, {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},             \
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}}
/* Feed-forward parts with gates: dense, of experts with a router, of shared experts. */
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
/* Recurrent layers; `flags`: GR_IN_STATE where the model also has layers without a state. */
#define GR_SPEC_MAMBA(flags)                                                                       \
    {GR_W_SSM_IN, flags, {GR_D_EMBD, GR_D_INNER_2}},                                               \
    {GR_W_SSM_CONV, (flags) | GR_BIAS | GR_AS_F32, {GR_D_KERNEL, GR_D_CHANNEL}},                   \
    {GR_W_SSM_X, flags, {GR_D_INNER, GR_D_RANK_BC}},                                               \
    {GR_W_SSM_DT, (flags) | GR_BIAS, {GR_D_RANK, GR_D_INNER}},                                     \
    {GR_W_SSM_A, (flags) | GR_AS_F32, {GR_D_STATE, GR_D_INNER}},                                   \
    {GR_W_SSM_D, flags, {GR_D_INNER}},                                                             \
    {GR_W_SSM_OUT, flags, {GR_D_INNER, GR_D_EMBD}}
/* `maybe`: GR_OPTIONAL where the convolution's bias and the norm are optional. */
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
/* Delta rule with a decay for every row of K, and separate convolutions for Q, K and V. */
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
/* Latent attention; `flags`: GR_IN_KV where the model also has layers without attention. */
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

/* Hyper-parameters, checked: heads divide, dimensions are in range, floats are finite. Fields are
 * grouped by subject; n_ and d_ are numbers of rows, columns or items, and an array has an entry
 * for each layer. */
struct gr_hparams {
    int32_t n_vocab;                  /* tokens */
    int32_t n_ctx_train;              /* training context, in tokens */
    int32_t n_embd;                   /* columns of the residual stream */
    int32_t n_layer;                  /* layers that run, those of an encoder included */
    int32_t weights_of[GR_MAX_LAYER]; /* the layer of the file whose weights layer il uses */
    bool no_cache; /* no KV cache: attention sees all of its own micro-batch, past and future
                      (encoders, diffusion) */

    /* embeddings of tokens */
    struct {
        float scale;           /* factor; 1: none */
        bool scales_tokens;    /* it applies to tokens only, not to vectors in their place */
        bool only_tokens;      /* vectors in place of tokens are not supported: they would take
                                  another path through the layers */
        bool norm;             /* they go through a norm without weights */
        int32_t n_learned_pos; /* rows of the table of learned positions, which are part of cached K
                                  and V; 0: there is no table */
        int32_t n_token_type;  /* token types (every token has the first one); 0: unknown */
    } embd;

    /* attention */
    struct {
        int32_t n_head[GR_MAX_LAYER];    /* query heads; 0: no attention */
        int32_t n_head_kv[GR_MAX_LAYER]; /* key/value heads; 0: no keys and values */
        int32_t d_k, d_v;                /* columns of a head's K and V */
        /* The layer whose keys and values layer il attends to: il or an earlier one; -1: none (also
         * where n_head_kv is 0). */
        int32_t kv_of[GR_MAX_LAYER];
        float scale;       /* of the products of Q and K; 0: 1 / sqrt(d_k) */
        float value_scale; /* factor of the result; 0: none */
        float softcap;     /* limit of the scaled products; 0: none */
        float clamp_kqv;   /* limit of Q, K and V on both sides; 0: none */
        float max_alibi;   /* ALiBi's largest exponent; 0: no ALiBi */
        /* Buckets of relative positions; distances from GR_REL_MAX_DISTANCE on are in the last one;
         * 0: none. */
        int32_t n_bucket;
        int32_t n_ctx_dense; /* longest context in which attention is dense, in tokens; 0: any.
                                Sparse attention in longer ones is not supported */
        int32_t d_gate;      /* gates per head: 1, or one for each column */
        int32_t qkv_apart;   /* rows from the start of Q to that of K, and from there to that of V,
                                in a fused matrix where they are not adjacent; 0: they are */
        bool norm_roped;     /* norms of Q and K follow the rotation: absolute positions matter, not
                                only distances */
        /* factor of queries at position p: 1 + scale * ln(1 + floor((p + first) / length)) */
        struct {
            float scale; /* 0: no factor */
            int32_t first, length;
        } temper;
    } attn;

    /* latent attention; with a cached latent attn.d_k is rope.n_rot + n_lora_kv and attn.d_v is
     * n_lora_kv */
    struct {
        int32_t d_k, d_v;  /* columns of a head's K and V before absorption */
        int32_t n_lora_q;  /* rank of Q; 0: it has one matrix */
        int32_t n_lora_kv; /* columns of the latent; 0: no latent attention */
        bool v_in_k; /* the latent is cached: V is the last n_head_kv * d_v columns of K's rows */
    } mla;

    /* sliding windows */
    struct {
        int32_t n_swa; /* visible positions; 0: no window */
        bool both;     /* symmetric: n_swa / 2 positions to either side are visible; for no_cache */
        bool chunked;  /* a window begins at the last multiple of n_swa instead of sliding */
        bool layer[GR_MAX_LAYER]; /* layers whose keys and values are in GR_CACHE_SWA: those with a
                                     window or, in a model with an encoder, those with
                                     cross-attention (gr_is_cross) */
    } swa;

    /* rotary positions; _swa: of windowed layers */
    struct {
        enum gr_rope_kind kind;
        bool none[GR_MAX_LAYER];  /* layers without rope */
        int32_t n_rot, n_rot_swa; /* rotated columns of a head */
        bool rot_by_kind;   /* they differ; otherwise those of the first layer are used for all */
        int32_t section[4]; /* M-RoPE: numbers of pairs rotated by t, y, x and not at all; all 0: a
                               single position */
        bool interleaved;   /* sections are interleaved (t y x t y x ..) instead of consecutive */
        float freq_base, freq_base_swa;   /* above 0 */
        float freq_scale, freq_scale_swa; /* factor of all frequencies; 1: none */
        bool plain_swa;                   /* windowed layers have no rope scaling */
        enum gr_scaling scaling;
        int32_t n_ctx_orig;                   /* context before scaling, in tokens */
        float attn_factor, yarn_attn_factor;  /* of the rotated columns; 1: none */
        float yarn_ext_factor;                /* below 0: by the kind of scaling */
        float yarn_beta_fast, yarn_beta_slow; /* turns within n_ctx_orig */
        bool yarn_scales_attn; /* YaRN's magnitude also multiplies the attention scale (DeepSeek) */
        float yarn_log_mul;    /* with yarn_scales_attn: that magnitude is 1 + yarn_log_mul *
                                  ln(factor), and rope's is 1; without: rope's is YaRN's own divided
                                  by it; 0: both are YaRN's own */
    } rope;

    /* feed-forward part */
    struct {
        int32_t n_ff[GR_MAX_LAYER]; /* its columns; 0: none */
        int32_t n_ff_up;            /* rows of the first matrix, where these are n_ff or 2 * n_ff */
        enum gr_act_kind act;       /* in gr_pre_norm_layer and the like; SiLU unless the family
                                       sets another */
        float glu_limit[GR_MAX_LAYER];     /* limits of the factors of SiLU(gate) * up, here and in
                                              shared experts .. */
        float glu_limit_exp[GR_MAX_LAYER]; /* .. and in experts; 0: none */
        bool glu_limit_first;   /* glu_limit applies to the input of SiLU instead of its result */
        float situ_beta;        /* parameter of SITU; 0: SiLU */
        float situ_linear_beta; /* limit of SITU's linear factor; 0: none */
        struct gr_xielu {       /* gr_args_xielu */
            float positive, negative, linear, below;
        } xielu[GR_MAX_LAYER];
    } ff;

    /* mixture of experts */
    struct {
        int32_t n_expert;                            /* 0: there are none */
        int32_t n_expert_used;                       /* chosen for a token */
        int32_t n_expert_group, n_expert_group_used; /* 1, 1: no groups */
        int32_t n_ff_exp;                            /* columns of an expert */
        int32_t n_ff_shexp;                          /* of the shared experts, side by side */
        enum gr_gate_kind gate;
        bool weights_norm;    /* weights of the chosen experts sum to 1 */
        float weights_scale;  /* factor of the weights; 0: none */
        bool weighs_input;    /* the weight of a chosen expert multiplies its input instead of its
                                 output */
        int32_t n_latent;     /* columns of an expert's input and output; 0: n_embd */
        int32_t n_adjugate;   /* experts that share an adjugate expert .. */
        int32_t n_ff_adj;     /* .. of n_ff_adj columns; 0: there are none */
        float adjugate_scale; /* factor of the adjugate experts' sum */
    } moe;

    /* recurrent layers: Mamba, delta rule, linear attention, RWKV, short convolutions */
    struct {
        bool layer[GR_MAX_LAYER]; /* has a state of n_conv_state + n_ssm_state f32 per sequence */
        int32_t n_conv_state, n_ssm_state;
        int32_t n_kernel, n_channel;    /* convolution before the recurrence: tokens, columns */
        int32_t n_inner, n_state;       /* columns, state per column */
        int32_t n_rank;                 /* time steps or heads (or the rank of time steps) */
        int32_t n_group;                /* groups that share B and C (or K) */
        int32_t n_dt;                   /* rank of the time steps of Mamba 1 with heads */
        bool norm_dt_b_c;               /* time step, B and C go through norms without weights */
        float decay_bound, decay_slope; /* of the delta rule (gr_args_delta_rule); bound 0: none */
    } ssm;

    /* mixing with the previous token (RWKV) */
    struct {
        int32_t n_lerp;                                              /* mixtures */
        int32_t n_lora_mix, n_lora_decay, n_lora_rate, n_lora_value; /* ranks */
        int32_t n_lora_gate;                                         /* 0: no gate */
    } time_mix;

    struct {
        enum gr_norm_kind kind;
        float eps, eps_post; /* epsilon; of post-norms (0: the same) */
    } norm;

    /* residual stream */
    struct {
        float scale;         /* factor of what each part of a layer adds; 0: none */
        bool parallel;       /* attention and feed-forward have the same input */
        int32_t keep_every;  /* it is kept (gr_keep) at layers il % keep_every == 0; 0: never */
        int32_t halve_every; /* it is halved after every halve_every layers; 0: never */
    } residual;

    /* models that run layers repeatedly */
    struct {
        int32_t round; /* layers of a round or stack; 0: no norm between rounds */
        int32_t n_low; /* runs of the low stack before one of the high stack */
    } loop;

    struct {
        float scale;   /* the logits are divided by it; 0: they are not */
        float softcap; /* their limit; 0: none */
    } logits;

    /* vectors of texts */
    struct {
        enum gr_pooling kind;         /* by default; never MODEL */
        int32_t n_dense_2, n_dense_3; /* rows of the first, columns of the second matrix after
                                         pooling */
    } pool;

    /* classifier of texts */
    struct {
        enum gr_pooling pooling; /* before it: MEAN; otherwise the first token without a cache, or
                                    the last one */
        enum gr_act_kind act;    /* between its matrices */
        bool softmax;            /* softmax over its scores */
        int32_t n_cls;           /* number of scores */
    } cls;

    /* encoder */
    struct {
        int32_t n_layer; /* its layers, which precede the others (attn.kv_of -1) and attend to their
                            own micro-batch; 0: there is no encoder */
        int32_t decoder_start; /* token id, the first one of gr_decode */
    } enc;
};

/* Returns whether a layer attends to its own micro-batch only and caches nothing. */
static inline bool gr_sees_itself(const struct gr_hparams *hp, int32_t il)
{
    return hp->no_cache || il < hp->enc.n_layer;
}

/* Returns whether a layer attends to the encoder's output (cross-attention). */
static inline bool gr_is_cross(const struct gr_hparams *hp, int32_t il)
{
    return hp->enc.n_layer > 0 && hp->swa.layer[il];
}

/* Returns whether any layer has `swa.layer` set: a window or, with an encoder, cross-attention. */
static inline bool gr_any_window(const struct gr_hparams *hp)
{
    for (int32_t il = 0; il < hp->n_layer; il++)
        if (hp->swa.layer[il])
            return true;
    return false;
}

/* Writes the name of a slot's tensor ("blk.3.attn_q.weight"), or of its bias; returns buf. */
const char *gr_slot_name(enum gr_slot slot, int il, bool bias, char *buf, size_t n);
/* The layer of the file that has the weights of layer il; -1 for -1. */
int gr_file_layer(const struct gr_hparams *hp, int il);
/* The value of a symbolic dimension for layer il (-1: outside the layers). */
int64_t gr_dim_value(const struct gr_hparams *hp, enum gr_dim d, int il);

/* Returns whether layer il is of a kind that has this weight. */
bool gr_spec_applies(const struct gr_hparams *hp, const struct gr_tensor_spec *s, int il);

/* The slot of the factors, one per expert, that products with a slot's matrices may have; the slot
 * itself when there is a single factor, GR_N_SLOT when there is none. */
enum gr_slot gr_scale_slot(enum gr_slot slot);

struct gr_extent {
    int32_t lo, hi; /* [lo, hi) */
};

/* The share of one of n_shard ranks that divide every layer (tensor parallel). The shard's
 * hyper-parameters give the size of each divided dimension, this gives the ranges. Everything else
 * is whole on every rank. */
struct gr_share {
    int32_t shard, n_shard;
    const struct gr_hparams *whole; /* hyper-parameters of the whole model */
    struct gr_extent head[GR_MAX_LAYER], head_kv[GR_MAX_LAYER], ff[GR_MAX_LAYER];
    struct gr_extent ff_exp, ff_shexp;
    struct gr_extent vocab; /* rows of the output matrix. Shard s begins at s times the size of
                               shard 0's part; the last one may have fewer */
};

/* Matrices of an adapter, indexed like the weights that it changes: [n_layer + 1][GR_N_SLOT],
 * absent where it changes nothing. For W [out, in]: A [rank, in] and B [out, rank], experts one of
 * each; for token embeddings [n_vocab, n]: A [n_vocab, rank] and B [n, rank]. */
struct gr_lora {
    struct gr_ten *a, *b;
    float alpha; /* from the file: the factor of B A is alpha / rank times the adapter's scale; 0:
                    the scale alone */
};

/* Reads one key "<arch>.<key>" for a family's options. A missing key leaves *out as it is; a wrong
 * type or a value out of range (not finite; outside [lo, hi]) is GR_E_CORRUPT naming key, expected,
 * found. */
struct gr_hp_source;
int gr_hp_f32(struct gr_hp_source *s, const char *key, float *out);
int gr_hp_i32(struct gr_hp_source *s, const char *key, int32_t lo, int32_t hi, int32_t *out);
int gr_hp_bool(struct gr_hp_source *s, const char *key, bool *out);
/* As above, for a required key. */
int gr_hp_need_f32(struct gr_hp_source *s, const char *key, float *out);
int gr_hp_need_i32(struct gr_hp_source *s, const char *key, int32_t lo, int32_t hi, int32_t *out);
/* Reads a required key: one number for all n items, or one for each. */
int gr_hp_each(struct gr_hp_source *s, const char *key, int32_t lo, int32_t hi, int32_t n,
               int32_t *out);
/* Reads n finite numbers >= 0: one for all layers, or one for each. Without the key: no change. */
int gr_hp_f32_each(struct gr_hp_source *s, const char *key, int32_t n, float *out);
bool gr_hp_has(struct gr_hp_source *s, const char *key);
/* Sets which layers have a sliding window: by "attention.sliding_window_pattern" in the file (one
 * flag per layer, or a period of which the last layer has none), otherwise layers il with il %
 * period < period - 1; period 0: no layer. */
int gr_hp_swa(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period);
/* As gr_hp_swa, but the first layer of a period is the one without a window. */
int gr_hp_swa_after(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period);
/* As gr_hp_swa; "rope.freq_base_swa", if the file has it, is the rope base of windowed layers. */
int gr_hp_swa_rope(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period);
/* As gr_hp_swa_rope; frequencies of windowed layers are not scaled, their default base is 10000. */
int gr_hp_swa_unscaled(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period);
/* Leaves rope to windowed layers among the layers from `first` on. */
void gr_hp_rope_in_windows(struct gr_hparams *hp, int32_t first);
/* Takes rope from layers first, first + period, .. */
void gr_hp_no_rope(struct gr_hparams *hp, int32_t first, int32_t period);
/* Fails unless the file gives the number of token types. */
int gr_hp_token_types(struct gr_hp_source *s, struct gr_hparams *hp);
/* Returns whether a key has this text. */
bool gr_hp_says(struct gr_hp_source *s, const char *key, const char *text);
/* Number of rows of a matrix in the file; 0 when there is none of that name. */
int64_t gr_hp_rows(struct gr_hp_source *s, const char *tensor);

/* Reads and checks the keys of recurrent layers, and sets the size of their state: n_channel =
 * n_inner (Mamba 1), with B and C in addition (Mamba 2), or Q, K and V (gated delta rule: heads
 * n_state wide, n_rank of V on n_group of K). */
enum gr_recurrence { GR_MAMBA, GR_MAMBA_HEADS, GR_MAMBA_2, GR_DELTA };
int gr_hp_recurrence(struct gr_hp_source *s, struct gr_hparams *hp, enum gr_recurrence kind);
/* The delta rule with a decay for every row of K: as many heads as layer 0 has, "kda.head_dim"
 * columns wide. */
int gr_hp_kda(struct gr_hp_source *s, struct gr_hparams *hp);
/* Reads decay_bound from "kda.gate_lower_bound", which is negative. `maybe`: without the key, or if
 * it is minus infinity, there is no bound. */
int gr_hp_decay_bound(struct gr_hp_source *s, struct gr_hparams *hp, float slope, bool maybe);
/* Linear attention in layers beside ones with attention: as many heads as layer 0 has, as wide as
 * its keys. */
int gr_hp_linear_attn(struct gr_hp_source *s, struct gr_hparams *hp);
/* Linear attention in every layer (RWKV), whose state also has n_shift rows of the previous token:
 * heads are "wkv.head_size" wide; K and V may have fewer heads. */
int gr_hp_wkv(struct gr_hp_source *s, struct gr_hparams *hp, int32_t n_shift);
/* Sets which layers are recurrent: by a list in the file, or all but every period-th one. */
int gr_hp_find_recurrent(struct gr_hp_source *s, struct gr_hparams *hp, int32_t period);
/* Makes layer il one with a recurrent state instead of keys and values. */
void gr_hp_set_recurrent(struct gr_hparams *hp, int32_t il);
/* Makes exactly the layers without KV heads recurrent. */
void gr_hp_recurrent_without_kv(struct gr_hparams *hp);
/* Sets the state of short convolutions over n_embd columns, from "shortconv.l_cache". */
int gr_hp_short_conv(struct gr_hp_source *s, struct gr_hparams *hp);

/* Repeats the sequence of all layers `times` times, with the same weights. */
int gr_hp_repeat(struct gr_hp_source *s, struct gr_hparams *hp, int32_t times);
/* Arranges stacks of n layers: n_high times (n_low times the first stack, once the second). */
int gr_hp_stacks(struct gr_hp_source *s, struct gr_hparams *hp, int32_t n, int32_t n_low,
                 int32_t n_high);
/* Sets the factor of the embeddings from "embedding_scale", if the file has it; 0 is 1. */
int gr_hp_embd_scale(struct gr_hp_source *s, struct gr_hparams *hp);
/* Makes "logit_scale", if the file has it, a factor of the logits. */
int gr_hp_logit_factor(struct gr_hp_source *s, struct gr_hparams *hp);
/* Fails unless V's heads are as wide as K's. */
int gr_hp_equal_heads(struct gr_hp_source *s, const struct gr_hparams *hp);
/* Makes rope rotate every column of a head, whatever the file says. */
int gr_hp_rope_all(struct gr_hp_source *s, struct gr_hparams *hp);
/* Fails unless V's rows are within the 3 * GR_D_Q rows of GR_D_QKV_3. */
int gr_hp_qkv_fits(struct gr_hp_source *s, const struct gr_hparams *hp);
/* Reads M-RoPE's sections from the required "rope.dimension_sections"; rope's pairs are NeoX's. */
int gr_hp_sections(struct gr_hp_source *s, struct gr_hparams *hp);
/* As above; without the key, or if it begins with 0, there are none. */
int gr_hp_maybe_sections(struct gr_hp_source *s, struct gr_hparams *hp);
/* Reads glu_limit and glu_limit_exp: one number for all layers, or one for each. */
int gr_hp_glu_limits(struct gr_hp_source *s, struct gr_hparams *hp);
/* Reads the widths of latent attention; without "attention.key_length_mla" as gr_hp_latent. */
int gr_hp_mla(struct gr_hp_source *s, struct gr_hparams *hp);
/* Reads the widths of latent attention for files in which one matrix makes the keys and values of
 * every head, which are cached. */
int gr_hp_latent(struct gr_hp_source *s, struct gr_hparams *hp);
/* Reads how queries scale with positions (temper), if the file has it. */
int gr_hp_temper(struct gr_hp_source *s, struct gr_hparams *hp);
/* Reads xIELU's coefficients: one of each for all layers, or one per layer. */
int gr_hp_xielu(struct gr_hp_source *s, struct gr_hparams *hp);
/* Fails with GR_E_UNSUPPORTED: the file has this key, which asks for something unsupported. */
int gr_hp_unsupported(struct gr_hp_source *s, const char *key);
/* Reads how experts are chosen and weighted, and the width of the shared ones. `otherwise`: the
 * gate when the file does not say. */
int gr_hp_experts(struct gr_hp_source *s, struct gr_hparams *hp, enum gr_gate_kind otherwise);
/* Weights the chosen experts by the softmax over all experts, so that the weights sum to 1,
 * whatever the file says. */
int gr_hp_softmax_experts(struct gr_hp_source *s, struct gr_hparams *hp);
/* Reads the adjugate experts: how many experts share one, its width (by default that of a head),
 * its factor. */
int gr_hp_adjugates(struct gr_hp_source *s, struct gr_hparams *hp);

/* Magnitudes of scaled frequencies: factors of the rotated columns and of the attention scale. */
struct gr_rope_mag {
    float rope, attn;
};

struct gr_build;

/* A family's properties for gpurun quantize, besides its tensors' names (quantize/recipe.def). */
struct gr_arch_mix {
    uint32_t n_layer_large; /* models of this many layers store V in more bits; 0: none does .. */
    bool large_if_grouped;  /* .. only with grouped-query attention */
    bool plain;             /* the attention output has no special type */
    bool experts_alone; /* has matrices per head, which are stored like other matrices; only those
                           of experts are special */
};

struct gr_arch {
    const char *name; /* general.architecture */
    const struct gr_tensor_spec *spec;
    int n_spec;
    enum gr_norm_kind norm;
    enum gr_rope_kind rope;
    bool no_cache; /* as in the hyper-parameters */
    struct gr_arch_mix mix;
    bool no_logits; /* the model ends with the last layer or its norm */
    bool no_attn;   /* no layer has attention: the family interprets counts of heads */
    /* Reads the family's options, after the common keys; NULL: there are none. */
    int (*hparams)(struct gr_hp_source *s, struct gr_hparams *hp);
    /* Records one layer: [1, n_tok, n_embd] in and out. */
    struct gr_ten (*layer)(struct gr_build *b, int il, struct gr_ten x);
    /* With an encoder: records that cross-attention layer il stores its keys and values
     * (gr_cross_keep) of x, the encoder's output. */
    void (*encoded)(struct gr_build *b, int il, struct gr_ten x);
};

#define GR_SPEC(table) .spec = (table), .n_spec = (int)(sizeof(table) / sizeof((table)[0]))

#endif
