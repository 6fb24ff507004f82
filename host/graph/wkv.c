/* Blocks of layers with linear attention: RWKV's and Lightning Attention. */
#include <math.h>

#include "gr/status.h"
#include "graph/build_impl.h"

static const gr_t none;

enum { FIRST_VALUES }; /* values passed from layer to layer (gr_carry) */

/* Per-token inputs and options of LINEAR_ATTN. */
struct linear {
    gr_t q, k, v, w, w_bias, first, erase, rate;
    enum gr_decay_kind decay;
    float scale, slope;
    bool rest;
};

static gr_t linear_attn(struct gr_build *b, int il, const struct linear *l)
{
    const struct gr_hparams *hp = gr_hp(b);
    gr_t y = gr_new(b, l->q.rows, hp->ssm.n_inner, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_LINEAR_ATTN,
                              .a.linear_attn = {.q = l->q,
                                                .k = l->k,
                                                .v = l->v,
                                                .w = l->w,
                                                .w_bias = l->w_bias,
                                                .first = l->first,
                                                .erase = l->erase,
                                                .rate = l->rate,
                                                .src = gr_state_rows(b, GR_STEP_STATE_SRC),
                                                .dst = gr_state_rows(b, GR_STEP_STATE_DST),
                                                .state = b->env->ssm_state[il],
                                                .y = y,
                                                .n_head = hp->ssm.n_rank,
                                                .n_head_kv = hp->ssm.n_group,
                                                .scale = l->scale,
                                                .slope = l->slope,
                                                .decay = (int32_t)l->decay,
                                                .rest = l->rest}});
    return gr_name(b, "wkv", il, y);
}

/* Q, K and V of a head are side by side in the product. */
gr_t gr_lightning(struct gr_build *b, int il, gr_t x, gr_t res)
{
    const struct gr_hparams *hp = gr_hp(b);
    int64_t d = hp->ssm.n_state;
    int32_t last = hp->n_layer - 1;
    gr_t all = gr_fold(b, gr_mm(b, il, GR_W_ATTN_QKV, x), 3 * d), part[3];
    for (int i = 0; i < 3; i++)
        part[i] = gr_fold(b, gr_act(b, GR_SILU, gr_cols(all, i * d, d)), hp->ssm.n_inner);
    struct linear l = {.q = part[0],
                       .k = part[1],
                       .v = part[2],
                       .decay = GR_DECAY_SLOPE,
                       .scale = 1,
                       .slope = (float)(1 - (last ? (double)il / last : 0) + 1e-5)};
    gr_t y = linear_attn(b, il, &l);
    if (il == last)
        y = gr_out_rows(b, y);
    gr_t z = gr_mm(b, il, GR_W_ATTN_GATE, gr_match(b, x, y));
    y = gr_glu(b, GR_SIGMOID, z, gr_norm(b, il, GR_W_ATTN_NORM_2, y));
    return gr_mm_add(b, il, GR_W_ATTN_OUT, y, res);
}

/* The previous token's row minus x; the last row stays in columns of the state from `first` on. */
static gr_t token_shift(struct gr_build *b, int il, gr_t x, int64_t first)
{
    gr_t y = gr_new(b, x.rows, x.cols, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){
                .op = GR_OP_TOKEN_SHIFT,
                .a.token_shift = {.x = x,
                                  .src = gr_state_rows(b, GR_STEP_STATE_SRC),
                                  .dst = gr_state_rows(b, GR_STEP_STATE_DST),
                                  .state = gr_state_cols(b->env->conv_state[il], first, x.cols),
                                  .y = y}});
    return y;
}

/* x + d * part; `part` has one row or as many as x. */
static gr_t mix(struct gr_build *b, gr_t x, gr_t d, gr_t part)
{
    return gr_add_t(b, gr_binary(b, GR_MUL, d, part), x);
}

static gr_t row(struct gr_build *b, int il, enum gr_slot slot)
{
    return gr_row_of(gr_require(b, il, slot));
}

/* Row i of a weight. */
static gr_t row_at(struct gr_build *b, int il, enum gr_slot slot, int64_t i)
{
    gr_t w = gr_require(b, il, slot);
    if (w.data) /* NULL: a plan that is only measured */
        w.data = (char *)w.data + i * w.row_bytes;
    w.rows = 1;
    return w;
}

/* second(act(first(x))) */
static gr_t by_rank(struct gr_build *b, int il, gr_t x, enum gr_slot first, enum gr_act_kind act,
                    enum gr_slot second)
{
    x = gr_mm(b, il, first, x);
    return gr_mm(b, il, second, act == GR_LINEAR ? x : gr_act(b, act, x));
}

