/* Apertus: norms of the heads of Q and K, a feed-forward part without a gate, with xIELU, whose
 * coefficients belong to the layer. Swiss AI Initiative 2025 (arXiv 2509.14233). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    GR_SPEC_ROPE_FACTORS,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    GR_SPEC_HEAD_NORMS(0),
    {GR_W_ATTN_OUT, GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    gr_t h = gr_mm(b, il, GR_W_FFN_UP, gr_norm(b, il, GR_W_FFN_NORM, x));
    return gr_mm_add(b, il, GR_W_FFN_DOWN, gr_xielu(b, il, h), x);
}

const struct gr_arch gr_arch_apertus = {.name = "apertus",
                                        GR_SPEC(spec),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NEOX,
                                        .hparams = gr_hp_xielu,
                                        .layer = layer};
