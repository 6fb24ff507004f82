/* ATTN over lists of cells. K and V are read in place, row by row, and only rows that some query of
 * the run sees.
 *
 * A work item is one KV head, or several that take turns block by block, a tile of tokens and a
 * chunk of the cells they see; its queries are all heads of the group for all tokens of the tile.
 * Neighbouring tokens whose spans overlap form a run. Sixty-four cells of a run at a time are
 * converted to f32 once (K transposed), multiplied with all its queries by the product of gemm.c,
 * and folded into a running maximum, sum and output. The cells of a run are split into chunks only
 * when there are many cells and few items; partial results are joined in the order of chunks. The
 * places of cells, other sequences and the capacity of a list affect neither the blocks nor the
 * order of a sum. For gr_node.by_row neither do other tokens: nothing is split, and tokens of a run
 * begin to see at the same item, so that with a sliding window each is a run of its own.
 *
 * Few queries of f16 are multiplied without the conversion (attn_rows.h), with the same result.
 *
 * Rounding: queries, products, weights and sums are f32. Traffic: every visible row of K and V once
 * per tile of tokens. */
#include <math.h>
#include <string.h>

#include "cpu/fast/attn_rows.h"
#include "cpu/fast/fast.h"

enum {
    CELLS = 64,      /* cells converted at a time; bits of a mask */
    QUERIES = 48,    /* queries per item, about */
    ITEMS = 64,      /* enough for any number of threads; with fewer, runs are split into chunks */
    CHUNK_MIN = 512, /* fewest cells per chunk */
    WHOLE = 768,     /* runs of up to this many cells are not split */
    HEADS = 8,       /* KV heads per item at most */
    TILES = 4,       /* tiles for each thread, when every token is a run of its own */
};

struct shape {
    int64_t gqa;                 /* heads that share a KV head */
    int64_t d_k, dk_pad, dv_pad; /* padded to VL */
    int64_t tile, n_tile;        /* tokens of a tile */
    int64_t n_cut;               /* most chunks per run */
    int64_t n_chunk;             /* most chunks of any run, once spans are known */
    int64_t heads, n_group;      /* KV heads per item, groups of them */
    int64_t n_item;
    bool far;
    bool by_row; /* see gr_node; a run's blocks begin where the span of each of its tokens does */
};

static struct shape shape_of(const struct gr_node *node)
{
    const struct gr_args_attn *a = &node->a.attn;
    struct shape s = {.gqa = a->n_head / a->n_head_kv,
                      .d_k = a->d_k,
                      .dk_pad = GR_PAD(a->d_k, VL),
                      .dv_pad = GR_PAD(a->d_v, VL),
                      .far = gr_ten_is(&a->k_far),
                      .by_row = node->by_row};
    s.tile = GR_MIN(GR_MAX(1, QUERIES / s.gqa), a->q.rows);
    s.n_tile = (a->q.rows + s.tile - 1) / s.tile;
    int64_t items = s.n_tile * a->n_head_kv;
    s.heads = GR_MIN(HEADS, a->n_head_kv);
    s.n_cut = s.by_row || a->list.cols <= WHOLE ? 1 : (ITEMS + items - 1) / items;
    return s;
}

/* Returns the cells per chunk of a run that sees n cells. */
static int64_t chunk_cells(const struct shape *s, int64_t n)
{
    return s->n_cut == 1 || n <= WHOLE
               ? n
               : GR_MAX(CHUNK_MIN, GR_PAD((n + s->n_cut - 1) / s->n_cut, CELLS));
}

static int64_t chunks_of(const struct shape *s, int64_t n)
{
    int64_t cells = chunk_cells(s, n);
    return n > cells ? (n + cells - 1) / cells : 1;
}

/* Items [lo, hi) of the list that a token or a run sees; those below `near` with the grouped keys
 * (Self-Extend). */
struct span {
    int64_t lo, near, hi;
};

static struct span span_of(const struct gr_args_attn *a, int64_t t)
{
    const int32_t *s = gr_cpu_i32(&a->span, t);
    return (struct span){s[0], s[1], s[2]};
}

