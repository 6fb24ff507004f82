#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "ops/ops.h"

/* Views of tokens: lists of cells in random order, and ranges of them. */
enum view {
    VIEW_ALL,
    VIEW_CAUSAL,
    VIEW_HALF,
    VIEW_ONE,
    VIEW_NONE,
    VIEW_WINDOW,
    VIEW_SEQUENCES, /* two, the second with a third of the tokens */
    N_VIEW
};

struct shape {
    int64_t n_tok, n_kv, n_head, n_head_kv, d_k, d_v;
    uint32_t type_k, type_v;
    float softcap, max_alibi;
    bool sinks, far;
    int64_t n_rel; /* biases by distance, up to so many; 0 = none */
};

/* Items of all lists: one for all tokens, or one for each. */
static int64_t n_list(const struct shape *s, enum view v)
{
    return v == VIEW_HALF || v == VIEW_ONE ? s->n_tok * s->n_kv : s->n_kv;
}

static void set_span(int32_t *span, int64_t at, int64_t lo, int64_t hi)
{
    span[0] = span[1] = (int32_t)(at + lo);
    span[2] = (int32_t)(at + hi);
}

/* Token t of two sequences that share the list, the first half of it and the second. */
static void set_sequence_span(int32_t *span, int64_t n_tok, int64_t n_kv, int64_t t)
{
    int64_t first = n_tok - n_tok / 3, at = t < first ? 0 : n_kv / 2;
    int64_t n = t < first ? n_kv / 2 : n_kv - at, after = (t < first ? first : n_tok) - 1 - t;
    set_span(span, at, 0, GR_MAX(0, n - after));
}

/* A random order of the cells in each list, and the tokens' spans. */
static void set_lists(struct ops_case *c, const struct gr_args_attn *a, enum view v)
{
    int64_t n_tok = a->q.rows, n_kv = a->k.rows;
    int32_t *list = a->list.data;
    for (int64_t i = 0; i < a->list.cols; i++) {
        int64_t first = i / n_kv * n_kv,
                other = first + gr_rng_below(&c->rng, (uint32_t)(i - first + 1));
        list[i] = list[other];
        list[other] = (int32_t)(i - first);
    }
    for (int64_t t = 0; t < n_tok; t++) {
        int32_t *span = gr_ten_row(&a->span, 0, t);
        int64_t pos = n_kv - n_tok + t, lo = gr_rng_below(&c->rng, (uint32_t)n_kv);
        if (v == VIEW_ALL)
            set_span(span, 0, 0, n_kv);
        else if (v == VIEW_CAUSAL)
            set_span(span, 0, 0, pos + 1);
        else if (v == VIEW_WINDOW)
            set_span(span, 0, GR_MAX(0, pos - 39), pos + 1);
        else if (v == VIEW_SEQUENCES)
            set_sequence_span(span, n_tok, n_kv, t);
        else if (v == VIEW_HALF)
            set_span(span, t * n_kv, lo / 2, lo / 2 + n_kv / 2);
        else if (v == VIEW_ONE)
            set_span(span, t * n_kv, lo, lo + 1);
        else
            set_span(span, 0, lo, lo);
        if (gr_ten_is(&a->k_far)) /* the boundary anywhere, the ends among it */
            span[1] += (int32_t)gr_rng_below(&c->rng, (uint32_t)(span[2] - span[0] + 1));
    }
}

static void poison(const struct gr_ten *cache, int64_t row)
{
    memset(gr_ten_row(cache, 0, row), 0xff, gr_row_bytes(cache->dtype, (uint64_t)cache->cols));
}

/* NaN bytes in every row of K and V that no token sees. */
static void poison_unseen(struct ops_case *c, const struct gr_args_attn *a)
{
    int64_t n_kv = a->k.rows;
    double *seen = ops_doubles(c, n_kv);
    const int32_t *list = a->list.data;
    memset(seen, 0, (size_t)n_kv * sizeof *seen);
    for (int64_t t = 0; t < a->q.rows; t++) {
        const int32_t *span = gr_ten_row(&a->span, 0, t);
        for (int32_t i = span[0]; i < span[2]; i++)
            seen[list[i]] = 1;
    }
    for (int64_t j = 0; j < n_kv; j++) {
        if (seen[j] > 0)
            continue;
        poison(&a->k, j);
        if (gr_ten_is(&a->v))
            poison(&a->v, j);
        if (gr_ten_is(&a->k_far))
            poison(&a->k_far, j);
    }
}

