/* GPT-2: learned positions, layer norms with bias, biases everywhere, no rope. Radford et al.
 * 2019. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_POS_EMBD, 0, {GR_D_EMBD, GR_D_CTX}},
    {GR_W_OUTPUT_NORM, GR_BIAS, {GR_D_EMBD}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, GR_BIAS, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, GR_BIAS, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, GR_BIAS, {GR_D_EMBD}},
    {GR_W_FFN_UP, GR_BIAS, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, GR_BIAS, {GR_D_FF, GR_D_EMBD}},
};

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_ffn_mlp(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_GELU);
}

const struct gr_arch gr_arch_gpt2 = {
    .name = "gpt2", GR_SPEC(spec), .norm = GR_NORM_LAYER, .rope = GR_ROPE_NONE, .layer = layer};
