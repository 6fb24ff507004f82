/* Files of log-probabilities, which a model's are compared with: what llama-perplexity
 * --kl-divergence-base writes and reads. Little-endian, without gaps:
 *
 *   "_logits_", int32 n_ctx, int32 n_vocab, int32 n_chunk
 *   int32 [n_chunk, n_ctx]  the tokens as the text has them: the first of a chunk is replaced by
 * BOS where the model wants one rows                    of each chunk the tokens n_ctx / 2 to n_ctx
 * - 2, each f32 scale, f32 least, uint16 q [n_vocab], and one that means nothing for an odd n_vocab
 *
 * log p of token i behind that row's is scale * q[i] + least; 0 stands for all that is 16 or more
 * below the likeliest. */
#ifndef GR_TOOLS_BASE_FILE_H
#define GR_TOOLS_BASE_FILE_H

#include "tools.h"

struct gr_base_file {
    const char *path;
    FILE *in;              /* of one that is read */
    struct gr_output *out; /* of one that is written */
    int32_t n_ctx, n_vocab, n_chunk;
    int32_t *token; /* [n_chunk, n_ctx] of one that is read */
    uint16_t *row;  /* as above, the one at hand */
};

/* Log-probabilities of a row; q is valid until the next one is read. */
struct gr_base_row {
    float scale, least;
    const uint16_t *q; /* [n_vocab] */
};

/* All of these return 0 or an exit code, said. A file that is read may be a pipe. */

/* Opens a file and reads it up to its rows; that n_vocab and tokens are a model's is for
 * gr_base_fits. */
int gr_base_read(struct gr_base_file *b, const char *path);
int gr_base_fits(const struct gr_base_file *b, int32_t n_vocab);
/* Leaves out the rows of n chunks. */
int gr_base_skip(struct gr_base_file *b, int32_t n);
int gr_base_next(struct gr_base_file *b, struct gr_base_row *row);

/* Begins a file with path, n_ctx, n_vocab and n_chunk of *b. */
int gr_base_begin(struct gr_base_file *b, const int32_t *token, bool overwrite);
/* A row of logits; log_sum: the logarithm of the sum of their exponentials. */
int gr_base_put(struct gr_base_file *b, const float *logits, double log_sum);
/* Completes it, after the last row. */
int gr_base_commit(struct gr_base_file *b);

/* Closes what is open; a file that is not complete is not there. */
void gr_base_close(struct gr_base_file *b);

#endif
