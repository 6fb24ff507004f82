/* The implementations of one level, by operation; NULL: the reference. EMBED, GATHER, ROPE_TABLE
 * and ROUTE have none: they copy rows or compute a few numbers per token. */
#include "cpu/fast/fast.h"

const struct gr_cpu_impl *const FN(table)[GR_N_OP] = {
    [GR_OP_MATMUL] = &FN(matmul),
    [GR_OP_MATMUL_ID] = &FN(matmul_id),
    [GR_OP_HEAD_MATMUL] = &FN(head_matmul),
    [GR_OP_NORM] = &FN(norm),
    [GR_OP_GLU] = &FN(glu),
    [GR_OP_ACT] = &FN(act),
    [GR_OP_BINARY] = &FN(binary),
    [GR_OP_ROPE] = &FN(rope),
    [GR_OP_KV_STORE] = &FN(kv_store),
    [GR_OP_ATTN] = &FN(attn),
    [GR_OP_KV_SHIFT] = &FN(kv_shift),
    [GR_OP_EXPERT_SUM] = &FN(expert_sum),
    [GR_OP_SUM] = &FN(sum),
    [GR_OP_POOL] = &FN(pool),
    [GR_OP_SSM_CONV] = &FN(ssm_conv),
    [GR_OP_SSM_SCAN] = &FN(ssm_scan),
    [GR_OP_DELTA_RULE] = &FN(delta_rule),
    [GR_OP_LINEAR_ATTN] = &FN(linear_attn),
};
