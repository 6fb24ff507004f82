/* Whole plans: token embeddings, the family's layers, the output head; and the K-shift. */
#include "graph/graph.h"

#include "base/checked.h"
#include "gr/status.h"
#include "graph/build_impl.h"

/* scale times rows of the token table, with learned positions where there are any. */
static gr_t embed_tokens(struct gr_build *b, float scale)
{
    gr_t table = gr_require(b, -1, GR_W_TOKEN_EMBD);
    gr_t y = gr_new(b, b->plan->shape.n_tok, table.cols, GR_F32);
    gr_emit(
        b, -1,
        &(struct gr_node){.op = GR_OP_EMBED,
                          .a.embed = {.tokens = gr_step_array(b, GR_STEP_TOKENS, 1),
                                      .table = table,
                                      .pos = gr_step_array(b, GR_STEP_POS, b->plan->shape.n_pos),
                                      .pos_table = gr_weight(b, -1, GR_W_POS_EMBD),
                                      .y = y,
                                      .scale = scale}});
    return y;
}

/* The step's vectors in place of token embeddings. Learned positions are added by an EMBED of
 * tokens with scale 0. */
static gr_t embed_vectors(struct gr_build *b)
{
    gr_t x = gr_step_array(b, GR_STEP_EMBD, b->plan->shape.n_tok);
    x.dtype = GR_F32;
    x = gr_act_ab(b, GR_LINEAR, x, gr_hp(b)->embd.scales_tokens ? 1 : gr_hp(b)->embd.scale, 0);
    return gr_has(b, -1, GR_W_POS_EMBD) ? gr_binary(b, GR_ADD, embed_tokens(b, 0), x) : x;
}

/* The input of the first layer, normed where the model has such a norm. */
static gr_t embed(struct gr_build *b)
{
    float scale = gr_hp(b)->embd.scale;
    gr_t y;
    b->at = -1;
    if (b->plan->shape.n_embd)
        y = embed_vectors(b);
    else
        y = gr_lora_apply_rows(b, GR_W_TOKEN_EMBD, gr_step_array(b, GR_STEP_TOKENS, 1), scale,
                               embed_tokens(b, scale));
    if (gr_has(b, -1, GR_W_TOKEN_TYPES)) { /* all tokens are of the first type */
        gr_t type = gr_weight(b, -1, GR_W_TOKEN_TYPES);
        type.rows = 1;
        y = gr_binary(b, GR_ADD, y, type);
    }
    if (gr_has(b, -1, GR_W_TOKEN_EMBD_NORM))
        y = gr_norm(b, -1, GR_W_TOKEN_EMBD_NORM, y);
    if (gr_hp(b)->embd.norm)
        y = gr_norm_plain(b, -1, y);
    b->at = 0;
    return gr_name(b, "embd", -1, y);
}

/* Gathers the logits of all shards, each of which has a part of the vocabulary, side by side. */
static gr_t gather_logits(struct gr_build *b, gr_t x)
{
    const struct gr_share *s = b->env->share;
    int64_t n = s->whole->n_vocab, rows = x.rows;
    gr_t parts = gr_exchange(b, -1, x), y;
    if (rows == 1) {
        parts.rows = 1, parts.cols = n, parts.row_bytes = n * 4;
        return parts;
    }
    y = gr_new(b, rows, n, GR_F32);
    for (int64_t i = 0, at = 0; i < s->n_shard; i++, at += x.cols) {
        gr_t part = gr_cols(parts, 0, GR_MIN(x.cols, n - at));
        part.rows = rows, part.offset += i * rows * parts.row_bytes;
        gr_act_to(b, GR_LINEAR, part, 1, 0, gr_cols(y, at, part.cols));
    }
    return y;
}

static gr_t logits(struct gr_build *b, gr_t x)
{
    const struct gr_share *s = b->env->share;
    if (!s)
        return gr_mm(b, -1, GR_W_OUTPUT, x);
    int64_t most = (s->whole->n_vocab + s->n_shard - 1) / s->n_shard;
    gr_t y = gr_partial(b, x.rows, most);
    gr_mm_to(b, -1, GR_W_OUTPUT, x, y);
    return gather_logits(b, y);
}

/* The wanted rows after the last layer, normed. Families whose norms have no weights have no tensor
 * for it; a model without logits may have no such norm at all. */
