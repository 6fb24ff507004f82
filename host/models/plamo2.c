/* PLaMo 2: Mamba with heads, attention in every other layer; norms before and after each part.
 * Preferred Networks 2025 (arXiv 2509.04897). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_QKV, GR_IN_KV, {GR_D_EMBD, GR_D_QKV}},
    {GR_W_ATTN_Q_NORM, GR_IN_KV | GR_AS_F32, {GR_D_HEAD, GR_D_HEADS}},
    {GR_W_ATTN_K_NORM, GR_IN_KV | GR_AS_F32, {GR_D_HEAD, GR_D_HEADS_KV}},
    {GR_W_ATTN_OUT, GR_IN_KV, {GR_D_O, GR_D_EMBD}},
    {GR_W_SSM_IN, GR_IN_STATE, {GR_D_EMBD, GR_D_INNER_2}},
    {GR_W_SSM_CONV, GR_IN_STATE | GR_AS_F32, {GR_D_KERNEL, GR_D_INNER}},
    {GR_W_SSM_X, GR_IN_STATE, {GR_D_INNER, GR_D_DT_BC}},
    {GR_W_SSM_DT, GR_IN_STATE | GR_BIAS, {GR_D_DT, GR_D_RANK}},
    {GR_W_SSM_DT_NORM, GR_IN_STATE, {GR_D_DT}},
    {GR_W_SSM_B_NORM, GR_IN_STATE, {GR_D_STATE}},
    {GR_W_SSM_C_NORM, GR_IN_STATE, {GR_D_STATE}},
    {GR_W_SSM_A, GR_IN_STATE, {GR_D_RANK}},
    {GR_W_SSM_D, GR_IN_STATE, {GR_D_RANK}},
    {GR_W_SSM_OUT, GR_IN_STATE, {GR_D_INNER, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_POST_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF_2}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    gr_hp_recurrent_without_kv(hp);
    hp->ssm.n_dt = hp->n_embd / 16 > 64 ? hp->n_embd / 16 : 64;
    return gr_hp_recurrence(s, hp, GR_MAMBA_HEADS);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    static const gr_t none;
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    h = gr_hp(b)->ssm.layer[il] ? gr_mamba_heads(b, il, h, none) : gr_attn_block(b, il, h, none);
    return gr_sandwich_rest(b, il, h, x);
}

const struct gr_arch gr_arch_plamo2 = {.name = "plamo2",
                                       GR_SPEC(spec),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams,
                                       .layer = layer};
