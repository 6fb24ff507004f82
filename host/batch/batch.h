/* Batches: checking a caller's batch, and splitting it into micro-batches. */
#ifndef GR_BATCH_BATCH_H
#define GR_BATCH_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpurun.h"

#define GR_SEQ_MAX 256             /* sequences of one cache, at most */
#define GR_POS_MAX (INT32_MAX - 1) /* largest position, so that position + 1 never overflows */

/* A checked batch with every default filled in. Zero-initialise with {0}; its memory is kept from
 * one check to the next, so that checking batches of equal size allocates once. */
struct gr_full_batch {
    int32_t n_tok, n_out;
    int32_t *token, *pos;
    const float *embd;             /* the caller's vectors in place of the tokens, or NULL */
    int32_t *row, *col;            /* the other positions of M-RoPE; equal to pos for text */
    bool pos_2d;                   /* any token has a row or column that differs from pos */
    int32_t *n_seq, *seq, *seq_at; /* token i belongs to seq[seq_at[i] .. seq_at[i] + n_seq[i]) */
    int8_t *logits;                /* 0 or 1 */
    void *memory;
    size_t memory_bytes;
};

/* Limits that a batch is checked against; gr_cache_limits (kv/cache.h) sets those of the cache. */
struct gr_batch_limits {
    int32_t n_vocab, n_batch, n_seq_max;
    /* Largest position of a sequence, -1 = none. */
    int32_t (*pos_max)(const void *cache, int32_t seq);
    /* Returns whether two sequences have the same cells and states. */
    bool (*same)(const void *cache, int32_t a, int32_t b);
    const void *cache;
    bool pos_2d; /* tokens may have a row and a column in addition to their position */
    /* With pos_2d: one past the largest of a sequence's last position and its rows and columns. */
    int32_t (*pos_end)(const void *cache, int32_t seq);
    int32_t n_embd; /* length of a vector that replaces a token; 0: the model takes tokens only */
};

/* Checks a batch and copies it with defaults filled in. Checked are 1 <= n_tok <= n_batch, token
 * ids, sequence ids, no sequence twice in a token, and positions: from 0 to GR_POS_MAX and, in each
 * sequence, each one its predecessor's + 1 (the first one: the cache's largest + 1; any for an
 * empty sequence). Where tokens have rows and columns, a text continues behind the largest
 * position, row and column; in a batch that gives rows and columns, positions may repeat and grow,
 * but not decrease. The sequences of one token must have the same past, because one row of the mask
 * serves them all. GR_E_INVALID names the token's index, what was expected and what was found; *out
 * has no tokens then. In a batch of vectors every token is 0, and `embd` points to the caller's
 * vectors. */
int gr_batch_check(struct gr_full_batch *out, const struct gr_batch *in,
                   const struct gr_batch_limits *limits);
/* Frees the arrays; a zeroed batch is fine. */
void gr_batch_fini(struct gr_full_batch *b);

/* A micro-batch: tokens of a full batch that are computed at once. */
struct gr_ubatch {
    const struct gr_full_batch *batch;
    const int32_t *tok; /* [n_tok] indices into the batch */
    int32_t n_tok, n_out;
    /* 0 for a simple split; otherwise the number of sequences, each with n_tok / n_seq tokens, one
     * sequence after the other; sequences that share tokens count once. */
    int32_t n_seq;
};

enum gr_split {
    GR_SPLIT_SIMPLE, /* consecutive runs of at most n_ubatch tokens */
    GR_SPLIT_EQUAL,  /* the same number of consecutive tokens from each of several sequences, in the
                        order of their ids; no two of them share a token */
    GR_SPLIT_SEQ     /* tokens of one sequence, the lowest id first */
};

/* Splits a batch: tok [n_tok] receives the order of the tokens, ub (n_tok at most) the
 * micro-batches, which point into tok; returns their number. n_ubatch > 0. A token with several
 * sequences advances all of them (EQUAL and SEQ: tokens with the same sequences form one sequence).
 * n_tail (EQUAL, SEQ): the last n_tail tokens of each sequence come one at a time. */
int32_t gr_batch_split(const struct gr_full_batch *b, enum gr_split mode, int32_t n_ubatch,
                       int32_t n_tail, int32_t *tok, struct gr_ubatch *ub);

#endif
