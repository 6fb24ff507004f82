/* MPT: ALiBi instead of positions, optional clamp of Q, K and V and scaled activations. MosaicML
 * 2023. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_POS_EMBD, GR_OPTIONAL, {GR_D_EMBD, GR_D_CTX}},
    {GR_W_OUTPUT_NORM, GR_BIAS_MAYBE, {GR_D_EMBD}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, GR_BIAS_MAYBE, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_Q_NORM, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD}},
    {GR_W_ATTN_K_NORM, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD}},
    {GR_W_ATTN_OUT, GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, GR_BIAS_MAYBE, {GR_D_EMBD}},
    {GR_W_FFN_UP, GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, GR_BIAS_MAYBE, {GR_D_FF, GR_D_EMBD}},
    {GR_W_FFN_ACT, GR_OPTIONAL, {GR_D_FF}},
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_f32(s, "attention.clamp_kqv", &hp->attn.clamp_kqv);
    return rc ? rc : gr_hp_f32(s, "attention.max_alibi_bias", &hp->attn.max_alibi);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    struct gr_qkv p = gr_qkv_proj(b, il, h);
    if (gr_has(b, il, GR_W_ATTN_Q_NORM)) /* a norm of K alone is not used */
        p = gr_qk_norm(b, il, p);
    x = gr_mm_add(b, il, GR_W_ATTN_OUT, gr_attn(b, il, p), x);
    return gr_ffn_mlp(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_GELU);
}

const struct gr_arch gr_arch_mpt = {.name = "mpt",
                                    GR_SPEC(spec),
                                    .norm = GR_NORM_LAYER,
                                    .rope = GR_ROPE_NONE,
                                    .hparams = hparams,
                                    .layer = layer};
