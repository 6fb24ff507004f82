/* The chain as a whole, through the public interface. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "gpurun.h"
#include "gr/status.h"
#include "sample/params.h"
#include "sample/sampler.h"

#define N_VOCAB 50

static float logits[N_VOCAB];

static struct gr_sampler_params params(void)
{
    struct gr_sampler_params p = gr_sampler_params_default();
    p.n_vocab = N_VOCAB, p.n_ctx = 128, p.seed = 42;
    return p;
}

/* Parameters with every filter off and temperature 1. */
static struct gr_sampler_params plain(void)
{
    struct gr_sampler_params p = params();
    p.temp = 1, p.top_k = 0, p.top_p = 1, p.min_p = 0;
    return p;
}

static struct gr_sampler *open_sampler(const struct gr_sampler_params *p)
{
    struct gr_sampler *s;
    cr_assert_eq(gr_sampler_new(&s, p), 0, "%s", gr_error());
    return s;
}

static int32_t pick(struct gr_sampler *s)
{
    int32_t id = -1;
    cr_assert_eq(gr_sampler_pick(s, logits, &id), 0, "%s", gr_error());
    cr_assert(id >= 0 && id < N_VOCAB);
    return id;
}

static void random_logits(uint64_t seed, float scale)
{
    struct gr_rng rng = gr_rng_new(seed);
    for (int32_t i = 0; i < N_VOCAB; i++)
        logits[i] = gr_rng_normal(&rng) * scale;
}

/* Frequencies of 100,000 picks against p [N_VOCAB], by chi-square; tokens of p = 0 must not occur.
 * The bound is five standard deviations of the statistic above its mean. */
static void check_frequencies(const struct gr_sampler_params *params_, const double *p)
{
    struct gr_sampler *s = open_sampler(params_);
    double seen[N_VOCAB] = {0}, chi = 0, n = 100000;
    int classes = 0;
    for (int i = 0; i < 100000; i++)
        seen[pick(s)]++;
    for (int32_t i = 0; i < N_VOCAB; i++) {
        if (p[i] == 0)
            cr_assert_eq(seen[i], 0, "token %d has probability 0 and was picked %g times", i,
                         seen[i]);
        if (n * p[i] < 5)
            continue;
        chi += (seen[i] - n * p[i]) * (seen[i] - n * p[i]) / (n * p[i]);
        classes++;
    }
    cr_assert_lt(chi, classes + 5 * sqrt(2.0 * classes), "chi-square %g of %d classes", chi,
                 classes);
    gr_sampler_free(&s);
}

static void softmax(double *p, double temp)
{
    double sum = 0;
    for (int32_t i = 0; i < N_VOCAB; i++)
        sum += p[i] = exp(logits[i] / temp);
    for (int32_t i = 0; i < N_VOCAB; i++)
        p[i] /= sum;
}

Test(sampler, plain_frequencies)
{
    double p[N_VOCAB];
    random_logits(1, 1.5f);
    softmax(p, 1);
    struct gr_sampler_params q = plain();
    check_frequencies(&q, p);
}

Test(sampler, temperature_frequencies)
{
    double p[N_VOCAB];
    random_logits(2, 1.5f);
    softmax(p, 0.6);
    struct gr_sampler_params q = plain();
    q.temp = 0.6f;
    check_frequencies(&q, p);
}

