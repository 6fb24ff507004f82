/* A text through a model in chunks of a context each, for perplexity and imatrix. */
#ifndef GR_TOOLS_CHUNKS_H
#define GR_TOOLS_CHUNKS_H

#include "tools.h"

/* Chunk i begins at token i * step and is n_ctx tokens long; of its tokens those from `first` on
 * but the last are judged by how likely the model found the one after. */
struct gr_chunks {
    struct gr_model *model;
    struct gr_session *session;
    int32_t *ids;
    size_t n_ids;
    int32_t n_ctx, step, first;
    int32_t begin, n_chunk;           /* chunks [begin, n_chunk) are run */
    int32_t n_vocab, n_batch, n_side; /* chunks side by side */
    int32_t bos;                      /* in place of each chunk's first token; -1: not */
    bool all_logits;                  /* of tokens that are not judged too */
    double nll, nll2;                 /* sums over the judged tokens so far: of -log p, squared */
    int64_t n_judged;
};

/* The perplexity so far, and its standard error (0 when there is none yet). */
struct gr_perplexity {
    double value, error;
};
struct gr_perplexity gr_chunks_perplexity(const struct gr_chunks *c);

/* Reads the text and opens model and session as the options say; `all_logits` as above. 0 or an
 * exit code, said. */
int gr_chunks_open(struct gr_chunks *c, const struct gr_options *o, bool all_logits);
void gr_chunks_close(struct gr_chunks *c);

/* Runs the chunks and calls done(i, user) after each, in order; once that returned false, those
 * side by side with it are the last. 0 or an exit code, said. */
int gr_chunks_run(struct gr_chunks *c,
                  bool (*done)(const struct gr_chunks *c, int32_t i, void *user), void *user);

#endif
