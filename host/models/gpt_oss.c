/* gpt-oss: experts with biases, heads with a sink, a window in every other layer. OpenAI 2025
 * (arXiv 2508.10925). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, GR_BIAS, {GR_D_O, GR_D_EMBD}},
    {GR_W_ATTN_SINKS, 0, {GR_D_HEADS}},
    {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_EXPERTS(GR_BIAS),
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.gate = GR_GATE_SOFTMAX_TOP;
    return gr_hp_swa_rope(s, hp, 2);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_moe(b, il, gr_norm(b, il, GR_W_ATTN_POST_NORM, x), x, GR_SWIGLU_OAI);
}

const struct gr_arch gr_arch_gpt_oss = {.name = "gpt-oss",
                                        GR_SPEC(spec),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NEOX,
                                        .hparams = hparams,
                                        .layer = layer};
