/* The same for many tokens: launches that run beside each other, and results that are written as
 * packed x alone. */
#include "tests/emu/session/program.h"

TestSuite(prompts, .init = setup);

enum { D_STORED = 32 }; /* columns of heads of K that are stored */

/* GLU of products of many tokens, which are used nowhere else: norms then write over them. */
static void tiles(int64_t n_tok, int64_t n_ff, bool experts, bool gate_last, uint32_t ends,
                  int64_t launches, const char *what)
{
    struct program p = program(12);
    int32_t chosen[2 * 40];
    const int64_t n = experts ? 2 * n_tok : n_tok;
    struct gr_ten x = ten(&p, n_tok, 128), gate = ten(&p, n, n_ff), up = ten(&p, n, n_ff),
                  y = ten(&p, n, n_ff), ids = none;
    if (experts) {
        cr_assert(n <= 2 * 40);
        for (int64_t i = 0; i < n; i++)
            chosen[i] = (int32_t)(i * i % 5);
        ids = integers(&p, chosen, n);
        ids.rows = n_tok, ids.cols = 2, ids.row_bytes = 8;
    }
    for (int i = 0; i < 2; i++)
        if (experts)
            matmul_id(&p, x, ids, i == gate_last ? gate : up);
        else
            matmul(&p, x, i == gate_last ? gate : up, none);
    glu(&p, gate, up, y);
    p.node[p.n - 1].ends = ends;
    norm(&p, y, gate, n_ff);
    norm(&p, y, up, n_ff);
    same_within(&p, launches, 0, what);
    done(&p);
}

Test(prompts, glu_of_tiles)
{
    tiles(40, 528, false, false, 3, 3, "forty tokens");
    tiles(40, 528, false, true, 3, 3, "forty tokens, the gate last");
    tiles(40, 528, false, false, 1, 4, "forty tokens, up is read later");
    tiles(130, 80, false, false, 3, 3, "two tiles of tokens, one and a quarter of rows");
    tiles(40, 200, true, false, 0, 5, "experts, apart");
    tiles(40, 200, true, false, 3, 4, "experts");
    tiles(40, 200, true, true, 3, 4, "experts, the gate last");
}

/* Sets columns [lo, hi) of a row of t. */
static void fill(struct program *p, struct gr_ten t, int64_t row, int64_t lo, int64_t hi, float v)
{
    float *at = p->start + ((float *)t.data - p->at) + row * t.cols;
    for (int64_t i = lo; i < hi; i++)
        at[i] = v;
}

enum numbers { ALIKE, OF_ANY_SIZE, ZEROS };

/* GLU of products of many tokens as packed x of the next, the only one to read it: of numbers that
 * are alike, or too large or too small for what they are multiplied with by default. */
static void glu_of_tiles(int64_t n_tok, int64_t n_ff, uint32_t type, enum numbers numbers,
                         uint32_t ends, float most, const char *what)
{
    struct program p = program(15);
    struct gr_ten x = ten(&p, n_tok, 128), gate = ten(&p, n_tok, n_ff), up = ten(&p, n_tok, n_ff),
                  y = ten(&p, n_tok, 64), z = ten(&p, n_tok, n_ff), bias[2] = {none, none};
    for (int i = 0; i < 2; i++)
        node(&p, GR_OP_MATMUL)->a.matmul = (struct gr_args_matmul){
            .x = x, .w = quants(&p, type, n_ff, 128), .y = i ? up : gate, .scale = 1};
    for (int i = 0; i < 2 && numbers == OF_ANY_SIZE; i++) {
        bias[i] = ten(&p, 1, n_ff);
        p.node[i].a.matmul.b = bias[i];
    }
    if (numbers == OF_ANY_SIZE) { /* groups of 64 columns */
        fill(&p, bias[0], 0, 64, 128, 300), fill(&p, bias[1], 0, 64, 128, 3e4f);
        fill(&p, bias[0], 0, 192, 256, -60);
        fill(&p, bias[1], 0, 256, n_ff, 1e-9f);
    }
    for (int64_t t = 0; t < n_tok && numbers != ALIKE; t++)
        if (numbers == ZEROS || t % 5 == 1)
            fill(&p, x, t, 0, 128, 0);
        else if (t % 5 == 2) /* all of its groups are small */
            fill(&p, x, t, 0, 128, 1e-6f);
    glu(&p, gate, up, gate);
    p.node[p.n - 1].ends = 3;
    matmul(&p, gate, y, none);
    p.node[p.n - 1].ends = ends;
    if (ends)
        norm(&p, z, gate, n_ff);
    norm(&p, z, up, n_ff);
    same_within(&p, 5, most, what);
    done(&p);
}

