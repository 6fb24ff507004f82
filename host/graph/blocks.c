/* Blocks that most families share: projections, attention over the cache, feed-forward, experts. */
#include <float.h>
#include <math.h>

#include "base/checked.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "graph/build_impl.h"

static const gr_t none;

static gr_t clamp(struct gr_build *b, gr_t x)
{
    float limit = gr_hp(b)->attn.clamp_kqv;
    return limit > 0 ? gr_act_ab(b, GR_CLAMP, x, -limit, limit) : x;
}

struct gr_qkv gr_qkv_proj(struct gr_build *b, int il, gr_t x)
{
    const struct gr_hparams *hp = gr_hp(b);
    int64_t n_q = (int64_t)hp->attn.n_head[il] * hp->attn.d_k;
    int64_t n_k = (int64_t)hp->attn.n_head_kv[il] * hp->attn.d_k;
    if (gr_has(b, il, GR_W_ATTN_QKV)) {
        gr_t f = clamp(b, gr_mm(b, il, GR_W_ATTN_QKV, x));
        int64_t apart = b->env->share ? 0 : hp->attn.qkv_apart; /* in a shard they are adjacent */
        int64_t k = apart ? apart : n_q, v = apart ? 2 * apart : n_q + n_k;
        return (struct gr_qkv){gr_cols(f, 0, n_q), gr_cols(f, k, n_k),
                               gr_cols(f, v, (int64_t)hp->attn.n_head_kv[il] * hp->attn.d_v)};
    }
    gr_t q = gr_mm(b, il, GR_W_ATTN_Q, x), k = gr_mm(b, il, GR_W_ATTN_K, x);
    gr_t v = gr_mm(b, il, GR_W_ATTN_V, x);
    return (struct gr_qkv){clamp(b, q), clamp(b, k), clamp(b, v)};
}

struct gr_qkv gr_qk_norm(struct gr_build *b, int il, struct gr_qkv p)
{
    if (gr_hp(b)->attn.norm_roped) { /* rotation keeps root mean squares; weights: turn() */
        p.k = gr_rms(b, il, p.k, gr_hp(b)->attn.d_k);
        return p;
    }
    if (gr_has(b, il, GR_W_ATTN_Q_NORM))
        p.q = gr_norm(b, il, GR_W_ATTN_Q_NORM, p.q);
    if (gr_has(b, il, GR_W_ATTN_K_NORM))
        p.k = gr_norm(b, il, GR_W_ATTN_K_NORM, p.k);
    return p;
}

/* cos and sin for this kind of layer, computed once per plan. Tokens with a single position rotate
 * all their pairs by it, with M-RoPE too. */
static gr_t rope_table_of(struct gr_build *b, int il)
{
    int kind = gr_hp(b)->swa.layer[il];
    if (!gr_ten_is(&b->cs[kind])) {
        const struct gr_rope_freqs *f = &b->env->rope[kind];
        int32_t n_pos = b->plan->shape.n_pos;
        b->cs[kind] = gr_rope_table(b, gr_step_array(b, GR_STEP_POS, n_pos), f,
                                    n_pos > 1 ? b->env->section : none, f->mag.rope);
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
            .a.rope = {
                .x = x, .cs = cs, .y = y, .d_head = hp->attn.d_k, .kind = (int32_t)hp->rope.kind}});
    return y;
}

/* Rotates queries by a table, if there is one. Where norms follow the rotation, keys are cached
 * without the weights of their norm, so that they can be rotated further; the queries are
 * multiplied by the weights of both norms, if there are any. */
static gr_t turn(struct gr_build *b, int il, gr_t q, gr_t cs)
{
    if (!gr_ten_is(&cs))
        return q;
    q = rope(b, il, q, cs);
    if (!gr_hp(b)->attn.norm_roped)
        return q;
    if (!gr_has(b, il, GR_W_ATTN_Q_NORM))
        return gr_rms(b, il, q, gr_hp(b)->attn.d_k);
    gr_t w = gr_require(b, il, GR_W_ATTN_K_NORM);
    int64_t n = q.cols;
    q = gr_fold(b, gr_norm(b, il, GR_W_ATTN_Q_NORM, q), gr_hp(b)->attn.d_k);
    return gr_fold(b, gr_binary(b, GR_MUL, q, w), n);
}

