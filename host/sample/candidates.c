#include "sample/candidates.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { MIROSTAT_RANKS = 100 }; /* that the exponent is estimated from */

/* Key that is larger for a larger x (no NaN; -0 equals 0), then for a lower id; unique per id. */
static uint64_t rank_key(float x, int32_t id)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

static void swap(struct gr_rank *a, struct gr_rank *b)
{
    struct gr_rank t = *a;
    *a = *b, *b = t;
}

/* Moves the median key of three pseudo-random entries, chosen by `turn`, to r[0], so that no fixed
 * input is bad for every turn. */
static void place_pivot(struct gr_rank *r, int32_t n, uint32_t turn)
{
    struct gr_rng rng = gr_rng_new(turn);
    int32_t a = (int32_t)gr_rng_below(&rng, (uint32_t)n),
            b = (int32_t)gr_rng_below(&rng, (uint32_t)n);
    int32_t c = (int32_t)gr_rng_below(&rng, (uint32_t)n);
    uint64_t ka = r[a].key, kb = r[b].key, kc = r[c].key;
    int32_t m = (ka > kb) == (kb > kc) ? b : (kb > ka) == (ka > kc) ? a : c;
    swap(&r[0], &r[m]);
}

/* Moves the entries above the pivot r[0] to r[1 .. m) and returns m; *weight receives the sum of
 * their weights. The moves are branch-free, because the comparison is unpredictable. */
static int32_t partition(struct gr_rank *r, int32_t n, double *weight)
{
    uint64_t pivot = r[0].key;
    int32_t m = 1;
    double sum = 0;
    for (int32_t i = 1; i < n; i++) {
        struct gr_rank x = r[i];
        int above = x.key > pivot;
        r[i] = r[m];
        r[m] = x;
        m += above;
        sum += above ? x.weight : 0;
    }
    *weight = sum;
    return m;
}

/* The key of the last entry that is kept when entries are taken in descending order of their keys
 * until the weights sum to `mass`; the smallest key if the sum of all is less. Reorders r. */
static uint64_t last_kept(struct gr_rank *r, int32_t n, double mass)
{
    uint64_t last = 0;
    for (uint32_t turn = 0; n > 0; turn++) {
        double above;
        place_pivot(r, n, turn);
        int32_t m = partition(r, n, &above);
        if (m > 1 && above >= mass) {
            r++, n = m - 1;
            continue;
        }
        last = r[0].key;
        mass -= above + r[0].weight;
        if (mass <= 0)
            break;
        r += m, n -= m;
    }
    return last;
}

/* The key of the k-th ranking logit, found in one pass: a pool of the best so far is reduced to k
 * whenever it is full, and from then on only logits above its worst entry are added. (An equal
 * logit with a higher id ranks below.) */
static uint64_t kth_key(struct gr_rank *pool, const float *logits, int32_t n_vocab, int32_t k)
{
    int32_t n = 0, full = k < n_vocab / 8 ? 4 * k + 256 : n_vocab;
    float floor = -INFINITY;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (!(logits[i] > floor))
            continue;
        pool[n++] = (struct gr_rank){rank_key(logits[i], i), 1};
        if (n < full)
            continue;
        uint64_t last = last_kept(pool, n, k);
        n = 0;
        for (int32_t j = 0; j < full; j++) {
            if (pool[j].key >= last)
                pool[n++] = pool[j];
        }
        floor = logits[(int32_t) ~(uint32_t)last];
    }
    return last_kept(pool, n, k);
}

void gr_candidates_fill(struct gr_candidates *s, const float *logits, int32_t n_vocab, int32_t k)
{
    float best = -INFINITY, worst = -INFINITY;
    uint64_t last = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        best = logits[i] > best ? logits[i] : best;
    bool certain = best == INFINITY;
    if (certain) {
        worst = best;
    } else if (k < n_vocab) {
        last = kth_key(s->rank, logits, n_vocab, k);
        worst = logits[(int32_t) ~(uint32_t)last];
    }
    s->n = 0;
    for (int32_t i = 0; i < n_vocab && s->n < k; i++) {
        if (logits[i] >= worst && logits[i] > -INFINITY && rank_key(logits[i], i) >= last)
            s->c[s->n++] = (struct gr_candidate){.id = i, .logit = certain ? 0 : logits[i]};
    }
}

