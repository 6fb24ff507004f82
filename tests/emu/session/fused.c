/* Operations that share a launch give what they give in launches of their own, and do so only where
 * neither needs what the other changes. */
#include "tests/emu/session/program.h"

TestSuite(fused, .init = setup);

/* ---- what goes together ---- */

enum { D = 32, N_KV = 4, GROUP = 2 };

/* Q, K and V, norms of their heads, K and V stored, Q turned. `y`: where Q goes then. */
static void heads(int64_t n_tok, bool norms, int64_t q_over_k, int64_t launches, const char *what)
{
    struct program p = program(1);
    struct gr_ten x = ten(&p, n_tok, 256), q = ten(&p, n_tok, D * N_KV * GROUP),
                  k = ten(&p, n_tok, D * N_KV), v = ten(&p, n_tok, D * N_KV),
                  cs = ten(&p, n_tok, D);
    struct gr_ten y = q_over_k < 0 ? q : over(k, n_tok, q.cols, q_over_k);
    if (q_over_k >= 0) /* memory behind K: V, and an unused tensor */
        v = ten(&p, n_tok, D * N_KV), (void)ten(&p, n_tok, q.cols);
    matmul(&p, x, q, none);
    matmul(&p, x, k, none);
    matmul(&p, x, v, none);
    if (norms)
        norm(&p, q, q, D), norm(&p, k, k, D);
    store(&p, k, v, D, cs);
    rope(&p, q, y, D, cs);
    same(&p, launches, what);
    done(&p);
}

Test(fused, products_store_and_turn)
{
    heads(1, false, -1, 2, "a token");
    heads(3, false, -1, 2, "three tokens");
    heads(1, true, -1, 2, "a token with norms");
    heads(3, true, -1, 2, "three tokens with norms");
}

/* Q goes where K has been: no slice of it before all of K is stored. */
Test(fused, q_over_k)
{
    heads(1, false, 0, 2, "Q over K, a token");
    heads(4, false, 0, 2, "Q over K, four tokens");
}

/* gate and up, gated, down with a residual, a norm, and a product of that. */
static void feed_forward(int64_t n_tok, int64_t n_ff, int64_t launches, const char *what)
{
    struct program p = program(2);
    struct gr_ten x = ten(&p, n_tok, 128), res = ten(&p, n_tok, 128), h = ten(&p, n_tok, 128),
                  gate = ten(&p, n_tok, n_ff), up = ten(&p, n_tok, n_ff), next = ten(&p, n_tok, 64);
    matmul(&p, x, gate, none);
    matmul(&p, x, up, none);
    glu(&p, gate, up, gate);
    matmul(&p, gate, res, res); /* in place */
    norm(&p, res, h, 128);
    matmul(&p, h, next, none);
    same(&p, launches, what);
    done(&p);
}

Test(fused, feed_forward)
{
    feed_forward(1, 512, 4, "a token");
    feed_forward(1, 528, 4, "a token, 33 tiles");
    feed_forward(8, 512, 4, "eight tokens");
    feed_forward(9, 512, 6, "nine tokens: no epilogue");
    feed_forward(40, 1056, 6, "forty tokens: tiles, down in two segments");
}

/* The same by two of five experts a token, and the sum of these. */
static void experts(int64_t n_tok, int64_t launches, const char *what)
{
    static const int32_t pairs[] = {3, 0, 1, 4, 4, 2};
    int32_t chosen[2 * 20];
    struct program p = program(10);
    cr_assert(n_tok <= 20);
    for (int64_t i = 0; i < 2 * n_tok; i++)
        chosen[i] = pairs[i % 6];
    struct gr_ten x = ten(&p, n_tok, 128), res = ten(&p, n_tok, 128), h = ten(&p, n_tok, 128),
                  gate = ten(&p, 2 * n_tok, 64), up = ten(&p, 2 * n_tok, 64),
                  down = ten(&p, 2 * n_tok, 128), next = ten(&p, n_tok, 64),
                  ids = integers(&p, chosen, 2 * n_tok);
    ids.rows = n_tok, ids.cols = 2, ids.row_bytes = 8;
    matmul_id(&p, x, ids, gate);
    matmul_id(&p, x, ids, up);
    glu(&p, gate, up, up);
    matmul_id(&p, up, ids, down);
    node(&p, GR_OP_EXPERT_SUM)->a.expert_sum =
        (struct gr_args_expert_sum){.x = down, .weights = ten(&p, n_tok, 2), .res = res, .y = res};
    norm(&p, res, h, 128);
    matmul(&p, h, next, none);
    same(&p, launches, what);
    done(&p);
}