/* The V cache of a layer; absent where V is part of K's rows. */
static gr_t values_of(const struct gr_build *b, int il)
{
    return gr_hp(b)->mla.v_in_k ? none : b->env->v_cache[il];
}

/* Rope table for grouped positions, of queries or of keys. */
static gr_t far_table_of(struct gr_build *b, bool key)
{
    const struct gr_rope_freqs *f = &b->env->rope[0];
    if (!gr_ten_is(&b->cs_far[key]))
        b->cs_far[key] = gr_rope_table(b, gr_step_array(b, key ? GR_STEP_FAR_K : GR_STEP_FAR_Q, 1),
                                       f, none, f->mag.rope);
    return b->cs_far[key];
}

/* Stores K, and V if there is one, in the caches given. */
static void kv_store(struct gr_build *b, int il, struct gr_qkv p, gr_t cs, gr_t k_cache,
                     gr_t v_cache)
{
    const struct gr_hparams *hp = gr_hp(b);
    gr_emit(b, il,
            &(struct gr_node){
                .op = GR_OP_KV_STORE,
                .a.kv_store = {.k = p.k,
                               .v = p.v,
                               .cs = cs,
                               .cells = gr_step_array(
                                   b, hp->swa.layer[il] ? GR_STEP_CELLS_SWA : GR_STEP_CELLS, 1),
                               .k_cache = k_cache,
                               .v_cache = gr_ten_is(&p.v) ? v_cache : none,
                               .d_head_k = hp->attn.d_k,
                               .kind = gr_ten_is(&cs) ? (int32_t)hp->rope.kind : GR_ROPE_NONE}});
}

static float attn_scale(const struct gr_build *b, int il)
{
    const struct gr_hparams *hp = gr_hp(b);
    float scale = hp->attn.scale > 0 ? hp->attn.scale : 1 / sqrtf((float)hp->attn.d_k);
    return hp->rope.kind == GR_ROPE_NONE ? scale : scale * b->env->rope[hp->swa.layer[il]].mag.attn;
}

/* Tensors that a layer attends to: caches with its own keys and values or those of another layer,
 * or without a cache the micro-batch's K and V. */
struct kept {
    gr_t k, k_far, v;
};

static struct kept keep(struct gr_build *b, int il, struct gr_qkv p, gr_t cs)
{
    const struct gr_graph_env *env = b->env;
    int32_t of = env->hp->attn.kv_of[il];
    if (gr_sees_itself(env->hp, il))
        return (struct kept){.k = gr_ten_is(&cs) ? rope(b, il, p.k, cs) : p.k, .v = p.v};
    struct kept c = {env->k_cache[of], env->k_far ? env->k_far[of] : none, values_of(b, of)};
    if (of == il)
        kv_store(b, il, p, cs, c.k, env->v_cache[il]);
    if (of == il && gr_ten_is(&c.k_far))
        kv_store(b, il, (struct gr_qkv){.k = p.k}, gr_ten_is(&cs) ? far_table_of(b, true) : none,
                 c.k_far, none);
    return c;
}

/* The sinks of a layer, on the device of its cache. */
static gr_t sinks_of(const struct gr_build *b, int il)
{
    bool host = b->env->host && !gr_sees_itself(gr_hp(b), il) && gr_cache_device(b, il) == 0;
    return host ? b->env->host[(size_t)(il + 1) * GR_N_SLOT + GR_W_ATTN_SINKS]
                : gr_weight(b, il, GR_W_ATTN_SINKS);
}

/* Relative position biases [2 * GR_REL_MAX_DISTANCE + 1, n_head]: the table's rows by distance. */
static gr_t biases_of(struct gr_build *b, int il, enum gr_slot table)
{
    bool past = !gr_sees_itself(gr_hp(b), il);
    int32_t first = past ? gr_hp(b)->enc.n_layer : 0;
    bool own = il > first && gr_has(b, il, table);
    if (!own && gr_ten_is(&b->rel))
        return b->rel;
    gr_t w = gr_require(b, own ? il : first, table);
    gr_t rows = b->env->rel_rows[past];
    if (!b->err && b->env->share)
        b->err = gr_fail(GR_E_UNSUPPORTED,
                         "architecture %s cannot be split by tensors: its heads share a table of "
                         "distances; -sm layer",
                         b->env->arch->name);
    gr_t y = gr_new(b, rows.cols, w.cols, GR_F32);
    gr_emit(b, -1,
            &(struct gr_node){.op = GR_OP_GATHER, .a.gather = {.x = w, .rows = rows, .y = y}});
    if (!own)
        b->rel = y;
    return y;
}

