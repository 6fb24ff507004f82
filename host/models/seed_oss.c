/* Seed-OSS: biases on Q, K and V; the norm before the feed-forward is named as one after attention
 * in files. ByteDance Seed Team 2025. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_GATE, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_ffn_glu(b, il, gr_norm(b, il, GR_W_ATTN_POST_NORM, x), x, GR_SILU);
}

const struct gr_arch gr_arch_seed_oss = {
    .name = "seed_oss", GR_SPEC(spec), .norm = GR_NORM_RMS, .rope = GR_ROPE_NEOX, .layer = layer};
