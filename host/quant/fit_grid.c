#include "quant/fit_grid.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/f16.h"
#include "quant/fit.h"

enum {
    N_HALF = 81,  /* at most: 3^4 halves of points of 8 elements, 8^2 of points of 4 */
    N_TRIALS = 5, /* trial scales of a group */
    N_POLISH = 2, /* refits of the best trial */
    N_ROUNDS = 2  /* of choosing group scales and refitting the super-block's scale */
};

/* ---- the nearest point ---- */

/* Points are split into two halves; points with the same upper half are contiguous. */
struct search {
    const struct gr_grid_kind *kind;
    uint16_t first[N_HALF + 1]; /* points with upper half h are [first[h], first[h + 1]) */
    uint8_t low[2048];          /* the lower half of each point */
};

static int half_of(const struct gr_grid_kind *k, unsigned byte)
{
    if (k->dims == 4)
        return (int)((byte & 15) + 8 * (byte >> 4));
    return (int)((byte & 3) + 3 * (byte >> 2 & 3) + 9 * (byte >> 4 & 3) + 27 * (byte >> 6));
}

static void search_init(struct search *s, const struct gr_grid_kind *kind)
{
    s->kind = kind;
    memset(s->first, 0, sizeof s->first);
    for (int i = 0; i < kind->n_codes; i++) {
        s->low[i] = (uint8_t)half_of(kind, kind->codes[i] & 255u);
        s->first[half_of(kind, kind->codes[i] >> 8) + 1]++;
    }
    for (int h = 0; h < N_HALF; h++)
        s->first[h + 1] = (uint16_t)(s->first[h + 1] + s->first[h]);
}

/* sum[] = costs of all combinations of levels of n elements, the first element varying fastest. */
static inline void combine(const float cost[][8], int n, int levels, float *sum)
{
    int size = levels;
    memcpy(sum, cost[0], sizeof(float) * (size_t)levels);
    for (int e = 1; e < n; e++, size *= levels)
        for (int l = levels - 1; l >= 0; l--)
            for (int i = 0; i < size; i++)
                sum[l * size + i] = sum[i] + cost[e][l];
}

/* Searches the points with upper half h for one with a cost below *best. */
static inline void scan(const struct search *s, int h, const float *low, float high, float *best,
                        int *index)
{
    for (int i = s->first[h]; i < s->first[h + 1]; i++)
        if (low[s->low[i]] + high < *best) {
            *best = low[s->low[i]] + high;
            *index = i;
        }
}

/* Finds the point with the lowest sum w (y - scale * value)^2 and returns that sum. The sum has one
 * term per half, so that all points with the same upper half can be excluded at once. */
static inline float nearest_of(const struct search *s, int dims, int levels, const float *y,
                               const float *w, const float *value, int *index)
{
    float cost[8][8], low[N_HALF], high[N_HALF], best = INFINITY, least = 0;
    int n_half = 1, top = 0;
    for (int e = 0; e < dims; e++)
        for (int l = 0; l < levels; l++)
            cost[e][l] = w[e] * (y[e] - value[l]) * (y[e] - value[l]);
    for (int e = 0; e < dims / 2; e++) {
        float min = cost[e][0];
        for (int l = 1; l < levels; l++)
            min = GR_MIN(min, cost[e][l]);
        least += min;
        n_half *= levels;
    }
    combine(cost, dims / 2, levels, low);
    combine(cost + dims / 2, dims / 2, levels, high);
    for (int h = 1; h < n_half; h++)
        top = high[h] < high[top] ? h : top;
    *index = 0;
    scan(s, top, low, high[top], &best, index);
    for (int h = 0; h < n_half; h++)
        if (high[h] + least < best)
            scan(s, h, low, high[h], &best, index);
    return best;
}

static float nearest(const struct search *s, const float *y, const float *w, float scale, int shift,
                     int *index)
{
    float value[8];
    for (int l = 0; l < 8; l++)
        value[l] = scale * s->kind->value[shift][l];
    return s->kind->dims == 8 ? nearest_of(s, 8, 3, y, w, value, index)
                              : nearest_of(s, 4, 8, y, w, value, index);
}

