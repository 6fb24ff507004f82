/* RWKV 6 and 7, and models made from Qwen 2 with their attention: no KV cache, but for each layer a
 * state and the previous token's row (token shift). Peng et al. 2024 (arXiv 2404.05892), 2025
 * (arXiv 2503.14456, 2501.15570). */
#include "graph/build.h"

/* clang-format off */
#define HEAD(bias)                                                      \
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},                      \
    {GR_W_OUTPUT_NORM, bias, {GR_D_EMBD}},                              \
    {GR_W_OUTPUT, 0, {GR_D_EMBD, GR_D_VOCAB}},                          \
    {GR_W_ATTN_NORM, (bias) & GR_BIAS, {GR_D_EMBD}}
#define TIME_MIX_6(kv_bias)                                             \
    {GR_W_TIME_MIX_W1, 0, {GR_D_EMBD, GR_D_MIX_5}},                     \
    {GR_W_TIME_MIX_W2, 0, {GR_D_MIX, GR_D_EMBD, GR_D_LERP}},            \
    {GR_W_TIME_MIX_LERP_X, 0, {GR_D_EMBD}},                             \
    {GR_W_TIME_MIX_DECAY, 0, {GR_D_EMBD}},                              \
    {GR_W_TIME_MIX_DECAY_W1, 0, {GR_D_EMBD, GR_D_MIX_DECAY}},           \
    {GR_W_TIME_MIX_DECAY_W2, 0, {GR_D_MIX_DECAY, GR_D_EMBD}},           \
    {GR_W_TIME_MIX_KEY, kv_bias, {GR_D_EMBD, GR_D_KV_INNER}},           \
    {GR_W_TIME_MIX_VALUE, kv_bias, {GR_D_EMBD, GR_D_KV_INNER}},         \
    {GR_W_TIME_MIX_RECEPTANCE, kv_bias, {GR_D_EMBD, GR_D_EMBD}},        \
    {GR_W_TIME_MIX_GATE, 0, {GR_D_EMBD, GR_D_EMBD}},                    \
    {GR_W_TIME_MIX_OUTPUT, 0, {GR_D_EMBD, GR_D_EMBD}}
#define TIME_MIX_7(maybe)                                               \
    {GR_W_TIME_MIX_W0, 0, {GR_D_EMBD}},                                 \
    {GR_W_TIME_MIX_W1, 0, {GR_D_EMBD, GR_D_MIX_DECAY}},                 \
    {GR_W_TIME_MIX_W2, 0, {GR_D_MIX_DECAY, GR_D_EMBD}},                 \
    {GR_W_TIME_MIX_A0, 0, {GR_D_EMBD}},                                 \
    {GR_W_TIME_MIX_A1, 0, {GR_D_EMBD, GR_D_MIX_RATE}},                  \
    {GR_W_TIME_MIX_A2, 0, {GR_D_MIX_RATE, GR_D_EMBD}},                  \
    {GR_W_TIME_MIX_V0, GR_BUT_FIRST, {GR_D_EMBD}},                       \
    {GR_W_TIME_MIX_V1, GR_BUT_FIRST, {GR_D_EMBD, GR_D_MIX_VALUE}},       \
    {GR_W_TIME_MIX_V2, GR_BUT_FIRST, {GR_D_MIX_VALUE, GR_D_EMBD}},       \
    {GR_W_TIME_MIX_G1, maybe, {GR_D_EMBD, GR_D_MIX_GATE}},              \
    {GR_W_TIME_MIX_G2, maybe, {GR_D_MIX_GATE, GR_D_EMBD}},              \
    {GR_W_TIME_MIX_LERP_FUSED, GR_AS_F32, {GR_D_EMBD, GR_D_LERP}},      \
    {GR_W_TIME_MIX_K_K, 0, {GR_D_EMBD}},                                \
    {GR_W_TIME_MIX_K_A, 0, {GR_D_EMBD}},                                \
    {GR_W_TIME_MIX_R_K, 0, {GR_D_EMBD}},                                \
    {GR_W_TIME_MIX_KEY, 0, {GR_D_EMBD, GR_D_EMBD}},                     \
    {GR_W_TIME_MIX_VALUE, 0, {GR_D_EMBD, GR_D_EMBD}},                   \
    {GR_W_TIME_MIX_RECEPTANCE, 0, {GR_D_EMBD, GR_D_EMBD}},              \
    {GR_W_TIME_MIX_LN, (maybe) | GR_BIAS, {GR_D_EMBD}},                 \
    {GR_W_TIME_MIX_OUTPUT, 0, {GR_D_EMBD, GR_D_EMBD}}
#define CHANNEL_MIX                                                     \
    {GR_W_TOKEN_EMBD_NORM, GR_BIAS, {GR_D_EMBD}},                       \
    {GR_W_ATTN_NORM_2, GR_BIAS, {GR_D_EMBD}},                           \
    {GR_W_CHANNEL_MIX_LERP_K, 0, {GR_D_EMBD}},                          \
    {GR_W_CHANNEL_MIX_KEY, 0, {GR_D_EMBD, GR_D_FF}},                    \
    {GR_W_CHANNEL_MIX_VALUE, 0, {GR_D_FF, GR_D_EMBD}}
#define FFN                                                             \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},                                    \
    GR_SPEC_GLU(0)
/* clang-format on */

