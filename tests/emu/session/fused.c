/* Operations that share a launch give what they give in launches of their own, and do so only where
 * neither needs what the other changes. Each program runs node by node and as one segment, over the
 * same memory. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gpurun.h"
#include "gr/backend.h"
#include "gr/op.h"
#include "gr/status.h"
#include "tests/emu/session/emulator.h"

enum { N_FLOAT = 1 << 17, N_MATRIX = 6, MAX_NODE = 8 };

struct program {
    struct gr_backend *b;
    float *start, *at, *alone, *together; /* N_FLOAT each: before, and after each way */
    int64_t used;
    void *matrix[N_MATRIX];
    int n_matrix, n;
    struct gr_node node[MAX_NODE];
    struct gr_rng rng;
};

static int64_t (*count)(const char *symbol);
static int (*configure)(const char *options);

/* For programs on several devices: the device (NULL = as it is), and the result of the first
 * one. */
static const char *device;
static float *first;

static void setup(void)
{
    *(void **)(void *)&count = emu_symbol("emu_driver_count");
    *(void **)(void *)&configure = emu_symbol("emu_driver_configure");
}

TestSuite(fused, .init = setup);

/* ---- programs ---- */

static float draw(struct program *p)
{
    return (float)(gr_rng_u32(&p->rng) % 2001) / 1000.0f - 1;
}

static struct program program(uint64_t seed)
{
    struct program p = {.rng = gr_rng_new(seed)};
    if (device)
        cr_assert_eq(configure(device), 0);
    cr_assert_eq(gr_cuda_devices.open(&p.b, 0, &(struct gr_device_opt){0}), 0, "%s", gr_error());
    p.start = calloc(N_FLOAT, 4), p.alone = calloc(N_FLOAT, 4), p.together = calloc(N_FLOAT, 4);
    p.at = p.b->api->alloc(p.b, N_FLOAT * 4);
    cr_assert(p.start && p.alone && p.together && p.at);
    for (int i = 0; i < N_FLOAT; i++)
        p.start[i] = draw(&p);
    return p;
}

/* A tensor of 4-byte numbers, [rows, cols], behind those there are. */
static struct gr_ten ten(struct program *p, int64_t rows, int64_t cols)
{
    struct gr_ten t = {.data = p->at + p->used,
                       .batch = 1,
                       .rows = rows,
                       .cols = cols,
                       .row_bytes = cols * 4,
                       .dtype = GR_F32};
    p->used += (rows * cols + 63) / 64 * 64;
    cr_assert(p->used <= N_FLOAT);
    return t;
}

/* A tensor that lies `columns` behind the beginning of another one. */
static struct gr_ten over(struct gr_ten t, int64_t rows, int64_t cols, int64_t columns)
{
    t.data = (float *)t.data + columns;
    t.rows = rows, t.cols = cols, t.row_bytes = cols * 4;
    return t;
}

static struct gr_ten integers(struct program *p, const int32_t *v, int64_t n)
{
    struct gr_ten t = ten(p, 1, n);
    memcpy(p->start + ((float *)t.data - p->at), v, (size_t)n * 4);
    t.dtype = GR_I32;
    return t;
}

/* Rows of f16, an even number of columns. */
static struct gr_ten cache(struct program *p, int64_t rows, int64_t cols)
{
    struct gr_ten t = ten(p, rows, cols / 2);
    uint16_t *v = (uint16_t *)(void *)(p->start + ((float *)t.data - p->at));
    for (int64_t i = 0; i < rows * cols; i++)
        v[i] = (uint16_t)(0x3800 | (gr_rng_u32(&p->rng) & 0x83ff)); /* 1/2 .. 1, both signs */
    t.cols = cols, t.dtype = GR_F16;
    return t;
}

