/* BitNet b1.58: norms before the output matrices of attention and feed-forward; weights are -1, 0
 * and 1 times a factor. Ma et al. 2024 (arXiv 2402.17764). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(0),
    {GR_W_ATTN_SUB_NORM, 0, {GR_D_O}},
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_GATE, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_SUB_NORM, 0, {GR_D_FF}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_attn(b, il, gr_qkv_proj(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x)));
    x = gr_mm_add(b, il, GR_W_ATTN_OUT, gr_norm(b, il, GR_W_ATTN_SUB_NORM, h), x);
    h = gr_norm(b, il, GR_W_FFN_NORM, x);
    h = gr_glu(b, GR_SILU, gr_mm(b, il, GR_W_FFN_GATE, h), gr_mm(b, il, GR_W_FFN_UP, h));
    return gr_mm_add(b, il, GR_W_FFN_DOWN, gr_norm(b, il, GR_W_FFN_SUB_NORM, h), x);
}

const struct gr_arch gr_arch_bitnet = {
    .name = "bitnet", GR_SPEC(spec), .norm = GR_NORM_RMS, .rope = GR_ROPE_NEOX, .layer = layer};
