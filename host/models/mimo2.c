/* MiMo V2: windowed layers between full ones, heads with a sink, values narrower than keys; dense
 * layers before those with experts. Xiaomi 2026 (arXiv 2601.02780). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(0),
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_ATTN_SINKS, GR_OPTIONAL, {GR_D_HEADS}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL),
    GR_SPEC_EXPERTS(GR_OPTIONAL),
    {GR_W_FFN_EXP_BIAS, GR_OPTIONAL, {GR_D_EXPERT}},
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.gate = GR_GATE_SIGMOID, hp->moe.weights_norm = true;
    int rc = gr_hp_f32(s, "attention.value_scale", &hp->attn.value_scale);
    return rc ? rc : gr_hp_swa_unscaled(s, hp, 0);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    struct gr_qkv p = gr_qkv_proj(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x));
    gr_t y = gr_attn(b, il, p);
    if (gr_hp(b)->attn.value_scale != 0)
        y = gr_scale(b, y, gr_hp(b)->attn.value_scale);
    x = gr_mm_add(b, il, GR_W_ATTN_OUT, y, x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_SILU);
}

const struct gr_arch gr_arch_mimo2 = {.name = "mimo2",
                                      GR_SPEC(spec),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = hparams,
                                      .layer = layer};
