/* Qwen 3 Next and 3.5: three layers with a gated delta rule to each one with gated attention;
 * dense, or experts beside a shared one with a gate. Qwen Team 2025; Yang, Kautz, Hatamizadeh 2024
 * (arXiv 2412.06464). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_EMBD,                                                   \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},                               \
    {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}},                          \
    {GR_W_ATTN_Q, GR_IN_KV | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_Q_2}}, \
    {GR_W_ATTN_K, GR_IN_KV | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_K}},   \
    {GR_W_ATTN_V, GR_IN_KV | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_V}},   \
    GR_SPEC_HEAD_NORMS(GR_IN_KV),                                   \
    {GR_W_ATTN_OUT, GR_IN_KV, {GR_D_O, GR_D_EMBD}},                 \
    {GR_W_ATTN_QKV, GR_IN_STATE, {GR_D_EMBD, GR_D_CHANNEL}},        \
    {GR_W_ATTN_GATE, GR_IN_STATE, {GR_D_EMBD, GR_D_INNER}},         \
    GR_SPEC_DELTA(GR_IN_STATE)
#define RATES                                                       \
    {GR_W_SSM_ALPHA, GR_IN_STATE, {GR_D_EMBD, GR_D_RANK}},          \
    {GR_W_SSM_BETA, GR_IN_STATE, {GR_D_EMBD, GR_D_RANK}}
#define EXPERTS                                                     \
    {GR_W_FFN_GATE_INP, 0, {GR_D_EMBD, GR_D_EXPERT}},               \
    {GR_W_FFN_GATE_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}},      \
    {GR_W_FFN_UP_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP, GR_D_EXPERT}},        \
    {GR_W_FFN_GATE_UP_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP_2, GR_D_EXPERT}}, \
    {GR_W_FFN_DOWN_EXPS, 0, {GR_D_FF_EXP, GR_D_EMBD, GR_D_EXPERT}}, \
    {GR_W_FFN_GATE_INP_SHEXP, 0, {GR_D_EMBD, GR_D_ONE}},                      \
    GR_SPEC_SHARED_EXPERT(0)
/* clang-format on */

static const struct gr_tensor_spec spec[] = {
    COMMON,
    RATES,
    GR_SPEC_GLU(0),
};
static const struct gr_tensor_spec spec_moe[] = {COMMON, RATES, EXPERTS};
static const struct gr_tensor_spec spec_next[] = {
    COMMON, {GR_W_SSM_BA, GR_IN_STATE, {GR_D_EMBD, GR_D_RANK_2}}, EXPERTS};

static int hparams_next(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_find_recurrent(s, hp, 4);
    if (!rc)
        rc = gr_hp_recurrence(s, hp, GR_DELTA);
    if (!rc)
        rc = gr_hp_equal_heads(s, hp);
    if (!rc)
        rc = gr_hp_experts(s, hp, GR_GATE_SOFTMAX);
    return rc ? rc : gr_hp_softmax_experts(s, hp);
}

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->rope.interleaved = true;
    int rc = hparams_next(s, hp);
    return rc ? rc : gr_hp_sections(s, hp);
}

/* Each head's query is followed by the gate of its output. */
static gr_t attention(struct gr_build *b, int il, gr_t x, gr_t res)
{
    const struct gr_hparams *hp = gr_hp(b);
    int64_t d = hp->attn.d_k;
    gr_t both = gr_mm(b, il, GR_W_ATTN_Q, x);
    gr_t q = gr_norm(b, il, GR_W_ATTN_Q_NORM, gr_cols(gr_fold(b, both, 2 * d), 0, d));
    struct gr_qkv p = {.q = gr_fold(b, q, hp->attn.n_head[il] * d),
                       .k = gr_norm(b, il, GR_W_ATTN_K_NORM, gr_mm(b, il, GR_W_ATTN_K, x)),
                       .v = gr_mm(b, il, GR_W_ATTN_V, x)};
    gr_t y = gr_attn(b, il, p);
    gr_t gate = gr_cols(gr_fold(b, gr_match(b, both, y), 2 * d), d, d);
    y = gr_fold(b, gr_glu(b, GR_SIGMOID, gate, gr_fold(b, y, d)), y.cols);
    return gr_mm_add(b, il, GR_W_ATTN_OUT, y, res);
}

static gr_t layer_of(struct gr_build *b, int il, gr_t x, bool tiled)
{
    const struct gr_delta_opt delta = {tiled, GR_SILU};
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    x = gr_hp(b)->ssm.layer[il] ? gr_delta_net(b, il, h, x, &delta) : attention(b, il, h, x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_ATTN_POST_NORM, x), x, GR_SILU);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    return layer_of(b, il, x, true);
}

static gr_t layer_next(struct gr_build *b, int il, gr_t x)
{
    return layer_of(b, il, x, false);
}

const struct gr_arch gr_arch_qwen35 = {.name = "qwen35",
                                       GR_SPEC(spec),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams,
                                       .layer = layer};
const struct gr_arch gr_arch_qwen35moe = {.name = "qwen35moe",
                                          GR_SPEC(spec_moe),
                                          .norm = GR_NORM_RMS,
                                          .rope = GR_ROPE_NEOX,
                                          .hparams = hparams,
                                          .layer = layer};
const struct gr_arch gr_arch_qwen3next = {.name = "qwen3next",
                                          GR_SPEC(spec_next),
                                          .norm = GR_NORM_RMS,
                                          .rope = GR_ROPE_NEOX,
                                          .hparams = hparams_next,
                                          .layer = layer_next};
