#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "ops/ops.h"

enum mask_kind { MASK_ALL, MASK_CAUSAL, MASK_HALF, MASK_ONE, MASK_NONE, MASK_WINDOW, N_MASK };

struct shape {
    int64_t n_tok, n_kv, n_head, n_head_kv, d_k, d_v;
    uint32_t type_k, type_v;
    float softcap, max_alibi;
    bool sinks;
};

static bool sees(struct gr_rng *r, enum mask_kind m, int64_t n_tok, int64_t n_kv, int64_t t,
                 int64_t j)
{
    int64_t pos = n_kv - n_tok + t;
    switch (m) {
    case MASK_ALL:
        return true;
    case MASK_CAUSAL:
        return j <= pos;
    case MASK_HALF:
        return gr_rng_below(r, 2);
    case MASK_ONE:
        return j == (t * 37 + 5) % n_kv;
    case MASK_WINDOW:
        return j <= pos && pos - j < 40;
    default:
        return false;
    }
}

/* Sets the mask, and NaN bytes in every row of K and V that no token sees. */
static void set_mask(struct ops_case *c, const struct gr_args_attn *a, enum mask_kind m)
{
    int64_t n_tok = a->q.rows, n_kv = a->k.rows;
    for (int64_t t = 0; t < n_tok; t++) {
        uint32_t *bits = gr_ten_row(&a->mask, 0, t);
        memset(bits, 0, (size_t)n_kv / 8);
        for (int64_t j = 0; j < n_kv; j++)
            bits[j / 32] |= (uint32_t)sees(&c->rng, m, n_tok, n_kv, t, j) << j % 32;
    }
    for (int64_t j = 0; j < n_kv; j++) {
        uint32_t seen = 0;
        for (int64_t t = 0; t < n_tok; t++)
            seen |= ((uint32_t *)gr_ten_row(&a->mask, 0, t))[j / 32] >> j % 32 & 1;
        if (!seen) {
            memset(gr_ten_row(&a->k, 0, j), 0xff, gr_row_bytes(a->k.dtype, (uint64_t)a->k.cols));
            memset(gr_ten_row(&a->v, 0, j), 0xff, gr_row_bytes(a->v.dtype, (uint64_t)a->v.cols));
        }
    }
}

struct head {
    const double *q, *k, *v, *sinks; /* the whole tensors */
    int64_t t, h;
};

/* Logit of cell j, and what it may be off on a fast level. q may be rounded to f16 or to s8 with 32
 * columns a step when the cache is (the coarser one counts), products and sums are f32; then the
 * cap and the slope round once more. */
static double logit(const struct gr_args_attn *a, const struct head *p, int64_t j, double *error)
{
    int64_t h_kv = p->h / (a->n_head / a->n_head_kv);
    const double *q = p->q + (p->t * a->n_head + p->h) * a->d_k;
    const double *k = p->k + (j * a->n_head_kv + h_kv) * a->d_k;
    double x = 0, terms = 0;
    for (int64_t i = 0; i < a->d_k; i++)
        x += q[i] * k[i], terms += fabs(q[i] * k[i]);
    double scale = fabs((double)a->scale), e = terms * (double)(a->d_k + 4) * 0x1p-24;
    x *= (double)a->scale, e *= scale;
    if (a->softcap > 0) {
        x = (double)a->softcap * tanh(x / (double)a->softcap);
        e += (double)a->softcap * 0x1p-21;
    }
    if (a->max_alibi > 0) {
        double far =
            fabs((double)((int32_t *)a->pos.data)[p->t] - ((int32_t *)a->cell_pos.data)[j]);
        double bias = (double)gr_alibi_slope(a->max_alibi, a->n_head, p->h) * far;
        x -= bias, e += bias * 0x1p-22;
    }
    *error = e + fabs(x) * 0x1p-23;
    return x;
}

/* One head of one token: out [d_v], tol [d_v]. Every weight exp(x - max) is off by a factor of at
 * most exp(2 e), e the largest logit error plus the exp's own rounding; so is their sum; the sum
 * over n cells rounds in f32. */
