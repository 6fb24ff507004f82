/* BERT and its derivatives: norms after each part, bidirectional attention. Positions are learned
 * (BERT), rotary (Nomic, Jina 3) or biases of attention (Jina 2); feed-forward parts are plain,
 * gated or have experts. Devlin et al. 2018 (arXiv 1810.04805), Nussbaum et al. 2024 (arXiv
 * 2402.01613), Nussbaum and Duderstadt 2025 (arXiv 2502.07972), Günther et al. 2023 (arXiv
 * 2310.19923), Sturua et al. 2024 (arXiv 2409.10173). */
#include "graph/build.h"

/* clang-format off */
#define EMBEDDINGS(types)                                           \
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},                  \
    {GR_W_TOKEN_TYPES, (types) | GR_AS_F32, {GR_D_EMBD, GR_D_TYPES}}, \
    {GR_W_TOKEN_EMBD_NORM, GR_BIAS, {GR_D_EMBD}}
#define ATTENTION(bias)                                             \
    GR_SPEC_QKV(GR_BIAS_MAYBE),                                     \
    {GR_W_ATTN_OUT, bias, {GR_D_O, GR_D_EMBD}},                     \
    {GR_W_ATTN_OUT_NORM, GR_BIAS, {GR_D_EMBD}},                     \
    {GR_W_LAYER_OUT_NORM, GR_BIAS, {GR_D_EMBD}}
#define PLAIN(flags)                                                \
    {GR_W_FFN_UP, (flags) | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_FF}},   \
    {GR_W_FFN_DOWN, (flags) | GR_BIAS_MAYBE, {GR_D_FF, GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec_bert[] = {
    EMBEDDINGS(GR_OPTIONAL),
    {GR_W_POS_EMBD, 0, {GR_D_EMBD, GR_D_CTX}},
    {GR_W_CLS, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_EMBD}},
    {GR_W_CLS_OUT, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_CLS}},
    ATTENTION(GR_BIAS_MAYBE),
    PLAIN(0)};
static const struct gr_tensor_spec spec_nomic[] = {EMBEDDINGS(GR_OPTIONAL),
                                                   ATTENTION(GR_BIAS_MAYBE), GR_SPEC_GLU(0)};
static const struct gr_tensor_spec spec_nomic_moe[] = {
    EMBEDDINGS(GR_OPTIONAL),
    ATTENTION(GR_BIAS_MAYBE),
    PLAIN(GR_OPTIONAL),
    {GR_W_FFN_GATE_INP, GR_OPTIONAL, {GR_D_EMBD, GR_D_EXPERT}},
    {GR_W_FFN_UP_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}},
    {GR_W_FFN_DOWN_EXPS, GR_OPTIONAL, {GR_D_FF_EXP, GR_D_EMBD, GR_D_EXPERT}}};
static const struct gr_tensor_spec spec_jina2[] = {
    EMBEDDINGS(0),
    {GR_W_CLS, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_ONE}},
    {GR_W_ATTN_Q_NORM, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_Q}},
    {GR_W_ATTN_K_NORM, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_K}},
    {GR_W_ATTN_NORM_2, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD}},
    ATTENTION(GR_BIAS),
    {GR_W_FFN_GATE, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_UP, GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_FF_UP}},
    {GR_W_FFN_DOWN, GR_BIAS, {GR_D_FF, GR_D_EMBD}}};
static const struct gr_tensor_spec spec_jina3[] = {EMBEDDINGS(GR_OPTIONAL),
                                                   ATTENTION(GR_BIAS_MAYBE), PLAIN(0)};

/* Layers 1, 1 + n, 1 + 2 n .. have experts; they are recognised by their router. */
static int hparams_moe(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->moe.n_ff_exp = hp->ff.n_ff[0];
    int rc = gr_hp_f32(s, "expert_weights_scale", &hp->moe.weights_scale);
    return rc ? rc : gr_hp_token_types(s, hp);
}

static int hparams_jina2(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->attn.max_alibi = 8;
    hp->ff.n_ff_up = hp->ff.n_ff[0];
    if (gr_hp_rows(s, "blk.0.ffn_up.weight") == 2 * (int64_t)hp->ff.n_ff[0])
        hp->ff.n_ff_up = 2 * hp->ff.n_ff[0];
    return gr_hp_token_types(s, hp);
}

/* norm(x + attention(x)); where there is a second norm, applied to the sum of that and x. */
static gr_t attention(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_OUT_NORM, gr_attn_block(b, il, x, x));
    if (!gr_has(b, il, GR_W_ATTN_NORM_2))
        return h;
    return gr_norm(b, il, GR_W_ATTN_NORM_2, gr_add_t(b, h, gr_match(b, x, h)));
}

static gr_t layer_of(struct gr_build *b, int il, gr_t x, enum gr_act_kind act)
{
    gr_t h = attention(b, il, x);
    h = gr_has(b, il, GR_W_FFN_GATE_INP) ? gr_moe(b, il, h, h, act) : gr_ffn_any(b, il, h, h, act);
    return gr_norm(b, il, GR_W_LAYER_OUT_NORM, h);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    return layer_of(b, il, x, GR_GELU);
}

static gr_t layer_silu(struct gr_build *b, int il, gr_t x)
{
    return layer_of(b, il, x, GR_SILU);
}

const struct gr_arch gr_arch_bert = {.name = "bert",
                                     GR_SPEC(spec_bert),
                                     .norm = GR_NORM_LAYER,
                                     .rope = GR_ROPE_NONE,
                                     .no_cache = true,
                                     .no_logits = true,
                                     .hparams = gr_hp_token_types,
                                     .layer = layer};
const struct gr_arch gr_arch_nomic_bert = {.name = "nomic-bert",
                                           GR_SPEC(spec_nomic),
                                           .norm = GR_NORM_LAYER,
                                           .rope = GR_ROPE_NEOX,
                                           .no_cache = true,
                                           .no_logits = true,
                                           .hparams = gr_hp_token_types,
                                           .layer = layer_silu};
const struct gr_arch gr_arch_nomic_bert_moe = {.name = "nomic-bert-moe",
                                               GR_SPEC(spec_nomic_moe),
                                               .norm = GR_NORM_LAYER,
                                               .rope = GR_ROPE_NEOX,
                                               .no_cache = true,
                                               .no_logits = true,
                                               .hparams = hparams_moe,
                                               .layer = layer};
const struct gr_arch gr_arch_jina_bert_v2 = {.name = "jina-bert-v2",
                                             GR_SPEC(spec_jina2),
                                             .norm = GR_NORM_LAYER,
                                             .rope = GR_ROPE_NONE,
                                             .no_cache = true,
                                             .no_logits = true,
                                             .hparams = hparams_jina2,
                                             .layer = layer};
const struct gr_arch gr_arch_jina_bert_v3 = {.name = "jina-bert-v3",
                                             GR_SPEC(spec_jina3),
                                             .norm = GR_NORM_LAYER,
                                             .rope = GR_ROPE_NEOX,
                                             .no_cache = true,
                                             .no_logits = true,
                                             .hparams = gr_hp_token_types,
                                             .layer = layer};
