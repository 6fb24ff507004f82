/* Llama and its relatives: pre-norm, rope with adjacent (normal) or distant (NeoX) pairs, gated
 * feed-forward (Arcee: squared ReLU); dense, or with experts as in Mixtral. Touvron et al. 2023
 * (arXiv 2302.13971), Jiang et al. 2024 (arXiv 2401.04088). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    GR_SPEC_ROPE_FACTORS,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL | GR_BIAS_MAYBE),
    GR_SPEC_EXPERTS(GR_OPTIONAL),
};

/* Dense relatives without special features. */
/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_EMBD,                                                   \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},                               \
    GR_SPEC_QKV(GR_BIAS_MAYBE),                                     \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},                                \
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},                         \
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}}
#define ATTN_OUT(bias) {GR_W_ATTN_OUT, bias, {GR_D_O, GR_D_EMBD}}
#define GATE {GR_W_FFN_GATE, 0, {GR_D_EMBD, GR_D_FF}}
#define FREQS {GR_W_ROPE_FREQS, GR_OPTIONAL, {GR_D_ROT_2}}
/* clang-format on */

static const struct gr_tensor_spec spec_dense[] = {COMMON, ATTN_OUT(0), GATE};
static const struct gr_tensor_spec spec_freqs[] = {COMMON, ATTN_OUT(0), GATE, FREQS};
static const struct gr_tensor_spec spec_mlp[] = {COMMON, ATTN_OUT(0), FREQS};
static const struct gr_tensor_spec spec_bias[] = {COMMON, ATTN_OUT(GR_BIAS), GATE};
static const struct gr_tensor_spec spec_maybe[] = {COMMON, ATTN_OUT(GR_BIAS_MAYBE), GATE};

/* The 7B model (32 layers) has rope, the 13B model (40 layers) ALiBi. */
static int hparams_baichuan(struct gr_hp_source *s, struct gr_hparams *hp)
{
    (void)s;
    if (hp->n_layer != 32)
        hp->rope.kind = GR_ROPE_NONE;
    if (hp->n_layer == 40)
        hp->attn.max_alibi = 8;
    return 0;
}

/* Every fourth layer has no positional encoding. Yang et al. 2025 (arXiv 2501.18795). */
static int hparams_smollm3(struct gr_hp_source *s, struct gr_hparams *hp)
{
    (void)s;
    gr_hp_no_rope(hp, 3, 4);
    return 0;
}

/* YaRN's magnitude is divided by one that the file may have. Experts are as wide as a dense layer.
 * Queries that are scaled by position change their factor every n_ctx_orig tokens. */
static int hparams_mistral3(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_f32(s, "rope.scaling.yarn_log_multiplier", &hp->rope.yarn_log_mul);
    hp->rope.yarn_log_mul *= 0.1f;
    hp->moe.n_ff_exp = hp->ff.n_ff[0], hp->moe.weights_norm = true;
    hp->attn.temper.length = hp->rope.n_ctx_orig;
    return rc ? rc : gr_hp_f32(s, "attention.temperature_scale", &hp->attn.temper.scale);
}

static gr_t layer_mlp(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_ffn_mlp(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_RELU2);
}

const struct gr_arch gr_arch_llama = {.name = "llama",
                                      GR_SPEC(spec),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NORM,
                                      .mix = {.n_layer_large = 80, .large_if_grouped = true},
                                      .hparams = gr_hp_softmax_experts,
                                      .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_internlm2 = {.name = "internlm2",
                                          GR_SPEC(spec_dense),
                                          .norm = GR_NORM_RMS,
                                          .rope = GR_ROPE_NORM,
                                          .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_xverse = {.name = "xverse",
                                       GR_SPEC(spec_dense),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NORM,
                                       .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_baichuan = {.name = "baichuan",
                                         GR_SPEC(spec_dense),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NORM,
                                         .hparams = hparams_baichuan,
                                         .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_smollm3 = {.name = "smollm3",
                                        GR_SPEC(spec_dense),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NORM,
                                        .hparams = hparams_smollm3,
                                        .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_arcee = {.name = "arcee",
                                      GR_SPEC(spec_mlp),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NORM,
                                      .layer = layer_mlp};
const struct gr_arch gr_arch_exaone = {.name = "exaone",
                                       GR_SPEC(spec_freqs),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_mistral3 = {.name = "mistral3",
                                         GR_SPEC(spec),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NORM,
                                         .hparams = hparams_mistral3,
                                         .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_pangu_embed = {.name = "pangu-embedded",
                                            GR_SPEC(spec_bias),
                                            .norm = GR_NORM_RMS,
                                            .rope = GR_ROPE_NEOX,
                                            .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_ernie4_5 = {.name = "ernie4_5",
                                         GR_SPEC(spec_dense),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NORM,
                                         .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_paddleocr = {.name = "paddleocr",
                                          GR_SPEC(spec_maybe),
                                          .norm = GR_NORM_RMS,
                                          .rope = GR_ROPE_NEOX,
                                          .hparams = gr_hp_sections,
                                          .layer = gr_pre_norm_layer};