/* Attention over the kept keys and values, with list and spans of the layer's kind of cache. */
static gr_t attend_to(struct gr_build *b, int il, gr_t q, gr_t q_far, struct kept kept, gr_t rel)
{
    const struct gr_hparams *hp = gr_hp(b);
    const struct gr_step_shape *s = &b->plan->shape;
    bool swa = hp->swa.layer[il];
    gr_t y = gr_new(b, s->n_tok, (int64_t)hp->attn.n_head[il] * hp->attn.d_v, GR_F32);
    gr_emit(
        b, il,
        &(struct gr_node){
            .op = GR_OP_ATTN,
            .a.attn = {.q = q,
                       .q_far = q_far,
                       .k = kept.k,
                       .k_far = kept.k_far,
                       .v = kept.v,
                       .list = gr_step_array(b, swa ? GR_STEP_LIST_SWA : GR_STEP_LIST, 1),
                       .span = gr_step_array(b, swa ? GR_STEP_SPAN_SWA : GR_STEP_SPAN, s->n_tok),
                       .pos = gr_step_array(b, GR_STEP_POS, s->n_pos),
                       .key_pos = hp->attn.max_alibi > 0 || gr_ten_is(&rel)
                                      ? gr_step_array(b, GR_STEP_KEY_POS, 1)
                                      : none,
                       .sinks = sinks_of(b, il),
                       .rel = rel,
                       .y = y,
                       .n_head = hp->attn.n_head[il],
                       .n_head_kv = hp->attn.n_head_kv[il],
                       .d_k = hp->attn.d_k,
                       .d_v = hp->attn.d_v,
                       .first_head = b->env->share ? b->env->share->head[il].lo : 0,
                       .n_head_all = b->env->share ? b->env->share->whole->attn.n_head[il]
                                                   : hp->attn.n_head[il],
                       .scale = attn_scale(b, il),
                       .softcap = hp->attn.softcap,
                       .max_alibi = hp->attn.max_alibi,
                       .one_run = s->one_run}});
    gr_name(b, "attn", il, y);
    return il == hp->n_layer - 1 ? gr_out_rows(b, y) : y;
}

static gr_t attend(struct gr_build *b, int il, struct gr_qkv p, gr_t rel)
{
    const struct gr_hparams *hp = gr_hp(b);
    if (!b->err && hp->attn.n_head_kv[il] == 0)
        b->err =
            gr_fail(GR_E_CORRUPT, "layer %d has no key/value heads, which architecture %s needs",
                    il, b->env->arch->name);
    if (b->err)
        return none;
    gr_t cs = hp->rope.kind != GR_ROPE_NONE && !hp->rope.none[il] ? rope_table_of(b, il) : none;
    /* Q is rotated after the store, in one launch with it; but when the cache is on another device,
     * before it, so that Q, K and V go there at once. The results are the same. */
    bool far =
        b->env->k_far && hp->attn.kv_of[il] >= 0 && gr_ten_is(&b->env->k_far[hp->attn.kv_of[il]]);
    bool first = gr_keeps_elsewhere(b, il) && !gr_sees_itself(hp, il) && !far;
    gr_t q = first ? turn(b, il, p.q, cs) : none;
    struct kept kept = keep(b, il, p, cs);
    if (!first)
        q = turn(b, il, p.q, cs);
    gr_t q_far = none;
    if (gr_ten_is(&kept.k_far))
        q_far = gr_ten_is(&cs) ? turn(b, il, p.q, far_table_of(b, false)) : q;
    return attend_to(b, il, gr_name(b, "q", il, q), q_far, kept, rel);
}