/* sigmoid(x + a slot's row) */
static gr_t rate_of(struct gr_build *b, int il, gr_t x, enum gr_slot slot)
{
    return gr_act(b, GR_SIGMOID, gr_binary(b, GR_ADD, x, row(b, il, slot)));
}

/* Norm of each head, with a weight for every column. */
static gr_t head_norm(struct gr_build *b, int il, gr_t x)
{
    const struct gr_hparams *hp = gr_hp(b);
    gr_t y = gr_new(b, x.rows, x.cols, GR_F32);
    gr_t w[2] = {gr_require(b, il, GR_W_TIME_MIX_LN), gr_bias(b, il, GR_W_TIME_MIX_LN)};
    for (int i = 0; i < 2; i++)
        if (gr_ten_is(&w[i]))
            w[i].rows = hp->ssm.n_rank, w[i].cols = hp->ssm.n_state, w[i].row_bytes = w[i].cols * 4;
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_NORM,
                              .a.norm = {.x = x,
                                         .w = w[0],
                                         .b = w[1],
                                         .y = y,
                                         .group = hp->ssm.n_state,
                                         .eps = 64e-5F,
                                         .kind = GR_NORM_LAYER}});
    return y;
}

/* Five mixtures of x and the previous token, with weights computed from the two: for decay, key,
 * value, receptance and gate. */
static void mix_five(struct gr_build *b, int il, gr_t x, gr_t y[5])
{
    static const enum gr_slot each[5] = {GR_W_TIME_MIX_LERP_W, GR_W_TIME_MIX_LERP_K,
                                         GR_W_TIME_MIX_LERP_V, GR_W_TIME_MIX_LERP_R,
                                         GR_W_TIME_MIX_LERP_G};
    gr_t d = token_shift(b, il, x, 0);
    gr_t h = mix(b, x, d, row(b, il, GR_W_TIME_MIX_LERP_X));
    h = gr_act(b, GR_TANH, gr_mm(b, il, GR_W_TIME_MIX_W1, h));
    h = gr_head_mm(b, il, GR_W_TIME_MIX_W2, h);
    bool fused = gr_has(b, il, GR_W_TIME_MIX_LERP_FUSED);
    if (fused)
        h = gr_binary(b, GR_ADD, h, row(b, il, GR_W_TIME_MIX_LERP_FUSED));
    for (int i = 0; i < 5; i++) {
        gr_t part = gr_cols(h, i * x.cols, x.cols);
        if (!fused)
            part = gr_binary(b, GR_ADD, part, row(b, il, each[i]));
        y[i] = mix(b, x, d, part);
    }
}

gr_t gr_wkv6(struct gr_build *b, int il, gr_t x, gr_t res)
{
    bool first = gr_has(b, il, GR_W_TIME_MIX_FIRST);
    gr_t in[5];
    mix_five(b, il, x, in);
    struct linear l = {
        .q = gr_mm(b, il, GR_W_TIME_MIX_RECEPTANCE, in[3]),
        .k = gr_mm(b, il, GR_W_TIME_MIX_KEY, in[1]),
        .v = gr_mm(b, il, GR_W_TIME_MIX_VALUE, in[2]),
        .w = by_rank(b, il, in[0], GR_W_TIME_MIX_DECAY_W1, GR_TANH, GR_W_TIME_MIX_DECAY_W2),
        .w_bias = row(b, il, GR_W_TIME_MIX_DECAY),
        .first = first ? row(b, il, GR_W_TIME_MIX_FIRST) : none,
        .decay = GR_DECAY_EXP,
        .scale = first ? 1 : 1 / sqrtf((float)gr_hp(b)->ssm.n_state),
        .rest = !first};
    gr_t g = gr_mm(b, il, GR_W_TIME_MIX_GATE, in[4]), y = linear_attn(b, il, &l);
    y = first ? gr_glu(b, GR_SILU, g, head_norm(b, il, y)) : gr_glu(b, GR_SIGMOID, g, y);
    return gr_mm_add(b, il, GR_W_TIME_MIX_OUTPUT, y, res);
}

