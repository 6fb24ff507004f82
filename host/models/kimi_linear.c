/* Kimi Linear, Kimi K3 and Ling 3: layers with a delta rule that has a decay for every row of K,
 * layers with latent attention, and experts beside shared ones after some dense layers. Kimi Team
 * 2025 (arXiv 2510.26692). */
#include "graph/build.h"

/* clang-format off */
#define COMMON(n_seen)                                              \
    GR_SPEC_EMBD,                                                   \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},                               \
    GR_SPEC_KDA(GR_IN_STATE),                                       \
    GR_SPEC_MLA(GR_IN_KV),                                          \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},                                \
    GR_SPEC_GLU(GR_OPTIONAL),                                       \
    {GR_W_FFN_GATE_INP, GR_OPTIONAL, {GR_D_EMBD, GR_D_EXPERT}},     \
    {GR_W_FFN_GATE_EXPS, GR_OPTIONAL, {n_seen, GR_D_FF_EXP, GR_D_EXPERT}}, \
    {GR_W_FFN_UP_EXPS, GR_OPTIONAL, {n_seen, GR_D_FF_EXP, GR_D_EXPERT}},   \
    {GR_W_FFN_DOWN_EXPS, GR_OPTIONAL, {GR_D_FF_EXP, n_seen, GR_D_EXPERT}}, \
    {GR_W_FFN_EXP_BIAS, GR_OPTIONAL, {GR_D_EXPERT}},                \
    GR_SPEC_SHARED_EXPERT(GR_OPTIONAL)
/* clang-format on */

static const struct gr_tensor_spec spec_kimi[] = {
    COMMON(GR_D_EMBD),
    {GR_W_SSM_F_A, GR_IN_STATE, {GR_D_EMBD, GR_D_STATE}},
    {GR_W_SSM_F_B, GR_IN_STATE, {GR_D_STATE, GR_D_INNER}},
    {GR_W_SSM_G_A, GR_IN_STATE, {GR_D_EMBD, GR_D_STATE}},
    {GR_W_SSM_G_B, GR_IN_STATE, {GR_D_STATE, GR_D_INNER}},
};
static const struct gr_tensor_spec spec_bailing[] = {
    COMMON(GR_D_EMBD),
    {GR_W_SSM_F_A, GR_IN_STATE, {GR_D_EMBD, GR_D_INNER}},
    {GR_W_SSM_G_A, GR_IN_STATE, {GR_D_EMBD, GR_D_INNER}},
    {GR_W_ATTN_GATE, GR_IN_KV, {GR_D_EMBD, GR_D_HEADS}},
};

/* Kept values of the residual stream are weighted by scores, in models that keep them. */
static const struct gr_tensor_spec spec_k3[] = {
    COMMON(GR_D_LATENT),
    {GR_W_SSM_F_A, GR_IN_STATE, {GR_D_EMBD, GR_D_STATE}},
    {GR_W_SSM_F_B, GR_IN_STATE, {GR_D_STATE, GR_D_INNER}},
    {GR_W_SSM_G, GR_IN_STATE, {GR_D_EMBD, GR_D_INNER}},
    {GR_W_ATTN_GATE, GR_IN_KV | GR_OPTIONAL, {GR_D_EMBD, GR_D_O_MLA}},
    {GR_W_FFN_ROUTED_DOWN, GR_OPTIONAL, {GR_D_EMBD, GR_D_LATENT}},
    {GR_W_FFN_ROUTED_NORM, GR_OPTIONAL, {GR_D_LATENT}},
    {GR_W_FFN_ROUTED_UP, GR_OPTIONAL, {GR_D_LATENT, GR_D_EMBD}},
    {GR_W_OUTPUT_RES_SCORE, GR_OPTIONAL, {GR_D_EMBD}},
    {GR_W_ATTN_RES_SCORE, GR_OPTIONAL, {GR_D_EMBD}},
    {GR_W_FFN_RES_SCORE, GR_OPTIONAL, {GR_D_EMBD}},
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_mla(s, hp);
    gr_hp_recurrent_without_kv(hp);
    if (!rc)
        rc = gr_hp_kda(s, hp);
    if (!rc)
        rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    if (hp->moe.n_ff_shexp == 0)
        hp->moe.n_ff_shexp = hp->moe.n_ff_exp;
    return rc;
}

