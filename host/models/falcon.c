/* Falcon: attention and feed-forward in parallel, after one norm (7B) or two (40B). Almazrouei et
 * al. 2023 (arXiv 2311.16867). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, GR_BIAS, {GR_D_EMBD}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, GR_BIAS, {GR_D_EMBD}},
    {GR_W_ATTN_NORM_2, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD}},
    GR_SPEC_QKV(0),
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    gr_t a = gr_has(b, il, GR_W_ATTN_NORM_2) ? gr_norm(b, il, GR_W_ATTN_NORM_2, x) : h;
    x = gr_attn_block(b, il, a, x);
    return gr_ffn_mlp(b, il, h, x, GR_GELU);
}

const struct gr_arch gr_arch_falcon = {.name = "falcon",
                                       GR_SPEC(spec),
                                       .norm = GR_NORM_LAYER,
                                       .rope = GR_ROPE_NEOX,
                                       .mix = {.plain = true},
                                       .layer = layer};