struct head {
    const double *q[2], *k[2], *v, *sinks, *rel; /* the whole tensors; [1] far */
    int64_t v_cols, v_first;                     /* columns of v's rows, those before values */
    int64_t t, h;
};

/* Logit of item i, and what it may be off on a fast level. q may be rounded to f16 or to s8 with 32
 * columns a step when the cache is (the coarser one counts), products and sums are f32; then the
 * cap and the slope round once more. With a loss, q (times the scale, a part of the cap) and k are
 * f16, whose smallest step is 2^-24. */
static double logit(const struct gr_args_attn *a, const struct head *p, double loss, int64_t i,
                    double *error)
{
    int64_t h_kv = p->h / (a->n_head / a->n_head_kv), j = ((int32_t *)a->list.data)[i];
    int plane = i < ((int32_t *)gr_ten_row(&a->span, 0, p->t))[1];
    const double *q = p->q[plane] + (p->t * a->n_head + p->h) * a->d_k;
    const double *k = p->k[plane] + (j * a->n_head_kv + h_kv) * a->d_k;
    double x = 0, terms = 0, sum_q = 0, sum_k = 0;
    for (int64_t d = 0; d < a->d_k; d++) {
        x += q[d] * k[d], terms += fabs(q[d] * k[d]);
        sum_q += fabs(q[d]), sum_k += fabs(k[d]);
    }
    double scale = fabs((double)a->scale), e = terms * ((double)(a->d_k + 4) * 0x1p-24 + 2 * loss);
    x *= (double)a->scale, e *= scale;
    e += loss > 0 ? 0x1p-25 * (sum_q * scale + sum_k * fmax(1, (double)a->softcap)) : 0;
    if (a->softcap > 0) {
        x = (double)a->softcap * tanh(x / (double)a->softcap);
        e += (double)a->softcap * 0x1p-21;
    }
    if (a->max_alibi > 0) {
        double far = fabs((double)((int32_t *)a->pos.data)[p->t] - ((int32_t *)a->key_pos.data)[i]);
        double bias =
            (double)gr_alibi_slope(a->max_alibi, a->n_head_all, a->first_head + p->h) * far;
        x -= bias, e += bias * 0x1p-22;
    }
    if (p->rel) {
        int64_t n = a->rel.rows / 2;
        int64_t d = ((int32_t *)a->key_pos.data)[i] - ((int32_t *)a->pos.data)[p->t];
        x += p->rel[(d < -n ? 0 : d > n ? 2 * n : n + d) * a->n_head + p->h];
    }
    *error = e + fabs(x) * 0x1p-23;
    return x;
}

/* Further loss on a GPU: with a cache that has nothing of f32, 2^-11 of q, of k and v when they are
 * unpacked, and of each weight before it is multiplied with v. */
static double device_loss(const struct gr_args_attn *a)
{
    return a->k.dtype == GR_F32 || (gr_ten_is(&a->v) && a->v.dtype == GR_F32) ? 0 : 0x1p-11;
}

/* One head of one token: out [d_v], tol [d_v], loss: of each q, k and weight. Every weight exp(x -
 * max) is off by a factor of at most exp(2 e), e the largest logit error plus the exp's own
 * rounding; so is their sum; the sum over n cells rounds in f32, and weights too small for a normal
 * f32 may be lost (with a loss, below half of f16's smallest step). */
static void expect_head(const struct gr_args_attn *a, const struct head *p, double loss, double *w,
                        double *out, double *tol)
{
    const int32_t *span = gr_ten_row(&a->span, 0, p->t), *list = a->list.data;
    double max = p->sinks ? p->sinks[p->h] : -INFINITY, sum = 0, worst = 0, e;
    int64_t n = span[2] - span[0], h_kv = p->h / (a->n_head / a->n_head_kv);
    for (int64_t i = 0; i < n; i++) {
        w[i] = logit(a, p, loss, span[0] + i, &e);
        worst = fmax(worst, e);
        max = fmax(max, w[i]);
    }
    for (int64_t i = 0; i < n; i++)
        sum += w[i] = exp(w[i] - max);
    sum += p->sinks ? exp(p->sinks[p->h] - max) : 0;
    for (int64_t c = 0; c < a->d_v; c++) {
        double y = 0, terms = 0, lost = loss > 0 ? 0x1p-25 : 0x1p-126, least = lost / sum;
        for (int64_t i = 0; i < n; i++) {
            double v = p->v[list[span[0] + i] * p->v_cols + p->v_first + h_kv * a->d_v + c];
            y += w[i] / sum * v, terms += fabs(w[i] / sum * v), lost += fabs(v) * least;
        }
        out[c] = y;
        tol[c] =
            terms * (expm1(4 * (worst + 16 * 0x1p-24)) + (double)(n + 8) * 0x1p-23 + 2 * loss) +
            lost;
    }
}

