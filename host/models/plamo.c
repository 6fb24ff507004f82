/* PLaMo: attention and feed-forward side by side from one norm. Preferred Networks 2023. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_GATE, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

static int hparams(struct gr_hparams *hp, struct gr_hp_source *s)
{
    return gr_hp_rope_all(s, hp);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    return gr_ffn_glu(b, il, h, gr_attn_block(b, il, h, x), GR_SILU);
}

const struct gr_arch gr_arch_plamo = {.name = "plamo",
                                      GR_SPEC(spec),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = hparams,
                                      .layer = layer};
