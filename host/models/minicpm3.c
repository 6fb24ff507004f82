/* MiniCPM 3 and PLM: keys and values of every head are computed from a latent and cached. MiniCPM
 * scales embeddings, residual branches and logits; PLM's feed-forward part has squared ReLU instead
 * of gates. Hu et al. 2024 (arXiv 2404.06395), Deng et al. 2025 (arXiv 2503.12167). */
#include "graph/build.h"

#include <math.h>

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ROPE_LONG, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ROPE_SHORT, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_Q_A, 0, {GR_D_EMBD, GR_D_LORA_Q}},
    {GR_W_ATTN_Q_A_NORM, 0, {GR_D_LORA_Q}},
    {GR_W_ATTN_Q_B, 0, {GR_D_LORA_Q, GR_D_Q_MLA}},
    {GR_W_ATTN_KV_A, 0, {GR_D_EMBD, GR_D_KV_A}},
    {GR_W_ATTN_KV_A_NORM, 0, {GR_D_LORA_KV}},
    {GR_W_ATTN_KV_B, 0, {GR_D_LORA_KV, GR_D_KV_B}},
    {GR_W_ATTN_OUT, 0, {GR_D_O_MLA, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(0),
};

static const struct gr_tensor_spec spec_plm[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_Q, 0, {GR_D_EMBD, GR_D_Q_MLA}},
    {GR_W_ATTN_KV_A, 0, {GR_D_EMBD, GR_D_KV_A}},
    {GR_W_ATTN_KV_A_NORM, 0, {GR_D_LORA_KV}},
    {GR_W_ATTN_KV_B, 0, {GR_D_LORA_KV, GR_D_KV_B}},
    {GR_W_ATTN_OUT, 0, {GR_D_O_MLA, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->embd.scale = 12;
    hp->residual.scale = 1.4f / sqrtf((float)hp->n_layer);
    hp->logits.scale = (float)hp->n_embd / 256;
    return gr_hp_latent(s, hp);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    static const gr_t none;
    gr_t h = gr_mla_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), none);
    x = gr_residual(b, h, x);
    h = gr_ffn_glu(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), none, GR_SILU);
    return gr_residual(b, h, x);
}

static gr_t layer_plm(struct gr_build *b, int il, gr_t x)
{
    x = gr_mla_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_ffn_mlp(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_RELU2);
}

const struct gr_arch gr_arch_minicpm3 = {.name = "minicpm3",
                                         GR_SPEC(spec),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NEOX,
                                         .hparams = hparams,
                                         .layer = layer};
const struct gr_arch gr_arch_plm = {.name = "plm",
                                    GR_SPEC(spec_plm),
                                    .norm = GR_NORM_RMS,
                                    .rope = GR_ROPE_NORM,
                                    .hparams = gr_hp_latent,
                                    .layer = layer_plm};
