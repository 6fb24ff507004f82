/* Spark 2.5: a gate scales the attention output of each head; windows, GELU gates. iFlytek 2025. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_GATE, 0, {GR_D_EMBD, GR_D_HEADS}},
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(0),
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->rope.rot_by_kind = true, hp->ff.act = GR_GELU;
    return gr_hp_swa_rope(s, hp, 0);
}

const struct gr_arch gr_arch_spark2_5 = {.name = "spark2_5",
                                         GR_SPEC(spec),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NEOX,
                                         .hparams = hparams,
                                         .layer = gr_pre_norm_layer};
