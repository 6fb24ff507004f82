/* Adapters (LoRA): two narrow products in addition to a model's own, recorded next to it. */
#include "graph/build_impl.h"

static const gr_t none;

/* Finds the matrices and the scale of adapter i for a weight; false when it does not change it. */
static bool pair_of(struct gr_build *b, int32_t i, int il, enum gr_slot slot, gr_t *a, gr_t *to,
                    float *scale)
{
    const struct gr_lora *l = &b->env->lora[i];
    size_t at = (size_t)(il + 1) * GR_N_SLOT + slot;
    *a = l->a[at], *to = l->b[at];
    *scale = b->env->lora_scale[i];
    if (!gr_ten_is(a) || *scale == 0)
        return false;
    if (l->alpha != 0)
        *scale *= l->alpha / (float)to->cols;
    if (b->env->lora_used)
        b->env->lora_used[at] = true;
    return true;
}

static gr_t product(struct gr_build *b, int il, gr_t x, gr_t w, float scale, gr_t res)
{
    gr_t y = gr_new(b, x.rows, w.rows, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_MATMUL,
                              .a.matmul = {.x = x, .w = w, .res = res, .y = y, .scale = scale}});
    return y;
}

gr_t gr_lora_apply(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t res, int64_t first,
                   int64_t n)
{
    gr_t a, to;
    float scale;
    for (int32_t i = 0; i < b->env->n_lora; i++)
        if (pair_of(b, i, il, slot, &a, &to, &scale))
            res =
                product(b, il, product(b, il, x, a, 1, none), gr_rows_of(to, first, n), scale, res);
    return res;
}

gr_t gr_lora_apply_rows(struct gr_build *b, enum gr_slot slot, gr_t tokens, float scale, gr_t y)
{
    gr_t a, to;
    float own;
    for (int32_t i = 0; i < b->env->n_lora; i++) {
        if (!pair_of(b, i, -1, slot, &a, &to, &own))
            continue;
        gr_t row = gr_new(b, tokens.cols, a.cols, GR_F32);
        gr_emit(b, -1,
                &(struct gr_node){.op = GR_OP_EMBED,
                                  .a.embed = {.tokens = tokens, .table = a, .y = row, .scale = 1}});
        y = product(b, -1, row, to, own * scale, y);
    }
    return y;
}

/* Product with the matrices of the experts in ids. */
static gr_t product_id(struct gr_build *b, int il, gr_t x, gr_t w, gr_t ids)
{
    gr_t y = gr_new(b, ids.rows * ids.cols, w.rows, GR_F32);
    gr_emit(b, il,
            &(struct gr_node){.op = GR_OP_MATMUL_ID,
                              .a.matmul_id = {.x = x, .w = w, .ids = ids, .y = y}});
    return y;
}

gr_t gr_lora_apply_id(struct gr_build *b, int il, enum gr_slot slot, gr_t x, gr_t ids, gr_t y)
{
    gr_t a, to;
    float scale;
    for (int32_t i = 0; i < b->env->n_lora; i++) {
        if (!pair_of(b, i, il, slot, &a, &to, &scale))
            continue;
        gr_t thin = gr_act_ab(b, GR_LINEAR, product_id(b, il, x, a, ids), scale, 0);
        y = gr_add_t(b, y, product_id(b, il, thin, to, ids));
    }
    return y;
}
