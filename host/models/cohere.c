/* Command R and Command R7B: attention and feed-forward side by side from one norm. The second has
 * windowed layers with rope and, every fourth, one that sees everything and knows no positions.
 * Cohere 2024; Yang et al. 2025 (arXiv 2501.18795). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_GATE, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

static int logit_scale(struct gr_hparams *hp, struct gr_hp_source *s)
{
    return gr_hp_logit_factor(s, hp);
}

static int hparams2(struct gr_hparams *hp, struct gr_hp_source *s)
{
    int rc = logit_scale(hp, s);
    if (!rc)
        rc = gr_hp_swa(s, hp, 4);
    for (int il = 0; il < hp->n_layer; il++)
        hp->no_rope[il] = !hp->swa[il];
    return rc;
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    return gr_ffn_glu(b, il, h, gr_attn_block(b, il, h, x), GR_SILU);
}

const struct gr_arch gr_arch_command_r = {.name = "command-r",
                                          GR_SPEC(spec),
                                          .norm = GR_NORM_LAYER,
                                          .rope = GR_ROPE_NORM,
                                          .hparams = logit_scale,
                                          .layer = layer};
const struct gr_arch gr_arch_cohere2 = {.name = "cohere2",
                                        GR_SPEC(spec),
                                        .norm = GR_NORM_LAYER,
                                        .rope = GR_ROPE_NORM,
                                        .hparams = hparams2,
                                        .layer = layer};
