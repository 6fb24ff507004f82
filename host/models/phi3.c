/* Phi 3: gate and up in one matrix, LongRoPE factors for short and long contexts. Abdin et al. 2024
 * (arXiv 2404.14219). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ROPE_LONG, GR_OPTIONAL, {GR_D_ROT_2}},
    {GR_W_ROPE_SHORT, GR_OPTIONAL, {GR_D_ROT_2}},
    GR_SPEC_ATTN,
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF_2}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

const struct gr_arch gr_arch_phi3 = {.name = "phi3",
                                     GR_SPEC(spec),
                                     .norm = GR_NORM_RMS,
                                     .rope = GR_ROPE_NEOX,
                                     .layer = gr_pre_norm_layer};