Test(prompts, glu_as_packed_x)
{
    const uint32_t q8 = GR_Q8_0, q4 = GR_Q4_0;
    glu_of_tiles(40, 528, q8, ALIKE, 1, 1e-6f, "forty tokens");
    glu_of_tiles(66, 512, q8, ALIKE, 1, 1e-6f, "halves of a tile");
    glu_of_tiles(90, 272, q4, ALIKE, 1, 1e-6f, "ninety tokens by a narrow kernel");
    glu_of_tiles(90, 272, q4, ALIKE, 0, 0, "the same, GLU is read later");
    glu_of_tiles(40, 528, q8, OF_ANY_SIZE, 1, 0.1f, "numbers of any size");
    glu_of_tiles(40, 528, q8, ZEROS, 1, 0, "zeros");
    glu_of_tiles(40, 528, q8, ALIKE, 0, 0, "GLU is read later");
    glu_of_tiles(40, 80, q8, ALIKE, 1, 0, "its memory does not hold it");
}

/* Q and K, V of another type, and a product of theirs: of V, or of x; tiles of one piece of work or
 * of several. */
static void beside(int64_t n_tok, int64_t cols, bool of_v, int64_t launches, const char *what)
{
    struct program p = program(13);
    struct gr_ten x = ten(&p, n_tok, cols), q = ten(&p, n_tok, 272), k = ten(&p, n_tok, 48),
                  v = ten(&p, n_tok, 64), y = ten(&p, n_tok, 64);
    matmul(&p, x, q, none);
    matmul(&p, x, k, none);
    node(&p, GR_OP_MATMUL)->a.matmul =
        (struct gr_args_matmul){.x = x, .w = blocks(&p, 64, cols), .y = v, .scale = 1};
    matmul(&p, of_v ? v : x, y, v);
    same(&p, launches, what);
    done(&p);
}

Test(prompts, beside)
{
    beside(40, 128, true, 5, "forty tokens");
    beside(70, 1056, true, 5, "seventy tokens, halves of tiles in segments");
    beside(130, 96, false, 4, "three tiles of tokens or more, and what adds V behind it");
}

/* Q, K and V of `k` heads of d columns, V of other weights, K turned by n_rot columns. */
struct kept {
    int64_t n_tok, k, d;
    int32_t kind;
    int64_t n_rot;
    uint32_t type, type_v, cache;
    uint32_t ends;
};

