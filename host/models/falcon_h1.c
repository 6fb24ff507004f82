/* Falcon-H1: attention and Mamba 2 in parallel in every layer. Zuo et al. 2025 (arXiv 2507.22448).
 * Rope factors and a bias of attention's output that files may have are not used, as in
 * llama.cpp. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    GR_SPEC_ATTN,
    GR_SPEC_MAMBA2(0, GR_OPTIONAL),
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_BIAS_MAYBE),
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    for (int32_t il = 0; il < hp->n_layer; il++)
        hp->ssm.layer[il] = true;
    return gr_hp_recurrence(s, hp, GR_MAMBA_2);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    x = gr_attn_block(b, il, h, gr_mamba2(b, il, h, x));
    return gr_ffn_glu(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_SILU);
}

const struct gr_arch gr_arch_falcon_h1 = {.name = "falcon-h1",
                                          GR_SPEC(spec),
                                          .norm = GR_NORM_RMS,
                                          .rope = GR_ROPE_NEOX,
                                          .hparams = hparams,
                                          .layer = layer};
