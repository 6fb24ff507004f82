/* Candidate tokens, and the filters that reduce them.
 *
 * Candidates stay in ascending order of their id: a filter finds the *rank* of the last candidate
 * it keeps by selection (no sort, expected time linear in their number) and drops all that rank
 * below. So the result of a filter and of a draw does not depend on how the selection works. Higher
 * logits rank first, equal ones by lower id. */
#ifndef GR_SAMPLE_CANDIDATES_H
#define GR_SAMPLE_CANDIDATES_H

#include <stdint.h>

#include "base/rng.h"

#define GR_LOGIT_MAX 1e37f

struct gr_candidate {
    int32_t id;
    float logit; /* finite, at most GR_LOGIT_MAX in magnitude once it has been edited */
    double p;    /* probability, set by gr_candidates_softmax */
};

/* Scratch entry of a selection: unique keys; the largest key ranks first. */
struct gr_rank {
    uint64_t key;
    double weight;
};

/* A set of candidates, never empty. */
struct gr_candidates {
    struct gr_candidate *c; /* [n], ids ascending */
    int32_t n;
    struct gr_rank *rank; /* scratch [largest n] */
};

/* Fills *s from logits [n_vocab], which have no NaN and are not all -inf: the k > 0 candidates that
 * rank first, of those above -inf; if any logit is +inf, only those, with equal logits. The arrays
 * of *s must hold n_vocab entries. */
void gr_candidates_fill(struct gr_candidates *s, const float *logits, int32_t n_vocab, int32_t k);

/* p = softmax(logit / temp), temp > 0; p sums to 1. */
void gr_candidates_softmax(struct gr_candidates *s, double temp);

/* Each filter reads p, keeps at least one candidate, and rescales p of those kept to sum 1. */

/* Nucleus sampling (Holtzman et al. 2020): keeps the fewest first-ranking candidates whose
 * probabilities sum to at least `mass`. */
void gr_candidates_top_p(struct gr_candidates *s, double mass);

/* Locally typical sampling (Meister et al. 2023): keeps the candidates whose surprise is nearest to
 * the entropy, up to a sum of `mass`. */
void gr_candidates_typical(struct gr_candidates *s, double mass);

/* Keeps candidates at least `ratio` times as probable as the most probable one. */
void gr_candidates_min_p(struct gr_candidates *s, double ratio);

/* Keeps candidates whose surprise, -log2 p, is at most `bits`. */
void gr_candidates_surprise(struct gr_candidates *s, double bits);

/* Exclude top choices: of the candidates with p >= threshold keeps the one that ranks last. */
void gr_candidates_xtc(struct gr_candidates *s, double threshold);

/* Mirostat 1 (Basu et al. 2021): estimates the exponent of Zipf's law from the 100 candidates that
 * rank first, and keeps the k > 0 first whose expected surprise in a vocabulary of n_vocab is
 * `bits`. */
void gr_candidates_mirostat(struct gr_candidates *s, double bits, int32_t n_vocab);

/* These look at logits and leave p undefined. */

/* Keeps the k > 0 that rank first. */
void gr_candidates_top_k(struct gr_candidates *s, int32_t k);

/* Keeps logits at least `n` standard deviations below the largest (Tang et al. 2024). */
void gr_candidates_top_n_sigma(struct gr_candidates *s, double n);

/* Divides the logits by temp > 0, after lowering all by the largest where that would overflow. */
void gr_candidates_scale(struct gr_candidates *s, double temp);

/* Returns the temperature from lo to hi >= lo that the entropy of p calls for: lo where one
 * candidate has all, hi where all have the same. */
double gr_candidates_temperature(const struct gr_candidates *s, double lo, double hi,
                                 double exponent);

/* Adaptive-p: replaces p by that of a draw from the candidates near `target`, and stores what it
 * was in rank[].weight. */
void gr_candidates_adapt(struct gr_candidates *s, double target);

/* Draws a candidate with probability p and returns its index in c. */
int32_t gr_candidates_draw(const struct gr_candidates *s, struct gr_rng *rng);

#endif
