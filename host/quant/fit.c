#include "quant/fit.h"

#include <math.h>
#include <stdbool.h>

#include "base/checked.h"
#include "base/f16.h"

#define X_MAX 0x1p40f /* inputs are clamped to it, so that squares and sums stay finite */
#define TINY 0x1p-26f /* below half of the smallest step 2^-24 that a block can hold */
#define N_ROUNDS 3    /* of choosing group scales and refitting the super-block's scale */
#define LANES 8       /* independent partial sums, so that the compiler can vectorise */

static void load_weights(const float *importance, int n, float *w)
{
    float max = 0;
    for (int i = 0; i < n; i++) {
        w[i] = importance && importance[i] >= 0 && importance[i] < INFINITY ? importance[i] : 0;
        max = GR_MAX(max, w[i]);
    }
    for (int i = 0; i < n; i++)
        w[i] = max > 0 ? w[i] / max : 1;
}

void gr_fit_load(const float *src, const float *importance, int n, float *x, float *w)
{
    for (int i = 0; i < n; i++) {
        float v = src[i] == src[i] ? src[i] : 0;
        v = v > X_MAX ? X_MAX : v;
        x[i] = v < -X_MAX ? -X_MAX : v;
    }
    if (w)
        load_weights(importance, n, w);
}

gr_half gr_fit_half(float x)
{
    return gr_f32_to_f16(GR_MIN(GR_MAX(x, -GR_FIT_HALF_MAX), GR_FIT_HALF_MAX));
}

gr_half gr_fit_half_up(float x)
{
    float up = ceilf(fabsf(x) * 0x1p24f) * 0x1p-24f;
    if (x == 0)
        return 0;
    return gr_fit_half(fabsf(x) < 0x1p-14f ? copysignf(up, x) : x);
}

gr_half gr_fit_step(float d, float *inverse)
{
    d = GR_MIN(GR_MAX(d, -GR_FIT_HALF_MAX), GR_FIT_HALF_MAX);
    gr_half h = gr_f32_to_f16(d);
    *inverse = h & 0x7fff ? 1 / d : 0;
    return h;
}

/* Rounds v to the nearest integer in lo..hi; adding and subtracting 1.5 * 2^23 rounds, and
 * vectorises without SSE 4.1. */
static inline float level(float v, float lo, float hi)
{
    v = v < lo ? lo : v;
    v = v > hi ? hi : v;
    return (v + 0x1.8p23f) - 0x1.8p23f;
}

static inline float inverse(float scale)
{
    return scale != 0 ? 1 / scale : 0;
}

static inline float total(const float lanes[LANES])
{
    float s = 0;
    for (int l = 0; l < LANES; l++)
        s += lanes[l];
    return s;
}

void gr_fit_levels(const float *x, int n, float scale, float min, int lo, int hi, uint8_t *q)
{
    float inv = inverse(scale);
    for (int i = 0; i < n; i++)
        q[i] = (uint8_t)((int)level((x[i] - min) * inv, (float)lo, (float)hi) - lo);
}

/* Sums for a least-squares fit with fixed levels q. */
struct sums {
    float q, qq, xq; /* sum w q, sum w q q, sum w x q */
};

static struct sums sums_at(const float *x, const float *w, int n, float inv, float min, float lo,
                           float hi)
{
    float a[LANES] = {0}, b[LANES] = {0}, c[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float q = level((x[i + l] - min) * inv, lo, hi), wq = w[i + l] * q;
            a[l] += wq;
            b[l] += wq * q;
            c[l] += wq * x[i + l];
        }
    return (struct sums){total(a), total(b), total(c)};
}

/* Returns the weighted squared error with the nearest levels. */
static float error_at(const float *x, const float *w, int n, struct gr_affine f, float lo, float hi)
{
    float e[LANES] = {0}, inv = inverse(f.scale);
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float y = x[i + l] - f.min, d = y - f.scale * level(y * inv, lo, hi);
            e[l] += w[i + l] * d * d;
        }
    return total(e);
}

static float largest(const float *x, int n)
{
    float max = 0;
    for (int i = 0; i < n; i++)
        max = fabsf(x[i]) > fabsf(max) ? x[i] : max;
    return max;
}

/* Rounds to levels at a trial scale 1 / inv and computes the best scale for these levels, sum wxq /
 * sum wqq, which lowers the error by (sum wxq)^2 / sum wqq. Keeps that scale when the reduction
 * exceeds *gain. */
static bool try_scale(const float *x, const float *w, int n, float inv, float lo, float hi,
                      float *scale, float *gain)
{
    struct sums s = sums_at(x, w, n, inv, 0, lo, hi);
    if (!(s.qq > 0) || !(s.xq * s.xq / s.qq > *gain))
        return false;
    *gain = s.xq * s.xq / s.qq;
    *scale = s.xq / s.qq;
    return true;
}

