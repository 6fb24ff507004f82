/* OLMo 2 and 3, EXAONE 4: norms after each part, none before. Windowed layers alternate with full
 * ones; the full ones of EXAONE have no rope. OLMo Team 2025 (arXiv 2501.00656), LG AI Research
 * 2025 (arXiv 2507.11407). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_EMBD,                                                   \
    GR_SPEC_QKV(GR_BIAS_MAYBE),                                     \
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},                        \
    {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}},                          \
    GR_SPEC_GLU(0),                                                 \
    {GR_W_FFN_POST_NORM, 0, {GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec_olmo2[] = {
    COMMON, {GR_W_ATTN_Q_NORM, 0, {GR_D_Q}}, {GR_W_ATTN_K_NORM, 0, {GR_D_K}}};
static const struct gr_tensor_spec spec_exaone4[] = {
    COMMON, {GR_W_ROPE_FREQS, GR_OPTIONAL, {GR_D_ROT_2}}, GR_SPEC_HEAD_NORMS(0)};

/* YaRN applies to full layers only. */
static int hparams_olmo2(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->rope.plain_swa = true;
    return gr_hp_swa(s, hp, 4);
}

/* The 32B model (64 layers) has windows. */
static int hparams_exaone4(struct gr_hp_source *s, struct gr_hparams *hp)
{
    if (hp->n_layer != 64)
        return 0;
    hp->swa.n_swa = 4096;
    int rc = gr_hp_swa(s, hp, 4);
    gr_hp_rope_in_windows(hp, 0);
    return rc;
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    static const gr_t none;
    gr_t h = gr_attn_block(b, il, x, none);
    x = gr_norm_add(b, il, GR_W_ATTN_POST_NORM, h, x);
    return gr_norm_add(b, il, GR_W_FFN_POST_NORM, gr_ffn_glu(b, il, x, none, GR_SILU), x);
}

const struct gr_arch gr_arch_olmo2 = {.name = "olmo2",
                                      GR_SPEC(spec_olmo2),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = hparams_olmo2,
                                      .layer = layer};
const struct gr_arch gr_arch_exaone4 = {.name = "exaone4",
                                        GR_SPEC(spec_exaone4),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NEOX,
                                        .hparams = hparams_exaone4,
                                        .layer = layer};
