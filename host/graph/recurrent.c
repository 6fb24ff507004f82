/* Blocks of recurrent layers. */
#include "gr/status.h"
#include "graph/build_impl.h"

gr_t gr_state_rows(struct gr_build *b, enum gr_step_array a)
{
    if (!b->err && b->plan->shape.n_seq < 1)
        b->err = gr_fail(GR_E_INTERNAL, "a recurrent layer in a micro-batch of unequal sequences");
    return gr_step_array(b, a, 1);
}

gr_t gr_row_of(gr_t w)
{
    w.cols *= w.rows, w.rows = w.rows ? 1 : 0;
    w.row_bytes = w.cols * 4;
    return w;
}

gr_t gr_state_cols(gr_t state, int64_t first, int64_t n)
{
    if (state.data) /* NULL: of another stage, or a plan that is only measured */
        state.data = (float *)state.data + first;
    state.cols = n;
    return state;
}

/* The convolution of x; its last inputs are kept in columns of the state from `first` on. */
static gr_t conv_at(struct gr_build *b, int il, enum gr_slot slot, gr_t x, enum gr_act_kind kind,
                    int64_t first)
{
    gr_t w = gr_require(b, il, slot), y = gr_new(b, x.rows, x.cols, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_SSM_CONV,
                              .a.ssm_conv = {.x = x,
                                             .w = w,
                                             .b = gr_bias(b, il, slot),
                                             .src = gr_state_rows(b, GR_STEP_STATE_SRC),
                                             .dst = gr_state_rows(b, GR_STEP_STATE_DST),
                                             .state = gr_state_cols(b->env->conv_state[il], first,
                                                                    (w.cols - 1) * x.cols),
                                             .y = y,
                                             .kind = (int32_t)kind}});
    return gr_name(b, "conv", il, y);
}

static gr_t conv(struct gr_build *b, int il, enum gr_slot slot, gr_t x, enum gr_act_kind kind)
{
    return conv_at(b, il, slot, x, kind, 0);
}

/* The decay rates with one row per head, also where the file has them in a single row. */
static gr_t rates_of(struct gr_build *b, int il, int64_t n_head)
{
    gr_t a = gr_require(b, il, GR_W_SSM_A);
    if (a.rows == 1 && a.cols == n_head)
        a.rows = n_head, a.cols = 1, a.row_bytes = sizeof(float);
    return a;
}

/* Per-token inputs of SSM_SCAN. */
struct scan {
    gr_t x, dt, b, c, z;
};

static gr_t scan(struct gr_build *b, int il, const struct scan *s)
{
    gr_t y = gr_new(b, s->x.rows, s->x.cols, GR_F32);
    gr_t dt_bias = {0};
    if (!gr_has(b, il, GR_W_SSM_DT)) /* otherwise the bias was added with the product of SSM_DT */
        dt_bias = gr_require(b, il, GR_W_SSM_DT_BIAS);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_SSM_SCAN,
                              .a.ssm_scan = {.x = s->x,
                                             .dt = s->dt,
                                             .dt_bias = dt_bias,
                                             .a = rates_of(b, il, s->dt.cols),
                                             .b = s->b,
                                             .c = s->c,
                                             .d = gr_row_of(gr_require(b, il, GR_W_SSM_D)),
                                             .z = s->z,
                                             .src = gr_state_rows(b, GR_STEP_STATE_SRC),
                                             .dst = gr_state_rows(b, GR_STEP_STATE_DST),
                                             .state = b->env->ssm_state[il],
                                             .y = y,
                                             .n_state = gr_hp(b)->ssm.n_state}});
    gr_name(b, "scan", il, y);
    return il == gr_hp(b)->n_layer - 1 ? gr_out_rows(b, y) : y;
}

/* norm(x) with the slot's weight if bound, else without one if norm_dt_b_c is set, else x. */
static gr_t norm_of(struct gr_build *b, int il, enum gr_slot slot, gr_t x)
{
    if (gr_has(b, il, slot))
        return gr_norm(b, il, slot, x);
    return gr_hp(b)->ssm.norm_dt_b_c ? gr_rms(b, il, x, x.cols) : x;
}

gr_t gr_mamba(struct gr_build *b, int il, gr_t x, gr_t res)
{
    const struct gr_hparams *hp = gr_hp(b);
    int64_t n = hp->ssm.n_inner, rank = hp->ssm.n_rank, ns = hp->ssm.n_state;
    gr_t xz = gr_mm(b, il, GR_W_SSM_IN, x);
    struct scan s = {.x = conv(b, il, GR_W_SSM_CONV, gr_cols(xz, 0, n), GR_SILU),
                     .z = gr_cols(xz, n, n)};
    gr_t dbc = gr_mm(b, il, GR_W_SSM_X, s.x);
    gr_t dt = norm_of(b, il, GR_W_SSM_DT_NORM, gr_cols(dbc, 0, rank));
    s.b = norm_of(b, il, GR_W_SSM_B_NORM, gr_cols(dbc, rank, ns));
    s.c = norm_of(b, il, GR_W_SSM_C_NORM, gr_cols(dbc, rank + ns, ns));
    s.dt = gr_mm(b, il, GR_W_SSM_DT, dt);
    return gr_mm_add(b, il, GR_W_SSM_OUT, scan(b, il, &s), res);
}