/* Rescales p to sum 1. */
static void normalise(struct gr_candidates *s)
{
    double sum = 0;
    for (int32_t i = 0; i < s->n; i++)
        sum += s->c[i].p;
    for (int32_t i = 0; i < s->n; i++)
        s->c[i].p /= sum;
}

void gr_candidates_softmax(struct gr_candidates *s, double temp)
{
    float best = s->c[0].logit;
    for (int32_t i = 1; i < s->n; i++)
        best = s->c[i].logit > best ? s->c[i].logit : best;
    for (int32_t i = 0; i < s->n; i++)
        s->c[i].p = exp(((double)s->c[i].logit - best) / temp);
    normalise(s);
}

/* Keeps the candidates that rank first by `value` and whose p sum to `mass`. */
static void keep_mass(struct gr_candidates *s,
                      float (*value)(const struct gr_candidate *c, double arg), double arg,
                      double mass)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++)
        s->rank[i] = (struct gr_rank){rank_key(value(&s->c[i], arg), s->c[i].id), s->c[i].p};
    uint64_t last = last_kept(s->rank, s->n, mass);
    for (int32_t i = 0; i < s->n; i++) {
        if (rank_key(value(&s->c[i], arg), s->c[i].id) >= last)
            s->c[n++] = s->c[i];
    }
    s->n = n;
    normalise(s);
}

static float by_logit(const struct gr_candidate *c, double arg)
{
    (void)arg;
    return c->logit;
}

void gr_candidates_top_p(struct gr_candidates *s, double mass)
{
    keep_mass(s, by_logit, 0, mass);
}

/* Negative distance of the surprise from the entropy, in nats. */
static float by_typicality(const struct gr_candidate *c, double entropy)
{
    return c->p > 0 ? (float)-fabs(-log(c->p) - entropy) : -INFINITY;
}

void gr_candidates_typical(struct gr_candidates *s, double mass)
{
    double entropy = 0;
    for (int32_t i = 0; i < s->n; i++)
        entropy -= s->c[i].p > 0 ? s->c[i].p * log(s->c[i].p) : 0;
    keep_mass(s, by_typicality, entropy, mass);
}

static int32_t most_probable(const struct gr_candidates *s)
{
    int32_t best = 0;
    for (int32_t i = 1; i < s->n; i++) {
        if (s->c[i].p > s->c[best].p)
            best = i;
    }
    return best;
}

/* Keeps the candidates at least as probable as p, or else the most probable one. */
static void keep_above(struct gr_candidates *s, double p)
{
    struct gr_candidate best = s->c[most_probable(s)];
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->c[i].p >= p)
            s->c[n++] = s->c[i];
    }
    if (!n)
        s->c[n++] = best;
    s->n = n;
    normalise(s);
}

void gr_candidates_min_p(struct gr_candidates *s, double ratio)
{
    keep_above(s, ratio * s->c[most_probable(s)].p);
}

void gr_candidates_surprise(struct gr_candidates *s, double bits)
{
    keep_above(s, exp2(-bits));
}

void gr_candidates_xtc(struct gr_candidates *s, double threshold)
{
    uint64_t last = UINT64_MAX;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->c[i].p >= threshold)
            last = GR_MIN(last, rank_key(s->c[i].logit, s->c[i].id));
    }
    for (int32_t i = 0; i < s->n; i++) {
        if (rank_key(s->c[i].logit, s->c[i].id) <= last)
            s->c[n++] = s->c[i];
    }
    s->n = n;
    normalise(s);
}

void gr_candidates_top_k(struct gr_candidates *s, int32_t k)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++)
        s->rank[i] = (struct gr_rank){rank_key(s->c[i].logit, s->c[i].id), 1};
    uint64_t last = last_kept(s->rank, s->n, k);
    for (int32_t i = 0; i < s->n; i++) {
        if (rank_key(s->c[i].logit, s->c[i].id) >= last)
            s->c[n++] = s->c[i];
    }
    s->n = n;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const struct gr_rank *)a)->key, y = ((const struct gr_rank *)b)->key;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Sorts the n candidates that rank first into rank[0, n), with their probabilities. */