/* K and V go to the cache where their products are stored, or by a launch of their own. */
static void kept(struct kept m, int64_t launches, const char *what)
{
    struct program p = program(19);
    int32_t cells[130];
    for (int i = 0; i < 130; i++)
        cells[i] = (i * 37 + 5) % 140;
    const int64_t n = m.n_tok, cols = m.k * m.d;
    struct gr_ten x = ten(&p, n, 128), y[] = {ten(&p, n, 80), ten(&p, n, cols), ten(&p, n, cols)},
                  z = ten(&p, n, cols), cs = ten(&p, n, m.n_rot), k_cache, v_cache;
    k_cache = m.cache == GR_F16 ? cache(&p, 140, cols) : ten(&p, 140, cols);
    v_cache = cache(&p, 140, cols);
    for (int i = 0; i < 3; i++) {
        const uint32_t type = i == 2 ? m.type_v : m.type;
        node(&p, GR_OP_MATMUL)->a.matmul =
            (struct gr_args_matmul){.x = x,
                                    .w = type == GR_F16 ? matrices(&p, 1, y[i].cols, 128)
                                                        : quants(&p, type, y[i].cols, 128),
                                    .b = i == 1 ? ten(&p, 1, cols) : none,
                                    .y = y[i],
                                    .scale = 1};
    }
    struct gr_node *s = node(&p, GR_OP_KV_STORE);
    s->ends = m.ends;
    s->a.kv_store = (struct gr_args_kv_store){.k = y[1],
                                              .v = y[2],
                                              .cs = cs,
                                              .cells = integers(&p, cells, n),
                                              .k_cache = k_cache,
                                              .v_cache = v_cache,
                                              .d_head_k = m.d,
                                              .kind = m.kind};
    for (int i = 1; i <= 2 && m.ends; i++)
        norm(&p, z, y[i], m.d);
    same_within(&p, launches, 0, what);
    done(&p);
}

Test(prompts, kept_in_the_cache)
{
    const uint32_t q8 = GR_Q8_0, q4 = GR_Q4_0, f16 = GR_F16;
    kept((struct kept){70, 2, 64, GR_ROPE_NORM, 64, q8, q8, f16, 3}, 3, "neighbours turn");
    kept((struct kept){66, 1, 128, GR_ROPE_NEOX, 128, q8, q8, f16, 3}, 3, "halves of a head turn");
    kept((struct kept){70, 6, 32, GR_ROPE_NEOX, 16, q4, q8, f16, 3}, 4, "V of another type");
    kept((struct kept){130, 1, 64, GR_ROPE_NONE, 2, q8, q8, f16, 3}, 3, "nothing turns");
    kept((struct kept){70, 1, 96, GR_ROPE_NORM, 96, q8, q8, f16, 3}, 4, "heads over two tiles");
    kept((struct kept){70, 2, 64, GR_ROPE_NORM, 64, q8, q8, GR_F32, 3}, 4, "a cache of f32");
    kept((struct kept){70, 2, 64, GR_ROPE_NORM, 64, f16, f16, f16, 3}, 4, "weights of f16");
    kept((struct kept){70, 2, 64, GR_ROPE_NORM, 64, q8, q8, f16, 2}, 4, "K is read later");
    kept((struct kept){64, 2, 64, GR_ROPE_NORM, 64, q8, q8, f16, 3}, 4, "few tokens");
}

Test(prompts, bits_are_those_of_any_device)
{
    static const char *const devices[] = {"sm=132", "sm=1", "sm=2"};
    const struct kept heads = {70, 6, 32, GR_ROPE_NEOX, 32, GR_Q4_0, GR_Q8_0, GR_F16, 3};
    for (size_t i = 0; i < GR_COUNT(devices); i++) {
        device = devices[i];
        beside(70, 1056, true, 5, "halves of tiles");
    }
    free(first);
    first = NULL;
    for (size_t i = 0; i < GR_COUNT(devices); i++) {
        device = devices[i];
        kept(heads, 4, "K and V in the cache");
    }
    free(first);
    first = NULL, device = NULL;
}

enum { LONG = 70, N_TOK = LONG + 10, N_CELL = 100, HEADS = 256, HEADS_KV = 128 };

/* Attention of q over cells with heads of d columns, by a long run of tokens and a short one, or by
 * one run. */
