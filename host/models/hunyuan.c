/* Hunyuan and Maincoder: llama with norms of the heads of Q and K after rope; Hunyuan also with
 * experts beside a shared one. Tencent 2024 (arXiv 2411.02265). */
#include "graph/build.h"

#include <math.h>

/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_EMBD,                                                   \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},                               \
    GR_SPEC_QKV(GR_BIAS_MAYBE),                                     \
    GR_SPEC_HEAD_NORMS(0),                                          \
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},                        \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec[] = {COMMON, GR_SPEC_GLU(0)};
static const struct gr_tensor_spec spec_moe[] = {COMMON, GR_SPEC_EXPERTS(0),
                                                 GR_SPEC_SHARED_EXPERT(0)};

static int hparams_maincoder(struct gr_hp_source *s, struct gr_hparams *hp)
{
    (void)s;
    hp->attn.norm_roped = true;
    return 0;
}

/* NTK scaling for longer contexts: the rope base is multiplied by alpha^(d / (d - 2)). */
static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    float alpha = 0;
    int rc = gr_hp_f32(s, "rope.scaling.alpha", &alpha);
    if (alpha > 0 && hp->attn.d_k > 2)
        hp->rope.freq_base *= powf(alpha, (float)hp->attn.d_k / (float)(hp->attn.d_k - 2));
    hp->attn.norm_roped = true;
    return rc;
}

static int hparams_vl(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = hparams(s, hp);
    return rc ? rc : gr_hp_maybe_sections(s, hp);
}

/* The width of the experts is the file's feed-forward width; the shared one's too, unless the file
 * has a key for it. */
static int hparams_moe(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->attn.norm_roped = true;
    hp->moe.gate = GR_GATE_SOFTMAX, hp->moe.weights_norm = true;
    hp->moe.n_ff_exp = hp->ff.n_ff[0];
    int rc = gr_hp_i32(s, "expert_shared_feed_forward_length", 0, 1 << 24, &hp->moe.n_ff_shexp);
    if (hp->moe.n_ff_shexp == 0)
        hp->moe.n_ff_shexp = hp->ff.n_ff[0];
    return rc;
}

const struct gr_arch gr_arch_hunyuan_dense = {.name = "hunyuan-dense",
                                              GR_SPEC(spec),
                                              .norm = GR_NORM_RMS,
                                              .rope = GR_ROPE_NEOX,
                                              .hparams = hparams,
                                              .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_hunyuan_vl = {.name = "hunyuan_vl",
                                           GR_SPEC(spec),
                                           .norm = GR_NORM_RMS,
                                           .rope = GR_ROPE_NEOX,
                                           .hparams = hparams_vl,
                                           .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_hunyuan_moe = {.name = "hunyuan-moe",
                                            GR_SPEC(spec_moe),
                                            .norm = GR_NORM_RMS,
                                            .rope = GR_ROPE_NEOX,
                                            .hparams = hparams_moe,
                                            .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_maincoder = {.name = "maincoder",
                                          GR_SPEC(spec),
                                          .norm = GR_NORM_RMS,
                                          .rope = GR_ROPE_NORM,
                                          .hparams = hparams_maincoder,
                                          .layer = gr_pre_norm_layer};