/* ---- one group ---- */

/* Points chosen for a group at a scale. */
struct choice {
    uint16_t index[8];
    uint8_t shift[8];
};

struct group {
    float y[32]; /* elements with their signs removed */
    const float *w;
    uint8_t signs[4]; /* of 8 elements each */
    float scale;      /* best scale of the group alone */
};

/* Takes the signs of 8 elements. Where an even number must be negative and it is odd, flips the
 * element at which the wrong sign costs least. */
static uint8_t take_signs(enum gr_grid_signs kind, const float *x, const float *w, float *y)
{
    unsigned signs = 0, n = 0;
    int least = 0;
    for (int i = 0; i < 8; i++) {
        bool minus = kind != GR_SIGNS_NONE && x[i] < 0;
        signs |= (unsigned)minus << i;
        n += minus;
        y[i] = minus ? -x[i] : x[i];
        if (w[i] * y[i] < w[least] * y[least])
            least = i;
    }
    if (kind == GR_SIGNS_EVEN && n % 2) {
        signs ^= 1u << least;
        y[least] = -y[least];
    }
    return (uint8_t)signs;
}

/* Chooses the nearest points at a scale; returns the error. */
static float choose(const struct search *s, const struct group *g, float scale, struct choice *c)
{
    const struct gr_grid_kind *k = s->kind;
    int n = k->group / k->dims, span = k->span ? k->span : 1;
    float error = 0;
    for (int p = 0; p < n; p += span) {
        float best = INFINITY;
        for (int shift = 0; shift < (k->span ? 2 : 1); shift++) {
            int index[8];
            float e = 0;
            for (int i = 0; i < span; i++)
                e += nearest(s, g->y + (p + i) * k->dims, g->w + (p + i) * k->dims, scale, shift,
                             &index[i]);
            if (!(e < best))
                continue;
            best = e;
            for (int i = 0; i < span; i++) {
                c->index[p + i] = (uint16_t)index[i];
                c->shift[p + i] = (uint8_t)shift;
            }
        }
        error += best;
    }
    return error;
}

/* Sums for fitting a scale to chosen points. */
struct sums {
    float qq, xq; /* sum w value^2, sum w y value */
};

static struct sums sums_of(const struct gr_grid_kind *k, const struct group *g,
                           const struct choice *c)
{
    struct sums s = {0, 0};
    int bits = 16 / k->dims;
    for (int i = 0; i < k->group; i++) {
        int p = i / k->dims;
        float v = k->value[c->shift[p]]
                          [k->codes[c->index[p]] >> bits * (i % k->dims) & ((1 << bits) - 1)];
        s.qq += g->w[i] * v * v;
        s.xq += g->w[i] * v * g->y[i];
    }
    return s;
}

/* Chooses points at a trial scale and computes the best scale for them; keeps it when the reduction
 * of the error exceeds *gain. */
static bool try_scale(const struct search *s, struct group *g, float scale, float *gain)
{
    struct choice c;
    choose(s, g, scale, &c);
    struct sums t = sums_of(s->kind, g, &c);
    if (!(t.xq > 0) || !(t.xq * t.xq > *gain * t.qq))
        return false;
    *gain = t.xq * t.xq / t.qq;
    g->scale = t.xq / t.qq;
    return true;
}

static void fit_group(const struct search *s, const float *x, const float *w, struct group *g)
{
    const struct gr_grid_kind *k = s->kind;
    float max = 0, gain = 0, top = k->value[0][k->dims == 8 ? 2 : 7];
    *g = (struct group){.w = w};
    for (int i = 0; i < k->group; i += 8)
        g->signs[i / 8] = take_signs(k->signs, x + i, w + i, g->y + i);
    for (int i = 0; i < k->group; i++)
        max = GR_MAX(max, fabsf(x[i]));
    if (max < 0x1p-26f)
        return;
    if (k->signs != GR_SIGNS_NONE) /* equal magnitudes: every grid contains its lowest corner */
        try_scale(s, g, max / k->value[0][0], &gain);
    for (int t = 0; t < N_TRIALS; t++)
        try_scale(s, g, max / top * (0.4f + 0.16f * (float)t), &gain);
    for (int i = 0; i < N_POLISH; i++)
        if (!try_scale(s, g, g->scale, &gain))
            break;
}

