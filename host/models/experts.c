/* Experts in every layer, without shared ones: OLMoE, Phi-3.5-MoE, MiniMax M2, Mellum, Maple.
 * Muennighoff et al. 2024 (arXiv 2409.02060), Abdin et al. 2024 (arXiv 2404.14219), MiniMax 2025,
 * JetBrains 2025. */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_ATTN,                                                   \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},                                \
    GR_SPEC_EXPERTS(0)
#define ROW_NORMS                                                   \
    {GR_W_ATTN_Q_NORM, 0, {GR_D_Q}},                                \
    {GR_W_ATTN_K_NORM, 0, {GR_D_K}}
/* clang-format on */

static const struct gr_tensor_spec spec_olmoe[] = {GR_SPEC_EMBD, COMMON, ROW_NORMS};
static const struct gr_tensor_spec spec_minimax[] = {
    GR_SPEC_EMBD, COMMON, ROW_NORMS, {GR_W_FFN_EXP_BIAS, 0, {GR_D_EXPERT}}};
static const struct gr_tensor_spec spec_mellum[] = {GR_SPEC_EMBD, COMMON, GR_SPEC_HEAD_NORMS(0)};
static const struct gr_tensor_spec spec_phimoe[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, GR_BIAS, {GR_D_EMBD}},
    {GR_W_OUTPUT, GR_BIAS, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ROPE_LONG, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ROPE_SHORT, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ATTN_NORM, GR_BIAS, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, GR_BIAS, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, GR_BIAS, {GR_D_EMBD}},
    GR_SPEC_EXPERTS(0),
};

/* The width of the experts is the file's feed-forward width. */
static int hparams_olmoe(struct gr_hp_source *s, struct gr_hparams *hp)
{
    (void)s;
    hp->moe.n_ff_exp = hp->ff.n_ff[0];
    hp->moe.gate = GR_GATE_SOFTMAX;
    return 0;
}

static int hparams_phimoe(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.weights_norm = true;
    return hparams_olmoe(s, hp);
}

static int hparams_minimax(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.n_ff_exp = hp->ff.n_ff[0];
    int rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    hp->moe.weights_norm = true, hp->moe.weights_scale = 0;
    return rc;
}

/* Windowed layers use rope without YaRN. */
static int hparams_mellum(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.gate = GR_GATE_SOFTMAX, hp->moe.weights_norm = true;
    hp->rope.plain_swa = true;
    return gr_hp_swa(s, hp, 4);
}

/* Windowed layers have rope, the others no positional encoding. */
static int hparams_maple(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.gate = GR_GATE_SOFTMAX, hp->moe.weights_norm = true;
    hp->rope.rot_by_kind = hp->ff.glu_limit_first = true;
    int rc = gr_hp_f32_each(s, "swiglu_clamp_exp", hp->n_layer, hp->ff.glu_limit_exp);
    if (!rc)
        rc = gr_hp_swa_rope(s, hp, 0);
    gr_hp_rope_in_windows(hp, 0);
    return rc;
}

const struct gr_arch gr_arch_olmoe = {.name = "olmoe",
                                      GR_SPEC(spec_olmoe),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = hparams_olmoe,
                                      .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_phimoe = {.name = "phimoe",
                                       GR_SPEC(spec_phimoe),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams_phimoe,
                                       .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_minimax_m2 = {.name = "minimax-m2",
                                           GR_SPEC(spec_minimax),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NEOX,
                                           .hparams = hparams_minimax,
                                           .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_mellum = {.name = "mellum",
                                       GR_SPEC(spec_mellum),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams_mellum,
                                       .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_maple = {.name = "maple",
                                      GR_SPEC(spec_mellum),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = hparams_maple,
                                      .layer = gr_pre_norm_layer};
