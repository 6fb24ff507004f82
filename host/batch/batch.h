/* Batches: checking what a caller gives, and cutting it into micro-batches. */
#ifndef GR_BATCH_BATCH_H
#define GR_BATCH_BATCH_H

#include <stdint.h>

#include "gpurun.h"

/* A checked batch with every default filled in. Owns its arrays (one arena). */
struct gr_full_batch {
    int32_t n_tok, n_out;
    int32_t *token, *pos;
    int32_t *n_seq, *seq, *seq_at; /* token i belongs to seq[seq_at[i] .. seq_at[i] + n_seq[i]) */
    int8_t *logits;
    void *memory;
};

/* Limits and the cache's present positions that a batch is checked against. */
struct gr_batch_limits {
    int32_t n_vocab, n_batch, n_seq_max;
    int32_t (*pos_max)(const void *cache, int32_t seq); /* largest position of a sequence, -1 = none */
    const void *cache;
};

/* Checks everything before anything is changed: 1 <= n_tok <= n_batch, ids, sequence ids, no sequence twice in a token,
 * positions >= 0 and, in each sequence, every one its predecessor's + 1 (the first one: the cache's largest + 1; any
 * for an empty sequence). GR_E_INVALID names the token's index, what was expected and what was found. */
int gr_batch_check(struct gr_full_batch *out, const struct gr_batch *in, const struct gr_batch_limits *limits);
void gr_batch_fini(struct gr_full_batch *b);

/* Tokens [first, first + n_tok) of a full batch. */
struct gr_ubatch {
    const struct gr_full_batch *batch;
    int32_t first, n_tok, n_out;
};

/* Simple split: consecutive pieces of at most n_ubatch tokens. Returns their number and fills ub (room for
 * ceil(n_tok / n_ubatch)). */
int32_t gr_batch_split(const struct gr_full_batch *b, int32_t n_ubatch, struct gr_ubatch *ub);

#endif
