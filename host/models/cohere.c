/* Command R and Command R7B: attention and feed-forward in parallel after one norm. The second has
 * windowed layers with rope and, every fourth, a full one without; in Command with experts the full
 * layer comes first of four, after some dense layers that all have rope. Cohere 2024; Yang et al.
 * 2025 (arXiv 2501.18795). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_ATTN,
    GR_SPEC_GLU(0),
};

static const struct gr_tensor_spec spec_moe[] = {
    GR_SPEC_EMBD,
    GR_SPEC_ATTN,
    GR_SPEC_GLU(GR_OPTIONAL),
    GR_SPEC_EXPERTS(GR_OPTIONAL),
    {GR_W_FFN_GATE_UP_EXPS, GR_OPTIONAL, {GR_D_EMBD, GR_D_FF_EXP_2, GR_D_EXPERT}},
    GR_SPEC_SHARED_EXPERT(GR_OPTIONAL),
};

static int hparams2(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_logit_factor(s, hp);
    if (!rc)
        rc = gr_hp_swa(s, hp, 4);
    gr_hp_rope_in_windows(hp, 0);
    return rc;
}

/* The kind of norm is the one whose epsilon the file has. */
static int hparams_moe(struct gr_hp_source *s, struct gr_hparams *hp)
{
    float eps_rms = 0;
    int32_t lead = 0;
    int rc = gr_hp_f32(s, "attention.layer_norm_rms_epsilon", &eps_rms);
    if (!rc && eps_rms == 0) {
        hp->norm.kind = GR_NORM_LAYER;
        rc = gr_hp_f32(s, "attention.layer_norm_epsilon", &hp->norm.eps);
    }
    if (!rc)
        rc = gr_hp_logit_factor(s, hp);
    if (!rc)
        rc = gr_hp_experts(s, hp, GR_GATE_SIGMOID);
    if (!rc)
        rc = gr_hp_i32(s, "leading_dense_block_count", 0, INT32_MAX, &lead);
    if (!rc)
        rc = gr_hp_swa_after(s, hp, 4);
    gr_hp_rope_in_windows(hp, lead);
    return rc;
}

/* The output is the mean of the chosen and the shared experts' outputs. */
static gr_t layer_moe(struct gr_build *b, int il, gr_t x)
{
    static const gr_t none;
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    x = gr_attn_block(b, il, h, x);
    h = gr_match(b, h, x);
    if (!gr_has(b, il, GR_W_FFN_DOWN_SHEXP))
        return gr_ffn(b, il, h, x, GR_SILU);
    return gr_add_t(b, gr_scale(b, gr_moe(b, il, h, none, GR_SILU), 0.5f), x);
}

const struct gr_arch gr_arch_command_r = {.name = "command-r",
                                          GR_SPEC(spec),
                                          .norm = GR_NORM_LAYER,
                                          .rope = GR_ROPE_NORM,
                                          .hparams = gr_hp_logit_factor,
                                          .layer = gr_parallel_layer};
const struct gr_arch gr_arch_cohere2 = {.name = "cohere2",
                                        GR_SPEC(spec),
                                        .norm = GR_NORM_LAYER,
                                        .rope = GR_ROPE_NORM,
                                        .hparams = hparams2,
                                        .layer = gr_parallel_layer};
const struct gr_arch gr_arch_cohere2moe = {.name = "cohere2moe",
                                           GR_SPEC(spec_moe),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NORM,
                                           .hparams = hparams_moe,
                                           .layer = layer_moe};
