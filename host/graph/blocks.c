/* Blocks that most families share: projections, attention over the cache, feed-forward, experts. */
#include <math.h>

#include "base/checked.h"
#include "gr/status.h"
#include "graph/build_impl.h"

static const gr_t none;

static gr_t clamp(struct gr_build *b, gr_t x)
{
    float limit = gr_hp(b)->clamp_kqv;
    return limit > 0 ? gr_act_ab(b, GR_CLAMP, x, -limit, limit) : x;
}

struct gr_qkv gr_qkv_proj(struct gr_build *b, int il, gr_t x)
{
    const struct gr_hparams *hp = gr_hp(b);
    int64_t n_q = (int64_t)hp->n_head[il] * hp->d_k, n_k = (int64_t)hp->n_head_kv[il] * hp->d_k;
    if (gr_has(b, il, GR_W_ATTN_QKV)) {
        gr_t f = clamp(b, gr_mm(b, il, GR_W_ATTN_QKV, x));
        return (struct gr_qkv){gr_cols(f, 0, n_q), gr_cols(f, n_q, n_k),
                               gr_cols(f, n_q + n_k, (int64_t)hp->n_head_kv[il] * hp->d_v)};
    }
    gr_t q = gr_mm(b, il, GR_W_ATTN_Q, x), k = gr_mm(b, il, GR_W_ATTN_K, x);
    gr_t v = gr_mm(b, il, GR_W_ATTN_V, x);
    return (struct gr_qkv){clamp(b, q), clamp(b, k), clamp(b, v)};
}

struct gr_qkv gr_qk_norm(struct gr_build *b, int il, struct gr_qkv p)
{
    if (gr_has(b, il, GR_W_ATTN_Q_NORM))
        p.q = gr_norm(b, il, GR_W_ATTN_Q_NORM, p.q);
    if (gr_has(b, il, GR_W_ATTN_K_NORM))
        p.k = gr_norm(b, il, GR_W_ATTN_K_NORM, p.k);
    return p;
}

/* cos and sin for this kind of layer, computed once a plan. */
static gr_t rope_table_of(struct gr_build *b, int il)
{
    int kind = gr_hp(b)->swa[il];
    if (!gr_ten_is(&b->cs[kind])) {
        const struct gr_rope_freqs *f = &b->env->rope[kind];
        b->cs[kind] = gr_rope_table(b, gr_step_array(b, GR_STEP_POS, b->plan->shape.n_pos), f,
                                    b->env->section, f->mag);
    }
    return b->cs[kind];
}

static gr_t rope(struct gr_build *b, int il, gr_t x, gr_t cs)
{
    const struct gr_hparams *hp = gr_hp(b);
    gr_t y = gr_new(b, x.rows, x.cols, GR_F32);
    gr_emit(
        b, il,
        &(struct gr_node){
            .op = GR_OP_ROPE,
            .a.rope = {.x = x, .cs = cs, .y = y, .d_head = hp->d_k, .kind = (int32_t)hp->rope}});
    return y;
}

/* The same for grouped positions, of queries or of keys. */
static gr_t far_table_of(struct gr_build *b, bool key)
{
    const struct gr_rope_freqs *f = &b->env->rope[0];
    if (!gr_ten_is(&b->cs_far[key]))
        b->cs_far[key] = gr_rope_table(b, gr_step_array(b, key ? GR_STEP_FAR_K : GR_STEP_FAR_Q, 1),
                                       f, none, f->mag);
    return b->cs_far[key];
}

/* Stores K, and V if there is one, in the caches given. */
static void kv_store(struct gr_build *b, int il, struct gr_qkv p, gr_t cs, gr_t k_cache,
                     gr_t v_cache)
{
    const struct gr_hparams *hp = gr_hp(b);
    gr_emit(
        b, il,
        &(struct gr_node){.op = GR_OP_KV_STORE,
                          .a.kv_store = {.k = p.k,
                                         .v = p.v,
                                         .cs = cs,
                                         .cells = gr_step_array(
                                             b, hp->swa[il] ? GR_STEP_CELLS_SWA : GR_STEP_CELLS, 1),
                                         .k_cache = k_cache,
                                         .v_cache = v_cache,
                                         .d_head_k = hp->d_k,
                                         .kind = (int32_t)hp->rope}});
}

