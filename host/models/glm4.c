/* ChatGLM 3 and GLM 4: gate and up in one matrix; GLM 4 has norms before and after each part. With
 * rope sections (GLM 4.1V) the columns of a pair are half of the rotated columns apart (NeoX). GLM
 * Team 2024 (arXiv 2406.12793). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_EMBD,                                                   \
    GR_SPEC_ATTN,                                                   \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},                                \
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF_2}},                       \
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec_chatglm[] = {COMMON};
static const struct gr_tensor_spec spec[] = {
    COMMON, {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}}, {GR_W_FFN_POST_NORM, 0, {GR_D_EMBD}}};

const struct gr_arch gr_arch_chatglm = {.name = "chatglm",
                                        GR_SPEC(spec_chatglm),
                                        .norm = GR_NORM_RMS,
                                        .rope = GR_ROPE_NORM,
                                        .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_glm4 = {.name = "glm4",
                                     GR_SPEC(spec),
                                     .norm = GR_NORM_RMS,
                                     .rope = GR_ROPE_NORM,
                                     .hparams = gr_hp_maybe_sections,
                                     .layer = gr_sandwich_layer};
