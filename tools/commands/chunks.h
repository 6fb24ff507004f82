/* Running a text through a model in chunks of one context each, for perplexity and imatrix. */
#ifndef GR_TOOLS_CHUNKS_H
#define GR_TOOLS_CHUNKS_H

#include "base_file.h"
#include "length.h"

/* Sums over tokens of -log p and of its square. */
struct gr_nll {
    double sum, sum2;
    int64_t n;
};

/* Chunk i begins at token i * step and is n_ctx tokens long; its tokens from `first` on, except the
 * last, are judged by the probability of the token that follows. */
struct gr_chunks {
    struct gr_model *model;
    struct gr_session *session;
    const int32_t *ids;
    int32_t *own_ids; /* ids when owned, NULL when they are a base file's */
    size_t n_ids;
    int32_t n_ctx, step, first;
    int32_t begin, n_chunk;           /* chunks [begin, n_chunk) are run */
    int32_t n_done;                   /* chunks [begin, n_done) are */
    int32_t n_vocab, n_batch, n_side; /* chunks run at once */
    int32_t bos;                      /* replaces each chunk's first token; -1: none */
    bool all_logits;                  /* compute logits of tokens that are not judged too */
    struct gr_length length;          /* Self-Extend: the classic mode runs chunks one by one */
    struct gr_nll whole, now;         /* of the complete chunks; including the current one */
    const char *command;              /* name of the command that runs them */
};

/* Perplexity of the complete chunks (NAN: none yet), and its standard error (0: none yet). */
struct gr_perplexity {
    double value, error;
};
struct gr_perplexity gr_chunks_perplexity(const struct gr_chunks *c);

/* Reads the text, or uses the tokens of `base` unless NULL, and opens model and session by the
 * options; `all_logits` as above. 0 or an exit code, after printing the error. */
int gr_chunks_open(struct gr_chunks *c, const struct gr_options *o, bool all_logits,
                   const struct gr_base_file *base);
void gr_chunks_close(struct gr_chunks *c);
/* Returns the number of judged tokens of all chunks. */
int64_t gr_chunks_n_judged(const struct gr_chunks *c);

/* A judged token: its logits, log of the sum of their exponentials, and the token that follows in
 * the text. */
struct gr_judged {
    const float *logits;
    double log_sum;
    int32_t came;
};

/* Callbacks, called in the order of the text: `judged` (or NULL) returns 0 or an exit code, after
 * printing the error; `done` is called after chunk i; once it returns false, no chunks follow those
 * run at once with it. */
struct gr_chunk_calls {
    int (*judged)(const struct gr_chunks *c, const struct gr_judged *j, void *user);
    bool (*done)(const struct gr_chunks *c, int32_t i, void *user);
    void *user;
};
/* Runs the chunks. 0 or an exit code, after printing the error; GR_EXIT_INTERRUPTED, without a
 * message, when gr_interrupted. */
int gr_chunks_run(struct gr_chunks *c, const struct gr_chunk_calls *calls);

#endif
