/* Granite 3 and MiniCPM: llama, dense or with experts, with factors for the embeddings, the
 * residual branches and the logits; Granite 4: Mamba 2 in place of attention in most layers. IBM
 * Research 2024, 2025, Hu et al. 2024 (arXiv 2404.06395). */
#include "graph/build.h"

#include <math.h>

/* clang-format off */
#define EMBD                                                        \
    GR_SPEC_EMBD,                                                   \
    GR_SPEC_ROPE_FACTORS,                                           \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}}
#define ATTN(flags)                                                 \
    GR_SPEC_QKV((flags) | GR_BIAS_MAYBE),                           \
    {GR_W_ATTN_OUT, (flags) | GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}}
#define FFN                                                         \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},                                \
    GR_SPEC_GLU(GR_OPTIONAL | GR_BIAS_MAYBE),                       \
    GR_SPEC_EXPERTS(GR_OPTIONAL),                                   \
    GR_SPEC_SHARED_EXPERT(GR_OPTIONAL)
/* clang-format on */

static const struct gr_tensor_spec spec[] = {EMBD, ATTN(0), FFN};
static const struct gr_tensor_spec spec_hybrid[] = {EMBD, ATTN(GR_IN_KV),
                                                    GR_SPEC_MAMBA2(GR_IN_STATE, 0), FFN};

/* Every layer has attention sinks and some have windows; gate and up may be one matrix. */
static const struct gr_tensor_spec spec_swa[] = {
    EMBD,
    ATTN(0),
    {GR_W_ATTN_SINKS, 0, {GR_D_HEADS}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL | GR_BIAS_MAYBE),
    {GR_W_FFN_GATE_INP, GR_OPTIONAL, {GR_D_EMBD, GR_D_EXPERT}},
    {GR_W_FFN_GATE_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}},
    {GR_W_FFN_UP_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}},
    {GR_W_FFN_GATE_UP_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP_2, GR_D_EXPERT}},
    {GR_W_FFN_DOWN_EXPS, GR_OPTIONAL, {GR_D_FF_EXP, GR_D_EMBD, GR_D_EXPERT}},
    {GR_W_FFN_UP_SHEXP, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_SHEXP_2}},
    {GR_W_FFN_DOWN_SHEXP, GR_OPTIONAL, {GR_D_FF_SHEXP, GR_D_EMBD}},
};

static int scales(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_embd_scale(s, hp);
    if (!rc)
        rc = gr_hp_f32(s, "residual_scale", &hp->residual.scale);
    if (!rc)
        rc = gr_hp_f32(s, "logit_scale", &hp->logits.scale);
    return rc ? rc : gr_hp_f32(s, "attention.scale", &hp->attn.scale);
}

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_experts(s, hp, GR_GATE_SOFTMAX);
    if (!rc)
        rc = gr_hp_softmax_experts(s, hp);
    return rc ? rc : scales(s, hp);
}

/* Older files have no factors; the defaults are those of the 2.4B model. */
static int hparams_minicpm(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->embd.scale = 12;
    hp->residual.scale = 1.4f / sqrtf((float)hp->n_layer);
    hp->logits.scale = (float)hp->n_embd / 256;
    return hparams(s, hp);
}

static int hparams_hybrid(struct gr_hp_source *s, struct gr_hparams *hp)
{
    bool rope = true; /* files of models without rope say so */
    gr_hp_recurrent_without_kv(hp);
    int rc = gr_hp_recurrence(s, hp, GR_MAMBA_2);
    if (!rc)
        rc = gr_hp_bool(s, "rope.scaling.finetuned", &rope);
    if (!rope)
        hp->rope.kind = GR_ROPE_NONE;
    return rc ? rc : hparams(s, hp);
}

/* The file lists the layers with rope. Experts are as wide as a dense layer. */
static int hparams_swa(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t rope[GR_MAX_LAYER];
    int rc = hparams(s, hp);
    if (!rc)
        rc = gr_hp_swa(s, hp, 0);
    if (!rc && gr_hp_has(s, "attention.rope_pattern")) {
        rc = gr_hp_each(s, "attention.rope_pattern", 0, INT32_MAX, hp->n_layer, rope);
        for (int il = 0; il < hp->n_layer && !rc; il++)
            hp->rope.none[il] = rope[il] == 0;
    }
    hp->moe.n_ff_exp = hp->ff.n_ff[0];
    return rc;
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    static const gr_t none;
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    h = gr_hp(b)->ssm.layer[il] ? gr_mamba2(b, il, h, none) : gr_attn_block(b, il, h, none);
    x = gr_residual(b, h, x);
    h = gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), none, GR_SILU);
    return gr_residual(b, h, x);
}

const struct gr_arch gr_arch_granite = {.name = "granite",
                                        GR_SPEC(spec),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NORM,
                                        .hparams = hparams,
                                        .layer = layer};
const struct gr_arch gr_arch_granitemoe = {.name = "granitemoe",
                                           GR_SPEC(spec),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NORM,
                                           .hparams = hparams,
                                           .layer = layer};
const struct gr_arch gr_arch_granite_swa = {.name = "granite_swa",
                                            GR_SPEC(spec_swa),
                                            .norm = GR_NORM_RMS,
                                            .rope = GR_ROPE_NORM,
                                            .hparams = hparams_swa,
                                            .layer = layer};
const struct gr_arch gr_arch_minicpm = {.name = "minicpm",
                                        GR_SPEC(spec),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NORM,
                                        .hparams = hparams_minicpm,
                                        .layer = layer};
const struct gr_arch gr_arch_granitehybrid = {.name = "granitehybrid",
                                              GR_SPEC(spec_hybrid),
                                              .norm = GR_NORM_RMS,
                                              .rope = GR_ROPE_NORM,
                                              .hparams = hparams_hybrid,
                                              .layer = layer};
