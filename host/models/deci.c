/* Llama-Nemotron: llama after an architecture search per layer. A layer has attention, a matrix in
 * its place, or nothing; and a feed-forward of its own width, or none. Bercovich et al. 2024 (arXiv
 * 2411.19146). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ROPE_FREQS, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ATTN_NORM, GR_IN_HEADS, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_IN_KV | GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, GR_IN_HEADS | GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, GR_IN_FF, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_IN_FF | GR_BIAS_MAYBE),
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    return gr_hp_f32(s, "attention.scale", &hp->attn.scale);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    const struct gr_hparams *hp = gr_hp(b);
    if (hp->attn.n_head[il]) {
        gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
        x = hp->attn.n_head_kv[il] ? gr_attn_block(b, il, h, x)
                                   : gr_mm_add(b, il, GR_W_ATTN_OUT, h, x);
    }
    return hp->ff.n_ff[il] ? gr_ffn_glu(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_SILU) : x;
}

const struct gr_arch gr_arch_deci = {.name = "deci",
                                     GR_SPEC(spec),
                                     .norm = GR_NORM_RMS,
                                     .rope = GR_ROPE_NORM,
                                     .mix = {.n_layer_large = 80},
                                     .hparams = hparams,
                                     .layer = layer};
