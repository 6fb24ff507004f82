/* The recording side of graph/build.h: single operations. blocks.c composes them. */
#include "graph/build_impl.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "gr/pack.h"
#include "gr/status.h"

static const gr_t none;

const struct gr_hparams *gr_hp(const struct gr_build *b)
{
    return b->env->hp;
}

gr_t gr_weight(const struct gr_build *b, int il, enum gr_slot slot)
{
    return b->env->weight[(size_t)(il + 1) * GR_N_SLOT + slot];
}

gr_t gr_bias(const struct gr_build *b, int il, enum gr_slot slot)
{
    return b->env->bias[(size_t)(il + 1) * GR_N_SLOT + slot];
}

/* The factor of products with a slot's matrix. */
static float scale_of(const struct gr_build *b, int il, enum gr_slot slot)
{
    return b->env->scale[(size_t)(il + 1) * GR_N_SLOT + slot];
}

bool gr_has(const struct gr_build *b, int il, enum gr_slot slot)
{
    gr_t w = gr_weight(b, il, slot);
    return gr_ten_is(&w);
}

gr_t gr_require(struct gr_build *b, int il, enum gr_slot slot)
{
    char name[96];
    if (!b->err && !gr_has(b, il, slot))
        b->err = gr_fail(GR_E_CORRUPT, "tensor %s is missing: architecture %s needs it",
                         gr_slot_name(slot, il, false, name, sizeof name), b->env->arch->name);
    return gr_weight(b, il, slot);
}

bool gr_is_sharded(const struct gr_build *b, int il, enum gr_slot slot)
{
    const struct gr_arch *arch = b->env->arch;
    const struct gr_share *share = b->env->share;
    for (int i = 0; share && i < arch->n_spec; i++)
        if (arch->spec[i].slot == slot &&
            (il < 0 || gr_spec_applies(share->whole, &arch->spec[i], il)))
            return gr_dim_value(share->whole, arch->spec[i].dim[0], il) !=
                   gr_dim_value(gr_hp(b), arch->spec[i].dim[0], il);
    return false;
}

gr_t gr_new(struct gr_build *b, int64_t rows, int64_t cols, uint32_t dtype)
{
    if (b->err)
        return none;
    gr_t t = gr_plan_value(b->plan, rows, cols, dtype);
    if (!gr_ten_is(&t))
        b->err = GR_E_NOMEM_HOST;
    return t;
}

int32_t gr_cache_device(const struct gr_build *b, int il)
{
    return b->env->cache_device ? b->env->cache_device[il] : 0;
}

/* Returns whether a node runs on the device (and stage) of the cache instead of its layer's. */
static bool runs_with_cache(const struct gr_build *b, int il, enum gr_op op)
{
    return op == GR_OP_KV_STORE || op == GR_OP_KV_SHIFT || op == GR_OP_KV_COPY ||
           (op == GR_OP_ATTN && !gr_sees_itself(gr_hp(b), il));
}

/* The device of a node. An EXCHANGE runs on the CPU unless there is a transport between devices. */
static int32_t device_of(const struct gr_build *b, int il, enum gr_op op)
{
    if (runs_with_cache(b, il, op))
        return gr_cache_device(b, il);
    if (op == GR_OP_EXCHANGE && !b->env->transport)
        return 0;
    return b->at < 0 ? b->env->embd_device : b->env->device ? b->env->device[b->at] : 0;
}

bool gr_keeps_elsewhere(const struct gr_build *b, int il)
{
    return device_of(b, il, GR_OP_KV_STORE) != device_of(b, il, GR_OP_ROPE);
}

static int32_t stage_of(const struct gr_build *b, int il, enum gr_op op)
{
    if (!b->env->stage)
        return 0;
    return b->env->stage[runs_with_cache(b, il, op) ? gr_hp(b)->attn.kv_of[il] : GR_MAX(b->at, 0)];
}

/* ---- weights apart from their layer ---- */

