/* Gemma 2 and 3: scaled embeddings, norms before and after each block, GELU gates, windowed layers
 * between full ones; 2 caps its logits, 3 normalises the heads of Q and K. Gemma Team 2024 (arXiv
 * 2408.00118), 2025 (arXiv 2503.19786). */
#include "graph/build.h"

#include <math.h>

/* clang-format off */
#define COMMON                                                      \
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},                  \
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},                             \
    GR_SPEC_ATTN,                                                   \
    {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}},                          \
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},                                \
    GR_SPEC_GLU(0),                                                 \
    {GR_W_FFN_POST_NORM, 0, {GR_D_EMBD}}
/* clang-format on */

static const struct gr_tensor_spec spec2[] = {COMMON};
static const struct gr_tensor_spec spec3[] = {
    COMMON,
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    GR_SPEC_HEAD_NORMS(0),
    {GR_W_DENSE_2, GR_OPTIONAL, {GR_D_EMBD, GR_D_DENSE_2}}};
static const struct gr_tensor_spec spec_embedding[] = {
    COMMON,
    GR_SPEC_HEAD_NORMS(0),
    {GR_W_DENSE_2, GR_OPTIONAL, {GR_D_EMBD, GR_D_DENSE_2}},
    {GR_W_DENSE_3, GR_OPTIONAL, {GR_D_DENSE_3, GR_D_EMBD}}};

/* The 27B models, recognised by their layer count, scale attention as if heads divided n_embd. */
static float attn_scale(const struct gr_hparams *hp, int32_t n_layer_27b)
{
    float d = hp->n_layer == n_layer_27b ? (float)hp->n_embd / (float)hp->attn.n_head[0]
                                         : (float)hp->attn.d_k;
    return 1 / sqrtf(d);
}

/* Embeddings are scaled, gates are GELU. */
static void common(struct gr_hparams *hp)
{
    hp->embd.scale = sqrtf((float)hp->n_embd);
    hp->ff.act = GR_GELU;
}

static int hparams2(struct gr_hp_source *s, struct gr_hparams *hp)
{
    common(hp);
    hp->attn.scale = attn_scale(hp, 46);
    hp->attn.softcap = 50, hp->logits.softcap = 30;
    hp->swa.n_swa = 4096;
    int rc = gr_hp_swa_rope(s, hp, 2);
    if (!rc)
        rc = gr_hp_f32(s, "attn_logit_softcapping", &hp->attn.softcap);
    return rc ? rc : gr_hp_f32(s, "final_logit_softcapping", &hp->logits.softcap);
}

static int hparams3(struct gr_hp_source *s, struct gr_hparams *hp)
{
    common(hp);
    hp->embd.scales_tokens = true;
    hp->attn.scale = attn_scale(hp, 62);
    int rc = gr_hp_swa_unscaled(s, hp, 6);
    return rc ? rc : gr_hp_f32(s, "final_logit_softcapping", &hp->logits.softcap);
}

/* Bidirectional attention, with symmetric windows in windowed layers. Vera et al. 2025 (arXiv
 * 2509.20354). */
static int hparams_embedding(struct gr_hp_source *s, struct gr_hparams *hp)
{
    common(hp);
    hp->embd.scales_tokens = true;
    hp->swa.both = true;
    int rc = gr_hp_need_i32(s, "attention.sliding_window", 0, INT32_MAX, &hp->swa.n_swa);
    return rc ? rc : gr_hp_swa_unscaled(s, hp, 6);
}

static const struct gr_tensor_spec spec1[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_ATTN,
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(0),
};

static int hparams1(struct gr_hp_source *s, struct gr_hparams *hp)
{
    (void)s;
    common(hp);
    return 0;
}

const struct gr_arch gr_arch_gemma = {.name = "gemma",
                                      GR_SPEC(spec1),
                                      .norm = GR_NORM_RMS,
                                      .rope = GR_ROPE_NEOX,
                                      .hparams = hparams1,
                                      .layer = gr_pre_norm_layer};
const struct gr_arch gr_arch_gemma2 = {.name = "gemma2",
                                       GR_SPEC(spec2),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams2,
                                       .layer = gr_sandwich_layer};
const struct gr_arch gr_arch_gemma3 = {.name = "gemma3",
                                       GR_SPEC(spec3),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams3,
                                       .layer = gr_sandwich_layer};
const struct gr_arch gr_arch_gemma_embedding = {.name = "gemma-embedding",
                                                GR_SPEC(spec_embedding),
                                                .norm = GR_NORM_RMS,
                                                .rope = GR_ROPE_NEOX,
                                                .no_cache = true,
                                                .no_logits = true,
                                                .hparams = hparams_embedding,
                                                .layer = gr_sandwich_layer};