static gr_t last_norm(struct gr_build *b, gr_t x)
{
    enum gr_slot norm = gr_has(b, -1, GR_W_OUTPUT_NORM_2)     ? GR_W_OUTPUT_NORM_2
                        : gr_has(b, -1, GR_W_DEC_OUTPUT_NORM) ? GR_W_DEC_OUTPUT_NORM
                        : gr_has(b, -1, GR_W_ENC_OUTPUT_NORM) ? GR_W_ENC_OUTPUT_NORM
                                                              : GR_W_OUTPUT_NORM;
    x = gr_out_rows(b, x);
    if (gr_has(b, -1, GR_W_OUTPUT_RES_SCORE))
        x = gr_recall(b, -1, GR_W_OUTPUT_RES_SCORE, x);
    if (gr_has(b, -1, norm))
        x = gr_norm(b, -1, norm, x);
    else if (!b->env->arch->no_logits)
        x = gr_norm_plain(b, -1, x);
    return gr_name(b, "output_norm", -1, x);
}

/* The mean of the rows of each sequence. */
static gr_t pool(struct gr_build *b, gr_t x)
{
    const struct gr_step_shape *s = &b->plan->shape;
    if (!s->n_pool)
        return x;
    gr_t y = gr_new(b, s->n_pool, x.cols, GR_F32);
    gr_emit(b, -1,
            &(struct gr_node){.op = GR_OP_POOL,
                              .a.pool = {.x = x,
                                         .list = gr_step_array(b, GR_STEP_POOL_LIST, 1),
                                         .at = gr_step_array(b, GR_STEP_POOL_AT, 1),
                                         .y = y}});
    return y;
}

/* Scores: norm(act(x W^T)) V^T; files have one of the matrices or both. */
static gr_t classify(struct gr_build *b, gr_t x)
{
    if (gr_has(b, -1, GR_W_CLS))
        x = gr_act(b, gr_hp(b)->cls.act, gr_mm(b, -1, GR_W_CLS, x));
    if (gr_has(b, -1, GR_W_CLS_NORM))
        x = gr_norm(b, -1, GR_W_CLS_NORM, x);
    return gr_has(b, -1, GR_W_CLS_OUT) ? gr_mm(b, -1, GR_W_CLS_OUT, x) : x;
}

static gr_t vectors(struct gr_build *b, gr_t x)
{
    x = pool(b, last_norm(b, x));
    if (b->env->classify)
        return gr_name(b, "scores", -1, classify(b, x));
    if (gr_has(b, -1, GR_W_DENSE_2))
        x = gr_mm(b, -1, GR_W_DENSE_2, x);
    if (gr_has(b, -1, GR_W_DENSE_3))
        x = gr_mm(b, -1, GR_W_DENSE_3, x);
    return gr_name(b, "vectors", -1, x);
}

/* Logits of the wanted rows. */
static gr_t head(struct gr_build *b, gr_t x)
{
    x = logits(b, last_norm(b, x));
    if (gr_hp(b)->logits.scale != 0)
        x = gr_act_ab(b, GR_LINEAR, x, 1 / gr_hp(b)->logits.scale, 0);
    if (gr_hp(b)->logits.softcap > 0)
        x = gr_act_ab(b, GR_SOFTCAP, x, gr_hp(b)->logits.softcap, 0);
    return gr_name(b, "logits", -1, x);
}

/* An array of the step block, or an absent tensor where it has no rows. */
static gr_t optional(struct gr_build *b, enum gr_step_array a, int32_t rows)
{
    return rows ? gr_step_array(b, a, rows) : (gr_t){0};
}

/* Draws a token from each row of logits, with the parameters in the step block. */
static gr_t draw(struct gr_build *b, gr_t logits)
{
    const struct gr_step_shape *s = &b->plan->shape;
    gr_t ids = gr_new(b, 1, logits.rows, GR_I32);
    gr_emit(b, -1,
            &(struct gr_node){.op = GR_OP_SAMPLE,
                              .a.sample = {.logits = logits,
                                           .rows = gr_step_array(b, GR_STEP_SAMPLE, logits.rows),
                                           .edits = optional(b, GR_STEP_EDITS, s->n_edit),
                                           .masks = optional(b, GR_STEP_MASKS, s->n_mask),
                                           .ids = ids}});
    return ids;
}

static void begin(struct gr_plan *p, const struct gr_graph_env *env,
                  const struct gr_step_shape *shape)
{
    gr_plan_init(p, shape);
    p->offload_items = env->offload_items;
    if (env->stage)
        p->stage = env->own_stage, p->n_stage = env->n_stage;
}

static int finish(struct gr_build *b)
{
    if (!b->err)
        b->err = gr_plan_finish(b->plan);
    if (b->err)
        gr_plan_fini(b->plan);
    return b->err;
}