/* n packed matrices of these numbers. */
static struct gr_ten packed(struct program *p, void *data, uint32_t type, int64_t n, int64_t rows,
                            int64_t cols)
{
    struct gr_ten host = {.data = data,
                          .batch = n,
                          .rows = rows,
                          .cols = cols,
                          .row_bytes = (int64_t)gr_row_bytes(type, (uint64_t)cols),
                          .dtype = type},
                  t = host;
    void *at = p->b->api->alloc(p->b, p->b->api->weight_bytes(p->b, &host, true));
    cr_assert_not_null(at);
    cr_assert_eq(p->b->api->weight_upload(p->b, &host, true, at, &t), 0, "%s", gr_error());
    cr_assert_eq(p->b->api->sync(p->b), 0, "%s", gr_error());
    p->matrix[p->n_matrix++] = at;
    return t;
}

/* The same of f16. */
static struct gr_ten matrices(struct program *p, int64_t n, int64_t rows, int64_t cols)
{
    uint16_t *v = calloc((size_t)(n * rows * cols), 2);
    for (int64_t i = 0; i < n * rows * cols; i++)
        v[i] = (uint16_t)(0x2000 | (gr_rng_u32(&p->rng) & 0x83ff)); /* 2^-7 .. 2^-6, both signs */
    struct gr_ten t = packed(p, v, GR_F16, n, rows, cols);
    free(v);
    return t;
}

/* A matrix of Q8_0. */
static struct gr_ten blocks(struct program *p, int64_t rows, int64_t cols)
{
    const size_t n = (size_t)(rows * cols / 32), bytes = 34;
    uint8_t *v = calloc(n, bytes);
    for (size_t i = 0; i < n; i++) {
        v[i * bytes + 1] = 0x14; /* a scale of 2^-10 */
        for (size_t k = 2; k < bytes; k++)
            v[i * bytes + k] = (uint8_t)(gr_rng_u32(&p->rng) & 0xff);
    }
    struct gr_ten t = packed(p, v, GR_Q8_0, 1, rows, cols);
    free(v);
    return t;
}

/* A matrix of f32. */
static struct gr_ten exact(struct program *p, int64_t rows, int64_t cols)
{
    float *v = calloc((size_t)(rows * cols), 4);
    for (int64_t i = 0; i < rows * cols; i++)
        v[i] = draw(p) / 8;
    struct gr_ten t = packed(p, v, GR_F32, 1, rows, cols);
    free(v);
    return t;
}

static struct gr_node *node(struct program *p, enum gr_op op)
{
    cr_assert(p->n < MAX_NODE);
    struct gr_node *n = &p->node[p->n++];
    *n = (struct gr_node){.op = op};
    return n;
}

static void matmul(struct program *p, struct gr_ten x, struct gr_ten y, struct gr_ten res)
{
    node(p, GR_OP_MATMUL)->a.matmul = (struct gr_args_matmul){
        .x = x, .w = matrices(p, 1, y.cols, x.cols), .y = y, .res = res, .scale = 1};
}

static void matmul_id(struct program *p, struct gr_ten x, struct gr_ten ids, struct gr_ten y)
{
    node(p, GR_OP_MATMUL_ID)->a.matmul_id =
        (struct gr_args_matmul_id){.x = x, .w = matrices(p, 5, y.cols, x.cols), .ids = ids, .y = y};
}

static void norm(struct program *p, struct gr_ten x, struct gr_ten y, int64_t group)
{
    node(p, GR_OP_NORM)->a.norm = (struct gr_args_norm){
        .x = x, .w = ten(p, 1, group), .y = y, .group = group, .eps = 1e-5f, .kind = GR_NORM_RMS};
}

static void glu(struct program *p, struct gr_ten a, struct gr_ten b, struct gr_ten y)
{
    node(p, GR_OP_GLU)->a.glu = (struct gr_args_glu){.a = a, .b = b, .y = y, .kind = GR_SILU};
}