static void expect(struct ops_case *c, const struct gr_args_attn *a)
{
    bool far = gr_ten_is(&a->k_far);
    const struct gr_ten *v = gr_ten_is(&a->v) ? &a->v : &a->k;
    struct head p = {{ops_values(c, &a->q), far ? ops_values(c, &a->q_far) : NULL},
                     {ops_values(c, &a->k), far ? ops_values(c, &a->k_far) : NULL},
                     ops_values(c, v),
                     gr_ten_is(&a->sinks) ? ops_values(c, &a->sinks) : NULL,
                     gr_ten_is(&a->rel) ? ops_values(c, &a->rel) : NULL,
                     v->cols,
                     v->cols - a->n_head_kv * a->d_v,
                     0,
                     0};
    struct ops_out *o = ops_expect(c, &a->y);
    double *w = ops_doubles(c, a->k.rows), *tol = ops_doubles(c, ops_count(&a->y));
    double *device = ops_device_tolerance(c, o), loss = device_loss(a);
    for (p.t = 0; p.t < a->q.rows; p.t++)
        for (p.h = 0; p.h < a->n_head; p.h++) {
            int64_t at = (p.t * a->n_head + p.h) * a->d_v;
            expect_head(a, &p, loss, w, o->want + at, device + at);
            expect_head(a, &p, 0, w, o->want + at, tol + at);
        }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&a->y); i++) {
        o->tol_ref[i] += fabs(tol[i]) * 1e-7 + 1e-300;
        o->tol_device[i] += o->tol_fast[i];
        o->tol_fast[i] += tol[i];
    }
}

/* v_in_k: V is the last columns of K; y begins y_at bytes behind an aligned address. */
static void attn_case_of(struct shape s, enum view v, enum ops_data data, bool v_in_k, int y_at)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_ATTN, 16,
                  "[%lld, %lld/%lld x (%lld, %lld)], %lld cells of %s %s, cap %g, alibi %g, sinks "
                  "%d, far %d, biases %lld, view %d, data %d",
                  (long long)s.n_tok, (long long)s.n_head, (long long)s.n_head_kv, (long long)s.d_k,
                  (long long)s.d_v, (long long)s.n_kv, gr_dtype_name(s.type_k),
                  gr_dtype_name(s.type_v), (double)s.softcap, (double)s.max_alibi, s.sinks, s.far,
                  (long long)s.n_rel, v, data);
    struct gr_args_attn *a = &c.node.a.attn;
    *a = (struct gr_args_attn){
        .q = ops_random(&c, GR_F32, 1, s.n_tok, s.n_head * s.d_k, data),
        .k = ops_random_cache(&c, s.type_k, s.n_kv, s.n_head_kv * s.d_k),
        .v = v_in_k ? (struct gr_ten){0}
                    : ops_random_cache(&c, s.type_v, s.n_kv, s.n_head_kv * s.d_v),
        .list = ops_new(&c, GR_I32, 1, 1, n_list(&s, v)),
        .span = ops_new(&c, GR_I32, 1, s.n_tok, 3),
        .pos = ops_integers(&c, s.n_tok, 0, 2000),
        .key_pos = ops_integers(&c, n_list(&s, v), 0, 2000),
        .y = ops_new(&c, GR_F32, 1, s.n_tok, s.n_head * s.d_v),
        .n_head = s.n_head,
        .n_head_kv = s.n_head_kv,
        .d_k = s.d_k,
        .d_v = s.d_v,
        .first_head = v, /* with another view, heads of a larger model */
        .n_head_all = s.n_head + v,
        .scale = 1 / sqrtf((float)s.d_k),
        .softcap = s.softcap,
        .max_alibi = s.max_alibi,
        .one_run = s.n_tok > GR_ATTN_FEW && (v == VIEW_ALL || v == VIEW_WINDOW)};
    a->y.data = (char *)a->y.data + y_at;
    if (s.sinks)
        a->sinks = ops_random(&c, GR_F32, 1, 1, s.n_head, OPS_NORMAL);
    if (s.n_rel)
        a->rel = ops_random(&c, GR_F32, 1, 2 * s.n_rel + 1, s.n_head, OPS_NORMAL);
    if (s.far) {
        a->q_far = ops_random(&c, GR_F32, 1, s.n_tok, s.n_head * s.d_k, data);
        a->k_far = ops_random_cache(&c, s.type_k, s.n_kv, s.n_head_kv * s.d_k);
    }
    set_lists(&c, a, v);
    poison_unseen(&c, a);
    expect(&c, a);
    ops_check(&c);
    ops_case_fini(&c);
}