/* A run: its first token, number of tokens, and the items [lo, hi) that it sees. */
struct run {
    int64_t t0, n_tok, lo, hi;
};

static struct run run_of(const struct gr_args_attn *a, const struct shape *s, int64_t t0,
                         int64_t end)
{
    struct span u = span_of(a, t0);
    int64_t t = t0 + 1;
    for (; t < end; t++) {
        struct span v = span_of(a, t);
        if (v.lo >= u.hi || v.hi <= u.lo || (s->by_row && v.lo != u.lo))
            break;
        u.lo = GR_MIN(u.lo, v.lo), u.hi = GR_MAX(u.hi, v.hi);
    }
    return (struct run){t0, t - t0, u.lo, u.hi};
}

static int64_t tile_end(const struct gr_args_attn *a, const struct shape *s, int64_t t)
{
    return GR_MIN((t / s->tile + 1) * s->tile, a->q.rows);
}

/* Returns the number of chunks of token t's run. */
static int64_t chunks_at(const struct gr_args_attn *a, const struct shape *s, int64_t t)
{
    struct run r = run_of(a, s, t - t % s->tile, tile_end(a, s, t));
    while (r.t0 + r.n_tok <= t)
        r = run_of(a, s, r.t0 + r.n_tok, tile_end(a, s, t));
    return chunks_of(s, r.hi - r.lo);
}

/* Returns whether every token is a run of its own, whatever the tiles are. */
static bool all_alone(const struct gr_args_attn *a, const struct shape *s)
{
    for (int64_t t = 0; t < a->q.rows; t++)
        if (run_of(a, s, t, a->q.rows).n_tok > 1)
            return false;
    return true;
}

/* Counts chunks and items from the spans. Where memory is the limit, an item has several KV heads,
 * so that neighbouring columns of K and V are read soon after each other; texts side by side have
 * tiles small enough for that. */
static void count_items(const struct gr_args_attn *a, struct shape *s, int n_thread)
{
    s->n_chunk = 1;
    for (int64_t t = 0, n; s->n_cut > 1 && t < a->q.rows; t += n) {
        struct run r = run_of(a, s, t, tile_end(a, s, t));
        s->n_chunk = GR_MAX(s->n_chunk, chunks_of(s, r.hi - r.lo));
        n = r.n_tok;
    }
    if (all_alone(a, s)) {
        s->tile = GR_MAX(1, GR_MIN(s->tile, a->q.rows / (TILES * n_thread)));
        s->n_tile = (a->q.rows + s->tile - 1) / s->tile;
    }
    int64_t heads = 1, most = s->n_tile * a->n_head_kv * s->n_chunk / (4 * n_thread);
    while (run_of(a, s, 0, tile_end(a, s, 0)).n_tok * s->gqa <= FEW && 2 * heads <= most &&
           2 * heads <= s->heads)
        heads *= 2;
    s->heads = heads;
    s->n_group = (a->n_head_kv + heads - 1) / heads;
    s->n_item = s->n_tile * s->n_group * s->n_chunk;
}

/* One KV head of a work item and its scratch memory; the heads share what is not the state of a
 * query: largest logit so far, sum of weights, output. */
struct item {
    const struct gr_args_attn *a;
    struct shape s;
    int64_t t0, n_tok, n_query;    /* of the run */
    int64_t h_kv, h_lo, h_hi;      /* this head, and those of the item */
    const float **q, **q_far, **p; /* [n_query] rows of queries, of weights */
    float *max, *sum;              /* [n_query] */
    float *acc;                    /* [n_query, dv_pad] */
    float *rows;                   /* [CELLS, max(dk_pad, dv_pad)]: rows of K, then of V */
    float *kt;                     /* [dk_pad, CELLS] */
    float *logits;                 /* [n_query, CELLS], then weights */
    float *far_logits;             /* [n_query, CELLS], with far keys */
    float *away;                   /* [CELLS] positions of the cells minus the token's */
};