static int refuse_apart(const struct gr_node *n, int il)
{
    return gr_fail(GR_E_UNSUPPORTED,
                   "%s, layer %d, has weights on two devices: patterns that place some of the "
                   "layer's weights apart have to place these together",
                   gr_op_info(n->op)->name, il);
}

/* The device of the most columns that a node without weights reads; `usual` unless another has
 * more. */
static int32_t device_of_inputs(const struct gr_build *b, struct gr_node *n, int32_t usual)
{
    int64_t columns[GR_MAX_DEVICE] = {0};
    int32_t most = usual;
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role; o++) {
        const struct gr_ten *t = gr_node_ten(n, o);
        const struct gr_value *v = gr_plan_find(b->plan, t);
        if (v && v->writer >= 0 && o->role == GR_ROLE_IN)
            columns[v->writer] += t->rows * t->cols;
    }
    for (int32_t d = 0; d < GR_MAX_DEVICE; d++)
        most = columns[d] > columns[most] ? d : most;
    return most;
}

/* The device of a node where weights may be apart from their layer: that of its weights; without
 * any that of its inputs. Caches and states stay with their layer. */
static int32_t device_apart(struct gr_build *b, int il, struct gr_node *n)
{
    int32_t usual = device_of(b, il, n->op), home = -1;
    bool with_layer = false;
    if (runs_with_cache(b, il, n->op) || n->op == GR_OP_EXCHANGE || gr_plan_repeats(n))
        return usual;
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role && !b->err; o++) {
        const struct gr_ten *t = gr_node_ten(n, o);
        if (!gr_ten_is(t) || t->value)
            continue;
        int32_t at = t->home ? t->home - 1 : usual;
        with_layer |= !t->home;
        if ((home >= 0 && home != at) || (with_layer && at != usual))
            b->err = refuse_apart(n, il);
        home = at;
    }
    return home >= 0 ? home : device_of_inputs(b, n, usual);
}

/* Copies columns to where they belong, in a value of another device. */
static void copy_home(struct gr_build *b, const struct gr_node *from, gr_t x, gr_t y)
{
    struct gr_node n = {.op = GR_OP_ACT,
                        .layer = from->layer,
                        .device = gr_plan_find(b->plan, &y)->writer,
                        .stage = from->stage,
                        .a.act = {.x = x, .y = y, .a = 1, .kind = GR_LINEAR}};
    if (!b->err)
        b->err = gr_plan_add(b->plan, &n);
}

/* Appends a node; a value that another device has begun to write gets its part by a copy. */
static void append_apart(struct gr_build *b, struct gr_node *n)
{
    gr_t to[4], from[4];
    bool repeats = gr_plan_repeats(n);
    int k = 0;
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role && !b->err; o++) {
        gr_t *t = gr_node_ten(n, o);
        struct gr_value *v = gr_plan_find(b->plan, t);
        if (o->role != GR_ROLE_OUT || !v || repeats)
            continue;
        if (v->writer >= 0 && v->writer != n->device) {
            to[k] = *t;
            from[k++] = *t = gr_new(b, t->rows, t->cols, t->dtype);
            v = gr_plan_find(b->plan, t);
        }
        if (v)
            v->writer = n->device;
    }
    if (!b->err)
        b->err = gr_plan_add(b->plan, n);
    for (int i = 0; i < k; i++)
        copy_home(b, n, from[i], to[i]);
}

void gr_emit(struct gr_build *b, int il, const struct gr_node *node)
{
    struct gr_node n = *node;
    n.layer = il;
    n.by_row = b->env->deterministic;
    n.device = b->err ? 0 : !b->env->apart ? device_of(b, il, n.op) : device_apart(b, il, &n);
    n.stage = b->err ? 0 : stage_of(b, il, n.op);
    if (!b->err && b->env->apart)
        append_apart(b, &n);
    else if (!b->err)
        b->err = gr_plan_add(b->plan, &n);
}

