/* A text through a model in chunks of a context each, for perplexity and imatrix. */
#ifndef GR_TOOLS_CHUNKS_H
#define GR_TOOLS_CHUNKS_H

#include "base_file.h"
#include "length.h"

/* Sums over tokens of -log p and of its square. */
struct gr_nll {
    double sum, sum2;
    int64_t n;
};

/* Chunk i begins at token i * step and is n_ctx tokens long; of its tokens those from `first` on
 * but the last are judged by how likely the model found the one after. */
struct gr_chunks {
    struct gr_model *model;
    struct gr_session *session;
    const int32_t *ids;
    int32_t *own_ids; /* ids, unless they are a file's */
    size_t n_ids;
    int32_t n_ctx, step, first;
    int32_t begin, n_chunk;           /* chunks [begin, n_chunk) are run */
    int32_t n_done;                   /* chunks [begin, n_done) are */
    int32_t n_vocab, n_batch, n_side; /* chunks side by side */
    int32_t bos;                      /* in place of each chunk's first token; -1: not */
    bool all_logits;                  /* of tokens that are not judged too */
    struct gr_length length;          /* Self-Extend: the classic mode runs chunks one by one */
    struct gr_nll whole, now;         /* of the chunks that are complete; with the one under way */
    const char *command;              /* that runs them */
};

/* The perplexity so far, and its standard error (0 when there is none yet); NAN before the first
 * chunk is complete. */
struct gr_perplexity {
    double value, error;
};
struct gr_perplexity gr_chunks_perplexity(const struct gr_chunks *c);

/* Reads the text, or takes the tokens of `base` where there is one, and opens model and session as
 * the options say; `all_logits` as above. 0 or an exit code, said. */
int gr_chunks_open(struct gr_chunks *c, const struct gr_options *o, bool all_logits,
                   const struct gr_base_file *base);
void gr_chunks_close(struct gr_chunks *c);
/* Tokens that are judged in all. */
int64_t gr_chunks_n_judged(const struct gr_chunks *c);

/* A token that is judged: its logits, the logarithm of the sum of their exponentials, and the token
 * that came. */
struct gr_judged {
    const float *logits;
    double log_sum;
    int32_t came;
};

/* What is called as chunks run, all in the order of the text: `judged` (NULL: nothing) returns 0 or
 * an exit code, said; `done` is called after chunk i, and once it returned false, those side by
 * side with it are the last. */
struct gr_chunk_calls {
    int (*judged)(const struct gr_chunks *c, const struct gr_judged *j, void *user);
    bool (*done)(const struct gr_chunks *c, int32_t i, void *user);
    void *user;
};
/* 0 or an exit code, said; GR_EXIT_INTERRUPTED when gr_interrupted, which is not. */
int gr_chunks_run(struct gr_chunks *c, const struct gr_chunk_calls *calls);

#endif
