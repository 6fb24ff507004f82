/* Operations on the cache, and the sampler, at the shapes of a llama of 8 billion weights (of 1.2
 * billion on the CPU). */
#include <math.h>
#include <stdio.h>

#include "base/checked.h"
#include "gr/sample.h"
#include "ops/bench.h"

struct heads {
    int64_t n, n_kv, d;
};

/* n_seq texts of n_kv cells each, one behind the other in one cache; the last n_each tokens of each
 * look at all before them. */
static void look_back(struct gr_args_attn *a, int64_t n_kv, int64_t n_seq, int64_t n_each,
                      int64_t *n_seen)
{
    *n_seen = 0;
    for (int64_t j = 0; j < n_kv * n_seq; j++)
        ((int32_t *)a->list.data)[j] = (int32_t)j;
    for (int64_t t = 0; t < n_seq * n_each; t++) {
        int32_t *span = gr_ten_row(&a->span, 0, t);
        int64_t seen = GR_MAX(0, n_kv - n_each + t % n_each + 1);
        span[0] = span[1] = (int32_t)(t / n_each * n_kv);
        span[2] = span[0] + (int32_t)seen;
        *n_seen += seen;
    }
}

static void bench_attn(struct bench *k, const char *op, const char *type, int64_t n_kv,
                       int64_t n_seq, int64_t n_each, struct heads h)
{
    struct bench_row row = {.op = op, .type = type, .n_tok = (int)(n_seq * n_each)};
    uint32_t dtype = gr_dtype_find_name(type)->id;
    int64_t n_tok = n_seq * n_each, n_cell = n_seq * n_kv, n_seen;
    struct gr_node n = {.op = GR_OP_ATTN};
    snprintf(row.shape, sizeof row.shape, "%lld cells, %lld/%lld x %lld", (long long)n_kv,
             (long long)h.n, (long long)h.n_kv, (long long)h.d);
    if (!bench_begin(k, &row))
        return;
    n.a.attn = (struct gr_args_attn){.q = bench_filled(k, GR_F32, 1, n_tok, h.n * h.d),
                                     .k = bench_cache_rows(k, dtype, n_cell, h.n_kv * h.d),
                                     .v = bench_cache_rows(k, dtype, n_cell, h.n_kv * h.d),
                                     .list = bench_tensor(k, GR_I32, 1, 1, n_cell),
                                     .span = bench_tensor(k, GR_I32, 1, n_tok, 3),
                                     .y = bench_tensor(k, GR_F32, 1, n_tok, h.n * h.d),
                                     .n_head = h.n,
                                     .n_head_kv = h.n_kv,
                                     .d_k = h.d,
                                     .d_v = h.d,
                                     .scale = 1 / sqrtf((float)h.d)};
    look_back(&n.a.attn, n_kv, n_seq, n_each, &n_seen);
    row.bytes = 2 * (double)n_cell * (double)n.a.attn.k.row_bytes;
    row.macs = 2 * (double)n_seen * (double)(h.n * h.d);
    bench_measure(k, &row, &n);
    bench_free(k, &n);
}

/* "attn": the last tokens of one text; "attn_decode": a token of each of so many texts;
 * "attn_prefill": all of a text. */
static void bench_attns(struct bench *k)
{
    static const char *const types[] = {"f16", "f32", "bf16", "q8_0", "q4_0"};
    const int64_t n_short = k->tiny ? 64 : k->device ? 4096 : 1024, n_long = 8 * n_short;
    const int64_t d = k->device ? 128 : 64;
    const struct heads heads = {k->tiny ? 8 : 32, k->tiny ? 2 : 8, d};
    for (size_t t = 0; t < GR_COUNT(types); t++) {
        if (bench_wanted(k, "attn", types[t])) {
            bench_attn(k, "attn", types[t], n_short, 1, k->n_tok, heads);
            bench_attn(k, "attn", types[t], n_long, 1, k->n_tok, heads);
            bench_attn(k, "attn", types[t], n_long, 1, k->n_tok, (struct heads){heads.n, 1, 128});
        }
        if (k->device && bench_wanted(k, "attn_decode", types[t])) {
            bench_attn(k, "attn_decode", types[t], n_short, k->n_tok, 1, heads);
            bench_attn(k, "attn_decode", types[t], n_long, k->n_tok, 1, heads);
        }
        if (k->device && k->n_tok > 1 && bench_wanted(k, "attn_prefill", types[t]))
            bench_attn(k, "attn_prefill", types[t], k->n_tok, 1, k->n_tok, heads);
    }
}