gr_t gr_attn_cross(struct gr_build *b, int il, gr_t q)
{
    struct kept kept = {.k = b->env->k_cache[il], .v = values_of(b, il)};
    return b->err ? none : attend_to(b, il, q, none, kept, none);
}

void gr_cross_keep(struct gr_build *b, int il, gr_t k, gr_t v)
{
    kv_store(b, il, (struct gr_qkv){.k = k, .v = v}, none, b->env->k_cache[il],
             b->env->v_cache[il]);
}

/* y = sum_j weights[t, j] * x[t, j] + res. Returns y. */
gr_t gr_expert_sum(struct gr_build *b, int il, gr_t x, gr_t weights, gr_t res, gr_t y)
{
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_EXPERT_SUM,
                              .a.expert_sum = {.x = x, .weights = weights, .res = res, .y = y}});
    return y;
}

/* Multiplies row t of x by weights[t]. */
static gr_t weigh_rows(struct gr_build *b, int il, gr_t x, gr_t weights)
{
    return gr_expert_sum(b, il, x, weights, none, gr_new(b, x.rows, x.cols, GR_F32));
}

gr_t gr_gated(struct gr_build *b, int il, enum gr_act_kind kind, gr_t x, gr_t y)
{
    gr_t gate = gr_mm(b, il, GR_W_ATTN_GATE, gr_match(b, x, y));
    if (gate.cols == y.cols || b->err)
        return gr_glu(b, kind, gate, y);
    gr_t heads = gr_fold(b, y, y.cols / gate.cols);
    heads = weigh_rows(b, il, heads, gr_fold(b, gr_act(b, kind, gate), 1));
    return gr_fold(b, heads, y.cols);
}

gr_t gr_temper(struct gr_build *b, gr_t q)
{
    const struct gr_hparams *hp = gr_hp(b);
    const struct gr_step_shape *s = &b->plan->shape;
    if (hp->attn.temper.scale == 0)
        return q;
    if (!gr_ten_is(&b->temper)) {
        b->temper = gr_new(b, s->n_tok, 1, GR_F32);
        gr_emit(b, -1,
                &(struct gr_node){.op = GR_OP_TEMPER,
                                  .a.temper = {.pos = gr_step_array(b, GR_STEP_POS, s->n_pos),
                                               .y = b->temper,
                                               .scale = hp->attn.temper.scale,
                                               .first = hp->attn.temper.first,
                                               .length = hp->attn.temper.length}});
    }
    return weigh_rows(b, -1, q, b->temper);
}

/* [roped columns | norm(latent)] of each token, before the rotation. */
static gr_t latent_of(struct gr_build *b, int il, gr_t x)
{
    const struct gr_hparams *hp = gr_hp(b);
    gr_t k = gr_new(b, x.rows, hp->rope.n_rot + hp->mla.n_lora_kv, GR_F32);
    gr_t latent = gr_new(b, x.rows, hp->mla.n_lora_kv, GR_F32);
    gr_mm_rows(b, il, GR_W_ATTN_KV_A, x, 0, latent);
    gr_mm_rows(b, il, GR_W_ATTN_KV_A, x, hp->mla.n_lora_kv, gr_cols(k, 0, hp->rope.n_rot));
    gr_norm_to(b, il, GR_W_ATTN_KV_A_NORM, latent, gr_cols(k, hp->rope.n_rot, hp->mla.n_lora_kv));
    return k;
}

/* Queries of all heads. */
static gr_t latent_queries(struct gr_build *b, int il, gr_t x)
{
    if (!gr_has(b, il, GR_W_ATTN_Q_A))
        return gr_mm(b, il, GR_W_ATTN_Q, x);
    gr_t q = gr_norm(b, il, GR_W_ATTN_Q_A_NORM, gr_mm(b, il, GR_W_ATTN_Q_A, x));
    return gr_mm(b, il, GR_W_ATTN_Q_B, q);
}

static void copy_to(struct gr_build *b, gr_t x, gr_t y)
{
    if (x.cols > 0)
        gr_act_to(b, GR_LINEAR, x, 1, 0, y);
}

/* Expands Q, K and V of every head from the latent: heads are [roped columns | other columns], and
 * the roped columns are the same in all keys. */