static size_t item_bytes(const struct shape *s)
{
    int64_t n = s->gqa * s->tile, row = GR_MAX(s->dk_pad, s->dv_pad);
    int64_t state = n * (2 + s->dv_pad), logits = n * (s->far ? 2 : 1) * CELLS;
    int64_t floats = s->heads * state + logits + CELLS * (row + s->dk_pad + 1);
    return (size_t)floats * sizeof(float) + (size_t)(n * (2 * s->heads + 1)) * sizeof(float *) +
           (size_t)(4 * s->heads + 6) * 64;
}

static void *carve(char **at, size_t bytes)
{
    void *p = *at;
    *at += GR_PAD(bytes, 64);
    return p;
}

static void items_of(const struct gr_args_attn *a, const struct shape *s, void *memory,
                     struct item item[HEADS])
{
    size_t n = (size_t)(s->gqa * s->tile), row = (size_t)GR_MAX(s->dk_pad, s->dv_pad);
    char *at = memory;
    struct item i = {.a = a, .s = *s};
    i.rows = carve(&at, CELLS * row * sizeof(float));
    i.kt = carve(&at, CELLS * (size_t)s->dk_pad * sizeof(float));
    i.logits = carve(&at, n * CELLS * sizeof(float));
    i.far_logits = s->far ? carve(&at, n * CELLS * sizeof(float)) : NULL;
    i.away = carve(&at, CELLS * sizeof(float));
    i.p = carve(&at, n * sizeof(float *));
    for (int64_t h = 0; h < s->heads; h++) {
        i.acc = carve(&at, n * (size_t)s->dv_pad * sizeof(float));
        i.q = carve(&at, n * sizeof(float *));
        i.q_far = carve(&at, n * sizeof(float *));
        i.max = carve(&at, 2 * n * sizeof(float));
        i.sum = i.max + n;
        item[h] = i;
    }
}

static void run_start(struct item *i, bool with_sinks)
{
    const struct gr_args_attn *a = i->a;
    i->n_query = i->n_tok * i->s.gqa;
    for (int64_t k = 0; k < i->n_query; k++) {
        int64_t h = i->h_kv * i->s.gqa + k % i->s.gqa, t = i->t0 + k / i->s.gqa;
        float sink = with_sinks ? gr_cpu_f32(&a->sinks, 0)[h] : -INFINITY;
        i->q[k] = gr_cpu_f32(&a->q, t) + h * a->d_k;
        i->q_far[k] = i->s.far ? gr_cpu_f32(&a->q_far, t) + h * a->d_k : NULL;
        i->p[k] = i->logits + k * CELLS;
        i->max[k] = sink;
        i->sum[k] = sink > -INFINITY ? 1 : 0;
    }
    memset(i->acc, 0, (size_t)(i->n_query * i->s.dv_pad) * sizeof *i->acc);
}

/* Returns a mask of bits [lo, hi), clamped to [0, 64). */
static uint64_t bits(int64_t lo, int64_t hi)
{
    lo = GR_MAX(lo, 0), hi = GR_MIN(hi, 64);
    return lo >= hi ? 0 : ~UINT64_C(0) >> (64 - (hi - lo)) << lo;
}

/* x[c] += bias of head h for the distance of cell c, from the table `rel`. */
static void add_rel(const struct gr_ten *rel, const float *away, int64_t h, int64_t n, float *x)
{
    float most = (float)(rel->rows / 2);
    for (int64_t c = 0; c < n; c++) {
        float row = most + GR_MAX(-most, GR_MIN(most, away[c]));
        x[c] += gr_cpu_f32(rel, (int64_t)row)[h];
    }
}

/* Scales, caps and biases n logits of query k; those of cells that it does not see become -inf.
 * Returns the largest. */