/* All cells of a layer of one text of -n cells turn by a distance of their own. */
static void bench_shift(struct bench *k, const char *type, int64_t n_cell)
{
    enum { N_HEAD = 8, D = 128 };
    struct bench_row row = {.op = "kv_shift", .type = type, .n_tok = (int)n_cell};
    struct gr_node n = {.op = GR_OP_KV_SHIFT};
    snprintf(row.shape, sizeof row.shape, "%d x %d", N_HEAD, D);
    if (!bench_begin(k, &row))
        return;
    n.a.kv_shift = (struct gr_args_kv_shift){
        .cs = bench_tensor(k, GR_F32, 1, n_cell, D),
        .delta = bench_tensor(k, GR_I32, 1, 1, n_cell),
        .k_cache = bench_cache_rows(k, gr_dtype_find_name(type)->id, n_cell, N_HEAD * D),
        .d_head = D,
        .kind = GR_ROPE_NORM};
    for (int64_t j = 0; j < n_cell; j++) {
        float *cs = gr_ten_row(&n.a.kv_shift.cs, 0, j);
        ((int32_t *)n.a.kv_shift.delta.data)[j] = (int32_t)(1 + j % 7);
        for (int i = 0; i < D / 2; i++) {
            float angle = (float)(1 + j % 7) * powf(5e5f, -2 * (float)i / D);
            cs[2 * i] = cosf(angle), cs[2 * i + 1] = sinf(angle);
        }
    }
    row.bytes = 2 * (double)n_cell * (double)n.a.kv_shift.k_cache.row_bytes;
    bench_measure(k, &row, &n);
    bench_free(k, &n);
}

/* The first -n cells of a layer are copied behind themselves. */
static void bench_copy(struct bench *k, const char *type, int64_t n_cell)
{
    struct bench_row row = {
        .op = "kv_copy", .type = type, .n_tok = (int)n_cell, .shape = "8 x 128"};
    struct gr_node n = {.op = GR_OP_KV_COPY};
    if (!bench_begin(k, &row))
        return;
    n.a.kv_copy = (struct gr_args_kv_copy){
        .src = bench_tensor(k, GR_I32, 1, 1, n_cell),
        .dst = bench_tensor(k, GR_I32, 1, 1, n_cell),
        .cache = bench_cache_rows(k, gr_dtype_find_name(type)->id, 2 * n_cell, 8 * 128)};
    for (int64_t j = 0; j < n_cell; j++) {
        ((int32_t *)n.a.kv_copy.src.data)[j] = (int32_t)j;
        ((int32_t *)n.a.kv_copy.dst.data)[j] = (int32_t)(n_cell + j);
    }
    row.bytes = 2 * (double)n_cell * (double)n.a.kv_copy.cache.row_bytes;
    bench_measure(k, &row, &n);
    bench_free(k, &n);
}

/* top-k 40, top-p 0.95, min-p 0.05 of -n rows of logits. */
static void bench_sample(struct bench *k, int64_t n_vocab)
{
    struct bench_row row = {.op = "sample", .type = "f32"};
    struct gr_node n = {.op = GR_OP_SAMPLE};
    snprintf(row.shape, sizeof row.shape, "%lld, top-k 40, top-p .95, min-p", (long long)n_vocab);
    if (!bench_begin(k, &row))
        return;
    n.a.sample =
        (struct gr_args_sample){.logits = bench_filled(k, GR_F32, 1, k->n_tok, n_vocab),
                                .rows = bench_tensor(k, GR_I32, 1, k->n_tok, GR_SAMPLE_WORDS),
                                .ids = bench_tensor(k, GR_I32, 1, 1, k->n_tok)};
    for (int64_t t = 0; t < k->n_tok; t++)
        *(struct gr_sample_row *)gr_ten_row(&n.a.sample.rows, 0, t) =
            (struct gr_sample_row){.temp = 0.8f,
                                   .top_p = 0.95f,
                                   .min_p = 0.05f,
                                   .top_k = 40,
                                   .seed = {(uint32_t)t + 1},
                                   .counter = {(uint32_t)t}};
    row.bytes = (double)k->n_tok * (double)n.a.sample.logits.row_bytes;
    bench_measure(k, &row, &n);
    bench_free(k, &n);
}

void bench_cache(struct bench *k)
{
    static const char *const moved[] = {"f16", "q8_0"};
    bench_attns(k);
    for (size_t t = 0; t < GR_COUNT(moved) && k->device; t++) {
        if (bench_wanted(k, "kv_shift", moved[t]))
            bench_shift(k, moved[t], k->tiny ? 64 : 32768);
        if (bench_wanted(k, "kv_copy", moved[t]))
            bench_copy(k, moved[t], k->tiny ? 64 : 16384);
    }
    if (k->device && bench_wanted(k, "sample", NULL))
        bench_sample(k, k->tiny ? 512 : 128256);
}
