/* Llama 4: three layers with chunked windows to one full layer without rope, whose queries are
 * scaled by position; in some layers experts beside a shared one, whose input is multiplied by
 * their weight. Meta 2025. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ROPE_FREQS, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL | GR_BIAS_MAYBE),
    GR_SPEC_EXPERTS(GR_OPTIONAL),
    GR_SPEC_SHARED_EXPERT(GR_OPTIONAL),
};

/* The window is 8,192 unless the file says that there is none. Heads with rope are normalised after
 * it, except in the model with 128 experts. */
static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t n_swa = 8192;
    hp->moe.gate = GR_GATE_SIGMOID, hp->moe.weighs_input = true;
    hp->moe.n_ff_shexp = hp->moe.n_ff_exp;
    hp->attn.norm_roped = hp->moe.n_expert != 128;
    int rc = gr_hp_i32(s, "attention.sliding_window", 0, INT32_MAX, &n_swa);
    if (rc || n_swa == 0)
        return rc;
    hp->swa.n_swa = 8192, hp->swa.chunked = true;
    hp->attn.temper.scale = 0.1f, hp->attn.temper.first = 1, hp->attn.temper.length = 8192;
    rc = gr_hp_swa_rope(s, hp, 4);
    hp->swa.n_swa = 8192;
    gr_hp_no_rope(hp, 3, 4);
    return rc;
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    struct gr_qkv p = gr_qkv_proj(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x));
    if (gr_hp(b)->rope.none[il])
        p.q = gr_temper(b, p.q);
    else
        p = gr_qk_norm(b, il, p);
    x = gr_mm_add(b, il, GR_W_ATTN_OUT, gr_attn(b, il, p), x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_SILU);
}

const struct gr_arch gr_arch_llama4 = {.name = "llama4",
                                       GR_SPEC(spec),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NORM,
                                       .hparams = hparams,
                                       .layer = layer};
