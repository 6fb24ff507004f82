/* T5: encoder and decoder, or the encoder alone. Norms before each part, unscaled attention with
 * biases by distance; feed-forward parts with or without a gate. A decoder layer counts as two
 * here: one with self-attention, the next with attention to the encoder's output, which it caches
 * as keys and values. Raffel et al. 2019 (arXiv 1910.10683), Ni et al. 2021 (arXiv 2108.08877). */
#include "graph/build.h"

/* clang-format off */
#define SPEC_ENCODER(flags)                                                                        \
    {GR_W_ENC_ATTN_NORM, flags, {GR_D_EMBD}},                                                      \
    {GR_W_ENC_ATTN_Q, flags, {GR_D_EMBD, GR_D_Q}},                                                 \
    {GR_W_ENC_ATTN_K, flags, {GR_D_EMBD, GR_D_K}},                                                 \
    {GR_W_ENC_ATTN_V, flags, {GR_D_EMBD, GR_D_V}},                                                 \
    {GR_W_ENC_ATTN_OUT, flags, {GR_D_O, GR_D_EMBD}},                                               \
    {GR_W_ENC_ATTN_REL_B, (flags) | GR_FIRST | GR_AS_F32, {GR_D_HEADS, GR_D_BUCKET}},              \
    {GR_W_ENC_FFN_NORM, flags, {GR_D_EMBD}},                                                       \
    {GR_W_ENC_FFN_GATE, (flags) | GR_OPTIONAL, {GR_D_EMBD, GR_D_FF}},                              \
    {GR_W_ENC_FFN_UP, flags, {GR_D_EMBD, GR_D_FF}},                                                \
    {GR_W_ENC_FFN_DOWN, flags, {GR_D_FF, GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec_encoder[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ENC_OUTPUT_NORM, 0, {GR_D_EMBD}},
    SPEC_ENCODER(0),
};

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    SPEC_ENCODER(GR_IN_ENC),
    {GR_W_ENC_OUTPUT_NORM, GR_EACH | GR_IN_CROSS, {GR_D_EMBD}},
    {GR_W_DEC_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_DEC_ATTN_NORM, GR_IN_DEC, {GR_D_EMBD}},
    {GR_W_DEC_ATTN_Q, GR_IN_DEC, {GR_D_EMBD, GR_D_Q}},
    {GR_W_DEC_ATTN_K, GR_IN_DEC, {GR_D_EMBD, GR_D_K}},
    {GR_W_DEC_ATTN_V, GR_IN_DEC, {GR_D_EMBD, GR_D_V}},
    {GR_W_DEC_ATTN_OUT, GR_IN_DEC, {GR_D_O, GR_D_EMBD}},
    {GR_W_DEC_ATTN_REL_B, GR_IN_DEC | GR_FIRST | GR_AS_F32, {GR_D_HEADS, GR_D_BUCKET}},
    {GR_W_DEC_CROSS_NORM, GR_IN_CROSS, {GR_D_EMBD}},
    {GR_W_DEC_CROSS_Q, GR_IN_CROSS, {GR_D_EMBD, GR_D_Q}},
    {GR_W_DEC_CROSS_K, GR_IN_CROSS, {GR_D_EMBD, GR_D_K}},
    {GR_W_DEC_CROSS_V, GR_IN_CROSS, {GR_D_EMBD, GR_D_V}},
    {GR_W_DEC_CROSS_OUT, GR_IN_CROSS, {GR_D_O, GR_D_EMBD}},
    {GR_W_DEC_FFN_NORM, GR_IN_CROSS, {GR_D_EMBD}},
    {GR_W_DEC_FFN_GATE, GR_IN_CROSS | GR_OPTIONAL, {GR_D_EMBD, GR_D_FF}},
    {GR_W_DEC_FFN_UP, GR_IN_CROSS, {GR_D_EMBD, GR_D_FF}},
    {GR_W_DEC_FFN_DOWN, GR_IN_CROSS, {GR_D_FF, GR_D_EMBD}},
};

static int hparams_encoder(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->attn.scale = 1;
    for (int32_t il = 1; il < hp->n_layer; il++) /* they share the first one's biases */
        if (hp->attn.n_head[il] != hp->attn.n_head[0])
            return gr_hp_unsupported(s, "attention.head_count");
    return gr_hp_need_i32(s, "attention.relative_buckets_count", 4, 1 << 16, &hp->attn.n_bucket);
}

/* Layers of the encoder, then two for each decoder layer: self-attention and cross-attention. */
static void lay_out(struct gr_hparams *hp, int32_t n_enc, int32_t n_dec)
{
    hp->enc.n_layer = n_enc, hp->n_layer = n_enc + 2 * n_dec;
    for (int32_t il = 0; il < hp->n_layer; il++) {
        int32_t of = il < n_enc ? il : (il - n_enc) / 2, like = of < n_enc ? of : 0;
        hp->attn.n_head[il] = hp->attn.n_head[like];
        hp->attn.n_head_kv[il] = hp->attn.n_head_kv[like];
        hp->ff.n_ff[il] = hp->ff.n_ff[like];
        hp->weights_of[il] = of, hp->attn.kv_of[il] = il < n_enc ? -1 : il;
        hp->swa.layer[il] = il >= n_enc && (il - n_enc) % 2;
    }
}