static void expect_head(const struct gr_args_attn *a, const struct head *p, double *w, double *out,
                        double *tol)
{
    double max = p->sinks ? p->sinks[p->h] : -INFINITY, sum = 0, worst = 0, e;
    int64_t n = 0, h_kv = p->h / (a->n_head / a->n_head_kv);
    const uint32_t *bits = gr_ten_row(&a->mask, 0, p->t);
    for (int64_t j = 0; j < a->k.rows; j++) {
        w[j] = bits[j / 32] >> j % 32 & 1 ? logit(a, p, j, &e) : -INFINITY;
        if (w[j] > -INFINITY)
            worst = fmax(worst, e), n++;
        max = fmax(max, w[j]);
    }
    for (int64_t j = 0; j < a->k.rows; j++)
        sum += w[j] = w[j] > -INFINITY ? exp(w[j] - max) : 0;
    sum += p->sinks ? exp(p->sinks[p->h] - max) : 0;
    for (int64_t c = 0; c < a->d_v; c++) {
        double y = 0, terms = 0;
        for (int64_t j = 0; j < a->k.rows; j++) {
            if (!w[j])
                continue;
            double v = w[j] / sum * p->v[(j * a->n_head_kv + h_kv) * a->d_v + c];
            y += v, terms += fabs(v);
        }
        out[c] = y;
        tol[c] = terms * (expm1(4 * (worst + 16 * 0x1p-24)) + (double)(n + 8) * 0x1p-23) + 0x1p-126;
    }
}

static void expect(struct ops_case *c, const struct gr_args_attn *a)
{
    struct head p = {ops_values(c, &a->q),
                     ops_values(c, &a->k),
                     ops_values(c, &a->v),
                     gr_ten_is(&a->sinks) ? ops_values(c, &a->sinks) : NULL,
                     0,
                     0};
    struct ops_out *o = ops_expect(c, &a->y);
    double *w = ops_doubles(c, a->k.rows), *tol = ops_doubles(c, ops_count(&a->y));
    for (p.t = 0; p.t < a->q.rows; p.t++)
        for (p.h = 0; p.h < a->n_head; p.h++) {
            int64_t at = (p.t * a->n_head + p.h) * a->d_v;
            expect_head(a, &p, w, o->want + at, tol + at);
        }
    ops_round_to_f32(o);
    for (int64_t i = 0; i < ops_count(&a->y); i++) {
        o->tol_ref[i] += fabs(tol[i]) * 1e-7 + 1e-300;
        o->tol_fast[i] += tol[i];
    }
}

static void attn_case(struct shape s, enum mask_kind m, enum ops_data data)
{
    struct ops_case c;
    ops_case_init(&c, GR_OP_ATTN, 16,
                  "[%lld, %lld/%lld x (%lld, %lld)], %lld cells of %s %s, cap %g, alibi %g, sinks "
                  "%d, mask %d, data %d",
                  (long long)s.n_tok, (long long)s.n_head, (long long)s.n_head_kv, (long long)s.d_k,
                  (long long)s.d_v, (long long)s.n_kv, gr_dtype_name(s.type_k),
                  gr_dtype_name(s.type_v), (double)s.softcap, (double)s.max_alibi, s.sinks, m,
                  data);
    struct gr_args_attn *a = &c.node.a.attn;
    *a = (struct gr_args_attn){
        .q = ops_random(&c, GR_F32, 1, s.n_tok, s.n_head * s.d_k, data),
        .k = ops_random(&c, s.type_k, 1, s.n_kv, s.n_head_kv * s.d_k, OPS_NORMAL),
        .v = ops_random(&c, s.type_v, 1, s.n_kv, s.n_head_kv * s.d_v, OPS_NORMAL),
        .mask = ops_new(&c, GR_I32, 1, s.n_tok, s.n_kv / 32),
        .pos = ops_integers(&c, s.n_tok, 0, 2000),
        .cell_pos = ops_integers(&c, s.n_kv, -1, 2000),
        .y = ops_new(&c, GR_F32, 1, s.n_tok, s.n_head * s.d_v),
        .n_head = s.n_head,
        .n_head_kv = s.n_head_kv,
        .d_k = s.d_k,
        .d_v = s.d_v,
        .scale = 1 / sqrtf((float)s.d_k),
        .softcap = s.softcap,
        .max_alibi = s.max_alibi};
    if (s.sinks)
        a->sinks = ops_random(&c, GR_F32, 1, 1, s.n_head, OPS_NORMAL);
    set_mask(&c, a, m);
    expect(&c, a);
    ops_check(&c);
    ops_case_fini(&c);
}

