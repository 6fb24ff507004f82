/* DBRX and Grok: experts in every layer, a norm after attention; Grok has one after the experts
 * too, and optionally a dense part beside them. Databricks 2024, xAI 2024. */
#include "graph/build.h"

#include <math.h>

static const struct gr_tensor_spec spec_dbrx[] = {
    GR_SPEC_EMBD,
    GR_SPEC_ATTN,
    {GR_W_ATTN_OUT_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_EXPERTS(0),
};
static const struct gr_tensor_spec spec_grok[] = {
    GR_SPEC_EMBD,
    GR_SPEC_ATTN,
    {GR_W_ATTN_OUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL),
    GR_SPEC_EXPERTS(0),
    {GR_W_LAYER_OUT_NORM, GR_OPTIONAL, {GR_D_EMBD}},
    {GR_W_FFN_POST_NORM, GR_OPTIONAL, {GR_D_EMBD}},
};

static int hparams_dbrx(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.n_ff_exp = hp->ff.n_ff[0], hp->moe.weights_norm = true;
    return gr_hp_need_f32(s, "attention.clamp_kqv", &hp->attn.clamp_kqv);
}

/* Defaults where the file has no keys are those of Grok 1. */
static int hparams_grok(struct gr_hp_source *s, struct gr_hparams *hp)
{
    float logit_scale = 0.57735026f;
    hp->embd.scale = 78.38367f, hp->attn.scale = 0.08838835f, hp->attn.softcap = 30;
    hp->moe.weights_norm = true;
    if (!gr_hp_has(s, "rope.scaling.yarn_beta_fast"))
        hp->rope.yarn_beta_fast = 8;
    int rc = gr_hp_f32(s, "logit_scale", &logit_scale);
    if (!rc)
        rc = gr_hp_f32(s, "embedding_scale", &hp->embd.scale);
    if (!rc)
        rc = gr_hp_f32(s, "attention.output_scale", &hp->attn.scale);
    if (!rc)
        rc = gr_hp_f32(s, "attn_logit_softcapping", &hp->attn.softcap);
    if (!rc)
        rc = gr_hp_f32(s, "final_logit_softcapping", &hp->logits.softcap);
    hp->logits.scale = logit_scale != 0 ? 1 / logit_scale : 0;
    return rc;
}

static gr_t layer_dbrx(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_moe(b, il, gr_norm(b, il, GR_W_ATTN_OUT_NORM, x), x, GR_SILU);
}

static gr_t layer_grok(struct gr_build *b, int il, gr_t x)
{
    static const gr_t none;
    enum gr_slot post =
        gr_has(b, il, GR_W_LAYER_OUT_NORM) ? GR_W_LAYER_OUT_NORM : GR_W_FFN_POST_NORM;
    gr_t h = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), none);
    x = gr_norm_add(b, il, GR_W_ATTN_OUT_NORM, h, x);
    h = gr_norm(b, il, GR_W_FFN_NORM, x);
    gr_t y = gr_moe(b, il, h, none, GR_GELU);
    if (gr_has(b, il, GR_W_FFN_UP))
        y = gr_scale(b, gr_ffn_glu(b, il, h, y, GR_GELU), sqrtf(0.5f));
    return gr_has(b, il, post) ? gr_norm_add(b, il, post, y, x) : gr_add_t(b, y, x);
}

const struct gr_arch gr_arch_dbrx = {.name = "dbrx",
                                     GR_SPEC(spec_dbrx),
                                     .norm = GR_NORM_LAYER,
                                     .rope = GR_ROPE_NEOX,
                                     .hparams = hparams_dbrx,
                                     .layer = layer_dbrx};
const struct gr_arch gr_arch_grok = {.name = "grok",
                                     GR_SPEC(spec_grok),
                                     .norm = GR_NORM_RMS,
                                     .rope = GR_ROPE_NEOX,
                                     .hparams = hparams_grok,
                                     .layer = layer_grok};