static float finish_logits(struct item *i, int64_t k, int64_t n, uint64_t mask)
{
    const struct gr_args_attn *a = i->a;
    float *x = i->logits + k * CELLS;
    vf scale = vf_set(a->scale), none = vf_set(-INFINITY), max = none;
    vf slope = vf_set(0);
    int64_t h = i->h_kv * i->s.gqa + k % i->s.gqa;
    if (a->softcap > 0 || gr_ten_is(&a->rel)) {
        for (int64_t c = 0; c < n; c += VL)
            vf_store(x + c, vf_load(x + c) * scale);
        scale = vf_set(1);
    }
    if (a->softcap > 0)
        FN(act_row)(GR_SOFTCAP, x, n, a->softcap, 0, x);
    if (gr_ten_is(&a->rel))
        add_rel(&a->rel, i->away, h, n, x);
    if (a->max_alibi > 0)
        slope = vf_set(-gr_alibi_slope(a->max_alibi, a->n_head_all, a->first_head + h));
    for (int64_t c = 0; c < n; c += VL) {
        vf v = vf_load(x + c) * scale;
        if (a->max_alibi > 0)
            v = vf_fma(slope, vf_abs(vf_load(i->away + c)), v);
        v = vf_select((uint32_t)(mask >> c), v, none);
        vf_store(x + c, v);
        max = vf_max(max, v);
    }
    return vf_largest(max);
}

/* Converts the logits of query k to weights relative to its new largest logit, and rescales sum and
 * output. */
static void fold(struct item *i, int64_t k, int64_t n, uint64_t mask)
{
    float *x = i->logits + k * CELLS, *acc = i->acc + k * i->s.dv_pad;
    float top = mask ? finish_logits(i, k, n, mask) : -INFINITY;
    if (!mask) {
        memset(x, 0, (size_t)n * sizeof *x);
        return;
    }
    if (!(top <= i->max[k])) {
        float down = i->max[k] > -INFINITY ? expf(i->max[k] - top) : 0;
        for (int64_t c = 0; c < i->s.dv_pad; c += VL)
            vf_store(acc + c, vf_load(acc + c) * vf_set(down));
        i->sum[k] *= down;
        i->max[k] = top;
    }
    vf sum = vf_set(0), max = vf_set(i->max[k]);
    for (int64_t c = 0; c < n; c += VL) {
        vf w = vf_select((uint32_t)(mask >> c), vf_exp(vf_load(x + c) - max), vf_set(0));
        vf_store(x + c, w);
        sum = sum + w;
    }
    i->sum[k] += vf_sum(sum);
}

/* A block of the run's items, [j, j + n) of the list, and the cells whose rows are asked for
 * meanwhile. */
struct block {
    int64_t j, n, n_ask;
    int32_t ask[CELLS];
};

/* Byte of column `col` in a row of a cache; of planes, of its code. */
static int64_t column_at(const struct gr_ten *cache, int64_t col)
{
    return cache->planes ? gr_planes_codes(cache->dtype, col)
                         : (int64_t)gr_row_bytes(cache->dtype, (uint64_t)col);
}

/* Items of the list, n from `list` on: in a cache, d columns of each of the heads [lo, hi). */
static struct place place_of(const struct item *i, const int32_t *list, int64_t n,
                             const struct gr_ten *cache, int64_t d, int64_t lo, int64_t hi)
{
    int64_t first = cache->cols - (i->a->n_head_kv - lo) * d, end = first + (hi - lo) * d;
    struct place p = {.list = list, .n = n, .at = column_at(cache, first)};
    p.n_at = column_at(cache, end) - p.at;
    if (cache->planes) {
        p.step = gr_planes_step(cache->dtype, cache->cols, first);
        p.n_step = gr_planes_step(cache->dtype, cache->cols, end) - p.step;
    }
    return p;
}

/* A block of the item's head; asked for is the head's share of cells, with all heads of the item:
 * hardware that fetches ahead follows whole rows. */
static struct part part_of(const struct item *i, const struct block *b, const struct gr_ten *cache,
                           int64_t d)
{
    const int64_t k = i->h_kv - i->h_lo, n_head = i->h_hi - i->h_lo;
    int64_t lo = b->n_ask * k / n_head, hi = b->n_ask * (k + 1) / n_head;
    const int32_t *list = gr_cpu_i32(&i->a->list, 0) + b->j;
    return (struct part){cache, d, place_of(i, list, b->n, cache, d, i->h_kv, i->h_kv + 1),
                         place_of(i, b->ask + lo, hi - lo, cache, d, i->h_lo, i->h_hi)};
}

