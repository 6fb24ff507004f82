/* CogVLM for text only: llama with Q, K and V in one matrix. Its image experts are not loaded. Wang
 * et al. 2023 (arXiv 2311.03079). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    GR_SPEC_EMBD,
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_QKV, 0, {GR_D_EMBD, GR_D_QKV_3}},
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(0),
};

/* Rope has the same frequencies in every model; the file's are ignored. */
static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    hp->attn.qkv_apart = hp->n_embd;
    hp->embd.only_tokens = true; /* embedding inputs are for the image experts */
    hp->rope.freq_base = 10000, hp->rope.freq_scale = 1, hp->rope.attn_factor = 1;
    hp->rope.scaling = GR_SCALE_NONE, hp->rope.yarn_ext_factor = 0, hp->rope.yarn_attn_factor = 1;
    int rc = gr_hp_rope_all(s, hp);
    return rc ? rc : gr_hp_qkv_fits(s, hp);
}

const struct gr_arch gr_arch_cogvlm = {.name = "cogvlm",
                                       GR_SPEC(spec),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams,
                                       .layer = gr_pre_norm_layer};
