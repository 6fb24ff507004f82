/* Seed-OSS: biases on Q, K and V; the norm before the feed-forward is named as one after attention
 * in files. ByteDance Seed Team 2025. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    GR_SPEC_ATTN,
    {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(0),
};

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_ffn_glu(b, il, gr_norm(b, il, GR_W_ATTN_POST_NORM, x), x, GR_SILU);
}

const struct gr_arch gr_arch_seed_oss = {
    .name = "seed_oss", GR_SPEC(spec), .norm = GR_NORM_RMS, .rope = GR_ROPE_NEOX, .layer = layer};
