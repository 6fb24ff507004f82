/* Llama and its relatives: pre-norm, rotary pairs side by side, gated feed-forward; dense, or
 * experts in the manner of Mixtral. Touvron et al. 2023 (arXiv 2302.13971), Jiang et al. 2024
 * (arXiv 2401.04088). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ROPE_FREQS, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ROPE_LONG, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ROPE_SHORT, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_GATE, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_UP, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_FF, GR_D_EMBD}},
    {GR_W_FFN_GATE_INP, GR_OPTIONAL, {GR_D_EMBD, GR_D_EXPERT}},
    {GR_W_FFN_GATE_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}},
    {GR_W_FFN_UP_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}},
    {GR_W_FFN_DOWN_EXPS, GR_OPTIONAL, {GR_D_FF_EXP, GR_D_EMBD, GR_D_EXPERT}},
};

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    static const struct gr_moe_opt moe = {GR_GATE_SOFTMAX, GR_SILU, true, 0};
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, &moe);
}

const struct gr_arch gr_arch_llama = {
    .name = "llama", GR_SPEC(spec), .norm = GR_NORM_RMS, .rope = GR_ROPE_NORM, .layer = layer};