/* Values, mixed with those of the first layer. */
static gr_t values(struct gr_build *b, int il, gr_t x)
{
    gr_t v = gr_mm(b, il, GR_W_TIME_MIX_VALUE, x);
    if (il == 0) {
        gr_carry(b, FIRST_VALUES, v);
        return v;
    }
    gr_t part = by_rank(b, il, x, GR_W_TIME_MIX_V1, GR_LINEAR, GR_W_TIME_MIX_V2);
    gr_t d = gr_add_t(b, gr_act_ab(b, GR_LINEAR, v, -1, 0), gr_carried(b, FIRST_VALUES));
    return mix(b, v, d, rate_of(b, il, part, GR_W_TIME_MIX_V0));
}

/* y + v * the sum over a head of q * k * R_K. */
static gr_t add_own(struct gr_build *b, int il, const struct linear *l, gr_t y)
{
    int64_t d = gr_hp(b)->ssm.n_state;
    gr_t part = gr_fold(b, gr_binary(b, GR_MUL, l->k, row(b, il, GR_W_TIME_MIX_R_K)), d);
    gr_t sum = gr_new(b, part.rows, 1, GR_F32), out = gr_new(b, part.rows, d, GR_F32);
    gr_expert_sum(b, il, gr_fold(b, l->q, 1), part, none, sum);
    gr_expert_sum(b, il, gr_fold(b, l->v, d), sum, gr_fold(b, y, d), out);
    return gr_fold(b, out, y.cols);
}

gr_t gr_wkv7(struct gr_build *b, int il, gr_t x, gr_t res)
{
    int64_t n_mix = gr_hp(b)->time_mix.n_lerp;
    gr_t d = token_shift(b, il, x, 0), in[6] = {none};
    for (int64_t i = 0; i < n_mix; i++) /* receptance, decay, key, value, rate, gate */
        in[i] = mix(b, x, d, row_at(b, il, GR_W_TIME_MIX_LERP_FUSED, i));
    gr_t k = gr_mm(b, il, GR_W_TIME_MIX_KEY, in[2]);
    gr_t a = by_rank(b, il, in[4], GR_W_TIME_MIX_A1, GR_LINEAR, GR_W_TIME_MIX_A2);
    a = rate_of(b, il, a, GR_W_TIME_MIX_A0);
    struct linear l = {.q = gr_mm(b, il, GR_W_TIME_MIX_RECEPTANCE, in[0]),
                       .v = values(b, il, in[3]),
                       .w = by_rank(b, il, in[1], GR_W_TIME_MIX_W1, GR_TANH, GR_W_TIME_MIX_W2),
                       .w_bias = row(b, il, GR_W_TIME_MIX_W0),
                       .erase = gr_binary(b, GR_MUL, k, row(b, il, GR_W_TIME_MIX_K_K)),
                       .rate = a,
                       .decay = GR_DECAY_SIGMOID,
                       .scale = 1};
    l.k = mix(b, k, gr_binary(b, GR_MUL, k, row(b, il, GR_W_TIME_MIX_K_A)),
              gr_act_ab(b, GR_LINEAR, a, 1, -1));
    gr_t y = linear_attn(b, il, &l);
    if (gr_has(b, il, GR_W_TIME_MIX_LN))
        y = head_norm(b, il, y);
    y = add_own(b, il, &l, y);
    if (n_mix == 6)
        y = gr_binary(b, GR_MUL, y,
                      by_rank(b, il, in[5], GR_W_TIME_MIX_G1, GR_SIGMOID, GR_W_TIME_MIX_G2));
    return gr_mm_add(b, il, GR_W_TIME_MIX_OUTPUT, y, res);
}

gr_t gr_channel_mix(struct gr_build *b, int il, gr_t x, gr_t res)
{
    gr_t d = token_shift(b, il, x, x.cols);
    if (il == gr_hp(b)->n_layer - 1)
        d = gr_out_rows(b, d), x = gr_out_rows(b, x);
    gr_t k = mix(b, x, d, row(b, il, GR_W_CHANNEL_MIX_LERP_K));
    k = gr_act(b, GR_RELU2, gr_mm(b, il, GR_W_CHANNEL_MIX_KEY, k));
    if (!gr_has(b, il, GR_W_CHANNEL_MIX_RECEPTANCE))
        return gr_mm_add(b, il, GR_W_CHANNEL_MIX_VALUE, k, res);
    gr_t r = mix(b, x, d, row(b, il, GR_W_CHANNEL_MIX_LERP_R));
    r = gr_mm(b, il, GR_W_CHANNEL_MIX_RECEPTANCE, r);
    gr_t y = gr_glu(b, GR_SIGMOID, r, gr_mm(b, il, GR_W_CHANNEL_MIX_VALUE, k));
    return gr_add_t(b, y, gr_match(b, res, y));
}