static struct gr_qkv expand_latent(struct gr_build *b, int il, gr_t x)
{
    const struct gr_hparams *hp = gr_hp(b);
    int64_t n_rot = hp->rope.n_rot, d = hp->attn.d_k, rest = d - n_rot, d_v = hp->attn.d_v;
    gr_t latent = latent_of(b, il, x), from = latent_queries(b, il, x);
    int64_t n = hp->attn.n_head[il], rows = x.rows;
    gr_t kv = gr_fold(b, gr_mm(b, il, GR_W_ATTN_KV_B, gr_cols(latent, n_rot, hp->mla.n_lora_kv)),
                      rest + d_v);
    gr_t q = gr_new(b, rows * n, d, GR_F32), k = gr_new(b, rows * n, d, GR_F32);
    gr_t v = gr_new(b, rows * n, d_v, GR_F32);
    from = gr_fold(b, from, d);
    copy_to(b, gr_cols(from, rest, n_rot), gr_cols(q, 0, n_rot));
    copy_to(b, gr_cols(from, 0, rest), gr_cols(q, n_rot, rest));
    copy_to(b, gr_cols(latent, 0, n_rot), gr_cols(k, 0, n_rot));
    copy_to(b, gr_cols(kv, 0, rest), gr_cols(k, n_rot, rest));
    copy_to(b, gr_cols(kv, rest, d_v), v);
    return (struct gr_qkv){gr_fold(b, q, n * d), gr_fold(b, k, n * d), gr_fold(b, v, n * d_v)};
}

gr_t gr_attn(struct gr_build *b, int il, struct gr_qkv p)
{
    return attend(b, il, p, none);
}

gr_t gr_attn_near(struct gr_build *b, int il, struct gr_qkv p, enum gr_slot table)
{
    return attend(b, il, p, biases_of(b, il, table));
}

gr_t gr_attn_block(struct gr_build *b, int il, gr_t x, gr_t res)
{
    struct gr_qkv p = gr_qk_norm(b, il, gr_qkv_proj(b, il, x));
    p.q = gr_temper(b, p.q);
    gr_t y = gr_attn(b, il, p);
    if (gr_has(b, il, GR_W_ATTN_GATE))
        y = gr_gated(b, il, GR_SIGMOID, x, y);
    return gr_mm_add(b, il, GR_W_ATTN_OUT, y, res);
}

gr_t gr_mla_block(struct gr_build *b, int il, gr_t x, gr_t res)
{
    struct gr_qkv p;
    if (!gr_hp(b)->mla.v_in_k) {
        p = expand_latent(b, il, x);
        p.q = gr_temper(b, p.q);
        return gr_mm_add(b, il, GR_W_ATTN_OUT, gr_attn(b, il, p), res);
    }
    p = (struct gr_qkv){.k = latent_of(b, il, x)};
    p.q = gr_temper(b, gr_head_mm(b, il, GR_W_ATTN_K_B, latent_queries(b, il, x)));
    gr_t y = gr_head_mm(b, il, GR_W_ATTN_V_B, gr_attn(b, il, p));
    if (gr_has(b, il, GR_W_ATTN_GATE))
        y = gr_gated(b, il, GR_SIGMOID, x, y);
    return gr_mm_add(b, il, GR_W_ATTN_OUT, y, res);
}

/* beta tanh(a / beta) sigmoid(a) * linear_beta tanh(c / linear_beta) */
static gr_t situ(struct gr_build *b, gr_t a, gr_t c)
{
    float beta = gr_hp(b)->ff.situ_beta, linear = gr_hp(b)->ff.situ_linear_beta;
    gr_t gate = gr_glu(b, GR_SIGMOID, a, gr_act_ab(b, GR_SOFTCAP, a, beta, 0));
    return gr_binary(b, GR_MUL, gate, linear > 0 ? gr_act_ab(b, GR_SOFTCAP, c, linear, 0) : c);
}

/* gr_glu with limits on the factors: an upper one for act(a), or for a, and on both sides for c; or
 * SITU. */
