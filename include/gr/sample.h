/* The arithmetic of SAMPLE, which draws a token; every executor shares it. It is integer arithmetic
 * or single f32 operations that round the same way everywhere, so executors draw the same token
 * from the same logits, whatever order they add in.
 *
 *   edits      the listed logits get a bias and penalties; then the mask excludes tokens (-inf)
 *   filters    top_k > 0: the top_k entries that rank first; then top_p < 1: the fewest first ones
 *              whose weights at temperature 1 reach ceil(top_p * the sum of all); then min_p > 0:
 *              those that weigh at least ceil(min_p * the first one's weight)
 *   draw       entry i with probability weight_i / sum, weights at the row's temperature, in the
 *              order of ids: the first whose running sum is above random * sum
 *   temp <= 0  the entry that ranks first
 *
 * Higher logits rank first, equal ones by lower id. A logit of -inf is never drawn; where one is
 * +inf, only those are. Of the chain of host/sample these are penalties, top-k, top-p, min-p and
 * temperature, each at most once and in this order; other chains run on the host. */
#ifndef GR_SAMPLE_H
#define GR_SAMPLE_H

#include <math.h>
#include <stdint.h>

#include "gr/tensor.h"

/* One row of the step block's array SAMPLE. */
struct gr_sample_row {
    float temp, top_p, min_p;
    int32_t top_k;
    uint32_t seed[2], counter[2]; /* 64 bits each, the low word first: draw `counter` of `seed` */
    float repeat, freq, present;  /* penalties of its edits with a count */
    int32_t edit, n_edit;         /* its items of the array EDITS, no token twice */
    int32_t mask;                 /* 1 + its row of MASKS; 0: every token is allowed */
};

/* One item of the array EDITS: token `id` has a bias, and occurs `count` times in the window that
 * the penalties look back at. */
struct gr_sample_edit {
    int32_t id, count;
    float bias;
};

enum { GR_SAMPLE_WORDS = 14, GR_SAMPLE_EDIT_WORDS = 3, GR_SAMPLE_VOCAB = 1 << 18 };

/* Results that are no token: all logits are -inf; one is not a number; edits and mask leave none.
 */
enum { GR_SAMPLE_NONE = -1, GR_SAMPLE_NAN = -2, GR_SAMPLE_EXCLUDED = -3 };

/* The weight of the first entry. Sums of GR_SAMPLE_VOCAB weights stay below 2^63. */
#define GR_SAMPLE_ONE ((uint64_t)1 << 44)

/* The logit x after an edit. An infinite bias replaces it. Each line is rounded once. */
GR_FN float gr_sample_edited(float x, const struct gr_sample_row *h, struct gr_sample_edit e)
{
    x = fabsf(e.bias) < INFINITY ? x + e.bias : e.bias;
    if (e.count <= 0)
        return x;
    float less = fmaf((float)e.count, h->freq, h->present);
    if (!(x > 0))
        return fmaf(x, h->repeat, -less);
    x = x / h->repeat;
    return x - less;
}

/* Words of a mask of n tokens, and whether it allows one: bit id % 32 of word id / 32. */
GR_FN int32_t gr_sample_mask_words(int32_t n)
{
    return (n + 31) / 32;
}
GR_FN int gr_sample_allowed(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

/* Sort key: larger ranks first (no NaN; -0 is 0); unique for each id. */
GR_FN uint64_t gr_sample_rank(float x, int32_t id)
{
    union {
        float f;
        uint32_t u;
    } v;
    v.f = x + 0.0f;
    v.u ^= v.u >> 31 ? 0xffffffffu : 0x80000000u;
    return (uint64_t)v.u << 32 | (uint32_t)~id;
}

GR_FN int32_t gr_sample_id(uint64_t rank)
{
    return (int32_t) ~(uint32_t)rank;
}

/* The logit of a rank. */
GR_FN float gr_sample_logit(uint64_t rank)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = (uint32_t)(rank >> 32);
    v.u ^= v.u >> 31 ? 0x80000000u : 0xffffffffu;
    return v.f;
}

/* 2^44 exp(d) for d <= 0, within 2^-22 of it, rounded down; 0 below 2^-44. */
GR_FN uint64_t gr_sample_exp(float d)
{
    const float log2_e = 0x1.715476p+0f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    if (!(d > -31))
        return 0;
    float n = rintf(d * log2_e), r = fmaf(n, -ln2_low, fmaf(n, -ln2_high, d));
    float e = fmaf(r, 1.0f / 5040, 1.0f / 720); /* Taylor: |r| <= ln(2) / 2, remainder 5e-9 */
    e = fmaf(e, r, 1.0f / 120), e = fmaf(e, r, 1.0f / 24), e = fmaf(e, r, 1.0f / 6);
    e = fmaf(e, r, 0.5f), e = fmaf(e, r, 1.0f), e = fmaf(e, r, 1.0f);
    uint64_t m = (uint64_t)(e * 0x1p24f);
    int32_t shift = 20 + (int32_t)n;
    return shift >= 0 ? m << shift : m >> -shift;
}

/* The weight of logit x where `best` is the largest. */
GR_FN uint64_t gr_sample_weight(float x, float best, float temp)
{
    return gr_sample_exp(x == best ? 0 : (x - best) / temp);
}

/* The least weight that counts as `part` of all (0 < all). */
GR_FN uint64_t gr_sample_part(float part, uint64_t all)
{
    double least = ceil((double)part * (double)all);
    return least < 1 ? 1 : least < (double)all ? (uint64_t)least : all;
}

/* The 64-bit fraction of draw `counter` of a seed, in its upper 53 bits: the same that
 * gr_rng_double of a new generator of host/base/rng.h (PCG32) returns at that call. The generator
 * is linear: `counter` pairs of steps are one multiplication and one addition. */
GR_FN uint64_t gr_sample_random(const struct gr_sample_row *h)
{
    const uint64_t a = 6364136223846793005u;
    uint64_t seed = (uint64_t)h->seed[1] << 32 | h->seed[0];
    uint64_t n = ((uint64_t)h->counter[1] << 32 | h->counter[0]) * 2;
    uint64_t inc = seed << 1 | 1, s = (inc + (seed ^ 0x853c49e6748fea9bu)) * a + inc;
    uint64_t mul = 1, add = 0, out = 0;
    for (uint64_t m = a, p = inc; n; n /= 2) {
        if (n % 2)
            mul *= m, add = add * m + p;
        p *= m + 1, m *= m;
    }
    s = s * mul + add;
    for (int i = 0; i < 2; i++) {
        uint32_t x = (uint32_t)((s >> 18 ^ s) >> 27), turn = (uint32_t)(s >> 59);
        out = out << 32 | (x >> turn | x << (32 - turn) % 32);
        s = s * a + inc;
    }
    return out & ~(uint64_t)2047;
}

/* floor(random / 2^64 * sum) */
GR_FN uint64_t gr_sample_target(uint64_t random, uint64_t sum)
{
    uint64_t a = random >> 32, b = random & 0xffffffffu, c = sum >> 32, d = sum & 0xffffffffu;
    uint64_t middle = a * d + (b * d >> 32), low = b * c + (middle & 0xffffffffu);
    return a * c + (middle >> 32) + (low >> 32);
}

#endif
