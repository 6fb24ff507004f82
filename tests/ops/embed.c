#include <criterion/criterion.h>
#include <math.h>

#include "base/checked.h"
#include "ops/ops.h"

/* The fast paths may round the scaled row before the position is added. */
static void embed_case(uint32_t type, int64_t n_tok, int64_t n_embd, bool with_pos,
                       enum ops_data data)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_EMBED, 1, "type %u, %lld tokens, %lld columns, positions %d, data %d",
                  type, (long long)n_tok, (long long)n_embd, with_pos, data);
    struct gr_args_embed *a = &c.node.a.embed;
    *a = (struct gr_args_embed){.tokens = ops_integers(&c, n_tok, 0, 19),
                                .table = ops_random(&c, type, 1, 19, n_embd, data),
                                .y = ops_new(&c, GR_F32, 1, n_tok, n_embd),
                                .scale = 3.25f};
    if (with_pos) {
        a->pos = ops_integers(&c, n_tok, 0, 12);
        a->pos_table = ops_random(&c, type, 1, 7, n_embd, data);
    }
    const double *table = ops_values(&c, &a->table);
    const double *pos = with_pos ? ops_values(&c, &a->pos_table) : NULL;
    struct ops_out *o = ops_expect(&c, &a->y);
    double *scaled = ops_doubles(&c, n_tok * n_embd);
    for (int64_t i = 0; i < n_tok * n_embd; i++) {
        int64_t t = i / n_embd, col = i % n_embd;
        scaled[i] = 3.25 * table[((int32_t *)a->tokens.data)[t] * n_embd + col];
        int64_t p = with_pos ? GR_MIN(((int32_t *)a->pos.data)[t], 6) : 0;
        o->want[i] = scaled[i] + (with_pos ? pos[p * n_embd + col] : 0);
    }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < n_tok * n_embd; i++)
        o->tol_fast[i] += fabs(scaled[i]) * 0x1p-24;
    ops_check(&c);
    ops_case_fini(&c);
}

Test(embed, all_types)
{
    for (const int *type = ops_weight_types; *type >= 0; type++) {
        embed_case((uint32_t)*type, 1, 256, false, OPS_NORMAL);
        embed_case((uint32_t)*type, 7, 768, true, OPS_NORMAL);
        embed_case((uint32_t)*type, 3, 512, true, OPS_SPIKES);
    }
}

Test(embed, odd_columns)
{
    static const int64_t cols[] = {1, 2, 15, 17, 63, 65, 100};
    for (size_t i = 0; i < GR_COUNT(cols); i++)
        for (enum ops_data data = 0; data < OPS_N_DATA; data++)
            embed_case(data % 2 ? GR_F32 : GR_F16, 5, cols[i], i % 2, data);
}

static void gather_case(int64_t n_tok, int64_t n_out, int64_t n)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_GATHER, 2, "%lld of %lld rows of %lld", (long long)n_out,
                  (long long)n_tok, (long long)n);
    struct gr_args_gather *a = &c.node.a.gather;
    *a = (struct gr_args_gather){.x = ops_random(&c, GR_F32, 1, n_tok, n, OPS_NORMAL),
                                 .rows = ops_integers(&c, n_out, 0, (int32_t)n_tok),
                                 .y = ops_new(&c, GR_F32, 1, n_out, n)};
    const double *x = ops_values(&c, &a->x);
    struct ops_out *o = ops_expect(&c, &a->y); /* tolerance 0 */
    for (int64_t i = 0; i < n_out * n; i++)
        o->want[i] = x[((int32_t *)a->rows.data)[i / n] * n + i % n];
    ops_check(&c);
    ops_case_fini(&c);
}

Test(gather, rows)
{
    gather_case(1, 1, 1);
    gather_case(9, 1, 33);
    gather_case(9, 4, 64);
    gather_case(3, 9, 100);
}