static gr_t limited_glu(struct gr_build *b, enum gr_act_kind kind, float limit, gr_t a, gr_t c)
{
    if (gr_hp(b)->ff.situ_beta > 0)
        return situ(b, a, c);
    if (limit <= 0)
        return gr_glu(b, kind, a, c);
    c = gr_act_ab(b, GR_CLAMP, c, -limit, limit);
    if (gr_hp(b)->ff.glu_limit_first)
        return gr_glu(b, kind, gr_act_ab(b, GR_CLAMP, a, -FLT_MAX, limit), c);
    a = gr_act_ab(b, GR_CLAMP, gr_act(b, kind, a), -FLT_MAX, limit);
    return gr_binary(b, GR_MUL, a, c);
}

/* act(gate(x)) * up(x); an `up` with both matrices has twice the columns that `down` takes. */
static gr_t glu_of(struct gr_build *b, int il, gr_t x, enum gr_slot gate, enum gr_slot up,
                   enum gr_slot down, enum gr_act_kind kind)
{
    float limit = gr_hp(b)->ff.glu_limit[il];
    gr_t y = gr_mm(b, il, up, x);
    int64_t n = gr_require(b, il, down).cols;
    if (y.cols == n)
        return limited_glu(b, kind, limit, gr_mm(b, il, gate, x), y);
    return limited_glu(b, kind, limit, gr_cols(y, 0, n), gr_cols(y, n, n));
}

gr_t gr_ffn_glu(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind)
{
    gr_t h = glu_of(b, il, x, GR_W_FFN_GATE, GR_W_FFN_UP, GR_W_FFN_DOWN, kind);
    return gr_mm_add(b, il, GR_W_FFN_DOWN, h, res);
}

gr_t gr_ffn_mlp(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind)
{
    gr_t h = gr_act(b, kind, gr_mm(b, il, GR_W_FFN_UP, x));
    if (gr_has(b, il, GR_W_FFN_ACT))
        h = gr_binary(b, GR_DIV, h, gr_weight(b, il, GR_W_FFN_ACT));
    return gr_mm_add(b, il, GR_W_FFN_DOWN, h, res);
}

gr_t gr_ffn_any(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind kind)
{
    bool both = gr_require(b, il, GR_W_FFN_UP).rows != gr_require(b, il, GR_W_FFN_DOWN).cols;
    return both || gr_has(b, il, GR_W_FFN_GATE) ? gr_ffn_glu(b, il, x, res, kind)
                                                : gr_ffn_mlp(b, il, x, res, kind);
}

/* The chosen experts and their weights. */
struct choice {
    gr_t ids, weights; /* [n_tok, n_used] */
};

/* act(gate(x)) * up(x) of the chosen experts, from two matrices per expert or one fused; act(up(x))
 * without a gate. */
static gr_t experts_glu(struct gr_build *b, int il, gr_t x, const struct choice *c,
                        enum gr_act_kind act)
{
    gr_t gate, up;
    if (gr_has(b, il, GR_W_FFN_GATE_UP_EXPS)) {
        gr_t both = gr_matmul_id(b, il, GR_W_FFN_GATE_UP_EXPS, x, c->ids);
        int64_t n = both.cols / 2;
        gate = gr_cols(both, 0, n), up = gr_cols(both, n, n);
    } else {
        up = gr_matmul_id(b, il, GR_W_FFN_UP_EXPS, x, c->ids);
        if (!gr_has(b, il, GR_W_FFN_GATE_EXPS))
            return gr_act(b, act, up);
        gate = gr_matmul_id(b, il, GR_W_FFN_GATE_EXPS, x, c->ids);
    }
    if (gr_hp(b)->moe.weighs_input) /* weighs gate here; the sum weighs up */
        gate = weigh_rows(b, il, gate, gr_fold(b, c->weights, 1));
    return limited_glu(b, act, gr_hp(b)->ff.glu_limit_exp[il], gate, up);
}

/* The input of the shared experts' down matrix; without gates act(up(x)). */
static gr_t shared_columns(struct gr_build *b, int il, gr_t x, enum gr_act_kind act)
{
    const enum gr_slot gate = GR_W_FFN_GATE_SHEXP, up = GR_W_FFN_UP_SHEXP;
    int64_t n = gr_require(b, il, GR_W_FFN_DOWN_SHEXP).cols;
    if (!gr_has(b, il, gate) && gr_require(b, il, up).rows == n)
        return gr_act(b, act, gr_mm(b, il, up, x));
    return glu_of(b, il, x, gate, up, GR_W_FFN_DOWN_SHEXP, act);
}

