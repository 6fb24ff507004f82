/* Jais and Refact: ALiBi instead of positions and a gated feed-forward; Jais has layer norms and
 * scales attention by the width of a head, not by its square root. Sengupta et al. 2023 (arXiv
 * 2308.16149), Refact AI 2023. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},   {GR_W_OUTPUT_NORM, GR_BIAS, {GR_D_EMBD}},
    {GR_W_OUTPUT, 0, {GR_D_EMBD, GR_D_VOCAB}},       {GR_W_ATTN_NORM, GR_BIAS, {GR_D_EMBD}},
    {GR_W_ATTN_QKV, GR_BIAS, {GR_D_EMBD, GR_D_QKV}}, {GR_W_ATTN_OUT, GR_BIAS, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, GR_BIAS, {GR_D_EMBD}},           {GR_W_FFN_GATE, GR_BIAS, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_UP, GR_BIAS, {GR_D_EMBD, GR_D_FF}},    {GR_W_FFN_DOWN, GR_BIAS, {GR_D_FF, GR_D_EMBD}},
};

static const struct gr_tensor_spec spec_refact[] = {
    GR_SPEC_EMBD,
    GR_SPEC_ATTN,
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL),
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->attn.scale = 1 / (float)hp->attn.d_k;
    return gr_hp_f32(s, "attention.max_alibi_bias", &hp->attn.max_alibi);
}

static int hparams_refact(struct gr_hp_source *s, struct gr_hparams *hp)
{
    (void)s;
    hp->attn.max_alibi = 8;
    return 0;
}

/* No such model has experts, but a file can claim so: like llama.cpp, this skips their matrices and
 * applies the activation alone. */
static gr_t layer_refact(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    gr_t h = gr_norm(b, il, GR_W_FFN_NORM, x);
    return gr_hp(b)->moe.n_expert && !gr_has(b, il, GR_W_FFN_UP)
               ? gr_add_t(b, gr_act(b, GR_SILU, h), x)
               : gr_ffn_glu(b, il, h, x, GR_SILU);
}

const struct gr_arch gr_arch_jais = {.name = "jais",
                                     GR_SPEC(spec),
                                     .norm = GR_NORM_LAYER,
                                     .rope = GR_ROPE_NONE,
                                     .hparams = hparams,
                                     .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_refact = {.name = "refact",
                                       GR_SPEC(spec_refact),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NONE,
                                       .hparams = hparams_refact,
                                       .layer = layer_refact};
