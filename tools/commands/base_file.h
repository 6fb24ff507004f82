/* Files of log-probabilities to compare a model with, in the format of llama-perplexity
 * --kl-divergence-base. Little-endian, without gaps:
 *
 *   "_logits_", int32 n_ctx, int32 n_vocab, int32 n_chunk
 *   int32 [n_chunk, n_ctx]  tokens as in the text; where the model has a BOS, it replaces the
 *                           first one of each chunk when the chunk is run
 *   rows                    one for each of the tokens n_ctx / 2 to n_ctx - 2 of each chunk: f32
 *                           scale, f32 least, uint16 q [n_vocab], and a padding uint16 when
 *                           n_vocab is odd
 *
 * The log-probability of token i following a row's token is scale * q[i] + least; q 0 stands for
 * all values that are 16 or more below the likeliest. */
#ifndef GR_TOOLS_BASE_FILE_H
#define GR_TOOLS_BASE_FILE_H

#include "gpurun.h"

struct gr_base_file {
    const char *path;
    FILE *in;              /* of one that is read */
    struct gr_output *out; /* file that is written */
    int32_t n_ctx, n_vocab, n_chunk;
    int32_t *token; /* [n_chunk, n_ctx] of a file that is read */
    uint16_t *row;  /* current row, as above */
};

/* Log-probabilities of a row; q is valid until the next one is read. */
struct gr_base_row {
    float scale, least;
    const uint16_t *q; /* [n_vocab] */
};

/* All functions return 0 or an exit code, after printing the error. A file that is read may be a
 * pipe. */

/* Opens a file and reads it up to its rows; gr_base_fits checks n_vocab and tokens against a
 * model. */
int gr_base_read(struct gr_base_file *b, const char *path);
int gr_base_fits(const struct gr_base_file *b, int32_t n_vocab);
/* Skips the rows of n chunks. */
int gr_base_skip(struct gr_base_file *b, int32_t n);
int gr_base_next(struct gr_base_file *b, struct gr_base_row *row);

/* Begins a file with path, n_ctx, n_vocab and n_chunk of *b. */
int gr_base_begin(struct gr_base_file *b, const int32_t *token, bool overwrite);
/* A row of logits; log_sum: the logarithm of the sum of their exponentials. */
int gr_base_put(struct gr_base_file *b, const float *logits, double log_sum);
/* Completes the file, after the last row. */
int gr_base_commit(struct gr_base_file *b);

/* Closes the files; an incomplete output file is discarded. */
void gr_base_close(struct gr_base_file *b);

#endif