/* By default the decoder has as many layers as the encoder and begins with token 0. */
static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t n_enc = hp->n_layer, n_dec = n_enc;
    int rc = hparams_encoder(s, hp);
    if (!rc)
        rc = gr_hp_i32(s, "decoder_start_token_id", 0, INT32_MAX, &hp->enc.decoder_start);
    if (!rc)
        rc = gr_hp_i32(s, "decoder_block_count", 1, GR_MAX_LAYER, &n_dec);
    if (!rc && n_enc + 2 * n_dec > GR_MAX_LAYER)
        rc = gr_hp_unsupported(s, "block_count");
    if (!rc)
        lay_out(hp, n_enc, n_dec);
    return rc;
}

/* GELU with a gate, otherwise ReLU. */
static gr_t ffn(struct gr_build *b, int il, const enum gr_slot gate_up_down[3], gr_t x, gr_t res)
{
    gr_t up = gr_mm(b, il, gate_up_down[1], x);
    if (gr_has(b, il, gate_up_down[0]))
        up = gr_glu(b, GR_GELU, gr_mm(b, il, gate_up_down[0], x), up);
    else
        up = gr_act(b, GR_RELU, up);
    return gr_mm_add(b, il, gate_up_down[2], up, res);
}

static gr_t encoder_layer(struct gr_build *b, int il, gr_t x)
{
    static const enum gr_slot parts[] = {GR_W_ENC_FFN_GATE, GR_W_ENC_FFN_UP, GR_W_ENC_FFN_DOWN};
    gr_t h = gr_norm(b, il, GR_W_ENC_ATTN_NORM, x);
    struct gr_qkv p = {gr_mm(b, il, GR_W_ENC_ATTN_Q, h), gr_mm(b, il, GR_W_ENC_ATTN_K, h),
                       gr_mm(b, il, GR_W_ENC_ATTN_V, h)};
    h = gr_attn_near(b, il, p, GR_W_ENC_ATTN_REL_B);
    x = gr_mm_add(b, il, GR_W_ENC_ATTN_OUT, h, x);
    return ffn(b, il, parts, gr_norm(b, il, GR_W_ENC_FFN_NORM, x), x);
}

static void encoded(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ENC_OUTPUT_NORM, x);
    gr_cross_keep(b, il, gr_mm(b, il, GR_W_DEC_CROSS_K, h), gr_mm(b, il, GR_W_DEC_CROSS_V, h));
}

static gr_t past_layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_DEC_ATTN_NORM, x);
    struct gr_qkv p = {gr_mm(b, il, GR_W_DEC_ATTN_Q, h), gr_mm(b, il, GR_W_DEC_ATTN_K, h),
                       gr_mm(b, il, GR_W_DEC_ATTN_V, h)};
    h = gr_attn_near(b, il, p, GR_W_DEC_ATTN_REL_B);
    return gr_mm_add(b, il, GR_W_DEC_ATTN_OUT, h, x);
}

static gr_t cross_layer(struct gr_build *b, int il, gr_t x)
{
    static const enum gr_slot parts[] = {GR_W_DEC_FFN_GATE, GR_W_DEC_FFN_UP, GR_W_DEC_FFN_DOWN};
    gr_t h = gr_norm(b, il, GR_W_DEC_CROSS_NORM, x);
    h = gr_attn_cross(b, il, gr_mm(b, il, GR_W_DEC_CROSS_Q, h));
    x = gr_mm_add(b, il, GR_W_DEC_CROSS_OUT, h, x);
    return ffn(b, il, parts, gr_norm(b, il, GR_W_DEC_FFN_NORM, x), x);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    const struct gr_hparams *hp = gr_hp(b);
    return il < hp->enc.n_layer  ? encoder_layer(b, il, x)
           : gr_is_cross(hp, il) ? cross_layer(b, il, x)
                                 : past_layer(b, il, x);
}

const struct gr_arch gr_arch_t5 = {.name = "t5",
                                   GR_SPEC(spec),
                                   .norm = GR_NORM_RMS,
                                   .rope = GR_ROPE_NONE,
                                   .hparams = hparams,
                                   .layer = layer,
                                   .encoded = encoded};

const struct gr_arch gr_arch_t5encoder = {.name = "t5encoder",
                                          GR_SPEC(spec_encoder),
                                          .norm = GR_NORM_RMS,
                                          .rope = GR_ROPE_NONE,
                                          .no_cache = true,
                                          .no_logits = true,
                                          .hparams = hparams_encoder,
                                          .layer = encoder_layer};
