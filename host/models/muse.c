/* Muse Glimmer and Talkie: embeddings normalised without weights, logits times a factor. Muse:
 * gated attention, norms of the heads, windowed layers with rope and, every fourth, a full one
 * without. Talkie: only the norm of Q has weights, one per head; every layer adds the embeddings
 * again. */
#include "graph/build.h"

static const struct gr_tensor_spec spec_muse[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    GR_SPEC_HEAD_NORMS(0),
    {GR_W_ATTN_GATE, 0, {GR_D_EMBD, GR_D_O}},
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(0),
    {GR_W_FFN_POST_NORM, 0, {GR_D_EMBD}},
};

static const struct gr_tensor_spec spec_talkie[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT, 0, {GR_D_EMBD, GR_D_VOCAB}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_Q_NORM, GR_REPEAT | GR_AS_F32, {GR_D_HEAD, GR_D_HEADS}},
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    GR_SPEC_GLU(0),
    {GR_W_LAYER_SCALE, GR_REPEAT | GR_AS_F32, {GR_D_EMBD}},
};

static int hparams_talkie(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->embd.norm = true;
    return gr_hp_logit_factor(s, hp);
}

static int hparams_muse(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->embd.norm = true;
    hp->norm.eps_post = 1e-8f;
    hp->rope.freq_scale_swa = 1;
    int rc = gr_hp_logit_factor(s, hp);
    if (!rc)
        rc = gr_hp_f32(s, "final_logit_softcapping", &hp->logits.softcap);
    if (!rc)
        rc = gr_hp_swa_rope(s, hp, 4);
    gr_hp_rope_in_windows(hp, 0);
    return rc;
}

static gr_t layer_talkie(struct gr_build *b, int il, gr_t x)
{
    if (il == 0)
        gr_carry(b, 0, x);
    struct gr_qkv p = gr_qkv_proj(b, il, gr_norm_plain(b, il, x));
    p.q = gr_norm(b, il, GR_W_ATTN_Q_NORM, p.q);
    p.k = gr_rms(b, il, p.k, gr_hp(b)->attn.d_k);
    x = gr_mm_add(b, il, GR_W_ATTN_OUT, gr_attn(b, il, p), x);
    x = gr_ffn_glu(b, il, gr_norm_plain(b, il, x), x, GR_SILU);
    return gr_mul_add(b, il, GR_W_LAYER_SCALE, gr_carried(b, 0), x);
}

const struct gr_arch gr_arch_muse_glimmer = {.name = "muse-glimmer",
                                             GR_SPEC(spec_muse),
                                             .norm = GR_NORM_RMS,
                                             .rope = GR_ROPE_NORM,
                                             .hparams = hparams_muse,
                                             .layer = gr_sandwich_layer};
const struct gr_arch gr_arch_talkie = {.name = "talkie",
                                       GR_SPEC(spec_talkie),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams_talkie,
                                       .layer = layer_talkie};
