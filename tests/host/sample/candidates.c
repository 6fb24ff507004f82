/* Every filter against its definition, by a full sort in the test. */
#include "sample/candidates.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define MAX_N 4000

static struct gr_candidate store[MAX_N];
static struct gr_rank scratch[MAX_N];
static float logits[MAX_N];

/* The definition's view: entries of all tokens, sorted by `order` (descending), ties by id. */
struct entry {
    int32_t id;
    double p, order;
    bool kept;
};
static struct entry entry[MAX_N];

static int by_order(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->order != y->order)
        return x->order > y->order ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    return ((const struct entry *)a)->id < ((const struct entry *)b)->id ? -1 : 1;
}

/* Random logits of one of five shapes: normal, few distinct values, sharp, sorted up, sorted down;
 * some -inf. */
static int32_t random_logits(struct gr_rng *rng, int shape)
{
    int32_t n = 1 + (int32_t)gr_rng_below(rng, gr_rng_below(rng, 4) ? 60 : MAX_N);
    for (int32_t i = 0; i < n; i++) {
        float x = gr_rng_normal(rng) * 3;
        logits[i] = shape == 0 ? x : shape == 1 ? roundf(x) : shape == 2 ? x * 30 : (float)i / 7;
        if (shape == 4)
            logits[i] = -logits[i];
        if (shape < 3 && gr_rng_below(rng, 9) == 0)
            logits[i] = -INFINITY;
    }
    logits[gr_rng_below(rng, (uint32_t)n)] = 1;
    return n;
}

static void define_softmax(int32_t n)
{
    double best = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        best = fmax(best, logits[i]);
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - best);
    for (int32_t i = 0; i < n; i++)
        entry[i] = (struct entry){i, exp(logits[i] - best) / sum, logits[i], false};
}

/* Marks the first of the sorted entries that hold `mass`; the definition of top-p and of typical.
 */
static void define_mass(int32_t n, double mass)
{
    double sum = 0;
    qsort(entry, (size_t)n, sizeof *entry, by_order);
    for (int32_t i = 0; i < n && (i == 0 || sum < mass); i++) {
        entry[i].kept = logits[entry[i].id] > -INFINITY;
        sum += entry[i].p;
    }
    qsort(entry, (size_t)n, sizeof *entry, by_id);
}

static struct gr_candidates start(int32_t n, int32_t k)
{
    struct gr_candidates s = {store, 0, scratch};
    gr_candidates_fill(&s, logits, n, k);
    gr_candidates_softmax(&s, 1);
    return s;
}

/* The candidates are exactly the kept entries, in order of ids, and their probabilities sum to 1.
 */
static void check(const struct gr_candidates *s, int32_t n, const char *what, double arg)
{
    int32_t m = 0;
    double sum = 0, kept = 0;
    for (int32_t i = 0; i < n; i++)
        kept += entry[i].kept ? entry[i].p : 0;
    for (int32_t i = 0; i < n; i++) {
        if (!entry[i].kept)
            continue;
        cr_assert(m < s->n && s->c[m].id == i, "%s(%g) of %d: %d is missing (%d kept)", what, arg,
                  n, i, s->n);
        cr_assert_float_eq(s->c[m].p, entry[i].p / kept, 1e-12, "%s(%g): p of %d", what, arg, i);
        sum += s->c[m++].p;
    }
    cr_assert_eq(m, s->n, "%s(%g) of %d: %d kept, %d expected", what, arg, n, s->n, m);
    cr_assert_float_eq(sum, 1, 1e-9);
}

#define FOR_RANDOM_LOGITS(n)                                                                       \
    struct gr_rng rng = gr_rng_new(7);                                                             \
    for (int32_t turn = 0, n; turn < 600 && (n = random_logits(&rng, turn % 5), true); turn++)

Test(candidates, top_k)
{
    FOR_RANDOM_LOGITS(n)
    {
        int32_t k = 1 + (int32_t)gr_rng_below(&rng, turn % 2 ? 50 : (uint32_t)n + 5);
        struct gr_candidates s = start(n, k);
        define_softmax(n);
        qsort(entry, (size_t)n, sizeof *entry, by_order);
        for (int32_t i = 0; i < n && i < k; i++)
            entry[i].kept = entry[i].order > -INFINITY;
        qsort(entry, (size_t)n, sizeof *entry, by_id);
        check(&s, n, "top_k", k);
    }
}

