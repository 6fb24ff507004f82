/* OLMo: layer norms without weights, optional clamp of Q, K and V. Groeneveld et al. 2024 (arXiv
 * 2402.00838). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    GR_SPEC_GLU(0),
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    return gr_hp_f32(s, "attention.clamp_kqv", &hp->attn.clamp_kqv);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm_plain(b, il, x), x);
    return gr_ffn_glu(b, il, gr_norm_plain(b, il, x), x, GR_SILU);
}

const struct gr_arch gr_arch_olmo = {.name = "olmo",
                                     GR_SPEC(spec),
                                     .norm = GR_NORM_LAYER,
                                     .rope = GR_ROPE_NORM,
                                     .mix = {.n_layer_large = 80},
                                     .hparams = hparams,
                                     .layer = layer};