gr_t gr_attn(struct gr_build *b, int il, struct gr_qkv p)
{
    const struct gr_hparams *hp = gr_hp(b);
    const struct gr_step_shape *s = &b->plan->shape;
    bool swa = hp->swa[il];
    gr_t cs = none, q_far = none, k_far = b->env->k_far ? b->env->k_far[il] : none;
    if (gr_ten_is(&k_far)) {
        struct gr_qkv grouped = {.k = p.k};
        q_far = rope(b, il, p.q, far_table_of(b, false));
        kv_store(b, il, grouped, far_table_of(b, true), k_far, none);
    }
    if (hp->rope != GR_ROPE_NONE) {
        cs = rope_table_of(b, il);
        p.q = rope(b, il, p.q, cs);
    }
    gr_name(b, "q", il, p.q);
    kv_store(b, il, p, cs, b->env->k_cache[il], b->env->v_cache[il]);
    gr_t y = gr_new(b, s->n_tok, (int64_t)hp->n_head[il] * hp->d_v, GR_F32);
    gr_emit(
        b, il,
        &(struct gr_node){
            .op = GR_OP_ATTN,
            .a.attn = {.q = p.q,
                       .q_far = q_far,
                       .k = b->env->k_cache[il],
                       .k_far = k_far,
                       .v = b->env->v_cache[il],
                       .list = gr_step_array(b, swa ? GR_STEP_LIST_SWA : GR_STEP_LIST, 1),
                       .span = gr_step_array(b, swa ? GR_STEP_SPAN_SWA : GR_STEP_SPAN, s->n_tok),
                       .pos = gr_step_array(b, GR_STEP_POS, s->n_pos),
                       .key_pos = hp->max_alibi > 0 ? gr_step_array(b, GR_STEP_KEY_POS, 1) : none,
                       .sinks = gr_weight(b, il, GR_W_ATTN_SINKS),
                       .y = y,
                       .n_head = hp->n_head[il],
                       .n_head_kv = hp->n_head_kv[il],
                       .d_k = hp->d_k,
                       .d_v = hp->d_v,
                       .scale = hp->attn_scale > 0 ? hp->attn_scale : 1 / sqrtf((float)hp->d_k),
                       .softcap = hp->attn_softcap,
                       .max_alibi = hp->max_alibi}});
    gr_name(b, "attn", il, y);
    return il == hp->n_layer - 1 ? gr_out_rows(b, y) : y;
}

gr_t gr_attn_block(struct gr_build *b, int il, gr_t x, gr_t res)
{
    struct gr_qkv p = gr_qk_norm(b, il, gr_qkv_proj(b, il, x));
    return gr_mm_add(b, il, GR_W_ATTN_OUT, gr_attn(b, il, p), res);
}

gr_t gr_ffn_glu(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind)
{
    gr_t gate, up = gr_mm(b, il, GR_W_FFN_UP, x);
    if (up.cols == gr_require(b, il, GR_W_FFN_DOWN).cols) {
        gate = gr_mm(b, il, GR_W_FFN_GATE, x);
    } else {
        gate = gr_cols(up, 0, up.cols / 2);
        up = gr_cols(up, up.cols / 2, up.cols / 2);
    }
    gr_t h = gr_glu(b, kind, gate, up);
    return gr_mm_add(b, il, GR_W_FFN_DOWN, h, res);
}

gr_t gr_ffn_mlp(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind)
{
    gr_t h = gr_act(b, kind, gr_mm(b, il, GR_W_FFN_UP, x));
    if (gr_has(b, il, GR_W_FFN_ACT))
        h = gr_binary(b, GR_DIV, h, gr_weight(b, il, GR_W_FFN_ACT));
    return gr_mm_add(b, il, GR_W_FFN_DOWN, h, res);
}

gr_t gr_moe(struct gr_build *b, int il, gr_t x, gr_t res, const struct gr_moe_opt *opt)
{
    const struct gr_hparams *hp = gr_hp(b);
    gr_t logits = gr_name(b, "router", il, gr_mm(b, il, GR_W_FFN_GATE_INP, x));
    gr_t ids = gr_new(b, x.rows, hp->n_expert_used, GR_I32);
    gr_t weights = gr_new(b, x.rows, hp->n_expert_used, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_ROUTE,
                              .a.route = {.logits = logits,
                                          .ids = ids,
                                          .weights = weights,
                                          .gate = (int32_t)opt->gate,
                                          .normalise = opt->normalise,
                                          .scale = opt->scale != 0 ? opt->scale : 1,
                                          .n_group = 1,
                                          .n_group_used = 1}});
    gr_t gate = gr_matmul_id(b, il, GR_W_FFN_GATE_EXPS, x, ids);
    gr_t up = gr_matmul_id(b, il, GR_W_FFN_UP_EXPS, x, ids);
    gr_t h = gr_matmul_id(b, il, GR_W_FFN_DOWN_EXPS, gr_glu(b, opt->act, gate, up), ids);
    gr_t y = gr_new(b, x.rows, h.cols, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_EXPERT_SUM,
                              .a.expert_sum = {.x = h, .weights = weights, .res = res, .y = y}});
    return y;
}

gr_t gr_ffn(struct gr_build *b, int il, gr_t x, gr_t res, const struct gr_moe_opt *opt)
{
    return gr_has(b, il, GR_W_FFN_GATE_INP) ? gr_moe(b, il, x, res, opt)
                                            : gr_ffn_glu(b, il, x, res, opt->act);
}