Test(fused, experts)
{
    experts(1, 4, "a token");
    experts(3, 4, "three tokens");
    experts(20, 10, "twenty tokens: tiles, gate and up in one launch");
}

/* A router of f32 and the choice by what it says: of bits that are the same. */
struct router {
    int64_t n_tok, n_in, n_expert, n_used;
    int32_t n_group, n_group_used, per;
    int64_t launches;
};

static void router(const struct router *r, int gate, bool bias, bool normalise, const char *what)
{
    struct program p = program(11);
    struct gr_ten x = ten(&p, r->n_tok, r->n_in), y = ten(&p, r->n_tok, r->n_expert),
                  ids = ten(&p, r->n_tok, r->n_used);
    ids.dtype = GR_I32;
    node(&p, GR_OP_MATMUL)->a.matmul =
        (struct gr_args_matmul){.x = x, .w = exact(&p, r->n_expert, r->n_in), .y = y, .scale = 1};
    node(&p, GR_OP_ROUTE)->a.route =
        (struct gr_args_route){.logits = y,
                               .bias = bias ? ten(&p, 1, r->n_expert) : none,
                               .ids = ids,
                               .weights = ten(&p, r->n_tok, r->n_used),
                               .gate = gate,
                               .normalise = normalise,
                               .scale = 1.5f,
                               .n_group = r->n_group,
                               .n_group_used = r->n_group_used,
                               .per = r->per};
    same_within(&p, r->launches, 0, what);
    done(&p);
}

Test(fused, routers)
{
    static const struct router of[] = {
        {1, 64, 3, 2, 1, 1, 1, 1},    {8, 64, 20, 3, 1, 1, 1, 1},   {1, 1100, 128, 8, 1, 1, 1, 1},
        {5, 640, 128, 8, 8, 3, 1, 1}, {8, 2080, 48, 4, 1, 1, 3, 1}, {8, 100, 600, 10, 1, 1, 1, 1},
        {3, 256, 256, 8, 8, 4, 1, 1}, {9, 640, 20, 3, 1, 1, 1, 2},  {2, 64, 1040, 2, 1, 1, 1, 1},
    };
    for (size_t i = 0; i < GR_COUNT(of); i++) {
        char what[32];
        snprintf(what, sizeof what, "router %zu", i);
        for (int k = 0; k < 2; k++) {
            int gate = (int)(i + (size_t)k) % (GR_GATE_SOFTMAX_TOP + 1);
            router(&of[i], gate, k, i % 3, what);
        }
    }
}

/* A choice by something else than what the product says has a launch of its own. */
Test(fused, router_of_others)
{
    struct program p = program(12);
    struct gr_ten x = ten(&p, 2, 640), y = ten(&p, 2, 20), ids = ten(&p, 2, 3);
    ids.dtype = GR_I32;
    node(&p, GR_OP_MATMUL)->a.matmul =
        (struct gr_args_matmul){.x = x, .w = exact(&p, 20, 640), .y = y, .scale = 1};
    node(&p, GR_OP_ROUTE)->a.route = (struct gr_args_route){.logits = ten(&p, 2, 20),
                                                            .ids = ids,
                                                            .weights = ten(&p, 2, 3),
                                                            .scale = 1,
                                                            .n_group = 1,
                                                            .n_group_used = 1};
    same_within(&p, 2, 0, "of others");
    done(&p);
}

/* Three products of one launch, with a part of a tile each, whose rows are steps in two and three
 * turns of a block's warps. */
static void long_rows(int64_t n_tok, int64_t cols, const char *what)
{
    struct program p = program(11);
    struct gr_ten x = ten(&p, n_tok, cols);
    for (int64_t rows = 40; rows <= 88; rows += 24)
        matmul(&p, x, ten(&p, n_tok, rows), none);
    same(&p, 2, what);
    done(&p);
}

/* Attention over a list of n_item items, which may name a cell more than once, and the product of
 * what comes out. */
