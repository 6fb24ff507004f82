/* Qwen (one matrix for Q, K and V), Qwen 2 (biases on Q, K, V) and Qwen 3 (norms of the heads of Q
 * and K), dense and with experts; the VL models, whose positions have a time, a row and a column.
 * Yang et al. 2024 (arXiv 2407.10671), 2025 (arXiv 2505.09388); Wang et al. 2024 (arXiv
 * 2409.12191). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},                  \
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},                             \
    GR_SPEC_ATTN,                                                   \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}}
#define OUTPUT(bias) {GR_W_OUTPUT, GR_OPTIONAL | (bias), {GR_D_EMBD, GR_D_VOCAB}}
/* clang-format on */

static const struct gr_tensor_spec spec2[] = {COMMON, OUTPUT(GR_BIAS_MAYBE), GR_SPEC_GLU(0)};
static const struct gr_tensor_spec spec2vl[] = {COMMON, OUTPUT(0), GR_SPEC_GLU(0)};
static const struct gr_tensor_spec spec3[] = {COMMON,
                                              OUTPUT(0),
                                              GR_SPEC_HEAD_NORMS(0),
                                              GR_SPEC_GLU(0),
                                              {GR_W_CLS_OUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_CLS}}};
static const struct gr_tensor_spec spec3moe[] = {
    COMMON,
    OUTPUT(0),
    GR_SPEC_HEAD_NORMS(0),
    GR_SPEC_EXPERTS(0),
};

static const struct gr_tensor_spec spec1[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_QKV, GR_BIAS, {GR_D_EMBD, GR_D_QKV_3}},
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(0),
};

/* The file's feed-forward width is that of gate and up together. */
static int hparams1(struct gr_hp_source *s, struct gr_hparams *hp)
{
    for (int il = 0; il < hp->n_layer; il++)
        hp->ff.n_ff[il] /= 2;
    return gr_hp_qkv_fits(s, hp);
}

/* Rerankers have two outputs, yes and no, which pass a softmax. */
static int hparams3(struct gr_hp_source *s, struct gr_hparams *hp)
{
    (void)s;
    hp->cls.softmax = true;
    return 0;
}

const struct gr_arch gr_arch_qwen = {.name = "qwen",
                                     GR_SPEC(spec1),
                                     .norm = GR_NORM_RMS,
                                     .rope = GR_ROPE_NEOX,
                                     .hparams = hparams1,
                                     .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_qwen2 = {.name = "qwen2",
                                      GR_SPEC(spec2),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .mix = {.n_layer_large = 80},
                                      .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_qwen3 = {.name = "qwen3",
                                      GR_SPEC(spec3),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = hparams3,
                                      .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_qwen3moe = {.name = "qwen3moe",
                                         GR_SPEC(spec3moe),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NEOX,
                                         .hparams = gr_hp_softmax_experts,
                                         .layer = gr_pre_norm_layer};

static int hparams_vl3(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->rope.interleaved = hp->cls.softmax = hp->moe.weights_norm = true;
    return gr_hp_sections(s, hp);
}

const struct gr_arch gr_arch_qwen2vl = {.name = "qwen2vl",
                                        GR_SPEC(spec2vl),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NEOX,
                                        .hparams = gr_hp_sections,
                                        .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_qwen3vl = {.name = "qwen3vl",
                                        GR_SPEC(spec3),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NEOX,
                                        .hparams = hparams_vl3,
                                        .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_qwen3vlmoe = {.name = "qwen3vlmoe",
                                           GR_SPEC(spec3moe),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NEOX,
                                           .hparams = hparams_vl3,
                                           .layer = gr_pre_norm_layer};
/* Language model of Qwen3-TTS. */
const struct gr_arch gr_arch_qwen3tts = {.name = "qwen3tts",
                                         GR_SPEC(spec3),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NEOX,
                                         .hparams = hparams_vl3,
                                         .layer = gr_pre_norm_layer};