/* The chain's order: the filters see temperature 1, then the temperature acts on what is left. */
Test(sampler, chain_frequencies)
{
    double p[N_VOCAB], kept[N_VOCAB] = {0}, sum = 0, best = 0;
    random_logits(3, 2);
    softmax(p, 1);
    struct gr_sampler_params q = params();
    q.top_k = 20, q.top_p = 0.9f, q.min_p = 0.1f, q.temp = 1.7f;
    for (int k = 0; k < 20; k++) { /* the 20 largest, by selection */
        int32_t m = -1;
        for (int32_t i = 0; i < N_VOCAB; i++)
            m = kept[i] == 0 && (m < 0 || p[i] > p[m]) ? i : m;
        sum += kept[m] = p[m];
        best = fmax(best, p[m]);
    }
    double mass = 0, want[N_VOCAB] = {0}, total = 0;
    while (mass < 0.9 * sum) { /* the largest that hold 0.9 of these, then 0.1 of the best */
        int32_t m = 0;
        for (int32_t i = 0; i < N_VOCAB; i++)
            m = kept[i] > kept[m] ? i : m;
        mass += kept[m];
        want[m] = kept[m] >= 0.1 * best ? exp(logits[m] / 1.7) : 0;
        total += want[m];
        kept[m] = 0;
    }
    for (int32_t i = 0; i < N_VOCAB; i++)
        want[i] /= total;
    check_frequencies(&q, want);
}

Test(sampler, greedy_takes_the_lower_of_equals)
{
    struct gr_sampler_params q = params();
    const float temps[] = {0, -1, -INFINITY};
    for (size_t t = 0; t < 3; t++) {
        q.temp = temps[t];
        struct gr_sampler *s = open_sampler(&q);
        for (int32_t i = 0; i < N_VOCAB; i++)
            logits[i] = -5;
        cr_assert_eq(pick(s), 0);
        logits[7] = 0.0f, logits[9] = -0.0f, logits[30] = 0.0f;
        cr_assert_eq(pick(s), 7);
        logits[31] = INFINITY, logits[33] = INFINITY;
        cr_assert_eq(pick(s), 31);
        gr_sampler_free(&s);
    }
}

Test(sampler, same_seed_same_ids)
{
    struct gr_sampler_params q = params();
    q.temp = 2, q.top_k = 0;
    struct gr_sampler *a = open_sampler(&q), *b = open_sampler(&q);
    q.seed++;
    struct gr_sampler *c = open_sampler(&q);
    int differ = 0;
    for (int i = 0; i < 500; i++) {
        random_logits((uint64_t)i, 1);
        int32_t x = pick(a);
        cr_assert_eq(x, pick(b));
        differ += x != pick(c);
    }
    cr_assert_gt(differ, 300, "another seed gives other ids: %d of 500", differ);
    gr_sampler_free(&a), gr_sampler_free(&b), gr_sampler_free(&c);
}

/* Seeded picks are part of what users rely on. They are pinned here for logits that no rounding can
 * blur. */
Test(sampler, pinned_picks)
{
    struct gr_sampler_params q = plain();
    struct gr_sampler *s = open_sampler(&q);
    char text[64] = "";
    memset(logits, 0, sizeof logits);
    for (int i = 0; i < 8; i++)
        snprintf(text + strlen(text), 8, "%d ", pick(s));
    cr_assert_str_eq(text, "39 41 40 15 41 2 29 26 ");
    gr_sampler_free(&s);
}