/* Returns the mask of a block's items that token t sees; with `near`, only those with plain
 * keys. */
static uint64_t mask_of(const struct gr_args_attn *a, int64_t t, const struct block *b, bool near)
{
    struct span s = span_of(a, t);
    return bits((near ? GR_MAX(s.near, s.lo) : s.lo) - b->j, GR_MIN(s.hi - b->j, b->n));
}

/* output += weights x V for a block with non-finite rows of V, which must not affect queries that
 * do not see them. */
static void add_visible(struct item *i, const struct block *b)
{
    for (int64_t k = 0; k < i->n_query; k++) {
        uint64_t mask = mask_of(i->a, i->t0 + k / i->s.gqa, b, false);
        float *acc = i->acc + k * i->s.dv_pad;
        for (int64_t c = 0; c < b->n; c++)
            for (int64_t v = 0; mask >> c & 1 && v < i->s.dv_pad; v += VL)
                vf_store(acc + v, vf_fma(vf_set(i->p[k][c]), vf_load(i->rows + c * i->s.dv_pad + v),
                                         vf_load(acc + v)));
    }
}

/* logits [n_query, CELLS] = q times the block's keys. */
static void multiply(struct item *i, const struct block *b, const struct gr_ten *keys,
                     const float *const *q, float *logits)
{
    struct part k = part_of(i, b, keys, i->a->d_k);
    int64_t n = GR_PAD(b->n, VL);
    if (few_take(&k, i->n_query)) {
        few_logits(&k, q, i->n_query, logits, CELLS);
        return;
    }
    (void)load_rows(&k, i->s.dk_pad, false, i->rows);
    for (int64_t c = 0; c < n; c += VL)
        FN(transpose)(i->rows + c * i->s.dk_pad, i->s.dk_pad, VL, i->s.dk_pad, i->kt + c, CELLS);
    memset(logits, 0, (size_t)(i->n_query * CELLS) * sizeof *logits);
    FN(gemm)(q, i->n_query, i->kt, CELLS, i->s.d_k, n, logits, CELLS);
}

/* Logits of the block: with plain keys, grouped keys, or both where the boundary lies within the
 * block. */
static void multiply_all(struct item *i, const struct block *b)
{
    const struct gr_args_attn *a = i->a;
    uint64_t near = 0, far = 0;
    for (int64_t t = i->t0; t < i->t0 + i->n_tok; t++) {
        uint64_t m = mask_of(a, t, b, true);
        near |= m, far |= mask_of(a, t, b, false) & ~m;
    }
    if (near)
        multiply(i, b, &a->k, i->q, i->logits);
    if (far)
        multiply(i, b, &a->k_far, i->q_far, near ? i->far_logits : i->logits);
    for (int64_t k = 0; near && far && k < i->n_query; k++) {
        uint64_t m = mask_of(a, i->t0 + k / i->s.gqa, b, true);
        float *x = i->logits + k * CELLS, *y = i->far_logits + k * CELLS;
        for (int64_t c = 0; c < b->n; c += VL)
            vf_store(x + c, vf_select((uint32_t)(m >> c), vf_load(x + c), vf_load(y + c)));
    }
}

static void distances(struct item *i, const struct block *b, int64_t t)
{
    const int32_t *pos = gr_cpu_i32(&i->a->pos, 0), *key = gr_cpu_i32(&i->a->key_pos, 0) + b->j;
    for (int64_t c = 0; c < GR_PAD(b->n, VL); c++)
        i->away[c] = c < b->n ? (float)(key[c] - pos[t]) : 0;
}

