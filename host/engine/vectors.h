/* Sessions of vectors (embeddings, classifier scores): the output rows they need, and pooling. */
#ifndef GR_ENGINE_VECTORS_H
#define GR_ENGINE_VECTORS_H

#include "engine/session.h"

/* Fills in the defaults of embeddings and pooling, or refuses them. */
int gr_vectors_fill(const struct gr_model *m, struct gr_session_params *p);
/* Sets s->pool, s->n_row and the outputs of plans (s->env) from s->params. */
void gr_vectors_init(struct gr_session *s);
/* Returns whether texts have to be computed whole, in one micro-batch: by encoders, and for the
 * mean of all tokens. p: with defaults filled in. */
bool gr_vectors_whole(const struct gr_hparams *hp, const struct gr_session_params *p);
/* Marks the tokens of a checked batch whose output rows pooling needs. */
int gr_vectors_choose(struct gr_session *s, struct gr_pending_batch *pending);
/* Assigns result rows to sequences once tokens have theirs (pending->out_row). Returns the number
 * of result rows. */
int32_t gr_vectors_number(struct gr_session *s, struct gr_pending_batch *pending);
/* Number of result rows of a micro-batch of the current batch. */
int32_t gr_vectors_rows(const struct gr_session *s, const struct gr_ubatch *ub);
/* Fills the arrays of mean pooling: list, the tokens of each sequence in the order of sequence
 * ids; at, the start of each sequence in it, and its end. */
void gr_vectors_fill_step(const struct gr_session *s, const struct gr_ubatch *ub, int32_t *list,
                          int32_t *at);
/* Finishes a batch whose rows have all arrived: softmax of a classifier's scores, if it has one. */
void gr_vectors_finish(const struct gr_session *s, struct gr_pending_batch *pending);

#endif
