/* OpenELM: every layer has its own number of heads and its own width. Mehta et al. 2024 (arXiv
 * 2404.14619). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_QKV, 0, {GR_D_EMBD, GR_D_QKV}},
    GR_SPEC_HEAD_NORMS(0),
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(0),
};

const struct gr_arch gr_arch_openelm = {.name = "openelm",
                                        GR_SPEC(spec),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NEOX,
                                        .layer = gr_pre_norm_layer};
