/* LFM2: short gated convolutions and some attention layers, each with a dense feed-forward or
 * (after some dense layers) experts. Liquid AI 2025 (arXiv 2511.23404). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},                  \
    {GR_W_OUTPUT_NORM_2, 0, {GR_D_EMBD}},                           \
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},            \
    {GR_W_DENSE_2, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_DENSE_2}}, \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},                               \
    GR_SPEC_QKV(GR_IN_KV | GR_BIAS_MAYBE),                          \
    GR_SPEC_HEAD_NORMS(GR_IN_KV),                                   \
    {GR_W_ATTN_OUT, GR_IN_KV, {GR_D_O, GR_D_EMBD}},                 \
    GR_SPEC_SHORT_CONV(GR_IN_STATE),                                \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec[] = {COMMON, GR_SPEC_GLU(0)};
static const struct gr_tensor_spec spec_moe[] = {
    COMMON,
    GR_SPEC_GLU(GR_OPTIONAL),
    GR_SPEC_EXPERTS(GR_OPTIONAL),
    {GR_W_FFN_EXP_BIAS, GR_OPTIONAL, {GR_D_EXPERT}},
};

/* If the file has a window, it applies to all attention layers. */
static int windows(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_i32(s, "attention.sliding_window", 0, INT32_MAX, &hp->swa.n_swa);
    for (int32_t il = 0; il < hp->n_layer; il++)
        hp->swa.layer[il] = hp->swa.n_swa > 0 && !hp->ssm.layer[il];
    return rc;
}

static int hparams_moe(struct gr_hp_source *s, struct gr_hparams *hp)
{
    gr_hp_recurrent_without_kv(hp);
    int rc = gr_hp_short_conv(s, hp);
    if (!rc)
        rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    hp->moe.weights_norm = true;
    return rc;
}

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    gr_hp_recurrent_without_kv(hp);
    int rc = gr_hp_short_conv(s, hp);
    return rc ? rc : windows(s, hp);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    x = gr_hp(b)->ssm.layer[il] ? gr_short_conv(b, il, h, x) : gr_attn_block(b, il, h, x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, GR_SILU);
}

const struct gr_arch gr_arch_lfm2 = {.name = "lfm2",
                                     GR_SPEC(spec),
                                     .norm = GR_NORM_RMS,
                                     .rope = GR_ROPE_NEOX,
                                     .hparams = hparams,
                                     .layer = layer};
const struct gr_arch gr_arch_lfm2moe = {.name = "lfm2moe",
                                        GR_SPEC(spec_moe),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NEOX,
                                        .hparams = hparams_moe,
                                        .layer = layer};
