/* Jamba: Mamba layers and some attention layers (without positions), each followed by a dense
 * feed-forward or experts. Lieber et al. 2024 (arXiv 2403.19887). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_IN_KV | GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, GR_IN_KV, {GR_D_O, GR_D_EMBD}},
    GR_SPEC_MAMBA(GR_IN_STATE),
    {GR_W_SSM_DT_NORM, GR_IN_STATE, {GR_D_RANK}},
    {GR_W_SSM_B_NORM, GR_IN_STATE, {GR_D_STATE}},
    {GR_W_SSM_C_NORM, GR_IN_STATE, {GR_D_STATE}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL),
    GR_SPEC_EXPERTS(GR_OPTIONAL),
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    gr_hp_recurrent_without_kv(hp);
    return gr_hp_recurrence(s, hp, GR_MAMBA);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    x = gr_hp(b)->ssm.layer[il] ? gr_mamba(b, il, h, x) : gr_attn_block(b, il, h, x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_SILU);
}

const struct gr_arch gr_arch_jamba = {.name = "jamba",
                                      GR_SPEC(spec),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NONE,
                                      .hparams = hparams,
                                      .layer = layer};
