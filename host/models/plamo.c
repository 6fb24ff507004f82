/* PLaMo: attention and feed-forward in parallel after one norm. PLaMo 3: norms before and after
 * each part, windows. Preferred Networks 2023, 2025. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, 0, {GR_D_EMBD, GR_D_VOCAB}},
    GR_SPEC_ATTN,
    GR_SPEC_GLU(0),
};

static const struct gr_tensor_spec spec3[] = {
    GR_SPEC_EMBD,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_QKV, 0, {GR_D_EMBD, GR_D_QKV}},
    GR_SPEC_HEAD_NORMS(0),
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF_2}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
    {GR_W_FFN_POST_NORM, 0, {GR_D_EMBD}},
};

static int hparams3(struct gr_hp_source *s, struct gr_hparams *hp)
{
    return gr_hp_swa_unscaled(s, hp, 8);
}

const struct gr_arch gr_arch_plamo = {.name = "plamo",
                                      GR_SPEC(spec),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = gr_hp_rope_all,
                                      .layer = gr_parallel_layer};
const struct gr_arch gr_arch_plamo3 = {.name = "plamo3",
                                       GR_SPEC(spec3),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams3,
                                       .layer = gr_sandwich_layer};