static struct gr_node *attend(struct program *p, struct gr_ten q, struct gr_ten v, struct gr_ten y,
                              int64_t d, bool one_run)
{
    static int32_t list[N_CELL], span[3 * N_TOK];
    for (int i = 0; i < N_CELL; i++)
        list[i] = (i * 7) % N_CELL;
    for (int i = 0; i < N_TOK; i++) {
        const int from = one_run || i < LONG ? 0 : LONG, lo = from ? LONG + 10 : 0;
        span[3 * i] = span[3 * i + 1] = lo, span[3 * i + 2] = lo + 1 + i - from;
    }
    struct gr_ten spans = integers(p, span, 3 * N_TOK);
    spans.rows = N_TOK, spans.cols = 3, spans.row_bytes = 12;
    struct gr_node *n = node(p, GR_OP_ATTN);
    n->a.attn = (struct gr_args_attn){.q = q,
                                      .k = cache(p, N_CELL, HEADS_KV),
                                      .v = v,
                                      .list = integers(p, list, N_CELL),
                                      .span = spans,
                                      .pos = integers(p, list, N_TOK),
                                      .key_pos = integers(p, list, N_CELL),
                                      .y = y,
                                      .n_head = HEADS / d,
                                      .n_head_kv = HEADS_KV / d,
                                      .d_k = d,
                                      .d_v = d,
                                      .scale = 0.2f,
                                      .one_run = one_run};
    return n;
}

struct many {
    int64_t d;
    uint32_t type; /* of V: GR_F16, GR_BF16 */
    enum numbers numbers;
    bool one_run;
    uint32_t ends;
};

/* Attention as packed x of the product behind, the only one to read it. One token's query is beyond
 * f16, so that its outputs are computed again. */
static void attention_of_many(struct many m, int64_t launches, const char *what)
{
    struct program p = program(16);
    const bool f16 = m.type == GR_F16;
    struct gr_ten q = ten(&p, N_TOK, HEADS), y = ten(&p, N_TOK, HEADS), out = ten(&p, N_TOK, 64),
                  z = ten(&p, N_TOK, HEADS), v = cache(&p, N_CELL, HEADS_KV);
    fill(&p, q, 5, 0, 64, 1e6f);
    v.dtype = m.type;
    uint16_t *rows = (uint16_t *)(void *)(p.start + ((float *)v.data - p.at));
    for (int i = 0; i < N_CELL * HEADS_KV && m.numbers == OF_ANY_SIZE; i++)
        if (i < HEADS_KV) /* all that the first token sees */
            rows[i] = f16 ? 0x0010 : 0x3580;
        else if (i % HEADS_KV >= 64)
            rows[i] = f16 ? rows[i] | 0x7800 : 0x4600 | (rows[i] & 0x807f);
    for (int i = 0; i < N_CELL * HEADS_KV && m.numbers == ZEROS; i++)
        rows[i] = 0;
    (void)attend(&p, q, v, y, m.d, m.one_run);
    matmul(&p, y, out, none);
    p.node[p.n - 1].ends = m.ends;
    if (m.ends)
        norm(&p, z, y, HEADS);
    same_within(&p, launches, m.numbers == OF_ANY_SIZE ? 0.1f : 1e-6f, what);
    done(&p);
}

Test(prompts, attention_of_many)
{
    attention_of_many((struct many){64, GR_F16, ALIKE, false, 1}, 5, "heads of 64 columns");
    attention_of_many((struct many){128, GR_F16, ALIKE, false, 1}, 5, "heads of 128 columns");
    attention_of_many((struct many){64, GR_F16, OF_ANY_SIZE, false, 1}, 5, "numbers of any size");
    attention_of_many((struct many){64, GR_F16, ZEROS, false, 1}, 5, "zeros");
    attention_of_many((struct many){64, GR_F16, ALIKE, false, 0}, 5, "y is read later");
    attention_of_many((struct many){64, GR_BF16, OF_ANY_SIZE, false, 1}, 5, "bf16 of any size");
}

/* A step that is one run has no launch for short ones, and one for factors of rows only where f16
 * may not hold what comes out. */
Test(prompts, attention_of_one_run)
{
    attention_of_many((struct many){64, GR_F16, ALIKE, true, 1}, 3, "heads of 64 columns");
    attention_of_many((struct many){128, GR_F16, OF_ANY_SIZE, true, 1}, 3, "numbers of any size");
    attention_of_many((struct many){64, GR_F16, ALIKE, true, 0}, 3, "y is read later");
    attention_of_many((struct many){64, GR_BF16, OF_ANY_SIZE, true, 1}, 4, "bf16 of any size");
    attention_of_many((struct many){64, GR_BF16, ZEROS, true, 1}, 4, "zeros of bf16");
}

