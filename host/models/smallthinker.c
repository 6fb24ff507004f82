/* SmallThinker: the router sees the layer's input, so that experts can be fetched during attention;
 * every fourth layer is a full one without rope. Song et al. 2025 (arXiv 2507.20984). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    GR_SPEC_ATTN,
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_EXPERTS(0),
};

/* If the file has a window, it is taken as 4,096; a model of four layers has rope in all. */
static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    if (!rc)
        rc = gr_hp_f32(s, "rope.freq_base_swa", &hp->rope.freq_base_swa);
    if (!rc)
        rc = gr_hp_swa_after(s, hp, 4);
    hp->moe.weights_norm = true, hp->moe.weights_scale = 0;
    if (hp->swa.n_swa == 0)
        return rc;
    hp->swa.n_swa = 4096;
    if (hp->n_layer != 4)
        gr_hp_no_rope(hp, 0, 4);
    return rc;
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t logits = gr_router(b, il, x);
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    gr_t h = gr_norm(b, il, GR_W_FFN_NORM, x);
    return gr_moe_routed(b, il, gr_match(b, logits, h), h, x, GR_RELU);
}

const struct gr_arch gr_arch_smallthinker = {.name = "smallthinker",
                                             GR_SPEC(spec),
                                             .norm = GR_NORM_RMS,
                                             .rope = GR_ROPE_NEOX,
                                             .hparams = hparams,
                                             .layer = layer};
