/* Models of 2023 with layer norms and a gated feed-forward: StableLM (the 12B model has norms of
 * each head and parallel parts) and Orion. Stability AI 2024 (arXiv 2402.17834), OrionStar 2024
 * (arXiv 2401.12246). */
#include "graph/build.h"

/* clang-format off */
#define COMMON                                                      \
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},                  \
    {GR_W_OUTPUT_NORM, GR_BIAS, {GR_D_EMBD}},                       \
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},            \
    {GR_W_ATTN_NORM, GR_BIAS, {GR_D_EMBD}},                         \
    GR_SPEC_QKV(GR_BIAS_MAYBE),                                     \
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},                        \
    GR_SPEC_GLU(0)
/* clang-format on */

static const struct gr_tensor_spec spec[] = {
    COMMON,
    {GR_W_ATTN_Q_NORM, GR_OPTIONAL | GR_AS_F32, {GR_D_HEAD, GR_D_HEADS}},
    {GR_W_ATTN_K_NORM, GR_OPTIONAL | GR_AS_F32, {GR_D_HEAD, GR_D_HEADS_KV}},
    {GR_W_FFN_NORM, GR_OPTIONAL | GR_BIAS_MAYBE, {GR_D_EMBD}}};
static const struct gr_tensor_spec spec_orion[] = {COMMON, {GR_W_FFN_NORM, GR_BIAS, {GR_D_EMBD}}};

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    x = gr_attn_block(b, il, h, x);
    if (gr_has(b, il, GR_W_FFN_NORM))
        h = gr_norm(b, il, GR_W_FFN_NORM, x);
    return gr_ffn_glu(b, il, h, x, GR_SILU);
}

const struct gr_arch gr_arch_stablelm = {
    .name = "stablelm", GR_SPEC(spec), .norm = GR_NORM_LAYER, .rope = GR_ROPE_NEOX, .layer = layer};
const struct gr_arch gr_arch_orion = {.name = "orion",
                                      GR_SPEC(spec_orion),
                                      .norm = GR_NORM_LAYER,
                                      .rope = GR_ROPE_NEOX,
                                      .layer = layer};