/* The result of the layer being recorded, with its control vector where there is one. */
static gr_t layer(struct gr_build *b, gr_t x)
{
    x = b->env->arch->layer(b, b->at, x);
    if (!b->err && gr_has(b, b->at, GR_W_DIRECTION))
        x = gr_add_t(b, x, gr_weight(b, b->at, GR_W_DIRECTION));
    return gr_name(b, "layer", b->at, x);
}

int gr_graph_build(struct gr_plan *p, const struct gr_graph_env *env,
                   const struct gr_step_shape *shape)
{
    struct gr_build b = {.plan = p, .env = env};
    begin(p, env, shape);
    gr_t x = embed(&b);
    for (b.at = env->hp->enc.n_layer; b.at < env->hp->n_layer && !b.err; b.at++)
        x = layer(&b, x);
    if (shape->n_out > 0)
        p->result = env->vectors ? vectors(&b, x) : head(&b, x);
    if (shape->n_sample > 0)
        p->result = draw(&b, p->result);
    return finish(&b);
}

int gr_graph_build_encode(struct gr_plan *p, const struct gr_graph_env *env,
                          const struct gr_step_shape *shape)
{
    struct gr_build b = {.plan = p, .env = env};
    begin(p, env, shape);
    gr_t x = embed(&b);
    for (; b.at < env->hp->enc.n_layer && !b.err; b.at++)
        x = gr_name(&b, "layer", b.at, env->arch->layer(&b, b.at, x));
    for (; b.at < env->hp->n_layer && !b.err; b.at++)
        if (gr_is_cross(env->hp, b.at))
            env->arch->encoded(&b, b.at, x);
    return finish(&b);
}

/* Records the K-shift of a layer's cache by the deltas in a step array. A shift is a pure rotation:
 * magnitude 1 whatever the scaling, and the same distance for every pair. */
static void shift_layer(struct gr_build *b, int il, gr_t cache, enum gr_step_array deltas, gr_t *cs)
{
    const struct gr_hparams *hp = gr_hp(b);
    gr_t delta = gr_step_array(b, deltas, 1);
    if (!delta.cols)
        return;
    if (!gr_ten_is(cs))
        *cs = gr_rope_table(b, delta, &b->env->rope[hp->swa.layer[il]], (gr_t){0}, 1);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_KV_SHIFT,
                              .a.kv_shift = {.cs = *cs,
                                             .delta = delta,
                                             .k_cache = cache,
                                             .d_head = hp->attn.d_k,
                                             .kind = (int32_t)hp->rope.kind}});
}

/* Returns whether layer il has caches of its own. */
static bool owns_cache(const struct gr_graph_env *env, int il)
{
    return gr_ten_is(&env->k_cache[il]) && env->hp->attn.kv_of[il] == il;
}

int gr_graph_build_shift(struct gr_plan *p, const struct gr_graph_env *env,
                         const struct gr_step_shape *shape)
{
    const struct gr_hparams *hp = env->hp;
    struct gr_build b = {.plan = p, .env = env};
    gr_t far = {0};
    begin(p, env, shape);
    for (int il = 0; il < hp->n_layer && hp->rope.kind != GR_ROPE_NONE; il++) {
        if (!owns_cache(env, il) || hp->rope.none[il])
            continue;
        shift_layer(&b, il, env->k_cache[il], hp->swa.layer[il] ? GR_STEP_DELTA_SWA : GR_STEP_DELTA,
                    &b.cs[hp->swa.layer[il]]);
        if (env->k_far && gr_ten_is(&env->k_far[il]))
            shift_layer(&b, il, env->k_far[il], GR_STEP_DELTA_FAR, &far);
    }
    return finish(&b);
}

int gr_graph_build_copy(struct gr_plan *p, const struct gr_graph_env *env,
                        const struct gr_step_shape *shape, bool swa)
{
    struct gr_build b = {.plan = p, .env = env};
    begin(p, env, shape);
    gr_t src = gr_step_array(&b, GR_STEP_COPY_SRC, 1), dst = gr_step_array(&b, GR_STEP_COPY_DST, 1);
    for (int il = 0; il < env->hp->n_layer; il++) {
        const gr_t *cache[] = {&env->k_cache[il], &env->v_cache[il], &env->k_far[il]};
        for (int i = 0; i < 3 && owns_cache(env, il) && env->hp->swa.layer[il] == swa; i++)
            if (gr_ten_is(cache[i]))
                gr_emit(
                    &b, il,
                    &(struct gr_node){.op = GR_OP_KV_COPY,
                                      .a.kv_copy = {.src = src, .dst = dst, .cache = *cache[i]}});
    }
    return finish(&b);
}
