/* GroveMoE: experts in groups, and an adjugate expert for each group, whose input is the output of
 * the chosen ones. Wu et al. 2025 (arXiv 2508.07785). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    GR_SPEC_HEAD_NORMS(0),
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_EXPERTS(0),
    {GR_W_FFN_GATE_ADJ, 0, {GR_D_EMBD, GR_D_FF_ADJ, GR_D_ADJUGATE}},
    {GR_W_FFN_UP_ADJ, 0, {GR_D_EMBD, GR_D_FF_ADJ, GR_D_ADJUGATE}},
    {GR_W_FFN_DOWN_ADJ, 0, {GR_D_FF_ADJ, GR_D_EMBD, GR_D_ADJUGATE}},
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.weights_norm = true;
    return gr_hp_adjugates(s, hp);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    static const gr_t none;
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    gr_t h = gr_norm(b, il, GR_W_FFN_NORM, x), logits = gr_router(b, il, h);
    return gr_adjugates(b, il, logits, gr_moe_routed(b, il, logits, h, none, GR_SILU), x);
}

const struct gr_arch gr_arch_grovemoe = {.name = "grovemoe",
                                         GR_SPEC(spec),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NEOX,
                                         .hparams = hparams,
                                         .layer = layer};