gr_t gr_step_array(const struct gr_build *b, enum gr_step_array a, int64_t rows)
{
    int64_t cols = b->plan->layout.count[a] / (rows ? rows : 1);
    return (gr_t){.batch = 1,
                  .rows = rows,
                  .cols = cols,
                  .row_bytes = cols * 4,
                  .offset = b->plan->layout.offset[a],
                  .value = GR_VALUE_STEP,
                  .dtype = GR_I32};
}

gr_t gr_name(struct gr_build *b, const char *name, int il, gr_t t)
{
    if (!b->err)
        b->err = gr_plan_tap(b->plan, name, il, &t);
    return t;
}

gr_t gr_cols(gr_t x, int64_t first, int64_t n)
{
    x.offset += first * 4;
    x.cols = n;
    return x;
}

gr_t gr_fold(struct gr_build *b, gr_t x, int64_t cols)
{
    if (!b->err && (x.row_bytes != x.cols * 4 || x.rows * x.cols % cols))
        b->err = gr_fail(GR_E_INTERNAL, "rows of %lld do not fold to %lld", (long long)x.cols,
                         (long long)cols);
    if (b->err)
        return none;
    x.rows = x.rows * x.cols / cols;
    x.cols = cols, x.row_bytes = cols * 4;
    return x;
}

gr_t gr_out_rows(struct gr_build *b, gr_t x)
{
    const struct gr_step_shape *s = &b->plan->shape;
    if (s->n_out == 0 || s->n_out == s->n_tok || x.rows != s->n_tok)
        return x;
    gr_t y = gr_new(b, s->n_out, x.cols, GR_F32);
    gr_emit(b, -1,
            &(struct gr_node){
                .op = GR_OP_GATHER,
                .a.gather = {.x = x, .rows = gr_step_array(b, GR_STEP_OUT_ROWS, 1), .y = y}});
    return y;
}

/* Reduces x and res to the same rows: after the last gr_attn only the wanted rows remain. */
static void match_rows(struct gr_build *b, gr_t *x, gr_t *res)
{
    if (!gr_ten_is(res) || x->rows == res->rows)
        return;
    *x = gr_out_rows(b, *x);
    *res = gr_out_rows(b, *res);
}

gr_t gr_match(struct gr_build *b, gr_t x, gr_t y)
{
    return x.rows == y.rows ? x : gr_out_rows(b, x);
}

static float eps_of(const struct gr_build *b, enum gr_slot slot)
{
    const struct gr_hparams *hp = gr_hp(b);
    bool post = slot == GR_W_ATTN_POST_NORM || slot == GR_W_FFN_POST_NORM;
    return post && hp->norm.eps_post > 0 ? hp->norm.eps_post : hp->norm.eps;
}

static void norm_node(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res, gr_t y)
{
    gr_t w = gr_require(b, il, slot);
    char name[96];
    bool wide = !b->err && x.cols % w.cols != 0;
    if (!b->err && (gr_is_sharded(b, il, slot) || (wide && b->env->share)))
        b->err = gr_fail(GR_E_UNSUPPORTED,
                         "architecture %s cannot be split by tensors: %s is a norm over what "
                         "several shards have; -sm layer",
                         b->env->arch->name, gr_slot_name(slot, il, false, name, sizeof name));
    if (!b->err && wide)
        b->err = gr_fail(GR_E_CORRUPT, "tensor %s: a length that divides %lld expected, %lld found",
                         gr_slot_name(slot, il, false, name, sizeof name), (long long)x.cols,
                         (long long)w.cols);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_NORM,
                              .a.norm = {.x = x,
                                         .w = w,
                                         .b = gr_bias(b, il, slot),
                                         .res = res,
                                         .y = y,
                                         .group = w.cols,
                                         .eps = eps_of(b, slot),
                                         .kind = (int32_t)gr_hp(b)->norm.kind}});
}

gr_t gr_norm_add(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res)
{
    match_rows(b, &x, &res);
    gr_t y = gr_new(b, x.rows, x.cols, GR_F32);
    norm_node(b, il, slot, x, res, y);
    return y;
}

void gr_norm_to(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t y)
{
    norm_node(b, il, slot, x, none, y);
}