static const struct gr_tensor_spec spec_rwkv6[] = {
    HEAD(GR_BIAS),
    TIME_MIX_6(0),
    {GR_W_TIME_MIX_LERP_FUSED, GR_OPTIONAL | GR_AS_F32, {GR_D_EMBD, GR_D_LERP}},
    {GR_W_TIME_MIX_LERP_W, GR_OPTIONAL, {GR_D_EMBD}}, /* in older files */
    {GR_W_TIME_MIX_LERP_K, GR_OPTIONAL, {GR_D_EMBD}},
    {GR_W_TIME_MIX_LERP_V, GR_OPTIONAL, {GR_D_EMBD}},
    {GR_W_TIME_MIX_LERP_R, GR_OPTIONAL, {GR_D_EMBD}},
    {GR_W_TIME_MIX_LERP_G, GR_OPTIONAL, {GR_D_EMBD}},
    {GR_W_TIME_MIX_FIRST, GR_AS_F32, {GR_D_STATE, GR_D_RANK}},
    {GR_W_TIME_MIX_LN, GR_BIAS, {GR_D_EMBD}},
    CHANNEL_MIX,
    {GR_W_CHANNEL_MIX_LERP_R, 0, {GR_D_EMBD}},
    {GR_W_CHANNEL_MIX_RECEPTANCE, 0, {GR_D_EMBD, GR_D_EMBD}},
};
static const struct gr_tensor_spec spec_rwkv6qwen2[] = {
    HEAD(GR_BIAS_MAYBE),
    TIME_MIX_6(GR_BIAS_MAYBE),
    {GR_W_TIME_MIX_LERP_FUSED, GR_AS_F32, {GR_D_EMBD, GR_D_LERP}},
    FFN,
};
static const struct gr_tensor_spec spec_rwkv7[] = {HEAD(GR_BIAS), TIME_MIX_7(0), CHANNEL_MIX};
static const struct gr_tensor_spec spec_arwkv7[] = {HEAD(0), TIME_MIX_7(GR_OPTIONAL), FFN};

static int hparams_6(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->time_mix.n_lerp = 5;
    int rc = gr_hp_need_i32(s, "time_mix_extra_dim", 1, 1 << 16, &hp->time_mix.n_lora_mix);
    if (!rc)
        rc = gr_hp_need_i32(s, "time_decay_extra_dim", 1, 1 << 16, &hp->time_mix.n_lora_decay);
    return rc ? rc : gr_hp_i32(s, "rescale_every_n_layers", 0, 1 << 16, &hp->residual.halve_every);
}

static int hparams_7(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_need_i32(s, "attention.decay_lora_rank", 1, 1 << 16, &hp->time_mix.n_lora_decay);
    if (!rc)
        rc = gr_hp_need_i32(s, "attention.iclr_lora_rank", 1, 1 << 16, &hp->time_mix.n_lora_rate);
    if (!rc)
        rc = gr_hp_need_i32(s, "attention.value_residual_mix_lora_rank", 1, 1 << 16,
                            &hp->time_mix.n_lora_value);
    if (!rc)
        rc = gr_hp_i32(s, "attention.gate_lora_rank", 0, 1 << 16, &hp->time_mix.n_lora_gate);
    hp->time_mix.n_lerp = hp->time_mix.n_lora_gate ? 6 : 5;
    return rc;
}

static int hparams_rwkv6(struct gr_hp_source *s, struct gr_hparams *hp)
{
    for (int32_t il = 0; il < hp->n_layer; il++)
        hp->attn.n_head_kv[il] = 0; /* every head has its own K and V */
    int rc = gr_hp_wkv(s, hp, 2);
    return rc ? rc : hparams_6(s, hp);
}

static int hparams_rwkv6qwen2(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_wkv(s, hp, 1);
    return rc ? rc : hparams_6(s, hp);
}

static int hparams_rwkv7(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->attn.n_head_kv[0] = 0;
    int rc = gr_hp_wkv(s, hp, 2);
    return rc ? rc : hparams_7(s, hp);
}

static int hparams_arwkv7(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->attn.n_head_kv[0] = 0;
    int rc = gr_hp_wkv(s, hp, 1);
    return rc ? rc : hparams_7(s, hp);
}

static gr_t halved(struct gr_build *b, int il, gr_t x)
{
    int32_t every = gr_hp(b)->residual.halve_every;
    return every && (il + 1) % every == 0 ? gr_scale(b, x, 0.5F) : x;
}

static gr_t layer_rwkv6(struct gr_build *b, int il, gr_t x)
{
    x = gr_wkv6(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    x = gr_channel_mix(b, il, gr_norm(b, il, GR_W_ATTN_NORM_2, x), x);
    return halved(b, il, x);
}

static gr_t layer_rwkv7(struct gr_build *b, int il, gr_t x)
{
    x = gr_wkv7(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_channel_mix(b, il, gr_norm(b, il, GR_W_ATTN_NORM_2, x), x);
}

static gr_t ffn(struct gr_build *b, int il, gr_t x)
{
    return gr_ffn_glu(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_SILU);
}

static gr_t layer_rwkv6qwen2(struct gr_build *b, int il, gr_t x)
{
    x = gr_wkv6(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return halved(b, il, ffn(b, il, x));
}

static gr_t layer_arwkv7(struct gr_build *b, int il, gr_t x)
{
    return ffn(b, il, gr_wkv7(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x));
}

#define RWKV(symbol, kind)                                                                         \
    const struct gr_arch gr_arch_##symbol = {.name = #symbol,                                      \
                                             GR_SPEC(spec_##symbol),                               \
                                             .norm = (kind),                                       \
                                             .rope = GR_ROPE_NONE,                                 \
                                             .no_attn = true,                                      \
                                             .hparams = hparams_##symbol,                          \
                                             .layer = layer_##symbol}
RWKV(rwkv6, GR_NORM_LAYER);
RWKV(rwkv7, GR_NORM_LAYER);
RWKV(rwkv6qwen2, GR_NORM_RMS);
RWKV(arwkv7, GR_NORM_RMS);