static void store(struct program *p, struct gr_ten k, struct gr_ten v, int64_t d, struct gr_ten cs)
{
    static const int32_t cells[] = {5, 2, 7, 0};
    node(p, GR_OP_KV_STORE)->a.kv_store =
        (struct gr_args_kv_store){.k = k,
                                  .v = v,
                                  .cs = cs,
                                  .cells = integers(p, cells, k.rows),
                                  .k_cache = ten(p, 8, k.cols),
                                  .v_cache = ten(p, 8, v.cols),
                                  .d_head_k = d,
                                  .kind = GR_ROPE_NEOX};
}

static void rope(struct program *p, struct gr_ten x, struct gr_ten y, int64_t d, struct gr_ten cs)
{
    node(p, GR_OP_ROPE)->a.rope =
        (struct gr_args_rope){.x = x, .cs = cs, .y = y, .d_head = d, .kind = GR_ROPE_NEOX};
}

/* ---- both ways ---- */

static void run(struct program *p, const struct gr_node *node, int n)
{
    const struct gr_segment s = {node, n, NULL, 0};
    void *exec;
    cr_assert_eq(p->b->api->segment_new(p->b, &s, &exec), 0, "%s", gr_error());
    cr_assert_eq(p->b->api->segment_run(p->b, exec, NULL, NULL), 0, "%s", gr_error());
    p->b->api->segment_free(p->b, &exec);
}

static void begin(struct program *p)
{
    cr_assert_eq(p->b->api->upload(p->b, p->at, p->start, N_FLOAT * 4), 0, "%s", gr_error());
}

static void end(struct program *p, float *to)
{
    cr_assert_eq(p->b->api->download(p->b, to, p->at, N_FLOAT * 4), 0, "%s", gr_error());
}

/* The first device's numbers are kept, those of the others are the same ones. */
static void as_first(const struct program *p, const char *what)
{
    if (first) {
        cr_expect_eq(memcmp(first, p->together, N_FLOAT * 4), 0, "%s: other bits on %s", what,
                     device);
        return;
    }
    first = malloc(N_FLOAT * 4);
    cr_assert_not_null(first);
    memcpy(first, p->together, N_FLOAT * 4);
}

/* Numbers of launches are those of compute capability 9.0. */
static bool counts_launches(void)
{
    struct gr_device d;
    cr_assert_eq(gr_device_get(0, &d), 0);
    return d.cc >= 90;
}

/* Both ways; `launches` is what the segment takes. Numbers may be off by so much; 0: no bit is. */
static void same_within(struct program *p, int64_t launches, float most, const char *what)
{
    begin(p);
    for (int i = 0; i < p->n; i++)
        run(p, &p->node[i], 1);
    end(p, p->alone);
    for (int again = 0; again < 2; again++) {
        begin(p);
        int64_t before = count("kernel");
        run(p, p->node, p->n);
        end(p, p->together);
        cr_expect(count("kernel") - before == launches || !counts_launches(),
                  "%s: %lld launches, expected %lld", what, (long long)(count("kernel") - before),
                  (long long)launches);
        int64_t i = 0;
        while (i < N_FLOAT && (memcmp(&p->alone[i], &p->together[i], 4) == 0 ||
                               (most > 0 && fabsf(p->alone[i] - p->together[i]) <= most)))
            i++;
        cr_expect_eq(i, N_FLOAT, "%s: number %lld is %g, expected %g", what, (long long)i,
                     (double)p->together[i % N_FLOAT], (double)p->alone[i % N_FLOAT]);
    }
    if (device)
        as_first(p, what);
}

/* A norm's sum may be off by its last bit, and then a number of f16 behind it by 2^-11 of itself,
 * of which a product has up to a few dozen. */
static void same(struct program *p, int64_t launches, const char *what)
{
    same_within(p, launches, 2e-3f, what);
}

