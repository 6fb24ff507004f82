#include "quant/fit_book.h"

#include <math.h>
#include <stdbool.h>

#include "base/checked.h"
#include "base/f16.h"
#include "quant/fit.h"

enum {
    LANES = 8,    /* elements at a time, for vectorisation */
    N_TRIALS = 8, /* trial scales of each sign */
    N_POLISH = 4, /* refits of the best trial */
    N_ROUNDS = 3  /* of choosing group scales and refitting the super-block's scale */
};

static float inverse(float scale)
{
    return scale != 0 ? 1 / scale : 0;
}

static float middle(const struct gr_book *b, int i)
{
    return 0.5f * (b->value[i] + b->value[i + 1]);
}

void gr_book_levels(const struct gr_book *b, const float *x, int n, float scale, uint8_t *q)
{
    float inv = inverse(scale);
    for (int i = 0; i < n; i++) {
        int level = 0;
        for (int k = 0; k < b->n - 1; k++)
            level += x[i] * inv > middle(b, k);
        q[i] = (uint8_t)level;
    }
}

/* v[l] = the value nearest to y[l], for LANES elements. */
static inline void values_of(const struct gr_book *b, const float *y, float *v)
{
    for (int l = 0; l < LANES; l++)
        v[l] = b->value[0];
    for (int k = 0; k < b->n - 1; k++) {
        float mid = middle(b, k), next = b->value[k + 1];
        for (int l = 0; l < LANES; l++)
            v[l] = y[l] > mid ? next : v[l];
    }
}

float gr_book_error(const struct gr_book *b, const float *x, const float *w, int n, float scale)
{
    float e[LANES] = {0}, inv = inverse(scale), sum = 0;
    for (int i = 0; i < n; i += LANES) {
        float y[LANES], v[LANES];
        for (int l = 0; l < LANES; l++)
            y[l] = x[i + l] * inv;
        values_of(b, y, v);
        for (int l = 0; l < LANES; l++) {
            float d = x[i + l] - scale * v[l];
            e[l] += w[i + l] * d * d;
        }
    }
    for (int l = 0; l < LANES; l++)
        sum += e[l];
    return sum;
}

/* Sums for fitting a scale to chosen values. */
struct sums {
    float qq, xq; /* sum w value^2, sum w x value */
};

static struct sums sums_at(const struct gr_book *b, const float *x, const float *w, int n,
                           float inv)
{
    float qq[LANES] = {0}, xq[LANES] = {0};
    struct sums s = {0, 0};
    for (int i = 0; i < n; i += LANES) {
        float y[LANES], v[LANES];
        for (int l = 0; l < LANES; l++)
            y[l] = x[i + l] * inv;
        values_of(b, y, v);
        for (int l = 0; l < LANES; l++) {
            qq[l] += w[i + l] * v[l] * v[l];
            xq[l] += w[i + l] * v[l] * x[i + l];
        }
    }
    for (int l = 0; l < LANES; l++) {
        s.qq += qq[l];
        s.xq += xq[l];
    }
    return s;
}

/* Rounds to values at a trial scale 1 / inv and computes the best scale for them; keeps it when the
 * reduction of the error exceeds *gain. */
static bool try_scale(const struct gr_book *b, const float *x, const float *w, int n, float inv,
                      float *scale, float *gain)
{
    struct sums s = sums_at(b, x, w, n, inv);
    if (!(s.qq > 0) || !(s.xq * s.xq > *gain * s.qq))
        return false;
    *gain = s.xq * s.xq / s.qq;
    *scale = s.xq / s.qq;
    return true;
}

float gr_fit_book(const struct gr_book *b, const float *x, const float *w, int n)
{
    float max = 0, scale = 0, gain = 0;
    for (int i = 0; i < n; i++)
        max = GR_MAX(max, fabsf(x[i]));
    if (max < 0x1p-26f)
        return 0;
    for (int t = 0; t < N_TRIALS; t++) {
        float reach = b->reach[0] + (b->reach[1] - b->reach[0]) * (float)t / (float)(N_TRIALS - 1);
        try_scale(b, x, w, n, reach * b->value[0] / max, &scale, &gain);
        try_scale(b, x, w, n, reach * b->value[b->n - 1] / max, &scale, &gain);
    }
    for (int i = 0; i < N_POLISH; i++)
        if (!try_scale(b, x, w, n, inverse(scale), &scale, &gain))
            break;
    return scale;
}

/* Chooses the quantised scale with the smallest error near `fit`, the group's own; returns that
 * error. */
static float choose_scale(const struct gr_book *b, const float *x, const float *w, float fit,
                          float d, int8_t *scale)
{
    float best = INFINITY;
    int s0 = (int)roundf(GR_MIN(GR_MAX(fit * inverse(d), -32.f), 31.f));
    for (int s = GR_MAX(s0 - 1, -32); s <= GR_MIN(s0 + 1, 31); s++) {
        float error = gr_book_error(b, x, w, 32, d * (float)s);
        if (error < best) {
            best = error;
            *scale = (int8_t)s;
        }
    }
    return best;
}

void gr_fit_books(const struct gr_book *b, const float *x, const float *w,
                  struct gr_book_block *out)
{
    float fit[8], max = 0, best = INFINITY;
    for (int g = 0; g < 8; g++) {
        fit[g] = gr_fit_book(b, x + 32 * g, w + 32 * g, 32);
        max = fabsf(fit[g]) > fabsf(max) ? fit[g] : max;
    }
    float d = max / -32;
    for (int round = 0; round < N_ROUNDS; round++) {
        struct gr_book_block t = {.d = round ? gr_fit_half(d) : gr_fit_half_up(d)};
        float error = 0, qq = 0, xq = 0;
        d = gr_f16_to_f32(t.d);
        for (int g = 0; g < 8; g++) {
            error += choose_scale(b, x + 32 * g, w + 32 * g, fit[g], d, &t.scale[g]);
            float s = t.scale[g];
            struct sums k = sums_at(b, x + 32 * g, w + 32 * g, 32, inverse(d * s));
            qq += s * s * k.qq;
            xq += s * k.xq;
        }
        if (!(error < best))
            break;
        best = error;
        *out = t;
        d = qq > 0 ? xq / qq : 0;
    }
    for (int g = 0; g < 8; g++)
        gr_book_levels(b, x + 32 * g, 32, gr_f16_to_f32(out->d) * out->scale[g], out->q + 32 * g);
}