/* K and V stored, and Q turned by attention as it is by ROPE, or by ROPE where it is read later. */
static void turned(int32_t kind, int64_t d, int64_t n_rot, bool in_place, uint32_t ends,
                   const char *what)
{
    struct program p = program(18);
    struct gr_ten q = ten(&p, N_TOK, HEADS), v = cache(&p, N_CELL, HEADS_KV),
                  turns = in_place ? q : ten(&p, N_TOK, HEADS), y = ten(&p, N_TOK, HEADS),
                  z = ten(&p, N_TOK, HEADS);
    fill(&p, q, 5, 0, 64, 1e6f);
    store(&p, ten(&p, 2, 64), ten(&p, 2, 64), D_STORED, ten(&p, 2, D_STORED));
    rope(&p, q, turns, d, ten(&p, N_TOK, n_rot));
    p.node[p.n - 1].a.rope.kind = kind;
    attend(&p, turns, v, y, d, true)->ends = ends;
    if (ends)
        norm(&p, z, turns, HEADS);
    same_within(&p, ends ? 3 : 2, 0, what);
    done(&p);
}

Test(prompts, queries_turned_by_attention)
{
    turned(GR_ROPE_NORM, 64, 64, false, 1, "neighbours");
    turned(GR_ROPE_NEOX, 64, 64, false, 1, "halves");
    turned(GR_ROPE_NORM, 128, 96, true, 1, "neighbours, a part of each head, in place");
    turned(GR_ROPE_NEOX, 128, 32, true, 1, "halves of a part of each head, in place");
    turned(GR_ROPE_NEOX, 64, 64, false, 0, "it is read later");
}

/* A norm and two products of it, the second with weights of `type`, that are all that reads it;
 * with `reads` the rest reads it as well. */
static void norm_alone(int64_t n_tok, uint32_t type, bool reads, int64_t launches, const char *what)
{
    struct program p = program(17);
    struct gr_ten x = ten(&p, n_tok, 1056), y = ten(&p, n_tok, 1056), z = ten(&p, n_tok, 64);
    norm(&p, x, y, 1056);
    matmul(&p, y, ten(&p, n_tok, 48), none);
    node(&p, GR_OP_MATMUL)->a.matmul =
        (struct gr_args_matmul){.x = y,
                                .w = type == GR_F32 ? exact(&p, 64, 1056) : blocks(&p, 64, 1056),
                                .y = z,
                                .scale = 1};
    p.node[2].ends = !reads;
    if (!reads)
        norm(&p, x, y, 33 * 32 / 2); /* over it, so that only the products are compared */
    same(&p, launches, what);
    done(&p);
}

Test(prompts, norm_as_packed_x)
{
    norm_alone(40, GR_Q8_0, false, 4, "forty tokens");
    norm_alone(12, GR_Q8_0, false, 4, "twelve tokens");
    norm_alone(40, GR_Q8_0, true, 3, "it is read later");
    norm_alone(40, GR_F32, false, 4, "one reads f32");
}

/* Two products of x by tiles, of types that share no launch: the second adds the first's result, or
 * is written over it, and waits for it. */
static void two_types(bool over_first)
{
    struct program p = program(14);
    struct gr_ten x = ten(&p, 40, 64), y = ten(&p, 40, 64), z = ten(&p, 40, 64);
    matmul(&p, x, y, none);
    node(&p, GR_OP_MATMUL)->a.matmul = (struct gr_args_matmul){.x = x,
                                                               .w = blocks(&p, 64, 64),
                                                               .y = over_first ? y : z,
                                                               .res = over_first ? none : y,
                                                               .scale = 1};
    same(&p, 3, over_first ? "over the first" : "adds the first");
    done(&p);
}

Test(prompts, beside_not)
{
    two_types(false);
    two_types(true);
}
