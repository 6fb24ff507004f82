/* Experts beside a shared one, after some layers without: DeepSeek MoE, dots.llm1, Ling; Qwen 2
 * with experts, where a gate weighs the shared one. Dai et al. 2024 (arXiv 2401.06066), Huo et al.
 * 2025 (arXiv 2506.05767), Ling Team 2025 (arXiv 2503.05139), Yang et al. 2024 (arXiv 2407.10671).
 */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},                  \
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},                             \
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},            \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},                               \
    GR_SPEC_QKV(GR_BIAS_MAYBE),                                     \
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},                        \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}}
#define EXPERTS(flags)                                              \
    {GR_W_FFN_GATE_INP, flags, {GR_D_EMBD, GR_D_EXPERT}},           \
    {GR_W_FFN_GATE_EXPS, flags, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}}, \
    {GR_W_FFN_UP_EXPS, flags, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}}, \
    {GR_W_FFN_DOWN_EXPS, flags, {GR_D_FF_EXP, GR_D_EMBD, GR_D_EXPERT}}, \
    {GR_W_FFN_GATE_SHEXP, flags, {GR_D_EMBD, GR_D_FF_SHEXP}},       \
    {GR_W_FFN_UP_SHEXP, flags, {GR_D_EMBD, GR_D_FF_SHEXP}},         \
    {GR_W_FFN_DOWN_SHEXP, flags, {GR_D_FF_SHEXP, GR_D_EMBD}}
#define DENSE                                                       \
    {GR_W_FFN_GATE, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF}},             \
    {GR_W_FFN_UP, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF}},               \
    {GR_W_FFN_DOWN, GR_OPTIONAL, {GR_D_FF, GR_D_EMBD}}
#define HEAD_NORMS                                                  \
    {GR_W_ATTN_Q_NORM, 0, {GR_D_HEAD}},                             \
    {GR_W_ATTN_K_NORM, 0, {GR_D_HEAD}}
/* clang-format on */

static const struct gr_tensor_spec spec_deepseek[] = {COMMON, DENSE, EXPERTS(GR_OPTIONAL)};
static const struct gr_tensor_spec spec_bailing[] = {COMMON, EXPERTS(0)};
static const struct gr_tensor_spec spec_dots1[] = {COMMON,
                                                   HEAD_NORMS,
                                                   DENSE,
                                                   EXPERTS(GR_OPTIONAL),
                                                   {GR_W_FFN_EXP_BIAS, GR_OPTIONAL, {GR_D_EXPERT}}};
static const struct gr_tensor_spec spec_qwen2moe[] = {
    COMMON, EXPERTS(0), {GR_W_FFN_GATE_INP_SHEXP, 0, {GR_D_EMBD, GR_D_ONE}}};

static int hparams(struct gr_hparams *hp, struct gr_hp_source *s)
{
    return gr_hp_experts(s, hp, GR_GATE_SOFTMAX);
}

/* Of the softmax over all experts the chosen ones keep what they have. */
static int hparams_deepseek(struct gr_hparams *hp, struct gr_hp_source *s)
{
    int rc = hparams(hp, s);
    hp->expert_gate = GR_GATE_SOFTMAX, hp->expert_norm = false;
    return rc;
}

static int hparams_qwen2moe(struct gr_hparams *hp, struct gr_hp_source *s)
{
    int rc = hparams_deepseek(hp, s);
    hp->expert_scale = 0;
    return rc;
}

const struct gr_arch gr_arch_deepseek = {.name = "deepseek",
                                         GR_SPEC(spec_deepseek),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NORM,
                                         .hparams = hparams_deepseek,
                                         .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_bailingmoe = {.name = "bailingmoe",
                                           GR_SPEC(spec_bailing),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NORM,
                                           .hparams = hparams,
                                           .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_dots1 = {.name = "dots1",
                                      GR_SPEC(spec_dots1),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = hparams,
                                      .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_qwen2moe = {.name = "qwen2moe",
                                         GR_SPEC(spec_qwen2moe),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NEOX,
                                         .hparams = hparams_qwen2moe,
                                         .layer = gr_pre_norm_layer};
