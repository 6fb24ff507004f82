#include "gr/op.h"

#include <math.h>
#include <stddef.h>

#include "gr/pack.h"

#define IN(args, field) {#field, offsetof(struct gr_args_##args, field), GR_ROLE_IN},
#define OUT(args, field) {#field, offsetof(struct gr_args_##args, field), GR_ROLE_OUT},
#define INOUT(args, field) {#field, offsetof(struct gr_args_##args, field), GR_ROLE_INOUT},
#define OP(NAME, args, operands, meaning)                                                          \
    static const struct gr_operand operands_##args[] = {operands{NULL, 0, GR_ROLE_END}};
#include "gr/op.def"
#undef OP

static const struct gr_op_info table[GR_N_OP] = {
#define OP(NAME, args, operands, meaning) {#args, meaning, operands_##args},
#include "gr/op.def"
#undef OP
};

const struct gr_op_info *gr_op_info(enum gr_op op)
{
    return &table[op];
}

float gr_alibi_slope(float max_alibi, int64_t n_head, int64_t h)
{
    int64_t n2 = 1;
    while (n2 * 2 <= n_head)
        n2 *= 2;
    float e = h < n2 ? -max_alibi * (float)(h + 1) / (float)n2
                     : -max_alibi / 2 * (float)(2 * (h - n2) + 1) / (float)n2;
    return exp2f(e);
}

/* Numbers of matrices, and of rows of each, that a node can access in an operand. */
struct reach {
    int64_t batch, rows;
};

static struct reach reach_of(const struct gr_node *n, const struct gr_ten *t)
{
    struct reach r = {t->batch, t->rows};
    int64_t most = r.rows;
    switch (n->op) {
    case GR_OP_EMBED:
        if (t == &n->a.embed.table || t == &n->a.embed.pos_table)
            most = n->a.embed.tokens.cols;
        break;
    case GR_OP_MATMUL_ID:
        if (t == &n->a.matmul_id.w && r.batch > n->a.matmul_id.ids.rows * n->a.matmul_id.ids.cols)
            r.batch = n->a.matmul_id.ids.rows * n->a.matmul_id.ids.cols;
        break;
    case GR_OP_KV_STORE:
        if (t == &n->a.kv_store.k_cache || t == &n->a.kv_store.v_cache)
            most = n->a.kv_store.cells.cols;
        break;
    case GR_OP_ATTN:
        if (t == &n->a.attn.k || t == &n->a.attn.k_far || t == &n->a.attn.v)
            most = n->a.attn.list.cols;
        break;
    case GR_OP_GATHER:
        if (t == &n->a.gather.x)
            most = n->a.gather.y.rows;
        break;
    case GR_OP_KV_COPY:
        if (t == &n->a.kv_copy.cache)
            most = 2 * n->a.kv_copy.src.cols; /* read and written */
        break;
    case GR_OP_SSM_CONV:
        if (t == &n->a.ssm_conv.state)
            most = 2 * n->a.ssm_conv.src.cols;
        break;
    case GR_OP_SSM_SCAN:
        if (t == &n->a.ssm_scan.state)
            most = 2 * n->a.ssm_scan.src.cols;
        break;
    case GR_OP_DELTA_RULE:
        if (t == &n->a.delta_rule.state)
            most = 2 * n->a.delta_rule.src.cols;
        break;
    case GR_OP_LINEAR_ATTN:
        if (t == &n->a.linear_attn.state)
            most = 2 * n->a.linear_attn.src.cols;
        break;
    case GR_OP_TOKEN_SHIFT:
        if (t == &n->a.token_shift.state)
            most = 2 * n->a.token_shift.src.cols;
        break;
    default:
        break;
    }
    if (r.rows > most)
        r.rows = most;
    return r;
}

int64_t gr_node_bytes(const struct gr_node *n)
{
    int64_t bytes = 0;
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role; o++) {
        const struct gr_ten *t = (const void *)((const char *)&n->a + o->offset);
        struct reach r = reach_of(n, t);
        int64_t row = t->packed ? gr_pack_tile_bytes(t->dtype, t->cols) / GR_PACK_ROWS
                                : (int64_t)gr_row_bytes(t->dtype, (uint64_t)t->cols);
        bytes += r.batch * r.rows * row;
    }
    return bytes;
}

int64_t gr_attn_bytes(const struct gr_node *n, const int32_t *span)
{
    struct gr_node seen = *n;
    int64_t items = 0, lo = 0, hi = 0; /* [lo, hi): union of the present run of overlapping spans */
    for (int64_t t = 0; t < n->a.attn.q.rows; t++, span += 3) {
        if (span[0] >= hi || span[2] <= lo) {
            items += hi - lo;
            lo = span[0], hi = span[2];
        } else {
            lo = span[0] < lo ? span[0] : lo, hi = span[2] > hi ? span[2] : hi;
        }
    }
    seen.a.attn.list.cols = items + hi - lo;
    if (gr_ten_is(&seen.a.attn.key_pos))
        seen.a.attn.key_pos.cols = items + hi - lo;
    return gr_node_bytes(&seen);
}
