/* Diffusion language models, which denoise whole texts with bidirectional attention and no cache:
 * Dream (made from Qwen 2), LLaDA (from Llama; with experts from OLMoE) and RND1 (from Qwen 3 with
 * experts). Ye et al. 2025 (arXiv 2508.15487), Nie et al. 2025 (arXiv 2502.09992). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    GR_SPEC_EMBD,                                                   \
    GR_SPEC_ATTN,                                                   \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec_dense[] = {
    COMMON,
    GR_SPEC_GLU(0),
};
static const struct gr_tensor_spec spec_experts[] = {
    COMMON,
    GR_SPEC_HEAD_NORMS(0),
    GR_SPEC_EXPERTS(0),
};

const struct gr_arch gr_arch_dream = {.name = "dream",
                                      GR_SPEC(spec_dense),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .no_cache = true,
                                      .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_llada = {.name = "llada",
                                      GR_SPEC(spec_dense),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NORM,
                                      .no_cache = true,
                                      .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_llada_moe = {.name = "llada-moe",
                                          GR_SPEC(spec_experts),
                                          .norm = GR_NORM_RMS,
                                          .rope = GR_ROPE_NEOX,
                                          .no_cache = true,
                                          .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_rnd1 = {.name = "rnd1",
                                     GR_SPEC(spec_experts),
                                     .norm = GR_NORM_RMS,
                                     .rope = GR_ROPE_NEOX,
                                     .no_cache = true,
                                     .hparams = gr_hp_softmax_experts,
                                     .layer = gr_pre_norm_layer};