static gr_t plain_norm(struct gr_build *b, int il, gr_t x, int64_t group, enum gr_norm_kind kind)
{
    gr_t y = gr_new(b, x.rows, x.cols, GR_F32);
    gr_emit(
        b, il,
        &(struct gr_node){
            .op = GR_OP_NORM,
            .a.norm = {
                .x = x, .y = y, .group = group, .eps = gr_hp(b)->norm.eps, .kind = (int32_t)kind}});
    return y;
}

gr_t gr_rms(struct gr_build *b, int il, gr_t x, int64_t group)
{
    return plain_norm(b, il, x, group, GR_NORM_RMS);
}

gr_t gr_norm_plain(struct gr_build *b, int il, gr_t x)
{
    return plain_norm(b, il, x, x.cols, gr_hp(b)->norm.kind);
}

gr_t gr_norm(struct gr_build *b, int il, enum gr_slot slot, gr_t x)
{
    return gr_norm_add(b, il, slot, x, none);
}

/* The matrix of a slot; its rows must be as long as those of x. */
static gr_t matrix_for(struct gr_build *b, int il, enum gr_slot slot, gr_t x)
{
    gr_t w = gr_require(b, il, slot);
    char name[96];
    if (!b->err && x.cols != w.cols)
        b->err = gr_fail(GR_E_CORRUPT, "tensor %s: rows of %lld expected, %lld found",
                         gr_slot_name(slot, il, false, name, sizeof name), (long long)x.cols,
                         (long long)w.cols);
    return w;
}

/* Adds taps on the operands of the product that was emitted last. */
static void tap_operands(struct gr_build *b, int il, enum gr_slot slot)
{
    if (!b->err)
        b->err = gr_plan_tap_operands(b->plan, (int32_t)slot, il);
}

/* Returns whether exchanges run on the device that computes the values. */
static bool in_place(const struct gr_build *b)
{
    return !b->env->apart && device_of(b, -1, GR_OP_EXCHANGE) == device_of(b, -1, GR_OP_MATMUL);
}

gr_t gr_partial(struct gr_build *b, int64_t rows, int64_t cols)
{
    const struct gr_share *s = b->env->share;
    if (!in_place(b))
        return gr_new(b, rows, cols, GR_F32);
    gr_t x = gr_new(b, s->n_shard * rows, cols, GR_F32);
    x.rows = rows, x.offset = s->shard * rows * x.row_bytes;
    return x;
}

gr_t gr_exchange(struct gr_build *b, int il, gr_t x)
{
    int64_t rows = b->env->share->n_shard * x.rows;
    gr_t parts = x;
    if (in_place(b))
        parts.rows = rows, parts.offset = 0;
    else
        parts = gr_new(b, rows, x.cols, GR_F32);
    gr_emit(b, il, &(struct gr_node){.op = GR_OP_EXCHANGE, .a.exchange = {.x = x, .parts = parts}});
    return parts;
}

gr_t gr_join(struct gr_build *b, int il, gr_t x, gr_t res)
{
    gr_t parts = gr_exchange(b, il, x), y = gr_new(b, x.rows, x.cols, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_SUM, .a.sum = {.parts = parts, .res = res, .y = y}});
    return y;
}

static void matmul(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res, gr_t y)
{
    gr_t w = matrix_for(b, il, slot, x);
    res = gr_lora_apply(b, il, slot, x, res, 0, w.rows);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_MATMUL,
                              .a.matmul = {.x = x,
                                           .w = w,
                                           .b = gr_bias(b, il, slot),
                                           .res = res,
                                           .y = y,
                                           .scale = scale_of(b, il, slot)}});
    tap_operands(b, il, slot);
}

gr_t gr_mm_partial(struct gr_build *b, int il, enum gr_slot slot, gr_t x)
{
    gr_t y = gr_new(b, x.rows, gr_require(b, il, slot).rows, GR_F32);
    matmul(b, il, slot, x, none, y);
    return y;
}

void gr_mm_to(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t y)
{
    matmul(b, il, slot, x, none, gr_cols(y, 0, gr_require(b, il, slot).rows));
}

