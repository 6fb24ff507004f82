/* T5's encoder alone: norms in front of each part, biases by distance in attention, which is not
 * scaled; feed-forward parts with a gate or without. Raffel et al. 2019 (arXiv 1910.10683), Ni et
 * al. 2021 (arXiv 2108.08877). */
#include "graph/build.h"

static const struct gr_tensor_spec spec_encoder[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ENC_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_ENC_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ENC_ATTN_Q, 0, {GR_D_EMBD, GR_D_Q}},
    {GR_W_ENC_ATTN_K, 0, {GR_D_EMBD, GR_D_K}},
    {GR_W_ENC_ATTN_V, 0, {GR_D_EMBD, GR_D_V}},
    {GR_W_ENC_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_ENC_ATTN_REL_B, GR_FIRST | GR_AS_F32, {GR_D_HEADS, GR_D_BUCKET}},
    {GR_W_ENC_FFN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ENC_FFN_GATE, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF}},
    {GR_W_ENC_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_ENC_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

static int hparams(struct gr_hparams *hp, struct gr_hp_source *s)
{
    hp->attn_scale = 1;
    return gr_hp_need_i32(s, "attention.relative_buckets_count", 4, 1 << 16, &hp->n_bucket);
}

static gr_t ffn(struct gr_build *b, int il, gr_t x, gr_t res)
{
    gr_t up = gr_mm(b, il, GR_W_ENC_FFN_UP, x);
    if (gr_has(b, il, GR_W_ENC_FFN_GATE))
        up = gr_glu(b, GR_GELU, gr_mm(b, il, GR_W_ENC_FFN_GATE, x), up);
    else
        up = gr_act(b, GR_RELU, up);
    return gr_mm_add(b, il, GR_W_ENC_FFN_DOWN, up, res);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ENC_ATTN_NORM, x);
    struct gr_qkv p = {gr_mm(b, il, GR_W_ENC_ATTN_Q, h), gr_mm(b, il, GR_W_ENC_ATTN_K, h),
                       gr_mm(b, il, GR_W_ENC_ATTN_V, h)};
    h = gr_attn_near(b, il, p, GR_W_ENC_ATTN_REL_B);
    x = gr_mm_add(b, il, GR_W_ENC_ATTN_OUT, h, x);
    return ffn(b, il, gr_norm(b, il, GR_W_ENC_FFN_NORM, x), x);
}

const struct gr_arch gr_arch_t5encoder = {.name = "t5encoder",
                                          GR_SPEC(spec_encoder),
                                          .norm = GR_NORM_RMS,
                                          .rope = GR_ROPE_NONE,
                                          .no_cache = true,
                                          .no_logits = true,
                                          .hparams = hparams,
                                          .layer = layer};