/* Extracts columns [first, first + n) of every group of `group` columns: [n_tok, n_group * n]. */
static gr_t ungroup(struct gr_build *b, gr_t x, int64_t group, int64_t first, int64_t n)
{
    gr_t y = gr_act_ab(b, GR_LINEAR, gr_cols(gr_fold(b, x, group), first, n), 1, 0);
    return gr_fold(b, y, x.cols / group * n);
}

gr_t gr_mamba_heads(struct gr_build *b, int il, gr_t x, gr_t res)
{
    const struct gr_hparams *hp = gr_hp(b);
    int64_t d = hp->ssm.n_inner / hp->ssm.n_rank, ns = hp->ssm.n_state;
    gr_t zx = gr_mm(b, il, GR_W_SSM_IN, x);
    struct scan s = {.x = conv(b, il, GR_W_SSM_CONV, ungroup(b, zx, 2 * d, d, d), GR_SILU),
                     .z = ungroup(b, zx, 2 * d, 0, d)};
    gr_t bcdt = gr_mm(b, il, GR_W_SSM_X, s.x);
    gr_t dt = gr_norm(b, il, GR_W_SSM_DT_NORM, gr_cols(bcdt, 2 * ns, hp->ssm.n_dt));
    s.b = gr_norm(b, il, GR_W_SSM_B_NORM, gr_cols(bcdt, 0, ns));
    s.c = gr_norm(b, il, GR_W_SSM_C_NORM, gr_cols(bcdt, ns, ns));
    s.dt = gr_mm(b, il, GR_W_SSM_DT, dt);
    return gr_mm_add(b, il, GR_W_SSM_OUT, scan(b, il, &s), res);
}

gr_t gr_mamba2(struct gr_build *b, int il, gr_t x, gr_t res)
{
    const struct gr_hparams *hp = gr_hp(b);
    int64_t n = hp->ssm.n_inner, bc = (int64_t)hp->ssm.n_group * hp->ssm.n_state;
    gr_t in = gr_mm(b, il, GR_W_SSM_IN, x);
    gr_t xbc = conv(b, il, GR_W_SSM_CONV, gr_cols(in, n, hp->ssm.n_channel), GR_SILU);
    struct scan s = {.x = gr_cols(xbc, 0, n),
                     .dt = gr_cols(in, n + hp->ssm.n_channel, hp->ssm.n_rank),
                     .b = gr_cols(xbc, n, bc),
                     .c = gr_cols(xbc, n + bc, bc),
                     .z = gr_cols(in, 0, n)};
    gr_t y = scan(b, il, &s);
    if (gr_has(b, il, GR_W_SSM_NORM))
        y = gr_norm(b, il, GR_W_SSM_NORM, y);
    return gr_mm_add(b, il, GR_W_SSM_OUT, y, res);
}

gr_t gr_short_conv(struct gr_build *b, int il, gr_t x, gr_t res)
{
    int64_t n = gr_hp(b)->n_embd;
    gr_t bcx = gr_mm(b, il, GR_W_SHORTCONV_IN, x);
    gr_t bx = gr_binary(b, GR_MUL, gr_cols(bcx, 0, n), gr_cols(bcx, 2 * n, n));
    gr_t y = conv(b, il, GR_W_SHORTCONV, bx, GR_LINEAR);
    y = gr_binary(b, GR_MUL, gr_cols(bcx, n, n), y);
    if (il == gr_hp(b)->n_layer - 1)
        y = gr_out_rows(b, y);
    return gr_mm_add(b, il, GR_W_SHORTCONV_OUT, y, res);
}

/* beta and alpha, from two matrices or from one that has them in groups. */
static void rates(struct gr_build *b, int il, gr_t x, gr_t *beta, gr_t *alpha)
{
    if (!gr_has(b, il, GR_W_SSM_BA)) {
        *beta = gr_mm(b, il, GR_W_SSM_BETA, x), *alpha = gr_mm(b, il, GR_W_SSM_ALPHA, x);
        return;
    }
    int64_t n = gr_hp(b)->ssm.n_rank / gr_hp(b)->ssm.n_group;
    gr_t both = gr_mm(b, il, GR_W_SSM_BA, x);
    *beta = ungroup(b, both, 2 * n, 0, n), *alpha = ungroup(b, both, 2 * n, n, n);
}