static int hparams_kimi(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = hparams(s, hp);
    hp->moe.weights_norm = true;
    return rc;
}

static int hparams_bailing(struct gr_hp_source *s, struct gr_hparams *hp)
{
    bool safe = true;
    int rc = hparams(s, hp);
    if (!rc)
        rc = gr_hp_bool(s, "kda.safe_gate", &safe);
    if (!rc && !safe)
        rc = gr_hp_unsupported(s, "kda.safe_gate");
    if (!rc)
        rc = gr_hp_decay_bound(s, hp, 1, false);
    if (!rc)
        rc = gr_hp_maybe_sections(s, hp);
    return rc ? rc : gr_hp_glu_limits(s, hp);
}

static int hparams_k3(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = hparams(s, hp);
    if (!rc)
        rc = gr_hp_decay_bound(s, hp, -1, true);
    if (!rc)
        rc = gr_hp_i32(s, "expert_latent_length", 0, 1 << 20, &hp->moe.n_latent);
    if (!rc)
        rc = gr_hp_need_i32(s, "attn_res.block_size", 0, INT32_MAX, &hp->residual.keep_every);
    if (!rc)
        rc = gr_hp_need_f32(s, "activation.situ_beta", &hp->ff.situ_beta);
    if (!rc && hp->ff.situ_beta <= 0)
        rc = gr_hp_unsupported(s, "activation.situ_beta");
    return rc ? rc : gr_hp_need_f32(s, "activation.situ_linear_beta", &hp->ff.situ_linear_beta);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    x = gr_hp(b)->ssm.layer[il] ? gr_kda(b, il, h, x) : gr_mla_block(b, il, h, x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_SILU);
}

/* The input of each part is a blend of the residual stream and of its values kept at some layers
 * before; at these layers the stream restarts with the output of attention. */
static gr_t layer_k3(struct gr_build *b, int il, gr_t x)
{
    static const gr_t none;
    const struct gr_hparams *hp = gr_hp(b);
    bool keeps = hp->residual.keep_every > 0 && il % hp->residual.keep_every == 0;
    gr_t h = hp->residual.keep_every ? gr_recall(b, il, GR_W_ATTN_RES_SCORE, x) : x;
    h = gr_norm(b, il, GR_W_ATTN_NORM, h);
    if (keeps)
        gr_keep(b, x);
    gr_t res = keeps ? none : x;
    x = hp->ssm.layer[il] ? gr_kda(b, il, h, res) : gr_mla_block(b, il, h, res);
    h = hp->residual.keep_every ? gr_recall(b, il, GR_W_FFN_RES_SCORE, x) : x;
    return gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, h), x, GR_SILU);
}

const struct gr_arch gr_arch_kimi_linear = {.name = "kimi-linear",
                                            GR_SPEC(spec_kimi),
                                            .norm = GR_NORM_RMS,
                                            .rope = GR_ROPE_NONE,
                                            .hparams = hparams_kimi,
                                            .layer = layer};
const struct gr_arch gr_arch_bailingmoe3 = {.name = "bailingmoe3",
                                            GR_SPEC(spec_bailing),
                                            .norm = GR_NORM_RMS,
                                            .rope = GR_ROPE_NORM,
                                            .mix = {.experts_alone = true},
                                            .hparams = hparams_bailing,
                                            .layer = layer};
const struct gr_arch gr_arch_kimi_k3 = {.name = "kimi-k3",
                                        GR_SPEC(spec_k3),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NONE,
                                        .hparams = hparams_k3,
                                        .layer = layer_k3};
