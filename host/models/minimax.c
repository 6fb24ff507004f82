/* MiniMax 01: lightning attention, softmax attention in every eighth layer, experts; the residual
 * of each part is its normalised input. MiniMax M3: attention to blocks chosen by an index, experts
 * beside a shared one after some dense layers. MiniMax 2025 (arXiv 2501.08313). */
#include "graph/build.h"

static const struct gr_tensor_spec spec_01[] = {
    GR_SPEC_EMBD,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_QKV, GR_IN_STATE, {GR_D_EMBD, GR_D_INNER_3}},
    {GR_W_ATTN_NORM_2, GR_IN_STATE, {GR_D_INNER}},
    {GR_W_ATTN_GATE, GR_IN_STATE, {GR_D_EMBD, GR_D_INNER}},
    {GR_W_ATTN_OUT, GR_IN_STATE, {GR_D_INNER, GR_D_EMBD}},
    {GR_W_ATTN_QKV, GR_IN_KV | GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_QKV}},
    {GR_W_ATTN_Q, GR_IN_KV | GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_Q}},
    {GR_W_ATTN_K, GR_IN_KV | GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_K}},
    {GR_W_ATTN_V, GR_IN_KV | GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_V}},
    {GR_W_ATTN_OUT, GR_IN_KV, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_EXPERTS(0),
};

static const struct gr_tensor_spec spec_m3[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    GR_SPEC_HEAD_NORMS(0),
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL),
    GR_SPEC_EXPERTS(GR_OPTIONAL),
    {GR_W_FFN_EXP_BIAS, GR_OPTIONAL, {GR_D_EXPERT}},
    GR_SPEC_SHARED_EXPERT(GR_OPTIONAL),
};

static int hparams_01(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_find_recurrent(s, hp, 8);
    if (!rc)
        rc = gr_hp_linear_attn(s, hp);
    if (!rc)
        rc = gr_hp_need_f32(s, "residual_scale", &hp->residual.scale);
    if (!rc)
        rc = gr_hp_f32(s, "expert_weights_scale", &hp->moe.weights_scale);
    hp->moe.n_ff_exp = hp->ff.n_ff[0], hp->moe.weights_norm = true;
    return rc;
}

/* Each head attends to n_block blocks of keys chosen by an index: to all of them while there are no
 * more. */
static int hparams_m3(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t block = 0, n_block = 0;
    hp->ff.act = GR_SWIGLU_OAI;
    int rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    if (!rc)
        rc = gr_hp_need_i32(s, "attention.indexer.block_size", 1, INT32_MAX, &block);
    if (!rc)
        rc = gr_hp_need_i32(s, "attention.indexer.top_k", 1, INT32_MAX, &n_block);
    if (!rc)
        hp->attn.n_ctx_dense = n_block > INT32_MAX / block ? 0 : n_block * block;
    return rc;
}

static gr_t layer_01(struct gr_build *b, int il, gr_t x)
{
    static const gr_t none;
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    x = gr_hp(b)->ssm.layer[il] ? gr_lightning(b, il, h, none) : gr_attn_block(b, il, h, none);
    h = gr_norm(b, il, GR_W_FFN_NORM, gr_residual(b, h, x));
    return gr_residual(b, h, gr_moe(b, il, h, none, GR_SILU));
}

const struct gr_arch gr_arch_minimax_01 = {.name = "minimax-01",
                                           GR_SPEC(spec_01),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NEOX,
                                           .hparams = hparams_01,
                                           .layer = layer_01};
const struct gr_arch gr_arch_minimax_m3 = {.name = "minimax-m3",
                                           GR_SPEC(spec_m3),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NEOX,
                                           .hparams = hparams_m3,
                                           .layer = gr_pre_norm_layer};
