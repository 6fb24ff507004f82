/* DRY ("don't repeat yourself"): lowers the logits of tokens that would continue a repetition of
 * the text's end, by multiplier * base^(length - allowed) where `length` tokens before them are
 * repeated. A repetition is not followed across a sequence breaker. */
#ifndef GR_SAMPLE_DRY_H
#define GR_SAMPLE_DRY_H

#include <stdint.h>

#include "base/alloc.h"

/* Sequences of tokens that break a repetition: a token, and those that follow it. */
struct gr_breaker {
    int32_t head, n_tail;
    int32_t tail; /* index of the first in gr_breakers.tail */
};
struct gr_breakers {
    struct gr_vec item; /* struct gr_breaker */
    struct gr_vec tail; /* int32_t */
};
/* Adds a sequence of n > 0 tokens. */
int gr_breakers_add(struct gr_breakers *b, const int32_t *token, int32_t n);
void gr_breakers_fini(struct gr_breakers *b);

struct gr_dry_params {
    float multiplier, base; /* > 0; >= 1 */
    int32_t allowed;        /* length of a repetition that is not penalised */
    int32_t window;         /* tokens to look back at */
    int32_t n_vocab;
};

struct gr_dry_penalty {
    int32_t id;
    float penalty; /* at most 1e30 */
};

struct gr_dry;
/* Takes the breakers over, also on failure. */
int gr_dry_new(struct gr_dry **out, const struct gr_dry_params *p, struct gr_breakers *breakers);
/* Makes one with the parameters and the breakers of another one, which may be freed first. */
int gr_dry_new_like(struct gr_dry **out, const struct gr_dry *of);
void gr_dry_free(struct gr_dry **dry);
/* Adds a token of the vocabulary to the text. */
void gr_dry_accept(struct gr_dry *d, int32_t id);
/* Lists what is to be taken off logits, each id once; returns their number. Valid until the next
 * call. */
int32_t gr_dry_penalties(struct gr_dry *d, const struct gr_dry_penalty **list);

#endif
