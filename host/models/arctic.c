/* Arctic: a small dense part, and experts that see the layer's input. Snowflake 2024. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    GR_SPEC_ATTN,
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(0),
    {GR_W_FFN_NORM_EXPS, 0, {GR_D_EMBD}},
    GR_SPEC_EXPERTS(0),
};

/* The file's feed-forward width is that of the experts; the dense part is as wide as the model. */
static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.n_ff_exp = hp->ff.n_ff[0];
    for (int32_t il = 0; il < hp->n_layer; il++)
        hp->ff.n_ff[il] = hp->n_embd;
    return gr_hp_softmax_experts(s, hp);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t y = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    y = gr_ffn_glu(b, il, gr_norm(b, il, GR_W_FFN_NORM, y), y, GR_SILU);
    return gr_moe(b, il, gr_norm(b, il, GR_W_FFN_NORM_EXPS, gr_match(b, x, y)), y, GR_SILU);
}

const struct gr_arch gr_arch_arctic = {.name = "arctic",
                                       GR_SPEC(spec),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NORM,
                                       .hparams = hparams,
                                       .layer = layer};
