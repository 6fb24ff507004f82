/* DeepSeek V2, V3 and R1, Mistral Small 4: latent attention (MLA), queries from a latent of their
 * own except in the lite models; grouped experts beside shared ones, after some dense layers.
 * DeepSeek-AI 2024 (arXiv 2405.04434, 2412.19437). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_Q, GR_OPTIONAL, {GR_D_EMBD, GR_D_Q_MLA}},
    {GR_W_ATTN_Q_A, GR_OPTIONAL, {GR_D_EMBD, GR_D_LORA_Q}},
    {GR_W_ATTN_Q_A_NORM, GR_OPTIONAL, {GR_D_LORA_Q}},
    {GR_W_ATTN_Q_B, GR_OPTIONAL, {GR_D_LORA_Q, GR_D_Q_MLA}},
    {GR_W_ATTN_KV_A, 0, {GR_D_EMBD, GR_D_KV_A}},
    {GR_W_ATTN_KV_A_NORM, 0, {GR_D_LORA_KV}},
    {GR_W_ATTN_K_B, GR_OPTIONAL, {GR_D_NOPE, GR_D_LORA_KV, GR_D_HEADS}},
    {GR_W_ATTN_V_B, GR_OPTIONAL, {GR_D_LORA_KV, GR_D_V_MLA, GR_D_HEADS}},
    {GR_W_ATTN_KV_B, GR_OPTIONAL, {GR_D_LORA_KV, GR_D_KV_B}},
    {GR_W_ATTN_OUT, 0, {GR_D_O_MLA, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL),
    GR_SPEC_EXPERTS(GR_OPTIONAL),
    {GR_W_FFN_GATE_UP_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP_2, GR_D_EXPERT}},
    {GR_W_FFN_EXP_BIAS, GR_OPTIONAL, {GR_D_EXPERT}},
    GR_SPEC_SHARED_EXPERT(GR_OPTIONAL),
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_mla(s, hp);
    if (!rc)
        rc = gr_hp_experts(s, hp, GR_GATE_SOFTMAX);
    if (!rc)
        rc = gr_hp_f32(s, "rope.scaling.yarn_log_multiplier", &hp->rope.yarn_log_mul);
    if (!rc)
        rc = gr_hp_temper(s, hp);
    hp->rope.yarn_scales_attn = true;
    return rc;
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    x = gr_mla_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_SILU);
}

const struct gr_arch gr_arch_deepseek2 = {.name = "deepseek2",
                                          GR_SPEC(spec),
                                          .norm = GR_NORM_RMS,
                                          .rope = GR_ROPE_NORM,
                                          .hparams = hparams,
                                          .layer = layer};
const struct gr_arch gr_arch_mistral4 = {.name = "mistral4",
                                         GR_SPEC(spec),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NORM,
                                         .hparams = hparams,
                                         .layer = layer};
