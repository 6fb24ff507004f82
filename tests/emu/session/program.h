/* Programs of a few nodes, which run node by node and as one segment over the same memory: what
 * they give both ways is compared, and launches are counted. */
#ifndef EMU_SESSION_PROGRAM_H
#define EMU_SESSION_PROGRAM_H

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

static inline void setup(void)
{
    *(void **)(void *)&count = emu_symbol("emu_driver_count");
    *(void **)(void *)&configure = emu_symbol("emu_driver_configure");
}

/* ---- programs ---- */

static inline float draw(struct program *p)
{
    return (float)(gr_rng_u32(&p->rng) % 2001) / 1000.0f - 1;
}

static inline struct program program(uint64_t seed)
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
static inline struct gr_ten ten(struct program *p, int64_t rows, int64_t cols)
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
static inline struct gr_ten over(struct gr_ten t, int64_t rows, int64_t cols, int64_t columns)
{
    t.data = (float *)t.data + columns;
    t.rows = rows, t.cols = cols, t.row_bytes = cols * 4;
    return t;
}

static inline struct gr_ten integers(struct program *p, const int32_t *v, int64_t n)
{
    struct gr_ten t = ten(p, 1, n);
    memcpy(p->start + ((float *)t.data - p->at), v, (size_t)n * 4);
    t.dtype = GR_I32;
    return t;
}

/* Rows of f16, an even number of columns. */
static inline struct gr_ten cache(struct program *p, int64_t rows, int64_t cols)
{
    struct gr_ten t = ten(p, rows, cols / 2);
    uint16_t *v = (uint16_t *)(void *)(p->start + ((float *)t.data - p->at));
    for (int64_t i = 0; i < rows * cols; i++)
        v[i] = (uint16_t)(0x3800 | (gr_rng_u32(&p->rng) & 0x83ff)); /* 1/2 .. 1, both signs */
    t.cols = cols, t.dtype = GR_F16;
    return t;
}

/* n packed matrices of these numbers. */
static inline struct gr_ten packed(struct program *p, void *data, uint32_t type, int64_t n,
                                   int64_t rows, int64_t cols)
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
static inline struct gr_ten matrices(struct program *p, int64_t n, int64_t rows, int64_t cols)
{
    uint16_t *v = calloc((size_t)(n * rows * cols), 2);
    for (int64_t i = 0; i < n * rows * cols; i++)
        v[i] = (uint16_t)(0x2000 | (gr_rng_u32(&p->rng) & 0x83ff)); /* 2^-7 .. 2^-6, both signs */
    struct gr_ten t = packed(p, v, GR_F16, n, rows, cols);
    free(v);
    return t;
}

/* A matrix of Q8_0 or Q4_0. */
static inline struct gr_ten quants(struct program *p, uint32_t type, int64_t rows, int64_t cols)
{
    const size_t n = (size_t)(rows * cols / 32), bytes = gr_row_bytes(type, 32);
    uint8_t *v = calloc(n, bytes);
    for (size_t i = 0; i < n; i++) {
        v[i * bytes + 1] = type == GR_Q8_0 ? 0x14 : 0x24; /* a scale of 2^-10, or of 2^-6 */
        for (size_t k = 2; k < bytes; k++)
            v[i * bytes + k] = (uint8_t)(gr_rng_u32(&p->rng) & 0xff);
    }
    struct gr_ten t = packed(p, v, type, 1, rows, cols);
    free(v);
    return t;
}

static inline struct gr_ten blocks(struct program *p, int64_t rows, int64_t cols)
{
    return quants(p, GR_Q8_0, rows, cols);
}

/* A matrix of f32. */
static inline struct gr_ten exact(struct program *p, int64_t rows, int64_t cols)
{
    float *v = calloc((size_t)(rows * cols), 4);
    for (int64_t i = 0; i < rows * cols; i++)
        v[i] = draw(p) / 8;
    struct gr_ten t = packed(p, v, GR_F32, 1, rows, cols);
    free(v);
    return t;
}

static inline struct gr_node *node(struct program *p, enum gr_op op)
{
    cr_assert(p->n < MAX_NODE);
    struct gr_node *n = &p->node[p->n++];
    *n = (struct gr_node){.op = op};
    return n;
}

static inline void matmul(struct program *p, struct gr_ten x, struct gr_ten y, struct gr_ten res)
{
    node(p, GR_OP_MATMUL)->a.matmul = (struct gr_args_matmul){
        .x = x, .w = matrices(p, 1, y.cols, x.cols), .y = y, .res = res, .scale = 1};
}

static inline void matmul_id(struct program *p, struct gr_ten x, struct gr_ten ids, struct gr_ten y)
{
    node(p, GR_OP_MATMUL_ID)->a.matmul_id =
        (struct gr_args_matmul_id){.x = x, .w = matrices(p, 5, y.cols, x.cols), .ids = ids, .y = y};
}

static inline void norm(struct program *p, struct gr_ten x, struct gr_ten y, int64_t group)
{
    node(p, GR_OP_NORM)->a.norm = (struct gr_args_norm){
        .x = x, .w = ten(p, 1, group), .y = y, .group = group, .eps = 1e-5f, .kind = GR_NORM_RMS};
}

static inline void glu(struct program *p, struct gr_ten a, struct gr_ten b, struct gr_ten y)
{
    node(p, GR_OP_GLU)->a.glu = (struct gr_args_glu){.a = a, .b = b, .y = y, .kind = GR_SILU};
}

static inline void store(struct program *p, struct gr_ten k, struct gr_ten v, int64_t d,
                         struct gr_ten cs)
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

static inline void rope(struct program *p, struct gr_ten x, struct gr_ten y, int64_t d,
                        struct gr_ten cs)
{
    node(p, GR_OP_ROPE)->a.rope =
        (struct gr_args_rope){.x = x, .cs = cs, .y = y, .d_head = d, .kind = GR_ROPE_NEOX};
}

/* ---- both ways ---- */

static inline void run(struct program *p, const struct gr_node *node, int n)
{
    const struct gr_segment s = {node, n, NULL, 0};
    void *exec;
    cr_assert_eq(p->b->api->segment_new(p->b, &s, &exec), 0, "%s", gr_error());
    cr_assert_eq(p->b->api->segment_run(p->b, exec, NULL, NULL), 0, "%s", gr_error());
    p->b->api->segment_free(p->b, &exec);
}

static inline void begin(struct program *p)
{
    cr_assert_eq(p->b->api->upload(p->b, p->at, p->start, N_FLOAT * 4), 0, "%s", gr_error());
}

static inline void end(struct program *p, float *to)
{
    cr_assert_eq(p->b->api->download(p->b, to, p->at, N_FLOAT * 4), 0, "%s", gr_error());
}

/* The first device's numbers are kept, those of the others are the same ones. */
static inline void as_first(const struct program *p, const char *what)
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
static inline bool counts_launches(void)
{
    struct gr_device d;
    cr_assert_eq(gr_device_get(0, &d), 0);
    return d.cc >= 90;
}

/* Both ways; `launches` is what the segment takes. Numbers may be off by so much; 0: no bit is. */
static inline void same_within(struct program *p, int64_t launches, float most, const char *what)
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
static inline void same(struct program *p, int64_t launches, const char *what)
{
    same_within(p, launches, 2e-3f, what);
}

static inline void done(struct program *p)
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

#endif