static void attn_case(struct shape s, enum view v, enum ops_data data)
{
    attn_case_of(s, v, data, false, 0);
}

static const struct shape shapes[] = {
    {1, 32, 1, 1, 1, 1, GR_F32, GR_F32, 0, 0, false, false, 0},
    {1, 256, 8, 8, 64, 64, GR_F16, GR_F16, 0, 0, false, false, 0},
    {1, 288, 8, 2, 64, 64, GR_F32, GR_F32, 0, 0, false, false, 0},
    {5, 64, 8, 1, 80, 80, GR_F32, GR_F32, 30, 0, false, false, 0},
    {3, 256, 4, 4, 96, 32, GR_F16, GR_F16, 0, 8, false, false, 0},
    {9, 96, 12, 4, 7, 33, GR_F32, GR_BF16, 0, 0, true, false, 0},
    {17, 160, 6, 6, 40, 40, GR_BF16, GR_F32, 50, 4, true, true, 0},
    {2, 512, 4, 1, 256, 256, GR_F16, GR_F16, 0, 0, false, false, 0},
    {33, 544, 4, 2, 32, 32, GR_F16, GR_F16, 0, 0, false, false, 0},
    {3, 1500, 4, 2, 64, 64, GR_F16, GR_F16, 0, 0, true, false, 0},
    {1, 77, 6, 3, 32, 16, GR_F32, GR_F16, 0, 0, false, true, 0},
    {40, 300, 4, 1, 64, 64, GR_Q8_0, GR_Q8_0, 0, 0, true, true, 0},
    {2, 1300, 2, 2, 32, 32, GR_F16, GR_F16, 20, 0, false, true, 0},
    {70, 150, 2, 1, 128, 128, GR_BF16, GR_Q8_0, 0, 0, false, false, 0},
    {100, 130, 6, 2, 64, 64, GR_F16, GR_F16, 30, 8, true, true, 0},
    {130, 260, 3, 3, 96, 96, GR_F16, GR_Q4_0, 0, 0, false, false, 0},
    {66, 190, 1, 1, 192, 128, GR_Q8_0, GR_F16, 0, 0, true, false, 0},
    {67, 140, 2, 2, 256, 256, GR_F16, GR_F16, 0, 0, false, false, 0},
    {65, 100, 4, 4, 80, 80, GR_F16, GR_F16, 0, 4, false, false, 0},
    {90, 100, 1, 1, 112, 112, GR_F16, GR_BF16, 0, 0, false, true, 0},
    {1, 150, 8, 2, 128, 128, GR_Q8_0, GR_Q4_0, 0, 0, false, false, 0},
    {4, 100, 2, 1, 256, 256, GR_Q4_0, GR_Q8_0, 0, 0, false, false, 0},
    {1, 70, 9, 3, 96, 160, GR_Q4_0, GR_Q4_0, 0, 0, true, false, 0},
    {70, 150, 4, 2, 64, 64, GR_Q5_0, GR_Q4_1, 0, 0, false, false, 0},
    {66, 130, 2, 1, 128, 128, GR_Q5_1, GR_IQ4_NL, 30, 0, true, false, 0},
    {67, 140, 2, 2, 256, 256, GR_IQ4_NL, GR_Q5_1, 0, 0, false, false, 0},
    {3, 700, 6, 3, 96, 160, GR_Q4_1, GR_Q5_0, 0, 8, true, true, 0},
    {1, 90, 2, 1, 32, 512, GR_Q5_0, GR_Q5_0, 0, 0, false, false, 0},
};

