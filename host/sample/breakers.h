/* Sequence breakers of DRY, given as texts. */
#ifndef GR_SAMPLE_BREAKERS_H
#define GR_SAMPLE_BREAKERS_H

#include "sample/dry.h"
#include "text/vocab.h"

/* Adds the sequences of tokens that make the text: each token that contains it; and each that ends
 * with a beginning of it, followed by the tokens of the rest, 20 at most. */
int gr_breakers_add_text(struct gr_breakers *b, const struct gr_vocab *v, const char *text);

#endif
