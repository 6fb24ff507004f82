/* OpenELM: every layer has its own number of heads and its own width. Mehta et al. 2024 (arXiv
 * 2404.14619). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_QKV, 0, {GR_D_EMBD, GR_D_QKV}},
    {GR_W_ATTN_Q_NORM, 0, {GR_D_HEAD}},
    {GR_W_ATTN_K_NORM, 0, {GR_D_HEAD}},
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    {GR_W_FFN_GATE, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

const struct gr_arch gr_arch_openelm = {.name = "openelm",
                                        GR_SPEC(spec),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NEOX,
                                        .layer = gr_pre_norm_layer};