/* Distances go from -2000 to 2000: most are beyond those that the table tells apart. */
static const struct shape biased[] = {
    {1, 1, 1, 1, 1, 1, GR_F32, GR_F32, 0, 0, false, false, 1},
    {21, 21, 4, 4, 16, 16, GR_F32, GR_F32, 0, 0, false, false, 2000},
    {70, 70, 4, 2, 64, 64, GR_F16, GR_F16, 0, 0, false, false, 900},
    {5, 333, 6, 2, 64, 32, GR_Q8_0, GR_BF16, 30, 0, true, false, 128},
    {3, 140, 4, 1, 40, 24, GR_F32, GR_F16, 20, 8, false, true, 1500},
};

Test(attn, biases_by_distance)
{
    for (size_t i = 0; i < GR_COUNT(biased); i++)
        for (enum view v = 0; v < N_VIEW; v++)
            attn_case(biased[i], v, OPS_NORMAL);
}

Test(attn, shapes_and_views)
{
    for (size_t i = 0; i < GR_COUNT(shapes); i++)
        for (enum view v = 0; v < N_VIEW; v++)
            attn_case(shapes[i], v, OPS_NORMAL);
}

Test(attn, cache_types)
{
    for (const int *k = ops_cache_types; *k >= 0; k++)
        for (const int *v = ops_cache_types; *v >= 0; v++) {
            attn_case((struct shape){1, 320, 8, 2, 64, 96, (uint32_t)*k, (uint32_t)*v, 0, 0, false,
                                     false, 0},
                      VIEW_HALF, OPS_NORMAL);
            attn_case((struct shape){10, 96, 6, 6, 32, 64, (uint32_t)*k, (uint32_t)*v, 0, 0, true,
                                     false, 0},
                      VIEW_CAUSAL, OPS_NORMAL);
        }
}

Test(attn, values_in_keys)
{
    struct shape s = {3, 300, 20, 1, 576, 512, GR_F16, GR_F16, 0, 0, false, false, 0};
    struct shape quants = {2, 200, 5, 1, 288, 256, GR_Q8_0, GR_Q8_0, 0, 0, true, false, 0};
    struct shape fours = {3, 100, 4, 1, 160, 128, GR_Q4_0, GR_Q4_0, 0, 0, false, false, 0};
    struct shape fives = {2, 150, 4, 1, 160, 128, GR_Q5_0, GR_Q5_0, 0, 0, false, false, 0};
    struct shape exact = {2, 90, 3, 1, 40, 24, GR_F32, GR_F32, 0, 0, true, false, 0};
    for (enum view v = 0; v < N_VIEW; v++) {
        attn_case_of(s, v, OPS_NORMAL, true, 0);
        attn_case_of(quants, v, OPS_NORMAL, true, 0);
        fours.far = v % 2;
        attn_case_of(fours, v, OPS_NORMAL, true, 0);
        attn_case_of(fives, v, OPS_NORMAL, true, 0);
        attn_case_of(exact, v, OPS_NORMAL, true, 0);
    }
}

/* Spans of so many chunks of 256 cells that a GPU joins several at once: 34 of 64 columns, 9 of 256
 * and 5 of 512. */
Test(attn, long_spans)
{
    struct shape s = {1, 33 * 256 + 40, 2, 1, 64, 64, GR_F16, GR_F16, 0, 0, false, false, 0};
    attn_case(s, VIEW_CAUSAL, OPS_NORMAL);
    s = (struct shape){2, 8 * 256 + 30, 2, 1, 256, 256, GR_F16, GR_F16, 0, 0, true, false, 0};
    attn_case(s, VIEW_CAUSAL, OPS_NORMAL);
    s = (struct shape){1, 4 * 256 + 9, 2, 1, 576, 512, GR_F16, GR_F16, 0, 0, false, false, 0};
    attn_case_of(s, VIEW_CAUSAL, OPS_NORMAL, true, 0);
}

