/* The tokens that may still be picked, and the filters that thin them out.
 *
 * Candidates stay in ascending order of their id, whatever was removed: a filter finds the *rank*
 * of the last candidate it keeps by selection (no sort, expected time linear in their number) and
 * drops what ranks below. So the result of a filter and of a draw does not depend on how the
 * selection works. Higher logits rank first, equal ones by lower id. */
#ifndef GR_SAMPLE_CANDIDATES_H
#define GR_SAMPLE_CANDIDATES_H

#include <stdint.h>

#include "base/rng.h"

struct gr_candidate {
    int32_t id;
    float logit; /* finite */
    double p;    /* probability, by gr_candidates_softmax */
};

/* Scratch of a selection: unique keys, the largest ranks first. */
struct gr_rank {
    uint64_t key;
    double weight;
};

/* At least one candidate, at all times. */
struct gr_candidates {
    struct gr_candidate *c; /* [n], ids ascending */
    int32_t n;
    struct gr_rank *rank; /* scratch [largest n] */
};

/* Makes candidates of logits [n_vocab] without a NaN and not all -inf: the k > 0 that rank first,
 * of those above -inf; only those at +inf, when there is one, as equals. The arrays of *s must hold
 * n_vocab entries. */
void gr_candidates_fill(struct gr_candidates *s, const float *logits, int32_t n_vocab, int32_t k);

/* p = softmax(logit / temp), temp > 0; p sums to 1. */
void gr_candidates_softmax(struct gr_candidates *s, double temp);

/* Each filter reads p, keeps one candidate at least, and scales p of those to sum 1 again. */

/* The least number that rank first and hold the probability `mass` (nucleus sampling, Holtzman et
 * al. 2020). */
void gr_candidates_top_p(struct gr_candidates *s, double mass);

/* Locally typical sampling (Meister et al. 2023): those whose surprise is nearest to the entropy,
 * up to `mass`. */
void gr_candidates_typical(struct gr_candidates *s, double mass);

/* Those at least `ratio` times as probable as the first. */
void gr_candidates_min_p(struct gr_candidates *s, double ratio);

/* Those whose surprise, -log2 p, is at most `bits`. */
void gr_candidates_surprise(struct gr_candidates *s, double bits);

/* Draws one with probability p and returns its index in c. */
int32_t gr_candidates_draw(const struct gr_candidates *s, struct gr_rng *rng);

#endif