Test(sampler, tiny_and_huge_temperatures)
{
    struct gr_sampler_params q = plain();
    random_logits(4, 5);
    q.temp = 1e-30f;
    struct gr_sampler *s = open_sampler(&q);
    int32_t best = 0;
    for (int32_t i = 0; i < N_VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    cr_assert_eq(pick(s), best);
    logits[3] = 3e38f, logits[4] = -3e38f;
    cr_assert_eq(pick(s), 3);
    gr_sampler_free(&s);
    double p[N_VOCAB];
    for (int32_t i = 0; i < N_VOCAB; i++)
        p[i] = 1.0 / N_VOCAB;
    random_logits(4, 1);
    q.temp = 1e6f;
    check_frequencies(&q, p);
}

Test(sampler, logit_bias)
{
    struct gr_sampler_params q = plain();
    struct gr_logit_bias bias[] = {{3, -INFINITY}, {5, 2}, {5, 1}, {6, -1}};
    double p[N_VOCAB];
    memset(logits, 0, sizeof logits);
    softmax(p, 1);
    double sum = 1 - 3 * p[0] + p[0] * (exp(3) + exp(-1));
    for (int32_t i = 0; i < N_VOCAB; i++)
        p[i] = p[i] * (i == 3 ? 0 : i == 5 ? exp(3) : i == 6 ? exp(-1) : 1) / sum;
    q.logit_bias = bias, q.n_logit_bias = 4;
    check_frequencies(&q, p);
    bias[0].bias = INFINITY;
    struct gr_sampler *s = open_sampler(&q);
    memset(bias, 0, sizeof bias); /* the sampler has its own copy */
    logits[3] = -INFINITY;
    for (int i = 0; i < 100; i++)
        cr_assert_eq(pick(s), 3);
    gr_sampler_free(&s);
}

Test(sampler, a_mask_leaves_the_tokens_it_names)
{
    struct gr_sampler_params q = plain();
    struct gr_logit_bias bias = {4, INFINITY}; /* excluded all the same */
    double p[N_VOCAB], sum = 0;
    const uint32_t mask[] = {1u << 3 | 1u << 31, 1u << 1}, none[2] = {0};
    int seen[N_VOCAB] = {0};
    random_logits(5, 1);
    softmax(p, 1);
    q.logit_bias = &bias, q.n_logit_bias = 1;
    struct gr_sampler *s = open_sampler(&q);
    gr_sampler_set_mask(s, mask);
    for (int i = 0; i < 20000; i++)
        seen[pick(s)]++;
    const int32_t left[] = {3, 31, 33};
    for (int i = 0; i < 3; i++)
        sum += p[left[i]];
    for (int i = 0; i < 3; i++) {
        double want = 20000 * p[left[i]] / sum;
        cr_expect_lt(fabs(seen[left[i]] - want), 5 * sqrt(want), "token %d", left[i]);
    }
    cr_expect_eq(seen[3] + seen[31] + seen[33], 20000);
    int32_t id;
    gr_sampler_set_mask(s, none);
    cr_assert_eq(gr_sampler_pick(s, logits, &id), GR_E_CHECK);
    cr_expect(strstr(gr_error_message(), "leave no token"));
    gr_sampler_set_mask(s, NULL);
    cr_assert_eq(pick(s), 4);
    gr_sampler_free(&s);
}

/* The logit that the penalties leave, measured by raising a rival until greedy prefers it. */
static double penalised(const struct gr_sampler_params *q, const int32_t *history, int n,
                        int32_t id, float logit)
{
    struct gr_sampler *s = open_sampler(q);
    for (int i = 0; i < n; i++)
        cr_assert_eq(gr_sampler_accept(s, history[i]), 0);
    double lo = -100, hi = 100;
    for (int32_t i = 0; i < N_VOCAB; i++)
        logits[i] = -INFINITY;
    logits[id] = logit;
    for (int i = 0; i < 60; i++) {
        double mid = (lo + hi) / 2;
        logits[N_VOCAB - 1] = (float)mid;
        *(pick(s) == id ? &lo : &hi) = mid;
    }
    gr_sampler_free(&s);
    return lo;
}

Test(sampler, penalties)
{
    struct gr_sampler_params q = params();
    const int32_t history[] = {1, 2, 2, 3, 2, 4, 5};
    q.temp = 0, q.penalty_last_n = 64, q.penalty_repeat = 1.5f, q.penalty_freq = 0.25f,
    q.penalty_present = 0.5f;
    cr_assert_float_eq(penalised(&q, history, 7, 2, 6), 6 / 1.5 - 3 * 0.25 - 0.5, 1e-5);
    cr_assert_float_eq(penalised(&q, history, 7, 2, -6), -6 * 1.5 - 3 * 0.25 - 0.5, 1e-5);
    cr_assert_float_eq(penalised(&q, history, 7, 9, 6), 6, 1e-5);
    q.penalty_last_n = 4; /* 3 2 4 5 */
    cr_assert_float_eq(penalised(&q, history, 7, 2, 6), 6 / 1.5 - 0.25 - 0.5, 1e-5);
    cr_assert_float_eq(penalised(&q, history, 7, 1, 6), 6, 1e-5);
    q.penalty_last_n = 3; /* 2 4 5 */
    cr_assert_float_eq(penalised(&q, history, 7, 3, 6), 6, 1e-5);
    q.penalty_last_n = 0;
    cr_assert_float_eq(penalised(&q, history, 7, 5, 6), 6, 1e-5);
    q.penalty_last_n = -1, q.n_ctx = 2; /* 4 5 */
    cr_assert_float_eq(penalised(&q, history, 7, 4, 6), 6 / 1.5 - 0.25 - 0.5, 1e-5);
    cr_assert_float_eq(penalised(&q, history, 7, 2, 6), 6, 1e-5);
}

/* The ring against a plain list, over many wraps. */
Test(sampler, penalty_window_over_a_long_text)
{
    struct gr_sampler_params q = params();
    struct gr_rng rng = gr_rng_new(5);
    int32_t text[1000];
    q.temp = 0, q.penalty_last_n = 37, q.penalty_freq = 1;
    struct gr_sampler *s = open_sampler(&q);
    for (int t = 0; t < 1000; t++) {
        int count[N_VOCAB] = {0};
        for (int i = t < 37 ? 0 : t - 37; i < t; i++)
            count[text[i]]++;
        int32_t rarest = 0;
        for (int32_t i = 0; i < N_VOCAB; i++)
            rarest = count[i] < count[rarest] ? i : rarest;
        memset(logits, 0, sizeof logits);
        cr_assert_eq(pick(s), rarest, "after %d tokens", t);
        text[t] = (int32_t)gr_rng_below(&rng, N_VOCAB);
        cr_assert_eq(gr_sampler_accept(s, text[t]), 0);
    }
    gr_sampler_free(&s);
}

/* The mean surprise of what mirostat picks comes to tau, whatever the temperature. */
Test(sampler, mirostat_holds_the_surprise)
{
    const double taus[] = {1.5, 2.5, 3.5}, temps[] = {1, 1.5};
    for (int k = 0; k < 6; k++) {
        struct gr_sampler_params q = params();
        q.mirostat = 2, q.mirostat_tau = (float)taus[k % 3], q.mirostat_eta = 0.1f,
        q.temp = (float)temps[k / 3];
        struct gr_sampler *s = open_sampler(&q);
        double sum = 0, mu = 2 * q.mirostat_tau;
        for (int i = 0; i < 6000; i++) {
            double p[N_VOCAB], kept = 0, best = 0;
            random_logits((uint64_t)i, 1.5f);
            softmax(p, q.temp);
            int32_t id = pick(s);
            for (int32_t j = 0; j < N_VOCAB; j++)
                kept += -log2(p[j]) <= mu ? p[j] : 0, best = fmax(best, p[j]);
            cr_assert(p[id] == best || -log2(p[id]) <= mu + 1e-6, "surprise %g over mu %g",
                      -log2(p[id]), mu);
            double surprise = -log2(p[id] / fmax(kept, best));
            mu -= q.mirostat_eta * (surprise - q.mirostat_tau);
            sum += i >= 1000 ? surprise : 0;
        }
        cr_assert_float_eq(sum / 5000, taus[k % 3], 0.02, "tau %g: mean surprise %g", taus[k % 3],
                           sum / 5000);
        gr_sampler_free(&s);
    }
}

static void expect_error(struct gr_sampler *s, int status, const char *words)
{
    int32_t id = -7;
    cr_expect_eq(gr_sampler_pick(s, logits, &id), status);
    cr_expect(strstr(gr_error(), words), "%s", gr_error());
    cr_expect_eq(id, -7);
}

Test(sampler, refuses_logits_that_are_not_finite)
{
    for (int greedy = 0; greedy < 2; greedy++) {
        struct gr_sampler_params q = params();
        struct gr_logit_bias bias = {8, -INFINITY};
        q.temp = greedy ? 0 : 1, q.logit_bias = &bias, q.n_logit_bias = 1;
        struct gr_sampler *s = open_sampler(&q);
        random_logits(1, 1);
        logits[N_VOCAB - 1] = NAN;
        expect_error(s, GR_E_CHECK, "non-finite logits");
        logits[0] = -NAN, logits[N_VOCAB - 1] = INFINITY;
        expect_error(s, GR_E_CHECK, "non-finite logits");
        for (int32_t i = 0; i < N_VOCAB; i++)
            logits[i] = -INFINITY;
        expect_error(s, GR_E_CHECK, "non-finite logits");
        logits[8] = 1;
        expect_error(s, GR_E_CHECK, "leave no token");
        logits[9] = -3e38f;
        cr_assert_eq(pick(s), 9);
        gr_sampler_free(&s);
    }
}

#define REFUSED(field, value, words)                                                               \
    do {                                                                                           \
        struct gr_sampler_params q_ = params();                                                    \
        struct gr_sampler *s_ = (void *)&q_;                                                       \
        q_.field = (value);                                                                        \
        cr_expect_eq(gr_sampler_new(&s_, &q_), GR_E_INVALID, #field " = " #value);                 \
        cr_expect_null(s_);                                                                        \
        cr_expect(strstr(gr_error(), words), "%s", gr_error());                                    \
    } while (0)

#define LIMIT(field, within, beyond)                                                               \
    do {                                                                                           \
        struct gr_sampler_params q_ = params();                                                    \
        q_.field = (within);                                                                       \
        cr_expect_eq(gr_sampler_check(&q_), 0, "%s", gr_error());                                  \
        q_.field = (beyond);                                                                       \
        cr_expect_eq(gr_sampler_check(&q_), GR_E_INVALID, #field " = " #beyond);                   \
    } while (0)

Test(sampler, limits_of_parameters)
{
    LIMIT(temp, 1e6f, 1.001e6f);
    LIMIT(top_p, 0, -1e-6f);
    LIMIT(min_p, 0, -1e-6f);
    LIMIT(min_p, 1, 1.001f);
    LIMIT(typical_p, 0, -1e-6f);
    LIMIT(top_n_sigma, 1e6f, 1.001e6f);
    LIMIT(xtc_probability, 0, -1e-6f);
    LIMIT(xtc_probability, 1, 1.001f);
    LIMIT(xtc_threshold, 0, -1e-6f);
    LIMIT(dynatemp_range, 1e6f, 1.001e6f);
    LIMIT(dynatemp_exponent, 0, -1e-6f);
    LIMIT(dynatemp_exponent, 1e3f, 1.001e3f);
    LIMIT(penalty_last_n, -1, -2);
    LIMIT(penalty_last_n, 1 << 24, (1 << 24) + 1);
    LIMIT(penalty_repeat, 1.001e-3f, 0.999e-3f);
    LIMIT(penalty_repeat, 1e3f, 1.001e3f);
    LIMIT(penalty_freq, -1e6f, -1.001e6f);
    LIMIT(penalty_freq, 1e6f, 1.001e6f);
    LIMIT(penalty_present, -1e6f, -1.001e6f);
    LIMIT(penalty_present, 1e6f, 1.001e6f);
    LIMIT(dry_multiplier, 0, -1e-6f);
    LIMIT(dry_multiplier, 1e6f, 1.001e6f);
    LIMIT(dry_base, 1, 0.999f);
    LIMIT(dry_base, 1e3f, 1.001e3f);
    LIMIT(dry_allowed_length, 0, -1);
    LIMIT(dry_allowed_length, 1 << 24, (1 << 24) + 1);
    LIMIT(dry_penalty_last_n, -1, -2);
    LIMIT(dry_penalty_last_n, 1 << 24, (1 << 24) + 1);
    LIMIT(adaptive_target, 1, 1.001f);
    LIMIT(adaptive_decay, 0, -1e-6f);
    LIMIT(adaptive_decay, 0.99f, 0.991f);
    LIMIT(mirostat, 0, -1);
    LIMIT(mirostat, 2, 3);
    LIMIT(mirostat_tau, 0, -1e-6f);
    LIMIT(mirostat_tau, 1e3f, 1.001e3f);
    LIMIT(mirostat_eta, 0, -1e-6f);
    LIMIT(mirostat_eta, 1e3f, 1.001e3f);
    LIMIT(n_vocab, 1, 0);
    LIMIT(n_ctx, 0, -1);
    LIMIT(n_ctx, 1 << 24, (1 << 24) + 1);
}

Test(sampler, refuses_hostile_parameters)
{
    REFUSED(temp, NAN, "temp is nan");
    REFUSED(temp, INFINITY, "temp");
    REFUSED(top_p, NAN, "top_p");
    REFUSED(top_p, -0.1f, "top_p");
    REFUSED(min_p, NAN, "min_p");
    REFUSED(min_p, 1.5f, "min_p");
    REFUSED(typical_p, NAN, "typical_p");
    REFUSED(penalty_last_n, -2, "penalty_last_n");
    REFUSED(penalty_last_n, INT32_MAX, "penalty_last_n");
    REFUSED(penalty_repeat, 0, "penalty_repeat");
    REFUSED(penalty_repeat, -1, "penalty_repeat");
    REFUSED(penalty_repeat, NAN, "penalty_repeat");
    REFUSED(penalty_freq, INFINITY, "penalty_freq");
    REFUSED(penalty_present, NAN, "penalty_present");
    REFUSED(mirostat, 3, "mirostat");
    REFUSED(mirostat, -1, "mirostat");
    REFUSED(mirostat_tau, NAN, "mirostat_tau");
    REFUSED(mirostat_eta, -1, "mirostat_eta");
    REFUSED(top_n_sigma, NAN, "top_n_sigma");
    REFUSED(top_n_sigma, INFINITY, "top_n_sigma");
    REFUSED(xtc_probability, 1.5f, "xtc_probability");
    REFUSED(xtc_threshold, NAN, "xtc_threshold");
    REFUSED(dynatemp_range, INFINITY, "dynatemp_range");
    REFUSED(dynatemp_exponent, -1, "dynatemp_exponent");
    REFUSED(dry_multiplier, INFINITY, "dry_multiplier");
    REFUSED(dry_base, 0.5f, "dry_base");
    REFUSED(dry_allowed_length, -1, "dry_allowed_length");
    REFUSED(dry_penalty_last_n, INT32_MAX, "dry_penalty_last_n");
    REFUSED(n_dry_breakers, -1, "n_dry_breakers");
    REFUSED(n_dry_breakers, GR_MAX_DRY_BREAKERS + 1, "n_dry_breakers");
    REFUSED(adaptive_target, 2, "adaptive_target");
    REFUSED(adaptive_decay, 1, "adaptive_decay");
    REFUSED(samplers[0], '?', "no sampler has the name '?'");
    REFUSED(n_vocab, 0, "n_vocab");
    REFUSED(n_vocab, -5, "n_vocab");
    REFUSED(n_ctx, -1, "n_ctx");
    REFUSED(n_logit_bias, -1, "n_logit_bias");
    struct gr_logit_bias bias[] = {{N_VOCAB, 0}, {-1, 0}, {0, NAN}};
    const char *words[] = {"token 50", "token -1", "not a number"};
    for (int i = 0; i < 3; i++) {
        struct gr_sampler_params q = params();
        struct gr_sampler *s;
        q.logit_bias = &bias[i], q.n_logit_bias = 1;
        cr_expect_eq(gr_sampler_new(&s, &q), GR_E_INVALID);
        cr_expect(strstr(gr_error(), words[i]), "%s", gr_error());
    }
    struct gr_sampler_params q = params();
    q.penalty_repeat = 1.1f;
    struct gr_sampler *s = open_sampler(&q);
    cr_expect_eq(gr_sampler_accept(s, N_VOCAB), GR_E_INVALID);
    cr_expect_eq(gr_sampler_accept(s, -1), GR_E_INVALID);
    gr_sampler_free(&s);
    gr_sampler_free(&s);
}

/* A value that is 0, huge, tiny or in between. */
static float wild(struct gr_rng *rng, float most)
{
    const float scale[] = {0, 1e-30f, 1e-3f, 0.1f, 1};
    return scale[gr_rng_below(rng, 5)] * (float)gr_rng_double(rng) * most;
}

/* Any samplers in any order, also twice, with parameters of any size. */
static void random_chain(struct gr_sampler_params *q, struct gr_rng *rng)
{
    static const char letters[] = "edskypmxta";
    for (uint32_t i = 0, n = gr_rng_below(rng, GR_MAX_SAMPLERS); i < GR_MAX_SAMPLERS; i++)
        q->samplers[i] = i < n ? letters[gr_rng_below(rng, 10)] : '\0';
    q->top_n_sigma = wild(rng, 1e6f), q->xtc_probability = wild(rng, 1);
    q->xtc_threshold = wild(rng, 0.7f), q->dynatemp_range = wild(rng, 1e6f);
    q->dynatemp_exponent = wild(rng, 1e3f), q->dry_multiplier = wild(rng, 1e6f);
    q->dry_base = 1 + wild(rng, 999), q->dry_allowed_length = (int32_t)gr_rng_below(rng, 4);
    q->dry_penalty_last_n = (int32_t)gr_rng_below(rng, 20) - 1;
    q->adaptive_target = 1 - wild(rng, 2), q->adaptive_decay = wild(rng, 0.99f);
    q->mirostat_tau = wild(rng, 1e3f), q->mirostat_eta = wild(rng, 1e3f);
}

/* Random parameters and logits with the odd infinity: an id of a token above -inf, always. */
Test(sampler, never_leaves_the_vocabulary)
{
    struct gr_rng rng = gr_rng_new(6);
    for (int turn = 0; turn < 3000; turn++) {
        struct gr_sampler_params q = params();
        q.seed = (uint64_t)turn, q.n_vocab = 1 + (int32_t)gr_rng_below(&rng, N_VOCAB);
        q.temp = gr_rng_normal(&rng) + 1, q.top_k = (int32_t)gr_rng_below(&rng, 60) - 5;
        q.top_p = (float)gr_rng_double(&rng) * 1.2f, q.min_p = (float)gr_rng_double(&rng);
        q.typical_p = (float)gr_rng_double(&rng) * 1.5f;
        q.mirostat = gr_rng_below(&rng, 4) ? 0 : 1 + turn % 2;
        random_chain(&q, &rng);
        q.penalty_repeat = 1 + (float)gr_rng_double(&rng), q.penalty_freq = gr_rng_normal(&rng);
        struct gr_sampler *s = open_sampler(&q);
        for (int i = 0; i < 5; i++) {
            int32_t id = -1;
            for (int32_t j = 0; j < q.n_vocab; j++)
                logits[j] = gr_rng_below(&rng, 3) ? gr_rng_normal(&rng) * 20 : -INFINITY;
            logits[gr_rng_below(&rng, (uint32_t)q.n_vocab)] = gr_rng_below(&rng, 9) ? 3 : INFINITY;
            cr_assert_eq(gr_sampler_pick(s, logits, &id), 0);
            cr_assert(id >= 0 && id < q.n_vocab && logits[id] > -INFINITY);
            cr_assert_eq(gr_sampler_accept(s, id), 0);
        }
        gr_sampler_free(&s);
    }
}

/* Every allocation failing once is reported and leaks nothing. */
Test(sampler, out_of_memory)
{
    struct gr_sampler_params q = params();
    q.penalty_repeat = 1.1f, q.dry_multiplier = 1;
    for (uint64_t k = 1;; k++) {
        struct gr_sampler *s;
        gr_alloc_fail_at(k, 0);
        int rc = gr_sampler_new(&s, &q);
        gr_alloc_fail_at(0, 0);
        gr_sampler_free(&s);
        if (!rc) {
            cr_assert_gt(k, 12);
            return;
        }
        cr_assert_eq(rc, GR_E_NOMEM_HOST);
    }
}