static void sort_first(struct gr_candidates *s, int32_t n)
{
    struct gr_rank *first = s->rank;
    for (int32_t i = 0; i < s->n; i++)
        s->rank[i] = (struct gr_rank){rank_key(s->c[i].logit, s->c[i].id), 1};
    uint64_t last = last_kept(s->rank, s->n, n);
    for (int32_t i = 0; i < s->n; i++) {
        uint64_t key = rank_key(s->c[i].logit, s->c[i].id);
        if (key >= last)
            *first++ = (struct gr_rank){key, s->c[i].p};
    }
    qsort(s->rank, (size_t)n, sizeof *s->rank, by_key);
}

/* Least squares of log(p of rank i / p of rank i + 1) over log((i + 1) / i), without a constant. */
static double zipf_exponent(struct gr_candidates *s)
{
    int32_t n = GR_MIN(s->n, MIROSTAT_RANKS);
    double product = 0, square = 0;
    sort_first(s, n);
    for (int32_t i = 0; i + 1 < n && s->rank[i + 1].weight > 0; i++) {
        double t = log((i + 2.0) / (i + 1.0)), b = log(s->rank[i].weight / s->rank[i + 1].weight);
        product += t * b, square += t * t;
    }
    return square > 0 ? product / square : INFINITY;
}

void gr_candidates_mirostat(struct gr_candidates *s, double bits, int32_t n_vocab)
{
    double exponent = zipf_exponent(s), epsilon = exponent - 1;
    double sum = fabs(epsilon) > 1e-9 ? (1 - pow(n_vocab, -epsilon)) / epsilon : log(n_vocab);
    double k = pow(exp2(bits) / sum, 1 / exponent);
    gr_candidates_top_k(s, k >= s->n ? s->n : k >= 1 ? (int32_t)k : 1);
    normalise(s);
}

void gr_candidates_top_n_sigma(struct gr_candidates *s, double n)
{
    double best = -INFINITY, sum = 0, square = 0;
    int32_t kept = 0;
    for (int32_t i = 0; i < s->n; i++)
        best = fmax(best, s->c[i].logit), sum += s->c[i].logit;
    double mean = sum / s->n;
    for (int32_t i = 0; i < s->n; i++)
        square += (s->c[i].logit - mean) * (s->c[i].logit - mean);
    double least = best - n * sqrt(square / s->n);
    for (int32_t i = 0; i < s->n; i++) {
        if (s->c[i].logit >= least)
            s->c[kept++] = s->c[i];
    }
    s->n = kept;
}

void gr_candidates_scale(struct gr_candidates *s, double temp)
{
    double best = -FLT_MAX;
    for (int32_t i = 0; i < s->n; i++)
        best = fmax(best, fmin(s->c[i].logit, FLT_MAX));
    if (fabs(best) / temp <= GR_LOGIT_MAX)
        best = 0;
    for (int32_t i = 0; i < s->n; i++) {
        double x = (s->c[i].logit - best) / temp;
        s->c[i].logit = (float)fmax(-GR_LOGIT_MAX, fmin(x, GR_LOGIT_MAX));
    }
}

double gr_candidates_temperature(const struct gr_candidates *s, double lo, double hi,
                                 double exponent)
{
    double entropy = 0;
    for (int32_t i = 0; i < s->n; i++)
        entropy -= s->c[i].p > 0 ? s->c[i].p * log(s->c[i].p) : 0;
    double share = s->n > 1 ? fmin(fmax(entropy / log(s->n), 0), 1) : 0;
    return lo + (hi - lo) * pow(share, exponent);
}

/* The logit of probability p around the target: a parabola near it, a line far away. */
static double adapted_logit(double p, double target)
{
    const double peak = 5, sharpness = 10, width = 0.3;
    double d = fabs(p - target) / width;
    return peak - sharpness * d * d / (1 + d);
}

void gr_candidates_adapt(struct gr_candidates *s, double target)
{
    double best = -INFINITY;
    for (int32_t i = 0; i < s->n; i++) {
        s->rank[i].weight = s->c[i].p;
        best = fmax(best, adapted_logit(s->c[i].p, target));
    }
    for (int32_t i = 0; i < s->n; i++)
        s->c[i].p = exp(adapted_logit(s->c[i].p, target) - best);
    normalise(s);
}

int32_t gr_candidates_draw(const struct gr_candidates *s, struct gr_rng *rng)
{
    double u = gr_rng_double(rng);
    int32_t last = 0;
    for (int32_t i = 0; i < s->n; i++) {
        if (!(s->c[i].p > 0))
            continue;
        last = i;
        u -= s->c[i].p;
        if (u < 0)
            break;
    }
    return last;
}
