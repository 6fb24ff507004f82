/* Models with layer norms and two matrices in the feed-forward: GPT-NeoX (parallel parts, a norm
 * each, if the file says so), Phi 2 (parallel parts, one norm), StarCoder (learned positions),
 * StarCoder 2, CodeShell and Pocket TTS, BLOOM (ALiBi, a norm after the embeddings), Nemotron and
 * Jais 2 (squared ReLU). Black et al. 2022 (arXiv 2204.06745), Li et al. 2023 (arXiv 2305.06161),
 * Le Scao et al. 2022 (arXiv 2211.05100), Parmar et al. 2024 (arXiv 2402.16819), Xie et al. 2024
 * (arXiv 2403.15747). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    {GR_W_OUTPUT_NORM, GR_BIAS, {GR_D_EMBD}},                       \
    {GR_W_ATTN_NORM, GR_BIAS, {GR_D_EMBD}},                         \
    GR_SPEC_QKV(GR_BIAS_MAYBE),                                     \
    {GR_W_ATTN_OUT, GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}},            \
    {GR_W_FFN_UP, GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_FF}},             \
    {GR_W_FFN_DOWN, GR_BIAS_MAYBE, {GR_D_FF, GR_D_EMBD}}
#define EMBD {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}}
#define OUTPUT(bias) {GR_W_OUTPUT, GR_OPTIONAL | (bias), {GR_D_EMBD, GR_D_VOCAB}}
#define FFN_NORM {GR_W_FFN_NORM, GR_BIAS, {GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec[] = {COMMON, EMBD, FFN_NORM, OUTPUT(0)};
static const struct gr_tensor_spec spec_phi2[] = {COMMON, EMBD, OUTPUT(GR_BIAS_MAYBE)};
static const struct gr_tensor_spec spec_starcoder[] = {
    COMMON, EMBD, FFN_NORM, OUTPUT(0), {GR_W_POS_EMBD, 0, {GR_D_EMBD, GR_D_CTX}}};
static const struct gr_tensor_spec spec_bloom[] = {
    COMMON, EMBD, FFN_NORM, OUTPUT(0), {GR_W_TOKEN_EMBD_NORM, GR_BIAS, {GR_D_EMBD}}};
/* Here the token embedding is optional, not the output matrix. */
static const struct gr_tensor_spec spec_codeshell[] = {
    COMMON,
    FFN_NORM,
    {GR_W_TOKEN_EMBD, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT, 0, {GR_D_EMBD, GR_D_VOCAB}}};
static const struct gr_tensor_spec spec_pockettts[] = {COMMON, EMBD, FFN_NORM};

static int hparams_neox(struct gr_hp_source *s, struct gr_hparams *hp)
{
    return gr_hp_bool(s, "use_parallel_residual", &hp->residual.parallel);
}

static int hparams_bloom(struct gr_hp_source *s, struct gr_hparams *hp)
{
    (void)s;
    hp->attn.max_alibi = 8;
    return 0;
}

static gr_t mlp(struct gr_build *b, int il, gr_t x, enum gr_act_kind act)
{
    gr_t y = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_ffn_mlp(b, il, gr_norm(b, il, GR_W_FFN_NORM, gr_hp(b)->residual.parallel ? x : y), y,
                      act);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    return mlp(b, il, x, GR_GELU);
}

static gr_t layer_nemotron(struct gr_build *b, int il, gr_t x)
{
    return mlp(b, il, x, GR_RELU2);
}

static gr_t layer_phi2(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    return gr_ffn_mlp(b, il, h, gr_attn_block(b, il, h, x), GR_GELU);
}

const struct gr_arch gr_arch_gptneox = {.name = "gptneox",
                                        GR_SPEC(spec),
                                        .norm = GR_NORM_LAYER,
                                        .rope = GR_ROPE_NEOX,
                                        .hparams = hparams_neox,
                                        .layer = layer};
const struct gr_arch gr_arch_phi2 = {.name = "phi2",
                                     GR_SPEC(spec_phi2),
                                     .norm = GR_NORM_LAYER,
                                     .rope = GR_ROPE_NEOX,
                                     .layer = layer_phi2};
const struct gr_arch gr_arch_starcoder = {.name = "starcoder",
                                          GR_SPEC(spec_starcoder),
                                          .norm = GR_NORM_LAYER,
                                          .rope = GR_ROPE_NONE,
                                          .layer = layer};
const struct gr_arch gr_arch_starcoder2 = {.name = "starcoder2",
                                           GR_SPEC(spec),
                                           .norm = GR_NORM_LAYER,
                                           .rope = GR_ROPE_NEOX,
                                           .layer = layer};
const struct gr_arch gr_arch_bloom = {.name = "bloom",
                                      GR_SPEC(spec_bloom),
                                      .norm = GR_NORM_LAYER,
                                      .rope = GR_ROPE_NONE,
                                      .hparams = hparams_bloom,
                                      .layer = layer};
const struct gr_arch gr_arch_nemotron = {.name = "nemotron",
                                         GR_SPEC(spec),
                                         .norm = GR_NORM_LAYER,
                                         .rope = GR_ROPE_NEOX,
                                         .layer = layer_nemotron};
const struct gr_arch gr_arch_jais2 = {.name = "jais2",
                                      GR_SPEC(spec),
                                      .norm = GR_NORM_LAYER,
                                      .rope = GR_ROPE_NEOX,
                                      .mix = {.n_layer_large = 68},
                                      .layer = layer_nemotron};
const struct gr_arch gr_arch_codeshell = {.name = "codeshell",
                                          GR_SPEC(spec_codeshell),
                                          .norm = GR_NORM_LAYER,
                                          .rope = GR_ROPE_NEOX,
                                          .layer = layer};
const struct gr_arch gr_arch_pockettts = {.name = "pockettts",
                                          GR_SPEC(spec_pockettts),
                                          .norm = GR_NORM_LAYER,
                                          .rope = GR_ROPE_NORM,
                                          .layer = layer};
