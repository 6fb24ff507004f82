/* Models that run their layers more than once. Nanbeige: all of them in order, with the output norm
 * between rounds. HRM-Text: two stacks of layers whose norms have no weights; the low one runs
 * n_low times before each run of the high one, each on the sum of the last outputs of both. Wang et
 * al. 2025 (arXiv 2506.21734). */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_LOOP_NORM, GR_EACH, {GR_D_EMBD}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ROPE_FREQS, GR_OPTIONAL, {GR_D_ROT_2}},
    GR_SPEC_ATTN,
    {GR_W_FFN_NORM, 0, {GR_D_EMBD}},
    GR_SPEC_GLU(0),
};

static const struct gr_tensor_spec spec_hrm[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_LOW_INIT, GR_EACH, {GR_D_EMBD}},
    GR_SPEC_QKV(GR_BIAS_MAYBE),
    {GR_W_ATTN_GATE, 0, {GR_D_EMBD, GR_D_O}},
    {GR_W_ATTN_OUT, 0, {GR_D_O, GR_D_EMBD}},
    GR_SPEC_GLU(0),
};

static int hparams(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t n_loop = 1;
    bool skip = false;
    int rc = gr_hp_i32(s, "num_loops", 1, GR_MAX_LAYER, &n_loop);
    if (!rc)
        rc = gr_hp_bool(s, "skip_loop_final_norm", &skip);
    hp->loop.round = skip ? 0 : hp->n_layer;
    return rc ? rc : gr_hp_repeat(s, hp, n_loop);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    const struct gr_hparams *hp = gr_hp(b);
    x = gr_pre_norm_layer(b, il, x);
    bool between = hp->loop.round && (il + 1) % hp->loop.round == 0 && il + 1 < hp->n_layer;
    return between ? gr_norm(b, il, GR_W_LOOP_NORM, x) : x;
}

/* The file counts every pass as a layer of its own. */
static int hparams_hrm(struct gr_hp_source *s, struct gr_hparams *hp)
{
    int32_t n = 0, n_high = 0, n_low = 0;
    int rc = gr_hp_need_i32(s, "hrm.layers_per_stack", 1, GR_MAX_LAYER, &n);
    if (!rc)
        rc = gr_hp_need_i32(s, "hrm.h_cycles", 1, GR_MAX_LAYER, &n_high);
    if (!rc)
        rc = gr_hp_need_i32(s, "hrm.l_cycles", 1, GR_MAX_LAYER, &n_low);
    if (!rc)
        rc = gr_hp_embd_scale(s, hp);
    return rc ? rc : gr_hp_stacks(s, hp, n, n_low, n_high);
}

enum { LOW, HIGH };

static gr_t layer_hrm(struct gr_build *b, int il, gr_t x)
{
    const struct gr_hparams *hp = gr_hp(b);
    int n = hp->loop.round, stack = il / n % (hp->loop.n_low + 1) == hp->loop.n_low ? HIGH : LOW;
    if (il == 0) {
        gr_carry(b, HIGH, x);
        x = gr_add_t(b, x, gr_row(b, il, GR_W_LOW_INIT));
    } else if (il % n == 0) {
        x = gr_add_t(b, gr_carried(b, HIGH), gr_carried(b, LOW));
    }
    x = gr_attn_block(b, il, gr_norm_plain(b, il, x), x);
    x = gr_ffn_glu(b, il, gr_norm_plain(b, il, x), x, GR_SILU);
    if ((il + 1) % n == 0 && il + 1 < hp->n_layer) { /* the last norm is the output norm */
        x = gr_norm_plain(b, il, x);
        gr_carry(b, stack, x);
    }
    return x;
}

const struct gr_arch gr_arch_nanbeige = {.name = "nanbeige",
                                         GR_SPEC(spec),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NORM,
                                         .hparams = hparams,
                                         .layer = layer};
const struct gr_arch gr_arch_hrm_text = {.name = "hrm_text",
                                         GR_SPEC(spec_hrm),
                                         .norm = GR_NORM_RMS,
                                         .rope = GR_ROPE_NEOX,
                                         .hparams = hparams_hrm,
                                         .layer = layer_hrm};
