/* Where drafts come from, and how long they are. */
#ifndef GR_DRAFT_DRAFT_H
#define GR_DRAFT_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"
#include "gpurun.h"

/* Draft from a text of n tokens: finds the last place before its end where the last n_gram > 0
 * tokens occur, and copies to draft [most] what followed there, going on from the draft itself
 * where that reaches the end of the text. Returns its length: most, or 0 when there is no such
 * place. */
int32_t gr_draft_look_up(const int32_t *text, size_t n, int32_t n_gram, int32_t *draft,
                         int32_t most);

/* A draft model's session holds a part of the text, and tokens of the last draft behind it. */
struct gr_draft_model {
    const struct gr_model *model;
    struct gr_session *session; /* NULL: there is no draft model */
    size_t first, n_cached;     /* tokens [first, first + n_cached) of the text */
    int32_t ahead[GR_MAX_DRAFT], n_ahead;
    float p_min;
    int32_t n_vocab; /* tokens that both models have */
};
/* GR_E_INVALID: the vocabularies differ. */
int gr_draft_model_check(struct gr_draft_model *m, const struct gr_model *target);
/* Drafts at most `most` tokens behind the text of n tokens; *tried: the draft model ran. */
int gr_draft_model_propose(struct gr_draft_model *m, const int32_t *text, size_t n, int32_t *draft,
                           int32_t most, int32_t *n_draft, bool *tried);
/* Forgets what the session holds. */
void gr_draft_model_clear(struct gr_draft_model *m);

/* Chooses the length of drafts: longer while they are accepted; none for a while when their steps
 * take longer for each token than steps without. */
struct gr_draft_pace {
    int32_t n_min, n_max, length;
    bool adaptive;
    double plain_s, draft_s; /* seconds for each token, 0: unknown */
    int32_t n_trial;         /* steps that tried a draft since the last pause */
    int32_t n_plain;         /* steps without that are left */
    int32_t pause;           /* length of the next pause */
};
/* Returns the most tokens of the next draft, 0: none. */
int32_t gr_draft_pace_next(struct gr_draft_pace *p);
/* Tells it of a step: whether a draft was tried, the one that was used, how much of it was
 * accepted, and the step's duration. */
void gr_draft_pace_step(struct gr_draft_pace *p, bool tried, int32_t n_draft, int32_t n_accepted,
                        double seconds);

#endif