static void attention_of(int64_t n_tok, int64_t n_head, int64_t n_kv, int n_item, int64_t launches,
                         const char *what)
{
    enum { N_ITEM = 2300, N_TOK = 25 };
    static int32_t list[N_ITEM], span[3 * N_TOK];
    const int64_t n_cell = 600 * N_KV / n_kv;
    cr_assert(n_item <= N_ITEM && n_tok <= N_TOK);
    struct program p = program(9);
    for (int i = 0; i < n_item; i++)
        list[i] = (int32_t)(i * 7 % n_cell);
    for (int i = 0; i < N_TOK; i++)
        span[3 * i] = span[3 * i + 1] = 10 * i, span[3 * i + 2] = n_item - i;
    struct gr_ten y = ten(&p, n_tok, n_head * D), out = ten(&p, n_tok, 64),
                  spans = integers(&p, span, 3 * n_tok);
    spans.rows = n_tok, spans.cols = 3, spans.row_bytes = 12;
    node(&p, GR_OP_ATTN)->a.attn = (struct gr_args_attn){.q = ten(&p, n_tok, n_head * D),
                                                         .k = cache(&p, n_cell, n_kv * D),
                                                         .v = cache(&p, n_cell, n_kv * D),
                                                         .list = integers(&p, list, n_item),
                                                         .span = spans,
                                                         .pos = integers(&p, list, n_tok),
                                                         .key_pos = integers(&p, list, n_item),
                                                         .y = y,
                                                         .n_head = n_head,
                                                         .n_head_kv = n_kv,
                                                         .d_k = D,
                                                         .d_v = D,
                                                         .scale = 0.2f};
    matmul(&p, y, out, none);
    same(&p, launches, what);
    done(&p);
}

/* The same in three chunks. */
static void attention(int64_t n_tok, int64_t n_head, int64_t launches, const char *what)
{
    attention_of(n_tok, n_head, N_KV, 600, launches, what);
}

/* Products of a tile of 70 tokens, which have a kernel of their own on wgmma. */
static void narrow(const char *what)
{
    struct program p = program(12);
    struct gr_ten x = ten(&p, 70, 320);
    for (int64_t rows = 40; rows <= 328; rows += 144)
        node(&p, GR_OP_MATMUL)->a.matmul = (struct gr_args_matmul){
            .x = x, .w = quants(&p, GR_Q4_0, rows, x.cols), .y = ten(&p, x.rows, rows), .scale = 1};
    same(&p, 2, what);
    done(&p);
}

/* One program where each block has a tile, and where a device holds so few blocks that each has
 * several: of one or more slices, items and products, and not all as many. */
static void on_devices(int which)
{
    static const char *const devices[] = {"sm=132", "sm=1", "sm=2"};
    for (size_t i = 0; i < GR_COUNT(devices); i++) {
        device = devices[i];
        switch (which) {
        case 0:
            heads(1, true, -1, 2, "heads of a token");
            break;
        case 1:
            heads(4, false, 0, 2, "Q over K, four tokens");
            break;
        case 2:
            feed_forward(1, 2304, 4, "a token");
            break;
        case 3:
            feed_forward(8, 528, 4, "eight tokens");
            break;
        case 4:
            feed_forward(9, 512, 6, "nine tokens");
            break;
        case 5:
            experts(1, 4, "experts of a token");
            break;
        case 6:
            experts(3, 4, "experts of three tokens");
            break;
        case 7:
            long_rows(2, 1536, "rows of two turns");
            break;
        case 8: /* spans of more items than 32 heads have in chunks of 256 */
            attention_of(2, 32, 32, 2300, 3, "eight chunks");
            break;
        case 9:
            narrow("seventy tokens");
            break;
        default:
            long_rows(20, 2112, "twenty tokens, rows of several turns");
        }
    }
    free(first);
    first = NULL, device = NULL;
}

Test(fused, bits_are_those_of_any_device)
{
    for (int i = 0; i <= 10; i++)
        on_devices(i);
}

/* A product's y is the next one's x; and a norm in place over what packed x was made of. */
Test(fused, packed_x_of_a_product)
{
    struct program p = program(3);
    struct gr_ten x = ten(&p, 2, 128), y = ten(&p, 2, 96), z = ten(&p, 2, 64);
    matmul(&p, x, y, none);
    matmul(&p, y, z, none);
    same(&p, 3, "product of a product");
    done(&p);
    p = program(4);
    x = ten(&p, 2, 128), y = ten(&p, 2, 96), z = ten(&p, 2, 64);
    matmul(&p, x, y, none);
    norm(&p, x, x, 128);
    matmul(&p, x, z, none);
    same(&p, 3, "a norm in place");
    done(&p);
}