static void attend(struct item *i, const struct block *b)
{
    const struct gr_args_attn *a = i->a;
    int64_t n = GR_PAD(b->n, VL);
    multiply_all(i, b);
    for (int64_t q = 0; q < i->n_query; q++) {
        int64_t t = i->t0 + q / i->s.gqa;
        if ((a->max_alibi > 0 || gr_ten_is(&a->rel)) && q % i->s.gqa == 0)
            distances(i, b, t);
        fold(i, q, n, mask_of(a, t, b, false));
    }
    struct part v = part_of(i, b, gr_ten_is(&a->v) ? &a->v : &a->k, a->d_v);
    if (few_take(&v, i->n_query) && few_outputs(&v, i->p, i->n_query, i->acc, i->rows, i->s.dv_pad))
        return;
    if (load_rows(&v, i->s.dv_pad, true, i->rows))
        FN(gemm)(i->p, i->n_query, i->rows, i->s.dv_pad, n, i->s.dv_pad, i->acc, i->s.dv_pad);
    else
        add_visible(i, b);
}

/* ---- results ---- */

/* y of a head = output / sum of weights; zeros when no cell was visible. */
static void write_head(const float *acc, float sum, int64_t d, float *y)
{
    vf f = vf_set(sum == 0 ? 0 : 1 / sum);
    for (int64_t c = 0; c < d; c += VL) {
        int64_t n = GR_MIN(VL, d - c);
        vf_store_n(y + c, vf_load(acc + c) * f, n);
    }
}

/* Partial states of all chunks in shared scratch: [chunk][token, head][max, sum, 0 .., output
 * dv_pad]. */
static float *partial_of(const struct gr_args_attn *a, const struct shape *s, void *shared,
                         int64_t chunk, int64_t row)
{
    return (float *)shared + (chunk * a->q.rows * a->n_head + row) * (VL + s->dv_pad);
}

static void run_finish(const struct item *i, int64_t chunk, bool whole, void *shared)
{
    const struct gr_args_attn *a = i->a;
    for (int64_t k = 0; k < i->n_query; k++) {
        int64_t t = i->t0 + k / i->s.gqa, h = i->h_kv * i->s.gqa + k % i->s.gqa;
        const float *acc = i->acc + k * i->s.dv_pad;
        if (whole) {
            write_head(acc, i->sum[k], a->d_v, gr_cpu_f32(&a->y, t) + h * a->d_v);
            continue;
        }
        float *part = partial_of(a, &i->s, shared, chunk, t * a->n_head + h);
        part[0] = i->max[k], part[1] = i->sum[k];
        memcpy(part + VL, acc, (size_t)i->s.dv_pad * sizeof *acc);
    }
}

/* Joins the chunks of a head of a token, unless there was one chunk; `acc` is scratch. */
static void join(const struct gr_args_attn *a, const struct shape *s, void *shared, int64_t row,
                 float *acc)
{
    int64_t n = chunks_at(a, s, row / a->n_head);
    float max = -INFINITY, sum = 0;
    if (n == 1)
        return;
    memset(acc, 0, (size_t)s->dv_pad * sizeof *acc);
    for (int64_t k = 0; k < n; k++) {
        float m = partial_of(a, s, shared, k, row)[0];
        max = m <= max ? max : m;
    }
    for (int64_t k = 0; k < n; k++) {
        const float *part = partial_of(a, s, shared, k, row);
        float down = part[0] > -INFINITY ? expf(part[0] - max) : part[0] == part[0] ? 0 : NAN;
        sum += part[1] * down;
        for (int64_t c = 0; c < s->dv_pad; c += VL)
            vf_store(acc + c, vf_fma(vf_load(part + VL + c), vf_set(down), vf_load(acc + c)));
    }
    write_head(acc, sum, a->d_v, gr_cpu_f32(&a->y, row / a->n_head) + row % a->n_head * a->d_v);
}

/* Items of the list that are asked for before they are read: next those of [j, hi), then those of
 * the runs of tokens [t, end); `n` have been, and are not read yet. */
struct ahead {
    int64_t j, hi, t, end, n;
};