/* The shared expert's result, times its gate if bound, + res; in a shard the partial sum. */
static gr_t shared_expert(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind act)
{
    gr_t h = shared_columns(b, il, x, act);
    if (!gr_has(b, il, GR_W_FFN_GATE_INP_SHEXP))
        return gr_is_sharded(b, il, GR_W_FFN_DOWN_SHEXP)
                   ? gr_mm_partial(b, il, GR_W_FFN_DOWN_SHEXP, h)
                   : gr_mm_add(b, il, GR_W_FFN_DOWN_SHEXP, h, res);
    gr_t part = gr_act(b, GR_SIGMOID, gr_mm(b, il, GR_W_FFN_GATE_INP_SHEXP, x));
    gr_t y = gr_new(b, x.rows, x.cols, GR_F32);
    return gr_expert_sum(b, il, gr_mm_partial(b, il, GR_W_FFN_DOWN_SHEXP, h), part, res, y);
}

gr_t gr_router(struct gr_build *b, int il, gr_t x)
{
    return gr_name(b, "router", il, gr_mm(b, il, GR_W_FFN_GATE_INP, x));
}

/* Chooses experts by their logits. Recorded directly after the router where possible: one GPU
 * launch does both. */
static struct choice choose(struct gr_build *b, int il, gr_t logits, int64_t n_used,
                            const struct gr_args_route *args)
{
    struct choice c = {.ids = gr_new(b, logits.rows, n_used, GR_I32),
                       .weights = gr_new(b, logits.rows, n_used, GR_F32)};
    struct gr_node node = {.op = GR_OP_ROUTE, .a.route = *args};
    node.a.route.logits = logits;
    node.a.route.ids = c.ids, node.a.route.weights = c.weights;
    gr_emit(b, il, &node);
    return c;
}

/* Weighted sum of the chosen experts' results for `in`, + res, into y; a shard's is partial. */
static gr_t routed(struct gr_build *b, int il, const struct choice *c, gr_t in, gr_t res,
                   enum gr_act_kind act, gr_t y)
{
    gr_t h = experts_glu(b, il, in, c, act);
    h = gr_matmul_id(b, il, GR_W_FFN_DOWN_EXPS, h, c->ids);
    return gr_expert_sum(b, il, h, c->weights, res, y);
}

/* gr_moe_routed into y; in a shard the partial sum. */
static gr_t experts(struct gr_build *b, int il, const struct choice *c, gr_t x, gr_t res,
                    enum gr_act_kind act, gr_t y)
{
    if (gr_has(b, il, GR_W_FFN_DOWN_SHEXP))
        res = shared_expert(b, il, x, res, act);
    return routed(b, il, c, x, res, act, y);
}

/* Experts that work on fewer columns (latent), and shared experts that see all columns. */
static gr_t latent_experts(struct gr_build *b, int il, const struct choice *c, gr_t x, gr_t res,
                           enum gr_act_kind act)
{
    bool other = gr_has(b, il, GR_W_FFN_ROUTED_UP); /* files have one of two names for them */
    gr_t in = gr_mm(b, il, other ? GR_W_FFN_ROUTED_DOWN : GR_W_FFN_LATENT_DOWN, x), y;
    if (gr_is_sharded(b, il, GR_W_FFN_DOWN_EXPS))
        y = gr_join(b, il, routed(b, il, c, in, none, act, gr_partial(b, in.rows, in.cols)), none);
    else
        y = routed(b, il, c, in, none, act, gr_new(b, in.rows, in.cols, GR_F32));
    if (gr_has(b, il, GR_W_FFN_ROUTED_NORM))
        y = gr_norm(b, il, GR_W_FFN_ROUTED_NORM, y);
    y = gr_mm_add(b, il, other ? GR_W_FFN_ROUTED_UP : GR_W_FFN_LATENT_UP, y, res);
    if (!gr_has(b, il, GR_W_FFN_DOWN_SHEXP))
        return y;
    return gr_mm_add(b, il, GR_W_FFN_DOWN_SHEXP, shared_columns(b, il, x, act), y);
}

