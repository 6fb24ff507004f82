/* Nemotron-H and Nemotron 3: layers of one part each: Mamba 2, attention (without positions) or
 * feed-forward; in Nemotron 3 the feed-forward can be experts without gates, on fewer columns than
 * the model has. NVIDIA 2025 (arXiv 2504.03624, 2512.20848). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_EMBD,                                                   \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},                               \
    GR_SPEC_QKV(GR_IN_KV | GR_BIAS_MAYBE),                          \
    {GR_W_ATTN_OUT, GR_IN_KV | GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}}, \
    GR_SPEC_MAMBA2(GR_IN_STATE, 0)
#define DENSE(flags)                                                \
    {GR_W_FFN_UP, (flags) | GR_IN_FF | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_FF}}, \
    {GR_W_FFN_DOWN, (flags) | GR_IN_FF | GR_BIAS_MAYBE, {GR_D_FF, GR_D_EMBD}}
#define MAYBE (GR_IN_FF | GR_OPTIONAL)
/* clang-format on */

static const struct gr_tensor_spec spec[] = {COMMON, DENSE(0)};
static const struct gr_tensor_spec spec_moe[] = {
    COMMON,
    DENSE(GR_OPTIONAL),
    {GR_W_FFN_GATE_INP, MAYBE, {GR_D_EMBD, GR_D_EXPERT}},
    {GR_W_FFN_EXP_BIAS, MAYBE, {GR_D_EXPERT}},
    {GR_W_FFN_LATENT_DOWN, MAYBE, {GR_D_EMBD, GR_D_LATENT}},
    {GR_W_FFN_LATENT_UP, MAYBE, {GR_D_LATENT, GR_D_EMBD}},
    {GR_W_FFN_UP_EXPS, MAYBE, {GR_D_LATENT, GR_D_FF_EXP, GR_D_EXPERT}},
    {GR_W_FFN_DOWN_EXPS, MAYBE, {GR_D_FF_EXP, GR_D_LATENT, GR_D_EXPERT}},
    {GR_W_FFN_UP_SHEXP, MAYBE, {GR_D_EMBD, GR_D_FF_SHEXP}},
    {GR_W_FFN_DOWN_SHEXP, MAYBE, {GR_D_FF_SHEXP, GR_D_EMBD}},
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    gr_hp_recurrent_without_kv(hp);
    for (int32_t il = 0; il < hp->n_layer; il++)
        if (hp->ff.n_ff[il] > 0)
            hp->ssm.layer[il] = false, hp->attn.n_head_kv[il] = 0;
    return gr_hp_recurrence(s, hp, GR_MAMBA_2);
}

static int hparams_moe(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = hparams(s, hp);
    if (!rc)
        rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    hp->moe.gate = GR_GATE_SIGMOID;
    return rc ? rc : gr_hp_i32(s, "moe_latent_size", 0, 1 << 20, &hp->moe.n_latent);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    if (gr_hp(b)->ssm.layer[il])
        return gr_mamba2(b, il, h, x);
    if (gr_hp(b)->ff.n_ff[il] == 0)
        return gr_attn_block(b, il, h, x);
    return gr_has(b, il, GR_W_FFN_GATE_INP) ? gr_moe(b, il, h, x, GR_RELU2)
                                            : gr_ffn_mlp(b, il, h, x, GR_RELU2);
}

const struct gr_arch gr_arch_nemotron_h = {.name = "nemotron_h",
                                           GR_SPEC(spec),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NONE,
                                           .hparams = hparams,
                                           .layer = layer};
const struct gr_arch gr_arch_nemotron_h_moe = {.name = "nemotron_h_moe",
                                               GR_SPEC(spec_moe),
                                               .norm = GR_NORM_RMS,
                                               .rope = GR_ROPE_NONE,
                                               .hparams = hparams_moe,
                                               .layer = layer};