/* Chooses the cells to ask for while the block is read: a block's number ahead. */
static void look_ahead(const struct gr_args_attn *a, const struct shape *s, struct ahead *w,
                       struct block *b)
{
    w->n = GR_MAX(w->n - b->n, 0);
    for (b->n_ask = 0; w->n < CELLS; w->n++) {
        for (; w->j == w->hi && w->t < w->end;) {
            struct run r = run_of(a, s, w->t, w->end);
            w->j = r.lo, w->hi = r.hi, w->t += r.n_tok;
        }
        if (w->j == w->hi)
            return;
        b->ask[b->n_ask++] = gr_cpu_i32(&a->list, 0)[w->j++];
    }
}

/* Runs a work item: one chunk of the cells that the tokens of a tile see, for some KV heads, which
 * take turns block by block. */
static void run_item(struct item item[HEADS], int64_t tile, int64_t chunk, int64_t h_lo,
                     void *shared)
{
    const struct gr_args_attn *a = item->a;
    const struct shape *s = &item->s;
    int64_t end = tile_end(a, s, tile * s->tile), h_hi = GR_MIN(h_lo + s->heads, a->n_head_kv);
    struct ahead ahead = {0};
    for (int64_t t = tile * s->tile, n_tok; t < end; t += n_tok) {
        struct run r = run_of(a, s, t, end);
        int64_t n = chunk_cells(s, r.hi - r.lo), n_chunk = chunks_of(s, r.hi - r.lo);
        int64_t lo = r.lo + chunk * n, hi = GR_MIN(lo + n, r.hi);
        n_tok = r.n_tok;
        if (chunk >= n_chunk)
            continue;
        for (int64_t h = h_lo; h < h_hi; h++) {
            struct item *i = &item[h - h_lo];
            i->t0 = r.t0, i->n_tok = n_tok;
            i->h_kv = h, i->h_lo = h_lo, i->h_hi = h_hi;
            run_start(i, gr_ten_is(&a->sinks) && chunk == 0);
        }
        if (s->n_chunk > 1 || !ahead.end) {
            int64_t first = GR_MIN(CELLS, hi - lo);
            ahead = (struct ahead){lo + first, hi, t + n_tok, s->n_chunk > 1 ? t : end, first};
        }
        for (int64_t j = lo; j < hi; j += CELLS) {
            struct block b = {.j = j, .n = GR_MIN(CELLS, hi - j)};
            look_ahead(a, s, &ahead, &b);
            for (int64_t h = h_lo; h < h_hi; h++)
                attend(&item[h - h_lo], &b);
        }
        for (int64_t h = h_lo; h < h_hi; h++)
            run_finish(&item[h - h_lo], chunk, n_chunk == 1, shared);
    }
}

static void attn(const struct gr_node *node, const struct gr_cpu_work *w)
{
    const struct gr_args_attn *a = &node->a.attn;
    struct shape s = shape_of(node);
    struct item item[HEADS];
    count_items(a, &s, w->nth);
    items_of(a, &s, w->local, item);
    for (int64_t n; (n = gr_cpu_take(w, 1, s.n_item)) < s.n_item;)
        run_item(item, n / s.n_chunk / s.n_group, n / s.n_group % s.n_chunk,
                 n % s.n_group * s.heads, w->shared);
    if (s.n_chunk == 1)
        return;
    gr_cpu_barrier(w);
    struct gr_cpu_share rows = gr_cpu_share(a->q.rows * a->n_head, 1, w);
    for (int64_t r = rows.lo; r < rows.hi; r++)
        join(a, &s, w->shared, r, item->acc);
}

static struct gr_cpu_need attn_need(const struct gr_node *node)
{
    const struct gr_args_attn *a = &node->a.attn;
    struct shape s = shape_of(node);
    size_t partial = (size_t)(s.n_cut * a->q.rows * a->n_head * (VL + s.dv_pad)) * sizeof(float);
    return (struct gr_cpu_need){s.n_cut > 1 ? partial : 0, item_bytes(&s)};
}

const struct gr_cpu_impl FN(attn) = {attn, attn_need, NULL};
