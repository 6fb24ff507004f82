/* Vectors of texts: tokens, batches of whole texts, and the length of a vector. */
#ifndef GR_TOOLS_VECTORS_H
#define GR_TOOLS_VECTORS_H

#include "gpurun.h"

struct gr_options;

/* The tokens of a text, to be freed. */
struct gr_ids {
    int32_t *id; /* [n] */
    size_t n;
};

/* Adds the tokens of a text of n bytes, or of a part of one: a part behind another begins without
 * the token that texts begin with. Returns a status. */
int gr_ids_add(struct gr_ids *ids, const struct gr_model *model, const char *text, size_t n);
void gr_ids_free(struct gr_ids *ids);

/* Stores the most tokens of a text: of learned positions, which are the most there are, or of those
 * that the model was trained for. Returns a status. */
int gr_vectors_reach(const struct gr_options *o, struct gr_model *model, int32_t *n);

/* A session of vectors, and the arrays of its batches. */
struct gr_vectors {
    struct gr_session *session;
    enum gr_pooling pooling; /* in effect */
    int32_t n_embd;          /* numbers of a vector */
    int32_t n_batch;         /* most tokens of a batch, */
    int32_t n_seq;           /* and most texts */
    int32_t *id, *seq;       /* [n_batch] */
    int8_t *wanted;          /* [n_batch] all 1 */
};

/* Chooses the parameters of a session whose batches have so many tokens and texts at most. Returns
 * a status. */
int gr_vectors_params(struct gr_session_params *p, const struct gr_options *o,
                      const struct gr_model *model, enum gr_pooling pooling, int32_t n_batch,
                      int32_t n_text);
/* Returns a status. */
int gr_vectors_open(struct gr_vectors *v, struct gr_model *model,
                    const struct gr_session_params *params);
void gr_vectors_close(struct gr_vectors *v);
/* Runs n texts as one batch, within the limits; none is empty. The i-th one is sequence i. Returns
 * a status. */
int gr_vectors_run(struct gr_vectors *v, const struct gr_ids *const *text, int32_t n);

/* Normalises x [n] into y: norm -1: not at all, 0: by the largest magnitude, to 16-bit integers, 1:
 * by the sum of magnitudes, 2: by the Euclidean norm, p > 2: by the p-norm. Norms are summed in
 * f64. */
void gr_vector_normalise(const float *x, int32_t n, int32_t norm, float *y);

#endif