/* Trial scales map the largest element to lo - 1.5 .. lo + 1.5; the best one is refined. */
float gr_fit_scale(const float *x, const float *w, int n, int q_lo, int q_hi)
{
    float lo = (float)q_lo, hi = (float)q_hi, max = largest(x, n), best = max / lo, gain = 0;
    if (fabsf(max) < TINY)
        return 0;
    for (int trial = -6; trial <= 6; trial++)
        try_scale(x, w, n, (lo + 0.25f * (float)trial) / max, lo, hi, &best, &gain);
    for (int round = 0; round < 3; round++)
        if (!try_scale(x, w, n, 1 / best, lo, hi, &best, &gain))
            break;
    return best;
}

/* A group shifted so that its smallest element is 0, and the sums that do not depend on the
 * levels. */
struct shifted {
    float y[GR_QK], w[GR_QK];
    int n;
    float q_max, min_limit; /* min stays at or below min_limit */
    float sw, sy, syy;      /* sum w, sum w y, sum w y y */
};

/* Replaces *f by the least-squares fit for the levels that *f rounds to; returns its error, or
 * INFINITY when these levels are all equal. */
static float refit(const struct shifted *g, struct gr_affine *f)
{
    struct sums s = sums_at(g->y, g->w, g->n, inverse(f->scale), f->min, 0, g->q_max);
    float det = g->sw * s.qq - s.q * s.q;
    if (!(det > 0))
        return INFINITY;
    f->scale = (g->sw * s.xq - s.q * g->sy) / det;
    f->min = (s.qq * g->sy - s.q * s.xq) / det;
    if (f->min > g->min_limit) {
        f->min = g->min_limit;
        f->scale = (s.xq - f->min * s.q) / s.qq;
    }
    if (!(f->scale >= TINY))
        return INFINITY;
    return g->syy + f->scale * (f->scale * s.qq - 2 * s.xq + 2 * f->min * s.q) +
           f->min * (f->min * g->sw - 2 * g->sy);
}

struct gr_affine gr_fit_affine(const float *x, const float *w, int n, int q_max, int min_below_0)
{
    struct shifted g = {.n = n, .q_max = (float)q_max};
    float lo = x[0], hi = x[0], best_error = INFINITY;
    for (int i = 1; i < n; i++) {
        lo = GR_MIN(lo, x[i]);
        hi = GR_MAX(hi, x[i]);
    }
    if (min_below_0)
        lo = GR_MIN(lo, 0);
    g.min_limit = min_below_0 ? -lo : INFINITY;
    for (int i = 0; i < n; i++) {
        g.y[i] = x[i] - lo;
        g.w[i] = w[i];
        g.sw += w[i];
        g.sy += w[i] * g.y[i];
        g.syy += w[i] * g.y[i] * g.y[i];
    }
    struct gr_affine best = {(hi - lo) / (float)q_max, 0};
    if (hi - lo < TINY)
        return (struct gr_affine){0, lo};
    for (int trial = 0; trial < 11; trial++) {
        struct gr_affine f = {(hi - lo) / ((float)q_max - 1.5f + 0.25f * (float)trial), 0};
        for (int round = 0; round < 2; round++) {
            float error = refit(&g, &f);
            if (!(error < best_error))
                continue;
            best_error = error;
            best = f;
        }
    }
    best.min += lo;
    return best;
}

/* Returns the integer in lo..hi nearest to v / step; 0 for step 0. */
static int nearest(float v, float step, int lo, int hi)
{
    return (int)level(v * inverse(step), (float)lo, (float)hi);
}

/* One group of a super-block: its elements and its own fit. */
struct group {
    const float *x, *w;
    int n;
    struct gr_affine fit;
};

/* Sums over a super-block for fitting d and dmin, where x = d * a - dmin * b, a = scale * q and b =
 * min. */
struct pair {
    float aa, ab, bb, xa, xb;
};

/* Chooses the quantised scale and minimum with the smallest error near the group's fit; returns
 * that error. */
static float choose_mins(const struct group *g, float d, float dmin, int q_max, int s_max,
                         uint8_t *scale, uint8_t *min)
{
    int s0 = nearest(g->fit.scale, d, 0, s_max), m0 = nearest(-g->fit.min, dmin, 0, s_max);
    float best = INFINITY;
    for (int s = GR_MAX(s0 - 1, 0); s <= GR_MIN(s0 + 1, s_max); s++)
        for (int m = GR_MAX(m0 - 1, 0); m <= GR_MIN(m0 + 1, s_max); m++) {
            struct gr_affine f = {d * (float)s, -dmin * (float)m};
            float error = error_at(g->x, g->w, g->n, f, 0, (float)q_max);
            if (error < best) {
                best = error;
                *scale = (uint8_t)s;
                *min = (uint8_t)m;
            }
        }
    return best;
}

static void pair_add(struct pair *p, const struct group *g, float d, float dmin, int q_max,
                     uint8_t scale, uint8_t min)
{
    float s = scale, m = min, sw = 0, sx = 0;
    struct sums k = sums_at(g->x, g->w, g->n, inverse(d * s), -dmin * m, 0, (float)q_max);
    for (int i = 0; i < g->n; i++) {
        sw += g->w[i];
        sx += g->w[i] * g->x[i];
    }
    p->aa += s * s * k.qq;
    p->ab += s * m * k.q;
    p->bb += m * m * sw;
    p->xa += s * k.xq;
    p->xb += m * sx;
}

