/* ATTN: which kernel takes which shapes. */
#include "cuda/launch.h"
#include "gr/dtype.h"
#include "gr/kernel/attn.h"
#include "gr/status.h"

enum { ANY_THREADS = 128 };

static struct gr_kernel_rows rows_of(const struct gr_ten *t, int64_t d)
{
    if (!gr_ten_is(t))
        return (struct gr_kernel_rows){0};
    const char *first = t->data;
    return (struct gr_kernel_rows){
        .data = first,
        .end = first + (t->rows - 1) * t->row_bytes +
               (int64_t)gr_row_bytes(t->dtype, (uint64_t)t->cols),
        .row = t->row_bytes,
        .head = (int32_t)gr_row_bytes(t->dtype, (uint64_t)d),
        .type = (int32_t)t->dtype,
    };
}

static struct gr_kernel_attn args_of(const struct gr_args_attn *a)
{
    return (struct gr_kernel_attn){
        .q = {a->q_far.data, a->q.data},
        .q_row = {a->q_far.row_bytes, a->q.row_bytes},
        .k = {rows_of(&a->k_far, a->d_k), rows_of(&a->k, a->d_k)},
        .v = rows_of(&a->v, a->d_v),
        .list = a->list.data,
        .span = a->span.data,
        .pos = a->pos.data,
        .key_pos = a->key_pos.data,
        .sinks = gr_ten_is(&a->sinks) ? a->sinks.data : NULL,
        .y = a->y.data,
        .span_row = a->span.row_bytes,
        .y_row = a->y.row_bytes,
        .n_tok = (int32_t)a->q.rows,
        .n_head = (int32_t)a->n_head,
        .n_head_kv = (int32_t)a->n_head_kv,
        .d_k = (int32_t)a->d_k,
        .d_v = (int32_t)a->d_v,
        .scale = a->scale,
        .softcap = a->softcap,
        .max_alibi = a->max_alibi,
    };
}

static bool cache_type(uint32_t t)
{
    return t == GR_F32 || t == GR_F16 || t == GR_BF16 || t == GR_Q8_0 || t == GR_Q4_0;
}

int gr_cuda_attn(struct gr_launcher *l, const struct gr_args_attn *a)
{
    if (!cache_type(a->k.dtype) || !cache_type(a->v.dtype))
        return gr_fail(GR_E_UNSUPPORTED,
                       "attention: expected keys and values of f32, f16, bf16, q8_0 or q4_0, found "
                       "%s and %s",
                       gr_dtype_name(a->k.dtype), gr_dtype_name(a->v.dtype));
    struct gr_kernel_attn args = args_of(a);
    uint32_t n_tok = (uint32_t)a->q.rows;
    return gr_launch(l, "gr_attn_any", (struct gr_grid){(uint32_t)a->n_head, n_tok, 1}, ANY_THREADS,
                     (uint32_t)GR_ATTN_EXACT_BYTES(a->d_k, a->d_v, ANY_THREADS), &args,
                     sizeof args);
}
