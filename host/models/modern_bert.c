/* Encoders with norms before each part, rope and gated feed-forward: ModernBERT (symmetric windows
 * in most layers), NeoBERT, EuroBERT, and bidirectional Llama. Warner et al. 2024 (arXiv
 * 2412.13663), Le Breton et al. 2025 (arXiv 2502.19587), Boizard et al. 2025 (arXiv 2503.05500),
 * Babakhin et al. 2025 (arXiv 2511.07025). */
#include "graph/build.h"

/* clang-format off */
#define LAYER                                                       \
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},                        \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}}
#define GATE_IN_UP                                                  \
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF_2}},                       \
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec_modern[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_TOKEN_EMBD_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_CLS, GR_OPTIONAL, {GR_D_EMBD, GR_D_EMBD}},
    {GR_W_CLS_NORM, GR_OPTIONAL, {GR_D_EMBD}},
    {GR_W_CLS_OUT, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_CLS}},
    {GR_W_ATTN_NORM, GR_BUT_FIRST, {GR_D_EMBD}},
    {GR_W_ATTN_QKV, 0, {GR_D_EMBD, GR_D_QKV_3}},
    LAYER,
    GATE_IN_UP};
static const struct gr_tensor_spec spec_neo[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ENC_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_CLS, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_EMBD}},
    {GR_W_CLS_OUT, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_CLS}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_QKV, 0, {GR_D_EMBD, GR_D_QKV}},
    LAYER,
    GATE_IN_UP};
static const struct gr_tensor_spec spec_euro[] = {{GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
                                                  {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
                                                  {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
                                                  GR_SPEC_QKV(GR_BIAS_MAYBE),
                                                  LAYER,
                                                  GR_SPEC_GLU(0)};
/* Llama's table without the output matrix. Its files say that it is not causal. */
static const struct gr_tensor_spec spec_llama[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_ROPE_FACTORS,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_OUT, GR_BIAS_MAYBE, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(GR_OPTIONAL | GR_BIAS_MAYBE),
    GR_SPEC_EXPERTS(GR_OPTIONAL)};

/* Returns the activation of the gate; GELU unless the file says otherwise. */
static enum gr_act_kind act_of(struct gr_hp_source *s)
{
    static const char *const silu[] = {"silu", "swish", "swiglu"};
    for (int i = 0; i < 3; i++)
        if (gr_hp_says(s, "hidden_activation", silu[i]))
            return GR_SILU;
    return gr_hp_says(s, "hidden_activation", "reglu") ? GR_RELU : GR_GELU;
}

/* Windowed layers have rope frequencies of their own, without scaling. */
static int hparams_modern(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->swa.both = true;
    hp->rope.freq_base_swa = 10000, hp->rope.freq_scale_swa = 1;
    hp->cls.act = GR_GELU;
    hp->ff.act = act_of(s);
    if (!gr_hp_has(s, "classifier.pooling_type"))
        hp->cls.pooling = GR_POOLING_MEAN;
    if (gr_hp_says(s, "hidden_activation", "relu"))
        return gr_hp_unsupported(s, "hidden_activation");
    int rc = gr_hp_qkv_fits(s, hp);
    if (!rc)
        rc = gr_hp_f32(s, "rope.freq_base_swa", &hp->rope.freq_base_swa);
    return rc ? rc : gr_hp_swa_after(s, hp, 3);
}

/* The embeddings are normalised, so files have no norm before the first layer. */
static gr_t layer_modern(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_has(b, il, GR_W_ATTN_NORM) ? gr_norm(b, il, GR_W_ATTN_NORM, x) : x;
    x = gr_attn_block(b, il, h, x);
    return gr_ffn_glu(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, gr_hp(b)->ff.act);
}

const struct gr_arch gr_arch_modern_bert = {.name = "modern-bert",
                                            GR_SPEC(spec_modern),
                                            .norm = GR_NORM_LAYER,
                                            .rope = GR_ROPE_NEOX,
                                            .no_cache = true,
                                            .no_logits = true,
                                            .hparams = hparams_modern,
                                            .layer = layer_modern};
const struct gr_arch gr_arch_neo_bert = {.name = "neo-bert",
                                         GR_SPEC(spec_neo),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NORM,
                                         .no_cache = true,
                                         .no_logits = true,
                                         .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_eurobert = {.name = "eurobert",
                                         GR_SPEC(spec_euro),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NEOX,
                                         .no_cache = true,
                                         .no_logits = true,
                                         .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_llama_embed = {.name = "llama-embed",
                                            GR_SPEC(spec_llama),
                                            .norm = GR_NORM_RMS,
                                            .rope = GR_ROPE_NORM,
                                            .no_logits = true,
                                            .hparams = gr_hp_softmax_experts,
                                            .layer = gr_pre_norm_layer};