/* Of 32 heads a GPU has eight chunks: of 256 cells each, and of more, the last one shorter. */
Test(attn, spans_of_longer_chunks)
{
    struct shape s = {1, 2048, 32, 32, 16, 16, GR_F16, GR_F16, 0, 0, false, false, 0};
    attn_case(s, VIEW_ALL, OPS_NORMAL);
    s.n_kv = 2049;
    attn_case(s, VIEW_ALL, OPS_NORMAL);
    s = (struct shape){2, 2500, 32, 32, 32, 32, GR_Q8_0, GR_F16, 0, 0, true, true, 0};
    attn_case(s, VIEW_CAUSAL, OPS_NORMAL);
    attn_case(s, VIEW_HALF, OPS_NORMAL);
}

/* An output that only single floats can be stored to. */
Test(attn, unaligned_output)
{
    for (int tokens = 3; tokens <= 70; tokens += 67)
        attn_case_of(
            (struct shape){tokens, 150, 2, 1, 64, 64, GR_F16, GR_F16, 0, 0, false, false, 0},
            VIEW_CAUSAL, OPS_NORMAL, false, 4);
}

/* Queries that make every logit 0, or one cell take all. */
Test(attn, data)
{
    for (enum ops_data data = 0; data < OPS_N_DATA; data++)
        for (size_t i = 1; i < 5; i++)
            if (data != OPS_HUGE) /* there the logit error exceeds any bound worth having */
                attn_case(shapes[i], VIEW_CAUSAL, data);
}

/* Cell 40 is token 0's alone, and it may be poisoned. */
static struct gr_args_attn *foreign_case(struct ops_case *c, int n_tok, int d, uint32_t type)
{
    enum { N_KV = 96 };
    ops_case_init(c, GR_OP_ATTN, 17, "%d tokens, a foreign cell of %s", n_tok, gr_dtype_name(type));
    struct gr_args_attn *a = &c->node.a.attn;
    *a = (struct gr_args_attn){.q = ops_random(c, GR_F32, 1, n_tok, d, OPS_NORMAL),
                               .k = ops_random_cache(c, type, N_KV, d),
                               .v = ops_random_cache(c, type, N_KV, d),
                               .list = ops_new(c, GR_I32, 1, 1, N_KV),
                               .span = ops_new(c, GR_I32, 1, n_tok, 3),
                               .y = ops_new(c, GR_F32, 1, n_tok, d),
                               .n_head = 1,
                               .n_head_kv = 1,
                               .d_k = d,
                               .d_v = d,
                               .scale = 0.2f};
    for (int i = 0; i < N_KV; i++) /* backwards, 40 last */
        ((int32_t *)a->list.data)[i] = i == N_KV - 1 ? 40 : N_KV - 1 - i - (N_KV - 1 - i <= 40);
    for (int t = 0; t < n_tok; t++)
        set_span(gr_ten_row(&a->span, 0, t), 0, 0, N_KV - (t > 0));
    return a;
}

static const float *foreign_result(const struct ops_case *c, int t)
{
    const struct gr_ten *y = &c->node.a.attn.y;
    return (const float *)(const void *)(c->buf[c->n_buf - 1].result + t * y->row_bytes);
}

static void foreign_cells_of(uint32_t type)
{
    enum { N_TOK = 3, D = 48 };
    for (enum gr_cpu_level level = GR_CPU_REF; ops_on_cpu() && level < GR_CPU_N_LEVEL; level++) {
        float y[2][N_TOK][D];
        for (int poisoned = 0; poisoned < 2 && gr_cpu_has(level); poisoned++) {
            struct ops_case c;
            struct gr_backend *b;
            struct gr_args_attn *a = foreign_case(&c, N_TOK, D, type);
            if (poisoned)
                poison(&a->k, 40), poison(&a->v, 40);
            cr_assert_eq(gr_cpu_open(&b, 1, 1, level), 0);
            ops_run(&c, b);
            for (int t = 0; t < N_TOK; t++)
                memcpy(y[poisoned][t], foreign_result(&c, t), sizeof y[0][0]);
            b->api->close(&b);
            ops_case_fini(&c);
        }
        cr_assert(!gr_cpu_has(level) || isnan(y[1][0][0]));
        cr_assert(!gr_cpu_has(level) || !memcmp(y[0][1], y[1][1], 2 * sizeof y[0][0]), "[%s]",
                  gr_cpu_level_name(level));
    }
}