static void pair_solve(const struct pair *p, float *d, float *dmin)
{
    float det = p->aa * p->bb - p->ab * p->ab;
    if (det > 0) {
        *d = (p->xa * p->bb - p->xb * p->ab) / det;
        *dmin = (p->xa * p->ab - p->xb * p->aa) / det;
    } else if (p->aa > 0) {
        *d = (p->xa + *dmin * p->ab) / p->aa;
    }
    *d = GR_MAX(*d, 0);
    *dmin = GR_MAX(*dmin, 0);
}

void gr_fit_mins(const float *x, const float *w, int group, int q_max, int s_max,
                 struct gr_mins_block *out)
{
    struct group g[16];
    float d = 0, dmin = 0, best = INFINITY;
    int n_groups = GR_QK_K / group;
    for (int i = 0; i < n_groups; i++) {
        g[i] = (struct group){x + i * group, w + i * group, group,
                              gr_fit_affine(x + i * group, w + i * group, group, q_max, 1)};
        d = GR_MAX(d, g[i].fit.scale);
        dmin = GR_MAX(dmin, -g[i].fit.min);
    }
    d = gr_f16_to_f32(gr_fit_half_up(d / (float)s_max));
    dmin = gr_f16_to_f32(gr_fit_half_up(dmin / (float)s_max));
    for (int round = 0; round < N_ROUNDS; round++) {
        struct gr_mins_block t = {.d = gr_fit_half(d), .dmin = gr_fit_half(dmin)};
        struct pair p = {0};
        float error = 0;
        d = gr_f16_to_f32(t.d);
        dmin = gr_f16_to_f32(t.dmin);
        for (int i = 0; i < n_groups; i++) {
            error += choose_mins(&g[i], d, dmin, q_max, s_max, &t.scale[i], &t.min[i]);
            pair_add(&p, &g[i], d, dmin, q_max, t.scale[i], t.min[i]);
        }
        if (!(error < best))
            break;
        best = error;
        *out = t;
        pair_solve(&p, &d, &dmin);
    }
    d = gr_f16_to_f32(out->d);
    dmin = gr_f16_to_f32(out->dmin);
    for (int i = 0; i < n_groups; i++)
        gr_fit_levels(g[i].x, group, d * out->scale[i], -dmin * out->min[i], 0, q_max,
                      out->q + i * group);
}

/* Chooses the quantised scale with the smallest error near the group's fit; returns that error. */
static float choose_scale(const struct group *g, float d, int q_lo, int s_lo, int8_t *scale)
{
    int s0 = nearest(g->fit.scale, d, s_lo, -s_lo - 1);
    float best = INFINITY;
    for (int s = GR_MAX(s0 - 1, s_lo); s <= GR_MIN(s0 + 1, -s_lo - 1); s++) {
        struct gr_affine f = {d * (float)s, 0};
        float error = error_at(g->x, g->w, g->n, f, (float)q_lo, (float)(-q_lo - 1));
        if (error < best) {
            best = error;
            *scale = (int8_t)s;
        }
    }
    return best;
}

void gr_fit_scales(const float *x, const float *w, int q_lo, int s_lo, struct gr_scales_block *out)
{
    struct group g[16];
    float best = INFINITY, max = 0, lo = (float)q_lo, hi = (float)(-q_lo - 1);
    for (int i = 0; i < 16; i++) {
        g[i] = (struct group){x + 16 * i,
                              w + 16 * i,
                              16,
                              {gr_fit_scale(x + 16 * i, w + 16 * i, 16, q_lo, -q_lo - 1), 0}};
        max = fabsf(g[i].fit.scale) > fabsf(max) ? g[i].fit.scale : max;
    }
    float d = gr_f16_to_f32(gr_fit_half_up(max / (float)s_lo));
    for (int round = 0; round < N_ROUNDS; round++) {
        struct gr_scales_block t = {.d = gr_fit_half(d)};
        float error = 0, aa = 0, xa = 0;
        d = gr_f16_to_f32(t.d);
        for (int i = 0; i < 16; i++) {
            error += choose_scale(&g[i], d, q_lo, s_lo, &t.scale[i]);
            float s = t.scale[i];
            struct sums k = sums_at(g[i].x, g[i].w, 16, inverse(d * s), 0, lo, hi);
            aa += s * s * k.qq;
            xa += s * k.xq;
        }
        if (!(error < best))
            break;
        best = error;
        *out = t;
        d = aa > 0 ? xa / aa : 0;
    }
    for (int i = 0; i < 16; i++)
        gr_fit_levels(g[i].x, 16, gr_f16_to_f32(out->d) * out->scale[i], 0, q_lo, -q_lo - 1,
                      out->q + 16 * i);
}