static const struct shape shapes[] = {
    {1, 32, 1, 1, 1, 1, GR_F32, GR_F32, 0, 0, false},
    {1, 256, 8, 8, 64, 64, GR_F16, GR_F16, 0, 0, false},
    {1, 288, 8, 2, 64, 64, GR_F32, GR_F32, 0, 0, false},
    {5, 64, 8, 1, 80, 80, GR_F32, GR_F32, 30, 0, false},
    {3, 256, 4, 4, 96, 32, GR_F16, GR_F16, 0, 8, false},
    {9, 96, 12, 4, 7, 33, GR_F32, GR_BF16, 0, 0, true},
    {17, 160, 6, 6, 40, 40, GR_BF16, GR_F32, 50, 4, true},
    {2, 512, 4, 1, 256, 256, GR_F16, GR_F16, 0, 0, false},
    {33, 544, 4, 2, 32, 32, GR_F16, GR_F16, 0, 0, false},
};

Test(attn, shapes_and_masks)
{
    for (size_t i = 0; i < GR_COUNT(shapes); i++)
        for (enum mask_kind m = 0; m < N_MASK; m++)
            attn_case(shapes[i], m, OPS_NORMAL);
}

Test(attn, cache_types)
{
    for (const int *k = ops_cache_types; *k >= 0; k++)
        for (const int *v = ops_cache_types; *v >= 0; v++) {
            attn_case((struct shape){1, 320, 8, 2, 64, 96, (uint32_t)*k, (uint32_t)*v, 0, 0, false},
                      MASK_HALF, OPS_NORMAL);
            attn_case((struct shape){10, 96, 6, 6, 32, 64, (uint32_t)*k, (uint32_t)*v, 0, 0, true},
                      MASK_CAUSAL, OPS_NORMAL);
        }
}

/* Queries that make every logit 0, or one cell take all. */
Test(attn, data)
{
    for (enum ops_data data = 0; data < OPS_N_DATA; data++)
        for (size_t i = 1; i < 5; i++)
            if (data != OPS_HUGE) /* there the logit error exceeds any bound worth having */
                attn_case(shapes[i], MASK_CAUSAL, data);
}

/* A cell that is not a number for the token that sees it does not exist for the others. */
Test(attn, foreign_cells_do_not_matter)
{
    enum { N_TOK = 3, N_KV = 96, D = 24 };
    for (enum gr_cpu_level level = GR_CPU_REF; level < GR_CPU_N_LEVEL; level++) {
        float y[2][N_TOK][D];
        for (int poisoned = 0; poisoned < 2 && gr_cpu_has(level); poisoned++) {
            struct ops_case c;
            struct gr_backend *b;
            ops_case_init(&c, GR_OP_ATTN, 17, "poisoned %d", poisoned);
            struct gr_args_attn *a = &c.node.a.attn;
            *a = (struct gr_args_attn){.q = ops_random(&c, GR_F32, 1, N_TOK, D, OPS_NORMAL),
                                       .k = ops_random(&c, GR_F32, 1, N_KV, D, OPS_NORMAL),
                                       .v = ops_random(&c, GR_F32, 1, N_KV, D, OPS_NORMAL),
                                       .mask = ops_new(&c, GR_I32, 1, N_TOK, N_KV / 32),
                                       .y = ops_new(&c, GR_F32, 1, N_TOK, D),
                                       .n_head = 1,
                                       .n_head_kv = 1,
                                       .d_k = D,
                                       .d_v = D,
                                       .scale = 0.2f};
            for (int t = 0; t < N_TOK; t++) /* every cell but 40, which is token 0's alone */
                ((uint32_t *)gr_ten_row(&a->mask, 0, t))[1] = t ? ~(1u << 8) : ~0u;
            if (poisoned) {
                memset(gr_ten_row(&a->k, 0, 40), 0xff, D * sizeof(float));
                memset(gr_ten_row(&a->v, 0, 40), 0xff, D * sizeof(float));
            }
            cr_assert_eq(gr_cpu_open(&b, 1, 1, level), 0);
            ops_run(&c, b);
            for (int t = 0; t < N_TOK; t++)
                memcpy(y[poisoned][t], c.buf[c.n_buf - 1].result + t * a->y.row_bytes,
                       sizeof y[0][0]);
            b->api->close(&b);
            ops_case_fini(&c);
        }
        cr_assert(!gr_cpu_has(level) || isnan(y[1][0][0]));
        cr_assert(!gr_cpu_has(level) || !memcmp(y[0][1], y[1][1], 2 * sizeof y[0][0]), "[%s]",
                  gr_cpu_level_name(level));
    }
}
