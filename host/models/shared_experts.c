/* Experts beside a shared one, after some dense layers: DeepSeek MoE, dots.llm1, Ling, ERNIE 4.5,
 * GLM 4.5, K-EXAONE, Hunyuan 3; Qwen 2 with experts, where a gate weighs the shared one. Dai et al.
 * 2024 (arXiv 2401.06066), Huo et al. 2025 (arXiv 2506.05767), Ling Team 2025 (arXiv 2503.05139),
 * GLM-4.5 Team 2025 (arXiv 2508.06471), Baidu 2025, LG AI Research 2026, Tencent 2026, Yang et al.
 * 2024 (arXiv 2407.10671). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_EMBD,                                                   \
    GR_SPEC_ATTN
#define FFN_NORM {GR_W_FFN_NORM, 0, {GR_D_EMBD}}
#define EXPERTS(flags) GR_SPEC_EXPERTS(flags), GR_SPEC_SHARED_EXPERT(flags)
#define MOSTLY_EXPERTS                                              \
    GR_SPEC_GLU(GR_OPTIONAL),                                       \
    EXPERTS(GR_OPTIONAL),                                           \
    {GR_W_FFN_EXP_BIAS, GR_OPTIONAL, {GR_D_EXPERT}}
/* clang-format on */

static const struct gr_tensor_spec spec_deepseek[] = {COMMON, FFN_NORM, GR_SPEC_GLU(GR_OPTIONAL),
                                                      EXPERTS(GR_OPTIONAL)};
static const struct gr_tensor_spec spec_bailing[] = {COMMON, FFN_NORM, EXPERTS(0)};
static const struct gr_tensor_spec spec_ernie[] = {COMMON, FFN_NORM, MOSTLY_EXPERTS};
static const struct gr_tensor_spec spec_dots1[] = {COMMON, FFN_NORM, GR_SPEC_HEAD_NORMS(0),
                                                   MOSTLY_EXPERTS};
static const struct gr_tensor_spec spec_exaone[] = {COMMON,
                                                    FFN_NORM,
                                                    GR_SPEC_HEAD_NORMS(0),
                                                    MOSTLY_EXPERTS,
                                                    {GR_W_ROPE_FREQS, GR_OPTIONAL, {GR_D_ROT_2}}};
static const struct gr_tensor_spec spec_hy3[] = {
    COMMON,
    FFN_NORM,
    GR_SPEC_HEAD_NORMS(0),
    MOSTLY_EXPERTS,
    {GR_W_FFN_GATE_UP_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP_2, GR_D_EXPERT}}};
static const struct gr_tensor_spec spec_glm4[] = {
    COMMON, {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}}, GR_SPEC_HEAD_NORMS(GR_OPTIONAL), MOSTLY_EXPERTS};
static const struct gr_tensor_spec spec_qwen2moe[] = {
    COMMON, FFN_NORM, EXPERTS(0), {GR_W_FFN_GATE_INP_SHEXP, 0, {GR_D_EMBD, GR_D_ONE}}};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    return gr_hp_experts(s, hp, GR_GATE_SOFTMAX);
}

/* The weights of the chosen experts are those of the softmax over all experts, not renormalised. */
static int hparams_deepseek(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = hparams(s, hp);
    hp->moe.gate = GR_GATE_SOFTMAX, hp->moe.weights_norm = false;
    return rc;
}

static int hparams_qwen2moe(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = hparams_deepseek(s, hp);
    hp->moe.weights_scale = 0;
    return rc;
}

/* Some files have a bias of the attention output; like llama.cpp, this ignores it. */
static int hparams_ernie(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = hparams(s, hp);
    return rc ? rc : gr_hp_softmax_experts(s, hp);
}

/* Without a width in the file, the chosen experts together are as wide as a dense part. */
static void share_width(struct gr_hp_source *s, struct gr_hparams *hp)
{
    if (!gr_hp_has(s, "expert_feed_forward_length") && hp->moe.n_expert_used > 0)
        hp->moe.n_ff_exp = hp->ff.n_ff[0] / hp->moe.n_expert_used;
}

static int hparams_glm4(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t n_shared = 0;
    share_width(s, hp);
    int rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    if (!rc)
        rc = gr_hp_i32(s, "expert_shared_count", 0, 64, &n_shared);
    hp->moe.n_ff_shexp = n_shared * hp->moe.n_ff_exp;
    return rc ? rc : gr_hp_maybe_sections(s, hp);
}

/* The file's width is that of each shared expert. */
static int hparams_bailing2(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t n_ff = 0, n_shared = 1;
    int rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    if (!rc)
        rc = gr_hp_i32(s, "expert_shared_feed_forward_length", 0, 1 << 24, &n_ff);
    if (!rc)
        rc = gr_hp_i32(s, "expert_shared_count", 0, 64, &n_shared);
    hp->moe.n_ff_shexp = n_shared * (n_ff ? n_ff : hp->moe.n_ff_exp); /* below 2^30 */
    return rc;
}

/* One shared expert, as wide as the others when the file does not say. */
static int one_shared(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t n_ff = 0;
    int rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    if (!rc)
        rc = gr_hp_i32(s, "expert_shared_feed_forward_length", 0, 1 << 24, &n_ff);
    hp->moe.n_ff_shexp = n_ff ? n_ff : hp->moe.n_ff_exp;
    return rc;
}

static int hparams_hy3(struct gr_hp_source *s, struct gr_hparams *hp)
{
    share_width(s, hp);
    return one_shared(s, hp);
}

/* Windowed layers have rope, the others no positional encoding. */
static int hparams_exaone(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->swa.n_swa = 128;
    int rc = one_shared(s, hp);
    if (!rc)
        rc = gr_hp_swa(s, hp, 4);
    gr_hp_rope_in_windows(hp, 0);
    return rc;
}

static gr_t layer_glm4(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_ATTN_POST_NORM, x), x, GR_SILU);
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
const struct gr_arch gr_arch_ernie4_5_moe = {.name = "ernie4_5-moe",
                                             GR_SPEC(spec_ernie),
                                             .norm = GR_NORM_RMS,
                                             .rope = GR_ROPE_NORM,
                                             .hparams = hparams_ernie,
                                             .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_glm4moe = {.name = "glm4moe",
                                        GR_SPEC(spec_glm4),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NEOX,
                                        .hparams = hparams_glm4,
                                        .layer = layer_glm4};
const struct gr_arch gr_arch_bailingmoe2 = {.name = "bailingmoe2",
                                            GR_SPEC(spec_dots1),
                                            .norm = GR_NORM_RMS,
                                            .rope = GR_ROPE_NEOX,
                                            .hparams = hparams_bailing2,
                                            .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_exaone_moe = {.name = "exaone-moe",
                                           GR_SPEC(spec_exaone),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NEOX,
                                           .hparams = hparams_exaone,
                                           .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_hy_v3 = {.name = "hy_v3",
                                      GR_SPEC(spec_hy3),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = hparams_hy3,
                                      .layer = gr_pre_norm_layer};