gr_t gr_mm_add(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res)
{
    match_rows(b, &x, &res);
    int64_t n = gr_require(b, il, slot).rows;
    if (gr_is_sharded(b, il, slot)) {
        gr_t part = gr_partial(b, x.rows, n);
        matmul(b, il, slot, x, none, part);
        return gr_join(b, il, part, res);
    }
    gr_t y = gr_new(b, x.rows, n, GR_F32);
    matmul(b, il, slot, x, res, y);
    return y;
}

gr_t gr_mm(struct gr_build *b, int il, enum gr_slot slot, gr_t x)
{
    return gr_mm_add(b, il, slot, x, none);
}

gr_t gr_rows_of(gr_t w, int64_t first, int64_t n)
{
    int64_t tile = w.packed ? first / GR_PACK_ROWS : 0;
    int64_t bytes = w.packed ? tile * gr_pack_tile_bytes(w.dtype, w.cols) : first * w.row_bytes;
    if (w.packed)
        w.offset = first % GR_PACK_ROWS;
    if (w.data) /* NULL: a plan that is only measured */
        w.data = (char *)w.data + bytes;
    w.rows = n;
    return w;
}

void gr_mm_rows(struct gr_build *b, int il, enum gr_slot slot, gr_t x, int64_t first, gr_t y)
{
    gr_t w = matrix_for(b, il, slot, x);
    gr_t res = gr_lora_apply(b, il, slot, x, none, first, y.cols);
    w = gr_rows_of(w, first, y.cols);
    gr_emit(b, il,
            &(struct gr_node){
                .op = GR_OP_MATMUL,
                .a.matmul = {.x = x, .w = w, .res = res, .y = y, .scale = scale_of(b, il, slot)}});
    if (first == 0)
        tap_operands(b, il, slot);
}

gr_t gr_head_mm(struct gr_build *b, int il, enum gr_slot slot, gr_t x)
{
    gr_t w = gr_require(b, il, slot);
    gr_t y = gr_new(b, x.rows, x.cols + w.batch * (w.rows - w.cols), GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_HEAD_MATMUL, .a.head_matmul = {.x = x, .w = w, .y = y}});
    tap_operands(b, il, slot);
    return y;
}

void gr_act_to(struct gr_build *b, enum gr_act_kind kind, gr_t x, float p, float q, gr_t y)
{
    gr_emit(b, -1,
            &(struct gr_node){.op = GR_OP_ACT,
                              .a.act = {.x = x, .y = y, .a = p, .b = q, .kind = (int32_t)kind}});
}

gr_t gr_act_ab(struct gr_build *b, enum gr_act_kind kind, gr_t x, float p, float q)
{
    gr_t y = gr_new(b, x.rows, x.cols, GR_F32);
    gr_act_to(b, kind, x, p, q, y);
    return y;
}

gr_t gr_act(struct gr_build *b, enum gr_act_kind kind, gr_t x)
{
    return gr_act_ab(b, kind, x, 0, 0);
}

gr_t gr_xielu(struct gr_build *b, int il, gr_t x)
{
    const struct gr_xielu *c = &gr_hp(b)->ff.xielu[il];
    gr_t y = gr_new(b, x.rows, x.cols, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_XIELU,
                              .a.xielu = {.x = x,
                                          .y = y,
                                          .positive = c->positive,
                                          .negative = c->negative,
                                          .linear = c->linear,
                                          .below = c->below}});
    return y;
}

gr_t gr_scale(struct gr_build *b, gr_t x, float scale)
{
    return gr_act_ab(b, GR_LINEAR, x, scale, 0);
}

gr_t gr_glu(struct gr_build *b, enum gr_act_kind kind, gr_t a, gr_t c)
{
    gr_t y = gr_new(b, a.rows, a.cols, GR_F32);
    gr_emit(b, -1,
            &(struct gr_node){.op = GR_OP_GLU,
                              .a.glu = {.a = a, .b = c, .y = y, .kind = (int32_t)kind}});
    return y;
}