/* Per-token inputs of DELTA_RULE. */
struct delta {
    gr_t q, k, v, alpha, beta;
    bool tiled;
};

/* The delta rule; in the last layer only the wanted rows of its result. */
static gr_t delta(struct gr_build *b, int il, const struct delta *d)
{
    const struct gr_hparams *hp = gr_hp(b);
    gr_t y = gr_new(b, d->v.rows, d->v.cols, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_DELTA_RULE,
                              .a.delta_rule = {.q = d->q,
                                               .k = d->k,
                                               .v = d->v,
                                               .alpha = d->alpha,
                                               .dt_bias = gr_require(b, il, GR_W_SSM_DT_BIAS),
                                               .a = gr_require(b, il, GR_W_SSM_A),
                                               .beta = d->beta,
                                               .src = gr_state_rows(b, GR_STEP_STATE_SRC),
                                               .dst = gr_state_rows(b, GR_STEP_STATE_DST),
                                               .state = b->env->ssm_state[il],
                                               .y = y,
                                               .n_head = hp->ssm.n_rank,
                                               .n_head_k = hp->ssm.n_group,
                                               .eps = hp->norm.eps,
                                               .bound = hp->ssm.decay_bound,
                                               .slope = hp->ssm.decay_slope,
                                               .tiled = d->tiled}});
    gr_name(b, "delta", il, y);
    return il == hp->n_layer - 1 ? gr_out_rows(b, y) : y;
}

gr_t gr_delta_net(struct gr_build *b, int il, gr_t x, gr_t res, const struct gr_delta_opt *opt)
{
    const struct gr_hparams *hp = gr_hp(b);
    int64_t n_k = (int64_t)hp->ssm.n_group * hp->ssm.n_state;
    struct delta d = {.tiled = opt->tiled};
    gr_t qkv = conv(b, il, GR_W_SSM_CONV, gr_mm(b, il, GR_W_ATTN_QKV, x), GR_SILU);
    d.q = gr_cols(qkv, 0, n_k), d.k = gr_cols(qkv, n_k, n_k);
    d.v = gr_cols(qkv, 2 * n_k, hp->ssm.n_inner);
    rates(b, il, x, &d.beta, &d.alpha);
    gr_t y = delta(b, il, &d), z = gr_mm(b, il, GR_W_ATTN_GATE, gr_match(b, x, y));
    y = gr_glu(b, opt->gate, z, gr_norm(b, il, GR_W_SSM_NORM, y));
    return gr_mm_add(b, il, GR_W_SSM_OUT, y, res);
}

/* x times one matrix, or times two narrow ones. */
static gr_t by_rank(struct gr_build *b, int il, enum gr_slot first, enum gr_slot second, gr_t x)
{
    x = gr_mm(b, il, first, x);
    return gr_has(b, il, second) ? gr_mm(b, il, second, x) : x;
}

gr_t gr_kda(struct gr_build *b, int il, gr_t x, gr_t res)
{
    static const enum gr_slot proj[] = {GR_W_ATTN_Q, GR_W_ATTN_K, GR_W_ATTN_V};
    static const enum gr_slot kernel[] = {GR_W_SSM_CONV_Q, GR_W_SSM_CONV_K, GR_W_SSM_CONV_V};
    int64_t n = gr_hp(b)->ssm.n_inner, past = gr_hp(b)->ssm.n_kernel - 1;
    gr_t in[3], all = {0};
    if (gr_has(b, il, GR_W_ATTN_QKV))
        all = gr_mm(b, il, GR_W_ATTN_QKV, x);
    for (int i = 0; i < 3; i++) {
        in[i] = gr_ten_is(&all) ? gr_cols(all, i * n, n) : gr_mm(b, il, proj[i], x);
        in[i] = conv_at(b, il, kernel[i], in[i], GR_SILU, i * past * n);
    }
    struct delta d = {.q = in[0],
                      .k = in[1],
                      .v = in[2],
                      .alpha = by_rank(b, il, GR_W_SSM_F_A, GR_W_SSM_F_B, x),
                      .beta = gr_mm(b, il, GR_W_SSM_BETA, x)};
    gr_t y = delta(b, il, &d);
    x = gr_match(b, x, y);
    gr_t z = gr_has(b, il, GR_W_SSM_G) ? gr_mm(b, il, GR_W_SSM_G, x)
                                       : by_rank(b, il, GR_W_SSM_G_A, GR_W_SSM_G_B, x);
    y = gr_glu(b, GR_SIGMOID, z, gr_norm(b, il, GR_W_SSM_NORM, y));
    return gr_mm_add(b, il, GR_W_ATTN_OUT, y, res);
}