/* A cell that is not a number for the token that sees it does not exist for the others. */
Test(attn, foreign_cells_do_not_matter)
{
    foreign_cells_of(GR_F32);
    foreign_cells_of(GR_F16);
}

/* Runs the last n of `all` tokens of a text; y [n_head * d] of the last one. */
static void run_last(int all, int n, int gqa, int d, enum gr_cpu_level level, float *y)
{
    enum { HEADS = 3, N_KV = 150 };
    struct ops_case c;
    struct gr_backend *b;
    ops_case_init(&c, GR_OP_ATTN, 18, "the last %d of %d tokens", n, all);
    struct gr_args_attn *a = &c.node.a.attn;
    *a = (struct gr_args_attn){.k = ops_random_cache(&c, GR_F16, N_KV, HEADS * d),
                               .v = ops_random_cache(&c, GR_F16, N_KV, HEADS * d),
                               .q = ops_random(&c, GR_F32, 1, all, HEADS * gqa * d, OPS_NORMAL),
                               .list = ops_integers(&c, N_KV, 0, N_KV - 1),
                               .span = ops_new(&c, GR_I32, 1, n, 3),
                               .y = ops_new(&c, GR_F32, 1, n, HEADS * gqa * d),
                               .n_head = HEADS * gqa,
                               .n_head_kv = HEADS,
                               .d_k = d,
                               .d_v = d,
                               .scale = 0.1f};
    a->q.data = gr_ten_row(&a->q, 0, all - n), a->q.rows = n;
    for (int t = 0; t < n; t++)
        set_span(gr_ten_row(&a->span, 0, t), 0, 0, N_KV - n + t + 1);
    cr_assert_eq(gr_cpu_open(&b, 1, 1, level), 0);
    ops_run(&c, b);
    memcpy(y, foreign_result(&c, n - 1), (size_t)(HEADS * gqa * d) * sizeof *y);
    b->api->close(&b);
    ops_case_fini(&c);
}

/* A token alone has few queries, twelve have many. */
Test(attn, few_queries_give_the_bits_of_many)
{
    float many[3 * 9 * 96], few[3 * 9 * 96];
    for (enum gr_cpu_level level = GR_CPU_AVX2; ops_on_cpu() && level < GR_CPU_N_LEVEL; level++)
        for (int gqa = 1; gqa <= 9 && gr_cpu_has(level); gqa++)
            for (int d = 16; d <= 96; d += 16) {
                run_last(12, 12, gqa, d, level, many);
                run_last(12, 1, gqa, d, level, few);
                cr_assert(!memcmp(few, many, (size_t)(3 * gqa * d) * sizeof *few), "[%s] %d, %d",
                          gr_cpu_level_name(level), gqa, d);
            }
}

/* Foreign cells on GPUs, where tokens share products: there within the tolerance. */
static void check_foreign(struct ops_case *c, int device, int n_tok, int d)
{
    struct gr_backend *b = ops_device(c, device);
    if (!b || ops_try(c, b))
        return;
    if (!isnan(foreign_result(c, 0)[0]))
        ops_wrong(c, "token 0 does not see its cell");
    for (int t = 1; t < n_tok; t++)
        for (int i = 0; i < d; i++) {
            double got = (double)foreign_result(c, t)[i], want = c->out[0].want[t * d + i];
            if (!(fabs(got - want) <= c->out[0].tol_device[t * d + i]))
                ops_wrong(c, "token %d, column %d: %.9g, expected %.9g", t, i, got, want);
        }
}

static void foreign_cells_on(int device, int n_tok, uint32_t type)
{
    enum { D = 64 };
    struct ops_case c;
    struct gr_args_attn *a = foreign_case(&c, n_tok, D, type);
    if (ops_begin(&c)) {
        expect(&c, a);
        poison(&a->k, 40), poison(&a->v, 40);
        check_foreign(&c, device, n_tok, D);
        ops_end(&c);
    }
    ops_case_fini(&c);
}

Test(attn, foreign_cells_do_not_matter_on_gpus)
{
    for (int i = 0; i < ops_n_device(); i++)
        for (int n_tok = 3; n_tok <= 70; n_tok += 67)
            for (const int *type = ops_cache_types; *type >= 0; type++)
                foreign_cells_on(i, n_tok, (uint32_t)*type);
}
