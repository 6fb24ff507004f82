/* Trinity, Laguna and Step 3.5: gated attention output, experts beside shared ones after some dense
 * layers, windowed and full layers. Trinity has norms before and after each part and no rope in
 * every fourth layer. Arcee 2025, Poolside 2026, StepFun 2026. */
#include "graph/build.h"

#include <math.h>

/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_EMBD,                                                   \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},                               \
    GR_SPEC_QKV(GR_BIAS_MAYBE),                                     \
    GR_SPEC_HEAD_NORMS(0),                                          \
    {GR_W_ATTN_GATE, 0, {GR_D_EMBD, GR_D_GATE}},                    \
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},                        \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},                                \
    GR_SPEC_GLU(GR_OPTIONAL),                                       \
    GR_SPEC_EXPERTS(GR_OPTIONAL),                                   \
    {GR_W_FFN_EXP_BIAS, GR_OPTIONAL, {GR_D_EXPERT}},                \
    GR_SPEC_SHARED_EXPERT(GR_OPTIONAL)
/* clang-format on */

static const struct gr_tensor_spec spec_afmoe[] = {
    COMMON, {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}}, {GR_W_FFN_POST_NORM, 0, {GR_D_EMBD}}};
static const struct gr_tensor_spec spec_laguna[] = {COMMON};
static const struct gr_tensor_spec spec_step[] = {
    GR_SPEC_EMBD,
    {GR_W_ROPE_FREQS, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    GR_SPEC_HEAD_NORMS(GR_OPTIONAL),
    {GR_W_ATTN_GATE, GR_OPTIONAL, {GR_D_EMBD, GR_D_HEADS}},
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL),
    GR_SPEC_EXPERTS(GR_OPTIONAL),
    {GR_W_FFN_EXP_BIAS, GR_OPTIONAL, {GR_D_EXPERT}},
    GR_SPEC_SHARED_EXPERT(GR_OPTIONAL)};

static int hparams_afmoe(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t n_shared = 0;
    hp->embd.scale = sqrtf((float)hp->n_embd);
    hp->attn.d_gate = hp->attn.d_k;
    int rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    if (!rc)
        rc = gr_hp_i32(s, "expert_shared_count", 0, 64, &n_shared);
    if (!rc)
        rc = gr_hp_swa_rope(s, hp, 4);
    hp->moe.n_ff_shexp = n_shared * hp->moe.n_ff_exp; /* below 2^30 */
    gr_hp_no_rope(hp, 3, 4);
    return rc;
}

/* The gate has one value per head, or one per column. Windowed layers have a rope base of their
 * own, without scaling. */
static int hparams_laguna(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int64_t gates = gr_hp_rows(s, "blk.0.attn_gate.weight");
    hp->attn.d_gate = gates > hp->attn.n_head[0] ? hp->attn.d_k : 1;
    hp->rope.rot_by_kind = hp->rope.plain_swa = true;
    int rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    if (hp->moe.n_ff_shexp == 0)
        hp->moe.n_ff_shexp = hp->moe.n_ff_exp;
    if (!rc)
        rc = gr_hp_f32(s, "rope.freq_base_swa", &hp->rope.freq_base_swa);
    return rc ? rc : gr_hp_swa_after(s, hp, 4);
}

/* In full layers rope rotates half as many columns as the file says. */
static int hparams_step(struct gr_hp_source *s, struct gr_hparams *hp)
{
    if (hp->rope.n_rot % 4)
        return gr_hp_unsupported(s, "rope.dimension_count");
    hp->rope.n_rot /= 2;
    hp->rope.rot_by_kind = true;
    int rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    if (!rc)
        rc = gr_hp_glu_limits(s, hp);
    return rc ? rc : gr_hp_swa_unscaled(s, hp, 0);
}

static gr_t layer_laguna(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    gr_t y = gr_attn(b, il, gr_qk_norm(b, il, gr_qkv_proj(b, il, h)));
    x = gr_mm_add(b, il, GR_W_ATTN_OUT, gr_gated(b, il, GR_SOFTPLUS, h, y), x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_SILU);
}

const struct gr_arch gr_arch_afmoe = {.name = "afmoe",
                                      GR_SPEC(spec_afmoe),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = hparams_afmoe,
                                      .layer = gr_sandwich_layer};
const struct gr_arch gr_arch_laguna = {.name = "laguna",
                                       GR_SPEC(spec_laguna),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams_laguna,
                                       .layer = layer_laguna};
const struct gr_arch gr_arch_step35 = {.name = "step35",
                                       GR_SPEC(spec_step),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams_step,
                                       .layer = gr_pre_norm_layer};