/* ---- a super-block ---- */

/* Chooses the quantised scale with the smallest error near the group's own; returns that error. */
static float choose_scale(const struct search *s, const struct group *g, float unit, uint8_t *scale,
                          struct choice *c)
{
    int n = s->kind->n_scale;
    float at = unit > 0 ? (g->scale / unit - 1) / 2 : 0, best = INFINITY;
    int s0 = (int)(GR_MIN(GR_MAX(at, 0), (float)(n - 1)) + 0.5f);
    for (int t = GR_MAX(s0 - 1, 0); t <= GR_MIN(s0 + 1, n - 1); t++) {
        struct choice trial;
        float error = choose(s, g, unit * (float)(2 * t + 1), &trial);
        if (error < best) {
            best = error;
            *scale = (uint8_t)t;
            *c = trial;
        }
    }
    return best;
}

static void store(const struct gr_grid_kind *k, const struct choice *c, const struct group *g,
                  int at, struct gr_grid_block *out)
{
    for (int p = 0; p < k->group / k->dims; p++) {
        out->index[at / k->dims + p] = c->index[p];
        out->shift[at / k->dims + p] = c->shift[p];
    }
    memcpy(out->signs + at / 8, g->signs, (size_t)k->group / 8);
}

/* Quantises all groups at the block's scale; returns the error, and *refit receives the best unit
 * for the points chosen. */
static float fill(const struct search *s, const struct group *g, float unit, float *refit,
                  struct gr_grid_block *out)
{
    const struct gr_grid_kind *k = s->kind;
    float error = 0, qq = 0, xq = 0;
    for (int i = 0; i < GR_QK_K / k->group; i++) {
        struct choice c;
        error += choose_scale(s, &g[i], unit, &out->scale[i], &c);
        store(k, &c, &g[i], i * k->group, out);
        struct sums t = sums_of(k, &g[i], &c);
        float odd = (float)(2 * out->scale[i] + 1);
        qq += odd * odd * t.qq;
        xq += odd * t.xq;
    }
    *refit = qq > 0 ? xq / qq : 0;
    return error;
}

static void fit_block(const struct search *s, const float *x, const float *w,
                      struct gr_grid_block *out)
{
    const struct gr_grid_kind *k = s->kind;
    struct group g[16];
    float max = 0, best = INFINITY; /* gr_fit_load has bounded x and w: errors are finite */
    for (int i = 0; i < GR_QK_K / k->group; i++) {
        fit_group(s, x + i * k->group, w + i * k->group, &g[i]);
        max = GR_MAX(max, g[i].scale);
    }
    float d = max / ((float)(2 * k->n_scale - 1) * k->unit);
    for (int round = 0; round < N_ROUNDS; round++) {
        struct gr_grid_block t = {.d = gr_fit_half_up(d)};
        float refit, error = fill(s, g, gr_f16_to_f32(t.d) * k->unit, &refit, &t);
        if (!(error < best))
            break;
        best = error;
        *out = t;
        d = GR_MAX(refit, 0) / k->unit;
    }
}

void gr_quantize_grid(const struct gr_grid_kind *kind, gr_grid_store *put, size_t bytes,
                      const float *src, void *dst, size_t n, const float *importance)
{
    struct search s;
    char *to = dst;
    search_init(&s, kind);
    for (size_t at = 0; at < n; at += GR_QK_K, to += bytes) {
        float x[GR_QK_K], w[GR_QK_K];
        struct gr_grid_block f;
        gr_fit_load(src + at, importance ? importance + at : NULL, GR_QK_K, x, w);
        fit_block(&s, x, w, &f);
        memset(to, 0, bytes);
        put(to, &f);
    }
}
