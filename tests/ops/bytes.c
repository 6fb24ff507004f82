/* Bytes that an operation moves: each operand once, and of tables only the rows that can be
 * named. */
#include <criterion/criterion.h>

#include "gr/op.h"
#include "gr/pack.h"

static struct gr_ten ten(uint32_t dtype, int64_t batch, int64_t rows, int64_t cols)
{
    int64_t row = (int64_t)gr_row_bytes(dtype, (uint64_t)cols);
    return (struct gr_ten){
        .batch = batch, .rows = rows, .cols = cols, .row_bytes = row + 64, .dtype = dtype};
}

static struct gr_ten packed(uint32_t dtype, int64_t batch, int64_t rows, int64_t cols)
{
    struct gr_ten t = ten(dtype, batch, rows, cols);
    t.packed = 1, t.row_bytes = 0;
    return t;
}

Test(bytes, of_a_matrix_product)
{
    struct gr_node n = {.op = GR_OP_MATMUL};
    n.a.matmul = (struct gr_args_matmul){
        .x = ten(GR_F32, 1, 5, 256), .w = ten(GR_Q4_K, 1, 48, 256), .y = ten(GR_F32, 1, 5, 48)};
    cr_expect_eq(gr_node_bytes(&n), 5 * 1024 + 48 * 144 + 5 * 192);
    n.a.matmul.w = packed(GR_Q4_K, 1, 48, 256);
    cr_expect_eq(gr_node_bytes(&n), 5 * 1024 + gr_pack_bytes(GR_Q4_K, 48, 256) + 5 * 192);
    n.a.matmul.b = ten(GR_F32, 1, 1, 48);
    cr_expect_eq(gr_node_bytes(&n), 5 * 1024 + gr_pack_bytes(GR_Q4_K, 48, 256) + 6 * 192);
}

Test(bytes, of_chosen_experts)
{
    struct gr_node n = {.op = GR_OP_MATMUL_ID};
    n.a.matmul_id = (struct gr_args_matmul_id){.x = ten(GR_F32, 1, 2, 32),
                                               .w = ten(GR_F16, 8, 16, 32),
                                               .ids = ten(GR_I32, 1, 2, 3),
                                               .y = ten(GR_F32, 1, 6, 16)};
    cr_expect_eq(gr_node_bytes(&n), 2 * 128 + 6 * 1024 + 24 + 6 * 64, "six of eight");
    n.a.matmul_id.ids.rows = 50;
    cr_expect_eq(gr_node_bytes(&n), 2 * 128 + 8 * 1024 + 600 + 6 * 64, "no more than there are");
}

Test(bytes, of_rows_that_are_looked_up)
{
    struct gr_node n = {.op = GR_OP_EMBED};
    n.a.embed = (struct gr_args_embed){.tokens = ten(GR_I32, 1, 1, 3),
                                       .table = packed(GR_Q8_0, 1, 1000, 64),
                                       .y = ten(GR_F32, 1, 3, 64)};
    cr_expect_eq(gr_node_bytes(&n), 12 + 3 * 68 + 3 * 256);
    n = (struct gr_node){.op = GR_OP_GATHER};
    n.a.gather = (struct gr_args_gather){
        .x = ten(GR_F32, 1, 100, 8), .rows = ten(GR_I32, 1, 1, 2), .y = ten(GR_F32, 1, 2, 8)};
    cr_expect_eq(gr_node_bytes(&n), 2 * 32 + 8 + 2 * 32);
}

Test(bytes, of_caches)
{
    struct gr_node n = {.op = GR_OP_KV_STORE};
    n.a.kv_store = (struct gr_args_kv_store){.k = ten(GR_F32, 1, 2, 64),
                                             .v = ten(GR_F32, 1, 2, 64),
                                             .cells = ten(GR_I32, 1, 1, 2),
                                             .k_cache = ten(GR_F16, 1, 4096, 64),
                                             .v_cache = ten(GR_Q8_0, 1, 4096, 64)};
    cr_expect_eq(gr_node_bytes(&n), 2 * 512 + 8 + 2 * 128 + 2 * 68);
    n = (struct gr_node){.op = GR_OP_ATTN};
    n.a.attn = (struct gr_args_attn){.q = ten(GR_F32, 1, 1, 128),
                                     .k = ten(GR_F16, 1, 4096, 64),
                                     .v = ten(GR_F16, 1, 4096, 64),
                                     .list = ten(GR_I32, 1, 1, 256),
                                     .span = ten(GR_I32, 1, 1, 3),
                                     .y = ten(GR_F32, 1, 1, 128)};
    cr_expect_eq(gr_node_bytes(&n), 512 + 2 * 256 * 128 + 1024 + 12 + 512);
    static const int32_t span[] = {0, 0, 10, 2, 2, 12, 256, 256, 300, 30, 30, 30};
    n.a.attn.q.rows = n.a.attn.span.rows = n.a.attn.y.rows = 4;
    cr_expect_eq(gr_attn_bytes(&n, span), 4 * (512 + 12 + 512) + (12 + 44) * (2 * 128 + 4));
    n = (struct gr_node){.op = GR_OP_KV_COPY};
    n.a.kv_copy = (struct gr_args_kv_copy){.src = ten(GR_I32, 1, 1, 7),
                                           .dst = ten(GR_I32, 1, 1, 7),
                                           .cache = ten(GR_F16, 1, 4096, 64)};
    cr_expect_eq(gr_node_bytes(&n), 28 + 28 + 2 * 7 * 128);
}

Test(bytes, of_states)
{
    struct gr_node n = {.op = GR_OP_SSM_CONV};
    n.a.ssm_conv = (struct gr_args_ssm_conv){.x = ten(GR_F32, 1, 4, 16),
                                             .w = ten(GR_F32, 1, 16, 4),
                                             .src = ten(GR_I32, 1, 1, 2),
                                             .dst = ten(GR_I32, 1, 1, 2),
                                             .state = ten(GR_F32, 1, 30, 48),
                                             .y = ten(GR_F32, 1, 4, 16)};
    cr_expect_eq(gr_node_bytes(&n), 256 + 256 + 8 + 8 + 4 * 192 + 256);
}
