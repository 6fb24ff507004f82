/* Nemotron-H: layers of one part each, Mamba 2 or attention (without positions) or feed-forward.
 * NVIDIA 2025 (arXiv 2504.03624). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_IN_KV | GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, GR_IN_KV | GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}},
    GR_SPEC_MAMBA2(GR_IN_STATE, 0),
    {GR_W_FFN_UP, GR_IN_FF | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, GR_IN_FF | GR_BIAS_MAYBE, {GR_D_FF, GR_D_EMBD}},
};

static int hparams(struct gr_hparams *hp, struct gr_hp_source *s)
{
    gr_hp_recurrent_without_kv(hp);
    for (int32_t il = 0; il < hp->n_layer; il++)
        if (hp->n_ff[il] > 0)
            hp->recurrent[il] = false, hp->n_head_kv[il] = 0;
    return gr_hp_recurrence(s, hp, GR_MAMBA_2);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    if (gr_hp(b)->recurrent[il])
        return gr_mamba2(b, il, h, x);
    return gr_hp(b)->n_ff[il] > 0 ? gr_ffn_mlp(b, il, h, x, GR_RELU2) : gr_attn_block(b, il, h, x);
}

const struct gr_arch gr_arch_nemotron_h = {.name = "nemotron_h",
                                           GR_SPEC(spec),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NONE,
                                           .hparams = hparams,
                                           .layer = layer};
