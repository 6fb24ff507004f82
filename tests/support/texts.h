/* Texts of random tokens, each alone or side by side in one session of a tiny model. */
#ifndef TESTS_SUPPORT_TEXTS_H
#define TESTS_SUPPORT_TEXTS_H

#include "base/rng.h"
#include "engine/session.h"

enum { TEXTS = 4, TEXT_LENGTH = 24, TEXTS_VOCAB = 96, TEXTS_TOKENS = TEXTS * TEXT_LENGTH };

struct texts {
    int32_t id[TEXTS][TEXT_LENGTH];
    float row[TEXTS][TEXT_LENGTH][TEXTS_VOCAB]; /* logits */
    int32_t n[TEXTS];                           /* tokens decoded */
};

/* Draws the tokens of texts from number `first` on. */
void texts_new_ids(struct texts *t, struct gr_rng *r, int first);
/* Draws how many tokens each text goes on by; false when all are over. */
bool texts_draw(const struct texts *t, struct gr_rng *r, int *k);
/* Decodes the next k[i] tokens of every text i in one batch. */
void texts_step(struct gr_session *s, struct texts *t, const int *k);
/* Decodes each text at once in a session without others, by one thread. */
void texts_alone(struct gr_model *m, struct gr_session_params p, struct texts *t);
/* Decodes the tokens of `of` side by side in steps that are drawn. */
void texts_beside(struct gr_model *m, const struct gr_session_params *p, struct gr_rng *r,
                  const struct texts *of, struct texts *t);
/* Fails with the first token of the first n texts whose bits differ. */
void texts_compare(const struct texts *a, const struct texts *b, int n, const char *what);

#endif