static void done(struct program *p)
{
    for (int i = 0; i < p->n_matrix; i++)
        p->b->api->free(p->b, p->matrix[i]);
    p->b->api->free(p->b, p->at);
    p->b->api->close(&p->b);
    free(p->start);
    free(p->alone);
    free(p->together);
}

static const struct gr_ten none = {0};

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

Test(fused, glu_of_tiles)
{
    tiles(40, 528, false, false, 3, 3, "forty tokens");
    tiles(40, 528, false, true, 3, 3, "forty tokens, the gate last");
    tiles(40, 528, false, false, 1, 4, "forty tokens, up is read later");
    tiles(130, 80, false, false, 3, 3, "two tiles of tokens, one and a quarter of rows");
    tiles(40, 200, true, false, 0, 5, "experts, apart");
    tiles(40, 200, true, false, 3, 4, "experts");
    tiles(40, 200, true, true, 3, 4, "experts, the gate last");
}

/* The same by two of five experts a token, and what they say summed. */
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

Test(fused, beside)
{
    beside(40, 128, true, 5, "forty tokens");
    beside(70, 1056, true, 5, "seventy tokens, halves of tiles in segments");
    beside(130, 96, false, 4, "three tiles of tokens or more, and what adds V behind it");
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
        case 8:
            long_rows(20, 2112, "twenty tokens, rows of several turns");
            break;
        default:
            beside(70, 1056, true, 5, "halves of tiles");
        }
    }
    free(first);
    first = NULL, device = NULL;
}

Test(fused, bits_are_those_of_any_device)
{
    for (int i = 0; i <= 9; i++)
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

/* Attention in three chunks, and the product of what comes out. */
static void attention(int64_t n_tok, int64_t n_head, int64_t launches, const char *what)
{
    enum { N_CELL = 600, N_TOK = 25 };
    static int32_t list[N_CELL], span[3 * N_TOK];
    struct program p = program(9);
    for (int i = 0; i < N_CELL; i++)
        list[i] = (i * 7) % N_CELL;
    for (int i = 0; i < N_TOK; i++)
        span[3 * i] = span[3 * i + 1] = 10 * i, span[3 * i + 2] = N_CELL - i;
    struct gr_ten y = ten(&p, n_tok, n_head * D), out = ten(&p, n_tok, 64),
                  spans = integers(&p, span, 3 * n_tok);
    spans.rows = n_tok, spans.cols = 3, spans.row_bytes = 12;
    node(&p, GR_OP_ATTN)->a.attn = (struct gr_args_attn){.q = ten(&p, n_tok, n_head * D),
                                                         .k = cache(&p, N_CELL, N_KV * D),
                                                         .v = cache(&p, N_CELL, N_KV * D),
                                                         .list = integers(&p, list, N_CELL),
                                                         .span = spans,
                                                         .pos = integers(&p, list, n_tok),
                                                         .key_pos = integers(&p, list, N_CELL),
                                                         .y = y,
                                                         .n_head = n_head,
                                                         .n_head_kv = N_KV,
                                                         .d_k = D,
                                                         .d_v = D,
                                                         .scale = 0.2f};
    matmul(&p, y, out, none);
    same(&p, launches, what);
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

/* Two products of x by tiles, of types that share no launch: the second adds the first's result, or
 * is written over it, and waits for it. */
static void two_types(bool over_first)
{
    struct program p = program(14);
    struct gr_ten x = ten(&p, 40, 64), y = ten(&p, 40, 64), z = ten(&p, 40, 64);
    matmul(&p, x, y, none);
    node(&p, GR_OP_MATMUL)->a.matmul =
        (struct gr_args_matmul){.x = x,
                                .w = blocks(&p, 64, 64),
                                .y = over_first ? y : z,
                                .res = over_first ? none : y,
                                .scale = 1};
    same(&p, 3, over_first ? "over the first" : "adds the first");
    done(&p);
}

Test(fused, beside_not)
{
    two_types(false);
    two_types(true);
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