gr_t gr_moe_routed(struct gr_build *b, int il, gr_t logits, gr_t x, gr_t res, enum gr_act_kind act)
{
    const struct gr_hparams *hp = gr_hp(b);
    struct choice c = choose(
        b, il, logits, hp->moe.n_expert_used,
        &(struct gr_args_route){.bias = gr_weight(b, il, GR_W_FFN_EXP_BIAS),
                                .gate = (int32_t)hp->moe.gate,
                                .normalise = hp->moe.weights_norm,
                                .scale = hp->moe.weights_scale != 0 ? hp->moe.weights_scale : 1,
                                .n_group = hp->moe.n_expert_group,
                                .n_group_used = hp->moe.n_expert_group_used});
    if (gr_has(b, il, GR_W_FFN_ROUTED_UP) || gr_has(b, il, GR_W_FFN_LATENT_UP))
        return latent_experts(b, il, &c, x, res, act);
    if (!gr_is_sharded(b, il, GR_W_FFN_DOWN_EXPS))
        return experts(b, il, &c, x, res, act, gr_new(b, x.rows, x.cols, GR_F32));
    gr_t part = experts(b, il, &c, x, none, act, gr_partial(b, x.rows, x.cols));
    return gr_join(b, il, part, res);
}

gr_t gr_moe(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind act)
{
    return gr_moe_routed(b, il, gr_router(b, il, x), x, res, act);
}

gr_t gr_adjugates(struct gr_build *b, int il, gr_t logits, gr_t x, gr_t res)
{
    const struct gr_hparams *hp = gr_hp(b);
    int32_t n = hp->moe.n_expert / hp->moe.n_adjugate;
    struct choice c = choose(b, il, logits, n < hp->moe.n_expert_used ? n : hp->moe.n_expert_used,
                             &(struct gr_args_route){.gate = GR_GATE_SOFTMAX,
                                                     .normalise = true,
                                                     .scale = hp->moe.adjugate_scale,
                                                     .n_group = 1,
                                                     .n_group_used = 1,
                                                     .per = hp->moe.n_adjugate});
    gr_t gate = gr_matmul_id(b, il, GR_W_FFN_GATE_ADJ, x, c.ids);
    gr_t h = gr_glu(b, GR_SILU, gate, gr_matmul_id(b, il, GR_W_FFN_UP_ADJ, x, c.ids));
    h = gr_matmul_id(b, il, GR_W_FFN_DOWN_ADJ, h, c.ids);
    return gr_expert_sum(b, il, h, c.weights, gr_add_t(b, x, res),
                         gr_new(b, x.rows, x.cols, GR_F32));
}

gr_t gr_ffn(struct gr_build *b, int il, gr_t x, gr_t res, enum gr_act_kind act)
{
    return gr_has(b, il, GR_W_FFN_GATE_INP) ? gr_moe(b, il, x, res, act)
                                            : gr_ffn_glu(b, il, x, res, act);
}

gr_t gr_pre_norm_layer(struct gr_build *b, int il, gr_t x)
{
    x = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), x);
    return gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), x, gr_hp(b)->ff.act);
}

gr_t gr_sandwich_rest(struct gr_build *b, int il, gr_t h, gr_t x)
{
    x = gr_norm_add(b, il, GR_W_ATTN_POST_NORM, h, x);
    h = gr_ffn(b, il, gr_norm(b, il, GR_W_FFN_NORM, x), none, gr_hp(b)->ff.act);
    return gr_norm_add(b, il, GR_W_FFN_POST_NORM, h, x);
}

gr_t gr_sandwich_layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_attn_block(b, il, gr_norm(b, il, GR_W_ATTN_NORM, x), none);
    return gr_sandwich_rest(b, il, h, x);
}

gr_t gr_parallel_layer(struct gr_build *b, int il, gr_t x)
{
    gr_t h = gr_norm(b, il, GR_W_ATTN_NORM, x);
    return gr_ffn(b, il, h, gr_attn_block(b, il, h, x), gr_hp(b)->ff.act);
}