Test(fused, attention)
{
    attention(1, 8, 2, "a token");
    attention(3, 8, 3, "three tokens");
    attention(1, 8 * N_KV, 2, "a token, heads of a group are a chunk");
    attention(3, 8 * N_KV, 2, "three tokens, heads of a group are a chunk");
    attention(24, 8 * N_KV, 2, "24 tokens");
    attention(25, 8 * N_KV, 3, "25 tokens");
}

/* ---- what does not ---- */

/* Two products of x, whose results lie where `second` and `res` say. */
static void two_products(int64_t second, bool reads_first, bool over_x, int64_t launches,
                         const char *what)
{
    struct program p = program(5);
    struct gr_ten x = ten(&p, 2, 64), y = ten(&p, 2, 64), other = ten(&p, 4, 64);
    struct gr_ten z = over_x ? x : second < 0 ? over(other, 2, 64, 0) : over(y, 2, 64, second);
    matmul(&p, x, y, none);
    matmul(&p, x, z, reads_first ? y : none);
    same(&p, launches, what);
    done(&p);
}

Test(fused, products_apart)
{
    two_products(-1, false, false, 2, "apart");
    two_products(64, false, false, 3, "the second over the first");
    two_products(-1, true, false, 3, "the second adds the first");
    two_products(-1, false, true, 3, "the second over x");
}

static void two_norms(int64_t from, int64_t to, int64_t launches, const char *what)
{
    struct program p = program(6);
    struct gr_ten a = ten(&p, 4, 64), y = ten(&p, 4, 64), z = ten(&p, 2, 64), b = ten(&p, 2, 64);
    a = over(a, 2, 64, 0), y = over(y, 2, 64, 0);
    norm(&p, a, y, 32);
    norm(&p, from < 0 ? b : over(y, 2, 64, from), to < 0 ? z : over(a, 2, 64, to), 32);
    same(&p, launches, what);
    done(&p);
}

Test(fused, norms_apart)
{
    two_norms(-1, -1, 1, "apart");
    two_norms(0, -1, 2, "of the first one's result");
    two_norms(64, -1, 2, "of a part of it");
    two_norms(-1, 32, 2, "over what the first one reads");
}

/* K and V stored, and Q turned to where `y` says: its own place, over K, V, the table, cells. */
static void store_and_turn(int where, int64_t launches)
{
    struct program p = program(7);
    struct gr_ten k = ten(&p, 2, 64), v = ten(&p, 4, 64), q = ten(&p, 2, 128), cs = ten(&p, 2, D);
    v = over(v, 2, 64, 0);
    store(&p, k, v, D, cs);
    const struct gr_ten of[] = {q, k, v, over(cs, 1, 64, 0), p.node[0].a.kv_store.cells};
    struct gr_ten y = over(of[where], 2, 128, 0);
    if (where == 3) /* two tokens' table is 64 numbers */
        q = over(q, 2, 32, 0), y = over(cs, 2, 32, 0);
    if (where == 4) {
        (void)ten(&p, 4, 64);
        q = over(q, 2, 32, 0), y = over(y, 2, 32, 0);
    }
    y.dtype = GR_F32;
    rope(&p, q, y, D, cs);
    if (where == 3) /* which reads a table of its own */
        p.node[1].a.rope.cs = ten(&p, 2, D);
    same(&p, launches, "stored and turned");
    done(&p);
}

Test(fused, store_and_turn)
{
    store_and_turn(0, 1);
    for (int where = 1; where <= 4; where++)
        store_and_turn(where, 2);
}

/* Packed x is that of a norm's result for the product that reads it, not for one that reads others.
 */
static void norm_and_product(bool others, int64_t launches)
{
    struct program p = program(8);
    struct gr_ten x = ten(&p, 2, 128), y = ten(&p, 2, 128), z = ten(&p, 2, 64);
    norm(&p, x, y, 128);
    matmul(&p, others ? x : y, z, none);
    same(&p, launches, others ? "of others" : "of the norm");
    done(&p);
}

Test(fused, packed_x_of_a_norm)
{
    norm_and_product(false, 2);
    norm_and_product(true, 3);
}
