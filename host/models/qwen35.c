/* Qwen 3.5: three layers with a gated delta rule to one with gated attention. Yang, Kautz,
 * Hatamizadeh 2024 (arXiv 2412.06464); Qwen Team 2026. */
#include "graph/build.h"

static const struct gr_tensor_spec spec[] = {
    {GR_W_TOKEN_EMBD, 0, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_OUTPUT_NORM, 0, {GR_D_EMBD}},
    {GR_W_OUTPUT, GR_OPTIONAL, {GR_D_EMBD, GR_D_VOCAB}},
    {GR_W_ATTN_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_POST_NORM, 0, {GR_D_EMBD}},
    {GR_W_ATTN_Q, GR_IN_KV | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_Q_2}},
    {GR_W_ATTN_K, GR_IN_KV | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_K}},
    {GR_W_ATTN_V, GR_IN_KV | GR_BIAS_MAYBE, {GR_D_EMBD, GR_D_V}},
    {GR_W_ATTN_Q_NORM, GR_IN_KV, {GR_D_HEAD}},
    {GR_W_ATTN_K_NORM, GR_IN_KV, {GR_D_HEAD}},
    {GR_W_ATTN_OUT, GR_IN_KV, {GR_D_O, GR_D_EMBD}},
    {GR_W_ATTN_QKV, GR_IN_STATE, {GR_D_EMBD, GR_D_CHANNEL}},
    {GR_W_ATTN_GATE, GR_IN_STATE, {GR_D_EMBD, GR_D_INNER}},
    GR_SPEC_DELTA(GR_IN_STATE),
    {GR_W_SSM_ALPHA, GR_IN_STATE, {GR_D_EMBD, GR_D_RANK}},
    {GR_W_SSM_BETA, GR_IN_STATE, {GR_D_EMBD, GR_D_RANK}},
    {GR_W_FFN_GATE, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_UP, 0, {GR_D_EMBD, GR_D_FF}},
    {GR_W_FFN_DOWN, 0, {GR_D_FF, GR_D_EMBD}},
};

/* Which layers are recurrent: a list in the file, or all but every fourth. Layers that predict
 * further tokens stand behind the others and are not used. */
static int find_recurrent(struct gr_hparams *hp, struct gr_hp_source *s)
{
    int32_t list[GR_MAX_LAYER], period = 4, n_next = 0;
    int rc = gr_hp_i32(s, "full_attention_interval", 1, GR_MAX_LAYER, &period);
    for (int32_t il = 0; il < hp->n_layer; il++)
        list[il] = (il + 1) % period != 0;
    if (!rc && gr_hp_has(s, "attention.recurrent_layers"))
        rc = gr_hp_each(s, "attention.recurrent_layers", 0, 1, hp->n_layer, list);
    if (!rc)
        rc = gr_hp_i32(s, "nextn_predict_layers", 0, hp->n_layer - 1, &n_next);
    hp->n_layer -= n_next;
    for (int32_t il = 0; il < hp->n_layer && !rc; il++)
        if (list[il])
            gr_hp_set_recurrent(hp, il);
    return rc;
}

static int hparams(struct gr_hparams *hp, struct gr_hp_source *s)
{
    int rc = find_recurrent(hp, s);
    if (!rc)
        rc = gr_hp_recurrence(s, hp, GR_DELTA);
    hp->interleaved = true;
    return rc ? rc : gr_hp_sections(s, hp);
}

/* Each head's query is followed by the gate of what it finds. */
static gr_t attention(struct gr_build *b, int il, gr_t x, gr_t res)
{
    const struct gr_hparams *hp = gr_hp(b);
    int64_t d = hp->d_k;
    gr_t both = gr_mm(b, il, GR_W_ATTN_Q, x);
    gr_t q = gr_norm(b, il, GR_W_ATTN_Q_NORM, gr_cols(gr_fold(b, both, 2 * d), 0, d));
    struct gr_qkv p = {.q = gr_fold(b, q, hp->n_head[il] * d),
                       .k = gr_norm(b, il, GR_W_ATTN_K_NORM, gr_mm(b, il, GR_W_ATTN_K, x)),
                       .v = gr_mm(b, il, GR_W_ATTN_V, x)};
    gr_t y = gr_attn(b, il, p);
    gr_t gate = gr_cols(gr_fold(b, gr_match(b, both, y), 2 * d), d, d);
    y = gr_fold(b, gr_glu(b, GR_SIGMOID, gate, gr_fold(b, y, d)), y.cols);
    return gr_mm_add(b, il, GR_W_ATTN_OUT, y, res);
}

static gr_t layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    x = gr_hp(b)->recurrent[il] ? gr_delta_net(b, il, h, x, true) : attention(b, il, h, x);
    return gr_ffn_glu(b, il, gr_norm(b, il, GR_W_ATTN_POST_NORM, x), x, GR_SILU);
}

const struct gr_arch gr_arch_qwen35 = {.name = "qwen35",
                                       GR_SPEC(spec),
                                       .norm = GR_NORM_RMS,
                                       .rope = GR_ROPE_NEOX,
                                       .hparams = hparams,
                                       .layer = layer};