gr_t gr_binary(struct gr_build *b, enum gr_binary_kind kind, gr_t x, gr_t c)
{
    gr_t y = gr_new(b, x.rows, x.cols, GR_F32);
    gr_emit(b, -1,
            &(struct gr_node){.op = GR_OP_BINARY,
                              .a.binary = {.a = x, .b = c, .y = y, .kind = (int32_t)kind}});
    return y;
}

gr_t gr_add_t(struct gr_build *b, gr_t x, gr_t y)
{
    return gr_binary(b, GR_ADD, x, y);
}

gr_t gr_row(struct gr_build *b, int il, enum gr_slot slot)
{
    return gr_require(b, il, slot);
}

gr_t gr_mul_add(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res)
{
    match_rows(b, &x, &res);
    return gr_add_t(b, gr_binary(b, GR_MUL, x, gr_row(b, il, slot)), res);
}

void gr_carry(struct gr_build *b, int i, gr_t x)
{
    b->carried[i] = x;
}

gr_t gr_carried(const struct gr_build *b, int i)
{
    return b->carried[i];
}

void gr_keep(struct gr_build *b, gr_t x)
{
    if (!b->err && b->n_kept == GR_MAX_KEPT)
        b->err = gr_fail(GR_E_UNSUPPORTED, "architecture %s: at most %d layers can keep the stream",
                         b->env->arch->name, GR_MAX_KEPT);
    if (!b->err)
        b->kept[b->n_kept++] = x;
}

/* Adds source x to a blend; *stat: softmax statistics of the sources before it, then of all. */
static gr_t blend(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t acc, gr_t *stat,
                  bool last)
{
    gr_t y = gr_new(b, x.rows, x.cols, GR_F32), stat_y = gr_new(b, x.rows, 2, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_BLEND,
                              .a.blend = {.x = x,
                                          .w = gr_require(b, il, slot),
                                          .acc = acc,
                                          .stat = *stat,
                                          .y = y,
                                          .stat_y = stat_y,
                                          .eps = gr_hp(b)->norm.eps,
                                          .last = last}});
    *stat = stat_y;
    return y;
}

gr_t gr_recall(struct gr_build *b, int il, enum gr_slot slot, gr_t x)
{
    gr_t acc = none, stat = none;
    for (int i = 0; i < b->n_kept; i++)
        acc = blend(b, il, slot, gr_match(b, b->kept[i], x), acc, &stat, false);
    return b->n_kept ? blend(b, il, slot, x, acc, &stat, true) : x;
}

gr_t gr_residual(struct gr_build *b, gr_t x, gr_t res)
{
    float scale = gr_hp(b)->residual.scale;
    if (scale != 0)
        x = gr_scale(b, x, scale);
    match_rows(b, &x, &res);
    return gr_add_t(b, x, res);
}

gr_t gr_matmul_id(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t ids)
{
    gr_t w = matrix_for(b, il, slot, x);
    gr_t y = gr_new(b, ids.rows * ids.cols, w.rows, GR_F32);
    enum gr_slot scale = gr_scale_slot(slot);
    gr_emit(
        b, il,
        &(struct gr_node){.op = GR_OP_MATMUL_ID,
                          .a.matmul_id = {.x = x,
                                          .w = w,
                                          .s = scale == GR_N_SLOT ? none : gr_weight(b, il, scale),
                                          .b = gr_bias(b, il, slot),
                                          .ids = ids,
                                          .y = y}});
    tap_operands(b, il, slot);
    return gr_lora_apply_id(b, il, slot, x, ids, y);
}

gr_t gr_rope_table(struct gr_build *b, gr_t pos, const struct gr_rope_freqs *f, gr_t section,
                   float mag)
{
    gr_t cs = gr_new(b, pos.cols, f->freq.cols * 2, GR_F32);
    gr_emit(b, -1,
            &(struct gr_node){
                .op = GR_OP_ROPE_TABLE,
                .a.rope_table = {
                    .pos = pos, .freq = f->freq, .section = section, .cs = cs, .mag = mag}});
    return cs;
}