Test(candidates, top_p)
{
    FOR_RANDOM_LOGITS(n)
    {
        double mass = turn % 7 ? gr_rng_double(&rng) : turn % 2;
        struct gr_candidates s = start(n, n);
        gr_candidates_top_p(&s, mass);
        define_softmax(n);
        define_mass(n, mass < 1 ? mass : INFINITY);
        /* At mass 1 rounding decides how many negligible ones stay: only their weight can be held
         * to it. */
        if (mass < 1)
            check(&s, n, "top_p", mass);
        else
            cr_assert_gt(s.n, 0);
    }
}

Test(candidates, typical)
{
    FOR_RANDOM_LOGITS(n)
    {
        double mass = gr_rng_double(&rng), entropy = 0;
        struct gr_candidates s = start(n, n);
        gr_candidates_typical(&s, mass);
        define_softmax(n);
        for (int32_t i = 0; i < n; i++)
            entropy -= entry[i].p > 0 ? entry[i].p * log(entry[i].p) : 0;
        for (int32_t i = 0; i < n; i++)
            entry[i].order = entry[i].p > 0 ? (float)-fabs(-log(entry[i].p) - entropy) : -INFINITY;
        define_mass(n, mass);
        check(&s, n, "typical", mass);
    }
}

Test(candidates, min_p)
{
    FOR_RANDOM_LOGITS(n)
    {
        double ratio = gr_rng_double(&rng), best = 0;
        struct gr_candidates s = start(n, n);
        gr_candidates_min_p(&s, ratio);
        define_softmax(n);
        for (int32_t i = 0; i < n; i++)
            best = fmax(best, entry[i].p);
        for (int32_t i = 0; i < n; i++)
            entry[i].kept = entry[i].p >= ratio * best && logits[i] > -INFINITY;
        check(&s, n, "min_p", ratio);
    }
}

Test(candidates, surprise)
{
    FOR_RANDOM_LOGITS(n)
    {
        double bits = gr_rng_double(&rng) * 12, best = 0;
        bool any = false;
        struct gr_candidates s = start(n, n);
        gr_candidates_surprise(&s, bits);
        define_softmax(n);
        for (int32_t i = 0; i < n; i++) {
            best = fmax(best, entry[i].p);
            any |= entry[i].kept = -log2(entry[i].p) <= bits && logits[i] > -INFINITY;
        }
        for (int32_t i = 0; i < n && !any; i++)
            any = entry[i].kept = entry[i].p == best;
        check(&s, n, "surprise", bits);
    }
}

Test(candidates, temperature)
{
    FOR_RANDOM_LOGITS(n)
    {
        double temp = exp(gr_rng_normal(&rng) * 3), best = -INFINITY, sum = 0;
        struct gr_candidates s = start(n, n);
        gr_candidates_softmax(&s, temp);
        for (int32_t i = 0; i < n; i++)
            best = fmax(best, logits[i]);
        for (int32_t i = 0; i < n; i++)
            sum += exp((logits[i] - best) / temp);
        for (int32_t i = 0; i < s.n; i++)
            cr_assert_float_eq(s.c[i].p, exp((logits[s.c[i].id] - best) / temp) / sum, 1e-12,
                               "temp %g", temp);
    }
}

/* Tokens at +inf leave no room for others and are equals; k bounds them too, lower ids first. */
Test(candidates, certain_tokens)
{
    for (int32_t i = 0; i < 100; i++)
        logits[i] = i % 10 == 3 ? INFINITY : (float)i;
    struct gr_candidates s = start(100, 100);
    cr_assert_eq(s.n, 10);
    for (int32_t i = 0; i < s.n; i++)
        cr_assert(s.c[i].id == 10 * i + 3 && s.c[i].p == 0.1);
    s = start(100, 2);
    cr_assert(s.n == 2 && s.c[0].id == 3 && s.c[1].id == 13);
}

/* Frequencies of 100,000 draws against the probabilities. */
Test(candidates, drawn_by_probability)
{
    struct gr_rng rng = gr_rng_new(3);
    double seen[6] = {0}, chi = 0;
    for (int32_t i = 0; i < 6; i++)
        logits[i] = (float)log((double)(i + 1));
    struct gr_candidates s = start(6, 6);
    for (int i = 0; i < 100000; i++)
        seen[gr_candidates_draw(&s, &rng)]++;
    for (int32_t i = 0; i < 6; i++) {
        double want = 100000 * (i + 1) / 21.0;
        chi += (seen[i] - want) * (seen[i] - want) / want;
    }
    cr_assert_lt(chi, 20.5, "chi-square %g, 5 degrees of freedom, 0.1%%", chi);
}
