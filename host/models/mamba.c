/* Mamba 1 and 2: layers with a selective scan only. Gu, Dao 2023 (arXiv 2312.00752), Dao, Gu 2024
 * (arXiv 2405.21060). FalconMamba normalises time step, B and C (Zuo et al. 2024, arXiv
 * 2410.05355). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_EMBD,                                                   \
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec[] = {COMMON, GR_SPEC_MAMBA(0)};
static const struct gr_tensor_spec spec2[] = {COMMON, GR_SPEC_MAMBA2(0, 0)};

static int hparams_of(struct gr_hp_source *s, struct gr_hparams *hp, enum gr_recurrence kind)
{
    for (int32_t il = 0; il < hp->n_layer; il++)
        gr_hp_set_recurrent(hp, il);
    return gr_hp_recurrence(s, hp, kind);
}

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int rc = gr_hp_bool(s, "ssm.dt_b_c_rms", &hp->ssm.norm_dt_b_c);
    return rc ? rc : hparams_of(s, hp, GR_MAMBA);
}

static int hparams2(struct gr_hp_source *s, struct gr_hparams *hp)
{
    return hparams_of(s, hp, GR_MAMBA_2);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    return gr_mamba(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
}

static gr_t layer2(struct gr_build *b, int il, gr_t x)
{
    return gr_mamba2(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
}

const struct gr_arch gr_arch_mamba = {.name = "mamba",
                                      GR_SPEC(spec),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NONE,
                                      .hparams = hparams,
                                      .layer = layer};
const struct gr_arch gr_arch_mamba2 = {.name = "mamba2",
                                       GR_SPEC(spec2),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NONE,
                                       .hparams = hparams2,
                                       .layer = layer2};
